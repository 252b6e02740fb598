//! How long calls of a replicated service take where every delay is constant (003 §VI.A.3–4).
//!
//! **What is shown.** With *M* between a client and a replica, *m* between two replicas, *E* for the execution of a request, and
//! processes that take no time, the source computes what a call must take. The replicas, clients and hosts of every other scenario are
//! played with such delays, and must take exactly that:
//!
//! | call | takes | hops |
//! |---|---|---|
//! | of a set of one replica, which is the source's *original* | 2M + E | client, leader, client |
//! | a read that the client tells all replicas of (X-Paxos) | 2M + max(E, m) | while the leader executes, the others confirm |
//! | a read that the leader asks the others for | 2M + max(E, 2m) | while it executes, it asks and is answered |
//! | a write | 2M + E + 2m | execute, then accept and accepted |
//!
//! Where followers are another distance *F* from the client, a told read takes 2M + max(E, F + m − M).
//!
//! **Transactions.** A client makes its requests one after the other and commits. With T-Paxos each request costs what it costs
//! without replicas, and the commit what a write does. Otherwise each read costs what a told read does, and each write, the commit
//! too, what a write does. With M = m and E = 0 that is a count of hops: three requests, of which one writes, take 10 of them instead
//! of 14, or of 16 if all are writes; five, of which two write, 14 instead of 21, or of 24.
//!
//! **How.** The world is moved by hand, to the instant at which something arrives next. What arrives at a process at one instant
//! is one batch.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Incarnation, Peer, ProcessId, Time, paxos,
    service::{Client, ClientCommand, ClientSettings, Fate, Replica, Settings},
};
use quorate_world::{Environment, Violation, World};

use crate::system::service::{
    GROUP,
    party::{Ask, Party, Told},
    store::{Host, Manner, Pace, Request, sealed},
};

/// The delays of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// Between a client and the replica that leads: the source's M.
    pub client: Duration,
    /// Between a client and the others: M as well, where the source computes.
    pub follower: Duration,
    /// Between two replicas: m.
    pub replica: Duration,
    /// The execution of a request: E.
    pub execute: Duration,
}

/// A call, or a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Which.
    pub name: &'static str,
    /// How long it should take, as the source writes it.
    pub formula: &'static str,
    /// How long that is.
    pub promised: Duration,
    /// How long it took.
    pub measured: Duration,
}

/// What T-Paxos spares a transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Saving {
    /// How many requests it has, and how many of them write.
    pub requests: (usize, usize),
    /// What it took: with T-Paxos, with X-Paxos for its reads, and with all its requests sent as writes.
    pub took: [Duration; 3],
}

impl Saving {
    /// The share of its time that a transaction is spared beside one whose reads are X-Paxos', and beside one of writes.
    pub fn shares(&self) -> [f64; 2] {
        let [optimised, plain @ ..] = self.took;
        plain.map(|plain| 1.0 - optimised.as_secs_f64() / plain.as_secs_f64())
    }
}

/// Single calls.
pub fn calls(delays: Delays) -> Result<Vec<Figure>, Violation> {
    let Delays { client: far, follower, replica: near, execute } = delays;
    // From when the leader has the request until it is confirmed.
    let told = (follower + near).saturating_sub(far);
    let one = |replicas, told_reads_max, kind| -> Result<Duration, Violation> {
        Scene::new(delays, replicas, told_reads_max)?.call(kind)
    };
    Ok(vec![
        Figure {
            name: "original",
            formula: "2M + E",
            promised: far * 2 + execute,
            measured: one(1, TOLD, Kind::Write)?,
        },
        Figure {
            name: "read, told",
            formula: if follower == far { "2M + max(E, m)" } else { "2M + max(E, F + m − M)" },
            promised: far * 2 + execute.max(told),
            measured: one(3, TOLD, Kind::Read)?,
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
            measured: one(3, TOLD, Kind::Write)?,
        },
    ])
}

/// Transactions of three and of five requests, with the same delay everywhere and no time for execution.
pub fn savings(hop: Duration) -> Result<Vec<Saving>, Violation> {
    let delays = Delays { client: hop, follower: hop, replica: hop, execute: Duration::ZERO };
    let saving = |(requests, writes)| {
        let kinds = |read| {
            let kind = move |number| if number < requests - writes { read } else { Kind::Write };
            (0..requests).map(kind).collect::<Vec<_>>()
        };
        let took = |mode, kinds: Vec<Kind>| Scene::new(delays, 3, TOLD)?.transaction(mode, &kinds);
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

/// How many reads a client tells replicas of.
const TOLD: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
}

/// How a transaction is coordinated.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// T-Paxos: the commit alone is agreed on.
    Optimised,
    /// Each request for itself, and the commit like a write.
    Plain,
}

/// From one process to another.
type Way = (ProcessId, ProcessId);

/// Replicas and a client, which has a session.
struct Scene {
    world: World<Party>,
    cast: Cast,
    delays: Delays,
    /// When what is on its way arrives.
    arrivals: BTreeMap<Way, VecDeque<Time>>,
    commands: u64,
}

/// Makes the processes, and hears the client.
struct Cast {
    replicas: usize,
    told_reads_max: usize,
    execute: Duration,
    /// Replicas that are served by a leader, and fates.
    members: usize,
    ended: Vec<(CommandId, Fate, Time)>,
}

fn peer(node: u64) -> Peer {
    Peer { id: ProcessId { node, incarnation: Incarnation(0) }, address: format!("replica{node}:1") }
}

/// The client's node.
const CLIENT: u64 = 100;

impl Environment<Party> for Cast {
    fn start(&mut self, world: &mut World<Party>, _: usize, id: ProcessId) -> Party {
        let others: Vec<Peer> = (1..=self.replicas as u64).map(peer).collect();
        if id.node == CLIENT {
            let settings =
                ClientSettings { told_reads_max: self.told_reads_max, ..ClientSettings::default() };
            return Party::client(Client::new(GROUP, others, settings), None);
        }
        let log = paxos::Settings { wanted: self.replicas, ..paxos::Settings::default() };
        let settings = Settings { log, ..Settings::default() };
        let replica = match id.node {
            1 => Replica::found(GROUP, peer(1), settings, world.now()),
            node => Replica::join(GROUP, peer(node), vec![peer(1)], settings, world.now()),
        };
        let manner = Manner { pace: Pace::Exactly(self.execute), whole_states: false, any_order: false };
        Party::replica(replica, Host::new(manner, None), None)
    }

    fn event(&mut self, world: &mut World<Party>, machine: usize, event: Told) -> Result<(), Violation> {
        match event {
            Told::Client(event) => self.ended.push((event.command, event.fate, world.now())),
            Told::Members { members, .. } if machine == 0 => self.members = members.len(),
            _ => {}
        }
        Ok(())
    }
}

impl Scene {
    /// Waits until all replicas belong to the set, and the client has a session.
    fn new(delays: Delays, replicas: usize, told_reads_max: usize) -> Result<Scene, Violation> {
        let mut bits = 0;
        let world = World::by_hand(move || {
            bits += 1;
            bits
        });
        let execute = delays.execute;
        let cast = Cast { replicas, told_reads_max, execute, members: 0, ended: Vec::new() };
        let mut scene = Scene { world, cast, delays, arrivals: BTreeMap::new(), commands: 0 };
        for node in (1..=replicas as u64).chain([CLIENT]) {
            scene.world.begin(&mut scene.cast, peer(node).id, &peer(node).address)?;
        }
        scene.play("the set is whole", |scene| scene.cast.members == replicas)?;
        scene.call(Kind::Write)?;
        // What followed from it is done with.
        let quiet = scene.world.now() + SETTLING;
        scene.play("a moment", |scene| scene.world.now() >= quiet)?;
        Ok(scene)
    }

    /// The time of one call.
    fn call(&mut self, kind: Kind) -> Result<Duration, Violation> {
        let (command, read) = (self.command(), matches!(kind, Kind::Read));
        let request = self.request(kind);
        self.ask(ClientCommand::Call { command, read, keys: Vec::new(), request })
    }

    /// The time of a transaction, from its first request to the answer to its commit.
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

    /// Asks the client, and waits for the end.
    fn ask(&mut self, asked: ClientCommand) -> Result<Duration, Violation> {
        let (command, begun, client) = (asked.command(), self.world.now(), peer(CLIENT).id);
        self.world.ask(&mut self.cast, client, Ask::Client(asked))?;
        self.world.drain(&mut self.cast, client)?;
        self.play("the call ends", |scene| {
            scene.cast.ended.iter().any(|(ended, ..)| Some(*ended) == command)
        })?;
        match self.cast.ended.pop() {
            Some((_, Fate::Done(_), at)) => Ok(at.since(begun)),
            ended => Err(Violation::new("answer", format!("the call ends in {ended:?}"))),
        }
    }

    /// Lets happen what happens, until then.
    fn play(&mut self, what: &'static str, is: impl Fn(&Scene) -> bool) -> Result<(), Violation> {
        let end = self.world.now() + PATIENCE;
        while !is(self) {
            self.world.relink(&mut self.cast)?;
            self.schedule();
            let arrival = self.arrivals.values().filter_map(VecDeque::front).min().copied();
            let next = arrival.into_iter().chain(self.world.next_deadline()).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                return Err(Violation::new("latency", format!("never: {what}")));
            };
            let now = next.max(self.world.now());
            self.world.pass_until(now);
            self.deliver(now)?;
            self.world.wake(&mut self.cast)?;
        }
        Ok(())
    }

    /// Notes when what left just now arrives.
    fn schedule(&mut self) {
        let now = self.world.now();
        for ((from, to), count) in self.world.on_the_way() {
            let delay = match (from.node, to.node) {
                // The founder leads.
                (CLIENT, 1) | (1, CLIENT) => self.delays.client,
                (CLIENT, _) | (_, CLIENT) => self.delays.follower,
                _ => self.delays.replica,
            };
            let times = self.arrivals.entry((from, to)).or_default();
            times.resize(count.max(times.len()), now + delay);
        }
    }

    /// Hands over all that arrives now, to each process as one batch.
    fn deliver(&mut self, now: Time) -> Result<(), Violation> {
        let due = |times: &VecDeque<Time>| times.iter().take_while(|at| **at <= now).count();
        let ways: Vec<(Way, usize)> = self.arrivals.iter().map(|(way, times)| (*way, due(times))).collect();
        for id in self.world.everybody() {
            let mut came = false;
            for &((from, to), count) in ways.iter().filter(|((_, to), _)| *to == id) {
                for _ in 0..count {
                    came = true;
                    self.arrivals.get_mut(&(from, to)).map(VecDeque::pop_front);
                    self.world.deliver(&mut self.cast, from, to)?;
                }
            }
            if came {
                self.world.drain(&mut self.cast, id)?;
            }
        }
        Ok(())
    }
}

/// So long after the first call nothing of it is under way.
const SETTLING: Duration = Duration::from_millis(500);
/// Nothing takes longer.
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
