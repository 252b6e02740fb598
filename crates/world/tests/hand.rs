//! A world moved by hand keeps the promises of the seam, and does only what its owner asks.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Context, Destination, Duration, Incarnation, Input, Peer, Policy, ProcessId, Protocol, Sink, Time,
    wire::{Wire, WireError, take_u64},
};
use quorate_world::{Environment, Violation, World};

/// A protocol that reports all its inputs and obeys commands.
struct Parrot {
    wakes: Option<Time>,
    /// Number of records that the process still has to write, each once the record before it is durable.
    chain: u64,
}

#[derive(Debug)]
struct Word(u64);

impl Wire for Word {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.0);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        take_u64(input).map(Word)
    }
}

enum Asked {
    Reach(ProcessId),
    Say(ProcessId, u64),
    Write,
    /// Write this number of records, each when the record before it is durable.
    WriteChain(u64),
    Wake(Time),
    Join(u8),
}

/// A policy that admits only processes of the same flock.
#[derive(Debug)]
struct Flock(u8);

impl Policy for Flock {
    fn pass(&self) -> Bytes {
        Bytes::copy_from_slice(&[self.0])
    }

    fn admits(&self, theirs: &[u8]) -> bool {
        theirs.is_empty() || theirs == [self.0]
    }
}

impl Protocol for Parrot {
    type Message = Word;
    type Record = Word;
    type Command = Asked;
    type Event = String;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Command(Asked::Reach(id)) => out.reach(id, &peer(id).address),
            Input::Command(Asked::Say(to, word)) => out.send(Destination::One(to), Word(word), None),
            Input::Command(Asked::Write) => {
                out.persist(Word((cx.random)()));
            }
            Input::Command(Asked::WriteChain(records)) => {
                self.chain = records - 1;
                out.persist(Word(0));
            }
            Input::Command(Asked::Wake(at)) => self.wakes = Some(at),
            Input::Command(Asked::Join(flock)) => {
                out.emit(format!("joins {flock}"));
                out.adopt(Arc::new(Flock(flock)));
            }
            Input::Receive { from, message } => out.emit(format!("hears {} of {}", message.0, from.node)),
            Input::Linked { peer, .. } => out.emit(format!("linked {}", peer.node)),
            Input::Unlinked { peer } => out.emit(format!("unlinked {}", peer.node)),
            Input::Persisted(ticket) => {
                out.emit(format!("persisted {}", ticket.0));
                if self.chain > 0 {
                    self.chain -= 1;
                    out.persist(Word(0));
                }
            }
            Input::Deadline => {
                self.wakes = None;
                out.emit(format!("wakes {:?}", cx.now));
            }
            Input::Drained => out.emit("drained".to_owned()),
            Input::Cast { from, message } => out.emit(format!("hears {} cast by {}", message.0, from.node)),
            Input::Progress { .. } => panic!("by hand no message is cut"),
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.wakes
    }
}

#[derive(Default)]
struct Log {
    lines: Vec<String>,
    records: Vec<Bytes>,
}

impl Environment<Parrot> for Log {
    fn start(&mut self, _: &mut World<Parrot>, _: usize, _: ProcessId) -> Parrot {
        Parrot { wakes: None, chain: 0 }
    }

    fn event(&mut self, world: &mut World<Parrot>, machine: usize, line: String) -> Result<(), Violation> {
        let id = world.id(machine).expect("it lives");
        if line != "drained" {
            self.lines.push(format!("{} {line}", id.node));
        }
        Ok(())
    }

    fn policy_mismatch(&mut self, world: &mut World<Parrot>, machine: usize, theirs: &[u8]) {
        let id = world.id(machine).expect("it lives");
        self.lines.push(format!("{} meets one of {theirs:?}", id.node));
    }

    fn wrote(&mut self, _: &World<Parrot>, _: usize, records: Vec<Bytes>) {
        self.records.extend(records);
    }
}

fn id(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(0) }
}

fn peer(id: ProcessId) -> Peer {
    Peer { id, address: format!("nest {}", id.node) }
}

struct Aviary {
    world: World<Parrot>,
    log: Log,
}

impl Aviary {
    /// Makes processes 1, 2 and 3; process 2 has a link to process 1 and a link to process 3.
    fn new() -> Aviary {
        let mut dice = 0;
        let chance = move || {
            dice += 1;
            dice
        };
        let mut aviary = Aviary { world: World::by_hand(chance), log: Log::default() };
        for node in 1..=3 {
            aviary.go(|world, log| world.begin(log, id(node), &peer(id(node)).address));
        }
        for node in [1, 3] {
            aviary.ask(2, Asked::Reach(id(node)));
        }
        assert_eq!(aviary.take_log(), ["1 linked 2", "2 linked 1", "2 linked 3", "3 linked 2"]);
        aviary
    }

    fn go<T>(&mut self, step: impl FnOnce(&mut World<Parrot>, &mut Log) -> Result<T, Violation>) -> T {
        step(&mut self.world, &mut self.log).expect("no checker objects")
    }

    fn ask(&mut self, node: u64, asked: Asked) {
        self.go(|world, log| world.ask(log, id(node), asked));
    }

    fn deliver(&mut self, from: u64, to: u64) -> bool {
        self.go(|world, log| world.deliver(log, id(from), id(to))).is_some()
    }

    /// Returns the lines logged since the last call.
    fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log.lines)
    }
}

#[test]
fn a_message_waits_until_it_is_delivered() {
    let mut aviary = Aviary::new();
    for word in 1..=3 {
        aviary.ask(1, Asked::Say(id(2), word));
    }
    assert_eq!(aviary.take_log(), [""; 0]);
    assert_eq!(aviary.world.on_the_way(), [((id(1), id(2)), 3)]);
    assert!(aviary.deliver(1, 2) && !aviary.deliver(2, 1));
    assert_eq!(aviary.take_log(), ["2 hears 1 of 1"]);
    aviary.go(World::settle);
    assert_eq!(aviary.take_log(), ["2 hears 2 of 1", "2 hears 3 of 1"]);
}

#[test]
fn held_messages_move_only_by_hand() {
    let mut aviary = Aviary::new();
    aviary.world.hold(id(1), id(2));
    for (from, to) in [(1, 2), (1, 2), (2, 1)] {
        aviary.ask(from, Asked::Say(id(to), 7));
    }
    aviary.go(World::settle);
    assert_eq!(aviary.take_log(), ["1 hears 7 of 2"], "the way back is free");
    assert!(aviary.deliver(1, 2));
    assert_eq!(aviary.take_log(), ["2 hears 7 of 1"]);
    aviary.world.release();
    aviary.go(World::settle);
    assert_eq!(aviary.take_log(), ["2 hears 7 of 1"]);
}

#[test]
fn a_broken_link_loses_what_is_on_its_way() {
    let mut aviary = Aviary::new();
    aviary.ask(1, Asked::Say(id(2), 1));
    aviary.go(|world, log| world.unlink(log, id(1), id(2)));
    assert_eq!(aviary.take_log(), ["1 unlinked 2", "2 unlinked 1"]);
    aviary.ask(1, Asked::Say(id(2), 2));
    aviary.go(World::relink);
    assert_eq!(aviary.take_log(), ["1 linked 2", "2 linked 1"]);
    assert!(!aviary.deliver(1, 2), "a link starts empty");
    aviary.go(|world, log| world.part(log, id(1), id(2)));
    aviary.go(World::relink);
    assert_eq!(aviary.take_log(), ["1 unlinked 2", "2 unlinked 1"]);
    assert_eq!(aviary.world.links(), [(id(2), id(3))]);
    aviary.go(World::mend);
    assert_eq!(aviary.world.links(), [(id(1), id(2)), (id(2), id(3))]);
}

#[test]
fn messages_take_their_time_and_overtake_none() {
    let mut aviary = Aviary::new();
    let run = |aviary: &mut Aviary, millis| {
        aviary.go(|world, log| world.settle_for(log, Duration::from_millis(millis)));
        aviary.take_log()
    };
    aviary.world.messages_take(Duration::from_millis(10), Duration::ZERO);
    for word in 1..=2 {
        aviary.ask(1, Asked::Say(id(2), word));
    }
    assert_eq!(run(&mut aviary, 9), [""; 0]);
    assert_eq!(aviary.world.on_the_way(), []);
    assert!(aviary.deliver(1, 2), "by name it is delivered early");
    assert_eq!(aviary.take_log(), ["2 hears 1 of 1"]);
    aviary.ask(2, Asked::Wake(Time(10_000_000)));
    assert_eq!(run(&mut aviary, 1), ["2 hears 2 of 1", "2 wakes 10.000000ms"]);

    aviary.world.messages_take(Duration::from_millis(1), Duration::from_millis(100));
    // The next draws give the first message the largest delay, and the other messages the smallest delays.
    while aviary.world.draw() < 998 {}
    for (from, to, word) in [(1, 2, 3), (1, 2, 4), (2, 1, 5)] {
        aviary.ask(from, Asked::Say(id(to), word));
    }
    assert_eq!(run(&mut aviary, 2), ["1 hears 5 of 2"]);
    assert_eq!(run(&mut aviary, 98), [""; 0]);
    assert_eq!(run(&mut aviary, 1), ["2 hears 3 of 1", "2 hears 4 of 1"]);
}

#[test]
fn messages_are_bounded_in_bytes() {
    let mut aviary = Aviary::new();
    aviary.world.limit_messages(7);
    let refused = aviary.world.ask(&mut aviary.log, id(1), Asked::Say(id(2), 1));
    assert_eq!(refused.unwrap_err().rule, "frame");
}

#[test]
fn a_policy_breaks_forbidden_links_and_prevents_new_ones() {
    let mut aviary = Aviary::new();
    aviary.ask(1, Asked::Join(1));
    assert_eq!(aviary.take_log(), ["1 joins 1"], "the others are of no flock");
    aviary.ask(2, Asked::Say(id(1), 1));
    aviary.ask(2, Asked::Join(2));
    assert_eq!(aviary.take_log(), ["2 joins 2", "2 unlinked 1", "1 unlinked 2"]);
    assert_eq!(aviary.world.links(), [(id(2), id(3))]);
    aviary.go(World::relink);
    assert_eq!(aviary.take_log(), ["1 meets one of [2]", "2 meets one of [1]"]);
    aviary.ask(1, Asked::Join(2));
    aviary.go(World::relink);
    aviary.go(World::settle);
    assert_eq!(aviary.take_log(), ["1 joins 2", "1 linked 2", "2 linked 1"], "what was on its way is lost");
}

#[test]
fn the_end_of_a_process_is_reported_to_its_peers_at_once() {
    let mut aviary = Aviary::new();
    aviary.ask(2, Asked::Say(id(1), 1));
    aviary.go(|world, log| world.end(log, id(2)));
    assert_eq!(aviary.take_log(), ["1 unlinked 2", "3 unlinked 2"]);
    assert_eq!(aviary.world.everybody(), [id(1), id(3)]);
    aviary.go(World::settle);
    aviary.go(World::relink);
    aviary.ask(2, Asked::Say(id(1), 2));
    assert_eq!(aviary.take_log(), [""; 0]);
}

#[test]
fn time_passes_between_steps_and_paused_processes_miss_it() {
    let mut aviary = Aviary::new();
    let at = |millis: u64| Time(millis * 1_000_000);
    for node in 1..=3 {
        aviary.ask(node, Asked::Wake(at(node * 10)));
    }
    let machine = aviary.world.place(id(1)).expect("it lives");
    aviary.world.pause(machine, Duration::MAX);
    aviary.go(|world, log| world.settle_for(log, Duration::from_millis(25)));
    assert_eq!(aviary.take_log(), ["2 wakes 20.000000ms"]);
    assert_eq!((aviary.world.now(), aviary.world.next_deadline()), (at(25), Some(at(30))));
    aviary.world.resume(machine);
    aviary.go(|world, log| world.settle_for(log, Duration::from_millis(5)));
    assert_eq!(aviary.take_log(), ["1 wakes 25.000000ms", "3 wakes 30.000000ms"]);
}

#[test]
fn records_are_durable_at_once_and_chance_is_the_owner_s() {
    let mut aviary = Aviary::new();
    aviary.ask(1, Asked::Write);
    aviary.ask(1, Asked::Write);
    assert_eq!(aviary.take_log(), ["1 persisted 1", "1 persisted 2"]);
    let words: Vec<_> =
        aviary.log.records.iter().map(|it| Word::decode(&mut it.clone()).unwrap().0).collect();
    assert_eq!(words, [1, 2]);
    assert_eq!(aviary.world.draw(), 3);
}

/// A fault of the past: a leader received the notice that a record was durable, and then wrote records that
/// it had kept back. It never received a notice for these records.
#[test]
fn a_record_written_when_another_is_durable_is_durable_before_the_next_input() {
    let mut aviary = Aviary::new();
    aviary.ask(1, Asked::WriteChain(3));
    assert_eq!(aviary.take_log(), ["1 persisted 1", "1 persisted 2", "1 persisted 3"]);
}
