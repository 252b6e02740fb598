//! The cluster as a backend: a client process of Rubberband behind the SQL door.
//!
//! Requests go to the protocol thread as commands; its events come back on that thread ([`Events::take`], which never
//! blocks) and wake whoever waits. A long read's pieces are taken over only as fast as the connection consumes them:
//! what is taken is told to the replicas, and they send no more than a window ahead.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    relay::Relay,
    rubberband::{self, ClientCommand, ClientError, ClientEvent, Config, Control, Spent, refusal},
};
use quorate_runtime::{Port, Untaken};
use quorate_sql::backend::{
    Analyzed, AnswerStream, Backend, Catalog, Fault, Part, Piece, Pieces, ReadStrength, RequestId, Table,
    WriteName,
};
use quorate_table::{
    engine::{Answer, Failure},
    operation::{Operation, Select},
    schema::{Schema, TableId},
};
use quorate_tables::{Command, Role, gateway};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use tokio::sync::{mpsc, oneshot};

/// Processes that usually answer a read; more find room as well.
const PARTS: usize = 4;

/// How often it is looked whether the ring is founded.
const RING_PAUSE: Duration = Duration::from_millis(20);

const STOPPING: &str = "the gateway is shutting down";
const ADRIFT: &str = "no majority of the routers leads, as far as this gateway hears";

/// A gateway's tables.
pub struct ClusterBackend {
    handle: Port<Relay<Role>>,
    events: Arc<Events>,
    session: u128,
    number: AtomicU64,
    /// How long a write, or a definition, waits for the cluster.
    wait: Duration,
}

/// Takes a client's events and hands them to those who wait.
#[derive(Default)]
pub struct Events {
    waiting: Mutex<FxHashMap<u64, Waiter>>,
    token: AtomicU64,
    /// No majority of the routers leads, as far as this gateway hears.
    adrift: AtomicBool,
    config: RwLock<Option<Arc<Config>>>,
    catalog: RwLock<Arc<Catalog>>,
}

enum Waiter {
    Write {
        /// It has its place in the order.
        ordered: bool,
        parts: Vec<Bytes>,
        sender: oneshot::Sender<Result<Vec<Bytes>, ClientError>>,
    },
    Gathering(Gathering),
    /// A long read whose connection has its streams.
    Streaming(BTreeMap<ProcessId, mpsc::UnboundedSender<Result<Bytes, Fault>>>),
}

/// A read whose answers have not all begun.
struct Gathering {
    parts: Vec<Answered>,
    sender: oneshot::Sender<Result<Gathered, ClientError>>,
}

/// What a process has answered. Nearly always it is one piece.
struct Answered {
    from: ProcessId,
    spent: Spent,
    pieces: SmallVec<[Bytes; 1]>,
    /// It is all here.
    ended: bool,
}

/// What a read begins with.
enum Gathered {
    /// All of it.
    Whole(Vec<Answered>),
    /// A stream per process.
    Streams(Vec<(ProcessId, mpsc::UnboundedReceiver<Result<Bytes, Fault>>)>),
}

impl Events {
    fn waiting(&self) -> MutexGuard<'_, FxHashMap<u64, Waiter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self) -> u64 {
        self.token.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The newest configuration, once there is one.
    pub fn config(&self) -> Option<Arc<Config>> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_adrift(&self) -> bool {
        self.adrift.load(Ordering::Relaxed)
    }

    fn is_ordered(&self, token: u64) -> bool {
        matches!(self.waiting().get(&token), Some(Waiter::Write { ordered: true, .. }))
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.catalog.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes an event. Never blocks.
    pub fn take(&self, event: ClientEvent) {
        match event {
            ClientEvent::Config(config) => {
                let mut before = self.config.write().unwrap_or_else(PoisonError::into_inner);
                // Statements are bound against a catalog, and not anew because somebody joined.
                let same = |before: &&Arc<Config>| {
                    before.tables == config.tables && before.replicas == config.replicas
                };
                if before.as_ref().filter(same).is_none() {
                    *self.catalog.write().unwrap_or_else(PoisonError::into_inner) =
                        Arc::new(catalog_of(&config));
                }
                *before = Some(config);
            }
            ClientEvent::Part { token, from, content, last, spent } => {
                self.part(token, from, content, last, spent);
            }
            ClientEvent::Ordered { token } => {
                if let Some(Waiter::Write { ordered, .. }) = self.waiting().get_mut(&token) {
                    *ordered = true;
                }
            }
            ClientEvent::Gathered { token } => self.gathered(token),
            ClientEvent::Restart { token } => self.restart(token),
            ClientEvent::Done { token, .. } => {
                let waiter = self.waiting().remove(&token);
                match waiter {
                    // Whoever waited may be gone; the request is done all the same.
                    Some(Waiter::Write { parts, sender, .. }) => drop(sender.send(Ok(parts))),
                    Some(Waiter::Gathering(Gathering { mut parts, sender, .. })) => {
                        // Whoever explains them tells them in one order.
                        parts.sort_unstable_by_key(|part| part.from);
                        drop(sender.send(Ok(Gathered::Whole(parts))));
                    }
                    Some(Waiter::Streaming(_)) | None => {}
                }
            }
            ClientEvent::Failed { token, error } => {
                let waiter = self.waiting().remove(&token);
                match waiter {
                    Some(Waiter::Write { sender, .. }) => drop(sender.send(Err(error))),
                    Some(Waiter::Gathering(read)) => drop(read.sender.send(Err(error))),
                    Some(Waiter::Streaming(streams)) => break_off(streams, Some(error)),
                    None => {}
                }
            }
            ClientEvent::Adrift(adrift) => self.adrift.store(adrift, Ordering::Relaxed),
            ClientEvent::Unreached { .. } | ClientEvent::Wedged => {}
        }
    }

    fn part(&self, token: u64, from: ProcessId, content: Bytes, last: bool, spent: Spent) {
        let mut waiting = self.waiting();
        match waiting.get_mut(&token) {
            Some(Waiter::Write { parts, .. }) => parts.push(content),
            Some(Waiter::Gathering(read)) => match read.parts.iter_mut().find(|part| part.from == from) {
                Some(part) => {
                    part.pieces.push(content);
                    part.ended = last;
                }
                None => {
                    let pieces = smallvec![content];
                    read.parts.push(Answered { from, spent, pieces, ended: last });
                }
            },
            Some(Waiter::Streaming(streams)) => {
                if let Some(stream) = streams.get(&from) {
                    // A receiver that is gone cancels the request when it goes.
                    let _ = stream.send(Ok(content));
                }
                if last {
                    streams.remove(&from);
                }
            }
            None => {}
        }
    }

    /// The answers have all begun: a read that is not complete already becomes streams.
    fn gathered(&self, token: u64) {
        let mut waiting = self.waiting();
        let unfinished = |waiter: &Waiter| matches!(waiter, Waiter::Gathering(read) if !read.parts.iter().all(|part| part.ended));
        if !waiting.get(&token).is_some_and(unfinished) {
            return;
        }
        let Some(Waiter::Gathering(read)) = waiting.remove(&token) else { return };
        let mut senders = BTreeMap::new();
        let mut streams = Vec::with_capacity(read.parts.len());
        for Answered { from, pieces, ended, .. } in read.parts {
            let (sender, receiver) = mpsc::unbounded_channel();
            for piece in pieces {
                let _ = sender.send(Ok(piece));
            }
            // What is all here ends; its reader may be waited for before another's rest is taken.
            if !ended {
                senders.insert(from, sender);
            }
            streams.push((from, receiver));
        }
        // Whoever is gone already finds it here, and cancels it.
        waiting.insert(token, Waiter::Streaming(senders));
        let _ = read.sender.send(Ok(Gathered::Streams(streams)));
    }

    fn restart(&self, token: u64) {
        let mut waiting = self.waiting();
        match waiting.get_mut(&token) {
            Some(Waiter::Gathering(read)) => read.parts.clear(),
            // Rows may have reached the user, and the new attempt would tell them again.
            Some(Waiter::Streaming(_)) => {
                if let Some(Waiter::Streaming(streams)) = waiting.remove(&token) {
                    break_off(streams, None);
                }
            }
            Some(Waiter::Write { .. }) | None => {}
        }
    }
}

/// Too much is held for others.
fn no_room() -> Fault {
    let what =
        "out of memory: a storage process holds no more results for clients that are slow to take theirs";
    let detail = "Results with ORDER BY, DISTINCT or GROUP BY are held whole until they are taken. Ask again later, ask for less, or \
                  raise engine.held_bytes_max of the storage processes.";
    Failure::new("53200", what).with_detail(detail).into()
}

/// A result was not taken in time.
fn untaken() -> Fault {
    let what = "canceling statement because its result was not taken in time";
    let detail = "A storage process drops the rest of a result of which its client takes nothing for engine.held_max_ms.";
    Failure::new("57014", what).with_detail(detail).into()
}

/// Ends streams of which some rows may have reached the user.
fn break_off(
    streams: BTreeMap<ProcessId, mpsc::UnboundedSender<Result<Bytes, Fault>>>,
    error: Option<ClientError>,
) {
    for stream in streams.into_values() {
        let fault = match error {
            Some(ClientError::Died { process, again }) => Fault::Died { process: process.to_string(), again },
            Some(ClientError::NoRoom { .. }) => no_room(),
            Some(ClientError::Untaken { .. }) => untaken(),
            _ => Fault::Retry { reason: String::from("a replica was lost in the middle of the answer") },
        };
        let _ = stream.send(Err(fault));
    }
}

fn catalog_of(config: &Config) -> Catalog {
    let table = |(&id, entry): (&u32, &rubberband::TableEntry)| {
        let schema = gateway::schema(&entry.definition)?;
        let replicas = u32::from(config.replicas);
        Some(Arc::new(Table { id: TableId(id), schema, replicas, rows: None }))
    };
    Catalog { version: config.version, tables: config.tables.iter().filter_map(table).collect() }
}

/// Tells the protocol thread that nobody waits any more, unless the request has ended.
struct Interest<'a> {
    backend: &'a ClusterBackend,
    token: u64,
}

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        if self.backend.events.waiting().remove(&self.token).is_some() {
            // Refused, it is done for nobody.
            let _ = self.backend.command(ClientCommand::Cancel { token: self.token });
        }
    }
}

/// A read that has been sent.
struct Asked<'a> {
    interest: Interest<'a>,
    receiver: oneshot::Receiver<Result<Gathered, ClientError>>,
}

impl Asked<'_> {
    /// Waits until its answers are all here, or all coming. The client's end gives up one that nobody is at.
    async fn gathered(self) -> Result<(u64, Gathered), Fault> {
        let Asked { interest, receiver } = self;
        let gathered = match receiver.await {
            Ok(Ok(gathered)) => gathered,
            Ok(Err(ClientError::NotSent)) if interest.backend.events.is_adrift() => {
                return Err(Fault::Retry { reason: ADRIFT.to_owned() });
            }
            Ok(Err(ClientError::NotSent)) | Err(_) => {
                return Err(Fault::Retry { reason: STOPPING.to_owned() });
            }
            Ok(Err(error)) => return Err(interest.backend.fault(error)),
        };
        let token = interest.token;
        // The streams cancel the request when they are dropped, each for itself.
        std::mem::forget(interest);
        Ok((token, gathered))
    }
}

impl ClusterBackend {
    /// A backend on a running client process whose events go to `events`.
    pub fn new(handle: Port<Relay<Role>>, events: Arc<Events>, me: ProcessId, wait: Duration) -> Self {
        ClusterBackend { handle, events, session: me.incarnation.0, number: AtomicU64::new(0), wait }
    }

    /// Hands a command to the protocol thread; says why it was not taken. The queue holds far more than connections and their
    /// cancellations, and a process that is ending takes nothing.
    fn command(&self, command: ClientCommand) -> Result<(), &'static str> {
        self.handle.try_command(Command::Client(command)).map_err(|untaken| match untaken {
            Untaken::Full(_) => "the gateway has too much to do",
            Untaken::Stopped(_) => STOPPING,
        })
    }

    fn schema(&self, table: TableId) -> Result<Arc<Table>, Fault> {
        let catalog = self.events.catalog();
        let found = catalog.tables.iter().find(|known| known.id == table).cloned();
        found.ok_or_else(|| Fault::Failed(Failure::new("42P01", "the table does not exist any more")))
    }

    /// Sends a write or a definition and waits for its end. What has no place in the order after the configured time is
    /// given up; what has one takes as long as it takes.
    async fn submit(
        &self,
        request: rubberband::RequestId,
        command: impl FnOnce(u64) -> ClientCommand,
    ) -> Result<Vec<Bytes>, Fault> {
        let token = self.events.token();
        let (sender, mut receiver) = oneshot::channel();
        self.events.waiting().insert(token, Waiter::Write { ordered: false, parts: Vec::new(), sender });
        let interest = Interest { backend: self, token };
        self.command(command(token)).map_err(|reason| Fault::NotSent { reason: reason.to_owned() })?;
        let ended = loop {
            match tokio::time::timeout(self.wait, &mut receiver).await {
                Ok(ended) => break ended,
                Err(_) if self.events.is_ordered(token) => {}
                Err(_) => {
                    // The cancellation ends the request at once; only how is open. Where it does not come through, all is.
                    let _ = self.command(ClientCommand::Cancel { token });
                    let ended = tokio::time::timeout(self.wait, receiver).await;
                    break ended.unwrap_or(Ok(Err(ClientError::MaybeApplied { request })));
                }
            }
        };
        drop(interest);
        match ended {
            Ok(Ok(parts)) => Ok(parts),
            Ok(Err(error)) => Err(self.fault(error)),
            Err(_) => Err(self.fault(ClientError::MaybeApplied { request })),
        }
    }

    /// That no ring is founded, if so.
    fn unfounded(&self) -> Option<Fault> {
        let config = self.events.config()?;
        let (joined, wanted) = (config.storage.len(), config.wanted_storage as usize);
        config.ring.is_empty().then_some(Fault::Unfounded { joined, wanted })
    }

    /// Waits until the ring is founded, as long as a write waits for a router: a cluster that has just been started founds it
    /// in a moment.
    async fn await_ring(&self) -> Result<(), Fault> {
        let until = tokio::time::Instant::now() + self.wait;
        while let Some(fault) = self.unfounded() {
            if tokio::time::Instant::now() >= until {
                return Err(fault);
            }
            tokio::time::sleep(RING_PAUSE).await;
        }
        Ok(())
    }

    /// The name of what has none: a change of the configuration.
    fn nameless(&self) -> rubberband::RequestId {
        rubberband::RequestId { session: self.session, number: 0 }
    }

    /// Sends a read.
    fn ask(&self, strength: ReadStrength, request: gateway::Request) -> Result<Asked<'_>, Fault> {
        let gateway::Request { table, mut ranges, operation, .. } = request;
        if ranges.is_empty() {
            // No row can match; any one place can say so, in the answer's own form.
            ranges.push(rubberband::Range { low: 0, high: 0 });
        }
        let token = self.events.token();
        let (sender, receiver) = oneshot::channel();
        let gathering = Gathering { parts: Vec::with_capacity(PARTS), sender };
        self.events.waiting().insert(token, Waiter::Gathering(gathering));
        let interest = Interest { backend: self, token };
        let strength = strength_of(strength);
        self.command(ClientCommand::Read { token, strength, table, ranges, operation })
            .map_err(|reason| Fault::Retry { reason: reason.to_owned() })?;
        Ok(Asked { interest, receiver })
    }

    /// Sends a read of rows; what it begins with, as it goes on from there.
    async fn begin(&self, strength: ReadStrength, request: gateway::Request) -> Result<AnswerStream, Fault> {
        request.fits()?;
        let (token, gathered) = self.ask(strength, request)?.gathered().await?;
        let parts = match gathered {
            Gathered::Whole(parts) => {
                let whole = |answered: Answered| Part::Whole(answered.pieces.into_iter());
                parts.into_iter().map(whole).collect()
            }
            Gathered::Streams(streams) => {
                let stream = |(from, pieces)| {
                    let handle = self.handle.clone();
                    let coming = Coming { handle, token, from, pieces, taken: 0, told: 0, ended: false };
                    Part::Stream(Box::new(coming))
                };
                streams.into_iter().map(stream).collect()
            }
        };
        Ok(AnswerStream { parts })
    }

    /// What people call a process; its id once it is no member any more.
    fn name_of(&self, process: ProcessId) -> String {
        let config = self.events.config();
        let known = config.as_ref().and_then(|config| config.members.get(&process));
        known.map_or_else(|| process.to_string(), |member| format!("{} at {}", member.name, member.address))
    }

    fn fault(&self, error: ClientError) -> Fault {
        match error {
            ClientError::NotSent if self.events.is_adrift() => Fault::NotSent { reason: ADRIFT.to_owned() },
            ClientError::NotSent => {
                Fault::NotSent { reason: format!("no router took it within {} ms", self.wait.as_millis()) }
            }
            ClientError::MaybeApplied { request } => {
                let id = RequestId { session: request.session, number: request.number };
                let reason = self.events.is_adrift().then_some(ADRIFT);
                Fault::MaybeApplied { id, reason }
            }
            ClientError::Expired => Fault::Expired,
            ClientError::OtherStatement => Fault::OtherStatement,
            ClientError::Unreached { process } => Fault::Unreached { process: self.name_of(process) },
            ClientError::Died { process, again } => Fault::Died { process: self.name_of(process), again },
            ClientError::Forgotten { applied } => Fault::Forgotten { applied },
            ClientError::NoRoom { .. } => no_room(),
            ClientError::Untaken { .. } => untaken(),
            ClientError::Unanswered => {
                Fault::Retry { reason: String::from("no replica was heard to be at it in time") }
            }
            ClientError::Rejected(why) => match why {
                refusal::NO_SUCH_TABLE => {
                    Fault::Failed(Failure::new("42P01", "the table does not exist any more"))
                }
                refusal::TABLE_EXISTS => Fault::Failed(Failure::new("42P07", "the table exists already")),
                refusal::NO_RING => self
                    .unfounded()
                    .unwrap_or(Fault::Retry { reason: String::from("the ring has just been founded") }),
                why => match refusal::as_range(why) {
                    Some(low) => Fault::Unavailable { range: format!("from {low:#018x}") },
                    None => Fault::Rejected { range: format!("(reason {})", why.0) },
                },
            },
        }
    }
}

fn strength_of(strength: ReadStrength) -> rubberband::ReadStrength {
    match strength {
        ReadStrength::Sequential => rubberband::ReadStrength::Sequential,
        ReadStrength::Snapshot => rubberband::ReadStrength::Snapshot,
        ReadStrength::Basic => rubberband::ReadStrength::Basic,
    }
}

#[async_trait]
impl Backend for ClusterBackend {
    fn is_ready(&self) -> bool {
        self.events.config().is_some()
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.events.catalog()
    }

    fn request_id(&self) -> RequestId {
        RequestId { session: self.session, number: self.number.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    fn may_have_given(&self, id: RequestId) -> bool {
        id.session != self.session || id.number <= self.number.load(Ordering::Relaxed)
    }

    async fn create_table(&self, _id: RequestId, schema: Schema, replicas: Option<u32>) -> Result<(), Fault> {
        let factor = self.events.config().map_or(0, |config| u32::from(config.replicas));
        if let Some(replicas) = replicas.filter(|replicas| *replicas != factor) {
            let message = format!("replicas = {replicas}: every table of this domain has {factor}");
            return Err(Fault::Failed(Failure::new("0A000", message)));
        }
        self.await_ring().await?;
        let definition = gateway::definition(&schema);
        let control = Control::CreateTable { name: schema.name, definition };
        self.submit(self.nameless(), |token| ClientCommand::Control { token, control }).await.map(drop)
    }

    async fn drop_table(&self, _id: RequestId, table: TableId) -> Result<(), Fault> {
        let control = Control::DropTable { table: table.0 };
        self.submit(self.nameless(), |token| ClientCommand::Control { token, control }).await.map(drop)
    }

    async fn write(&self, name: WriteName, operation: Operation) -> Result<Vec<Answer>, Fault> {
        let table = self.schema(operation.table())?;
        let request = gateway::request(&operation, &table.schema);
        request.fits()?;
        let gateway::Request { table, ranges, fallible, operation } = request;
        if ranges.is_empty() {
            // No row can match, so nothing is to be done anywhere.
            return Ok(vec![Answer::Written(Vec::new())]);
        }
        let WriteName { id, print, repeated } = name;
        let id = rubberband::RequestId { session: id.session, number: id.number };
        let request = Some(id);
        let write = |token| ClientCommand::Write {
            token,
            request,
            print,
            repeated,
            table,
            ranges,
            fallible,
            operation,
        };
        let parts = self.submit(id, write).await?;
        parts.into_iter().map(|part| Piece::Encoded(part).answer()).collect()
    }

    async fn read(&self, strength: ReadStrength, select: &Select) -> Result<AnswerStream, Fault> {
        let table = self.schema(select.table)?;
        self.begin(strength, gateway::read(select, &table.schema)).await
    }

    async fn read_encoded(
        &self,
        strength: ReadStrength,
        table: TableId,
        operation: Bytes,
    ) -> Result<AnswerStream, Fault> {
        self.begin(strength, gateway::everywhere(table, operation)).await
    }

    async fn analyze(&self, strength: ReadStrength, select: &Select) -> Result<Vec<Analyzed>, Fault> {
        let table = self.schema(select.table)?;
        let request = gateway::explain(select, &table.schema);
        let (_, gathered) = self.ask(strength, request)?.gathered().await?;
        let Gathered::Whole(parts) = gathered else {
            return Err(Fault::Failed(Failure::malformed("a report that is too long")));
        };
        let config = self.events.config();
        let analyzed = |Answered { from, spent, pieces, .. }| {
            let known = config.as_ref().and_then(|config| config.members.get(&from));
            let replica = known.map_or_else(|| from.to_string(), |member| member.name.clone());
            let answer = pieces.into_iter().next().map(|piece| Piece::Encoded(piece).answer());
            match answer.transpose()? {
                Some(Answer::Explained(explained)) => {
                    Ok(Analyzed { replica, waited: spent.waited, took: spent.took, explained })
                }
                _ => Err(Fault::Failed(Failure::malformed("a replica explained something else"))),
            }
        };
        parts.into_iter().map(analyzed).collect()
    }

    fn explain(&self, operation: &Operation) -> Vec<String> {
        let Some(config) = self.events.config() else { return vec![String::from("no configuration yet")] };
        let Ok(table) = self.schema(operation.table()) else { return vec![String::from("no such table")] };
        let request = match operation {
            Operation::Select(select) => gateway::read(select, &table.schema),
            other => gateway::request(other, &table.schema),
        };
        explain(&config, operation, &request)
    }
}

/// A replica's part of a long read. What has been taken of it is told to the replica, which sends no more than a window
/// ahead; dropped before its end, it ends the request.
struct Coming {
    handle: Port<Relay<Role>>,
    token: u64,
    from: ProcessId,
    pieces: mpsc::UnboundedReceiver<Result<Bytes, Fault>>,
    /// Bytes of all pieces handed out, and how much of that the replica knows.
    taken: u64,
    told: u64,
    ended: bool,
}

impl Coming {
    /// Whether there is room for a command; a process that is ending needs none any more.
    fn tell(&self, command: ClientCommand) -> bool {
        !matches!(self.handle.try_command(Command::Client(command)), Err(Untaken::Full(_)))
    }
}

impl Pieces for Coming {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Fault>>> {
        if self.taken > self.told {
            let (token, from, bytes) = (self.token, self.from, self.taken);
            if self.tell(ClientCommand::Consumed { token, from, bytes }) {
                self.told = bytes;
            } else {
                // Untold, nothing more would come.
                cx.waker().wake_by_ref();
            }
        }
        let piece = ready!(self.pieces.poll_recv(cx));
        match &piece {
            Some(Ok(content)) => self.taken += content.len() as u64,
            // A new attempt may be under way that nobody waits for: the drop cancels it.
            Some(Err(_)) => {}
            None => self.ended = true,
        }
        Poll::Ready(piece.map(|piece| piece.map(Piece::Encoded)))
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if !self.ended {
            self.tell(ClientCommand::Cancel { token: self.token });
        }
    }
}

impl fmt::Debug for Coming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coming").field("token", &self.token).field("from", &self.from).finish_non_exhaustive()
    }
}

fn explain(config: &Config, operation: &Operation, request: &gateway::Request) -> Vec<String> {
    let mut lines = Vec::new();
    let total = config.segments().len();
    let touched: usize = request.ranges.iter().map(|range| config.count_segments(*range)).sum();
    lines.push(format!("Ranges: {} of {total} ring segments", touched.min(total)));
    let assigned = if operation.is_write() {
        lines.push(String::from("Executed by every replica, answered once per range"));
        if request.fallible && touched > 1 {
            lines.push(String::from(
                "Can fail and spans ranges: replicas exchange verdicts before it takes effect",
            ));
        }
        config.assign_write(&request.ranges, 0)
    } else {
        config.assign_read(&request.ranges, 0)
    };
    match assigned {
        Ok(assigned) => {
            for assignment in assigned {
                let name = config.members.get(&assignment.process).map_or("?", |info| info.name.as_str());
                let count = assignment.held.len();
                lines
                    .push(format!("Destination: {name}, {count} range{}", if count == 1 { "" } else { "s" }));
            }
        }
        Err(range) => lines.push(format!("No replica for the range from {:#018x}", range.low)),
    }
    lines
}

#[cfg(test)]
mod tests {
    use quorate_protocol::id::Incarnation;
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn the_catalog_stays_while_tables_do() {
        let events = Events::default();
        let told = |replicas: u8| {
            events.take(ClientEvent::Config(Arc::new(Config::new(replicas))));
            events.catalog()
        };
        let first = told(3);
        assert!(Arc::ptr_eq(&first, &told(3)));
        assert!(!Arc::ptr_eq(&first, &told(2)));
    }

    #[test]
    fn who_is_gone_when_answers_begin_still_finds_the_read() {
        let events = Events::default();
        let (sender, receiver) = oneshot::channel();
        let from = ProcessId { node: 1, incarnation: Incarnation(1) };
        let part = Answered { from, spent: Spent::default(), pieces: smallvec![], ended: false };
        events.waiting().insert(7, Waiter::Gathering(Gathering { parts: vec![part], sender }));
        drop(receiver);
        events.take(ClientEvent::Gathered { token: 7 });
        assert!(events.waiting().contains_key(&7), "so that it is cancelled");
    }
}
