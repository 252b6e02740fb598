//! The virtual world: machines, their clocks and processors, the network between them, and one queue of what happens.
//!
//! A world is generic over one [`Protocol`]; processes of several roles are one protocol with several forms. Every
//! message goes through its bytes: encoded when it is sent, decoded when it arrives. Nothing ticks: an idle process
//! costs nothing. What happens is ordered by (time, sequence), all chance comes from the seed, and a rolling hash over
//! everything that happened proves that a run replays.
//!
//! A world may also be moved by hand ([`World::by_hand`]): then nothing is queued, and somebody says what comes next.
//!
//! What a process tells its user goes to an [`Environment`], which is also the one that starts processes, issues
//! commands and checks.
//!
//! ```text
//!             Environment            issues commands, records, checks
//!          events │  ▲ │ commands
//!   ┌─────────────▼──┴─▼──────────┐
//!   │ machine: inbox → process    │  one batch at a time, at a modelled cost, on a skewed clock
//!   └───────┬───────────────▲─────┘
//!     frames│               │frames after their delay, while their session stands
//!           └── the links ──┘
//! ```

mod casts;
mod faults;
mod hand;
mod links;
mod work;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{
    Incarnation, MulticastAddress, Policy, ProcessId, Protocol, Ticket, Time, journal::Hearsay, wire::Wire,
};
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::Xxh3;

use self::hand::Hands;
use crate::{
    disk::{Breach, Disk, DiskSettings},
    machine::{Arrival, Clock, Machine, MachineSettings},
    network::{Frame, Life, Link, LinkState, Network, NetworkSettings, end},
    random::Chance,
};

/// What the world does with a process' user.
pub trait Environment<P: Protocol> {
    /// Makes the process for a new life of `machine`.
    fn start(&mut self, world: &mut World<P>, machine: usize, id: ProcessId) -> P;
    /// Whether the process `id` can go on from these records, which are all that was durable on `machine`; a new one begins if
    /// not.
    fn goes_on(
        &mut self,
        _world: &mut World<P>,
        _machine: usize,
        _id: ProcessId,
        _records: &[(Ticket, Bytes)],
    ) -> bool {
        true
    }
    /// A process told its user something.
    fn event(&mut self, world: &mut World<P>, machine: usize, event: P::Event) -> Result<(), Violation>;
    /// A timer of [`World::timer`] fired.
    fn timer(&mut self, _world: &mut World<P>, _token: u64) -> Result<(), Violation> {
        Ok(())
    }
    /// The process on `machine` has adopted another policy: what it told before, it told under the earlier one.
    fn adopted(&mut self, _world: &mut World<P>, _machine: usize) -> Result<(), Violation> {
        Ok(())
    }
    /// The process on `machine` met one that shows `theirs`, and may not be linked with it.
    fn stranger(&mut self, _world: &mut World<P>, _machine: usize, _theirs: &[u8]) {}
    /// A cast is about to be handed over by hand, which came by this address, or to the process alone.
    fn cast(
        &mut self,
        _world: &World<P>,
        _way: (ProcessId, ProcessId),
        _by: Option<MulticastAddress>,
        _message: &P::Message,
    ) {
    }
    /// A message is about to be handed over by hand.
    fn delivered(&mut self, _world: &World<P>, _from: ProcessId, _to: ProcessId, _message: &P::Message) {}
    /// The process on `machine`, which has no disk, wrote these records; told in a world that is moved by hand.
    fn wrote(&mut self, _world: &World<P>, _machine: usize, _records: Vec<Bytes>) {}
    /// A process finished a batch, or by hand met a stranger: the moment for checkers that look inside.
    fn stepped(&mut self, _world: &mut World<P>, _machine: usize) -> Result<(), Violation> {
        Ok(())
    }
}

/// A promise that was broken, found by a checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub rule: &'static str,
    /// By whom and how.
    pub detail: String,
}

impl Violation {
    /// The violation of `rule`, with its detail.
    pub fn new(rule: &'static str, detail: impl Into<String>) -> Self {
        Violation { rule, detail: detail.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.rule, self.detail)
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies, its machine resets its links: peers see it soon.
    Killed,
    /// The machine vanishes: peers see silence.
    Vanished,
}

/// The virtual world.
pub struct World<P: Protocol> {
    now: Time,
    sequence: u64,
    queue: BinaryHeap<Reverse<Entry<P>>>,
    machines: Vec<Machine<P>>,
    lives: Vec<Living>,
    life_of: FxHashMap<ProcessId, Life>,
    network: Network,
    /// Listeners by address, those who died among them.
    ears: BTreeMap<MulticastAddress, BTreeSet<Life>>,
    network_settings: NetworkSettings,
    machine_settings: MachineSettings,
    chance_network: Chance,
    chance_casts: Chance,
    chance_birth: Chance,
    chance_disk: Chance,
    /// Whether new machines have disks, what those are like, and which rule of disks they break.
    disks: Option<(DiskSettings, Option<Breach>)>,
    seed: u64,
    trace: Xxh3,
    steps: u64,
    counts: BTreeMap<&'static str, u64>,
    /// Until when each machine had trouble with others: a link that broke or was held, a process that began or ended.
    trouble: Vec<Time>,
    /// Every life of a machine takes the id of its first: a mutation.
    first_ids: Option<BTreeMap<usize, ProcessId>>,
    /// Policies forbid no links: a mutation.
    all_admitted: bool,
    /// What the effects of faults are counted for.
    blamed: &'static str,
    /// In a world that is moved by hand.
    hands: Option<Hands>,
}

struct Living {
    machine: usize,
    id: ProcessId,
    policy: Arc<dyn Policy>,
    alive: bool,
    /// Died without a word.
    vanished: bool,
}

enum Happening<P: Protocol> {
    Work { life: Life },
    Wake { life: Life },
    Frame { from: Life, to: Life, session: u64, frame: Frame },
    Cast { from: Life, to: Life, session: u64, message: Bytes },
    Dial { from: Life, to: Life },
    DialFailed { from: Life, to: Life },
    Linked { life: Life, peer: Life, session: u64 },
    Unlinked { life: Life, peer: Life, session: u64 },
    Command { life: Life, command: P::Command },
    Break { one: Life, other: Life, session: u64 },
    Pause { life: Life, until: Time, cause: &'static str },
    Start { machine: usize },
    Stop { life: Life },
    Stranger { life: Life, theirs: Bytes },
    Synced { life: Life },
    Timer { token: u64 },
}

struct Entry<P: Protocol> {
    at: Time,
    sequence: u64,
    happening: Happening<P>,
}

impl<P: Protocol> PartialEq for Entry<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl<P: Protocol> Eq for Entry<P> {}

impl<P: Protocol> PartialOrd for Entry<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P: Protocol> Ord for Entry<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl<P: Protocol> World<P>
where
    P::Message: Wire,
{
    /// An empty world.
    pub fn new(seed: u64, network: NetworkSettings, machines: MachineSettings) -> Self {
        let mut chance_network = Chance::new(seed, "network");
        let slowness = network.slowness_max.max(1.0).powf(chance_network.unit());
        let network = NetworkSettings { delay: network.delay.scaled(slowness), ..network };
        World {
            now: Time::ZERO,
            sequence: 0,
            queue: BinaryHeap::new(),
            machines: Vec::new(),
            lives: Vec::new(),
            life_of: FxHashMap::default(),
            network: Network::default(),
            ears: BTreeMap::new(),
            network_settings: network,
            machine_settings: machines,
            chance_network,
            chance_casts: Chance::new(seed, "casts"),
            chance_birth: Chance::new(seed, "birth"),
            chance_disk: Chance::new(seed, "disk"),
            disks: None,
            seed,
            trace: Xxh3::new(),
            steps: 0,
            counts: BTreeMap::new(),
            trouble: Vec::new(),
            first_ids: None,
            all_admitted: false,
            blamed: UNBLAMED,
            hands: None,
        }
    }

    /// Machines that are added from now on have disks.
    pub fn with_disks(&mut self, settings: DiskSettings, breach: Option<Breach>) {
        self.disks = Some((settings, breach));
    }

    /// Machines that are added from now on have none.
    pub fn without_disks(&mut self) {
        self.disks = None;
    }

    /// The records of the process that is about to start on `machine`, if it goes on from its disk.
    pub fn records(&mut self, machine: usize) -> Vec<Bytes> {
        self.take_records(machine).into_iter().map(|(_, record)| record).collect()
    }

    fn take_records(&mut self, machine: usize) -> Vec<(Ticket, Bytes)> {
        self.machines[machine].disk.as_mut().map(Disk::take_records).unwrap_or_default()
    }

    /// The process on `machine` will not come back as the one it is: its disk is emptied when it ends.
    pub fn wipe_at_end(&mut self, machine: usize) {
        if let Some(disk) = &mut self.machines[machine].disk {
            disk.forget();
        }
    }

    /// Whether the process `id` is made again from the disk of `machine`, which is emptied if not.
    fn is_gone_on_from<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        machine: usize,
        id: ProcessId,
    ) -> bool {
        let records = self.take_records(machine);
        let goes_on = environment.goes_on(self, machine, id, &records);
        if let Some(disk) = &mut self.machines[machine].disk {
            if goes_on { disk.give_records(records) } else { disk.abandon() }
        }
        goes_on
    }

    /// How many lives there have been in this world.
    pub fn births(&self) -> u64 {
        self.lives.len() as u64
    }

    /// Whether this process lives, or is down and will be made again from its disk: not from an older copy.
    pub fn remains(&self, id: ProcessId) -> bool {
        let rests = |slot: &Machine<P>| {
            slot.process.is_none() && slot.disk.as_ref().is_some_and(|disk| disk.owner() == Some(id))
        };
        let slot = self.machines.get(id.node as usize);
        self.alive(id) && !self.has_older_copy(id.node as usize) || slot.is_some_and(rests)
    }

    /// From now on every life of a machine takes the id of its first, as if there were no incarnations: a mutation.
    pub fn reuse_ids(&mut self) {
        self.first_ids = Some(BTreeMap::new());
    }

    /// From now on policies forbid no links: a mutation.
    pub fn admit_all(&mut self) {
        self.all_admitted = true;
    }

    /// Adds a machine, on which nothing runs yet, and tells its number.
    pub fn machine(&mut self) -> usize {
        let number = self.machines.len();
        let mut chance = Chance::new(self.seed, &format!("machine {number}"));
        let drift = self.machine_settings.drift_max * (2.0 * chance.unit() - 1.0);
        let clock = match self.hands {
            Some(_) => Clock::new(0, 0.0),
            None => Clock::new(chance.below(1 << 50), drift),
        };
        let slowness = 1.0 + chance.unit() * (self.machine_settings.slowness_max - 1.0).max(0.0);
        self.trouble.push(self.now);
        self.machines.push(Machine {
            address: Self::address(number),
            process: None,
            life: Life::MAX,
            inbox: VecDeque::new(),
            neighbours: BTreeSet::new(),
            chance,
            clock,
            slowness,
            busy_until: Time::ZERO,
            paused_until: Time::ZERO,
            paused_by: UNBLAMED,
            work_at: None,
            wake_at: None,
            tickets: 0,
            disk: self.disks.map(|(settings, breach)| Disk::new(settings, breach)),
            hearsay: Hearsay::default(),
        });
        number
    }

    /// The id that the next life of `machine` will have, drawn now; [`World::start`] takes it. For founders, who must
    /// know each other before they live.
    pub fn birth(&mut self, machine: usize) -> ProcessId {
        let id = ProcessId { node: machine as u64, incarnation: Incarnation(self.chance_birth.bits_128()) };
        match &mut self.first_ids {
            Some(first) => *first.entry(machine).or_insert(id),
            None => id,
        }
    }

    /// Starts `process` on `machine`, where nothing may run.
    pub fn start(&mut self, machine: usize, id: ProcessId, process: P) {
        let life = Life::try_from(self.lives.len()).expect("fewer than 2³² lives");
        let policy = process.policy();
        self.lives.push(Living { machine, id, policy, alive: true, vanished: false });
        let before = self.life_of.insert(id, life);
        let again = self.machines[machine].disk.is_some()
            && before.is_some_and(|before| !self.lives[before as usize].alive);
        assert!(before.is_none() || self.first_ids.is_some() || again, "{id} lives twice");
        let slot = &mut self.machines[machine];
        assert!(
            slot.process.is_none(),
            "machine {machine} runs {} already",
            self.lives[slot.life as usize].id
        );
        slot.process = Some(process);
        slot.life = life;
        slot.work_at = None;
        slot.wake_at = None;
        slot.busy_until = self.now;
        let begun = slot.disk.as_mut().map(|disk| disk.begin(id, life.into()));
        let (last, hearsay) = begun.unwrap_or((Ticket(0), Hearsay::default()));
        (slot.tickets, slot.hearsay) = (last.0, hearsay);
        self.troubled(machine, self.now);
        self.note(b'S', machine as u64, life.into());
        // An empty batch lets the process ask for links and deadlines.
        self.work_later(machine);
    }

    /// Has [`Environment::start`] make a new process on `machine` after `delay`, unless one runs there by then.
    pub fn restart_after(&mut self, machine: usize, delay: Duration) {
        self.push(self.now + delay, Happening::Start { machine });
    }

    /// Ends the process on `machine` after `delay`, when what it has sent has arrived if the network let it, and has
    /// [`Environment::start`] make a new one soon after: how a process ends that learned that it is out.
    pub fn stop_after(&mut self, machine: usize, delay: Duration) {
        if self.machines[machine].process.is_some() {
            let life = self.machines[machine].life;
            self.push(self.now + delay, Happening::Stop { life });
        }
    }

    /// Hands `command` to the process on `machine` after `delay`, if it still lives by then.
    pub fn command_after(&mut self, machine: usize, delay: Duration, command: P::Command) {
        if self.machines[machine].process.is_some() {
            let life = self.machines[machine].life;
            self.push(self.now + delay, Happening::Command { life, command });
        }
    }

    /// Hands `command` to the process on `machine`.
    pub fn command(&mut self, machine: usize, command: P::Command) {
        self.command_after(machine, Duration::ZERO, command);
    }

    /// Fires [`Environment::timer`] after `delay`.
    pub fn timer(&mut self, delay: Duration, token: u64) {
        self.push(self.now + delay, Happening::Timer { token });
    }

    /// The present instant; no process sees this clock.
    pub fn now(&self) -> Time {
        self.now
    }

    /// How many machines there are.
    pub fn machines(&self) -> usize {
        self.machines.len()
    }

    /// The process on `machine`, while one runs.
    pub fn process(&self, machine: usize) -> Option<&P> {
        self.machines[machine].process.as_ref()
    }

    /// Who runs on `machine`.
    pub fn id(&self, machine: usize) -> Option<ProcessId> {
        let slot = &self.machines[machine];
        slot.process.as_ref().map(|_| self.lives[slot.life as usize].id)
    }

    /// Whether a session stands between the life on `machine` and the newest of `process`.
    pub fn is_linked(&self, machine: usize, process: ProcessId) -> bool {
        self.life_of.get(&process).is_some_and(|&peer| self.network.is_up(self.machines[machine].life, peer))
    }

    /// The number of the life that `machine` sees or saw last: unlike ids, given by the world and never twice.
    pub fn life(&self, machine: usize) -> u64 {
        self.machines[machine].life.into()
    }

    /// What the life on `machine` shows to others; of one that is over, what it showed last.
    pub fn pass(&self, machine: usize) -> Option<Bytes> {
        Some(self.lives.get(self.machines[machine].life as usize)?.policy.pass())
    }

    /// Whether this process lives.
    pub fn alive(&self, id: ProcessId) -> bool {
        self.life_of.get(&id).is_some_and(|&life| self.lives[life as usize].alive)
    }

    /// Whether the process on `machine` is paused.
    pub fn paused(&self, machine: usize) -> bool {
        self.machines[machine].paused_until > self.now
    }

    /// Until when the process on `machine` stood still, the last time it did.
    pub fn slept_until(&self, machine: usize) -> Time {
        self.machines[machine].paused_until
    }

    /// Whether nothing was wrong with `machine` and its links for the last `span`, but that its process may have slept.
    pub fn untroubled(&self, machine: usize, span: Duration) -> bool {
        self.trouble[machine] + span < self.now
    }

    pub(crate) fn troubled(&mut self, machine: usize, until: Time) {
        let trouble = &mut self.trouble[machine];
        *trouble = until.max(*trouble);
    }

    /// What the clock of `machine` shows.
    pub fn clock(&self, machine: usize) -> Time {
        self.machines[machine].clock.local(self.now)
    }

    /// Where the process on `machine` listens.
    pub fn address(machine: usize) -> String {
        format!("machine:{machine}")
    }

    /// Counts that something noteworthy happened.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// What happened how often.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// The hash of everything that happened so far.
    pub fn trace(&self) -> u64 {
        self.trace.digest()
    }

    /// How many things happened so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Runs until `until`, or until `done` says so after something happened, or until a checker objects.
    pub fn run<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        until: Time,
        mut done: impl FnMut(&mut Self, &mut E) -> bool,
    ) -> Result<bool, Violation> {
        while let Some(Reverse(entry)) = self.queue.peek() {
            if entry.at > until {
                break;
            }
            let Some(Reverse(entry)) = self.queue.pop() else { break };
            assert!(entry.at >= self.now, "time runs backwards");
            self.now = entry.at;
            self.steps += 1;
            self.happen(environment, entry.happening)?;
            if done(self, environment) {
                return Ok(true);
            }
        }
        self.now = self.now.max(until);
        Ok(false)
    }

    fn happen<E: Environment<P>>(
        &mut self,
        environment: &mut E,
        happening: Happening<P>,
    ) -> Result<(), Violation> {
        match happening {
            Happening::Work { life } => {
                if let Some(machine) = self.living(life)
                    && self.machines[machine].work_at == Some(self.now)
                {
                    self.work(environment, machine)?;
                }
            }
            Happening::Wake { life } => {
                if let Some(machine) = self.living(life)
                    && self.machines[machine].wake_at == Some(self.now)
                {
                    self.machines[machine].wake_at = None;
                    if self.deadline(machine).is_some_and(|at| at <= self.now) {
                        self.arrive(machine, Arrival::Deadline);
                    } else {
                        self.wake_later(machine);
                    }
                }
            }
            Happening::Frame { from, to, session, frame } => {
                let Some(machine) = self.living(to) else { return Ok(()) };
                if self.is_heard(from, to, session) {
                    self.arrive(machine, Arrival::Frame { from, frame });
                }
            }
            Happening::Cast { from, to, session, message } => {
                let Some(machine) = self.living(to) else { return Ok(()) };
                if self.is_heard(from, to, session) {
                    self.arrive(machine, Arrival::Cast { from, message });
                } else {
                    self.count("cast of another session");
                }
            }
            Happening::Linked { life, peer, session } => {
                let Some(machine) = self.living(life) else { return Ok(()) };
                let Some(link) = self.network.existing(life, peer) else { return Ok(()) };
                let end = end(life, peer);
                if link.session == session && link.state != LinkState::Idle && !link.ends[end].shut {
                    link.ends[end].open = true;
                    self.arrive(machine, Arrival::Linked { peer, session });
                }
            }
            Happening::Unlinked { life, peer, session } => self.unlinked(life, peer, session),
            Happening::Dial { from, to } => self.dial(from, to),
            Happening::DialFailed { from, to } => self.dial_failed(from, to),
            Happening::Command { life, command } => {
                if let Some(machine) = self.living(life) {
                    self.arrive(machine, Arrival::Command(command));
                }
            }
            Happening::Break { one, other, session } => self.broken(one, other, session),
            Happening::Pause { life, until, cause } => {
                if let Some(machine) = self.living(life) {
                    self.blame(cause);
                    self.pause(machine, until.since(self.now));
                }
            }
            Happening::Start { machine } => {
                if self.machines[machine].process.is_none() {
                    let (kept, found) = match &mut self.machines[machine].disk {
                        Some(disk) => disk.recover(),
                        None => (None, None),
                    };
                    found.into_iter().for_each(|found| self.count(found));
                    let kept = kept.filter(|id| self.is_gone_on_from(environment, machine, *id));
                    let id = kept.unwrap_or_else(|| self.birth(machine));
                    let process = environment.start(self, machine, id);
                    self.start(machine, id, process);
                    environment.stepped(self, machine)?;
                }
            }
            Happening::Stop { life } => {
                if let Some(machine) = self.living(life) {
                    self.crash(machine, Crash::Killed);
                    self.restart_after(machine, Duration::from_millis(20));
                }
            }
            Happening::Stranger { life, theirs } => {
                if let Some(machine) = self.living(life) {
                    environment.stranger(self, machine, &theirs);
                }
            }
            Happening::Synced { life } => {
                if let Some(machine) = self.living(life) {
                    self.synced(machine);
                }
            }
            Happening::Timer { token } => {
                self.note(b'T', token, 0);
                environment.timer(self, token)?;
            }
        }
        Ok(())
    }

    /// Whether the life `to` has this session with `from`. Between a process and itself there is no link that could break.
    fn is_heard(&mut self, from: Life, to: Life, session: u64) -> bool {
        let open = |link: &mut Link| link.session == session && link.ends[end(to, from)].open;
        from == to || self.network.existing(from, to).is_some_and(open)
    }

    fn living(&self, life: Life) -> Option<usize> {
        let living = &self.lives[life as usize];
        living.alive.then_some(living.machine)
    }

    fn present(&self, machine: usize) -> Option<Life> {
        let slot = &self.machines[machine];
        slot.process.as_ref().map(|_| slot.life)
    }

    fn push(&mut self, at: Time, happening: Happening<P>) {
        // By hand nothing happens by itself.
        if self.hands.is_some() {
            return;
        }
        self.sequence += 1;
        self.queue.push(Reverse(Entry { at, sequence: self.sequence, happening }));
    }

    /// Folds a happening into the trace.
    fn note(&mut self, kind: u8, one: u64, other: u64) {
        let mut bytes = [0; 25];
        bytes[0] = kind;
        bytes[1..9].copy_from_slice(&self.now.0.to_le_bytes());
        bytes[9..17].copy_from_slice(&one.to_le_bytes());
        bytes[17..25].copy_from_slice(&other.to_le_bytes());
        self.trace.update(&bytes);
    }
}

/// What effects are counted for that are no fault's.
const UNBLAMED: &str = "withheld by the scenario";
