//! The clients of a cell: what each has asked and not been answered.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use quorate::maps::{self, Command, Deed, Ended, Ending, Recent, Strategies, strategy};
use quorate_protocol::{
    CommandId, ProcessId, Time,
    partial::{Action, Level, MapId, Operation, Outcome, Roster, Scan, Scanned, Value, resident},
};
use quorate_runtime::{
    Door,
    chance::Chance,
    clock,
    door::{ClientId, Clients, Flow},
    metrics::Metrics,
};
use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use super::{
    carry::Gate,
    command::{self, Arguments, Next, Shape, Work},
    connection::{About, Effect, Session},
    dial::{Dial, Pair, Strength},
    figures::Figures,
    parse::{Limits, Parser},
    reply::{Reply, Version},
    scan, strategies,
};

/// How connections begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The level of reads and writes.
    pub level: Level,
    /// The map.
    pub map: String,
    /// Limits of a request.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { level: Level::Quorum, map: String::from("main"), limits: Limits::default() }
    }
}

/// The clients of a cell.
pub struct Front {
    settings: Settings,
    me: Option<ProcessId>,
    roster: Option<Arc<Roster>>,
    /// Counts the rosters.
    epoch: u64,
    strategies: Strategies,
    clients: FxHashMap<ClientId, Client>,
    /// Operations that were handed on and have not ended, by their names.
    pending: Slab<Pending>,
    /// Clients for which something has ended, each once.
    touched: Vec<ClientId>,
    /// Clients that ever connected, requests that were taken, and operations that were handed on.
    connections: u64,
    commands: u64,
    operations: u64,
    began: Time,
    chance: Chance,
    figures: Figures,
    recent: Recent,
    pub(super) gate: Gate,
}

struct Client {
    session: Session,
    /// The map of the session, as it was looked up in the roster of this epoch.
    place: Option<(u64, Place)>,
    parser: Parser,
    /// Requests that were taken and not answered, in their order.
    slots: VecDeque<Slot>,
    /// The number of the first of them; others follow it.
    first: u64,
    /// The number of commands under way that write, on maps of partial quorums.
    writing: usize,
    /// Second steps that are due.
    due: Vec<(u64, Work)>,
    /// A command of two steps is under way, and nothing is begun behind it.
    stepping: bool,
    /// Nothing is taken until something has ended.
    held: bool,
    /// Nothing is taken any more.
    quitting: bool,
    touched: bool,
}

/// A map, and whether it is one of partial quorums.
#[derive(Clone, Copy)]
struct Place {
    map: MapId,
    is_quorum: bool,
}

enum Slot {
    Ready(Reply),
    Waiting(Waiting),
    Scanning(scan::Request),
    Asking(Asking),
}

/// A command on a map of another strategy, whose request is under way.
struct Asking {
    map: MapId,
    form: strategies::Form,
    keys: Vec<Bytes>,
    writes: bool,
}

/// A command whose operations are under way.
struct Waiting {
    shape: Shape,
    map: MapId,
    strength: Strength,
    keys: SmallVec<[Bytes; 1]>,
    outcomes: SmallVec<[Option<Outcome>; 1]>,
    left: usize,
    writes: bool,
}

/// Something that was handed on: its answer belongs into a slot of a client.
struct Pending {
    client: ClientId,
    slot: u64,
    part: usize,
    began: Time,
    /// Of an operation; none of a change.
    operation: Option<Asked>,
}

/// An operation, as it was asked for.
struct Asked {
    level: Level,
    deed: Deed,
    /// The value that it writes has a limited life.
    mortal: bool,
}

impl Asked {
    fn new(action: &Action, level: Level) -> Asked {
        let deed = match action {
            Action::Read => Deed::Read,
            Action::Put { .. } => Deed::Write,
            Action::Delete => Deed::Delete,
            Action::PutFields(_) | Action::Add(_) => Deed::Other,
        };
        Asked { level, deed, mortal: matches!(action, Action::Put { lifetime: Some(_), .. }) }
    }

    /// The operation with its end.
    fn ended(&self, client: u64, (began, ended): (Time, Time), outcome: &Outcome) -> Ended {
        let (ending, mortal, deed) = match outcome {
            Outcome::Found { value: Value::Hash(_), newest, .. } => {
                (Ending::Done(*newest), false, Deed::Other)
            }
            Outcome::Found { newest, expires, .. } => (Ending::Done(*newest), expires.is_some(), self.deed),
            Outcome::Done { stamp, .. } | Outcome::Counted { stamp, .. } => {
                (Ending::Done(*stamp), self.mortal, self.deed)
            }
            Outcome::MaybeApplied => (Ending::Unknown, self.mortal, self.deed),
            Outcome::Unavailable | Outcome::NotApplied | Outcome::Unanswered | Outcome::Rejected(_) => {
                (Ending::Failed, self.mortal, self.deed)
            }
        };
        Ended { client, began, ended, deed, ending, mortal }
    }
}

/// So many requests of one client are under way.
const IN_FLIGHT_MAX: usize = 256;

/// So many requests of one client are begun in a turn.
const REQUESTS_PER_TURN: usize = 256;

impl Front {
    /// A front without clients; what it counts is registered there.
    pub fn new(settings: Settings, metrics: &Metrics) -> Front {
        Front {
            settings,
            me: None,
            roster: None,
            epoch: 0,
            strategies: Strategies::default(),
            clients: FxHashMap::default(),
            pending: Slab::new(),
            touched: Vec::new(),
            connections: 0,
            commands: 0,
            operations: 0,
            began: clock::now(),
            chance: Chance::new(),
            figures: Figures::new(metrics),
            recent: Recent::new(clock::now()),
            gate: Gate::default(),
        }
    }

    /// The way to maps of other strategies, for the process that keeps them.
    pub fn strategies(&self) -> Strategies {
        self.strategies.clone()
    }

    /// Operations that ended lately.
    pub fn recent(&self) -> Recent {
        self.recent.clone()
    }

    /// How many clients there are.
    pub(super) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Adds a client, of which nothing is taken yet if it is `held`.
    pub(super) fn add(&mut self, id: ClientId, session: Session, held: bool) {
        let fresh = Client {
            session,
            place: None,
            parser: Parser::new(self.settings.limits),
            slots: VecDeque::new(),
            first: 0,
            writing: 0,
            due: Vec::new(),
            stepping: false,
            held,
            quitting: false,
            touched: false,
        };
        self.clients.insert(id, fresh);
    }

    /// The clients of which every request that was taken is answered.
    pub(super) fn settled(&self) -> impl Iterator<Item = ClientId> {
        let is_settled = |client: &Client| client.slots.is_empty() && !client.quitting;
        self.clients.iter().filter(move |(_, client)| is_settled(client)).map(|(id, _)| *id)
    }

    /// Forgets a client, and returns what its connection has set.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<Session> {
        self.clients.remove(&id).map(|client| client.session)
    }

    /// Clients that wait for the front are served again.
    pub(super) fn go_on(&mut self, clients: &mut Clients) {
        let waits = |client: &&mut Client| client.held && !client.stepping;
        let waiting = self.clients.iter_mut().filter(|(_, client)| waits(client));
        waiting.for_each(|(id, client)| {
            client.held = false;
            clients.resume(*id);
        });
    }

    /// Takes one request, which is whole. Its map was looked up already, or not. Says whether it was begun; if not, it waits for another one.
    fn request(
        &mut self,
        id: ClientId,
        request: (&[u8], &[std::ops::Range<usize>]),
        place: Option<Place>,
        now: Time,
        ask: &mut dyn FnMut(Command),
    ) -> bool {
        let (input, strings) = request;
        let Some(name) = strings.first() else { return true };
        let mut capitals = [0; NAME_BYTES];
        let name = capital(&input[name.clone()], &mut capitals);
        let arguments = Arguments::new(input, &strings[1..]);
        let place = place.or_else(|| self.place(id));
        if let Some(Place { map, is_quorum: false }) = place {
            return match self.ask(id, map, (name, arguments), now) {
                Some(begun) => begun,
                None => {
                    self.other(id, input, strings, now, ask);
                    true
                }
            };
        }
        if name == b"SCAN" {
            match scan::Request::parse(arguments) {
                Ok(request) => self.scan(id, request, place, now, ask),
                Err(refusal) => self.answer(id, Reply::Error(refusal)),
            }
            return true;
        }
        match command::work(name, arguments) {
            Err(refusal) => self.answer(id, Reply::Error(refusal)),
            Ok(Some(work)) => return self.begin(id, work, place, now, ask),
            Ok(None) => self.other(id, input, strings, now, ask),
        }
        true
    }

    /// A command that is none on keys.
    fn other(
        &mut self,
        id: ClientId,
        input: &[u8],
        strings: &[std::ops::Range<usize>],
        now: Time,
        ask: &mut dyn FnMut(Command),
    ) {
        let strings: Vec<Bytes> =
            strings.iter().map(|range| Bytes::copy_from_slice(&input[range.clone()])).collect();
        self.connection(id, &strings, now, ask);
    }

    /// Looks the map of a client's session up; none: there is no such map.
    fn place(&mut self, id: ClientId) -> Option<Place> {
        let client = self.clients.get_mut(&id)?;
        let roster = self.roster.as_ref()?;
        let map = roster.map(&client.session.map)?;
        let is_quorum = roster.layout().map(map)?.read_repair().is_some();
        let place = Place { map, is_quorum };
        client.place = Some((self.epoch, place));
        Some(place)
    }

    /// Asks a map of another strategy. Says whether the command was begun; if not, it waits for one before it. None: it is none on keys.
    // Beside the way of partial quorums, which is the shorter one.
    #[inline(never)]
    fn ask(
        &mut self,
        id: ClientId,
        map: MapId,
        (name, arguments): (&[u8], Arguments<'_>),
        now: Time,
    ) -> Option<bool> {
        let strategies::Work { request, form } = match strategies::work(name, arguments) {
            Ok(work) => work?,
            Err(refusal) => {
                self.answer(id, Reply::Error(refusal));
                return Some(true);
            }
        };
        let Some(client) = self.clients.get_mut(&id) else { return Some(true) };
        let keys: Vec<Bytes> = request.keys().into_iter().cloned().collect();
        let writes = !request.is_read();
        let shares = |asking: &Asking| {
            // A command without keys is about all of them.
            let same = keys.is_empty() || keys.iter().any(|key| asking.keys.contains(key));
            asking.map == map && (writes || asking.writes) && same
        };
        if client.slots.iter().any(|slot| matches!(slot, Slot::Asking(asking) if shares(asking))) {
            return Some(false);
        }
        let slot = client.push(Slot::Asking(Asking { map, form, keys, writes }));
        let pending = Pending { client: id, slot, part: 0, began: now, operation: None };
        let id = self.pending.insert(pending) as u64;
        self.operations += 1;
        if let Err(undone) = self.strategies.ask(id, map, request) {
            maps::Front::answered(self, id, Err(undone), now);
        }
        Some(true)
    }

    fn connection(&mut self, id: ClientId, strings: &[Bytes], now: Time, ask: &mut dyn FnMut(Command)) {
        let clients = self.clients.len();
        let Some(client) = self.clients.get_mut(&id) else { return };
        let about = About {
            roster: self.roster.as_deref(),
            me: self.me,
            clients,
            connections: self.connections,
            commands: self.commands,
            operations: self.operations,
            uptime: now.since(self.began),
        };
        let effect = client.session.command(strings, &about);
        client.place = None;
        match effect {
            Effect::Answer(reply) => self.answer(id, reply),
            Effect::Quit(reply) => {
                client.quitting = true;
                self.answer(id, reply);
            }
            Effect::Change(change) => {
                let slot = client.push(Slot::Waiting(Waiting {
                    shape: Shape::Done,
                    map: MapId::default(),
                    strength: client.session.dial.draw(&mut self.chance),
                    keys: SmallVec::new(),
                    outcomes: SmallVec::new(),
                    left: 1,
                    writes: false,
                }));
                let pending = Pending { client: id, slot, part: 0, began: now, operation: None };
                let id = CommandId(self.pending.insert(pending) as u64);
                ask(Command::Cell(resident::Command::Change { id, change: Box::new(change) }));
            }
        }
    }

    fn scan(
        &mut self,
        id: ClientId,
        request: scan::Request,
        place: Option<Place>,
        now: Time,
        ask: &mut dyn FnMut(Command),
    ) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(Place { map, .. }) = place else {
            let text = format!("NOMAP there is no map '{}'", client.session.map);
            return self.answer(id, Reply::Error(text));
        };
        let dial = client.session.next.take().unwrap_or(client.session.dial);
        let level = dial.draw(&mut self.chance).levels.read;
        let behind = request.behind;
        let slot = client.push(Slot::Scanning(request));
        let pending = Pending { client: id, slot, part: 0, began: now, operation: None };
        let id = self.pending.insert(pending) as u64;
        ask(Command::Cell(resident::Command::Scan(Scan { id, map, level, behind })));
    }

    fn scanned(&mut self, id: u64, outcome: Scanned) {
        let Pending { client: id, slot, .. } = self.pending.remove(id as usize);
        let Some(client) = self.clients.get_mut(&id) else { return };
        let slot = &mut client.slots[(slot - client.first) as usize];
        if let Slot::Scanning(request) = slot {
            *slot = Slot::Ready(request.answer(outcome));
        }
        self.touch(id);
    }

    /// Begins a command on keys, unless it has to wait for one before it.
    fn begin(
        &mut self,
        id: ClientId,
        work: Work,
        place: Option<Place>,
        now: Time,
        ask: &mut dyn FnMut(Command),
    ) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return true };
        if self.roster.is_none() {
            self.answer(id, Reply::Error(String::from("NOCELL this process has not joined its domain yet")));
            return true;
        }
        let Some(Place { map, .. }) = place else {
            let name = &client.session.map;
            let text = format!("NOMAP there is no map '{name}': QUORATE CREATE {name} makes one");
            self.answer(id, Reply::Error(text));
            return true;
        };
        if client.conflicts(map, &work) {
            return false;
        }
        let dial = client.session.next.take().unwrap_or(client.session.dial);
        let strength = dial.draw(&mut self.chance);
        let waiting = Waiting::new(&work, map, strength);
        client.writing += usize::from(waiting.writes);
        client.stepping |= work.shape.has_second();
        let slot = client.push(Slot::Waiting(waiting));
        self.hand_on((id, slot), work, (map, strength), now, ask);
        true
    }

    /// Hands the operations of a command's step on.
    fn hand_on(
        &mut self,
        (client, slot): (ClientId, u64),
        work: Work,
        (map, strength): (MapId, Strength),
        now: Time,
        ask: &mut dyn FnMut(Command),
    ) {
        for (part, (key, action)) in work.operations.into_iter().enumerate() {
            let Strength { levels, delays } = strength;
            let (level, delay) = match action {
                Action::Read => (levels.read, delays.read),
                _ => (levels.write, delays.write),
            };
            let operation = Some(Asked::new(&action, level));
            let pending = Pending { client, slot, part, began: now, operation };
            let id = self.pending.insert(pending) as u64;
            self.operations += 1;
            let operation = Operation { id, map, key, level, fallback: None, delay, action };
            ask(Command::Cell(resident::Command::Operate(operation)));
        }
    }

    fn answer(&mut self, id: ClientId, reply: Reply) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.push(Slot::Ready(reply));
        }
        self.touch(id);
    }

    fn touch(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id)
            && !std::mem::replace(&mut client.touched, true)
        {
            self.touched.push(id);
        }
    }

    fn ended(&mut self, id: u64, outcome: Outcome, now: Time) {
        let pending = self.pending.remove(id as usize);
        if let Some(Asked { level, deed, .. }) = &pending.operation {
            let is_done =
                matches!(outcome, Outcome::Found { .. } | Outcome::Done { .. } | Outcome::Counted { .. });
            self.figures.ended(*level, *deed == Deed::Read, now.since(pending.began), is_done);
        }
        let Some(client) = self.clients.get_mut(&pending.client) else { return };
        let index = pending.slot - client.first;
        let slot = &mut client.slots[index as usize];
        let Slot::Waiting(waiting) = slot else { unreachable!("what is pending has no answer yet") };
        if let Some(asked) = &pending.operation {
            let ended = || asked.ended(client.session.number, (pending.began, now), &outcome);
            self.recent.take(waiting.map, &waiting.keys[pending.part], ended);
        }
        waiting.outcomes[pending.part] = Some(outcome);
        waiting.left -= 1;
        if waiting.left > 0 {
            return;
        }
        let wall = if matches!(waiting.shape, Shape::Life(_)) {
            now.0.saturating_add_signed(clock::wall_offset())
        } else {
            0
        };
        let shape = std::mem::replace(&mut waiting.shape, Shape::Done);
        let stepped = shape.is_step();
        let outcomes = std::mem::take(&mut waiting.outcomes).into_iter().flatten();
        match shape.conclude(&waiting.keys, outcomes, wall) {
            Next::Answer(reply) => {
                client.writing -= usize::from(waiting.writes);
                client.stepping &= !stepped;
                *slot = Slot::Ready(reply);
            }
            Next::More(work) => {
                *waiting = Waiting::new(&work, waiting.map, waiting.strength);
                client.due.push((pending.slot, work));
            }
        }
        self.touch(pending.client);
    }

    fn changed(&mut self, id: u64, result: Result<(), resident::Unchanged>) {
        let Pending { client: id, slot, .. } = self.pending.remove(id as usize);
        let Some(client) = self.clients.get_mut(&id) else { return };
        let index = slot - client.first;
        client.slots[index as usize] = Slot::Ready(match result {
            Ok(()) => Reply::OK,
            Err(why) => Reply::Error(format!("ERR {why}")),
        });
        self.touch(id);
    }
}

impl maps::Front for Front {
    fn attach(&mut self, process: ProcessId) {
        self.me = Some(process);
    }

    fn event(&mut self, event: resident::Event, now: Time) {
        match event {
            resident::Event::Ended { id, outcome } => self.ended(id, outcome, now),
            resident::Event::Scanned { id, outcome } => self.scanned(id, outcome),
            resident::Event::Changed { id, result } => self.changed(id.0, result),
            resident::Event::Roster(roster) => {
                self.roster = Some(roster);
                self.epoch += 1;
            }
            resident::Event::Lacks(_) | resident::Event::Wedged => {}
        }
    }

    fn answered(&mut self, id: u64, outcome: strategy::Outcome, now: Time) {
        let pending = self.pending.remove(id as usize);
        self.figures.answered(now.since(pending.began), outcome.is_ok());
        let Some(client) = self.clients.get_mut(&pending.client) else { return };
        let slot = &mut client.slots[(pending.slot - client.first) as usize];
        let Slot::Asking(asking) = std::mem::replace(slot, Slot::Ready(Reply::Null)) else {
            unreachable!("what is asked has no answer yet")
        };
        let wall = now.0.saturating_add_signed(clock::wall_offset());
        *slot = Slot::Ready(asking.form.answer(outcome, wall));
        self.touch(pending.client);
    }
}

impl Door<maps::Kind> for Front {
    fn opened(&mut self, client: ClientId, _: Time) {
        let Settings { level, map, .. } = &self.settings;
        let session = Session {
            number: client.number(),
            version: Version::default(),
            map: map.clone(),
            dial: Dial::fixed(Pair::both(*level)),
            next: None,
            name: Bytes::new(),
        };
        self.connections += 1;
        self.add(client, session, false);
    }

    fn take(&mut self, id: ClientId, input: &[u8], now: Time, ask: &mut dyn FnMut(Command)) -> (usize, Flow) {
        let Some(client) = self.clients.get_mut(&id) else { return (input.len(), Flow::End) };
        for (slot, work) in std::mem::take(&mut client.due) {
            let Some(Slot::Waiting(waiting)) =
                self.clients.get(&id).and_then(|client| client.slots.get((slot - client.first) as usize))
            else {
                unreachable!("a step that is due has no answer yet")
            };
            let (map, strength) = (waiting.map, waiting.strength);
            self.hand_on((id, slot), work, (map, strength), now, ask);
        }
        let mut taken = 0;
        for _ in 0..REQUESTS_PER_TURN {
            let Some(client) = self.clients.get_mut(&id) else { return (input.len(), Flow::End) };
            if client.quitting {
                return (input.len(), Flow::End);
            }
            if client.stepping || client.slots.len() >= IN_FLIGHT_MAX || !self.gate.is_open() {
                client.held = true;
                return (taken, Flow::Held);
            }
            let rest = &input[taken..];
            let parsed = client.parser.parse(rest);
            match parsed {
                Ok(None) => return (taken, Flow::Wait),
                Ok(Some(length)) => {
                    let strings = client.parser.take_strings();
                    let place = client.place.filter(|(epoch, _)| *epoch == self.epoch);
                    let place = place.map(|(_, place)| place);
                    let begun = self.request(id, (&rest[..length], &strings), place, now, ask);
                    let Some(client) = self.clients.get_mut(&id) else { return (input.len(), Flow::End) };
                    client.parser.give_back(strings);
                    if !begun {
                        client.held = true;
                        return (taken, Flow::Held);
                    }
                    taken += length;
                    self.commands += 1;
                }
                Err(malformed) => {
                    client.quitting = true;
                    self.figures.malformed();
                    self.answer(id, Reply::Error(format!("ERR {malformed}")));
                    return (input.len(), Flow::End);
                }
            }
        }
        (taken, if taken < input.len() { Flow::More } else { Flow::Wait })
    }

    fn give(&mut self, clients: &mut Clients) {
        for id in self.touched.drain(..) {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            client.touched = false;
            if let Some(out) = clients.output(id) {
                while let Some(Slot::Ready(_)) = client.slots.front() {
                    let Some(Slot::Ready(reply)) = client.slots.pop_front() else { break };
                    client.first += 1;
                    reply.encode(client.session.version, out);
                }
            }
            if client.held && (!client.due.is_empty() || !client.stepping) {
                client.held = false;
                clients.resume(id);
            }
            if client.quitting && client.slots.is_empty() {
                clients.end(id);
            }
        }
        self.look_at_gate(clients);
    }

    fn closed(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }

    fn crowded(&mut self) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }
}

impl Client {
    /// Adds a request; returns its number.
    fn push(&mut self, slot: Slot) -> u64 {
        self.slots.push_back(slot);
        self.first + self.slots.len() as u64 - 1
    }

    /// Whether a command has to wait for one that is under way: they share a key, and one of them writes it.
    fn conflicts(&self, map: MapId, work: &Work) -> bool {
        let writes = work.writes();
        if !writes && self.writing == 0 {
            return false;
        }
        let shares = |waiting: &Waiting| {
            let named = |(key, _): &(Bytes, Action)| waiting.keys.contains(key);
            waiting.map == map && (writes || waiting.writes) && work.operations.iter().any(named)
        };
        self.slots.iter().any(|slot| matches!(slot, Slot::Waiting(waiting) if shares(waiting)))
    }
}

impl Waiting {
    fn new(work: &Work, map: MapId, strength: Strength) -> Waiting {
        Waiting {
            shape: work.shape.clone(),
            map,
            strength,
            keys: work.operations.iter().map(|(key, _)| key.clone()).collect(),
            outcomes: work.operations.iter().map(|_| None).collect(),
            left: work.operations.len(),
            writes: work.writes(),
        }
    }
}

/// No name of a command that is known is longer.
const NAME_BYTES: usize = 32;

/// A name in capitals; one that is too long to be known stays as it is.
fn capital<'a>(name: &'a [u8], space: &'a mut [u8; NAME_BYTES]) -> &'a [u8] {
    match space.get_mut(..name.len()) {
        None => name,
        Some(space) => {
            space.copy_from_slice(name);
            space.make_ascii_uppercase();
            space
        }
    }
}
