//! One process, still pure: endpoints by channel, over one set of links.
//!
//! **Promise.** Each endpoint is a [`Protocol`] of its own, as if it had the process for itself. An endpoint to which nothing
//! happens costs nothing: it is not called, not asked and not looped over.
//!
//! **Shape.** After quinn's `Endpoint`, which hands datagrams to the connections in a slab. A [`Node`] is itself a
//! [`Protocol`], so whatever carries one protocol (the simulator, the real runtime) carries a process of many.
//!
//! ```text
//!                        Node
//!  Letter{channel, …} ─▶ directory ─▶ seat 0: home     the protocol `H`, known when this is compiled: called directly, and
//!                                     seat 1: home     its messages are written straight to where they leave
//!                                     seat 2: guest    any protocol in bytes (`Endpoint`), added at run time
//!                    due: (time, seat) · touched: seats that got something · sessions by peer · records
//! ```
//!
//! **Links.** Processes have one link, which their endpoints share; two endpoints of one channel have a [`session`] on it. It
//! opens when one of them has reached for the other's process, the processes are linked, and the [`Policy`] of each admits
//! what the other shows. An endpoint is told `Linked` and `Unlinked` of its sessions, not of links. A node wants a link as
//! long as one of its endpoints has reached for the peer, and gives it up once no endpoint has a session on it either.
//! What breaks an endpoint's session (it leaves, its policy changes, a message does not decode) breaks no other.
//!
//! **Time.** The instants that endpoints ask for are kept in order. Those of endpoints that got something since the last
//! [`Input::Drained`] are asked for anew there; `Drained` goes to these alone.
//!
//! **Records** of all endpoints stand in one row, each with its channel, under tickets of one counter. `Persisted` goes to
//! those whose records became durable. The row is collected up to the first record that some endpoint still needs: one that
//! never collects holds the others' back.
//!
//! **A panic** ends the endpoint in which it happens: its sessions end, the host is told ([`Event::Ended`]), others go on. Its
//! records are kept until the host removes it. One that is [vital](Newcomer::vital) (a router: the others cannot do without
//! it) takes the process with it.
//!
//! **Bytes from outside.** A letter for an endpoint that is not there, of a domain that is not ours, or without a session is
//! counted and dropped ([`Figures`]). A message that does not decode ends the session it came by.
//!
//! **Relays stand above** ([`relay`](quorate_protocol::relay)): an endpoint whose links may be relayed is a `Relay<P>`, and no
//! relay carries a node. Below the node one relay would do for all endpoints, with one row of beats. But it would have to know
//! what each endpoint is in its own domain: links between two routers of a domain are never relayed, though the same two
//! processes may be a router and a member in another domain, whose link must be. Above the node, that question is asked where
//! it has an answer, domains that do not relay pay nothing, and a relay's rules hold as they stand: a session is to it what a
//! link was. If it gives one up, and no other endpoint needs the link, the link goes with it and is made anew, as before.
//!
//! **Who may have a session** is each endpoint's own [`Policy`]; a node itself is linked with everybody. What a node shows is the
//! pass of the endpoint without which it does not go on, so that a disk keeps it and this endpoint can be made again as the one
//! that it was. A guest's pass is not kept: a guest that is made again from its records shows what these say.
//!
//! **Casts** bring messages only, and only within a session; like any cast they may be of an earlier session of the two endpoints.
//!
//! **Differs from one protocol alone.** What is sent aside right after a session opens may be lost
//! ([`session`]). [`Input::Progress`] goes to every endpoint that has a session with the peer.

mod channel;
mod desk;
mod endpoint;
mod host;
mod records;
pub mod session;

#[cfg(test)]
mod tests;

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;
use quorate_protocol::{
    Context, Duration, Input, Policy, ProcessId, Protocol, Sink, Ticket, Time,
    seam::Anyone,
    wire::{Wire, WireError},
};
use rustc_hash::FxHashMap;
use slab::Slab;

use channel::{Content, Signal, Tag};
use desk::{AsGuest, AsHome, Board, Desk, News};
use session::Line;

pub use channel::{
    Channel, Encoded, EndpointId, Entry, HEADER_BYTES, Letter, records_by_channel, records_of,
};
pub use endpoint::{Endpoint, Guest, Opaque, Parcel};
pub use host::{Command, Ending, Event, Figures, Newcomer};

/// A process: its endpoints, of which some are of the type `H`.
pub struct Node<H: Protocol = Opaque> {
    seats: Slab<Seat<H>>,
    /// Looked up, never walked.
    directory: FxHashMap<Tag, usize>,
    /// What was looked up last: under load one letter is often for the same endpoint as the one before.
    found: Option<(Tag, usize)>,
    /// How many endpoints are here of each domain, folded.
    domains: BTreeMap<u32, usize>,
    /// When endpoints want to be called.
    due: BTreeSet<(Time, usize)>,
    /// Seats that got something since the last drain, in that order.
    touched: Vec<usize>,
    /// The least wish of those that got something before the last drain.
    gathering: Duration,
    board: Board,
    figures: Figures,
}

struct Seat<H> {
    channel: Channel,
    occupant: Occupant<H>,
    policy: Arc<dyn Policy>,
    vital: bool,
    sessions: desk::Sessions,
    touched: bool,
    /// As it stands in `due`.
    deadline: Option<Time>,
}

enum Occupant<H> {
    /// Behind a pointer, or the seat of each guest would be as large as the largest home.
    Home(Box<H>),
    Guest(Box<dyn Endpoint>),
}

/// An input for one endpoint.
enum Inbound<H: Protocol> {
    Message { from: ProcessId, content: Content<H::Message> },
    Cast { from: ProcessId, content: Content<H::Message> },
    Home(H::Command),
    Guest(Parcel),
    Other(Input<Opaque>),
}

impl<H> Default for Node<H>
where
    H: Protocol,
    H::Message: Wire,
{
    fn default() -> Self {
        Node::new()
    }
}

impl<H> Node<H>
where
    H: Protocol,
    H::Message: Wire,
{
    /// A process without endpoints.
    pub fn new() -> Self {
        Node {
            seats: Slab::new(),
            directory: FxHashMap::default(),
            found: None,
            domains: BTreeMap::new(),
            due: BTreeSet::new(),
            touched: Vec::new(),
            gathering: Duration::ZERO,
            board: Board::default(),
            figures: Figures::default(),
        }
    }

    /// A process with one endpoint.
    pub fn with(newcomer: Newcomer<H>) -> Self {
        let mut node = Node::new();
        assert!(node.add(newcomer).is_ok(), "nobody else is there");
        node
    }

    /// Takes an endpoint in, unless another one is there.
    pub fn add(&mut self, newcomer: Newcomer<H>) -> Result<(), Newcomer<H>> {
        let tag = newcomer.channel.tag();
        if self.directory.contains_key(&tag) {
            return Err(newcomer);
        }
        let Newcomer { channel, occupant, policy, vital, recovered } = newcomer;
        if let Some(first) = recovered {
            self.board.records.need(channel, first);
        }
        let sessions = desk::Sessions::new();
        let seat = Seat { channel, occupant, policy, vital, sessions, touched: false, deadline: None };
        let key = self.seats.insert(seat);
        self.directory.insert(tag, key);
        *self.domains.entry(tag.domain).or_default() += 1;
        self.schedule(key);
        Ok(())
    }

    /// An endpoint is to come that is made again from its records, of which this is the first. Until then they are kept.
    pub fn expect(&mut self, channel: Channel, first: Ticket) {
        self.board.records.need(channel, first);
    }

    /// The channels of all endpoints.
    pub fn channels(&self) -> impl Iterator<Item = Channel> + '_ {
        self.seats.iter().map(|(_, seat)| seat.channel)
    }

    /// The home endpoint at a channel.
    pub fn home(&self, channel: Channel) -> Option<&H> {
        match &self.seats[self.seat(channel)?].occupant {
            Occupant::Home(home) => Some(home),
            Occupant::Guest(_) => None,
        }
    }

    /// Counts of what it has dropped.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    fn seat(&self, channel: Channel) -> Option<usize> {
        let key = *self.directory.get(&channel.tag())?;
        (self.seats[key].channel == channel).then_some(key)
    }

    fn find(&mut self, tag: Tag) -> Option<usize> {
        if let Some((found, key)) = self.found
            && found == tag
        {
            return Some(key);
        }
        let key = *self.directory.get(&tag)?;
        self.found = Some((tag, key));
        Some(key)
    }

    /// Hands an input to one endpoint.
    fn step(&mut self, cx: &mut Context<'_>, key: usize, inbound: Inbound<H>, out: &mut dyn Sink<Self>) {
        let seat = &mut self.seats[key];
        if !std::mem::replace(&mut seat.touched, true) {
            self.touched.push(key);
        }
        let from = if let Inbound::Message { from, .. } = inbound { Some(from) } else { None };
        let is_cast = matches!(inbound, Inbound::Cast { .. });
        let (me, now) = (cx.me, cx.now);
        let Seat { channel, occupant, policy, sessions, vital, .. } = seat;
        let (channel, vital, board) = (*channel, *vital, &mut self.board);
        let mut desk = Desk { key, channel, vital, sessions, policy, board, out, me, now };
        let stepped = if vital {
            Ok(occupant.step(cx, inbound, &mut desk))
        } else {
            catch_unwind(AssertUnwindSafe(|| occupant.step(cx, inbound, &mut desk)))
        };
        match stepped {
            Ok(Ok(())) => {}
            Ok(Err(_)) if is_cast => self.figures.malformed += 1,
            Ok(Err(error)) => {
                let peer = from.expect("only messages are decoded");
                self.figures.malformed += 1;
                desk.end(peer);
                let channel = desk.channel;
                out.emit(Event::Malformed { channel, peer, error });
            }
            Err(panic) => self.end(key, Ending::Panicked(panic_message(&*panic).to_owned()), out),
        }
    }

    /// [`Node::step`], and what endpoints are to be told of sessions that began or ended by it.
    fn give(&mut self, cx: &mut Context<'_>, key: usize, inbound: Inbound<H>, out: &mut dyn Sink<Self>) {
        self.step(cx, key, inbound, out);
        self.tell(cx, out);
    }

    fn tell(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        while let Some((key, news)) = self.board.news.pop_front() {
            let input = match news {
                News::Linked(peer, session) => Input::Linked { peer, session },
                News::Unlinked(peer) => Input::Unlinked { peer },
                News::Stranger(peer, theirs) => {
                    let Seat { channel, policy, .. } = &self.seats[key];
                    out.emit(Event::Stranger { channel: *channel, peer, ours: policy.pass(), theirs });
                    continue;
                }
            };
            self.step(cx, key, Inbound::Other(input), out);
        }
    }

    /// What a seat is lent while something of its sessions is done.
    fn at_desk(
        &mut self,
        cx: &Context<'_>,
        key: usize,
        out: &mut dyn Sink<Self>,
        work: impl FnOnce(&mut Desk<'_, H>),
    ) {
        let (me, now) = (cx.me, cx.now);
        let Seat { channel, policy, sessions, vital, .. } = &mut self.seats[key];
        let (channel, vital, board) = (*channel, *vital, &mut self.board);
        work(&mut Desk { key, channel, vital, sessions, policy, board, out, me, now });
    }

    fn end(&mut self, key: usize, ending: Ending, out: &mut dyn Sink<Self>) {
        let seat = self.seats.remove(key);
        let tag = seat.channel.tag();
        self.directory.remove(&tag);
        self.found = None;
        let left = self.domains.get_mut(&tag.domain).expect("every endpoint is counted");
        *left -= 1;
        if *left == 0 {
            self.domains.remove(&tag.domain);
        }
        self.touched.retain(|touched| *touched != key);
        if let Some(time) = seat.deadline {
            self.due.remove(&(time, key));
        }
        self.board.vacate(key, seat.channel, seat.sessions, out);
        if ending == Ending::Removed {
            self.release(seat.channel, out);
        }
        // It may be in no state to be taken apart.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(seat.occupant)));
        out.emit(Event::Ended(seat.channel, ending));
    }

    fn release(&mut self, channel: Channel, out: &mut dyn Sink<Self>) {
        if let Some((floor, kept)) = self.board.records.release(channel) {
            out.collect(floor, &kept);
        }
    }

    /// Notes when an endpoint wants to be called next. What is noted may be earlier than that, and is looked at when it is due:
    /// most deadlines move away with every message, and moving the note each time would cost more.
    fn schedule(&mut self, key: usize) {
        let seat = &mut self.seats[key];
        let deadline = seat.occupant.deadline();
        if seat.deadline.is_none_or(|noted| deadline.is_some_and(|wanted| wanted < noted)) {
            if let Some(before) = std::mem::replace(&mut seat.deadline, deadline) {
                self.due.remove(&(before, key));
            }
            if let Some(time) = deadline {
                self.due.insert((time, key));
            }
        }
    }

    fn command(&mut self, cx: &mut Context<'_>, command: Command<H>, out: &mut dyn Sink<Self>) {
        let is_home = |key: &usize| matches!(self.seats[*key].occupant, Occupant::Home(_));
        match command {
            Command::Home(channel, command) => match self.seat(channel).filter(is_home) {
                Some(key) => self.give(cx, key, Inbound::Home(command), out),
                None => out.emit(Event::Unserved(Command::Home(channel, command))),
            },
            Command::Guest(channel, command) => match self.seat(channel).filter(|key| !is_home(key)) {
                Some(key) => self.give(cx, key, Inbound::Guest(command), out),
                None => out.emit(Event::Unserved(Command::Guest(channel, command))),
            },
            Command::Add(newcomer) => {
                let channel = newcomer.channel;
                out.emit(match self.add(newcomer) {
                    Ok(()) => Event::Added(channel),
                    Err(newcomer) => Event::Occupied(newcomer),
                });
            }
            Command::Remove(channel) => match self.seat(channel) {
                Some(key) => self.end(key, Ending::Removed, out),
                None => {
                    self.release(channel, out);
                    out.emit(Event::Ended(channel, Ending::Removed));
                }
            },
        }
    }

    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        Letter { tag, content }: Letter<H::Message>,
        out: &mut dyn Sink<Self>,
    ) {
        let Some(key) = self.find(tag) else {
            if self.domains.contains_key(&tag.domain) {
                self.figures.absent += 1;
            } else {
                self.figures.foreign += 1;
            }
            return desk::refuse(from, tag, &content, out);
        };
        match content {
            Content::Signal(Signal::Hail { domain, .. }) if domain != self.seats[key].channel.domain => {
                self.figures.foreign += 1;
                desk::refuse(from, tag, &content, out);
            }
            Content::Signal(signal) => {
                self.at_desk(cx, key, out, |desk| desk.signal(from, signal));
                self.tell(cx, out);
            }
            content if from == cx.me || self.seats[key].sessions.get(&from).is_some_and(Line::stands) => {
                self.give(cx, key, Inbound::Message { from, content }, out);
            }
            _ => self.figures.late += 1,
        }
    }

    /// A letter that was cast: it opens and ends no session, and is taken only within one.
    fn receive_cast(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        Letter { tag, content }: Letter<H::Message>,
        out: &mut dyn Sink<Self>,
    ) {
        match self.find(tag) {
            _ if matches!(content, Content::Signal(_)) => self.figures.malformed += 1,
            None if self.domains.contains_key(&tag.domain) => self.figures.absent += 1,
            None => self.figures.foreign += 1,
            Some(key) if from == cx.me || self.seats[key].sessions.get(&from).is_some_and(Line::stands) => {
                self.give(cx, key, Inbound::Cast { from, content }, out);
            }
            Some(_) => self.figures.late += 1,
        }
    }

    fn alarm(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        for (key, peer) in self.board.take_retries(cx.now) {
            self.at_desk(cx, key, out, |desk| desk.hail(peer));
        }
        let touched = self.touched.clone();
        for key in touched {
            self.schedule(key);
        }
        let due: Vec<usize> =
            self.due.iter().take_while(|(time, _)| *time <= cx.now).map(|(_, key)| *key).collect();
        for key in due {
            // One that came before it may have ended it.
            let Some(seat) = self.seats.get_mut(key) else { continue };
            if let Some(noted) = seat.deadline.take() {
                self.due.remove(&(noted, key));
            }
            if seat.occupant.deadline().is_some_and(|wanted| wanted <= cx.now) {
                self.give(cx, key, Inbound::Other(Input::Deadline), out);
            } else {
                self.schedule(key);
            }
        }
    }

    fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let mut gathering = None;
        let mut touched = std::mem::take(&mut self.touched);
        for key in touched.drain(..) {
            if !self.seats.contains(key) {
                continue;
            }
            self.step(cx, key, Inbound::Other(Input::Drained), out);
            if let Some(seat) = self.seats.get_mut(key) {
                seat.touched = false;
                let wish = seat.occupant.gathering();
                gathering = Some(gathering.map_or(wish, |least: Duration| least.min(wish)));
                self.schedule(key);
            }
        }
        self.gathering = gathering.unwrap_or_default();
        // Its memory serves the next turn.
        touched.append(&mut self.touched);
        self.touched = touched;
        self.tell(cx, out);
    }
}

impl<H> Protocol for Node<H>
where
    H: Protocol,
    H::Message: Wire,
{
    type Message = Letter<H::Message>;
    type Record = Entry<H::Record>;
    type Command = Command<H>;
    type Event = Event<H>;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Receive { from, message } => self.receive(cx, from, message, out),
            Input::Cast { from, message } => self.receive_cast(cx, from, message, out),
            Input::Command(command) => self.command(cx, command, out),
            Input::Deadline => self.alarm(cx, out),
            Input::Persisted(ticket) => {
                for key in self.board.records.persisted(ticket) {
                    if self.seats.contains(key) {
                        self.give(cx, key, Inbound::Other(Input::Persisted(ticket)), out);
                    }
                }
            }
            Input::Linked { peer, .. } => {
                for key in self.board.linked(peer) {
                    self.at_desk(cx, key, out, |desk| desk.hail(peer));
                }
                self.tell(cx, out);
            }
            Input::Unlinked { peer } => {
                for key in self.board.unlinked(peer) {
                    self.at_desk(cx, key, out, |desk| desk.unlinked(peer));
                }
                self.board.settle(peer, out);
                self.tell(cx, out);
            }
            Input::Progress { peer } => {
                for key in self.board.with(peer) {
                    if self.seats.get(key).is_some_and(|seat| seat.sessions[&peer].stands()) {
                        self.give(cx, key, Inbound::Other(Input::Progress { peer }), out);
                    }
                }
            }
            Input::Drained => self.drain(cx, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        let is_settled = |(_, key): &&(Time, usize)| !self.seats[*key].touched;
        let settled = self.due.iter().find(is_settled).map(|(time, _)| *time);
        let touched = self.touched.iter().filter_map(|key| self.seats[*key].occupant.deadline()).min();
        [settled, touched, self.board.retry_at()].into_iter().flatten().min()
    }

    fn gathering(&self) -> Duration {
        self.gathering
    }

    fn policy(&self) -> Arc<dyn Policy> {
        let vital = self.seats.iter().find(|(_, seat)| seat.vital);
        vital.map_or_else(|| Arc::new(Anyone) as Arc<dyn Policy>, |(_, seat)| Shown::by(&*seat.policy))
    }
}

/// What a node shows below its endpoints. It is linked with everybody.
#[derive(Debug)]
struct Shown(Bytes);

impl Shown {
    fn by(vital: &dyn Policy) -> Arc<dyn Policy> {
        Arc::new(Shown(vital.pass()))
    }
}

impl Policy for Shown {
    fn pass(&self) -> Bytes {
        self.0.clone()
    }

    fn admits(&self, _: &[u8]) -> bool {
        true
    }
}

impl<H> Occupant<H>
where
    H: Protocol,
    H::Message: Wire,
{
    fn step(
        &mut self,
        cx: &mut Context<'_>,
        inbound: Inbound<H>,
        desk: &mut Desk<'_, H>,
    ) -> Result<(), WireError> {
        match self {
            Occupant::Home(home) => {
                let input = match inbound {
                    Inbound::Message { from, content: Content::Home(message) } => {
                        Input::Receive { from, message }
                    }
                    Inbound::Message { from, content: Content::Encoded(message) } => {
                        Input::Receive { from, message: message.decode_as()? }
                    }
                    Inbound::Cast { from, content: Content::Home(message) } => Input::Cast { from, message },
                    Inbound::Cast { from, content: Content::Encoded(message) } => {
                        Input::Cast { from, message: message.decode_as()? }
                    }
                    Inbound::Home(command) => Input::Command(command),
                    Inbound::Other(input) => input.map(|_| unreachable!(), |_| unreachable!()),
                    Inbound::Message { content: Content::Signal(_), .. }
                    | Inbound::Cast { content: Content::Signal(_), .. }
                    | Inbound::Guest(_) => {
                        unreachable!("neither is given to a home")
                    }
                };
                home.handle(cx, input, &mut AsHome(desk));
                Ok(())
            }
            Occupant::Guest(guest) => {
                let input = match inbound {
                    Inbound::Message { from, content: Content::Encoded(message) } => {
                        Input::Receive { from, message }
                    }
                    Inbound::Cast { from, content: Content::Encoded(message) } => {
                        Input::Cast { from, message }
                    }
                    // It was sent to itself by an endpoint that has ended since.
                    Inbound::Message { content: Content::Home(_), .. }
                    | Inbound::Cast { content: Content::Home(_), .. } => return Ok(()),
                    Inbound::Guest(command) => Input::Command(command),
                    Inbound::Other(input) => input,
                    Inbound::Message { content: Content::Signal(_), .. }
                    | Inbound::Cast { content: Content::Signal(_), .. }
                    | Inbound::Home(_) => {
                        unreachable!("neither is given to a guest")
                    }
                };
                guest.handle(cx, input, &mut AsGuest(desk))
            }
        }
    }

    /// A guest that panics when it is asked has none.
    fn deadline(&self) -> Option<Time> {
        match self {
            Occupant::Home(home) => home.deadline(),
            Occupant::Guest(guest) => catch_unwind(AssertUnwindSafe(|| guest.deadline())).unwrap_or_default(),
        }
    }

    /// A guest that panics when it is asked has none.
    fn gathering(&self) -> Duration {
        match self {
            Occupant::Home(home) => home.gathering(),
            Occupant::Guest(guest) => {
                catch_unwind(AssertUnwindSafe(|| guest.gathering())).unwrap_or_default()
            }
        }
    }
}

/// The message of a panic, as far as it is text.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}
