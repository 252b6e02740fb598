//! Random schedules. Messages are slow, links break, and processes of all kinds crash or are wrongly
//! suspected, and come back as new processes. The test checks these rules:
//!
//! - All routers hold one order. It contains each sender's messages once and without gaps.
//! - Every request ends in one event.
//! - All replicas of a range executed the same writes.
//! - Acknowledged writes took effect, and failed writes did not.
//! - A read saw exactly the writes up to its position.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use quorate_protocol::{
    Duration, ProcessId, RequestId, Strength,
    ecast::Position,
    rubberband::{ClientCommand, ClientError, Config, DataHeader, Range, StorageState},
};

use super::{
    engine::{Row, decode},
    names::{process, reborn},
    process::{Asked as Command, Role},
    world::World,
};

/// A request of the schedule.
enum Asked {
    Write { operation: String, ranges: Vec<Range> },
    Read { strength: Strength, ranges: Vec<Range>, before: BTreeSet<(Range, String)> },
}

struct Schedule {
    world: World,
    asked: BTreeMap<(ProcessId, u64), Asked>,
    token: u64,
    /// The present life of each process.
    lives: BTreeMap<&'static str, ProcessId>,
    /// Whether storage processes crash in this schedule.
    crashes: bool,
}

const ALL: [&str; 13] = ["r1", "r2", "r3", "u1", "u2", "s1", "s2", "s3", "s4", "s5", "s6", "c1", "c2"];

fn run(seed: u64, losses: u64, counts: &mut BTreeMap<&'static str, u64>) {
    match std::panic::catch_unwind(|| schedule(seed, losses)) {
        Ok(counted) => counted.into_iter().for_each(|(what, n)| *counts.entry(what).or_default() += n),
        Err(failure) => {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(failure);
        }
    }
}

/// Runs a schedule in which all routers die at once `losses` times.
fn schedule(seed: u64, losses: u64) -> BTreeMap<&'static str, u64> {
    let mut world = World::new(seed);
    world.replicas = 3;
    let mut lives = BTreeMap::new();
    for id in ALL {
        world.start(process(id));
        lives.insert(id, process(id));
        world.run(Duration::from_millis(100));
    }
    world.run(Duration::from_millis(1000));
    assert_eq!(world.config().map(|config| config.ring.len()), Some(4), "it came up");
    let control = quorate_protocol::rubberband::Control::CreateTable {
        name: "tickets".to_owned(),
        definition: Bytes::new(),
    };
    world.request(process("c1"), 0, ClientCommand::Control { token: 0, control });
    world.run(Duration::from_millis(100));

    world.rebirth = true;
    let more = Duration::from_millis([5, 40, 300][(seed % 3) as usize]);
    world.world.messages_take(Duration::from_micros(100), more);
    world.work.set(Some(Duration::from_millis([1, 30][(seed / 3 % 2) as usize])));
    let mut schedule =
        Schedule { world, asked: BTreeMap::new(), token: 0, lives, crashes: seed.is_multiple_of(2) };
    for part in 0..=losses {
        for _ in 0..250 / (losses + 1) {
            schedule.act();
            schedule.follow();
        }
        if part < losses {
            schedule.lose_all_routers();
        }
    }
    schedule.end();
    std::mem::take(&mut schedule.world.counts)
}

impl Schedule {
    fn chance(&mut self, n: u64) -> u64 {
        self.world.random() % n
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[(self.world.random() % from.len() as u64) as usize].clone())
    }

    /// Picks one of these processes, and returns its present life.
    fn one_of(&mut self, names: &[&'static str]) -> ProcessId {
        let name = self.pick(names).expect("there are some");
        self.lives[name]
    }

    /// Replaces wedged processes by their next lives.
    fn follow(&mut self) {
        for id in self.lives.values_mut() {
            while !self.world.lives(*id) && self.world.lives(reborn(*id)) {
                *id = reborn(*id);
            }
        }
    }

    fn act(&mut self) {
        match self.chance(100) {
            0..25 => {
                for _ in 0..=self.chance(8) {
                    self.write();
                }
            }
            25..35 => self.read(),
            35..38 => self.cancel(),
            38..44 => self.break_link(),
            44..50 => self.world.heal(),
            50..52 => self.crash_router(),
            52..55 => self.crash_storage(),
            55 => {
                let id = self.one_of(&["u1", "c1", "c2"]);
                // There are always two supers: a dead super comes back before the other super dies.
                let supers = self.world.everybody().into_iter().filter(|id| id.node / 100 == 2).count();
                if id.node / 100 != 2 || supers == 2 {
                    self.world.crash(id);
                    self.world.start(reborn(id));
                }
            }
            _ => {
                let millis = [1, 5, 20, 100, 400][self.chance(5) as usize];
                self.world.run(Duration::from_millis(millis));
            }
        }
        self.world.relink();
    }

    fn ranges(&mut self) -> Vec<Range> {
        match self.chance(10) {
            0 => vec![Range::ALL],
            1..4 => {
                let key = |quarter: u64| Range { low: (quarter << 62) + 7, high: (quarter << 62) + 7 };
                let quarter = self.chance(3);
                vec![key(quarter), key(quarter + 1 + self.chance(3 - quarter))]
            }
            _ => {
                let key = (self.chance(4) << 62) + self.chance(50);
                vec![Range { low: key, high: key }]
            }
        }
    }

    fn write(&mut self) {
        let client = self.one_of(&["c1", "c2"]);
        self.token += 1;
        let token = self.token;
        // Some writes repeat an earlier write of the same session, whose outcome is unknown.
        let open = self.world.results.iter().filter_map(|((id, token), result)| match result.end {
            Some(Err(ClientError::MaybeApplied { request })) if *id == client && request.number > 0 => {
                Some((*token, request))
            }
            _ => None,
        });
        let open: Vec<(u64, RequestId)> = open.collect();
        if self.chance(3) == 0
            && let Some((first, request)) = self.pick(&open)
            && let Asked::Write { operation, ranges } = &self.asked[&(client, first)]
        {
            let (operation, ranges) = (operation.clone(), ranges.clone());
            self.world.write(client, token, Some(request), &ranges, &operation);
            self.asked.insert((client, token), Asked::Write { operation, ranges });
            return;
        }
        let ranges = self.ranges();
        let operation = match self.chance(3) {
            0 => format!("!{} {token}", (self.chance(4) << 62) + 7),
            _ => format!("w {token}"),
        };
        self.world.write(client, token, None, &ranges, &operation);
        self.asked.insert((client, token), Asked::Write { operation, ranges });
    }

    fn read(&mut self) {
        let client = self.one_of(&["c1", "c2"]);
        self.token += 1;
        let token = self.token;
        let ranges = match self.chance(3) {
            0 => vec![Range::ALL],
            _ => {
                let low = self.chance(4) << 62;
                vec![Range { low, high: low + ((1 << 62) - 1) }]
            }
        };
        let strength = [Strength::Sequential, Strength::Snapshot, Strength::Basic][self.chance(3) as usize];
        let before = self.acknowledged();
        let read = ClientCommand::Read {
            token,
            strength,
            table: DataHeader::NO_TABLE,
            ranges: ranges.clone().into(),
            operation: Bytes::from_static(b"rows"),
        };
        self.asked.insert((client, token), Asked::Read { strength, ranges, before });
        self.world.request(client, token, read);
    }

    fn cancel(&mut self) {
        let open: Vec<_> = self
            .world
            .results
            .iter()
            .filter(|(_, result)| result.end.is_none())
            .map(|(key, _)| *key)
            .collect();
        if let Some((client, token)) = self.pick(&open) {
            self.world.command(client, Command::Client(ClientCommand::Cancel { token }));
        }
    }

    fn break_link(&mut self) {
        let links = self.world.links();
        let Some((a, b)) = self.pick(&links) else { return };
        match self.chance(8) {
            // Some members are cut off from all others. The cluster removes them if the cut lasts.
            0 if b.node / 100 > 1 => {
                let others = self.world.world.linked(b);
                others.into_iter().for_each(|other| self.world.cut(other, b));
            }
            0..4 => self.world.cut(a, b),
            _ => self.world.unlink(a, b),
        }
    }

    fn crash_router(&mut self) {
        let routers = self.world.routers();
        let whole = |world: &World, id: &ProcessId| {
            let log = world.router(*id).log();
            log.members().len() == 3 && log.leader().is_some()
        };
        // No router crashes before all others have replaced the last crashed router in their logs.
        if routers.len() == 3
            && routers.iter().all(|id| whole(&self.world, id))
            && let Some(id) = self.pick(&routers)
        {
            let members = self.world.router(routers[0]).log().members().iter();
            let members: BTreeSet<_> = members.map(|peer| peer.id).collect();
            if routers.iter().all(|id| members.contains(id)) {
                self.world.crash(id);
                self.world.start(reborn(id));
                *self.world.counts.entry("router crash").or_default() += 1;
            }
        }
    }

    /// All routers die at once, and the domain goes on from its members. In half of the cases the first
    /// founder dies as well, at a random moment.
    fn lose_all_routers(&mut self) {
        for id in self.world.routers() {
            self.world.crash(id);
            self.world.start(reborn(id));
        }
        *self.world.counts.entry("all routers lost").or_default() += 1;
        self.world.heal();
        // Members that learned of their removal restart before the operator looks which members are alive.
        self.world.run(Duration::from_millis(2_000));
        self.follow();
        if self.chance(2) == 0 {
            let founder = self.refound();
            let most = [20, 100, 1_000, 4_000][self.chance(4) as usize];
            let millis = self.chance(most);
            self.world.run(Duration::from_millis(millis));
            if self.world.lives(founder) {
                let begun = self.world.router(founder).is_leader();
                let routers = self.world.routers().into_iter();
                let joined = routers.filter(|id| self.world.router(*id).log().members().len() > 1);
                // If other routers have joined the founder, they survive it and no member needs to found.
                if joined.count() == 0 {
                    self.world.crash(founder);
                    self.world.start(reborn(founder));
                    let what =
                        if begun { "founder lost behind the cut" } else { "founder lost before the cut" };
                    *self.world.counts.entry(what).or_default() += 1;
                    self.world.heal();
                    self.world.run(Duration::from_millis(1_000));
                    self.follow();
                }
            }
        }
        // An operator asks routers to found until one leads.
        for _ in 0..40 {
            if self.world.routers().into_iter().any(|id| self.world.router(id).is_leader()) {
                return;
            }
            self.world.heal();
            self.refound();
            self.world.run(Duration::from_millis(3_000));
            self.follow();
        }
        panic!("no generation begins: {}", self.standing());
    }

    /// Makes a newly started router go on from the living members.
    fn refound(&mut self) -> ProcessId {
        let routers = self.world.routers();
        let founder = self.pick(&routers).expect("they were started again");
        self.world.refound(founder, &self.world.members());
        founder
    }

    fn crash_storage(&mut self) {
        let mut storage = self.world.members();
        storage.retain(|id| id.node / 100 == 3);
        if self.crashes
            && let Some(id) = self.pick(&storage)
            && self.world.config().is_some_and(|config| is_whole(config, &self.world))
        {
            self.world.crash(id);
            self.world.start(reborn(id));
            *self.world.counts.entry("storage crash").or_default() += 1;
        }
    }

    /// Returns the writes that users know to have taken effect.
    fn acknowledged(&self) -> BTreeSet<(Range, String)> {
        let mut all = BTreeSet::new();
        for (key, asked) in &self.asked {
            let Asked::Write { operation, ranges } = asked else { continue };
            let result = &self.world.results[key];
            if matches!(result.end, Some(Ok(_))) && result.parts.iter().all(|part| part.as_ref() == b"ok") {
                all.extend(ranges.iter().flat_map(|range| quarters(*range)).map(|r| (r, operation.clone())));
            }
        }
        all
    }

    fn end(&mut self) {
        self.world.world.messages_take(Duration::from_micros(100), Duration::from_millis(1));
        self.world.work.set(Some(Duration::from_millis(1)));
        for _ in 0..600 {
            self.world.heal();
            self.world.run(Duration::from_millis(50));
            self.follow();
            let whole = self.world.config().is_some_and(|config| is_whole(config, &self.world));
            if whole && self.open().is_empty() && self.is_quiet() {
                break;
            }
        }
        self.check();
    }

    /// Returns the open requests of living clients.
    fn open(&self) -> Vec<(ProcessId, u64)> {
        let open = self.world.results.iter().filter(|(_, result)| result.end.is_none()).map(|(key, _)| *key);
        open.filter(|(client, _)| self.world.lives(*client)).collect()
    }

    /// Whether all messages are stable and executed everywhere.
    fn is_quiet(&self) -> bool {
        let last = self.world.ghost.last_key_value().map_or(Position(0), |(at, _)| *at);
        self.world.roles().all(|(_, role)| match role {
            Role::Router(router) => router.position() == last && router.base() == last,
            Role::Storage(store) => {
                let status = store.storage.status();
                let idle = status.executed == status.delivered && status.queued == 0 && status.pins == 0;
                // The engine no longer keeps a version for a long answer.
                idle && store.engine.pins.is_empty()
            }
            _ => true,
        })
    }

    fn check(&self) {
        let world = &self.world;
        world.check_senders();
        let open = self.open();
        let tail = || {
            let lines: Vec<_> = world.trace.lines().collect();
            lines[lines.len().saturating_sub(60)..].join("\n")
        };
        assert!(open.is_empty(), "{open:?} have not ended\n{}", tail());
        let config = world.config().expect("there is one");
        assert!(is_whole(config, world), "not repaired: {:?} {:?}\n{}", config.ring, config.storage, tail());
        assert!(self.is_quiet(), "not everything is stable and executed\n{}", self.standing());
        let rows = world.check_replicas();
        let effects: BTreeSet<(Range, String)> =
            rows.iter().map(|row| (row.range, row.operation.clone())).collect();
        for known in self.acknowledged() {
            assert!(effects.contains(&known), "{known:?} was acknowledged and is not there\n{}", tail());
        }
        for (key, asked) in &self.asked {
            let Some(end) = world.results[key].end else { continue };
            let parts = &world.results[key].parts;
            match asked {
                Asked::Write { operation, ranges } => {
                    let took: Vec<bool> = ranges
                        .iter()
                        .flat_map(|range| quarters(*range))
                        .map(|range| effects.contains(&(range, operation.clone())))
                        .collect();
                    let all = took.iter().all(|took| *took);
                    let none = took.iter().all(|took| !took);
                    assert!(all || none, "{operation} took effect in some ranges only: {took:?}");
                    match end {
                        Ok(_) => {
                            assert_eq!(all, parts.iter().all(|part| part.as_ref() == b"ok"), "{operation}")
                        }
                        // Another attempt of a repeated write may have taken effect.
                        Err(
                            ClientError::NotSent
                            | ClientError::Rejected(_)
                            | ClientError::Expired
                            | ClientError::OtherStatement
                            | ClientError::Forgotten { applied: false }
                            | ClientError::Unanswered
                            | ClientError::Broken
                            | ClientError::Unreached { .. }
                            | ClientError::Died { .. }
                            | ClientError::NoRoom { .. }
                            | ClientError::Untaken { .. },
                        ) => {
                            let attempts = self.asked.iter().filter(|(_, other)| {
                                matches!(other, Asked::Write { operation: same, .. } if same == operation)
                            });
                            assert!(
                                none || attempts.count() > 1,
                                "{operation} failed with {end:?} and is there"
                            );
                        }
                        Err(ClientError::Forgotten { applied: true }) => assert!(all, "{operation}"),
                        Err(ClientError::MaybeApplied { .. }) => {}
                    }
                }
                Asked::Read { strength, ranges, before } => {
                    if let Ok(at) = end {
                        check_read(&rows, *strength, ranges, before, at, parts);
                    }
                }
            }
        }
    }

    fn standing(&self) -> String {
        let mut text = format!("{:?}\n", self.world.ghost.last_key_value());
        for (id, role) in self.world.roles() {
            match role {
                Role::Router(router) => text += &format!("{id} {:?}\n", router.status()),
                Role::Storage(store) => text += &format!("{id} {:?}\n", store.storage.status()),
                _ => {}
            }
        }
        text
    }
}

fn check_read(
    rows: &[Row],
    strength: Strength,
    ranges: &[Range],
    before: &BTreeSet<(Range, String)>,
    at: Position,
    parts: &[Bytes],
) {
    let seen: Vec<Row> = parts.iter().flat_map(|part| decode::<Vec<Row>>(part)).collect();
    let within = |range: &Range| ranges.iter().any(|asked| asked.intersect(*range) == Some(*range));
    let set: BTreeSet<&Row> = seen.iter().collect();
    assert_eq!(set.len(), seen.len(), "a read saw a row twice");
    if strength != Strength::Basic {
        let expected: BTreeSet<&Row> = rows.iter().filter(|row| row.at <= at && within(&row.range)).collect();
        assert_eq!(set, expected, "a {strength:?} read at {at} saw another cut");
    }
    if strength == Strength::Sequential {
        for (range, operation) in before.iter().filter(|(range, _)| within(range)) {
            let saw = seen.iter().any(|row| row.range == *range && row.operation == *operation);
            assert!(saw, "a read missed {operation}, acknowledged before it began");
        }
    }
}

/// Cuts a write's ranges at the borders of the segments.
fn quarters(range: Range) -> Vec<Range> {
    (0..4u64)
        .filter_map(|quarter| {
            Range { low: quarter << 62, high: (quarter << 62) + ((1 << 62) - 1) }.intersect(range)
        })
        .collect()
}

/// Whether every place on the ring has a living, complete holder.
fn is_whole(config: &Config, world: &World) -> bool {
    let active = |id: &ProcessId| config.storage.get(id) == Some(&StorageState::Active) && world.lives(*id);
    config.ring.len() == 4 && config.ring.values().all(active)
}

const SEEDS: u64 = 60;

#[test]
fn random_schedules_keep_every_promise() {
    let mut counts = BTreeMap::new();
    for seed in 0..SEEDS {
        run(seed, 0, &mut counts);
    }
    println!("{counts:?}");
    let wanted = ["leader", "router crash", "storage crash", "replace", "wedged", "maybe applied", "restart"];
    for what in wanted {
        assert!(counts.get(what).is_some_and(|count| *count > 0), "no schedule showed {what}: {counts:?}");
    }
}

#[test]
fn no_promise_is_broken_when_all_routers_die() {
    let mut counts = BTreeMap::new();
    for seed in 0..SEEDS / 2 {
        run(seed, 1 + seed % 2, &mut counts);
    }
    println!("{counts:?}");
    let wanted = [
        "all routers lost",
        "generation from members",
        "founder lost before the cut",
        "founder lost behind the cut",
    ];
    for what in wanted {
        assert!(counts.get(what).is_some_and(|count| *count > 0), "no schedule showed {what}: {counts:?}");
    }
}
