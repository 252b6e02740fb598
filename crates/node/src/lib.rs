//! A process as one state machine, without input or output of its own: its endpoints by channel, over one set
//! of links.
//!
//! **Promise.** Each endpoint is a [`Protocol`] that runs as if it had the process to itself. An idle
//! endpoint costs no time: the node neither calls an idle endpoint nor loops over it.
//!
//! **Shape.** The model is quinn's `Endpoint`, which passes datagrams to connections in a slab. A [`Node`] is
//! itself a [`Protocol`], so anything that runs one protocol (the simulator, the real runtime) can run a
//! process of many.
//!
//! ```text
//!                        Node
//!  Envelope{channel, …} ─▶ directory ─▶ slot 0: typed    the protocol `H`, known at compile time: called
//!                                       slot 1: typed    directly, and encodes its messages in place
//!                                       slot 2: dynamic  any protocol in bytes (`Endpoint`), added later
//!              deadlines: (time, slot) · active: slots that got an input · sessions by peer · records
//! ```
//!
//! **Links.** Two processes have one link, which their endpoints share. Two endpoints of one channel have a
//! [`session`] on it. A session opens when one of the endpoints has reached for the other's process, the
//! processes are linked, and the [`Policy`] of each admits the other's pass. An endpoint gets `Linked` and
//! `Unlinked` for its sessions, not for links. A node wants a link while one of its endpoints reaches for the
//! peer. It gives the link up when no endpoint reaches for the peer and no endpoint has a session on the
//! link. A session ends when its endpoint leaves, when the policy changes, or when a message does not decode.
//! The end of one session ends no other session.
//!
//! **Time.** The node keeps the deadlines of its endpoints in order. At each [`Input::Drained`] the node asks
//! the endpoints that have had an input since the last `Drained` for their new deadlines; only these
//! endpoints get `Drained`.
//!
//! **Records** of all endpoints form one sequence, each with its channel, under tickets of one counter. The
//! node passes `Persisted` to the endpoints whose records became durable. The node collects the sequence up
//! to the first record that any endpoint still needs. So an endpoint that never collects also keeps the later
//! records of the others.
//!
//! **A panic** ends the endpoint in which it happens: its sessions end, the host gets [`Event::Ended`], and
//! the other endpoints go on. The endpoint's records stay until the host removes or releases them
//! ([`Command::Release`]). All replicas of a set may panic at the same input, and then a restart is possible
//! only from their journals. A [vital](NewEndpoint::vital) endpoint is one that other endpoints need, for
//! example a router: its panic ends the process.
//!
//! **Bytes from outside.** The node counts and drops an envelope for an absent endpoint, of a foreign domain,
//! or without a session ([`Counters`]). A message that does not decode ends its session.
//!
//! **Relays are above the node** ([`relay`](quorate_protocol::relay)): an endpoint whose links may be relayed
//! is a `Relay<P>`, and no relay carries a node. One relay below the node, with one set of heartbeats, could
//! serve all endpoints. But that relay would have to know the role of each endpoint in its domain: a link
//! between two routers of a domain is never relayed. But in another domain the same two processes may be a
//! router and a member, whose link must be relayed. Above the node each endpoint knows its own role, and
//! domains that do not relay pay nothing. The relay's rules hold unchanged, with a session in place of a
//! link. If a relay gives up a session and no other endpoint needs the link, the link ends, too, and is made
//! again as usual.
//!
//! **Policies.** Each endpoint's own [`Policy`] decides who may have a session with it; the node itself links
//! with everybody. The node shows the pass of its vital endpoint as its own pass. The disk of the process
//! keeps that pass, so the vital endpoint can be restored with it. The disk keeps no pass of a dynamic
//! endpoint: after a restore, a dynamic endpoint shows the pass that its records imply.
//!
//! **Casts** carry messages only, and only within a session. Like any cast, a cast of an endpoint may belong
//! to an earlier session of the same two endpoints.
//!
//! **Differences from a protocol without a node.** A message of `Sink::send_aside` may be lost if it is sent
//! right after a session opens ([`session`]). [`Input::Progress`] goes to every endpoint that has a session
//! with the peer.

mod channel;
mod endpoint;
mod host;
mod node;
mod output;
mod records;
pub mod session;
mod state;

#[cfg(test)]
mod tests;

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use quorate_protocol::{
    Context, Duration, Input, Policy, ProcessId, Protocol, Sink, Ticket, Time,
    seam::Anyone,
    wire::{Wire, WireError},
};
use rustc_hash::FxHashMap;
use slab::Slab;

use channel::{EnvelopeContent, Signal, Tag};
use output::{DynamicSink, EndpointOutput, TypedSink};
use session::SessionState;

use crate::{
    endpoint::EndpointKind,
    node::{EndpointSlot, Inbound, NodePolicy},
    state::{NodeState, SessionEvent},
};

pub use channel::{
    Channel, Encoded, EndpointId, Envelope, HEADER_BYTES, JournalEntry, records_by_channel, records_of,
};
pub use endpoint::{Dynamic, Endpoint, Opaque, Payload};
pub use host::{Command, Counters, Ending, Event, NewEndpoint};

pub use crate::node::Node;

impl<H> Node<H>
where
    H: Protocol,
    H::Message: Wire,
{
    /// Makes a process without endpoints.
    pub fn new() -> Self {
        Node {
            slots: Slab::new(),
            directory: FxHashMap::default(),
            last_lookup: None,
            domains: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            active: Vec::new(),
            gathering: Duration::ZERO,
            state: NodeState::default(),
            counters: Counters::default(),
        }
    }

    /// Makes a process with only this endpoint.
    pub fn with(new_endpoint: NewEndpoint<H>) -> Self {
        let mut node = Node::new();
        assert!(node.add(new_endpoint).is_ok(), "a new node has no other endpoint");
        node
    }

    /// Adds an endpoint. Returns the endpoint as an error if its channel is occupied.
    pub fn add(&mut self, new_endpoint: NewEndpoint<H>) -> Result<(), NewEndpoint<H>> {
        let tag = new_endpoint.channel.tag();
        if self.directory.contains_key(&tag) {
            return Err(new_endpoint);
        }
        let NewEndpoint { channel, endpoint, policy, vital, recovered } = new_endpoint;
        if let Some(first) = recovered {
            self.state.records.need(channel, first);
        }
        let sessions = crate::state::SessionTable::new();
        let slot = EndpointSlot { channel, endpoint, policy, vital, sessions, active: false, deadline: None };
        let key = self.slots.insert(slot);
        self.directory.insert(tag, key);
        *self.domains.entry(tag.domain).or_default() += 1;
        self.schedule(key);
        Ok(())
    }

    /// Keeps records from `first` on for an endpoint that the host will restore from these records and add
    /// later.
    pub fn expect(&mut self, channel: Channel, first: Ticket) {
        self.state.records.need(channel, first);
    }

    /// Returns the channels of all endpoints.
    pub fn channels(&self) -> impl Iterator<Item = Channel> + '_ {
        self.slots.iter().map(|(_, slot)| slot.channel)
    }

    /// Returns the typed endpoint at a channel, if there is one.
    pub fn typed(&self, channel: Channel) -> Option<&H> {
        match &self.slots[self.slot(channel)?].endpoint {
            EndpointKind::Typed(typed) => Some(typed),
            EndpointKind::Dynamic(_) => None,
        }
    }

    /// Returns the numbers of dropped messages.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn slot(&self, channel: Channel) -> Option<usize> {
        let key = *self.directory.get(&channel.tag())?;
        (self.slots[key].channel == channel).then_some(key)
    }

    fn find(&mut self, tag: Tag) -> Option<usize> {
        if let Some((found, key)) = self.last_lookup
            && found == tag
        {
            return Some(key);
        }
        let key = *self.directory.get(&tag)?;
        self.last_lookup = Some((tag, key));
        Some(key)
    }

    /// Passes an input to one endpoint.
    fn step(&mut self, cx: &mut Context<'_>, key: usize, inbound: Inbound<H>, out: &mut dyn Sink<Self>) {
        let slot = &mut self.slots[key];
        if !std::mem::replace(&mut slot.active, true) {
            self.active.push(key);
        }
        let from = if let Inbound::Message { from, .. } = inbound { Some(from) } else { None };
        let is_cast = matches!(inbound, Inbound::Cast { .. });
        let (me, now) = (cx.me, cx.now);
        let EndpointSlot { channel, endpoint, policy, sessions, vital, .. } = slot;
        let (channel, vital, state) = (*channel, *vital, &mut self.state);
        let mut output = EndpointOutput { key, channel, vital, sessions, policy, state, out, me, now };
        let stepped = if vital {
            Ok(endpoint.step(cx, inbound, &mut output))
        } else {
            catch_unwind(AssertUnwindSafe(|| endpoint.step(cx, inbound, &mut output)))
        };
        match stepped {
            Ok(Ok(())) => {}
            Ok(Err(_)) if is_cast => self.counters.malformed += 1,
            Ok(Err(error)) => {
                let peer = from.expect("only messages are decoded");
                self.counters.malformed += 1;
                output.end(peer);
                let channel = output.channel;
                out.emit(Event::Malformed { channel, peer, error });
            }
            Err(panic) => self.end(key, Ending::Panicked(panic_message(&*panic).to_owned()), out),
        }
    }

    /// Runs [`Node::step`], and then notifies the endpoints of the sessions that the step began or ended.
    fn give(&mut self, cx: &mut Context<'_>, key: usize, inbound: Inbound<H>, out: &mut dyn Sink<Self>) {
        self.step(cx, key, inbound, out);
        self.pass_session_events(cx, out);
    }

    fn pass_session_events(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        while let Some((key, news)) = self.state.session_events.pop_front() {
            let input = match news {
                SessionEvent::Linked(peer, session) => Input::Linked { peer, session },
                SessionEvent::Unlinked(peer) => Input::Unlinked { peer },
                SessionEvent::PolicyMismatch(peer, theirs) => {
                    let EndpointSlot { channel, policy, .. } = &self.slots[key];
                    out.emit(Event::PolicyMismatch { channel: *channel, peer, ours: policy.pass(), theirs });
                    continue;
                }
            };
            self.step(cx, key, Inbound::Other(input), out);
        }
    }

    /// Runs `work` on the output of one slot, to change the slot's sessions.
    fn with_output(
        &mut self,
        cx: &Context<'_>,
        key: usize,
        out: &mut dyn Sink<Self>,
        work: impl FnOnce(&mut EndpointOutput<'_, H>),
    ) {
        let (me, now) = (cx.me, cx.now);
        let EndpointSlot { channel, policy, sessions, vital, .. } = &mut self.slots[key];
        let (channel, vital, state) = (*channel, *vital, &mut self.state);
        work(&mut EndpointOutput { key, channel, vital, sessions, policy, state, out, me, now });
    }

    fn end(&mut self, key: usize, ending: Ending, out: &mut dyn Sink<Self>) {
        let slot = self.slots.remove(key);
        let tag = slot.channel.tag();
        self.directory.remove(&tag);
        self.last_lookup = None;
        let left = self.domains.get_mut(&tag.domain).expect("every endpoint is counted");
        *left -= 1;
        if *left == 0 {
            self.domains.remove(&tag.domain);
        }
        self.active.retain(|active| *active != key);
        if let Some(time) = slot.deadline {
            self.deadlines.remove(&(time, key));
        }
        self.state.forget_waiting(key, slot.channel, slot.sessions, out);
        if ending == Ending::Removed {
            self.release(slot.channel, out);
        }
        // Dropping the endpoint may panic again, because the first panic may have left it in a broken state.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(slot.endpoint)));
        out.emit(Event::Ended(slot.channel, ending));
    }

    fn release(&mut self, channel: Channel, out: &mut dyn Sink<Self>) {
        if let Some((floor, kept)) = self.state.records.release(channel) {
            out.collect(floor, &kept);
        }
    }

    /// Updates an endpoint's entry in `deadlines`. An entry may be earlier than the endpoint's deadline; the
    /// node checks the deadline when the entry is due. Most deadlines move later with every message, and
    /// moving the entry each time would cost more.
    fn schedule(&mut self, key: usize) {
        let slot = &mut self.slots[key];
        let deadline = slot.endpoint.deadline();
        if slot.deadline.is_none_or(|noted| deadline.is_some_and(|wanted| wanted < noted)) {
            if let Some(before) = std::mem::replace(&mut slot.deadline, deadline) {
                self.deadlines.remove(&(before, key));
            }
            if let Some(time) = deadline {
                self.deadlines.insert((time, key));
            }
        }
    }

    fn command(&mut self, cx: &mut Context<'_>, command: Command<H>, out: &mut dyn Sink<Self>) {
        let is_typed = |key: &usize| matches!(self.slots[*key].endpoint, EndpointKind::Typed(_));
        match command {
            Command::Typed(channel, command) => match self.slot(channel).filter(is_typed) {
                Some(key) => self.give(cx, key, Inbound::Typed(command), out),
                None => out.emit(Event::Unserved(Command::Typed(channel, command))),
            },
            Command::Dynamic(channel, command) => match self.slot(channel).filter(|key| !is_typed(key)) {
                Some(key) => self.give(cx, key, Inbound::Dynamic(command), out),
                None => out.emit(Event::Unserved(Command::Dynamic(channel, command))),
            },
            Command::Add(new_endpoint) => {
                let channel = new_endpoint.channel;
                out.emit(match self.add(new_endpoint) {
                    Ok(()) => Event::Added(channel),
                    Err(new_endpoint) => Event::Occupied(new_endpoint),
                });
            }
            Command::Remove(channel) => match self.slot(channel) {
                Some(key) => self.end(key, Ending::Removed, out),
                None => {
                    self.release(channel, out);
                    out.emit(Event::Ended(channel, Ending::Removed));
                }
            },
            Command::Retire(channel) => match self.slot(channel) {
                Some(key) => self.end(key, Ending::Retired, out),
                None => out.emit(Event::Ended(channel, Ending::Retired)),
            },
            Command::Release(channel) => self.release(channel, out),
        }
    }

    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        Envelope { tag, content }: Envelope<H::Message>,
        out: &mut dyn Sink<Self>,
    ) {
        let Some(key) = self.find(tag) else {
            if self.domains.contains_key(&tag.domain) {
                self.counters.absent += 1;
            } else {
                self.counters.foreign += 1;
            }
            return crate::output::refuse(from, tag, &content, out);
        };
        match content {
            EnvelopeContent::Signal(Signal::Open { domain, .. })
                if domain != self.slots[key].channel.domain =>
            {
                self.counters.foreign += 1;
                crate::output::refuse(from, tag, &content, out);
            }
            EnvelopeContent::Signal(signal) => {
                self.with_output(cx, key, out, |output| output.signal(from, signal));
                self.pass_session_events(cx, out);
            }
            content
                if from == cx.me
                    || self.slots[key].sessions.get(&from).is_some_and(SessionState::is_open) =>
            {
                self.give(cx, key, Inbound::Message { from, content }, out);
            }
            _ => self.counters.late += 1,
        }
    }

    /// Handles an envelope that was cast. A cast neither opens nor ends a session, and is accepted only
    /// within a session.
    fn receive_cast(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        Envelope { tag, content }: Envelope<H::Message>,
        out: &mut dyn Sink<Self>,
    ) {
        match self.find(tag) {
            _ if matches!(content, EnvelopeContent::Signal(_)) => self.counters.malformed += 1,
            None if self.domains.contains_key(&tag.domain) => self.counters.absent += 1,
            None => self.counters.foreign += 1,
            Some(key)
                if from == cx.me
                    || self.slots[key].sessions.get(&from).is_some_and(SessionState::is_open) =>
            {
                self.give(cx, key, Inbound::Cast { from, content }, out);
            }
            Some(_) => self.counters.late += 1,
        }
    }

    fn alarm(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        for (key, peer) in self.state.take_retries(cx.now) {
            self.with_output(cx, key, out, |output| output.request_session(peer));
        }
        let active = self.active.clone();
        for key in active {
            self.schedule(key);
        }
        let due: Vec<usize> =
            self.deadlines.iter().take_while(|(time, _)| *time <= cx.now).map(|(_, key)| *key).collect();
        for key in due {
            // Another endpoint that ran earlier in this turn may have ended the endpoint of this slot.
            let Some(slot) = self.slots.get_mut(key) else { continue };
            if let Some(noted) = slot.deadline.take() {
                self.deadlines.remove(&(noted, key));
            }
            if slot.endpoint.deadline().is_some_and(|wanted| wanted <= cx.now) {
                self.give(cx, key, Inbound::Other(Input::Deadline), out);
            } else {
                self.schedule(key);
            }
        }
    }

    fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let mut gathering = None;
        let mut active = std::mem::take(&mut self.active);
        for key in active.drain(..) {
            if !self.slots.contains(key) {
                continue;
            }
            self.step(cx, key, Inbound::Other(Input::Drained), out);
            if let Some(slot) = self.slots.get_mut(key) {
                slot.active = false;
                let wish = slot.endpoint.gathering();
                gathering = Some(gathering.map_or(wish, |least: Duration| least.min(wish)));
                self.schedule(key);
            }
        }
        self.gathering = gathering.unwrap_or_default();
        // The emptied list keeps its memory for the next turn.
        active.append(&mut self.active);
        self.active = active;
        self.pass_session_events(cx, out);
    }
}

impl<H> Protocol for Node<H>
where
    H: Protocol,
    H::Message: Wire,
{
    type Message = Envelope<H::Message>;
    type Record = JournalEntry<H::Record>;
    type Command = Command<H>;
    type Event = Event<H>;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Receive { from, message } => self.receive(cx, from, message, out),
            Input::Cast { from, message } => self.receive_cast(cx, from, message, out),
            Input::Command(command) => self.command(cx, command, out),
            Input::Deadline => self.alarm(cx, out),
            Input::Persisted(ticket) => {
                for key in self.state.records.persisted(ticket) {
                    if self.slots.contains(key) {
                        self.give(cx, key, Inbound::Other(Input::Persisted(ticket)), out);
                    }
                }
            }
            Input::Linked { peer, .. } => {
                for key in self.state.linked(peer) {
                    self.with_output(cx, key, out, |output| output.request_session(peer));
                }
                self.pass_session_events(cx, out);
            }
            Input::Unlinked { peer } => {
                for key in self.state.unlinked(peer) {
                    self.with_output(cx, key, out, |output| output.unlinked(peer));
                }
                self.state.drop_unused_link(peer, out);
                self.pass_session_events(cx, out);
            }
            Input::Progress { peer } => {
                for key in self.state.with(peer) {
                    if self.slots.get(key).is_some_and(|slot| slot.sessions[&peer].is_open()) {
                        self.give(cx, key, Inbound::Other(Input::Progress { peer }), out);
                    }
                }
            }
            Input::Drained => self.drain(cx, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        let is_settled = |(_, key): &&(Time, usize)| !self.slots[*key].active;
        let settled = self.deadlines.iter().find(is_settled).map(|(time, _)| *time);
        let active = self.active.iter().filter_map(|key| self.slots[*key].endpoint.deadline()).min();
        [settled, active, self.state.retry_at()].into_iter().flatten().min()
    }

    fn gathering(&self) -> Duration {
        self.gathering
    }

    fn policy(&self) -> Arc<dyn Policy> {
        let vital = self.slots.iter().find(|(_, slot)| slot.vital);
        vital.map_or_else(|| Arc::new(Anyone) as Arc<dyn Policy>, |(_, slot)| NodePolicy::by(&*slot.policy))
    }
}

impl<H> EndpointKind<H>
where
    H: Protocol,
    H::Message: Wire,
{
    fn step(
        &mut self,
        cx: &mut Context<'_>,
        inbound: Inbound<H>,
        output: &mut EndpointOutput<'_, H>,
    ) -> Result<(), WireError> {
        match self {
            EndpointKind::Typed(typed) => {
                let input = match inbound {
                    Inbound::Message { from, content: EnvelopeContent::Typed(message) } => {
                        Input::Receive { from, message }
                    }
                    Inbound::Message { from, content: EnvelopeContent::Encoded(message) } => {
                        Input::Receive { from, message: message.decode_as()? }
                    }
                    Inbound::Cast { from, content: EnvelopeContent::Typed(message) } => {
                        Input::Cast { from, message }
                    }
                    Inbound::Cast { from, content: EnvelopeContent::Encoded(message) } => {
                        Input::Cast { from, message: message.decode_as()? }
                    }
                    Inbound::Typed(command) => Input::Command(command),
                    Inbound::Other(input) => input.map(|_| unreachable!(), |_| unreachable!()),
                    Inbound::Message { content: EnvelopeContent::Signal(_), .. }
                    | Inbound::Cast { content: EnvelopeContent::Signal(_), .. }
                    | Inbound::Dynamic(_) => {
                        unreachable!("neither is given to a typed endpoint")
                    }
                };
                typed.handle(cx, input, &mut TypedSink(output));
                Ok(())
            }
            EndpointKind::Dynamic(dynamic) => {
                let input = match inbound {
                    Inbound::Message { from, content: EnvelopeContent::Encoded(message) } => {
                        Input::Receive { from, message }
                    }
                    Inbound::Cast { from, content: EnvelopeContent::Encoded(message) } => {
                        Input::Cast { from, message }
                    }
                    // The endpoint sent this message to itself, and has ended since.
                    Inbound::Message { content: EnvelopeContent::Typed(_), .. }
                    | Inbound::Cast { content: EnvelopeContent::Typed(_), .. } => return Ok(()),
                    Inbound::Dynamic(command) => Input::Command(command),
                    Inbound::Other(input) => input,
                    Inbound::Message { content: EnvelopeContent::Signal(_), .. }
                    | Inbound::Cast { content: EnvelopeContent::Signal(_), .. }
                    | Inbound::Typed(_) => {
                        unreachable!("neither is given to a dynamic endpoint")
                    }
                };
                dynamic.handle(cx, input, &mut DynamicSink(output))
            }
        }
    }

    /// Returns the deadline, or `None` for a dynamic endpoint that panics in this call.
    fn deadline(&self) -> Option<Time> {
        match self {
            EndpointKind::Typed(typed) => typed.deadline(),
            EndpointKind::Dynamic(dynamic) => {
                catch_unwind(AssertUnwindSafe(|| dynamic.deadline())).unwrap_or_default()
            }
        }
    }

    /// Returns the time for which input may gather, or zero for a dynamic endpoint that panics in this call.
    fn gathering(&self) -> Duration {
        match self {
            EndpointKind::Typed(typed) => typed.gathering(),
            EndpointKind::Dynamic(dynamic) => {
                catch_unwind(AssertUnwindSafe(|| dynamic.gathering())).unwrap_or_default()
            }
        }
    }
}

/// Returns the text of a panic, or a fixed sentence if the panic has no text.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("the panic has no message")
}
