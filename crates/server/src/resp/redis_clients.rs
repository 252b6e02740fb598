//! The clients of a cell, and their requests that have not been answered yet.
//!
//! **Weights.** Each request under way and each unsent answer has a *weight*: the approximate memory that it
//! takes, in bytes. Weights are summed up for each client and for all clients together ([`HeldLimits`]):
//!
//! 1. A client whose sum is above its bound is not read from until it has received answers.
//! 2. A request or an answer that would raise the sum of all clients above the bound is refused (`BUSY`).
//! 3. An answer above its own limit is refused (`TOOLARGE`). An answer of several values is refused as soon
//!    as the values that have come are too large together, and later values are dropped.
//! 4. Of a pipeline of large reads, only the values at its front are kept. A read behind the front drops its
//!    value, and reads again when it is the first. So a client gets all its answers, although only a few of
//!    them are in memory at a time.

mod outcomes;
mod quorum_command;

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use quorate::maps::{self, Command, Recent, Strategies, strategy::keyspace::Request};
use quorate_protocol::{
    CommandId, ProcessId, Time,
    partial::{self, Action, Level, MapId, Operation, Roster, Scan, resident},
    relay::Relay,
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

use self::quorum_command::{OperationDescription, OperationParts, QuorumCommand};
use super::{
    arguments::Arguments,
    command::{self, KeyCommand},
    command_plan::{CommandPlan, Operations, PlanShape},
    connection::{ClientSession, CommandEffect, NO_HTTP, ProcessInfo, Replies},
    counters::RequestCounters,
    dial::DrawnLevels,
    gate::HandoverGate,
    parse::{Parser, RequestLimits},
    refusal::MapKind,
    reply::Reply,
    reply_form::ReplyForm,
    scan,
};

/// The settings of new connections and the limits of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The level of reads and writes of a new connection.
    pub level: Level,
    /// The name of the map that a new connection uses.
    pub map: String,
    /// The limits of a request.
    pub limits: RequestLimits,
    /// Limits of the memory that requests and answers of clients take.
    pub held: HeldLimits,
}

/// Limits of the memory that requests under way and unsent answers take, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLimits {
    /// Maximum size of an answer, in bytes.
    pub answer_bytes_max: usize,
    /// Requests under way and unsent answers of one client. A client above this limit is not read from.
    pub client_bytes_max: usize,
    /// Maximum size of the requests under way and the unsent answers of all clients together, in bytes.
    pub bytes_max: usize,
}

impl Default for HeldLimits {
    fn default() -> Self {
        HeldLimits { answer_bytes_max: 32 << 20, client_bytes_max: 1 << 20, bytes_max: 64 << 20 }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            level: Level::Quorum,
            map: String::from("main"),
            limits: RequestLimits::default(),
            held: HeldLimits::default(),
        }
    }
}

/// The clients of a cell.
pub struct RedisClients {
    settings: Settings,
    me: Option<ProcessId>,
    roster: Option<Arc<Roster>>,
    /// Number of rosters that this process has received.
    epoch: u64,
    strategies: Strategies,
    clients: FxHashMap<ClientId, RedisClient>,
    /// The sum of the weights of all slots.
    weight: usize,
    /// Operations that were passed to the cell or to another strategy and have not ended, by their ids.
    pending: Slab<PendingRequest>,
    /// Clients that may have answers to send or work to continue. Each occurs once.
    touched: Vec<ClientId>,
    /// Number of clients that have connected since the start. `commands` counts the requests that were taken,
    /// and `operations` the operations that were passed on.
    connections: u64,
    commands: u64,
    operations: u64,
    began: Time,
    chance: Chance,
    figures: RequestCounters,
    recent: Recent,
    pub(super) gate: HandoverGate,
}

struct RedisClient {
    session: ClientSession,
    /// The session's map, with the epoch of the roster in which it was found.
    place: Option<(u64, MapPlace)>,
    parser: Parser,
    /// Requests that were taken and whose answers were not sent yet, in their order.
    slots: VecDeque<RequestSlot>,
    /// Sum of the weights of the slots, in bytes.
    weight: usize,
    /// Number of the first slot. The slots after it have the following numbers.
    first: u64,
    /// Number of writing commands under way on maps of partial quorums.
    writing: usize,
    /// Operations of second steps, and repeated operations, that are due to begin, by slot number.
    due: Vec<(u64, OperationParts)>,
    /// Whether a command of two steps is under way. No later command begins before it has ended.
    two_step_running: bool,
    /// Whether no request is taken until an earlier request has ended, or the door opens.
    paused: bool,
    /// Whether no further request is taken, because the connection ends.
    closing: bool,
    touched: bool,
}

/// A map and its kind.
#[derive(Clone, Copy)]
struct MapPlace {
    map: MapId,
    kind: MapKind,
}

/// A request that was taken.
struct RequestSlot {
    state: State,
    /// Memory of the request and of the values found for it, in bytes.
    weight: usize,
    /// Whether the client asked for no answer to this request.
    reply_suppressed: bool,
}

impl RequestSlot {
    /// Returns the command whose operations are under way.
    fn quorum_command(&mut self) -> &mut QuorumCommand {
        match &mut self.state {
            State::Quorum(command) => command,
            _ => unreachable!("the slot of a pending operation has no answer yet"),
        }
    }
}

enum State {
    Ready(Reply),
    Quorum(QuorumCommand),
    Scanning(scan::ScanRequest),
    Strategy(StrategyCommand),
}

/// A command on a map of a strategy other than partial quorums. The command's request is under way.
struct StrategyCommand {
    map: MapId,
    form: ReplyForm,
    keys: Vec<Bytes>,
    writes: bool,
    /// Whether the command's values were dropped. The request is repeated when the command is the first of
    /// its client.
    deferred: bool,
}

/// A piece of work that was passed on. Its answer belongs in a slot of a client.
struct PendingRequest {
    client: ClientId,
    slot: u64,
    part: usize,
    began: Time,
    /// The operation, for the record of recent operations. `None` for a change of the maps, and for
    /// strategies other than partial quorums.
    operation: Option<OperationDescription>,
}

/// Maximum number of requests of one client that are under way.
const IN_FLIGHT_MAX: usize = 256;

/// Approximate memory of a part of a request in addition to its bytes, in bytes: the part's place in
/// `pending`, its outcome and its key.
const PART_BYTES: usize = 256;

/// Maximum number of pairs of keys that are compared to find out whether two commands share a key. If there
/// are more pairs, the commands count as sharing a key.
const PAIRS_MAX: usize = 1 << 16;

/// Number of clients above which a client without requests under way frees the memory of its slots.
const CLIENTS_ROOMY: usize = 512;
/// Number of slots whose memory a client without requests under way keeps if there are more than
/// [`CLIENTS_ROOMY`] clients.
const SLOTS_KEPT: usize = 16;

/// Maximum number of requests of one client that begin in one turn.
const REQUESTS_PER_TURN: usize = 256;

impl RedisClients {
    /// Creates a door without clients, and adds its metrics to `metrics`.
    pub fn new(settings: Settings, metrics: &Metrics) -> RedisClients {
        RedisClients {
            settings,
            me: None,
            roster: None,
            epoch: 0,
            strategies: Strategies::default(),
            clients: FxHashMap::default(),
            weight: 0,
            pending: Slab::new(),
            touched: Vec::new(),
            connections: 0,
            commands: 0,
            operations: 0,
            began: clock::now(),
            chance: Chance::new(),
            figures: RequestCounters::new(metrics),
            recent: Recent::new(clock::now()),
            gate: HandoverGate::default(),
        }
    }

    /// Returns the connection to maps of strategies other than partial quorums, for the process that serves
    /// these maps.
    pub fn strategies(&self) -> Strategies {
        self.strategies.clone()
    }

    /// Returns the record of recent operations.
    pub fn recent(&self) -> Recent {
        self.recent.clone()
    }

    /// Returns the number of clients.
    pub(super) fn count(&self) -> usize {
        self.clients.len()
    }

    /// Adds a client. No request of a `paused` client is taken yet.
    pub(super) fn add(&mut self, id: ClientId, session: ClientSession, paused: bool) {
        let fresh = RedisClient {
            session,
            place: None,
            parser: Parser::new(self.settings.limits),
            slots: VecDeque::new(),
            weight: 0,
            first: 0,
            writing: 0,
            due: Vec::new(),
            two_step_running: false,
            paused,
            closing: false,
            touched: false,
        };
        self.clients.insert(id, fresh);
    }

    /// Returns the clients that have no request under way and no unsent answer.
    pub(super) fn settled(&self) -> impl Iterator<Item = ClientId> {
        let is_settled = |client: &RedisClient| client.slots.is_empty() && !client.closing;
        self.clients.iter().filter(move |(_, client)| is_settled(client)).map(|(id, _)| *id)
    }

    /// Removes a client, and returns the settings of its connection.
    pub(super) fn remove(&mut self, id: ClientId) -> Option<ClientSession> {
        let client = self.clients.remove(&id)?;
        self.weight -= client.weight;
        Some(client.session)
    }

    /// Continues the clients that were paused until the door opened.
    pub(super) fn go_on(&mut self, clients: &mut Clients) {
        let waits = |client: &&mut RedisClient| client.paused && !client.two_step_running;
        let waiting = self.clients.iter_mut().filter(|(_, client)| waits(client));
        waiting.for_each(|(id, client)| {
            client.paused = false;
            clients.resume(*id);
        });
    }

    /// Takes one complete request. `place` is the session's map if it was looked up already. Returns whether
    /// the request was begun. A request that was not begun waits for an earlier request.
    fn request(
        &mut self,
        id: ClientId,
        request: (&[u8], &[std::ops::Range<usize>]),
        (place, is_barred): (Option<MapPlace>, bool),
        now: Time,
        ask: &mut dyn FnMut(Command),
    ) -> bool {
        let (input, strings) = request;
        let Some(name) = strings.first() else { return true };
        let mut capitals = [0; NAME_BYTES];
        let name = capital(&input[name.clone()], &mut capitals);
        let arguments = Arguments::new(input, &strings[1..]);
        if is_barred {
            // A prefix that gives a request id is allowed only before commands on keys, so the prefix is
            // barred like such a command.
            let name = if command::is_id(name, arguments) { &b"ID"[..] } else { name };
            if let Some(reply) =
                self.clients.get(&id).and_then(|client| client.session.refusal_after_opening(name))
            {
                self.answer(id, reply);
                return true;
            }
        }
        let place = place.or_else(|| self.place(id));
        let kind = place.map_or(MapKind::Quorum, |place| place.kind);
        let command = match command::parse(name, arguments, kind) {
            Ok(Some(command)) => command,
            Ok(None) => {
                self.other(id, input, strings, now, ask);
                return true;
            }
            Err(refusal) => {
                self.answer(id, Reply::Error(refusal));
                return true;
            }
        };
        let bytes = input.len();
        match (place, command) {
            (Some(MapPlace { map, kind: MapKind::Atomic }), command) => {
                self.ask(id, map, (command, bytes), now)
            }
            (place, KeyCommand { form: ReplyForm::Scan(request), .. }) => {
                self.scan(id, (request, bytes), place, now, ask);
                true
            }
            (place, command) => match CommandPlan::new(name, command) {
                Ok(work) => self.begin(id, (work, bytes), place, now, ask),
                Err(refusal) => {
                    self.answer(id, Reply::Error(refusal));
                    true
                }
            },
        }
    }

    /// Carries out a command that is not on keys.
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

    /// Looks up the map of a client's session. `None` if no map has this name.
    fn place(&mut self, id: ClientId) -> Option<MapPlace> {
        let client = self.clients.get_mut(&id)?;
        let roster = self.roster.as_ref()?;
        let map = roster.map(&client.session.map)?;
        let is_quorum = roster.layout().map(map)?.read_repair().is_some();
        let place = MapPlace { map, kind: if is_quorum { MapKind::Quorum } else { MapKind::Atomic } };
        client.place = Some((self.epoch, place));
        Some(place)
    }

    /// Passes a command to a map of a strategy other than partial quorums. Returns whether the command was
    /// begun. A command that was not begun waits for an earlier command.
    // Kept out of line, so that the path of partial quorums stays short.
    #[inline(never)]
    fn ask(
        &mut self,
        id: ClientId,
        map: MapId,
        (KeyCommand { request, form }, bytes): (KeyCommand, usize),
        now: Time,
    ) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return true };
        let keys: Vec<Bytes> = request.keys().into_iter().cloned().collect();
        let writes = !request.is_read();
        let shares = |asking: &StrategyCommand| {
            // A command without keys concerns all keys.
            let same = || {
                keys.is_empty() || keys.len() * asking.keys.len() > PAIRS_MAX || {
                    keys.iter().any(|key| asking.keys.contains(key))
                }
            };
            asking.map == map && (writes || asking.writes) && same()
        };
        if client.slots.iter().any(|slot| matches!(&slot.state, State::Strategy(asking) if shares(asking))) {
            return false;
        }
        let weight = bytes + PART_BYTES * keys.len();
        if self.weight + weight > self.settings.held.bytes_max {
            self.answer(id, busy());
            return true;
        }
        let asking = StrategyCommand { map, form, keys, writes, deferred: false };
        let slot = client.push(State::Strategy(asking), weight, &mut self.weight);
        self.hand_request((id, slot), map, request, now);
        true
    }

    /// Hands a request on to a map of another strategy.
    fn hand_request(&mut self, (client, slot): (ClientId, u64), map: MapId, request: Request, now: Time) {
        let id = self.pend(client, slot, now);
        self.operations += 1;
        if let Err(undone) = self.strategies.ask(id, map, request) {
            maps::Front::answered(self, id, Err(undone), now);
        }
    }

    /// Returns the id of a request that is handed on whole. Its answer belongs in this slot.
    fn pend(&mut self, client: ClientId, slot: u64, now: Time) -> u64 {
        self.pending.insert(PendingRequest { client, slot, part: 0, began: now, operation: None }) as u64
    }

    fn connection(&mut self, id: ClientId, strings: &[Bytes], now: Time, ask: &mut dyn FnMut(Command)) {
        let clients = self.clients.len();
        let Some(client) = self.clients.get_mut(&id) else { return };
        let about = ProcessInfo {
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
            CommandEffect::Answer(reply) => self.answer(id, reply),
            CommandEffect::Silence => {}
            CommandEffect::Reset => {
                client.session =
                    ClientSession::new(id.number(), self.settings.map.clone(), self.settings.level);
                self.answer(id, Reply::Simple("RESET"));
            }
            CommandEffect::Quit(reply) => {
                client.closing = true;
                self.answer(id, reply);
            }
            CommandEffect::Change(change) => {
                let none = CommandPlan { shape: PlanShape::Done, operations: Operations::new() };
                let drawn = client.session.dial.draw(&mut self.chance);
                let change_alone =
                    QuorumCommand { left: 1, ..QuorumCommand::new(&none, MapId::default(), drawn) };
                let slot = client.push(State::Quorum(change_alone), PART_BYTES, &mut self.weight);
                let id = CommandId(self.pend(id, slot, now));
                ask(Command::Resident(resident::Command::Change { id, change: Box::new(change) }));
            }
        }
    }

    fn scan(
        &mut self,
        id: ClientId,
        (request, bytes): (scan::ScanRequest, usize),
        place: Option<MapPlace>,
        now: Time,
        ask: &mut dyn FnMut(Command),
    ) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(MapPlace { map, .. }) = place else {
            let text = format!("NOMAP there is no map '{}': QUORATE MAPS lists all maps", client.session.map);
            return self.answer(id, Reply::Error(text));
        };
        let weight = bytes + PART_BYTES;
        if self.weight + weight > self.settings.held.bytes_max {
            return self.answer(id, busy());
        }
        let dial = client.session.next.take().unwrap_or(client.session.dial);
        let level = dial.draw(&mut self.chance).levels.read;
        let behind = request.behind;
        let slot = client.push(State::Scanning(request), weight, &mut self.weight);
        let id = self.pend(id, slot, now);
        ask(Command::Resident(partial::Command::Scan(Scan { id, map, level, behind }).into()));
    }

    /// Begins a command on keys. Returns `false` if the command has to wait for an earlier command.
    fn begin(
        &mut self,
        id: ClientId,
        (work, bytes): (CommandPlan, usize),
        place: Option<MapPlace>,
        now: Time,
        ask: &mut dyn FnMut(Command),
    ) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return true };
        if self.roster.is_none() {
            self.answer(id, Reply::Error(String::from("NOCELL this process has not joined its domain yet")));
            return true;
        }
        let Some(MapPlace { map, .. }) = place else {
            let name = &client.session.map;
            let text = format!("NOMAP there is no map '{name}': QUORATE CREATE {name} creates the map");
            self.answer(id, Reply::Error(text));
            return true;
        };
        if client.conflicts(map, &work) {
            return false;
        }
        let weight = bytes + PART_BYTES * work.operations.len();
        if self.weight + weight > self.settings.held.bytes_max {
            self.answer(id, busy());
            return true;
        }
        let dial = client.session.next.take().unwrap_or(client.session.dial);
        let drawn = dial.draw(&mut self.chance);
        let waiting = QuorumCommand::new(&work, map, drawn);
        client.writing += usize::from(waiting.writes);
        client.two_step_running |= work.shape.has_second();
        let slot = client.push(State::Quorum(waiting), weight, &mut self.weight);
        self.hand_on((id, slot), work.operations.into_iter().enumerate(), (map, drawn), now, ask);
        true
    }

    /// Passes the operations of one step of a command to the cell.
    fn hand_on(
        &mut self,
        (client, slot): (ClientId, u64),
        parts: impl Iterator<Item = (usize, (Bytes, Action))>,
        (map, drawn): (MapId, DrawnLevels),
        now: Time,
        ask: &mut dyn FnMut(Command),
    ) {
        for (part, (key, action)) in parts {
            let DrawnLevels { levels, delays } = drawn;
            let (level, delay) = match action {
                Action::Read => (levels.read, delays.read),
                _ => (levels.write, delays.write),
            };
            let operation = Some(OperationDescription::new(&action, level));
            let pending = PendingRequest { client, slot, part, began: now, operation };
            let id = self.pending.insert(pending) as u64;
            self.operations += 1;
            let operation = Operation { id, map, key, level, fallback: None, delay, action };
            ask(Command::Resident(partial::Command::Operate(operation).into()));
        }
    }

    fn answer(&mut self, id: ClientId, reply: Reply) {
        if let Some(client) = self.clients.get_mut(&id) {
            let weight = reply.bytes();
            client.push(State::Ready(reply), weight, &mut self.weight);
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
}

impl Door<Relay<maps::CellEndpoint>> for RedisClients {
    fn opened(&mut self, client: ClientId, _: Time) {
        let Settings { level, map, .. } = &self.settings;
        let session = ClientSession::new(client.number(), map.clone(), *level);
        self.connections += 1;
        self.add(client, session, false);
    }

    fn take(&mut self, id: ClientId, input: &[u8], now: Time, ask: &mut dyn FnMut(Command)) -> (usize, Flow) {
        let Some(client) = self.clients.get_mut(&id) else { return (input.len(), Flow::End) };
        for (slot, parts) in std::mem::take(&mut client.due) {
            let slots = self.clients.get(&id).map(|client| (&client.slots, client.first));
            let due = slots.and_then(|(slots, first)| slots.get((slot - first) as usize));
            let Some(RequestSlot { state: State::Quorum(waiting), .. }) = due else {
                unreachable!("a step that is due has no answer yet")
            };
            let (map, drawn) = (waiting.map, waiting.drawn);
            self.hand_on((id, slot), parts.into_iter(), (map, drawn), now, ask);
        }
        let mut taken = 0;
        for _ in 0..REQUESTS_PER_TURN {
            let Some(client) = self.clients.get_mut(&id) else { return (input.len(), Flow::End) };
            if client.closing {
                return (input.len(), Flow::End);
            }
            let is_laden = client.weight >= self.settings.held.client_bytes_max && !client.slots.is_empty();
            if client.two_step_running
                || client.slots.len() >= IN_FLIGHT_MAX
                || is_laden
                || !self.gate.is_open()
            {
                client.paused = true;
                return (taken, Flow::Held);
            }
            let rest = &input[taken..];
            let parsed = client.parser.parse(rest);
            match parsed {
                Ok(None) => return (taken, Flow::Wait),
                Ok(Some(length)) => {
                    let strings = client.parser.take_strings();
                    let unquoted = client.parser.take_unquoted();
                    let request = unquoted.as_deref().unwrap_or(&rest[..length]);
                    if rest[0] != b'*' && is_http(request, &strings) {
                        client.closing = true;
                        self.figures.malformed();
                        self.answer(id, Reply::Error(String::from(NO_HTTP)));
                        return (input.len(), Flow::End);
                    }
                    let place = client.place.filter(|(epoch, _)| *epoch == self.epoch);
                    let place = (place.map(|(_, place)| place), client.session.is_barred());
                    let begun = self.request(id, (request, &strings), place, now, ask);
                    let Some(client) = self.clients.get_mut(&id) else { return (input.len(), Flow::End) };
                    client.parser.give_back(strings);
                    if !begun {
                        client.paused = true;
                        return (taken, Flow::Held);
                    }
                    taken += length;
                    self.commands += 1;
                }
                Err(malformed) => {
                    client.closing = true;
                    self.figures.malformed();
                    self.answer(id, Reply::Error(format!("ERR {malformed}")));
                    return (input.len(), Flow::End);
                }
            }
        }
        (taken, if taken < input.len() { Flow::More } else { Flow::Wait })
    }

    fn give(&mut self, clients: &mut Clients) {
        for id in clients.take_drained() {
            self.touch(id);
        }
        // Clients may be touched again in this loop, because a repeated request may be answered at once.
        while let Some(id) = self.touched.pop() {
            let is_crowded = self.clients.len() > CLIENTS_ROOMY;
            let Some(client) = self.clients.get_mut(&id) else { continue };
            client.touched = false;
            if let Some(out) = clients.output(id) {
                let most = self.settings.held.client_bytes_max;
                while let Some(RequestSlot { state: State::Ready(_), .. }) = client.slots.front()
                    && out.len() <= most
                {
                    let Some(RequestSlot { state: State::Ready(reply), weight, reply_suppressed }) =
                        client.slots.pop_front()
                    else {
                        break;
                    };
                    client.first += 1;
                    client.weight -= weight;
                    self.weight -= weight;
                    if !reply_suppressed {
                        reply.encode(client.session.version, out);
                    }
                }
                if out.len() > most && !client.slots.is_empty() {
                    clients.notify_when_drained(id, most);
                    continue;
                }
            }
            if client.slots.is_empty() && is_crowded {
                client.slots.shrink_to(SLOTS_KEPT);
            }
            match client.slots.front_mut() {
                Some(RequestSlot { state: State::Quorum(waiting), .. }) if waiting.deferred => {
                    waiting.deferred = false;
                    client.due.push((client.first, waiting.all_reads()));
                }
                Some(RequestSlot { state: State::Strategy(asking), .. }) if asking.deferred => {
                    asking.deferred = false;
                    let (map, request) = (asking.map, Request::Read(asking.keys.clone()));
                    let slot = client.first;
                    self.hand_request((id, slot), map, request, clock::now());
                    continue;
                }
                _ => {}
            }
            if !client.due.is_empty() {
                client.paused = false;
                clients.wake(id);
            } else if client.paused && !client.two_step_running {
                client.paused = false;
                clients.resume(id);
            }
            if client.closing && client.slots.is_empty() {
                clients.end(id);
            }
        }
        self.process_handover_orders(clients);
    }

    fn closed(&mut self, client: ClientId) {
        self.remove(client);
    }

    fn crowded(&mut self) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }
}

impl RedisClient {
    /// Adds a request of this weight. Returns the number of its slot.
    fn push(&mut self, state: State, weight: usize, total: &mut usize) -> u64 {
        let reply_suppressed = self.session.replies != Replies::On;
        if self.session.replies == Replies::SkipNext {
            self.session.replies = Replies::On;
        }
        self.weight += weight;
        *total += weight;
        self.slots.push_back(RequestSlot { state, weight, reply_suppressed });
        self.first + self.slots.len() as u64 - 1
    }

    /// Sets the weight of a slot, and adapts the sums.
    fn weigh(&mut self, index: usize, weight: usize, total: &mut usize) {
        let before = std::mem::replace(&mut self.slots[index].weight, weight);
        self.weight = self.weight - before + weight;
        *total = *total - before + weight;
    }

    /// Whether a command has to wait for a command under way, because they share a key and one of them writes
    /// it.
    fn conflicts(&self, map: MapId, work: &CommandPlan) -> bool {
        let writes = work.writes();
        if !writes && self.writing == 0 {
            return false;
        }
        let shares = |waiting: &QuorumCommand| {
            let named = |(key, _): &(Bytes, Action)| waiting.keys.contains(key);
            let is_long = work.operations.len() * waiting.keys.len() > PAIRS_MAX;
            waiting.map == map && (writes || waiting.writes) && (is_long || work.operations.iter().any(named))
        };
        self.slots.iter().any(|slot| matches!(&slot.state, State::Quorum(waiting) if shares(waiting)))
    }
}

fn busy() -> Reply {
    Reply::Error(String::from(
        "BUSY this cell already holds as many bytes of requests and answers for its clients as it may: nothing was done, so send the command again later",
    ))
}

/// Whether a request of one line is the first line of an HTTP request. A web page can make a browser send
/// HTTP to this door.
fn is_http(input: &[u8], strings: &[std::ops::Range<usize>]) -> bool {
    matches!(strings, [_, _, version] if input[version.clone()].starts_with(b"HTTP/"))
}

/// Length of the longest name that a command could have, in bytes.
const NAME_BYTES: usize = 32;

/// Returns a name in capitals. A name longer than any command's name is returned unchanged.
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
