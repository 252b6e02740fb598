//! The virtual world: machines, their clocks and processors, the network between them, and one queue of
//! events.
//!
//! A world is generic over one [`Protocol`]; to have processes of several roles, the protocol is one type
//! with several forms. Every message is encoded when it is sent and decoded when it arrives. There are no
//! ticks, so an idle process costs no time. Events are ordered by (time, sequence), all randomness comes from
//! the seed, and a rolling hash over all events proves that a run replays.
//!
//! A world may also be moved by hand ([`World::by_hand`]). Then no events are queued, and the world's owner
//! chooses each step.
//!
//! The [`Environment`] receives the events of processes. It also starts processes, issues commands and checks
//! promises.
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
mod links;
mod manual;
mod moves;
mod work;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{
    Incarnation, MulticastAddress, Policy, ProcessId, Protocol, Ticket, Time, journal::RemoteDurability,
    wire::Wire,
};
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    disk::{Breach, Disk, DiskSettings},
    machine::{Arrival, Machine, MachineClock, MachineSettings},
    network::{Frame, LifeNumber, Link, LinkState, Network, NetworkSettings, end},
    random::Chance,
};

use self::manual::ManualControl;

/// The user of a world: it starts processes, gives them commands, and receives their events.
pub trait Environment<P: Protocol> {
    /// Makes the process for a new life of `machine`.
    fn start(&mut self, world: &mut World<P>, machine: usize, id: ProcessId) -> P;
    /// Whether the process `id` can continue from these records, which are all durable records on `machine`.
    /// If not, a new process starts.
    fn goes_on(
        &mut self,
        _world: &mut World<P>,
        _machine: usize,
        _id: ProcessId,
        _records: &[(Ticket, Bytes)],
    ) -> bool {
        true
    }
    /// Receives an event of the process on `machine`.
    fn event(&mut self, world: &mut World<P>, machine: usize, event: P::Event) -> Result<(), Violation>;
    /// Handles the end of a timer that [`World::timer`] set.
    fn timer(&mut self, _world: &mut World<P>, _token: u64) -> Result<(), Violation> {
        Ok(())
    }
    /// Receives the notice that the process on `machine` has adopted a new policy. Events before this call
    /// belong to the former policy.
    fn adopted(&mut self, _world: &mut World<P>, _machine: usize) -> Result<(), Violation> {
        Ok(())
    }
    /// Receives the notice that the process on `machine` met a process with the pass `theirs`, and that the
    /// policies forbid a link.
    fn policy_mismatch(&mut self, _world: &mut World<P>, _machine: usize, _theirs: &[u8]) {}
    /// Observes a cast that is about to be delivered by hand. `_by` is the multicast address, or `None` for a
    /// cast to one process.
    fn cast(
        &mut self,
        _world: &World<P>,
        _way: (ProcessId, ProcessId),
        _by: Option<MulticastAddress>,
        _message: &P::Message,
    ) {
    }
    /// Observes a message that is about to be delivered by hand.
    fn delivered(&mut self, _world: &World<P>, _from: ProcessId, _to: ProcessId, _message: &P::Message) {}
    /// Observes records that a process without a disk wrote, in a world that is moved by hand.
    fn wrote(&mut self, _world: &World<P>, _machine: usize, _records: Vec<Bytes>) {}
    /// Inspects a process, for checkers. Called after each batch of the process and, in a world that is moved
    /// by hand, after the process met a process that it did not know.
    fn stepped(&mut self, _world: &mut World<P>, _machine: usize) -> Result<(), Violation> {
        Ok(())
    }
}

/// A broken promise, found by a checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the promise.
    pub rule: &'static str,
    /// The processes and values involved.
    pub detail: String,
}

impl Violation {
    /// Makes a violation of `rule`.
    pub fn new(rule: &'static str, detail: impl Into<String>) -> Self {
        Violation { rule, detail: detail.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.rule, self.detail)
    }
}

/// The manner in which a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies, and its machine resets the links, so peers notice soon.
    Killed,
    /// The machine vanishes, so peers notice only its silence.
    Vanished,
}

/// The virtual world.
pub struct World<P: Protocol> {
    now: Time,
    sequence: u64,
    queue: BinaryHeap<Reverse<QueuedEvent<P>>>,
    machines: Vec<Machine<P>>,
    lives: Vec<LifeState>,
    life_of: FxHashMap<ProcessId, LifeNumber>,
    network: Network,
    /// The lives that listen to each address, including dead ones.
    multicast_listeners: BTreeMap<MulticastAddress, BTreeSet<LifeNumber>>,
    network_settings: NetworkSettings,
    machine_settings: MachineSettings,
    chance_network: Chance,
    chance_casts: Chance,
    chance_birth: Chance,
    chance_disk: Chance,
    /// The settings of the disks that new machines get, and the rule that these disks violate, if any. `None`
    /// if new machines get no disks.
    disks: Option<(DiskSettings, Option<Breach>)>,
    seed: u64,
    trace: Xxh3,
    steps: u64,
    counts: BTreeMap<&'static str, u64>,
    /// For each machine, the last instant of trouble with other machines: a link broke or was delayed, or a
    /// process started or ended.
    trouble: Vec<Time>,
    /// The id of each machine's first life. If set, later lives of the machine take this id, too: a mutation.
    first_ids: Option<BTreeMap<usize, ProcessId>>,
    /// Whether links are allowed although policies forbid them: a mutation.
    all_admitted: bool,
    /// The name under which effects of the present fault are counted.
    blamed: &'static str,
    /// The state of a world that is moved by hand.
    manual: Option<ManualControl>,
}

struct LifeState {
    machine: usize,
    id: ProcessId,
    policy: Arc<dyn Policy>,
    alive: bool,
    /// Whether the machine of this process vanished, so that its peers got no reset.
    vanished: bool,
}

enum WorldEvent<P: Protocol> {
    Work { life: LifeNumber },
    Wake { life: LifeNumber },
    Frame { from: LifeNumber, to: LifeNumber, session: u64, frame: Frame },
    Cast { from: LifeNumber, to: LifeNumber, session: u64, message: Bytes },
    Dial { from: LifeNumber, to: LifeNumber },
    DialFailed { from: LifeNumber, to: LifeNumber },
    Linked { life: LifeNumber, peer: LifeNumber, session: u64 },
    Unlinked { life: LifeNumber, peer: LifeNumber, session: u64 },
    Command { life: LifeNumber, command: P::Command },
    Break { one: LifeNumber, other: LifeNumber, session: u64 },
    Pause { life: LifeNumber, until: Time, cause: &'static str },
    Start { machine: usize },
    Stop { life: LifeNumber },
    PolicyMismatch { life: LifeNumber, theirs: Bytes },
    Synced { life: LifeNumber },
    Timer { token: u64 },
}

struct QueuedEvent<P: Protocol> {
    at: Time,
    sequence: u64,
    world_event: WorldEvent<P>,
}

impl<P: Protocol> PartialEq for QueuedEvent<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl<P: Protocol> Eq for QueuedEvent<P> {}

impl<P: Protocol> PartialOrd for QueuedEvent<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P: Protocol> Ord for QueuedEvent<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl<P: Protocol> World<P>
where
    P::Message: Wire,
{
    /// Makes an empty world.
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
            multicast_listeners: BTreeMap::new(),
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
            blamed: NO_FAULT,
            manual: None,
        }
    }

    /// Gives disks to all machines that are added from now on.
    pub fn with_disks(&mut self, settings: DiskSettings, breach: Option<Breach>) {
        self.disks = Some((settings, breach));
    }

    /// Gives no disks to machines that are added from now on.
    pub fn without_disks(&mut self) {
        self.disks = None;
    }

    /// Removes and returns the records of the process that is about to start on `machine`. Returns no records
    /// if the process does not continue from its disk.
    pub fn records(&mut self, machine: usize) -> Vec<Bytes> {
        self.take_records(machine).into_iter().map(|(_, record)| record).collect()
    }

    fn take_records(&mut self, machine: usize) -> Vec<(Ticket, Bytes)> {
        self.machines[machine].disk.as_mut().map(Disk::take_records).unwrap_or_default()
    }

    /// Empties the disk of `machine` when the process there ends, so that the process does not come back.
    pub fn wipe_at_end(&mut self, machine: usize) {
        if let Some(disk) = &mut self.machines[machine].disk {
            disk.forget();
        }
    }

    /// Whether the process `id` is to be restored from the disk of `machine`. If not, the call empties the
    /// disk.
    fn continues_from<E: Environment<P>>(
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

    /// Returns the number of lives in this world so far.
    pub fn births(&self) -> u64 {
        self.lives.len() as u64
    }

    /// Whether this process lives, or can be restored from its disk. A process cannot be restored from an
    /// older copy of its disk.
    pub fn remains(&self, id: ProcessId) -> bool {
        let rests = |slot: &Machine<P>| {
            slot.process.is_none() && slot.disk.as_ref().is_some_and(|disk| disk.owner() == Some(id))
        };
        let slot = self.machines.get(id.node as usize);
        self.alive(id) && !self.has_older_copy(id.node as usize) || slot.is_some_and(rests)
    }

    /// Gives every later life of a machine the id of the machine's first life, as if there were no
    /// incarnations: a mutation.
    pub fn reuse_ids(&mut self) {
        self.first_ids = Some(BTreeMap::new());
    }

    /// Allows all links from now on, whatever the policies forbid: a mutation.
    pub fn admit_all(&mut self) {
        self.all_admitted = true;
    }

    /// Adds a machine without a process, and returns its number.
    pub fn machine(&mut self) -> usize {
        let number = self.machines.len();
        let mut chance = Chance::new(self.seed, &format!("machine {number}"));
        let drift = self.machine_settings.drift_max * (2.0 * chance.unit() - 1.0);
        let clock = match self.manual {
            Some(_) => MachineClock::new(0, 0.0),
            None => MachineClock::new(chance.below(1 << 50), drift),
        };
        let slowness = 1.0 + chance.unit() * (self.machine_settings.slowness_max - 1.0).max(0.0);
        self.trouble.push(self.now);
        self.machines.push(Machine {
            address: Self::address(number),
            process: None,
            life: LifeNumber::MAX,
            inbox: VecDeque::new(),
            neighbours: BTreeSet::new(),
            chance,
            clock,
            slowness,
            busy_until: Time::ZERO,
            paused_until: Time::ZERO,
            paused_by: NO_FAULT,
            work_at: None,
            wake_at: None,
            tickets: 0,
            disk: self.disks.map(|(settings, breach)| Disk::new(settings, breach)),
            remote_durability: RemoteDurability::default(),
        });
        number
    }

    /// Draws the id of the next life of `machine`, for [`World::start`]. Founders need their ids earlier,
    /// because they must know one another before they start.
    pub fn birth(&mut self, machine: usize) -> ProcessId {
        let id = ProcessId { node: machine as u64, incarnation: Incarnation(self.chance_birth.bits_128()) };
        match &mut self.first_ids {
            Some(first) => *first.entry(machine).or_insert(id),
            None => id,
        }
    }

    /// Starts `process` on `machine`, where no process may run.
    pub fn start(&mut self, machine: usize, id: ProcessId, process: P) {
        let life = LifeNumber::try_from(self.lives.len()).expect("fewer than 2³² lives");
        let policy = process.policy();
        self.lives.push(LifeState { machine, id, policy, alive: true, vanished: false });
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
        let (last, remote_durability) = begun.unwrap_or((Ticket(0), RemoteDurability::default()));
        (slot.tickets, slot.remote_durability) = (last.0, remote_durability);
        self.troubled(machine, self.now);
        self.note(b'S', machine as u64, life.into());
        // An empty batch lets the process ask for links and deadlines.
        self.work_later(machine);
    }

    /// Calls [`Environment::start`] for `machine` after `delay`, unless a process runs there by then.
    pub fn restart_after(&mut self, machine: usize, delay: Duration) {
        self.push(self.now + delay, WorldEvent::Start { machine });
    }

    /// Ends the process on `machine` after `delay`, so that its last messages can arrive, and restarts the
    /// process soon after. A process ends in this way when it learns that it was removed.
    pub fn stop_after(&mut self, machine: usize, delay: Duration) {
        if self.machines[machine].process.is_some() {
            let life = self.machines[machine].life;
            self.push(self.now + delay, WorldEvent::Stop { life });
        }
    }

    /// Passes `command` to the process on `machine` after `delay`, if the same process still lives then.
    pub fn command_after(&mut self, machine: usize, delay: Duration, command: P::Command) {
        if self.machines[machine].process.is_some() {
            let life = self.machines[machine].life;
            self.push(self.now + delay, WorldEvent::Command { life, command });
        }
    }

    /// Passes `command` to the process on `machine`.
    pub fn command(&mut self, machine: usize, command: P::Command) {
        self.command_after(machine, Duration::ZERO, command);
    }

    /// Calls [`Environment::timer`] with `token` after `delay`.
    pub fn timer(&mut self, delay: Duration, token: u64) {
        self.push(self.now + delay, WorldEvent::Timer { token });
    }

    /// Returns the present real time, which no process sees.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the number of machines.
    pub fn machines(&self) -> usize {
        self.machines.len()
    }

    /// Returns the process that runs on `machine`, if any.
    pub fn process(&self, machine: usize) -> Option<&P> {
        self.machines[machine].process.as_ref()
    }

    /// Returns the id of the process that runs on `machine`, if any.
    pub fn id(&self, machine: usize) -> Option<ProcessId> {
        let slot = &self.machines[machine];
        slot.process.as_ref().map(|_| self.lives[slot.life as usize].id)
    }

    /// Whether a session stands between the life on `machine` and the newest life of `process`.
    pub fn is_linked(&self, machine: usize, process: ProcessId) -> bool {
        self.life_of.get(&process).is_some_and(|&peer| self.network.is_up(self.machines[machine].life, peer))
    }

    /// Returns the number of the present or last life on `machine`. Unlike ids, these numbers are never
    /// reused.
    pub fn life(&self, machine: usize) -> u64 {
        self.machines[machine].life.into()
    }

    /// Returns the pass of the present or last life on `machine`.
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

    /// Returns the time at which the last pause of the process on `machine` ended.
    pub fn slept_until(&self, machine: usize) -> Time {
        self.machines[machine].paused_until
    }

    /// Whether `machine` and its links had no trouble during the last `span`. A pause does not count as
    /// trouble.
    pub fn untroubled(&self, machine: usize, span: Duration) -> bool {
        self.trouble[machine] + span < self.now
    }

    pub(crate) fn troubled(&mut self, machine: usize, until: Time) {
        let trouble = &mut self.trouble[machine];
        *trouble = until.max(*trouble);
    }

    /// Returns the time that the clock of `machine` shows.
    pub fn clock(&self, machine: usize) -> Time {
        self.machines[machine].clock.local(self.now)
    }

    /// Returns the address of processes on `machine`.
    pub fn address(machine: usize) -> String {
        format!("machine:{machine}")
    }

    /// Counts one occurrence of `what`.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Returns the counts of all occurrences, by name.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// Returns the hash of all events so far.
    pub fn trace(&self) -> u64 {
        self.trace.digest()
    }

    /// Returns the number of events so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Runs until `until`, until `done` returns `true` after an event, or until a checker reports a
    /// violation. Returns whether `done` ended the run.
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
            self.happen(environment, entry.world_event)?;
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
        world_event: WorldEvent<P>,
    ) -> Result<(), Violation> {
        match world_event {
            WorldEvent::Work { life } => {
                if let Some(machine) = self.living(life)
                    && self.machines[machine].work_at == Some(self.now)
                {
                    self.work(environment, machine)?;
                }
            }
            WorldEvent::Wake { life } => {
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
            WorldEvent::Frame { from, to, session, frame } => {
                let Some(machine) = self.living(to) else { return Ok(()) };
                if self.is_heard(from, to, session) {
                    self.arrive(machine, Arrival::Frame { from, frame });
                }
            }
            WorldEvent::Cast { from, to, session, message } => {
                let Some(machine) = self.living(to) else { return Ok(()) };
                if self.is_heard(from, to, session) {
                    self.arrive(machine, Arrival::Cast { from, message });
                } else {
                    self.count("cast of another session");
                }
            }
            WorldEvent::Linked { life, peer, session } => {
                let Some(machine) = self.living(life) else { return Ok(()) };
                let Some(link) = self.network.existing(life, peer) else { return Ok(()) };
                let end = end(life, peer);
                if link.session == session && link.state != LinkState::Idle && !link.ends[end].shut {
                    link.ends[end].open = true;
                    self.arrive(machine, Arrival::Linked { peer, session });
                }
            }
            WorldEvent::Unlinked { life, peer, session } => self.unlinked(life, peer, session),
            WorldEvent::Dial { from, to } => self.dial(from, to),
            WorldEvent::DialFailed { from, to } => self.dial_failed(from, to),
            WorldEvent::Command { life, command } => {
                if let Some(machine) = self.living(life) {
                    self.arrive(machine, Arrival::Command(command));
                }
            }
            WorldEvent::Break { one, other, session } => self.broken(one, other, session),
            WorldEvent::Pause { life, until, cause } => {
                if let Some(machine) = self.living(life) {
                    self.blame(cause);
                    self.pause(machine, until.since(self.now));
                }
            }
            WorldEvent::Start { machine } => {
                if self.machines[machine].process.is_none() {
                    let (kept, found) = match &mut self.machines[machine].disk {
                        Some(disk) => disk.recover(),
                        None => (None, None),
                    };
                    found.into_iter().for_each(|found| self.count(found));
                    let kept = kept.filter(|id| self.continues_from(environment, machine, *id));
                    let id = kept.unwrap_or_else(|| self.birth(machine));
                    let process = environment.start(self, machine, id);
                    self.start(machine, id, process);
                    environment.stepped(self, machine)?;
                }
            }
            WorldEvent::Stop { life } => {
                if let Some(machine) = self.living(life) {
                    self.crash(machine, Crash::Killed);
                    self.restart_after(machine, Duration::from_millis(20));
                }
            }
            WorldEvent::PolicyMismatch { life, theirs } => {
                if let Some(machine) = self.living(life) {
                    environment.policy_mismatch(self, machine, &theirs);
                }
            }
            WorldEvent::Synced { life } => {
                if let Some(machine) = self.living(life) {
                    self.synced(machine);
                }
            }
            WorldEvent::Timer { token } => {
                self.note(b'T', token, 0);
                environment.timer(self, token)?;
            }
        }
        Ok(())
    }

    /// Whether the life `to` receives messages of `from` in this session. A process always receives its own
    /// messages.
    fn is_heard(&mut self, from: LifeNumber, to: LifeNumber, session: u64) -> bool {
        let open = |link: &mut Link| link.session == session && link.ends[end(to, from)].open;
        from == to || self.network.existing(from, to).is_some_and(open)
    }

    fn living(&self, life: LifeNumber) -> Option<usize> {
        let living = &self.lives[life as usize];
        living.alive.then_some(living.machine)
    }

    fn present(&self, machine: usize) -> Option<LifeNumber> {
        let slot = &self.machines[machine];
        slot.process.as_ref().map(|_| slot.life)
    }

    fn push(&mut self, at: Time, world_event: WorldEvent<P>) {
        // In a world that is moved by hand, no event happens by itself.
        if self.manual.is_some() {
            return;
        }
        self.sequence += 1;
        self.queue.push(Reverse(QueuedEvent { at, sequence: self.sequence, world_event }));
    }

    /// Adds an event to the trace.
    fn note(&mut self, kind: u8, one: u64, other: u64) {
        let mut bytes = [0; 25];
        bytes[0] = kind;
        bytes[1..9].copy_from_slice(&self.now.0.to_le_bytes());
        bytes[9..17].copy_from_slice(&one.to_le_bytes());
        bytes[17..25].copy_from_slice(&other.to_le_bytes());
        self.trace.update(&bytes);
    }
}

/// The name under which the world counts effects that no fault caused.
const NO_FAULT: &str = "withheld by the scenario";
