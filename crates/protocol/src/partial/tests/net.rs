//! Some cells, their links, their disks, and a clock. Every message and every record is encoded and decoded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};

use super::super::{journal::Past, layout::tests::process, *};
use crate::{
    Context, Destination, Duration, Input, Peer, ProcessId, Protocol, Session, Sink, Ticket, Time,
    ecast::{Position, Submissions},
    wire::Wire,
};

pub(super) const MAP: MapId = MapId(1);
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Out {
    sends: Vec<Sent>,
    events: Vec<Event>,
    records: Vec<(Ticket, Bytes)>,
    collected: Option<Ticket>,
    last: Ticket,
}

/// A message that is about to leave.
struct Sent {
    to: ProcessId,
    message: Message,
    after: Option<Ticket>,
    /// Whether the message may overtake messages that wait.
    aside: bool,
}

/// The disk of a cell.
#[derive(Default)]
pub(super) struct Disk {
    pub(super) records: Vec<(Ticket, Bytes)>,
    last: Ticket,
    durable: Ticket,
    /// Whether the disk syncs only on [`Net::sync`].
    slow: bool,
    held: Vec<Sent>,
}

impl Sink<Cell> for Out {
    fn send(&mut self, to: Destination, message: Message, after: Option<Ticket>) {
        let sent = |to| Sent { to, message: message.clone(), after, aside: false };
        match to {
            Destination::One(to) => self.sends.push(sent(to)),
            Destination::Many(many) => self.sends.extend(many.into_iter().map(sent)),
        }
    }

    fn send_aside(&mut self, to: Destination, message: Message) {
        let before = self.sends.len();
        self.send(to, message, None);
        self.sends[before..].iter_mut().for_each(|sent| sent.aside = true);
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        assert!(kept.is_empty());
        self.collected = Some(before);
    }

    fn persist(&mut self, record: Record) -> Ticket {
        let mut bytes = BytesMut::new();
        record.encode(&mut bytes);
        self.last = Ticket(self.last.0 + 1);
        self.records.push((self.last, bytes.freeze()));
        self.last
    }

    fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    fn reach(&mut self, _: ProcessId, _: &str) {}
    fn forget(&mut self, _: ProcessId) {}
}

/// Executes a command at a cell without links, and returns the cell's events.
pub(super) fn alone(cell: &mut Cell, command: Command) -> Vec<Event> {
    let mut out = Out::default();
    let mut cx = Context { now: Time::ZERO, me: process(9), random: &mut || 0 };
    cell.handle(&mut cx, Input::Command(command), &mut out);
    out.events
}

pub(super) fn operation(
    id: u64,
    key: &'static str,
    action: Action,
    level: Level,
    fallback: Option<Level>,
) -> Operation {
    Operation {
        id,
        map: MAP,
        key: Bytes::from_static(key.as_bytes()),
        level,
        fallback,
        delay: Duration::ZERO,
        action,
    }
}

pub(super) struct Net {
    pub(super) now: Time,
    settings: Settings,
    pub(super) cells: BTreeMap<u64, Cell>,
    layout: Layout,
    /// Messages on their way, by sender and receiver.
    queues: BTreeMap<(u64, u64), VecDeque<Bytes>>,
    cuts: BTreeSet<(u64, u64)>,
    held: BTreeSet<(u64, u64)>,
    chance: u64,
    sessions: u64,
    operations: u64,
    pub(super) outcomes: BTreeMap<u64, OperationOutcome>,
    scanned: BTreeMap<u64, Scanned>,
    /// Cells that have announced the end of their arrival, so that the order announces it.
    arrived: Vec<CellNumber>,
    /// The disks, in a net with disks.
    pub(super) disks: BTreeMap<u64, Disk>,
    /// Maximum size of a message on a link, in bytes.
    pub(super) frame_bytes_max: usize,
}

impl Disk {
    /// Returns a disk whose journal begins with the message by which its process joins.
    fn new() -> Disk {
        let mut bytes = BytesMut::new();
        let (name, address) = (String::from("cell"), String::from("h:1"));
        let body = Change::Join { name, address, site: Site(0), tokens: Vec::new() }.encode();
        Record::Submitted { token: 0, body }.encode(&mut bytes);
        let (last, durable) = (Ticket(1), Ticket(1));
        Disk { records: vec![(last, bytes.freeze())], last, durable, ..Disk::default() }
    }

    /// Returns the messages that may leave now: messages of earlier turns that waited, and messages of
    /// `sends`.
    fn release(&mut self, sends: Vec<Sent>) -> Vec<Sent> {
        let mut leaving = Vec::new();
        for sent in std::mem::take(&mut self.held).into_iter().chain(sends) {
            let waits = sent.after.is_some_and(|after| after > self.durable);
            let behind = self.held.iter().any(|held| held.to == sent.to);
            if sent.aside || !waits && !behind {
                leaving.push(sent);
            } else {
                self.held.push(sent);
            }
        }
        leaving
    }

    /// Returns the bytes that the disk's records take.
    pub(super) fn bytes(&self) -> usize {
        self.records.iter().map(|(_, record)| record.len() + 64).sum()
    }
}

impl Net {
    /// Returns cells 1, 2 … at these sites, linked with each other, and one map.
    pub(super) fn new(sites: &[u16], copies: &[(u16, u8)], read_repair: ReadRepair, seed: u64) -> Net {
        Net::with(Settings::default(), sites, copies, read_repair, seed)
    }

    /// Returns three or more cells at one site, with three copies. They do not compare, so hints show their
    /// effect alone.
    pub(super) fn without_comparing(cells: usize) -> Net {
        let usual = Settings::default();
        let repair = RepairSettings { every: Duration::from_secs(3_600), ..usual.repair };
        Net::with(Settings { repair, ..usual }, &vec![0; cells], &[(0, 3)], ReadRepair::None, 1)
    }

    /// Returns cells at one site, each with a disk, and as many copies as cells.
    pub(super) fn on_disks(cells: usize, read_repair: ReadRepair, checkpoint_bytes: u64, seed: u64) -> Net {
        let settings = Settings { checkpoint_bytes: Some(checkpoint_bytes), ..Settings::default() };
        Net::with(settings, &vec![0; cells], &[(0, cells as u8)], read_repair, seed)
    }

    pub(super) fn with(
        settings: Settings,
        sites: &[u16],
        copies: &[(u16, u8)],
        read_repair: ReadRepair,
        seed: u64,
    ) -> Net {
        let mut net = Net {
            now: Time(1_000_000_000),
            settings,
            cells: BTreeMap::new(),
            layout: Layout::default(),
            queues: BTreeMap::new(),
            cuts: BTreeSet::new(),
            held: BTreeSet::new(),
            chance: seed,
            sessions: 0,
            operations: 0,
            outcomes: BTreeMap::new(),
            scanned: BTreeMap::new(),
            arrived: Vec::new(),
            disks: BTreeMap::new(),
            frame_bytes_max: usize::MAX,
        };
        for node in 1..=sites.len() as u64 {
            if settings.checkpoint_bytes.is_some() {
                net.disks.insert(node, Disk::new());
            }
            net.cells.insert(node, Cell::new(process(node), settings, 0, net.now));
        }
        for (node, site) in (1u64..).zip(sites) {
            let peer = Peer { id: process(node), address: format!("h{node}:1") };
            let tokens = (0..4).map(|n| Token((node * 4 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
            net.order(&LayoutOrder::AddCell(LayoutMember {
                peer,
                site: Site(*site),
                tokens,
                arriving: false,
            }));
        }
        let copies = Copies::new(copies.iter().map(|(site, count)| (Site(*site), *count))).unwrap();
        net.order(&LayoutOrder::CreateMap(MAP, Map { copies, strategy: Strategy::Quorum(read_repair) }));
        net.heal();
        net.run(Duration::from_millis(200));
        net
    }

    pub(super) fn random(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random() % bound
    }

    pub(super) fn order(&mut self, order: &LayoutOrder) {
        self.layout.apply(order).expect("the tests ask for nothing that is refused");
        for node in self.nodes() {
            self.lay(node);
        }
    }

    /// Lets the cell adopt the present layout.
    fn lay(&mut self, node: u64) {
        let layout = self.layout.clone();
        self.turn(node, |cell, cx, out| cell.lay(cx, layout, out));
    }

    /// Lets a fresh cell take the place of the cell `old`.
    pub(super) fn replace(&mut self, old: u64, new: u64) {
        self.cells.insert(new, Cell::new(process(new), self.settings, 0, self.now));
        for other in self.nodes().into_iter().filter(|other| *other != new) {
            self.link(new, other);
        }
        let number = self.layout.number(process(old)).expect("it is a cell");
        let peer = Peer { id: process(new), address: format!("h{new}:1") };
        self.order(&LayoutOrder::Replace { old: number, new: peer });
    }

    /// Lets a fresh cell with a slow disk take the place of the cell `old`.
    pub(super) fn join_on_disk(&mut self, old: u64, new: u64) {
        self.disks.insert(new, Disk { slow: true, ..Disk::new() });
        self.replace(old, new);
    }

    /// Lets the order announce the arrivals that have ended. Returns their number.
    pub(super) fn order_arrivals(&mut self) -> usize {
        let arrived = std::mem::take(&mut self.arrived);
        for number in &arrived {
            if self.layout.cell(*number).is_some_and(|cell| cell.arriving) {
                self.order(&LayoutOrder::Complete(*number));
            }
        }
        arrived.len()
    }

    pub(super) fn nodes(&self) -> Vec<u64> {
        self.cells.keys().copied().collect()
    }

    pub(super) fn input(&mut self, node: u64, input: Input<Cell>) {
        self.turn(node, |cell, cx, out| cell.handle(cx, input, out));
    }

    fn turn(&mut self, node: u64, act: impl FnOnce(&mut Cell, &mut Context<'_>, &mut Out)) {
        let mut chance = self.random();
        let Some(cell) = self.cells.get_mut(&node) else { return };
        let mut out = Out::default();
        if let Some(disk) = self.disks.get(&node) {
            out.last = disk.last;
        }
        let mut random = || {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            chance >> 11
        };
        let mut cx = Context { now: self.now, me: process(node), random: &mut random };
        act(cell, &mut cx, &mut out);
        self.arrived.extend(cell.take_complete());
        if cell.is_checkpoint_due() {
            let roster = (Position(1), Roster::of(self.layout.clone()));
            cell.checkpoint(roster, Submissions::default(), &mut out);
        }
        let Out { sends, events, records, collected, last } = out;
        let sends = match self.disks.get_mut(&node) {
            None => sends,
            Some(disk) => {
                disk.records.extend(records);
                disk.last = last;
                if let Some(before) = collected {
                    disk.records.retain(|(ticket, _)| *ticket >= before);
                }
                disk.release(sends)
            }
        };
        self.leave(node, sends);
        self.record_events(events);
        if self.disks.get(&node).is_some_and(|disk| !disk.slow && disk.durable < disk.last) {
            self.sync(node);
        }
    }

    fn leave(&mut self, node: u64, sends: Vec<Sent>) {
        for Sent { to, message, .. } in sends {
            let mut bytes = BytesMut::new();
            message.encode(&mut bytes);
            assert!(bytes.len() <= self.frame_bytes_max, "no link carries {} bytes", bytes.len());
            let pair = (node, to.node);
            if self.cells.contains_key(&to.node) && !self.cuts.contains(&pair) {
                self.queues.entry(pair).or_default().push_back(bytes.freeze());
            }
        }
    }

    fn record_events(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Ended { id, outcome } => {
                    let before = self.outcomes.insert(id, outcome);
                    assert!(before.is_none(), "operation {id} ended twice");
                }
                Event::Scanned { id, outcome } => {
                    let before = self.scanned.insert(id, outcome);
                    assert!(before.is_none(), "scan {id} ended twice");
                }
                Event::Lacks(_) => {}
            }
        }
    }

    /// Returns the pairs of nodes with a message that may be delivered now.
    pub(super) fn ready(&self) -> Vec<(u64, u64)> {
        let ready =
            |(pair, queue): &(&(u64, u64), &VecDeque<Bytes>)| !queue.is_empty() && !self.held.contains(pair);
        self.queues.iter().filter(ready).map(|(pair, _)| *pair).collect()
    }

    pub(super) fn deliver(&mut self, (from, to): (u64, u64)) {
        let mut bytes = self.queues.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("it is ready");
        let message = Message::decode(&mut bytes).expect("our own bytes");
        self.input(to, Input::Receive { from: process(from), message });
    }

    /// Fires the deadlines that are due.
    pub(super) fn fire(&mut self) {
        for node in self.nodes() {
            if self.cells[&node].deadline().is_some_and(|deadline| deadline <= self.now) {
                self.input(node, Input::Deadline);
            }
        }
    }

    fn settle(&mut self) {
        while let Some(pair) = self.ready().first().copied() {
            self.deliver(pair);
        }
    }

    pub(super) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            self.settle();
            let next = self.cells.values().filter_map(Cell::deadline).min();
            match next.filter(|next| *next <= end) {
                Some(next) => self.now = self.now.max(next),
                None => break,
            }
            self.fire();
        }
        self.now = end;
    }

    pub(super) fn unlink(&mut self, a: u64, b: u64) {
        self.queues.remove(&(a, b));
        self.queues.remove(&(b, a));
        for (node, other) in [(a, b), (b, a)] {
            if let Some(disk) = self.disks.get_mut(&node) {
                disk.held.retain(|sent| sent.to.node != other);
            }
        }
        self.input(a, Input::Unlinked { peer: process(b) });
        self.input(b, Input::Unlinked { peer: process(a) });
    }

    pub(super) fn link(&mut self, a: u64, b: u64) {
        self.sessions += 1;
        let session = Session(self.sessions);
        self.input(a, Input::Linked { peer: process(b), session });
        self.input(b, Input::Linked { peer: process(a), session });
    }

    pub(super) fn cut(&mut self, a: u64, b: u64) {
        self.cuts.extend([(a, b), (b, a)]);
        self.unlink(a, b);
    }

    pub(super) fn heal(&mut self) {
        self.cuts.clear();
        let nodes = self.nodes();
        for (a, b) in nodes.iter().flat_map(|a| nodes.iter().map(move |b| (*a, *b))).filter(|(a, b)| a < b) {
            self.link(a, b);
        }
    }

    pub(super) fn crash(&mut self, node: u64) {
        self.cells.remove(&node);
        for other in self.nodes() {
            self.unlink(node, other);
        }
    }

    /// If `slow`, makes disks sync only on [`Net::sync`]. Otherwise makes them sync at once.
    pub(super) fn slow_disks(&mut self, slow: bool) {
        for node in self.nodes() {
            self.disks.get_mut(&node).expect("each cell has a disk").slow = slow;
            if !slow {
                self.sync(node);
            }
        }
    }

    /// Makes everything durable that a cell has written.
    pub(super) fn sync(&mut self, node: u64) {
        let disk = self.disks.get_mut(&node).expect("the cell has a disk");
        disk.durable = disk.last;
        let (through, sends) = (disk.durable, disk.release(Vec::new()));
        self.leave(node, sends);
        self.input(node, Input::Persisted(through));
    }

    /// Cuts a cell's power: the cell loses everything that is not durable.
    pub(super) fn cut_power(&mut self, node: u64) {
        self.crash(node);
        let disk = self.disks.get_mut(&node).expect("the cell has a disk");
        let durable = disk.durable;
        disk.records.retain(|(ticket, _)| *ticket <= durable);
        disk.held.clear();
    }

    /// Restarts a cell that lost power, with this offset of its clock.
    pub(super) fn restart(&mut self, node: u64, offset: i64) {
        let disk = self.disks.get_mut(&node).expect("the cell has a disk");
        (disk.last, disk.slow) = (disk.durable, false);
        let records = disk.records.iter().map(|(_, record)| record.clone()).collect();
        let past = Past::read(records, self.settings.limits).expect("our own records");
        let past = past.expect("there are some");
        let cell = Cell::recovered(process(node), self.settings, offset, self.now, past);
        self.cells.insert(node, cell);
        self.lay(node);
        for other in self.nodes().into_iter().filter(|other| *other != node) {
            self.link(node, other);
        }
    }

    /// Holds back messages from one node to another.
    pub(super) fn hold(&mut self, from: u64, to: u64) {
        self.held.insert((from, to));
    }

    pub(super) fn release(&mut self) {
        self.held.clear();
    }

    pub(super) fn adjust(&mut self, node: u64, offset: i64) {
        self.input(node, Input::Command(Command::Adjust(offset)));
    }

    pub(super) fn status(&self, node: u64) -> Status {
        self.cells[&node].status()
    }

    /// Begins a write, or a read if there is no value.
    pub(super) fn begin(
        &mut self,
        node: u64,
        key: &'static str,
        value: Option<&'static str>,
        level: Level,
        fallback: Option<Level>,
    ) -> u64 {
        let action = match value {
            Some(value) => Action::Put { value: Bytes::from_static(value.as_bytes()), lifetime: None },
            None => Action::Read,
        };
        self.start(node, key, action, level, fallback)
    }

    pub(super) fn start(
        &mut self,
        node: u64,
        key: &'static str,
        action: Action,
        level: Level,
        fallback: Option<Level>,
    ) -> u64 {
        self.operations += 1;
        let operation = operation(self.operations, key, action, level, fallback);
        self.input(node, Input::Command(Command::Operate(operation)));
        self.operations
    }

    pub(super) fn outcome(&self, id: u64) -> Option<&OperationOutcome> {
        self.outcomes.get(&id)
    }

    /// Begins an operation with this artificial delay.
    pub(super) fn start_delayed(
        &mut self,
        node: u64,
        key: &'static str,
        action: Action,
        delay: Duration,
    ) -> u64 {
        self.operations += 1;
        let operation = operation(self.operations, key, action, Level::One, None);
        self.input(node, Input::Command(Command::Operate(Operation { delay, ..operation })));
        self.operations
    }

    /// Begins an operation, and lets time pass until it has ended.
    pub(super) fn act(
        &mut self,
        node: u64,
        key: &'static str,
        action: Action,
        level: Level,
    ) -> OperationOutcome {
        let id = self.start(node, key, action, level, None);
        let end = self.now + TIMEOUT;
        while !self.outcomes.contains_key(&id) {
            assert!(self.now <= end, "operation {id} does not end");
            match self.ready().first().copied() {
                Some(pair) => self.deliver(pair),
                None => self.run(Duration::from_millis(1)),
            }
        }
        self.outcomes[&id].clone()
    }

    /// Lets a replica take this entry from another cell.
    pub(super) fn inject(&mut self, node: u64, key: &'static str, entry: &Entry) {
        let key = Bytes::from_static(key.as_bytes());
        let (round, layout) = (Round(1 << 60), self.layout.version());
        let demand = Demand::Write(entry.clone());
        let message = Message::Request(Request { round, layout, map: MAP, key, demand });
        let from = process(1 + node % self.cells.len() as u64);
        self.input(node, Input::Receive { from, message });
    }

    /// Asks for the piece of the keys behind a token.
    pub(super) fn begin_scan(&mut self, node: u64, level: Level, behind: Option<Token>) -> u64 {
        self.operations += 1;
        let id = self.operations;
        self.input(node, Input::Command(Command::Scan(Scan { id, map: MAP, level, behind })));
        id
    }

    /// Returns the end of a scan, if the scan has ended.
    pub(super) fn scanned(&self, id: u64) -> Option<&Scanned> {
        self.scanned.get(&id)
    }

    /// Asks for a piece of the keys, and lets time pass until the scan has ended.
    pub(super) fn scan(&mut self, node: u64, level: Level, behind: Option<Token>) -> Scanned {
        let id = self.begin_scan(node, level, behind);
        let end = self.now + TIMEOUT;
        while !self.scanned.contains_key(&id) {
            assert!(self.now <= end, "scan {id} does not end");
            match self.ready().first().copied() {
                Some(pair) => self.deliver(pair),
                None => self.run(Duration::from_millis(1)),
            }
        }
        self.scanned[&id].clone()
    }

    pub(super) fn put(
        &mut self,
        node: u64,
        key: &'static str,
        value: &'static str,
        level: Level,
    ) -> OperationOutcome {
        let value = Bytes::from_static(value.as_bytes());
        self.act(node, key, Action::Put { value, lifetime: None }, level)
    }

    pub(super) fn read(&mut self, node: u64, key: &'static str, level: Level) -> OperationOutcome {
        self.act(node, key, Action::Read, level)
    }

    /// Returns the bytes of all messages on their way to a cell.
    pub(super) fn bytes_to(&self, node: u64) -> usize {
        let queues = self.queues.iter().filter(|((_, to), _)| *to == node);
        queues.flat_map(|(_, queue)| queue).map(Bytes::len).sum()
    }

    /// Returns the number of messages for which `is` holds on their way from one cell to another.
    pub(super) fn count_queued(&self, from: u64, to: u64, is: fn(&Message) -> bool) -> usize {
        let decoded = |bytes: &Bytes| Message::decode(&mut bytes.clone()).expect("our own bytes");
        self.queues.get(&(from, to)).into_iter().flatten().map(decoded).filter(is).count()
    }

    /// Delivers messages until this cell has sent a write.
    pub(super) fn run_until_writing(&mut self, node: u64) {
        let is_write =
            |message: &Message| matches!(message, Message::Request(Request { demand: Demand::Write(_), .. }));
        while self.nodes().into_iter().all(|to| self.count_queued(node, to, is_write) == 0) {
            let pair = *self.ready().first().expect("a write comes");
            self.deliver(pair);
        }
    }

    /// Returns the nodes of the cells that own a key.
    pub(super) fn owners(&self, key: &str) -> Vec<u64> {
        let layout = self.cells.values().next().expect("there is a cell").layout();
        let ring = Ring::new(layout, &layout.map(MAP).expect("there is a map").copies);
        let owners = ring.owners(Token::of(MAP, key.as_bytes()));
        owners.iter().map(|owner| layout.cell(owner.cell).unwrap().peer.id.node).collect()
    }

    /// Returns a cell that does not own a key.
    pub(super) fn stranger(&self, key: &str) -> u64 {
        let owners = self.owners(key);
        *self.cells.keys().find(|node| !owners.contains(node)).expect("there are more cells than copies")
    }

    /// Returns the number of cells that hold a value under a key.
    pub(super) fn holders(&self, key: &'static str) -> usize {
        let key = Bytes::from_static(key.as_bytes());
        self.cells.values().filter(|cell| cell.replica().entry(MAP, &key).is_some()).count()
    }
}
