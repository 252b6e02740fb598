//! A super process: watches everyone, announces failures, and changes the placement (002 §6.1, §6.4).
//!
//! Supers agree through the order alone: each may submit what it believes to be due, and a message made for another
//! placement version has no effect. Their rank (in id order) only spaces their attempts.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Config, Control, Direct, Message, Range, Role, StorageState,
    membership::{Delivered, INTERNAL, Membership},
    placement::Segment,
};
use crate::{
    detector::{self, Detector},
    ecast::{Class, Member, MemberCommand, MemberSettings},
    id::{Peer, ProcessId},
    paxos,
    seam::{Context, Input, Protocol, Sink},
    time::{Duration, Time},
};

/// How a super behaves.
#[derive(Clone, Debug)]
pub struct SuperSettings {
    /// How patient it is.
    pub detector: detector::Settings,
    /// The first ring is made when so many storage processes have joined.
    pub storage_wanted: usize,
    /// How long a super waits for those before it in rank.
    pub rank_delay: Duration,
    /// How long the replies to a departed gateway's writes are kept.
    pub retention: Duration,
}

impl Default for SuperSettings {
    fn default() -> Self {
        SuperSettings {
            detector: detector::Settings::default(),
            storage_wanted: 4,
            rank_delay: Duration::from_millis(500),
            retention: Duration::from_secs(600),
        }
    }
}

/// What a super may be asked.
#[derive(Clone, Debug)]
pub enum SuperCommand {
    /// An operator says that an unreachable storage process will not return.
    DeclareLost(ProcessId),
    /// An operator wants a standby in the place of this storage process, which becomes a standby itself.
    Replace(ProcessId),
    /// Processes that may be routers.
    Seeds(Vec<Peer>),
    /// Leave the cluster.
    Leave,
}

/// What a super tells.
#[derive(Clone, Debug)]
pub enum SuperEvent {
    /// A new configuration.
    Config(std::sync::Arc<Config>),
    /// It suspects this process.
    Suspected(ProcessId),
    /// It has a standby take the place of a dead process.
    Replacing {
        /// Who goes.
        old: ProcessId,
        /// Who comes.
        new: ProcessId,
    },
    /// This process is out and must stop; it may come back as a new one.
    Wedged,
}

/// A super process.
pub struct Super {
    settings: SuperSettings,
    membership: Membership,
    detector: Detector,
    /// Suspected members, and when to announce them (again).
    announce: BTreeMap<ProcessId, Time>,
    /// The placement version that waits for a change, and when we make it.
    due: Option<(u64, Time)>,
    /// Sessions of departed gateways, and when they end.
    sessions: BTreeMap<u128, Time>,
    tick_at: Time,
    refused: u64,
}

impl Super {
    /// A super that joins.
    pub fn new(me: Peer, name: String, settings: SuperSettings) -> Self {
        let every = settings.detector.interval;
        Super {
            membership: Membership::new(me, Role::Super, name, MemberSettings::default(), every),
            detector: Detector::new(settings.detector),
            settings,
            announce: BTreeMap::new(),
            due: None,
            sessions: BTreeMap::new(),
            tick_at: Time::ZERO,
            refused: 0,
        }
    }

    /// The configuration at the last delivered position, once admitted.
    pub fn config(&self) -> Option<&Config> {
        self.membership.config()
    }

    /// The order's end in this process.
    pub fn member(&self) -> &Member {
        &self.membership.member
    }

    /// Messages from peers that were refused.
    pub fn refused(&self) -> u64 {
        self.refused + self.membership.refused()
    }

    /// Members that it suspects now.
    pub fn suspected(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.announce.keys().copied()
    }

    fn member_input(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut impl Sink<Self>) {
        self.membership.handle(cx, input, out);
        while let Some(item) = self.membership.next(out) {
            match item {
                Delivered::Control { before, .. } => self.on_config(cx, before, out),
                Delivered::Wedged => out.emit(SuperEvent::Wedged),
                Delivered::Data { .. } | Delivered::Injected { .. } => self.refused += 1,
                Delivered::Outcome { .. } | Delivered::NotSent { .. } | Delivered::NotInjected { .. } => {}
            }
        }
    }

    fn on_config(&mut self, cx: &mut Context<'_>, before: Option<Config>, out: &mut impl Sink<Self>) {
        let config = self.membership.config().expect("a delivered control message leaves one");
        let me = self.membership.me;
        for &process in config.members.keys().filter(|process| **process != me) {
            self.detector.watch(process, cx.now);
        }
        let gone: Vec<ProcessId> =
            self.detector.watched().filter(|process| !config.members.contains_key(process)).collect();
        for process in gone {
            self.detector.unwatch(process);
            self.announce.remove(&process);
        }
        // Sessions without a gateway end after a while. One that we did not see depart has the full time from here.
        let live: BTreeSet<u128> = config.role(Role::Client).map(|process| process.incarnation.0).collect();
        self.sessions.retain(|session, _| config.sessions.contains_key(session));
        for &session in config.sessions.keys().filter(|session| !live.contains(session)) {
            self.sessions.entry(session).or_insert(cx.now + self.settings.retention);
        }
        if before.is_none_or(|before| before.placement != config.placement) {
            self.due = None;
        }
        out.emit(SuperEvent::Config(std::sync::Arc::new(config.clone())));
    }

    fn submit(&mut self, cx: &mut Context<'_>, control: &Control, out: &mut impl Sink<Self>) {
        self.membership.submit(cx, INTERNAL, Class::Control, control.encode(), out);
    }

    fn tick(&mut self, cx: &mut Context<'_>, out: &mut impl Sink<Self>) {
        let interval = self.settings.detector.interval;
        self.tick_at = cx.now + interval;
        self.detector.tick(cx.now);
        let Some(config) = self.membership.config().cloned() else { return };
        self.watch(cx, &config, out);
        self.place(cx, &config, out);
        let over: Vec<u128> =
            self.sessions.iter().filter(|(_, end)| **end <= cx.now).map(|(&session, _)| session).collect();
        for session in over {
            // Again after a while, should it not come about.
            self.sessions.insert(session, cx.now + self.settings.retention);
            self.submit(cx, &Control::Forget { session, below: u64::MAX }, out);
        }
    }

    /// Announces those who seem to have failed, and those unreachable ones who are heard again, or need not be waited for
    /// any more: somebody who copied from them has become complete.
    fn watch(&mut self, cx: &mut Context<'_>, config: &Config, out: &mut impl Sink<Self>) {
        let watched: Vec<ProcessId> = self.detector.watched().collect();
        let mut processes = Vec::new();
        for process in watched {
            let unreachable = config.storage.get(&process) == Some(&StorageState::Unreachable);
            let suspected = self.detector.suspects(process, cx.now);
            let news =
                if suspected && unreachable { config.can_lose(process) } else { suspected || unreachable };
            let announced = self.announce.get(&process).copied();
            if !news {
                self.announce.remove(&process);
            } else if announced.is_none_or(|again| again <= cx.now) {
                self.announce.insert(process, cx.now + Duration::from_secs(1));
                if suspected {
                    out.emit(SuperEvent::Suspected(process));
                    processes.push(process);
                } else {
                    self.submit(cx, &Control::Reinstate { process }, out);
                }
            }
        }
        if !processes.is_empty() {
            self.submit(cx, &Control::Suspect { processes }, out);
        }
    }

    /// Makes the first ring, or has a standby take the place of a dead process.
    fn place(&mut self, cx: &mut Context<'_>, config: &Config, out: &mut impl Sink<Self>) {
        let Some((control, event)) = self.placement(config, cx.now) else {
            self.due = None;
            return;
        };
        let rank = config.role(Role::Super).position(|process| process == self.membership.me).unwrap_or(0);
        let (_, at) = *self.due.get_or_insert((
            config.placement,
            cx.now + self.settings.rank_delay * u32::try_from(rank).unwrap_or(8),
        ));
        if at <= cx.now {
            self.due = Some((config.placement, cx.now + Duration::from_secs(2)));
            self.submit(cx, &control, out);
            if let Some(event) = event {
                out.emit(event);
            }
        }
    }

    /// The message that has a standby take the place of `old`, if one is there and every range has a source.
    fn replacement_of(&self, old: ProcessId, now: Time) -> Option<Control> {
        let config = self.membership.config()?;
        let (&key, _) = config.ring.iter().find(|(_, process)| **process == old)?;
        let new = self.standbys(config, now).next()?;
        replacement(config, key, old, new)
    }

    /// Standbys that seem well.
    fn standbys<'a>(&'a self, config: &'a Config, now: Time) -> impl Iterator<Item = ProcessId> + 'a {
        let standbys = config.storage.iter().filter(|(_, state)| **state == StorageState::Standby);
        standbys.map(|(&process, _)| process).filter(move |process| !self.detector.suspects(*process, now))
    }

    fn placement(&self, config: &Config, now: Time) -> Option<(Control, Option<SuperEvent>)> {
        let standbys: Vec<ProcessId> = self.standbys(config, now).collect();
        let expected = config.placement;
        if config.ring.is_empty() {
            let wanted = self.settings.storage_wanted;
            if standbys.len() < wanted || wanted == 0 {
                return None;
            }
            // One alone is at 0, however far it would be to the next.
            let step = (u64::MAX / wanted as u64).saturating_add(1);
            let ring = standbys.into_iter().take(wanted).enumerate();
            let ring = ring.map(|(index, process)| (index as u64 * step, process)).collect();
            return Some((Control::Place { expected, ring }, None));
        }
        let new = *standbys.first()?;
        let dead = config.ring.iter().filter(|(_, process)| config.is_dead(**process));
        dead.filter_map(|(&key, &old)| replacement(config, key, old, new)).next().map(|control| {
            let Control::Replace { old, new, .. } = control else { unreachable!("a replacement replaces") };
            (control, Some(SuperEvent::Replacing { old, new }))
        })
    }
}

/// The message that has `new` take the ring id `key` of `old`; `None` if some range has nobody to copy from.
///
/// The sources are chosen to be few, so that as few processes as possible are busy with the move (002 §6.5). That a
/// sender may die is taken care of by pins.
fn replacement(config: &Config, key: u64, old: ProcessId, new: ProcessId) -> Option<Control> {
    let mut ring = config.ring.clone();
    ring.insert(key, new);
    let mut left: Vec<Segment> = Segment::of_ring(&ring, config.replicas);
    left.retain(|segment| segment.replicas.contains(&new));
    // A range whose last replica was declared lost begins empty.
    left.retain(|segment| !config.is_lost(segment));
    let mut copy: Vec<(Range, ProcessId)> = Vec::new();
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
    type Record = paxos::Record;
    type Command = SuperCommand;
    type Event = SuperEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut impl Sink<Self>) {
        match input {
            Input::Receive { from, message: Message::Order(message) } => {
                self.member_input(cx, Input::Receive { from, message }, out);
            }
            Input::Receive { from, message: Message::Direct(Direct::Alive { .. }) } => {
                self.detector.heard(from, cx.now);
            }
            Input::Receive { .. } => self.refused += 1,
            Input::Command(SuperCommand::DeclareLost(process)) => {
                self.submit(cx, &Control::DeclareLost { process }, out);
            }
            Input::Command(SuperCommand::Replace(old)) => {
                if let Some(control) = self.replacement_of(old, cx.now) {
                    self.submit(cx, &control, out);
                }
            }
            Input::Command(SuperCommand::Seeds(seeds)) => {
                self.member_input(cx, Input::Command(MemberCommand::Seeds(seeds)), out);
            }
            Input::Command(SuperCommand::Leave) => self.submit(cx, &Control::Leave, out),
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
                self.member_input(cx, Input::Linked { peer, session }, out);
            }
            Input::Progress { peer } => self.detector.heard(peer, cx.now),
            Input::Unlinked { peer } => {
                self.detector.unlinked(peer, cx.now);
                self.member_input(cx, Input::Unlinked { peer }, out);
            }
            Input::Drained => self.member_input(cx, Input::Drained, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        let tick = self.membership.config().is_some().then_some(self.tick_at);
        [self.membership.deadline(), tick].into_iter().flatten().min()
    }
}
