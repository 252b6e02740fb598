//! The replicated part of a router: the live range of the history, equal at all routers at equal log
//! positions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::{
    Class, MessageId, Outcome, Position, Routing,
    entry::{LogEntry, RouteBlock},
    live_range::{LiveRange, Runs},
    recovery::{EarlierHistory, Recovery},
    reform::{NUMBERS_MAX, Reformed, is_plausible},
};
use crate::{
    admission::NotAdmitted,
    id::{Incarnation, ProcessId},
    wire::decode_body,
};

/// Number of departed senders that are remembered.
pub(super) const DEPARTED_MAX: usize = 4096;

/// A message of the history. It is kept until all messages up to it are stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ordered {
    /// The message's name.
    pub id: MessageId,
    /// The message's class.
    pub class: Class,
    /// The body. Empty once the log calls the message stable, because nobody will ask for it again.
    pub body: Bytes,
    /// Whether the routers submitted the message in its sender's name. That sender waits for no outcome.
    /// Snapshots omit the flag. At worst, a process that learns that it is out also gets an outcome.
    #[serde(skip)]
    pub(super) in_name: bool,
    /// The outcome if routing refused the message, which then has no destinations.
    pub(super) refused: Option<Outcome>,
    /// Whether the log calls the message stable.
    pub(super) stable: bool,
}

impl Ordered {
    /// Whether the entry stands for a position of which a new generation knows nothing.
    pub fn is_hole(&self) -> bool {
        self.id.number == 0
    }

    /// Whether the log calls the message stable.
    pub fn is_stable(&self) -> bool {
        self.stable
    }
}

/// The history's record of one sender.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Sender {
    /// The number of the sender's last message in the history.
    pub(super) learned: u64,
    /// All messages of the sender up to this number are stable.
    pub(super) stable: u64,
    /// Stable numbers above `stable`.
    sparse: Runs,
    /// Outcomes other than [`Outcome::Stable`] that the sender has not acknowledged.
    others: BTreeMap<u64, Outcome>,
}

impl Sender {
    /// Returns the outcome of message `number`, if the log knows it.
    pub(super) fn outcome(&self, number: u64) -> Option<Outcome> {
        if number > self.stable && !self.sparse.contains(number) {
            return None;
        }
        Some(self.others.get(&number).copied().unwrap_or(Outcome::Stable))
    }

    /// Notes that the sender knows the outcomes of all its messages up to this number, even of messages that
    /// the log does not know.
    fn acknowledge(&mut self, number: u64) {
        self.learned = self.learned.max(number);
        self.stable = self.sparse.absorb(self.stable.max(number));
        self.others = self.others.split_off(&(number + 1));
    }

    /// Marks numbers up to `through` that are missing from the history as `MaybeApplied`: they may have been
    /// ordered, and cannot be used again.
    fn leave_out(&mut self, through: u64) {
        for number in self.learned + 1..=through.min(self.learned.saturating_add(NUMBERS_MAX)) {
            self.settle(number, Outcome::MaybeApplied);
        }
        self.learned = self.learned.max(through);
    }

    fn settle(&mut self, number: u64, outcome: Outcome) {
        if number <= self.stable {
            return;
        }
        if outcome != Outcome::Stable {
            self.others.insert(number, outcome);
        }
        self.sparse.insert(number);
        self.stable = self.sparse.absorb(self.stable);
    }
}

/// The changes by one log entry, for the dispatcher.
#[derive(Debug, Default)]
pub(super) struct EntryEffects {
    /// Positions appended: `first..=last`.
    pub(super) appended: Option<(Position, Position)>,
    /// Senders of appended messages that were no longer members.
    pub(super) departed_senders: Vec<ProcessId>,
    /// Processes that left the configuration.
    pub(super) departed: Vec<ProcessId>,
    /// Processes whose joining was refused, with the reason.
    pub(super) not_admitted: Vec<(ProcessId, NotAdmitted)>,
    /// Whether the log entry changed the configuration.
    pub(super) reconfigured: bool,
    /// Whether the domain was founded with a configuration that this build cannot read.
    pub(super) is_unreadable: bool,
    /// Messages that the log calls stable from now on.
    pub(super) settled: Vec<(Position, MessageId, Outcome)>,
}

/// The history's live part.
pub(super) struct Order<R: Routing> {
    /// Messages that are not stable, and some later messages that are stable.
    live_messages: LiveRange<Ordered>,
    /// Configurations that are still needed: the configuration before the first message kept, then one for
    /// each later change.
    configs: VecDeque<(Position, R::Config)>,
    /// The knowledge by which routers judge messages, in addition to the configuration.
    ledger: R::Ledger,
    /// Members that have submitted.
    senders: FxHashMap<ProcessId, Sender>,
    /// The last departed members, oldest first.
    departed: VecDeque<ProcessId>,
    /// Members that did not follow into the present generation. Routers ignore their messages and deliver
    /// nothing to them.
    fenced: BTreeSet<ProcessId>,
    /// A description of the beginning of the present generation; `None` in the first generation.
    reformed: Option<Reformed>,
    /// Whether the log contains the founding configuration.
    founded: bool,
    /// Number of log entries that did not decode. The number is equal at all routers, because all learn the
    /// same bytes.
    pub(super) malformed: u64,
}

impl<R: Routing> Order<R> {
    /// Creates a history that begins with `config`. It keeps at most `kept_max` stable messages after an
    /// unstable one.
    pub(super) fn new(config: R::Config, kept_max: usize) -> Self {
        Order {
            live_messages: LiveRange::new(Position(0), kept_max),
            configs: VecDeque::from([(Position(0), config)]),
            ledger: R::Ledger::default(),
            senders: FxHashMap::default(),
            departed: VecDeque::new(),
            fenced: BTreeSet::new(),
            reformed: None,
            founded: false,
            malformed: 0,
        }
    }

    /// Whether the log contains the founding configuration, or already contains messages, so that a founding
    /// configuration would come too late.
    pub(super) fn is_founded(&self) -> bool {
        self.founded || self.last() > Position(0)
    }

    /// Returns the position up to which all messages are stable.
    pub(super) fn base(&self) -> Position {
        self.live_messages.done_through()
    }

    /// Returns the unstable messages, and later stable messages that are kept.
    pub(super) fn live_messages(&self) -> &LiveRange<Ordered> {
        &self.live_messages
    }

    /// Returns the position of the last message.
    pub(super) fn last(&self) -> Position {
        self.live_messages.last()
    }

    /// Returns the newest configuration.
    pub(super) fn config(&self) -> &R::Config {
        &self.configs.back().expect("the order always has a configuration").1
    }

    /// Returns the configuration that routes the message at `position`.
    pub(super) fn config_at(&self, position: Position) -> &R::Config {
        debug_assert!(position > self.base() || position == self.last());
        let after = self.configs.partition_point(|&(from, _)| from <= position);
        &self.configs[after - 1].1
    }

    /// Returns the number of kept configurations.
    pub(super) fn configs(&self) -> usize {
        self.configs.len()
    }

    pub(super) fn flight(&self, position: Position) -> Option<&Ordered> {
        self.live_messages.get(position)
    }

    pub(super) fn sender(&self, process: ProcessId) -> Option<&Sender> {
        self.senders.get(&process)
    }

    /// Whether `process` was a member and has left. Such a process never becomes a member again.
    pub(super) fn is_departed(&self, process: ProcessId) -> bool {
        self.is_fenced(process) || !R::is_member(self.config(), process) && self.departed.contains(&process)
    }

    /// Whether `process` did not follow into the present generation.
    pub(super) fn is_fenced(&self, process: ProcessId) -> bool {
        self.fenced.contains(&process)
    }

    /// Returns the processes without which the present generation began.
    pub(super) fn fenced(&self) -> &BTreeSet<ProcessId> {
        &self.fenced
    }

    /// Returns a description of the beginning of the present generation; `None` in the first generation.
    pub(super) fn reformed(&self) -> Option<&Reformed> {
        self.reformed.as_ref()
    }

    /// Returns the number that `process` must use next in the history.
    pub(super) fn expected(&self, process: ProcessId) -> u64 {
        self.senders.get(&process).map_or(1, |sender| sender.learned + 1)
    }

    /// Applies one payload that the log has chosen.
    pub(super) fn learn(&mut self, payload: Bytes) -> EntryEffects {
        let mut learned = EntryEffects::default();
        match LogEntry::decode(payload) {
            Ok(LogEntry::Route(block)) => self.append(block, &mut learned),
            Ok(LogEntry::Stable { runs, others }) => {
                self.settle(&runs, &others, &mut learned);
            }
            Ok(LogEntry::Recovered(recovery)) if recovery.fits(self.last()) => {
                self.recover(recovery, &mut learned);
            }
            Ok(LogEntry::Founded(config)) => self.found(config, &mut learned),
            Ok(LogEntry::Expelled { process, learned: through }) => {
                self.expel(process, through, &mut learned);
            }
            Ok(LogEntry::Recovered(_)) | Err(_) => self.malformed += 1,
        }
        learned
    }

    /// Replaces the configuration with which this router began by the founder's configuration, which is valid
    /// for the whole domain.
    fn found(&mut self, mut config: Bytes, learned: &mut EntryEffects) {
        if self.is_founded() {
            return;
        }
        match decode_body(&mut config) {
            Ok(config) => {
                self.founded = true;
                self.configs = VecDeque::from([(Position(0), config)]);
                learned.reconfigured = true;
            }
            Err(_) => {
                self.malformed += 1;
                learned.is_unreadable = true;
            }
        }
    }

    fn append(&mut self, block: RouteBlock, learned: &mut EntryEffects) {
        let before = self.last();
        // A new generation may lack messages whose outcomes an earlier generation reported. The sender of
        // these messages does not send them again.
        if let Some(sender) = self.senders.get_mut(&block.sender)
            && block.acknowledged > sender.learned
        {
            sender.acknowledge(block.acknowledged);
        }
        let expected = self.expected(block.sender);
        // S3: a block that begins above the sender's next number is dropped whole, and its sender sends the
        // block again.
        if block.first > expected || block.last() < expected {
            if self.departed.contains(&block.sender) {
                learned.departed_senders.push(block.sender);
            }
            return;
        }
        for (number, (class, body)) in (block.first..).zip(block.messages()) {
            if number >= expected
                && !self.append_one(MessageId { sender: block.sender, number }, class, body, learned)
            {
                if self.departed.contains(&block.sender) {
                    learned.departed_senders.push(block.sender);
                }
                break;
            }
        }
        if let Some(sender) = self.senders.get_mut(&block.sender) {
            sender.others = sender.others.split_off(&(block.acknowledged + 1));
        }
        if self.last() > before {
            learned.appended = Some((Position(before.0 + 1), self.last()));
        }
    }

    /// Removes a dead member, unless more than `through` of its messages were ordered before.
    fn expel(&mut self, process: ProcessId, through: u64, learned: &mut EntryEffects) {
        let body = R::expulsion(self.config(), process);
        let Some(body) = body.filter(|_| self.expected(process).checked_sub(1) == Some(through)) else {
            return;
        };
        let id = MessageId { sender: process, number: through + 1 };
        if self.append_one(id, Class::Control, body, learned) {
            let at = self.last();
            self.live_messages.get_mut(at).expect("the message was just appended").in_name = true;
            learned.appended = Some((at, at));
        }
    }

    /// Appends one message with the sender's next number. Returns `false` if the sender is no member and does
    /// not become one.
    fn append_one(&mut self, id: MessageId, class: Class, body: Bytes, learned: &mut EntryEffects) -> bool {
        let position = Position(self.last().0 + 1);
        let mut refused = None;
        let mut changed = None;
        let member = R::is_member(self.config(), id.sender);
        if class == Class::Control && (member || !self.departed.contains(&id.sender)) {
            match R::apply(self.config(), position, id.sender, &body) {
                Ok(config) => changed = config.filter(|config| config != self.config()),
                Err(refusal) => refused = Some(Outcome::Rejected(refusal)),
            }
        }
        if !member && !changed.as_ref().is_some_and(|config| R::is_member(config, id.sender)) {
            if refused.is_some()
                && let Some(why) = R::not_admitted(self.config(), id.sender, &body)
            {
                learned.not_admitted.push((id.sender, why));
            }
            return false;
        }
        if refused.is_none()
            && let Err(refusal) = R::admit(&mut self.ledger, position, class, &body)
        {
            assert!(changed.is_none(), "no change of the configuration is refused after it was applied");
            refused = Some(Outcome::Rejected(refusal));
        }
        let sender = self.senders.entry(id.sender).or_default();
        assert_eq!(
            id.number,
            sender.learned + 1,
            "S3: a sender's messages are appended in order, but {id:?} comes behind {}",
            sender.learned
        );
        sender.learned = id.number;
        if let Some(config) = changed {
            let before = R::members(self.config());
            for process in before.into_iter().filter(|&process| !R::is_member(&config, process)) {
                self.depart(process);
                learned.departed.push(process);
            }
            self.configs.push_back((position, config));
            learned.reconfigured = true;
        }
        self.live_messages.put(position, Ordered { id, class, body, in_name: false, refused, stable: false });
        true
    }

    /// Begins a generation: messages that members delivered after the end of the survivor's log take their
    /// positions again.
    fn recover(&mut self, recovery: Recovery, learned: &mut EntryEffects) {
        let Recovery { generation, behind, through, messages, reported, earlier_history } = recovery;
        let mut recovered = 0;
        if let Some(earlier_history) = &earlier_history
            && !self.lay(earlier_history, behind, &reported, learned)
        {
            self.malformed += 1;
            return;
        }
        let mut messages = messages.into_iter().peekable();
        for position in (behind.0 + 1..=through.0).map(Position) {
            let message = messages.next_if(|(at, ..)| *at == position);
            let known =
                message.is_some_and(|(_, id, class, body)| self.append_recovered(id, class, body, learned));
            if known {
                recovered += 1;
            } else {
                // A hole has no destination.
                let nobody = ProcessId { node: 0, incarnation: Incarnation(0) };
                let id = MessageId { sender: nobody, number: 0 };
                let refused = Some(Outcome::MaybeApplied);
                let hole = Ordered {
                    id,
                    class: Class::Data,
                    body: Bytes::new(),
                    in_name: false,
                    refused,
                    stable: true,
                };
                self.live_messages.put(position, hole);
            }
        }
        let members = R::members(self.config());
        for (process, acknowledged) in reported.iter().filter(|(process, _)| members.contains(process)) {
            let sender = self.senders.entry(*process).or_default();
            sender.acknowledge(*acknowledged);
            // The process may have used numbers whose messages the new generation lacks. Members may have
            // delivered these messages before the ground (the position up to which no following member lacks
            // a message).
            if let Some(sent) =
                earlier_history.as_ref().and_then(|earlier_history| earlier_history.sent.get(process))
            {
                sender.leave_out(*sent);
            }
        }
        // A fenced process stays fenced, because its deliveries may belong to a generation that no other
        // generation continued.
        let is_out = |process: &ProcessId| !reported.contains_key(process) || self.fenced.contains(process);
        self.fenced = members.into_iter().filter(is_out).collect();
        self.reformed = Some(Reformed {
            generation,
            from_members: earlier_history.map(|earlier_history| earlier_history.before),
            behind,
            through,
            recovered,
            missing: through.0 - behind.0 - recovered,
            fenced: self.fenced.iter().copied().collect(),
        });
        self.collect();
    }

    /// Begins the order with the history that all reporting members share. Returns whether that was possible.
    fn lay(
        &mut self,
        earlier_history: &EarlierHistory,
        behind: Position,
        reported: &BTreeMap<ProcessId, u64>,
        learned: &mut EntryEffects,
    ) -> bool {
        let Ok(config) = decode_body(&mut earlier_history.config.clone()) else { return false };
        if self.is_founded() {
            return false;
        }
        self.founded = true;
        self.live_messages = LiveRange::new(behind, self.live_messages.recent_max());
        self.configs = VecDeque::from([(behind, config)]);
        learned.reconfigured = true;
        for (&process, &first) in &earlier_history.firsts {
            let sender = self.senders.entry(process).or_default();
            let before = first.saturating_sub(1);
            // A member that did not follow into this generation asks for no outcomes.
            sender.acknowledge(reported.get(&process).map_or(before, |number| (*number).min(before)));
            sender.leave_out(before);
        }
        true
    }

    /// Appends a message that a member has delivered, even if its number is above the next number of its
    /// sender. The earlier generation may have ordered messages with the skipped numbers, so these numbers
    /// are never used again.
    fn append_recovered(
        &mut self,
        id: MessageId,
        class: Class,
        body: Bytes,
        learned: &mut EntryEffects,
    ) -> bool {
        let expected = self.expected(id.sender);
        if !is_plausible(id.number, expected) {
            return false;
        }
        if id.number > expected {
            let Some(sender) = self.senders.get_mut(&id.sender) else { return false };
            sender.leave_out(id.number - 1);
        }
        self.append_one(id, class, body, learned)
    }

    fn depart(&mut self, process: ProcessId) {
        self.fenced.remove(&process);
        self.senders.remove(&process);
        self.departed.push_back(process);
        if self.departed.len() > DEPARTED_MAX {
            self.departed.pop_front();
        }
    }

    fn settle(&mut self, runs: &[(u64, u32)], others: &[(u64, Outcome)], learned: &mut EntryEffects) {
        let live = self.live_messages.base().0 + 1..self.last().0 + 1;
        for &(first, count) in runs {
            let end = first.saturating_add(u64::from(count)).min(live.end);
            for straggler in self.live_messages.stragglers(Position(first), Position(end.saturating_sub(1))) {
                self.settle_one(straggler, Outcome::Stable, learned);
            }
            for position in first.max(live.start)..end {
                self.settle_one(Position(position), Outcome::Stable, learned);
            }
        }
        for &(position, outcome) in others {
            self.settle_one(Position(position), outcome, learned);
        }
        self.collect();
    }

    /// Forgets stable messages, from the front, and the configurations that only these messages needed.
    fn collect(&mut self) {
        self.live_messages.collect(|flight| flight.stable);
        let base = self.base();
        while self.configs.len() > 1 && self.configs[1].0 <= base {
            self.configs.pop_front();
        }
    }

    fn settle_one(&mut self, position: Position, outcome: Outcome, learned: &mut EntryEffects) {
        let Some(flight) = self.live_messages.get_mut(position) else { return };
        if std::mem::replace(&mut flight.stable, true) {
            return;
        }
        // A silent destination holds the base back. The bodies of later stable messages must not stay in
        // memory for as long.
        flight.body = Bytes::new();
        let id = flight.id;
        learned.settled.push((position, id, outcome));
        if let Some(sender) = self.senders.get_mut(&id.sender) {
            sender.settle(id.number, outcome);
        }
        self.live_messages.forget_finished(position, |flight| flight.stable);
    }

    /// Returns the whole state, for a router that is too far behind for the log.
    pub(super) fn snapshot(&self) -> Bytes {
        let senders: BTreeMap<ProcessId, &Sender> = self.sorted_senders();
        let state = SnapshotRef {
            live_messages: &self.live_messages,
            configs: &self.configs,
            ledger: &self.ledger,
            senders,
            departed: &self.departed,
            fenced: &self.fenced,
            reformed: &self.reformed,
            founded: self.founded,
            malformed: self.malformed,
        };
        postcard::to_stdvec(&state).expect("every type of this crate serialises").into()
    }

    #[expect(clippy::iter_over_hash_type, reason = "the order is lost in the map that it fills")]
    fn sorted_senders(&self) -> BTreeMap<ProcessId, &Sender> {
        let mut sorted = BTreeMap::new();
        for (&process, sender) in &self.senders {
            sorted.insert(process, sender);
        }
        sorted
    }

    /// Replaces the state by another router's snapshot.
    pub(super) fn install(&mut self, state: &[u8]) -> Result<(), &'static str> {
        let state: Snapshot<R::Config, R::Ledger> =
            postcard::from_bytes(state).map_err(|_| "the snapshot does not decode")?;
        let live_messages = state
            .live_messages
            .checked(self.live_messages.recent_max())
            .ok_or("the positions in the snapshot are out of order")?;
        if state.configs.front().is_none_or(|(from, _)| *from > live_messages.done_through()) {
            return Err("the snapshot lacks the configuration at its first position");
        }
        if !state.configs.iter().is_sorted_by(|(one, _), (other, _)| one < other) {
            return Err("the configurations in the snapshot are out of order");
        }
        *self = Order {
            live_messages,
            configs: state.configs,
            ledger: state.ledger,
            senders: state.senders.into_iter().collect(),
            departed: state.departed,
            fenced: state.fenced,
            reformed: state.reformed,
            founded: state.founded,
            malformed: state.malformed,
        };
        Ok(())
    }
}

#[derive(Serialize)]
struct SnapshotRef<'a, C, L> {
    live_messages: &'a LiveRange<Ordered>,
    configs: &'a VecDeque<(Position, C)>,
    ledger: &'a L,
    senders: BTreeMap<ProcessId, &'a Sender>,
    departed: &'a VecDeque<ProcessId>,
    fenced: &'a BTreeSet<ProcessId>,
    reformed: &'a Option<Reformed>,
    founded: bool,
    malformed: u64,
}

#[derive(Deserialize)]
struct Snapshot<C, L> {
    live_messages: LiveRange<Ordered>,
    configs: VecDeque<(Position, C)>,
    ledger: L,
    senders: BTreeMap<ProcessId, Sender>,
    departed: VecDeque<ProcessId>,
    fenced: BTreeSet<ProcessId>,
    reformed: Option<Reformed>,
    founded: bool,
    malformed: u64,
}

#[cfg(test)]
mod tests;
