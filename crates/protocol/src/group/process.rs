//! A process: one member of the domain, with all its groups and its links.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    Command, Direct, Event, Failure, GroupCounters, GroupId, Mark, Message, Offer, Sending, Settings, View,
    member::{Effects, GroupMember, Joins, MemberContext, Submission},
    routing::{Control, Header, Moves},
};
use crate::{
    ecast::{self, Class, MemberCommand, MemberEvent, MemberSettings, MessageId, Outcome, Position},
    id::{Peer, ProcessId},
    paxos,
    relay::Relayed,
    seam::{CommandId, Context, Input, Lift, MulticastAddress, Policy, Protocol, Sink},
    time::{Duration, Time},
    wire::decode_body,
};

/// A process and its groups.
pub struct Process {
    me: Peer,
    settings: Settings,
    order: ecast::Member,
    members: BTreeMap<GroupId, GroupMember>,
    /// Groups that had events in this turn.
    stirred: Vec<GroupId>,
    /// Groups with work in progress that depends on time.
    awake: Vec<GroupId>,
    /// Processes with which this process shares groups, each with the number of those groups.
    peers: BTreeMap<ProcessId, usize>,
    linked: BTreeSet<ProcessId>,
    /// The addresses to which this process listens, each with the number of groups that use it.
    listens: BTreeMap<MulticastAddress, usize>,
    /// Time at which rates were last read.
    metered: Time,
    /// Number of casts for groups without a member in this process.
    unwanted: u64,
    tick_at: Time,
    ticked: Time,
    /// Whether no reachable router knows a leader.
    adrift: bool,
    /// Time of the last delivery of the order.
    delivered_at: Time,
    /// Time of the last sign of life of any router; `None` if routers are not watched.
    heard_at: Option<Time>,
    in_touch: bool,
    /// Sends that were submitted to the order, by token, as group and number.
    tokens: BTreeMap<u64, (GroupId, u64)>,
    token: u64,
    /// The largest number of an ordered or safe send of members that have ended.
    numbered: u64,
    /// Checkpoints whose reports were submitted to the order and are not delivered yet.
    kept: Vec<(GroupId, Mark, CommandId)>,
    /// A reused buffer for events of the order.
    events: VecDeque<MemberEvent>,
    effects: Effects,
    wedged: bool,
    refused: u64,
}

/// The token of control messages. No caller awaits their outcome, because their effect shows in the group.
const CONTROL: u64 = 0;
/// The number that stands for a join among the sends of a group. No send has this number.
const JOINS: u64 = 0;
/// Time for which a delivery, or a router's sign of life, shows that a router with a leader is reachable.
const TOUCH: Duration = Duration::from_millis(1_500);

impl Process {
    /// Makes a process that enters the domain as soon as it finds a router.
    pub fn new(me: Peer, settings: Settings, order: MemberSettings) -> Self {
        let mut order = ecast::Member::new(me.id, order);
        order.submit(CONTROL, Class::Control, Control::Enter.encode());
        Process {
            me,
            settings,
            order,
            members: BTreeMap::new(),
            stirred: Vec::new(),
            awake: Vec::new(),
            peers: BTreeMap::new(),
            linked: BTreeSet::new(),
            listens: BTreeMap::new(),
            metered: Time::ZERO,
            unwanted: 0,
            tick_at: Time::ZERO,
            ticked: Time::ZERO,
            adrift: false,
            delivered_at: Time::ZERO,
            heard_at: None,
            in_touch: true,
            tokens: BTreeMap::new(),
            token: CONTROL,
            numbered: 0,
            kept: Vec::new(),
            events: VecDeque::new(),
            effects: Effects::default(),
            wedged: false,
            refused: 0,
        }
    }

    /// Returns the view of a group that is installed in this process.
    pub fn view(&self, group: GroupId) -> Option<&View> {
        self.members.get(&group)?.view()
    }

    /// Returns the size of the soft messages that are held for a group, in bytes, and the number of ordered
    /// messages that wait.
    pub fn held(&self, group: GroupId) -> (usize, usize) {
        self.members.get(&group).map_or((0, 0), GroupMember::held)
    }

    /// Returns the memory of a group, in bytes: streams, messages of later views, sends that have not ended,
    /// and events that wait behind a state.
    pub fn memory(&self, group: GroupId) -> usize {
        self.members.get(&group).map_or(0, GroupMember::memory)
    }

    /// Whether a view of this group is about to end here.
    pub fn is_changing(&self, group: GroupId) -> bool {
        self.members.get(&group).is_some_and(GroupMember::is_changing)
    }

    /// Whether this process was dropped.
    pub fn is_wedged(&self) -> bool {
        self.wedged
    }

    /// Returns the number of refused messages, which no correct peer sends.
    pub fn refused(&self) -> u64 {
        self.refused + self.effects.refused + self.order.refused()
    }

    /// Returns the number of casts for groups without a member in this process.
    pub fn unwanted(&self) -> u64 {
        self.unwanted
    }

    /// Returns the number of messages from processes that were dropped.
    pub fn firewalled(&self) -> u64 {
        self.effects.firewalled
    }

    /// Returns the counters of this process.
    pub fn figures(&self) -> GroupCounters {
        let held = self.members.values().map(GroupMember::held);
        let (held_bytes, waiting) =
            held.fold((0, 0), |(bytes, all), (held, waiting)| (bytes + held, all + waiting));
        GroupCounters {
            groups: self.members.len() as u64,
            views: self.effects.views,
            longest_wait: self.effects.longest_wait,
            gaps: self.effects.gaps,
            resent: self.effects.resent,
            cast: self.effects.cast,
            multicast: self.effects.multicast,
            addresses: self.listens.len() as u64,
            unwanted: self.unwanted(),
            fallbacks: self.effects.fallbacks,
            held_bytes: held_bytes as u64,
            waiting: waiting as u64,
            firewalled: self.firewalled(),
            refused: self.refused(),
        }
    }

    /// Returns this process's member of the order.
    pub fn order(&self) -> &ecast::Member {
        &self.order
    }

    /// Passes this process's member of a group to `call`, if there is such a member. Returns the result of
    /// `call`.
    fn with<T>(
        &mut self,
        now: Time,
        group: GroupId,
        call: impl FnOnce(&mut GroupMember, &mut MemberContext<'_>) -> T,
    ) -> Option<T> {
        let Process { members, settings, linked, effects, in_touch, stirred, awake, .. } = self;
        let mut context = MemberContext { now, settings, linked, in_touch: *in_touch, effects };
        let member = members.get_mut(&group)?;
        if !std::mem::replace(&mut member.stirred, true) {
            stirred.push(group);
        }
        if !std::mem::replace(&mut member.awake, true) {
            awake.push(group);
        }
        Some(call(member, &mut context))
    }

    fn with_all(&mut self, now: Time, mut call: impl FnMut(&mut GroupMember, &mut MemberContext<'_>)) {
        for group in self.members.keys().copied().collect::<Vec<_>>() {
            self.with(now, group, &mut call);
        }
    }

    /// Ends the turn for the groups that had events in it.
    fn drained(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let Process { members, settings, linked, effects, in_touch, stirred, .. } = self;
        let mut context = MemberContext { now, settings, linked, in_touch: *in_touch, effects };
        let mut overrun = Vec::new();
        for group in stirred.drain(..) {
            if let Some(member) = members.get_mut(&group) {
                member.stirred = false;
                member.drained(&mut context);
                overrun.extend(member.overrun(&context).map(|backlog| (group, backlog)));
            }
        }
        for (group, backlog) in overrun {
            self.change(now, group, out, |member, context| {
                member.abandon(context, backlog);
                false
            });
        }
    }

    /// Requests the missing messages of open gaps, and the next pieces of states.
    fn ask_for_due(&mut self, now: Time) {
        self.effects.wake_at = None;
        for group in self.awake.clone() {
            self.with(now, group, |member, context| member.ask_for_due(context));
        }
    }

    fn command(&mut self, now: Time, command: Command) {
        let refuse = |id, failure| Event::Done { id, result: Err(failure) };
        if let Command::Send(sends) = command {
            for Sending { id, group, strength, pack } in sends {
                let sent = self.with(now, group, |member, context| member.send(context, id, strength, pack));
                if sent.is_none() {
                    let failure = if self.wedged { Failure::Wedged } else { Failure::NotMember };
                    self.effects.events.push(refuse(id, failure));
                }
            }
            return;
        }
        let (id, group) = match &command {
            Command::Seeds(_)
            | Command::Send(_)
            | Command::Several(_)
            | Command::Figures { .. }
            | Command::Checkpoint { .. }
            | Command::Progress { .. }
            | Command::Follow { .. }
            | Command::Say { .. }
            | Command::Seats { .. }
            | Command::Exit
            | Command::Quit { .. } => (None, None),
            Command::Join { id, .. } => (Some(*id), None),
            Command::Leave { id, group }
            | Command::Flush { id, group }
            | Command::Save { id, group, .. }
            | Command::Kept { id, group, .. } => (Some(*id), Some(*group)),
        };
        if self.wedged {
            self.effects.events.extend(id.map(|id| refuse(id, Failure::Wedged)));
            return;
        }
        if let (Some(id), Some(group)) = (id, group)
            && !self.members.contains_key(&group)
        {
            self.effects.events.push(refuse(id, Failure::NotMember));
            return;
        }
        match command {
            // These commands were already executed above.
            Command::Seeds(_) | Command::Quit { .. } | Command::Send(_) | Command::Several(_) => {}
            Command::Join { id, group, .. } if self.members.contains_key(&group) => {
                self.effects.events.push(refuse(id, Failure::AlreadyMember));
            }
            Command::Join { id, group, name, offer } => {
                // Sends of an earlier membership in the group may still be on their way, so their numbers are
                // not used again.
                self.token += 1;
                let joins = Joins { id, token: self.token, number: None };
                self.members.insert(group, GroupMember::new(group, self.me.id, offer, joins, self.numbered));
                self.tokens.insert(self.token, (group, JOINS));
                let address = self.me.address.clone();
                let join = if offer == Offer::default() {
                    Control::Join { group, name, address }
                } else {
                    Control::Return { group, name, address, offer }
                };
                self.order.submit(self.token, Class::Control, join.encode());
            }
            Command::Leave { id, group } => {
                self.with(now, group, |member, context| member.leave(context, id));
            }
            Command::Flush { id, group } => {
                self.with(now, group, |member, context| member.flush(context, id));
            }
            Command::Save { id, group, last } => {
                self.with(now, group, |member, context| member.save(context, id, last));
            }
            Command::Kept { id, group, checkpoint } => {
                if self.members.get(&group).is_some_and(|member| member.knows_checkpoint(checkpoint)) {
                    self.effects.events.push(Event::Done { id, result: Ok(super::CommandOutcome::Kept) });
                } else {
                    self.kept.push((group, checkpoint, id));
                    self.order.submit(CONTROL, Class::Control, Control::Kept { group, checkpoint }.encode());
                }
            }
            Command::Figures { token } => {
                let figures = self.figures();
                self.effects.events.push(Event::Figures { token, figures });
            }
            Command::Exit => self.order.submit(CONTROL, Class::Control, Control::Exit.encode()),
            Command::Follow { group, at } => {
                self.with(now, group, |member, _| member.follow(at));
            }
            Command::Say { group, to, body } => {
                self.with(now, group, |member, context| member.send_bytes(context, to, body));
            }
            Command::Seats { group, seats } => {
                self.with(now, group, |member, context| member.seats(context, seats));
            }
            Command::Progress { group } => {
                self.with(now, group, |member, context| member.progressed(context));
            }
            Command::Checkpoint { group, view, state } => {
                self.with(now, group, |member, _| member.checkpoint(view, state));
            }
        }
    }

    /// Passes an input to the order, and handles the resulting events.
    fn drive(&mut self, cx: &mut Context<'_>, input: Input<ecast::Member>, out: &mut dyn Sink<Self>) {
        let Process { order, events, .. } = self;
        let mut lift = Lift::<Self, _, _>::new::<ecast::Member>(
            out,
            |_, _, message| Some(Message::Order(message)),
            |_, event| events.push_back(event),
        );
        order.handle(cx, input, &mut lift);
        while let Some(event) = self.events.pop_front() {
            self.on_order(cx.now, event, out);
        }
    }

    fn on_order(&mut self, now: Time, event: MemberEvent, out: &mut dyn Sink<Self>) {
        match event {
            MemberEvent::Deliver { at, id, class, mut body, attachment } => {
                self.delivered_at = now;
                self.touch(now);
                if class == Class::Control {
                    self.on_control(now, at, id, &body, attachment, out);
                } else if let Ok(header) = Header::take(&mut body) {
                    self.with(now, header.group, |member, context| {
                        member.on_ordered(context, at, id.sender, header, body);
                    });
                } else {
                    self.refused += 1;
                }
            }
            // A stable message is delivered here now or soon, and its delivery ends the command. Only the
            // number of a join is noted, by which the member recognizes the answer to its join.
            MemberEvent::Outcome { token, id, outcome: Outcome::Stable } => {
                if let Some((group, JOINS)) = self.tokens.remove(&token)
                    && let Some(member) = self.members.get_mut(&group)
                {
                    member.joins_by(token, id.number);
                }
            }
            MemberEvent::Outcome { token, outcome, .. } => {
                let failure = match outcome {
                    Outcome::Rejected(_) => Failure::NotMember,
                    Outcome::Wedged => Failure::Wedged,
                    Outcome::MaybeApplied | Outcome::Stable => Failure::MaybeApplied,
                };
                self.failed(now, token, failure);
            }
            MemberEvent::NotSent { token } => self.failed(now, token, Failure::NotSent),
            MemberEvent::Adrift(adrift) => {
                self.adrift = adrift;
                self.touch(now);
            }
            MemberEvent::Wedged => self.wedge(out),
            // Groups use none of these events. They inject no messages. They send no report to a founder that
            // begins a generation from members alone, because a member knows only its own groups.
            MemberEvent::Injected { .. }
            | MemberEvent::NotInjected { .. }
            | MemberEvent::Latest { .. }
            | MemberEvent::Rerouted
            | MemberEvent::Lead { .. }
            | MemberEvent::WitnessWanted { .. } => {}
        }
    }

    fn failed(&mut self, now: Time, token: u64, failure: Failure) {
        if let Some((group, number)) = self.tokens.remove(&token) {
            self.with(now, group, |member, context| member.failed(context, number, failure));
        }
    }

    fn on_control(
        &mut self,
        now: Time,
        at: Position,
        id: MessageId,
        body: &Bytes,
        attachment: Option<Bytes>,
        out: &mut dyn Sink<Self>,
    ) {
        let sender = id.sender;
        let Some(control) = Control::decode(body) else {
            self.refused += 1;
            return;
        };
        match control {
            Control::Join { group, .. } | Control::Return { group, .. } if sender == self.me.id => {
                // This process may have quit before it was admitted, and joined again. The token shows to
                // which of its joins this answer belongs.
                let token = self.order.token(id.number);
                if !self.members.get(&group).is_some_and(|member| member.joined_by(token, id.number)) {
                    return;
                }
                self.change(now, group, out, |member, context| member.admitted(context, at, attachment));
            }
            Control::Rates(_) => {
                // A message without an attachment changes no address of this process's groups.
                let moves: Option<Moves> =
                    attachment.map(|mut bytes| decode_body(&mut bytes).unwrap_or_default());
                for (group, address) in moves.into_iter().flatten() {
                    self.change(now, group, out, |member, context| {
                        member.readdress(context.now, address);
                        true
                    });
                }
            }
            Control::Kept { group, checkpoint } => {
                self.with(now, group, |member, _| member.note_saved_checkpoint(checkpoint));
                if sender == self.me.id {
                    let is_covered =
                        |(of, mark, _): &mut (GroupId, Mark, _)| *of == group && *mark <= checkpoint;
                    let done = self.kept.extract_if(.., is_covered);
                    let done =
                        done.map(|(.., id)| Event::Done { id, result: Ok(super::CommandOutcome::Kept) });
                    self.effects.events.extend(done);
                }
            }
            control => {
                if let Control::Return { group, offer, .. } = &control {
                    self.with(now, *group, |member, _| member.note_offered_checkpoint(*offer));
                }
                let steps = control.steps(sender, |_| self.members.keys().copied().collect());
                for (group, step) in steps {
                    self.change(now, group, out, |member, context| member.step(context, at, &step));
                }
            }
        }
    }

    /// Changes a group, and then updates the links to the processes that this process has to reach. `change`
    /// returns whether this process stays in the group.
    fn change(
        &mut self,
        now: Time,
        group: GroupId,
        out: &mut dyn Sink<Self>,
        change: impl FnOnce(&mut GroupMember, &mut MemberContext<'_>) -> bool,
    ) {
        let address_of = |process: &Self| process.members.get(&group).and_then(GroupMember::address);
        let former = address_of(self);
        let (new, gone) = match self.with(now, group, change) {
            None => return,
            Some(true) => self.members.get_mut(&group).expect("the member was just called").reach(),
            Some(false) => {
                let member = self.members.remove(&group).expect("the member was just called");
                self.numbered = self.numbered.max(member.numbered());
                let failed = self.kept.extract_if(.., |(of, ..)| *of == group);
                let failed = failed.map(|(.., id)| Event::Done { id, result: Err(Failure::MaybeApplied) });
                self.effects.events.extend(failed);
                (Vec::new(), member.into_reached().into_iter().collect())
            }
        };
        let address = address_of(self);
        if address != former {
            if let Some(address) = address {
                let groups = self.listens.entry(address).or_default();
                *groups += 1;
                if *groups == 1 {
                    out.listen(address);
                }
            }
            if let Some(former) = former {
                let groups = self
                    .listens
                    .get_mut(&former)
                    .expect("this process listens to every address of its groups");
                *groups -= 1;
                if *groups == 0 {
                    self.listens.remove(&former);
                    out.ignore(former);
                }
            }
        }
        for (peer, address) in new {
            let shared = self.peers.entry(peer).or_default();
            *shared += 1;
            if *shared == 1 {
                out.reach(peer, &address);
            }
        }
        for peer in gone {
            let shared = self.peers.get_mut(&peer).expect("every neighbour is counted");
            *shared -= 1;
            if *shared == 0 {
                self.part(peer, out);
            }
        }
    }

    fn part(&mut self, peer: ProcessId, out: &mut dyn Sink<Self>) {
        self.peers.remove(&peer);
        out.forget(peer);
    }

    fn wedge(&mut self, out: &mut dyn Sink<Self>) {
        self.wedged = true;
        let kept = self.kept.drain(..);
        let failed = kept.map(|(.., id)| Event::Done { id, result: Err(Failure::MaybeApplied) });
        self.effects.events.extend(failed);
        for member in std::mem::take(&mut self.members).values_mut() {
            member.wedge(&mut self.effects);
        }
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.part(peer, out);
        }
        for address in std::mem::take(&mut self.listens).into_keys() {
            out.ignore(address);
        }
        self.effects.events.push(Event::Wedged);
    }

    /// Checks whether this process is still in touch with the order, and reports a change to the groups.
    fn touch(&mut self, now: Time) {
        let is_silent = self.heard_at.is_some_and(|heard| now.since(heard) >= TOUCH);
        let in_touch = !(self.adrift || is_silent) || now.since(self.delivered_at) < TOUCH;
        if std::mem::replace(&mut self.in_touch, in_touch) != in_touch {
            self.effects.events.push(Event::InTouch(in_touch));
            self.with_all(now, |member, context| member.resume(context));
        }
    }

    fn tick(&mut self, now: Time) {
        let interval = self.settings.interval;
        self.tick_at = now + interval;
        let slept = now.since(std::mem::replace(&mut self.ticked, now)) > interval * 3;
        if slept {
            // Messages that arrived while this process slept have not been read yet, so silence proves
            // nothing.
            self.heard_at = self.heard_at.map(|_| now);
        }
        self.touch(now);
        self.read_rates(now);
        for group in std::mem::take(&mut self.awake) {
            let Some(member) = self.members.get_mut(&group) else { continue };
            member.awake = false;
            if member.is_at_rest() {
                continue;
            }
            self.with(now, group, |member, context| {
                if slept {
                    member.forgive(context);
                }
                member.tick(context);
            });
        }
    }

    /// Reports the rates of groups to the routers, if they have changed enough.
    fn read_rates(&mut self, now: Time) {
        let span = now.since(self.metered);
        if span < self.settings.rate_interval || !self.in_touch {
            return;
        }
        self.metered = now;
        let rates = self.members.iter_mut();
        let rates: Vec<(GroupId, u8)> =
            rates.filter_map(|(group, member)| Some((*group, member.rate(span.as_secs_f64())?))).collect();
        if !rates.is_empty() {
            self.order.submit(CONTROL, Class::Control, Control::Rates(rates).encode());
        }
    }

    /// Executes the effects that members requested.
    fn settle(&mut self, out: &mut dyn Sink<Self>) {
        // Casts leave first, because the receipts over links that cover them must come later.
        for (to, message) in self.effects.casts.drain(..) {
            out.cast(to, message);
        }
        for (address, to, message) in self.effects.multicasts.drain(..) {
            out.multicast(address, to, message);
        }
        for (to, message) in self.effects.sends.drain(..) {
            out.send(to, message, None);
        }
        let reports = std::mem::take(&mut self.effects.reports);
        if !reports.is_empty() {
            self.order.submit(CONTROL, Class::Control, Control::Reports(reports).encode());
        }
        let repaired = std::mem::take(&mut self.effects.repaired);
        if !repaired.is_empty() {
            self.order.submit(CONTROL, Class::Control, Control::Repaired(repaired).encode());
        }
        for Submission { class, body, send } in std::mem::take(&mut self.effects.submits) {
            let token = match send {
                None => CONTROL,
                Some(send) => {
                    self.token += 1;
                    self.tokens.insert(self.token, send);
                    self.token
                }
            };
            self.order.submit(token, class, body);
        }
        for event in self.effects.events.drain(..) {
            out.emit(event);
        }
    }
}

impl Relayed for Process {
    fn is_router(&self) -> bool {
        false
    }

    fn routers(&self) -> Vec<ProcessId> {
        self.order.relays()
    }

    fn routers_heard(&mut self, last: Time) {
        self.heard_at = self.heard_at.max(Some(last));
    }
}

impl Protocol for Process {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let now = cx.now;
        match input {
            Input::Receive { from, message } => {
                match message {
                    Message::Order(message) => self.drive(cx, Input::Receive { from, message }, out),
                    // The process ignores direct messages of a group that it has left, or has not asked to
                    // join yet.
                    Message::Group { group, view, direct } => {
                        self.with(now, group, |member, context| {
                            member.on_direct(context, from, view, direct)
                        });
                    }
                }
            }
            // A correct member casts only its own soft messages.
            Input::Cast { from, message: Message::Group { group, view, direct } } if matches!(direct, Direct::Soft { sender, .. } if sender == from) =>
            {
                let handled =
                    self.with(now, group, |member, context| member.on_direct(context, from, view, direct));
                self.unwanted += u64::from(handled.is_none());
            }
            Input::Cast { .. } => self.refused += 1,
            Input::Command(Command::Seeds(seeds)) => {
                self.drive(cx, Input::Command(MemberCommand::Seeds(seeds)), out);
            }
            Input::Command(Command::Several(commands)) => {
                for command in commands {
                    self.handle(cx, Input::Command(command), out);
                }
            }
            Input::Command(Command::Quit { group }) if self.members.contains_key(&group) => {
                // Sends that the order has not yet got are withdrawn, so that none of them is ordered after
                // sends of a later membership.
                let of_group = self.tokens.iter().filter(|(_, (of, _))| *of == group);
                for token in of_group.map(|(token, _)| *token).collect::<Vec<_>>() {
                    self.drive(cx, Input::Command(MemberCommand::Withdraw { token }), out);
                }
                self.order.submit(CONTROL, Class::Control, Control::Quit { group }.encode());
                self.change(now, group, out, |member, context| {
                    member.wedge(context.effects);
                    false
                });
            }
            Input::Command(command) => self.command(now, command),
            Input::Deadline => {
                if now >= self.tick_at && !self.wedged {
                    self.tick(now);
                }
                if self.effects.wake_at.is_some_and(|at| at <= now) {
                    self.ask_for_due(now);
                }
                self.drive(cx, Input::Deadline, out);
            }
            Input::Persisted(ticket) => self.drive(cx, Input::Persisted(ticket), out),
            Input::Linked { peer, session } => {
                self.linked.insert(peer);
                self.drive(cx, Input::Linked { peer, session }, out);
            }
            Input::Unlinked { peer } => {
                self.linked.remove(&peer);
                self.drive(cx, Input::Unlinked { peer }, out);
            }
            Input::Progress { .. } => {}
            Input::Drained => {
                self.drained(now, out);
                self.settle(out);
                self.drive(cx, Input::Drained, out);
            }
        }
        self.settle(out);
    }

    fn deadline(&self) -> Option<Time> {
        let tick = (!self.wedged).then_some(self.tick_at);
        let due = self.effects.wake_at.filter(|_| !self.wedged);
        [tick, due, self.order.deadline()].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.order.policy()
    }
}

#[cfg(test)]
mod tests;
