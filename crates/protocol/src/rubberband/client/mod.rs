//! A client (a gateway): submits requests for its users and collects the pieces of their answers.
//!
//! The client alone tracks a request: its attempts, the pieces that have arrived, and its end, which comes
//! once. Its host hands over commands, and passes each event on to the user of the event's token.
//!
//! | file | subject |
//! |---|---|
//! | `command` | commands and events of a client |
//! | `request` | when the client checks on a request, tries again, and ends it |
//! | `progress` | requests in progress: the attempts at each, and the answers so far |
//! | `read` | a read's attempts and the pieces of its answer |
//! | `write` | a write's stability and answers, and the replies that the ranges may forget |

mod command;
mod progress;
mod read;
mod request;
mod settings;
#[cfg(test)]
mod tests;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use rustc_hash::FxHashMap;

use self::progress::{Kind, OpenRequest, OpenWrite, Read};
pub use self::{
    command::{ClientCommand, ClientError, ClientEvent, ProcessAnswer},
    settings::ClientSettings,
};
use super::{
    Config, Control, DataHeader, DataKind, Direct, Message, Record, Reply, Role, StorageState, WriteName,
    membership::{Delivered, Membership},
    refusal,
};
use crate::{
    ecast::{Class, Member, MemberCommand, MemberSettings, Outcome, Position},
    id::{Peer, ProcessId},
    seam::{Context, Destination, Input, Policy, Protocol, Sink},
    time::{Duration, Time},
};

/// A gateway's end of Rubberband.
pub struct Client {
    settings: ClientSettings,
    membership: Membership,
    linked: BTreeSet<ProcessId>,
    /// Serving storage processes without a link.
    unreached: BTreeMap<ProcessId, Unreached>,
    /// The last number given to a request.
    number: u64,
    /// The last number given to an attempt.
    attempt: u64,
    requests: BTreeMap<u64, OpenRequest>,
    /// Token of the request of each attempt, by the attempt's number.
    attempts: FxHashMap<u64, u64>,
    /// Times at which the client checks on requests.
    look: BTreeSet<(Time, u64)>,
    /// Times at which the client gives up requests that still wait for a place in the order, earliest first.
    /// A request that has ended stays here until its entry is the first.
    unordered: VecDeque<(Time, u64)>,
    /// Numbers of this client's writes of unknown outcome, each with the time at which the write ended.
    maybe: VecDeque<(Time, u64)>,
    /// Numbers of this client's writes in progress.
    writes: BTreeSet<u64>,
    /// Number of this client's writes under made-up ids that have ended.
    made_up: usize,
    /// Positions up to which made-up ids will expire, oldest first. The client adds one position each time
    /// that another step (a fixed number) of its writes under made-up ids has ended.
    expiries: VecDeque<Position>,
    /// The ranges may forget numbers below this one.
    forgotten: u64,
    /// Whether no router in reach knows a leader.
    adrift: bool,
    /// The request number at which the client next checks whether the ranges may forget more.
    forget_check_at: u64,
    refused: u64,
    retries: u64,
    /// Moving average of the time to the first pieces of a read's answer.
    latency: Duration,
}

/// A serving storage process without a link.
struct Unreached {
    since: Time,
    /// Whether the user was informed.
    reported: bool,
}

/// Number of requests under way from which on throughput matters more than latency.
const REQUESTS_MANY: usize = 16;
/// Divisor: with [`REQUESTS_MANY`] requests or more, input is gathered for 1/16 of the average latency, at
/// most 2 ms. So turns are fewer and batches larger all the way from the client to the queries that share a
/// scan.
const GATHERING_PART: u32 = 16;
const GATHERING_MAX: Duration = Duration::from_millis(2);

impl Client {
    /// Creates a client, which joins the domain.
    pub fn new(me: Peer, name: String, settings: ClientSettings) -> Self {
        let member = MemberSettings::default();
        Client {
            membership: Membership::new(
                me,
                Role::Gateway,
                name,
                member,
                settings.alive_every,
                settings.terms,
                None,
            ),
            settings,
            linked: BTreeSet::new(),
            unreached: BTreeMap::new(),
            number: 0,
            attempt: 0,
            requests: BTreeMap::new(),
            attempts: FxHashMap::default(),
            look: BTreeSet::new(),
            unordered: VecDeque::new(),
            maybe: VecDeque::new(),
            writes: BTreeSet::new(),
            made_up: 0,
            expiries: VecDeque::new(),
            forgotten: 0,
            adrift: false,
            forget_check_at: 0,
            refused: 0,
            retries: 0,
            latency: Duration::ZERO,
        }
    }

    /// Returns the configuration at the last delivered position, `None` before admission.
    pub fn config(&self) -> Option<&Config> {
        self.membership.config()
    }

    /// Returns the E-Cast member through which this process takes part in the order.
    pub fn member(&self) -> &Member {
        &self.membership.member
    }

    /// Returns the number of requests in progress.
    pub fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// Returns the serving storage processes that this gateway has not reached for `unreached_after`. Reads
    /// that need them fail.
    pub fn unreached(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.unreached.iter().filter(|(_, unreached)| unreached.reported).map(|(&process, _)| process)
    }

    /// Returns the number of repeated attempts at reads.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// Returns the number of messages from peers that were refused.
    pub fn refused(&self) -> u64 {
        self.refused + self.membership.refused()
    }

    fn session(&self) -> u128 {
        self.membership.me.incarnation.0
    }

    fn member_input(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut dyn Sink<Self>) {
        self.membership.handle(cx, input, out);
        while let Some(item) = self.membership.next(out) {
            self.on_delivered(cx, item, out);
        }
    }

    fn on_delivered(&mut self, cx: &mut Context<'_>, item: Delivered, out: &mut dyn Sink<Self>) {
        match item {
            Delivered::Control { control, before, .. } => {
                let config = self
                    .membership
                    .config()
                    .expect("a delivered control message leaves a configuration")
                    .clone();
                for process in before.iter().flat_map(|before| before.storage.keys()) {
                    if !config.storage.contains_key(process) {
                        self.lost(cx, *process, control == Control::Leave);
                        self.lose_ranges(&config);
                    } else if control == Control::Away
                        && is_away(&config, *process)
                        && !self.linked.contains(process)
                    {
                        self.lost(cx, *process, true);
                    }
                }
                self.revive(&config);
                self.note_unreached(cx.now, &config);
                out.emit(ClientEvent::Config(Arc::new(config)));
            }
            Delivered::Outcome { token: attempt, outcome } => self.on_outcome(cx, attempt, outcome, out),
            Delivered::NotSent { token: attempt } => {
                if let Some(token) = self.attempts.get(&attempt).copied() {
                    self.fail(cx.now, token, ClientError::NotSent, out);
                }
            }
            Delivered::NotInjected { token: attempt } => self.not_injected(cx, attempt, out),
            Delivered::Latest { token: attempt } => self.read_confirmed(attempt, out),
            Delivered::Rerouted => self.inject_again(cx, out),
            Delivered::Adrift(adrift) => {
                self.adrift = adrift;
                out.emit(ClientEvent::Adrift(adrift));
                if adrift {
                    self.member_input(cx, Input::Command(MemberCommand::WithdrawData), out);
                    for token in self.requests.keys().copied().collect::<Vec<_>>() {
                        self.end_unordered(cx, token, out);
                    }
                }
            }
            Delivered::Wedged => {
                for token in self.requests.keys().copied().collect::<Vec<_>>() {
                    self.give_up(cx.now, token, out);
                }
                out.emit(ClientEvent::Wedged);
            }
            Delivered::Left { id, result } => out.emit(ClientEvent::Left { id, result }),
            Delivered::Data { .. } | Delivered::Injected { .. } => self.refused += 1,
        }
    }

    /// Updates the list of serving processes without a link, for a new configuration.
    fn note_unreached(&mut self, now: Time, config: &Config) {
        let serves = |process: &ProcessId| {
            matches!(config.storage.get(process), Some(StorageState::Active | StorageState::Receiving { .. }))
        };
        self.unreached.retain(|process, _| serves(process));
        for &process in config.storage.keys().filter(|process| serves(process)) {
            if !self.linked.contains(&process) {
                self.unreached.entry(process).or_insert(Unreached { since: now, reported: false });
            }
        }
    }

    /// Informs the user of processes that have been without a link for too long.
    fn report_unreached(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        for (&process, unreached) in &mut self.unreached {
            if !unreached.reported && now.since(unreached.since) >= self.settings.unreached_after {
                unreached.reported = true;
                let known = self.membership.config().and_then(|config| config.members.get(&process));
                let (name, address) =
                    known.map(|member| (member.name.clone(), member.address.clone())).unwrap_or_default();
                out.emit(ClientEvent::Unreached { process, name, address });
            }
        }
    }

    fn on_outcome(&mut self, cx: &mut Context<'_>, attempt: u64, outcome: Outcome, out: &mut dyn Sink<Self>) {
        let Some(token) = self.attempts.get(&attempt).copied() else { return };
        let request = self.requests.get_mut(&token).expect("every attempt has a request");
        match (&mut request.kind, outcome) {
            (_, Outcome::Rejected(refusal::OTHER_STATEMENT)) => {
                self.fail(cx.now, token, ClientError::OtherStatement, out);
            }
            (_, Outcome::Rejected(refusal::EXPIRED)) => self.fail(cx.now, token, ClientError::Expired, out),
            (_, Outcome::Rejected(refusal)) => self.fail(cx.now, token, ClientError::Rejected(refusal), out),
            (Kind::Control, Outcome::Stable) => self.done(token, Position(0), out),
            (Kind::Write(write), Outcome::Stable) => {
                write.stable = true;
                self.finish_write(cx, token, out);
            }
            (Kind::Write(_) | Kind::Control, Outcome::MaybeApplied | Outcome::Wedged) => {
                self.give_up(cx.now, token, out);
            }
            (Kind::Read(read), Outcome::Stable) => read.ordered = true,
            (Kind::Read(_), Outcome::MaybeApplied | Outcome::Wedged) => self.retry_soon(cx, attempt),
        }
    }

    fn on_reply(&mut self, cx: &mut Context<'_>, from: ProcessId, reply: Reply, out: &mut dyn Sink<Self>) {
        let Some(token) = self.attempts.get(&reply.token).copied() else {
            // An answer to an abandoned attempt is normal. But the storage process must not keep the
            // answer's remaining pieces for this client.
            if !reply.last {
                let cancel = Direct::Cancel { token: reply.token };
                out.send(Destination::One(from), Message::Direct(cancel), None);
            }
            return;
        };
        match &self.requests[&token].kind {
            Kind::Read(_) => self.read_answered(cx, token, from, reply, out),
            Kind::Write(_) => self.write_answered(cx, token, from, reply, out),
            Kind::Control => self.refused += 1,
        }
    }

    fn command(&mut self, cx: &mut Context<'_>, command: ClientCommand, out: &mut dyn Sink<Self>) {
        match command {
            ClientCommand::Write { token, request, print, repeated, table, ranges, fallible, operation } => {
                let name = WriteName { request: self.name_write(request), print, repeated };
                let attempt = self.new_attempt(token);
                let kind = if fallible { DataKind::FallibleWrite } else { DataKind::Write };
                let offset = (cx.random)() as u32;
                let header = DataHeader { kind, token: attempt, name, offset, table, ranges: ranges.clone() };
                let mut write = OpenWrite::new(name, ranges);
                // The replica that answers a range may be out of reach, so the client asks the other replicas
                // sooner.
                write.doubted = !self.unreached.is_empty();
                self.insert(token, OpenRequest { attempt, kind: Kind::Write(write), look_at: None });
                self.membership.submit(cx, attempt, Class::Data, header.encode(&operation), out);
                self.await_order(cx.now, token);
                self.refuse_if_out(cx, token, out);
            }
            ClientCommand::Read { token, strength, table, ranges, operation } => {
                let read = Read::new(strength, table, ranges, operation, cx.now);
                self.insert(
                    token,
                    OpenRequest { attempt: 0, kind: Kind::Read(Box::new(read)), look_at: None },
                );
                self.start_read(cx, token, out);
                self.refuse_if_out(cx, token, out);
            }
            ClientCommand::Control { token, control } => {
                let attempt = self.new_attempt(token);
                self.insert(token, OpenRequest { attempt, kind: Kind::Control, look_at: None });
                self.membership.submit(cx, attempt, Class::Control, control.encode(), out);
                self.await_order(cx.now, token);
                self.refuse_if_out(cx, token, out);
            }
            ClientCommand::Consumed { token, from, bytes } => {
                if let Some(request) = self.requests.get_mut(&token) {
                    if let Kind::Read(read) = &mut request.kind {
                        read.consumed(from, bytes);
                    }
                    let consumed = Direct::Consumed { token: request.attempt, bytes };
                    out.send(Destination::One(from), Message::Direct(consumed), None);
                }
            }
            ClientCommand::Cancel { token } => {
                self.withdraw(cx, token, out);
                self.give_up(cx.now, token, out);
            }
            ClientCommand::Seeds(seeds) => {
                self.member_input(cx, Input::Command(MemberCommand::Seeds(seeds)), out);
            }
            ClientCommand::Leave { id } => {
                if let Some(result) = self.membership.leave(cx, id, out) {
                    out.emit(ClientEvent::Left { id, result });
                }
            }
        }
    }
}

/// Whether a storage process stopped of its own will, and so was not killed by a request.
fn is_away(config: &Config, process: ProcessId) -> bool {
    matches!(config.storage.get(&process), Some(StorageState::Away { .. }))
}

impl Protocol for Client {
    type Message = Message;
    type Record = Record;
    type Command = ClientCommand;
    type Event = ClientEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Receive { from, message: Message::Order(message) } => {
                self.member_input(cx, Input::Receive { from, message }, out);
            }
            Input::Receive { from, message: Message::Direct(Direct::Reply(reply)) } => {
                self.on_reply(cx, from, reply, out);
            }
            Input::Receive { .. } | Input::Cast { .. } => self.refused += 1,
            Input::Command(command) => self.command(cx, command, out),
            Input::Deadline => {
                self.member_input(cx, Input::Deadline, out);
                while let Some((_, token)) = self.look.first().copied().filter(|(at, _)| *at <= cx.now) {
                    self.look.pop_first();
                    self.look_after(cx, token, out);
                }
                self.end_overdue(cx, out);
                self.report_unreached(cx.now, out);
                self.membership.tick(cx.now, self.membership.member.delivered(), out);
            }
            Input::Persisted(ticket) => self.member_input(cx, Input::Persisted(ticket), out),
            Input::Linked { peer, session } => {
                self.linked.insert(peer);
                self.unreached.remove(&peer);
                if let Some(config) = self.membership.config().cloned() {
                    self.revive(&config);
                }
                self.reached(cx.now, peer);
                self.member_input(cx, Input::Linked { peer, session }, out);
            }
            Input::Progress { .. } => {}
            Input::Unlinked { peer } => {
                self.linked.remove(&peer);
                let mut away = false;
                if let Some(config) = self.membership.config().cloned() {
                    self.note_unreached(cx.now, &config);
                    away = is_away(&config, peer);
                }
                self.lost(cx, peer, away);
                self.member_input(cx, Input::Unlinked { peer }, out);
            }
            Input::Drained => {
                self.forget(cx, out);
                self.expire(cx, out);
                self.member_input(cx, Input::Drained, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let look = self.look.first().map(|(at, _)| *at);
        let overdue = self.unordered.front().map(|(at, _)| *at);
        [self.membership.deadline(), look, overdue].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.membership.member.policy()
    }

    fn gathering(&self) -> Duration {
        if self.requests.len() < REQUESTS_MANY {
            return Duration::ZERO;
        }
        (self.latency / GATHERING_PART).min(GATHERING_MAX)
    }
}
