//! Tests of ends and routers in a small world. A link stalls when a direction is cut, breaks when it is given
//! up, and is made again when both directions work.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::*;
use crate::{
    id::Incarnation,
    seam::Anyone,
    wire::{WireError, take_u64},
};

/// A process that sends the next number on each of its links every 20 ms, and checks the numbers that it
/// receives.
struct Chat {
    router: bool,
    routers: Vec<ProcessId>,
    /// Peers to which this process wants links.
    wants: Vec<ProcessId>,
    links: BTreeMap<ProcessId, Talk>,
    speak_at: Time,
    /// Time at which each peer was last heard, and the longest silence of each since [`World::silence`] last
    /// asked.
    heard: BTreeMap<ProcessId, Time>,
    longest: BTreeMap<ProcessId, Duration>,
    sessions: BTreeSet<(ProcessId, Session)>,
    club: Option<u8>,
    /// Whether routers relay only this process's links to routers.
    is_private: bool,
    /// Time at which a router was last heard, as the relay reported.
    router_heard: Option<Time>,
}

enum Do {
    /// Requests the wanted links.
    Reach,
    /// Admits only members of the club with this number from now on.
    Adopt(u8),
}

struct Talk {
    session: Session,
    said: u64,
    heard: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Word {
    session: Session,
    count: u64,
}

impl Wire for Word {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u8(1);
        out.put_u64_le(self.session.0);
        out.put_u64_le(self.count);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        if input.get_u8() != 1 {
            return Err(WireError::Tag(0));
        }
        Ok(Word { session: Session(take_u64(input)?), count: take_u64(input)? })
    }
}

impl Protocol for Chat {
    type Message = Word;
    type Record = ();
    type Command = Do;
    type Event = ();

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Linked { peer, session } => {
                assert!(self.sessions.insert((peer, session)), "{peer}: {session:?} came again");
                let talk = Talk { session, said: 0, heard: 0 };
                assert!(self.links.insert(peer, talk).is_none(), "{} has two links to {peer}", cx.me);
            }
            Input::Unlinked { peer } => {
                self.links.remove(&peer);
            }
            Input::Receive { from, message } => {
                let talk = self.links.get_mut(&from).expect("only links bring messages");
                assert_eq!(message.session, talk.session, "{} hears {from} of another session", cx.me);
                assert_eq!(message.count, talk.heard, "{} misses something of {from}", cx.me);
                talk.heard += 1;
                let last = self.heard.insert(from, cx.now).unwrap_or(cx.now);
                let longest = self.longest.entry(from).or_default();
                *longest = (*longest).max(cx.now.since(last));
            }
            Input::Deadline => {
                self.speak_at = cx.now + Duration::from_millis(20);
                for (&peer, talk) in &mut self.links {
                    let word = Word { session: talk.session, count: talk.said };
                    talk.said += 1;
                    out.send(Destination::One(peer), word, None);
                }
            }
            Input::Command(Do::Adopt(club)) => {
                self.club = Some(club);
                out.adopt(Arc::new(Club(club)));
            }
            Input::Command(Do::Reach) => {
                for &peer in &self.wants {
                    out.reach(peer, &peer.node.to_string());
                }
            }
            Input::Cast { .. } | Input::Persisted(_) | Input::Progress { .. } | Input::Drained => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.speak_at)
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self.club {
            Some(club) => Arc::new(Club(club)),
            None => Arc::new(Anyone),
        }
    }
}

impl Relayed for Chat {
    fn is_router(&self) -> bool {
        self.router
    }

    fn routers(&self) -> Vec<ProcessId> {
        self.routers.clone()
    }

    fn may_relay_to(&self, peer: ProcessId) -> bool {
        !self.is_private || self.routers.contains(&peer)
    }

    fn routers_heard(&mut self, last: Time) {
        // A new link may report an earlier time than a link that has ended, so the later time counts.
        self.router_heard = self.router_heard.max(Some(last));
    }
}

#[derive(Default)]
struct Link {
    /// Whether a connection stands, and the connection's number.
    up: bool,
    number: u64,
    wanted: [bool; 2],
    /// Messages in transit to either end, each with its time of arrival.
    under_way: [VecDeque<(Time, Bytes)>; 2],
}

enum Arrival {
    Linked(usize, Session),
    Unlinked(usize),
    Bytes(usize, Bytes),
}

struct World {
    now: Time,
    processes: Vec<Option<Relay<Chat>>>,
    inboxes: Vec<VecDeque<Arrival>>,
    links: BTreeMap<(usize, usize), Link>,
    cuts: BTreeSet<(usize, usize)>,
    paused: BTreeSet<usize>,
    numbers: u64,
    chance: u64,
    /// Relayed messages that passed a router, counted by the first word of their debug form.
    carried: BTreeMap<String, u64>,
}

#[derive(Default)]
struct Outputs {
    sends: Vec<(Destination, Envelope<Word>)>,
    wishes: Vec<(ProcessId, bool)>,
}

impl Sink<Relay<Chat>> for Outputs {
    fn send(&mut self, to: Destination, message: Envelope<Word>, _: Option<Ticket>) {
        self.sends.push((to, message));
    }
    fn persist(&mut self, (): ()) -> Ticket {
        unreachable!("it writes nothing")
    }
    fn emit(&mut self, (): ()) {}
    fn reach(&mut self, peer: ProcessId, _: &str) {
        self.wishes.push((peer, true));
    }
    fn forget(&mut self, peer: ProcessId) {
        self.wishes.push((peer, false));
    }
    fn adopt(&mut self, _: Arc<dyn Policy>) {}
}

fn id(index: usize) -> ProcessId {
    ProcessId { node: index as u64, incarnation: Incarnation(7) }
}

/// Builds a world that has the routers first, and the other processes after them. Each router wants links to
/// the routers before it and to all other processes. Every other process wants links to all routers, and to
/// the processes after it.
fn world(routers: usize, others: usize) -> World {
    let all: Vec<ProcessId> = (0..routers).map(id).collect();
    let chat = |index: usize| Chat {
        router: index < routers,
        routers: all.clone(),
        wants: (0..index.min(routers)).chain(index.max(routers - 1) + 1..routers + others).map(id).collect(),
        links: BTreeMap::new(),
        speak_at: Time::ZERO,
        heard: BTreeMap::new(),
        longest: BTreeMap::new(),
        sessions: BTreeSet::new(),
        club: None,
        is_private: false,
        router_heard: None,
    };
    let relay = |index| Some(Relay::new(chat(index), Settings::default()));
    let count = routers + others;
    let mut world = World {
        now: Time(1),
        processes: (0..count).map(relay).collect(),
        inboxes: (0..count).map(|_| VecDeque::new()).collect(),
        links: BTreeMap::new(),
        cuts: BTreeSet::new(),
        paused: BTreeSet::new(),
        numbers: 0,
        chance: 1,
        carried: BTreeMap::new(),
    };
    for index in 0..count {
        world.input(index, Input::Command(Do::Reach));
    }
    world.run(2_000);
    world.assert_direct();
    world
}

impl World {
    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now = self.now + Duration::from_millis(1);
            self.step();
        }
    }

    fn step(&mut self) {
        let now = self.now;
        let dials = (now.0 / 1_000_000).is_multiple_of(50);
        for (&(a, b), link) in &mut self.links {
            let alive = self.processes[a].is_some() && self.processes[b].is_some();
            let stalls = self.cuts.contains(&(a, b)) || self.cuts.contains(&(b, a));
            if !link.up && link.wanted.contains(&true) && alive && !stalls && dials {
                self.numbers += 1;
                link.up = true;
                link.number = self.numbers;
                self.inboxes[a].push_back(Arrival::Linked(b, Session(link.number)));
                self.inboxes[b].push_back(Arrival::Linked(a, Session(link.number)));
            }
            if link.up && !stalls {
                for (end, from) in [(a, b), (b, a)] {
                    let queue = &mut link.under_way[usize::from(end == b)];
                    while queue.front().is_some_and(|(at, _)| *at <= now) {
                        let (_, bytes) = queue.pop_front().unwrap();
                        self.inboxes[end].push_back(Arrival::Bytes(from, bytes));
                    }
                }
            }
        }
        for index in 0..self.processes.len() {
            if self.paused.contains(&index) || self.processes[index].is_none() {
                continue;
            }
            let inbox = std::mem::take(&mut self.inboxes[index]);
            let mut busy = !inbox.is_empty();
            for arrival in inbox {
                match arrival {
                    Arrival::Linked(peer, session) => {
                        self.input(index, Input::Linked { peer: id(peer), session });
                    }
                    Arrival::Unlinked(peer) => self.input(index, Input::Unlinked { peer: id(peer) }),
                    Arrival::Bytes(from, mut bytes) => {
                        let message = Envelope::decode(&mut bytes).unwrap();
                        self.input(index, Input::Receive { from: id(from), message });
                    }
                }
            }
            let process = self.processes[index].as_ref().unwrap();
            if process.deadline().is_some_and(|at| at <= now) {
                self.input(index, Input::Deadline);
                busy = true;
            }
            if busy {
                self.input(index, Input::Drained);
            }
        }
    }

    fn input(&mut self, index: usize, input: Input<Relay<Chat>>) {
        let mut out = Outputs::default();
        let mut random = || 0;
        let mut cx = Context { now: self.now, me: id(index), random: &mut random };
        self.processes[index].as_mut().unwrap().handle(&mut cx, input, &mut out);
        for (to, message) in out.sends {
            let many = match to {
                Destination::One(to) => vec![to],
                Destination::Many(many) => many,
            };
            for to in many {
                self.send(index, to.node as usize, &message);
            }
        }
        for (peer, reached) in out.wishes {
            self.wish(index, peer.node as usize, reached);
        }
    }

    fn send(&mut self, from: usize, to: usize, message: &Envelope<Word>) {
        if let Envelope::Relay(Message::Carried { end_message, .. }) = message {
            assert!(from < 3, "only routers carry");
            let kind = format!("{end_message:?}").split([' ', '{']).next().unwrap().to_owned();
            *self.carried.entry(kind).or_default() += 1;
        }
        let at = self.now + Duration::from_millis(1);
        let link = self.links.entry((from.min(to), from.max(to))).or_default();
        if link.up {
            let mut bytes = BytesMut::new();
            message.encode(&mut bytes);
            link.under_way[usize::from(to > from)].push_back((at, bytes.freeze()));
        }
    }

    fn wish(&mut self, index: usize, peer: usize, reached: bool) {
        let link = self.links.entry((index.min(peer), index.max(peer))).or_default();
        link.wanted[usize::from(index > peer)] = reached;
        if !reached {
            self.break_link(index, peer);
        }
    }

    fn break_link(&mut self, one: usize, other: usize) {
        let link = self.links.entry((one.min(other), one.max(other))).or_default();
        if std::mem::take(&mut link.up) {
            link.under_way = Default::default();
            self.inboxes[one].push_back(Arrival::Unlinked(other));
            self.inboxes[other].push_back(Arrival::Unlinked(one));
        }
    }

    fn kill(&mut self, index: usize) {
        self.processes[index] = None;
        for other in (0..self.processes.len()).filter(|other| *other != index) {
            self.break_link(index, other);
        }
        self.inboxes[index].clear();
    }

    /// Cuts the direction from `from` to `to`, or both directions.
    fn cut(&mut self, from: usize, to: usize, both: bool) {
        self.cuts.insert((from, to));
        if both {
            self.cuts.insert((to, from));
        }
    }

    fn chat(&self, index: usize) -> &Chat {
        self.processes[index].as_ref().unwrap().inner()
    }

    fn chance(&mut self, below: u64) -> u64 {
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) % below
    }

    /// Returns the longest silence between these two processes since the last call, in milliseconds.
    #[track_caller]
    fn silence(&mut self, one: usize, other: usize) -> u64 {
        let mut longest = Duration::ZERO;
        for (index, peer) in [(one, other), (other, one)] {
            let now = self.now;
            let chat = &mut self.processes[index].as_mut().unwrap().inner;
            let last = chat.heard[&id(peer)];
            longest = longest.max(chat.longest.remove(&id(peer)).unwrap_or_default()).max(now.since(last));
        }
        longest.as_millis() as u64
    }

    fn sessions(&self) -> u64 {
        self.processes.iter().flatten().map(|process| process.counters().sessions).sum()
    }

    /// Asserts that all processes talk directly, and that no trace of a cut is left.
    #[track_caller]
    fn assert_direct(&self) {
        for (index, process) in self.processes.iter().enumerate() {
            let Some(process) = process else { continue };
            let ends = &process.ends;
            assert_eq!(ends.counters().sessions, 0, "{index} still has a session");
            assert!(ends.abandoned.is_empty() && ends.carried.is_empty(), "{index} remembers a cut");
            for other in (0..self.processes.len()).filter(|other| *other != index) {
                if self.processes[other].is_some() {
                    let session = process.inner().links.get(&id(other)).map(|talk| talk.session);
                    let theirs = self.chat(other).links.get(&id(index)).map(|talk| talk.session);
                    assert!(
                        session.is_some() && session == theirs,
                        "{index} and {other}: {session:?}, {theirs:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_cut_pair_is_relayed_and_linked_directly_again_after_healing() {
    // Each pair is cut in one direction, and in both: a router and a member, in both orders, and two members.
    for (from, to) in [(0, 4), (4, 0), (3, 4), (4, 3)] {
        for both in [false, true] {
            let mut world = world(3, 3);
            world.silence(from, to);
            world.cut(from, to, both);
            world.run(10_000);
            let silence = world.silence(from, to);
            assert!((450..700).contains(&silence), "{from} {to} {both}: {silence} ms");
            assert_eq!(world.sessions(), 2, "both ends of one session");
            assert_eq!(world.carried["Begin"], 1, "{:?}", world.carried);
            // Processes outside the cut notice nothing.
            assert!(world.silence(1, 5) < 50 && world.silence(0, 5) < 50 && world.silence(1, 4) < 50);
            world.cuts.clear();
            world.run(3_000);
            assert!(world.silence(from, to) < 100, "nobody is silent on the way back");
            world.assert_direct();
        }
    }
}

#[test]
fn no_router_relays_a_link_that_an_end_keeps_private() {
    let mut world = world(3, 2);
    world.processes[4].as_mut().unwrap().inner.is_private = true;
    // The private process asks for no session, and refuses the session for which the other process asks.
    world.cut(3, 4, true);
    world.run(5_000);
    assert_eq!(world.sessions(), 0);
    assert!(world.carried["Refuse"] > 0 && !world.carried.contains_key("Data"), "{:?}", world.carried);
    // The private process's link to a router is relayed.
    world.cut(0, 4, true);
    world.run(5_000);
    assert_eq!(world.sessions(), 2, "both ends of one session");
    world.cuts.clear();
    world.run(3_000);
    world.assert_direct();
}

#[test]
fn the_end_of_a_pause_breaks_no_links() {
    let mut world = world(3, 2);
    let before: Vec<Session> = world.chat(4).links.values().map(|talk| talk.session).collect();
    world.paused.insert(4);
    world.run(7_000);
    world.paused.clear();
    world.run(3_000);
    // A request for a session that was sent long ago arrives only now.
    let open = EndMessage::Open { number: 1 << 20, router: false, pass: Bytes::new() };
    world.send(0, 4, &Envelope::Relay(Message::Carried { from: id(3), end_message: open }));
    world.run(2_000);
    assert_eq!(world.carried["Accept"], 1, "{:?}", world.carried);
    assert!(!world.carried.contains_key("Begin"), "nothing comes of it: {:?}", world.carried);
    let after: Vec<Session> = world.chat(4).links.values().map(|talk| talk.session).collect();
    assert_eq!(before, after);
    world.assert_direct();
}

/// Admits every process that shows this number.
#[derive(Debug)]
struct Club(u8);

impl Policy for Club {
    fn pass(&self) -> Bytes {
        vec![self.0].into()
    }

    fn admits(&self, theirs: &[u8]) -> bool {
        theirs == [self.0]
    }
}

#[test]
fn a_session_stands_only_between_peers_that_admit_each_other() {
    let mut world = world(3, 2);
    world.cut(3, 4, true);
    world.run(3_000);
    assert_eq!(world.sessions(), 2);
    world.input(3, Input::Command(Do::Adopt(1)));
    world.run(100);
    assert_eq!(world.sessions(), 0, "the policy forbids the one that stood, at both ends");
    world.carried.clear();
    world.run(3_000);
    assert!(world.carried["Accept"] > 0, "the other end would have it: {:?}", world.carried);
    world.input(4, Input::Command(Do::Adopt(2)));
    world.run(100);
    world.carried.remove("Accept");
    world.run(5_000);
    assert!(world.carried["Refuse"] > 0 && !world.carried.contains_key("Accept"), "{:?}", world.carried);
    assert!(world.sessions() == 0 && !world.carried.contains_key("Begin"), "{:?}", world.carried);
    world.input(4, Input::Command(Do::Adopt(1)));
    world.run(5_000);
    assert_eq!(world.sessions(), 2, "they are of one club again");
}

#[test]
fn routers_are_not_relayed() {
    let mut world = world(3, 1);
    world.cut(0, 1, true);
    world.run(5_000);
    assert!(world.carried.is_empty(), "{:?}", world.carried);
    assert!(world.silence(0, 1) > 4_900);
}

#[test]
fn a_process_that_hears_no_router_learns_for_how_long_despite_its_links() {
    let mut world = world(3, 2);
    let silence = |world: &World, process: usize| {
        world.now.since(world.chat(process).router_heard.expect("it is told"))
    };
    let soon = Duration::from_millis(350);
    world.run(2_000);
    assert!(silence(&world, 3) < soon && silence(&world, 4) < soon, "links are as they should be");
    for router in [0, 1] {
        world.cut(router, 3, true);
    }
    world.run(2_000);
    assert!(silence(&world, 3) < soon, "one router is enough");
    world.cut(2, 3, false);
    world.run(2_000);
    assert!(silence(&world, 3) > Duration::from_millis(1_500) && silence(&world, 4) < soon);
    world.cuts.clear();
    world.run(2_000);
    assert!(silence(&world, 3) < soon, "and it hears them again");
}

#[test]
fn a_session_outlives_its_relay() {
    let mut world = world(3, 2);
    world.cut(3, 4, false);
    world.run(2_000);
    let via = |world: &World| {
        world.processes[3].as_ref().unwrap().ends.relay_states[&id(4)].relayed.as_ref().unwrap().via.node
            as usize
    };
    let first = via(&world);
    world.silence(3, 4);
    world.kill(first);
    world.run(2_000);
    assert_ne!(via(&world), first);
    let silence = world.silence(3, 4);
    assert!(silence < 250, "{silence} ms");
    // A router that cannot hear one of the two ends either is skipped as a relay.
    let second = via(&world);
    world.cut(second, 4, false);
    world.run(3_000);
    let third = 3 - first - second;
    assert_eq!(via(&world), third);
}

#[test]
fn a_link_that_flaps_is_not_used() {
    let mut world = world(3, 2);
    world.cut(3, 4, true);
    world.run(2_000);
    for _ in 0..10 {
        world.cuts.clear();
        world.run(600);
        world.cut(3, 4, true);
        world.run(600);
    }
    assert_eq!(world.carried["Begin"], 1, "the first session still stands: {:?}", world.carried);
    assert!(world.silence(3, 4) < 700);
}

#[test]
fn a_process_that_never_had_a_direct_link_has_one_by_way_of_a_router() {
    let mut world = world(3, 2);
    world.kill(4);
    world.cut(4, 0, false);
    let chat = Chat {
        router: false,
        routers: (0..3).map(id).collect(),
        wants: (0..4).map(id).collect(),
        links: BTreeMap::new(),
        speak_at: Time::ZERO,
        heard: BTreeMap::new(),
        longest: BTreeMap::new(),
        sessions: BTreeSet::new(),
        club: None,
        is_private: false,
        router_heard: None,
    };
    world.processes[4] = Some(Relay::new(chat, Settings::default()));
    for index in 0..4 {
        world.processes[index].as_mut().unwrap().inner.sessions.retain(|(peer, _)| *peer != id(4));
    }
    world.input(4, Input::Command(Do::Reach));
    world.run(1_000);
    assert!(world.chat(4).links.contains_key(&id(0)) && world.chat(0).links.contains_key(&id(4)));
}

#[test]
fn sessions_are_lossless_whatever_happens_and_all_heals() {
    for seed in 1..=60 {
        let mut world = world(3, 3);
        world.chance = seed;
        for _ in 0..60 {
            let (one, other) = (world.chance(6) as usize, world.chance(6) as usize);
            match world.chance(6) {
                0 | 1 if one != other => world.cut(one, other, false),
                2 if one != other => world.cut(one, other, true),
                3 => world.cuts.clear(),
                4 if one != other => world.break_link(one, other),
                5 if !world.paused.remove(&one) => {
                    world.paused.insert(one);
                }
                _ => {}
            }
            let millis = 1 << world.chance(11);
            world.run(millis);
        }
        world.cuts.clear();
        world.paused.clear();
        world.run(6_000);
        world.assert_direct();
    }
}

#[test]
fn the_byte_form_is_pinned_and_no_prefix_or_change_of_it_panics() {
    let pass = Bytes::from_static(b"abc");
    let session = Session(0x0102_0304_0506_0708);
    let peer = ProcessId { node: 3, incarnation: Incarnation(0x33) };
    let carry = |end_message| Message::Carry { to: peer, end_message };
    let process = "030000000000000033000000000000000000000000000000";
    let shown = "03000000616263";
    let name = "0807060504030201";
    let data = EndMessage::Data { session, at: 9, last: true, bytes: Bytes::from_static(b"ab") };
    for (message, pinned) in [
        (Message::Beat, "f000".to_owned()),
        (Message::Return, "f001".to_owned()),
        (
            carry(EndMessage::Open { number: 4, router: true, pass: pass.clone() }),
            format!("f002{process}000400000001{shown}"),
        ),
        (
            carry(EndMessage::Accept { number: 4, own: 7, pass }),
            format!("f002{process}010400000007000000{shown}"),
        ),
        (carry(EndMessage::Refuse { number: 4 }), format!("f002{process}0204000000")),
        (carry(EndMessage::Begin { session }), format!("f002{process}03{name}")),
        (
            Message::Carried { from: peer, end_message: data },
            format!("f003{process}04{name}090000000000000001020000006162"),
        ),
        (carry(EndMessage::Taken { session, bytes: 8 }), format!("f002{process}05{name}0800000000000000")),
        (carry(EndMessage::Alive { session }), format!("f002{process}06{name}")),
        (carry(EndMessage::Close { session }), format!("f002{process}07{name}")),
        (Message::Undelivered { to: peer }, format!("f004{process}")),
    ] {
        let mut out = BytesMut::new();
        Envelope::<Word>::Relay(message.clone()).encode(&mut out);
        let bytes = out.freeze();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, pinned);
        assert_eq!(Envelope::decode(&mut bytes.clone()), Ok(Envelope::<Word>::Relay(message)));
        for end in 0..bytes.len() {
            if end > 0 {
                Envelope::<Word>::decode(&mut bytes.slice(..end)).expect_err("a prefix is not whole");
            }
            let mut changed = bytes.to_vec();
            changed[end] ^= 0xff;
            let _ = Envelope::<Word>::decode(&mut Bytes::from(changed));
        }
    }
}
