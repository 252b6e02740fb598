//! A super process: watches all members, announces failures, and changes the placement (002 §6.1, §6.4).
//!
//! Supers agree through the order alone. Each super may submit a change that it believes due. A message made
//! for an old placement version has no effect. The rank of the supers (in id order) only spaces their
//! attempts, so that usually one of them submits.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    Config, Control, Direct, Message, Range, Record, Removal, Role, StorageState,
    membership::{Delivered, INTERNAL, Membership},
    operator::{Commands, SuperCommand, SuperEvent, SuperRefusal},
    range::Segment,
};
use crate::{
    admission::Terms,
    detector::{self, Detector, Opinion},
    ecast::{self, Class, Member, MemberCommand, MemberSettings, Outcome, Position},
    id::{Peer, ProcessId},
    seam::{CommandId, Context, Destination, Input, Policy, Protocol, Sink},
    suspicion::{Patience, SecondOpinion, Verdict},
    time::{Duration, Time},
};

/// Settings of a super.
#[derive(Clone, Debug)]
pub struct SuperSettings {
    /// Patience with a silent member before the super asks other processes about it.
    pub detector: detector::Settings,
    /// Patience with a member after the super has asked the other supers.
    pub patience: Patience,
    /// The terms with which the super assumes the domain was founded; `None` if it accepts any.
    pub terms: Option<Terms>,
    /// Time for which a super waits, before it submits a change, for each super that precedes it in id order.
    pub rank_delay: Duration,
    /// Time that a storage process may be [away](super::away) before supers suspect it like any other
    /// process.
    pub away_max: Duration,
    /// Time for which replies are kept. For the writes of a departed gateway the time counts from the
    /// departure. For writes under made-up ids the time counts from the first use of the id, and may be a
    /// tenth longer.
    pub retention: Duration,
}

impl Default for SuperSettings {
    fn default() -> Self {
        SuperSettings {
            detector: detector::Settings::default(),
            patience: Patience::default(),
            terms: None,
            rank_delay: Duration::from_millis(500),
            away_max: Duration::from_secs(30),
            retention: Duration::from_secs(600),
        }
    }
}

/// Token of the messages `Suspect` and `Remove`.
const SUSPICION: u64 = INTERNAL | 1;
/// Time after which a message about a failed member is submitted again if it had no effect.
const AGAIN: Duration = Duration::from_secs(1);

/// A super process.
pub struct Super {
    settings: SuperSettings,
    membership: Membership,
    /// Operators' commands that have not ended.
    commands: Commands,
    detector: Detector,
    /// Members that seem to have failed, each with the opinions of other processes.
    second_opinions: BTreeMap<ProcessId, SecondOpinion>,
    /// The number of the last second opinion.
    second_opinion: u64,
    /// The last step against each failed member, and the time from which it may be repeated. A removal is
    /// stored as the position of its suspicion, the announcement of a suspicion as `None`.
    announced: BTreeMap<ProcessId, (Option<Position>, Time)>,
    /// Keepers that no process needs, each with the time at which this super dismisses it.
    dismissals_due: BTreeMap<ProcessId, Time>,
    /// Members that are away, each with the time from which it may be suspected.
    away: BTreeMap<ProcessId, Time>,
    /// Members that this super found when it joined and has not heard yet, each with the time until which
    /// this super does not remove it. So if all processes ended together, supers do not remove the
    /// processes that come back last. Bounded by the storage processes of the configuration.
    late: BTreeMap<ProcessId, Time>,
    /// The placement version that needs a change, and the time at which this super submits the change.
    due: Option<(u64, Time)>,
    /// Sessions of departed gateways, each with the time at which it ends.
    sessions: BTreeMap<u128, Time>,
    /// Instants, each with the last position delivered here by then. Made-up ids first used up to the
    /// position expire when the instant is `retention` ago.
    passed: VecDeque<(Time, Position)>,
    tick_at: Time,
    refused: u64,
}

impl Super {
    /// Creates a super, which joins the domain.
    pub fn new(me: Peer, name: String, settings: SuperSettings) -> Self {
        let every = settings.detector.interval;
        Super {
            membership: Membership::new(
                me,
                Role::Super,
                name,
                MemberSettings::default(),
                every,
                settings.terms,
                None,
            ),
            commands: Commands::default(),
            detector: Detector::new(settings.detector),
            settings,
            second_opinions: BTreeMap::new(),
            second_opinion: 0,
            announced: BTreeMap::new(),
            dismissals_due: BTreeMap::new(),
            away: BTreeMap::new(),
            late: BTreeMap::new(),
            due: None,
            sessions: BTreeMap::new(),
            passed: VecDeque::new(),
            tick_at: Time::ZERO,
            refused: 0,
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

    /// Returns the number of messages from peers that were refused.
    pub fn refused(&self) -> u64 {
        self.refused + self.membership.refused()
    }

    /// Returns the members that this super suspects now.
    pub fn suspected(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.second_opinions.keys().copied()
    }

    fn member_input(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut dyn Sink<Self>) {
        self.membership.handle(cx, input, out);
        while let Some(item) = self.membership.next(out) {
            match item {
                Delivered::Control { before, .. } => self.on_config(cx, before, out),
                Delivered::Wedged => {
                    for id in self.commands.take_all() {
                        out.emit(SuperEvent::Ended { id, result: Err(SuperRefusal::Wedged) });
                    }
                    out.emit(SuperEvent::Wedged);
                }
                Delivered::Data { .. } | Delivered::Injected { .. } => self.refused += 1,
                Delivered::Outcome { token, outcome } => self.ended(token, Some(outcome), out),
                Delivered::NotSent { token } => self.ended(token, None, out),
                Delivered::Left { id, result } => {
                    out.emit(SuperEvent::Ended { id, result: result.map_err(SuperRefusal::Leave) });
                }
                Delivered::NotInjected { .. }
                | Delivered::Latest { .. }
                | Delivered::Rerouted
                | Delivered::Adrift(_) => {}
            }
        }
    }

    fn on_config(&mut self, cx: &mut Context<'_>, before: Option<Config>, out: &mut dyn Sink<Self>) {
        let config = self.membership.config().expect("a delivered control message leaves a configuration");
        let me = self.membership.me;
        for &process in config.members.keys().filter(|process| **process != me) {
            self.detector.watch(process, cx.now);
        }
        let gone: Vec<ProcessId> =
            self.detector.watched().filter(|process| !config.members.contains_key(process)).collect();
        for process in gone {
            self.detector.unwatch(process);
            self.second_opinions.remove(&process);
            self.announced.remove(&process);
        }
        let is_away =
            |process: &ProcessId| matches!(config.storage.get(process), Some(StorageState::Away { .. }));
        for process in self.away.extract_if(.., |process, _| !is_away(process)).map(|(process, _)| process) {
            // The process was away, so its silence until now proves nothing.
            self.detector.unwatch(process);
            self.detector.watch(process, cx.now);
        }
        for &process in config.storage.keys().filter(|process| is_away(process)) {
            self.away.entry(process).or_insert(cx.now + self.settings.away_max);
        }
        if before.is_none() {
            let until = cx.now + self.settings.away_max;
            self.late = config.storage.keys().map(|process| (*process, until)).collect();
        }
        // A session without a gateway ends after a while. If this super did not see the gateway depart, the
        // full time starts here.
        let live: BTreeSet<u128> = config.role(Role::Gateway).map(|process| process.incarnation.0).collect();
        self.sessions.retain(|session, _| config.sessions.contains_key(session));
        for &session in config.sessions.keys().filter(|session| !live.contains(session)) {
            self.sessions.entry(session).or_insert(cx.now + self.settings.retention);
        }
        if before.is_none_or(|before| before.placement != config.placement) {
            self.due = None;
        }
        out.emit(SuperEvent::Config(std::sync::Arc::new(config.clone())));
        // A removal follows at once if its suspicion was ordered just now.
        self.judge(cx, out);
    }

    fn submit(&mut self, cx: &mut Context<'_>, control: &Control, out: &mut dyn Sink<Self>) {
        self.membership.submit(cx, INTERNAL, Class::Control, control.encode(), out);
    }

    fn ended(&mut self, token: u64, outcome: Option<Outcome>, out: &mut dyn Sink<Self>) {
        if let Some((id, result)) = self.commands.end(token, outcome) {
            out.emit(SuperEvent::Ended { id, result });
        }
    }

    /// Submits an operator's command, or ends it at once if it cannot have an effect.
    fn operate(
        &mut self,
        cx: &mut Context<'_>,
        id: CommandId,
        control: Result<Control, SuperRefusal>,
        out: &mut dyn Sink<Self>,
    ) {
        let submission = match control {
            _ if self.membership.is_wedged() => Err(SuperRefusal::Wedged),
            _ if self.membership.config().is_none() => Err(SuperRefusal::NotJoined),
            Ok(control) => self.commands.begin(id).map(|token| (token, control)),
            Err(refusal) => Err(refusal),
        };
        match submission {
            Ok((token, control)) => {
                self.membership.submit(cx, token, Class::Control, control.encode(), out);
            }
            Err(refusal) => out.emit(SuperEvent::Ended { id, result: Err(refusal) }),
        }
    }

    fn heard(&mut self, process: ProcessId, now: Time) {
        self.detector.heard(process, now);
        self.late.remove(&process);
    }

    fn tick(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let interval = self.settings.detector.interval;
        self.tick_at = cx.now + interval;
        self.detector.tick(cx.now);
        let Some(config) = self.membership.config().cloned() else { return };
        self.hear(cx.now, out);
        self.judge(cx, out);
        self.dismiss(cx, &config, out);
        self.place(cx, &config, out);
        let over: Vec<u128> =
            self.sessions.iter().filter(|(_, end)| **end <= cx.now).map(|(&session, _)| session).collect();
        for session in over {
            // If the message has no effect, it is submitted again after this time.
            self.sessions.insert(session, cx.now + self.settings.retention);
            self.submit(cx, &Control::Forget { session, below: u64::MAX, kept: Vec::new() }, out);
        }
        self.expire(cx, out);
    }

    /// Expires made-up ids that were first used long ago.
    fn expire(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let every = self.settings.retention / 10;
        if self.passed.back().is_none_or(|(at, _)| cx.now.since(*at) >= every) {
            self.passed.push_back((cx.now, self.membership.member.delivered()));
        }
        let retention = self.settings.retention;
        if let Some((_, through)) = self.passed.pop_front_if(|(at, _)| cx.now.since(*at) >= retention) {
            self.submit(cx, &Control::Expire { through }, out);
        }
    }

    /// Asks other processes about members that seem to have failed.
    fn hear(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let Some(config) = self.membership.config() else { return };
        for process in self.detector.watched() {
            let excused = self.away.get(&process).is_some_and(|until| *until > now);
            if excused || !self.detector.suspects(process, now) {
                self.second_opinions.remove(&process);
                self.announced.remove(&process);
                continue;
            }
            let begun = self.second_opinions.entry(process).or_insert_with(|| {
                self.second_opinion += 1;
                out.emit(SuperEvent::Suspected(process));
                SecondOpinion::new(self.second_opinion, now)
            });
            let (about, second_opinion) = (process, begun.number);
            let routers: Vec<ProcessId> = self.membership.member.routers().collect();
            let ask = Message::Order(ecast::Message::AskOpinion { about, second_opinion });
            out.send(Destination::Many(routers), ask, None);
            let supers = self.other_supers(config, process);
            if !supers.is_empty() {
                out.send(
                    Destination::Many(supers),
                    Message::Direct(Direct::AskOpinion { about, second_opinion }),
                    None,
                );
            }
        }
    }

    /// Whether the cluster already waits for a suspect, and no other process has become complete by copying
    /// from it.
    fn is_waited_for(&self, config: &Config, process: ProcessId) -> bool {
        let unreachable = config.storage.get(&process) == Some(&StorageState::Unreachable);
        let last = unreachable && !config.can_lose(process) || config.is_needed(process);
        last && config.suspected.contains_key(&process)
    }

    fn other_supers(&self, config: &Config, suspect: ProcessId) -> Vec<ProcessId> {
        let other = |process: &ProcessId| *process != suspect && *process != self.membership.me;
        config.role(Role::Super).filter(other).collect()
    }

    fn on_opinion(
        &mut self,
        cx: &mut Context<'_>,
        from: ProcessId,
        about: ProcessId,
        (number, opinion): (u64, Opinion),
        out: &mut dyn Sink<Self>,
    ) {
        if let Some(second_opinion) = self.second_opinions.get_mut(&about)
            && second_opinion.number == number
        {
            second_opinion.record(from, opinion, cx.now);
            self.judge(cx, out);
        }
    }

    /// Suspects members that the asked processes do not hear either. Of these members, removes the members
    /// that were suspected before and have not refuted the suspicion.
    fn judge(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        // If no router takes the message now, it would be ordered later, when its evidence is old.
        let Some(config) = self.membership.config().filter(|_| self.membership.member.can_send()) else {
            return;
        };
        let (mut processes, mut removals) = (Vec::new(), Vec::new());
        for (&process, second_opinion) in &self.second_opinions {
            let suspected = config.suspected.get(&process).copied();
            let is_late = self.late.get(&process).is_some_and(|until| *until > cx.now);
            if suspected.is_some() && is_late {
                continue;
            }
            let announced = self.announced.get(&process);
            // The removal follows its suspicion at once. Any other step waits, so that a member that refutes
            // is not suspected again as fast as messages are ordered.
            let follows = |step: Option<Position>| step.is_none() && suspected.is_some();
            if announced.is_some_and(|&(step, again)| !follows(step) && again > cx.now)
                || !self.agrees(process, cx.now)
                || self.is_waited_for(config, process)
            {
                continue;
            }
            let routers: Vec<ProcessId> = self.membership.member.routers().collect();
            let supers = self.other_supers(config, process);
            let fresh = self.settings.detector.interval * 4;
            let verdict = second_opinion.verdict((&routers, &supers), cx.now, fresh, &self.settings.patience);
            let Verdict::Failed(witnesses) = verdict else { continue };
            if suspected.is_some() && config.can_lose(process) && !self.can_be_missed(config, process, cx.now)
            {
                continue;
            }
            self.announced.insert(process, (suspected, cx.now + AGAIN));
            match suspected {
                None => processes.push(process),
                Some(suspected) => removals.push(Removal { process, suspected, witnesses }),
            }
        }
        if !processes.is_empty() {
            self.announce(cx, &Control::Suspect { processes }, out);
        }
        if !removals.is_empty() {
            for Removal { process, witnesses, .. } in removals.iter().cloned() {
                out.emit(SuperEvent::Removing { process, witnesses });
            }
            self.announce(cx, &Control::Remove { removals }, out);
        }
    }

    /// Whether every range of `process` has another complete replica that is heard right now. A replica that
    /// is merely not suspected yet may have died a moment ago.
    fn can_be_missed(&self, config: &Config, process: ProcessId, now: Time) -> bool {
        let mut held = config.segments().iter().filter(|segment| segment.replicas.contains(&process));
        held.all(|segment| self.hears_complete_replica(config, segment, process, now))
    }

    /// Whether this super hears, right now, a complete and unsuspected replica of this segment other than
    /// `process`. A super that has just joined, or was asleep, has heard nobody yet.
    fn hears_complete_replica(
        &self,
        config: &Config,
        segment: &Segment,
        process: ProcessId,
        now: Time,
    ) -> bool {
        let heard = |replica: &ProcessId| {
            self.detector.lives(*replica, now)
                || self.second_opinions.get(replica).is_some_and(|second_opinion| {
                    second_opinion.is_heard(now, self.settings.patience.witness)
                })
        };
        let mut others = config.complete(segment).filter(|replica| *replica != process);
        others.any(|replica| !config.suspected.contains_key(&replica) && heard(&replica))
    }

    /// Dismisses keepers whose ranges all have a complete replica that is heard right now.
    fn dismiss(&mut self, cx: &mut Context<'_>, config: &Config, out: &mut dyn Sink<Self>) {
        let over = |(process, keeps)| {
            if config.is_needed(process) {
                return None;
            }
            let mut kept = config.kept_by(keeps);
            kept.all(|segment| self.hears_complete_replica(config, segment, process, cx.now))
                .then_some(process)
        };
        let over: BTreeSet<ProcessId> = config.keepers().filter_map(over).collect();
        self.dismissals_due.retain(|process, _| over.contains(process));
        let wait = self.settings.rank_delay * self.rank(config);
        for process in over {
            let due = self.dismissals_due.entry(process).or_insert(cx.now + wait);
            if *due <= cx.now {
                *due = cx.now + AGAIN;
                self.submit(cx, &Control::Dismiss { process }, out);
            }
        }
    }

    /// Returns the number of supers that precede this super in id order.
    fn rank(&self, config: &Config) -> u32 {
        let rank = config.role(Role::Super).position(|process| process == self.membership.me);
        u32::try_from(rank.unwrap_or(0)).unwrap_or(8)
    }

    /// Returns a process that hears this member: this super itself, or a process that it asked.
    pub fn hearer(&self, member: ProcessId) -> Option<ProcessId> {
        match self.second_opinions.get(&member) {
            Some(second_opinion) => second_opinion.hearer(self.settings.patience.witness),
            None => Some(self.membership.me),
        }
    }

    /// Whether this super by itself considers a suspect failed: its link broke, or it has been silent for too
    /// long.
    fn agrees(&self, process: ProcessId, now: Time) -> bool {
        let broken = self.detector.opinion(process, now) == Some(Opinion::Unlinked);
        let silent = self.detector.silence(process, now) >= Some(self.settings.patience.silence);
        self.detector.suspects(process, now) && (broken || silent)
    }

    fn announce(&mut self, cx: &mut Context<'_>, control: &Control, out: &mut dyn Sink<Self>) {
        self.membership.submit(cx, SUSPICION, Class::Control, control.encode(), out);
    }

    /// Takes back suspicions and removals that could not be sent at once, because their evidence would be old
    /// when they are sent.
    fn withdraw(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let (_, waiting) = self.membership.member.outstanding();
        if waiting > 0 && !self.membership.member.can_send() {
            self.announced.clear();
            let withdraw = MemberCommand::Withdraw { token: SUSPICION };
            self.member_input(cx, Input::Command(withdraw), out);
        }
    }

    /// Founds the ring, or lets a standby take the place of a dead process.
    fn place(&mut self, cx: &mut Context<'_>, config: &Config, out: &mut dyn Sink<Self>) {
        let Some((control, event)) = self.placement(config, cx.now) else {
            self.due = None;
            return;
        };
        let wait = self.settings.rank_delay * self.rank(config);
        let (_, at) = *self.due.get_or_insert((config.placement, cx.now + wait));
        if at <= cx.now {
            self.due = Some((config.placement, cx.now + Duration::from_secs(2)));
            self.submit(cx, &control, out);
            if let Some(event) = event {
                out.emit(event);
            }
        }
    }

    /// Returns the message by which a standby takes the place of `old`; `None` without a standby, or if a
    /// range has no source.
    fn replacement_of(&self, old: ProcessId, now: Time) -> Option<Control> {
        let config = self.membership.config()?;
        let (&key, _) = config.ring.iter().find(|(_, process)| **process == old)?;
        let new = self.standbys(config, now).next()?;
        replacement(config, key, old, new)
    }

    /// Returns the standbys that seem healthy.
    fn standbys<'a>(&'a self, config: &'a Config, now: Time) -> impl Iterator<Item = ProcessId> + 'a {
        let standbys = config.storage.iter().filter(|(_, state)| **state == StorageState::Standby);
        let well = move |process: &ProcessId| {
            !self.detector.suspects(*process, now) && !config.suspected.contains_key(process)
        };
        standbys.map(|(&process, _)| process).filter(well)
    }

    fn placement(&self, config: &Config, now: Time) -> Option<(Control, Option<SuperEvent>)> {
        let standbys: Vec<ProcessId> = self.standbys(config, now).collect();
        let expected = config.placement;
        if config.ring.is_empty() {
            let wanted = config.wanted_storage as usize;
            if standbys.len() < wanted || wanted == 0 {
                return None;
            }
            // A ring of one process has that process at 0: the step then saturates.
            let step = (u64::MAX / wanted as u64).saturating_add(1);
            let ring = standbys.into_iter().take(wanted).enumerate();
            let ring = ring.map(|(index, process)| (index as u64 * step, process)).collect();
            return Some((Control::Place { expected, ring }, None));
        }
        let new = *standbys.first()?;
        let dead = config.ring.iter().filter(|(_, process)| config.is_dead(**process));
        dead.filter_map(|(&key, &old)| replacement(config, key, old, new)).next().map(|control| {
            let Control::Replace { old, new, .. } = control else {
                unreachable!("a replacement is a control message that replaces")
            };
            (control, Some(SuperEvent::Replacing { old, new }))
        })
    }
}

/// Returns the message by which `new` takes the ring id `key` of `old`; `None` if a range has no source.
///
/// The message names few sources, so that few processes are busy with the move (002 §6.5). A source may die:
/// all replicas pin the version, so the standby then copies from another replica.
fn replacement(config: &Config, key: u64, old: ProcessId, new: ProcessId) -> Option<Control> {
    let mut ring = config.ring.clone();
    ring.insert(key, new);
    let mut left: Vec<Segment> = Segment::of_ring(&ring, config.replicas);
    left.retain(|segment| segment.replicas.contains(&new));
    // A range whose last replica was declared lost continues from a keeper's rows, or begins empty.
    let (lost, mut left): (Vec<Segment>, Vec<Segment>) =
        left.into_iter().partition(|segment| config.is_lost(segment));
    if lost.iter().any(|segment| config.is_received(segment, new)) {
        return None;
    }
    let keeper = |segment: &Segment| {
        // The segment is looked up in the ring of `config`, in which the keeper's place still has its old
        // holder.
        let before = config.segments().iter().find(|before| before.range == segment.range);
        Some((segment.range, config.keeper(before?)?.0))
    };
    let mut copy: Vec<(Range, ProcessId)> = lost.iter().filter_map(keeper).collect();
    while !left.is_empty() {
        let holds = |process: &ProcessId| left.iter().filter(|s| s.replicas.contains(process)).count();
        let active = config.storage.iter().filter(|(_, state)| **state == StorageState::Active);
        let source =
            active.map(|(&process, _)| process).max_by_key(holds).filter(|process| holds(process) > 0)?;
        left.retain(|segment| {
            let takes = segment.replicas.contains(&source);
            if takes {
                copy.push((segment.range, source));
            }
            !takes
        });
    }
    copy.sort_unstable();
    Some(Control::Replace { expected: config.placement, old, new, copy })
}

impl Protocol for Super {
    type Message = Message;
    type Record = Record;
    type Command = SuperCommand;
    type Event = SuperEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Receive {
                from,
                message: Message::Order(ecast::Message::Opinion { about, second_opinion, opinion }),
            } => self.on_opinion(cx, from, about, (second_opinion, opinion), out),
            Input::Receive {
                from,
                message: Message::Direct(Direct::Opinion { about, second_opinion, opinion }),
            } => {
                self.on_opinion(cx, from, about, (second_opinion, opinion), out);
            }
            Input::Receive {
                from,
                message: Message::Direct(Direct::AskOpinion { about, second_opinion }),
            } => {
                if let Some(opinion) = self.detector.opinion(about, cx.now) {
                    let answer = Direct::Opinion { about, second_opinion, opinion };
                    out.send(Destination::One(from), Message::Direct(answer), None);
                }
            }
            Input::Receive { from, message: Message::Order(message) } => {
                self.member_input(cx, Input::Receive { from, message }, out);
            }
            Input::Receive { from, message: Message::Direct(Direct::Alive { .. }) } => {
                self.heard(from, cx.now);
            }
            Input::Receive { .. } | Input::Cast { .. } => self.refused += 1,
            Input::Command(SuperCommand::DeclareLost { id, process }) => {
                self.operate(cx, id, Ok(Control::DeclareLost { process }), out);
            }
            Input::Command(SuperCommand::Replace { id, process }) => {
                let control = self.replacement_of(process, cx.now).ok_or(SuperRefusal::NoReplacement);
                self.operate(cx, id, control, out);
            }
            Input::Command(SuperCommand::Seeds(seeds)) => {
                self.member_input(cx, Input::Command(MemberCommand::Seeds(seeds)), out);
            }
            Input::Command(SuperCommand::Leave { id }) => {
                if let Some(result) = self.membership.leave(cx, id, out) {
                    out.emit(SuperEvent::Ended { id, result: result.map_err(SuperRefusal::Leave) });
                }
            }
            Input::Deadline => {
                self.member_input(cx, Input::Deadline, out);
                if self.tick_at <= cx.now {
                    self.tick(cx, out);
                }
                self.membership.tick(cx.now, self.membership.member.delivered(), out);
            }
            Input::Persisted(ticket) => self.member_input(cx, Input::Persisted(ticket), out),
            Input::Linked { peer, session } => {
                self.detector.linked(peer, cx.now);
                self.late.remove(&peer);
                self.member_input(cx, Input::Linked { peer, session }, out);
            }
            Input::Progress { peer } => self.heard(peer, cx.now),
            Input::Unlinked { peer } => {
                self.detector.unlinked(peer, cx.now);
                for second_opinion in self.second_opinions.values_mut() {
                    second_opinion.unlinked(peer);
                }
                self.member_input(cx, Input::Unlinked { peer }, out);
            }
            Input::Drained => {
                self.member_input(cx, Input::Drained, out);
                self.withdraw(cx, out);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let tick = self.membership.config().is_some().then_some(self.tick_at);
        [self.membership.deadline(), tick].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.membership.member.policy()
    }
}

#[cfg(test)]
mod tests;
