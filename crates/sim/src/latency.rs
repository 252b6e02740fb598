//! Latency of calls of a replicated service where every delay is constant (003 §VI.A.3–4).
//!
//! **Claim.** With *M* between a client and a replica, *m* between two replicas, *E* for the execution of a
//! request, and processes that take no time, the source computes the time of a call. Here the replicas,
//! clients and hosts that all other scenarios use run with such delays, and their calls must take exactly the
//! computed time:
//!
//! | call | takes | hops |
//! |---|---|---|
//! | any, to a set of one replica, which is the source's *original* | 2M + E | client, leader, client |
//! | an announced read (X-Paxos), to all replicas | 2M + max(E, m) | the leader executes, others confirm |
//! | an asked read, to the leader | 2M + max(E, 2m) | while the leader executes, it asks, and others answer |
//! | a write | 2M + E + 2m | execute, then accept and accepted |
//!
//! If followers are at another distance *F* from the client, an announced read takes 2M + max(E, F + m − M).
//!
//! **Transactions.** A client makes its requests one after the other and commits. With T-Paxos each request
//! costs as much as without replicas, and the commit costs as much as a write. Without T-Paxos each read
//! costs as much as an announced read, and each write, the commit included, as much as a write. With M = m
//! and E = 0 the cost is a count of hops. Three requests, one of which writes, take 10 hops instead of 14, or
//! of 16 if all are writes. Five requests, two of which write, take 14 hops instead of 21, or of 24.
//!
//! **Method.** The caller moves the world by hand, to the instant of the next arrival. All messages that
//! arrive at a process at one instant are one batch.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Incarnation, Peer, ProcessId, Time,
    service::{ClientCommand, ClientSettings, Fate, Settings},
};
use quorate_roles::services::{ReplicaOptions, Set, Terms};
use quorate_world::{Environment, Violation, World};

use crate::system::service::{
    GROUP,
    host::{Manner, Pace, StoreHost},
    process::{Resident, ServiceCommand, ServiceEvent},
    store::{Request, sealed},
};

/// The delays of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// Delay between a client and the leading replica: M in the source's formulas.
    pub client: Duration,
    /// Delay between a client and the other replicas; equal to M in the source's formulas.
    pub follower: Duration,
    /// Delay between two replicas: m in the source's formulas.
    pub replica: Duration,
    /// Time to execute a request: E in the source's formulas.
    pub execute: Duration,
}

/// The latency of a kind of call, promised and measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name of the kind of call.
    pub name: &'static str,
    /// The formula of the call's latency, in the source's notation.
    pub formula: &'static str,
    /// The latency that the formula gives.
    pub promised: Duration,
    /// The latency in the run.
    pub measured: Duration,
}

/// The time that T-Paxos saves in a transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Saving {
    /// Number of requests of the transaction, and number of those that write.
    pub requests: (usize, usize),
    /// Time of the transaction: with T-Paxos, with X-Paxos for its reads, and with all its requests sent as
    /// writes.
    pub took: [Duration; 3],
}

impl Saving {
    /// Returns the shares of time that T-Paxos saves: against X-Paxos for reads, and against all requests
    /// sent as writes.
    pub fn shares(&self) -> [f64; 2] {
        let [optimised, plain @ ..] = self.took;
        plain.map(|plain| 1.0 - optimised.as_secs_f64() / plain.as_secs_f64())
    }
}

/// Measures single calls.
pub fn calls(delays: Delays) -> Result<Vec<Figure>, Violation> {
    let Delays { client: far, follower, replica: near, execute } = delays;
    // Time from the arrival of the request at the leader until the confirmation of a follower arrives there.
    let told = (follower + near).saturating_sub(far);
    let one = |replicas, announced_reads_max, kind| -> Result<Duration, Violation> {
        LatencyWorld::new(delays, replicas, announced_reads_max)?.call(kind)
    };
    Ok(vec![
        Figure {
            name: "original",
            formula: "2M + E",
            promised: far * 2 + execute,
            measured: one(1, TOLD_READS_MAX, Kind::Write)?,
        },
        Figure {
            name: "read, told",
            formula: if follower == far { "2M + max(E, m)" } else { "2M + max(E, F + m − M)" },
            promised: far * 2 + execute.max(told),
            measured: one(3, TOLD_READS_MAX, Kind::Read)?,
        },
        Figure {
            name: "read, asked",
            formula: "2M + max(E, 2m)",
            promised: far * 2 + execute.max(near * 2),
            measured: one(3, 0, Kind::Read)?,
        },
        Figure {
            name: "write",
            formula: "2M + E + 2m",
            promised: far * 2 + execute + near * 2,
            measured: one(3, TOLD_READS_MAX, Kind::Write)?,
        },
    ])
}

/// Measures transactions of three and of five requests, with equal delays everywhere and no time for
/// execution.
pub fn savings(hop: Duration) -> Result<Vec<Saving>, Violation> {
    let delays = Delays { client: hop, follower: hop, replica: hop, execute: Duration::ZERO };
    let saving = |(requests, writes)| {
        let kinds = |read| {
            let kind = move |number| if number < requests - writes { read } else { Kind::Write };
            (0..requests).map(kind).collect::<Vec<_>>()
        };
        let took =
            |mode, kinds: Vec<Kind>| LatencyWorld::new(delays, 3, TOLD_READS_MAX)?.transaction(mode, &kinds);
        Ok(Saving {
            requests: (requests, writes),
            took: [
                took(Mode::Optimised, kinds(Kind::Read))?,
                took(Mode::Plain, kinds(Kind::Read))?,
                took(Mode::Plain, kinds(Kind::Write))?,
            ],
        })
    };
    [(3, 1), (5, 2)].into_iter().map(saving).collect()
}

/// Maximum number of announced reads (sent to all replicas) that a client may have under way.
const TOLD_READS_MAX: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
}

/// The coordination of a transaction.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// T-Paxos: the replicas agree on the commit alone.
    Optimised,
    /// The replicas agree on each request by itself, and on the commit as on a write.
    Plain,
}

/// A direction: sender and receiver.
type Direction = (ProcessId, ProcessId);

/// Replicas, and a client that has a session.
struct LatencyWorld {
    world: World<Resident>,
    environment: LatencyEnvironment,
    delays: Delays,
    /// The arrival times of messages under way.
    arrivals: BTreeMap<Direction, VecDeque<Time>>,
    commands: u64,
}

/// Creates the processes, and collects the client's events.
struct LatencyEnvironment {
    announced_reads_max: usize,
    execute: Duration,
    /// Number of replicas in the set, as the founder reported it last.
    members: usize,
    /// The ended commands, with their fates and times.
    ended: Vec<(CommandId, Fate, Time)>,
    /// Processes that refused a link because their peer showed a set that they did not know, each with that
    /// set.
    met: Vec<(ProcessId, Set)>,
}

/// Returns the set of the replicas.
fn set(replicas: usize) -> Set {
    Set { group: GROUP, terms: Terms { beginning: 0, replicas: replicas as u8, durable: false } }
}

fn peer(node: u64) -> Peer {
    Peer { id: ProcessId { node, incarnation: Incarnation(0) }, address: format!("replica{node}:1") }
}

/// The client's node.
const CLIENT: u64 = 100;

impl Environment<Resident> for LatencyEnvironment {
    fn start(&mut self, _: &mut World<Resident>, _: usize, id: ProcessId) -> Resident {
        if id.node == CLIENT {
            let settings =
                ClientSettings { announced_reads_max: self.announced_reads_max, ..ClientSettings::default() };
            return Resident::client(settings, None);
        }
        let pace = Pace::Exactly(self.execute);
        let manner = Manner { pace, whole_states: false, any_order: false, padding: 0 };
        let options = ReplicaOptions::new(Settings::default());
        Resident::replica(peer(id.node), options, StoreHost::new(manner, None), None)
    }

    fn policy_mismatch(&mut self, world: &mut World<Resident>, machine: usize, theirs: &[u8]) {
        self.met.extend(world.id(machine).zip(Set::of_pass(theirs)));
    }

    fn event(
        &mut self,
        world: &mut World<Resident>,
        machine: usize,
        event: ServiceEvent,
    ) -> Result<(), Violation> {
        match event {
            ServiceEvent::Client(event) => self.ended.push((event.command, event.fate, world.now())),
            ServiceEvent::Members { members, .. } if machine == 0 => self.members = members.len(),
            _ => {}
        }
        Ok(())
    }
}

impl LatencyWorld {
    /// Starts a scene: waits until all replicas belong to the set, and the client has a session.
    fn new(delays: Delays, replicas: usize, announced_reads_max: usize) -> Result<LatencyWorld, Violation> {
        let mut bits = 0;
        let world = World::by_hand(move || {
            bits += 1;
            bits
        });
        let execute = delays.execute;
        let environment = LatencyEnvironment {
            announced_reads_max,
            execute,
            members: 0,
            ended: Vec::new(),
            met: Vec::new(),
        };
        let mut latency_world =
            LatencyWorld { world, environment, delays, arrivals: BTreeMap::new(), commands: 0 };
        for node in (1..=replicas as u64).chain([CLIENT]) {
            let LatencyWorld { world, environment, .. } = &mut latency_world;
            world.begin(environment, peer(node).id, &peer(node).address)?;
            let first = match node {
                1 => ServiceCommand::Begin { set: set(replicas), founded: true },
                CLIENT => ServiceCommand::Seeds((1..=replicas as u64).map(peer).collect()),
                _ => ServiceCommand::Seeds(vec![peer(1)]),
            };
            world.ask(environment, peer(node).id, first)?;
            world.drain(environment, peer(node).id)?;
        }
        latency_world
            .play("the set is whole", |latency_world| latency_world.environment.members == replicas)?;
        latency_world.call(Kind::Write)?;
        // Waits until no message of this first call is under way.
        let quiet = latency_world.world.now() + SETTLING;
        latency_world.play("a moment", |latency_world| latency_world.world.now() >= quiet)?;
        Ok(latency_world)
    }

    /// Returns the time of one call.
    fn call(&mut self, kind: Kind) -> Result<Duration, Violation> {
        let (command, read) = (self.command(), matches!(kind, Kind::Read));
        let request = self.request(kind);
        self.ask(ClientCommand::Call { command, read, keys: Vec::new(), request })
    }

    /// Returns the time of a transaction, from its first request to the answer to its commit.
    fn transaction(&mut self, mode: Mode, requests: &[Kind]) -> Result<Duration, Violation> {
        let begun = self.world.now();
        for &kind in requests {
            match mode {
                Mode::Plain => self.call(kind)?,
                Mode::Optimised => {
                    let (command, read) = (self.command(), matches!(kind, Kind::Read));
                    let request = self.request(kind);
                    let (transaction, keys) = (1, Vec::new());
                    self.ask(ClientCommand::Part { command, transaction, read, keys, request })?
                }
            };
        }
        let command = self.command();
        match mode {
            Mode::Plain => self.call(Kind::Write)?,
            Mode::Optimised => self.ask(ClientCommand::Commit { command, transaction: 1 })?,
        };
        Ok(self.world.now().since(begun))
    }

    fn command(&mut self) -> CommandId {
        self.commands += 1;
        CommandId(self.commands)
    }

    fn request(&self, kind: Kind) -> Bytes {
        let (key, call) = (1, self.commands);
        sealed(&match kind {
            Kind::Read => Request::Get { key, call },
            Kind::Write => Request::Put { key, call },
        })
    }

    /// Gives the client a command, and returns the time until its end.
    fn ask(&mut self, asked: ClientCommand) -> Result<Duration, Violation> {
        let (command, begun, client) = (asked.command(), self.world.now(), peer(CLIENT).id);
        self.world.ask(&mut self.environment, client, ServiceCommand::Calls(vec![asked]))?;
        self.world.drain(&mut self.environment, client)?;
        self.play("the call ends", |latency_world| {
            latency_world.environment.ended.iter().any(|(ended, ..)| Some(*ended) == command)
        })?;
        match self.environment.ended.pop() {
            Some((_, Fate::Done(_), at)) => Ok(at.since(begun)),
            ended => Err(Violation::new(
                "answer",
                format!("the call of the simulated client was not answered: {ended:?}"),
            )),
        }
    }

    /// Lets the world run until `is` holds.
    fn play(&mut self, what: &'static str, is: impl Fn(&LatencyWorld) -> bool) -> Result<(), Violation> {
        let end = self.world.now() + PATIENCE;
        while !is(self) {
            self.world.relink(&mut self.environment)?;
            for (id, set) in mem::take(&mut self.environment.met) {
                let begin = ServiceCommand::Begin { set, founded: false };
                self.world.ask(&mut self.environment, id, begin)?;
                self.world.drain(&mut self.environment, id)?;
            }
            self.schedule();
            let arrival = self.arrivals.values().filter_map(VecDeque::front).min().copied();
            let next = arrival.into_iter().chain(self.world.next_deadline()).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                return Err(Violation::new(
                    "latency",
                    format!("the simulated processes did not come to this point in time: {what}"),
                ));
            };
            let now = next.max(self.world.now());
            self.world.pass_until(now);
            self.deliver(now)?;
            self.world.wake(&mut self.environment)?;
        }
        Ok(())
    }

    /// Notes the arrival times of the messages that left just now.
    fn schedule(&mut self) {
        let now = self.world.now();
        for ((from, to), count) in self.world.on_the_way() {
            let delay = match (from.node, to.node) {
                // The founder leads, so this is the distance from the client to the leader.
                (CLIENT, 1) | (1, CLIENT) => self.delays.client,
                (CLIENT, _) | (_, CLIENT) => self.delays.follower,
                _ => self.delays.replica,
            };
            let times = self.arrivals.entry((from, to)).or_default();
            times.resize(count.max(times.len()), now + delay);
        }
    }

    /// Delivers all messages that arrive now, to each process as one batch.
    fn deliver(&mut self, now: Time) -> Result<(), Violation> {
        let due = |times: &VecDeque<Time>| times.iter().take_while(|at| **at <= now).count();
        let ways: Vec<(Direction, usize)> =
            self.arrivals.iter().map(|(way, times)| (*way, due(times))).collect();
        for id in self.world.everybody() {
            let mut came = false;
            for &((from, to), count) in ways.iter().filter(|((_, to), _)| *to == id) {
                for _ in 0..count {
                    came = true;
                    self.arrivals.get_mut(&(from, to)).map(VecDeque::pop_front);
                    self.world.deliver(&mut self.environment, from, to)?;
                }
            }
            if came {
                self.world.drain(&mut self.environment, id)?;
            }
        }
        Ok(())
    }
}

/// Time after the first call at which none of its messages is under way.
const SETTLING: Duration = Duration::from_millis(500);
/// Upper bound of every wait.
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_take_what_the_source_computes() {
        for (client, follower, replica, execute) in [
            (100, 100, 40, 10),
            (100, 100, 40, 60),
            (40, 40, 100, 300),
            (70, 70, 70, 0),
            (90, 30, 40, 0),
            (30, 90, 40, 10),
        ] {
            let [client, follower, replica, execute] =
                [client, follower, replica, execute].map(Duration::from_micros);
            for figure in calls(Delays { client, follower, replica, execute }).unwrap() {
                assert_eq!(figure.measured, figure.promised, "{figure:?}");
            }
        }
    }

    #[test]
    fn transactions_are_spared_what_the_hops_say() {
        let hop = Duration::from_micros(50);
        let savings = savings(hop).unwrap();
        let hops: Vec<[u128; 3]> =
            savings.iter().map(|saving| saving.took.map(|took| took.as_nanos() / hop.as_nanos())).collect();
        assert_eq!(hops, [[10, 14, 16], [14, 21, 24]]);
        let shares: Vec<[f64; 2]> =
            savings.iter().map(|saving| saving.shares().map(|share| (share * 100.0).round())).collect();
        assert_eq!(shares, [[29.0, 38.0], [33.0, 42.0]]);
    }
}
