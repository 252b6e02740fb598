//! The tables of a cluster, as SQL asks for them: a client process of Rubberband.
//!
//! Operations go to the protocol thread as commands; its events come back on that thread and wake whoever waits, under any
//! executor. How long a request may take is the client's to decide, so nothing here has a clock.
//!
//! | file | subject |
//! |---|---|
//! | `requests` | who waits for which request |
//! | `stream` | the pieces of a long read |
//! | `fault` | what a gateway knows of a request without an answer |
//! | `explain` | where an operation would go |
//!
//! **Lives.** A process that was cut off comes back as a new one. The backend stays, and with it all that its users hold: what
//! was open has ended with its fault, and what comes next goes to the new process.

mod explain;
mod fault;
mod requests;
mod stream;

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    relay::Relay,
    rubberband::{Answered, ClientCommand, ClientError, Control, Range},
};
use quorate_runtime::{Port, Untaken};
use quorate_sql::backend::{
    Analyzed, AnswerStream, Backend, Catalog, Fault, Part, Piece, RequestId, Strength, Table, WriteName,
};
use quorate_table::{
    engine::{Answer, Failure},
    operation::{Operation, Select},
    schema::{Schema, TableId},
};
use quorate_tables::{Command, Process, gateway};
use tokio::sync::oneshot;

pub(crate) use self::requests::Requests;
use self::{
    fault::no_such_table,
    requests::{Arrived, Waiter},
    stream::Coming,
};
use crate::timer;

const STOPPING: &str = "the gateway is between two lives, or shutting down";
const ADRIFT: &str = "no majority of the routers leads, as far as this gateway hears";

/// A gateway's tables.
pub struct ClusterBackend {
    requests: Arc<Requests>,
    life: RwLock<Arc<Life>>,
}

/// The process behind it at present.
struct Life {
    handle: Port<Relay<Process>>,
    session: u128,
    /// The last number given to a request.
    number: AtomicU64,
}

impl Life {
    fn new(handle: Port<Relay<Process>>, me: ProcessId) -> Arc<Life> {
        Arc::new(Life { handle, session: me.incarnation.0, number: AtomicU64::new(0) })
    }

    /// Hands a command to the protocol thread; says why it was not taken. The queue holds far more than connections and their
    /// cancellations, and a process that is ending takes nothing.
    fn command(&self, command: ClientCommand) -> Result<(), &'static str> {
        self.handle.try_command(Command::Client(command)).map_err(|untaken| match untaken {
            Untaken::Full(_) => "the gateway has too much to do",
            Untaken::Stopped(_) => STOPPING,
        })
    }
}

/// Tells the protocol thread that nobody waits any more, unless the request has ended.
struct Interest<'a> {
    requests: &'a Requests,
    life: Arc<Life>,
    /// None once somebody else sees to it.
    token: Option<u64>,
}

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token
            && self.requests.remove(token)
        {
            // Refused, it is done for nobody.
            let _ = self.life.command(ClientCommand::Cancel { token });
        }
    }
}

/// A read that has been sent.
struct Asked<'a> {
    backend: &'a ClusterBackend,
    interest: Interest<'a>,
    receiver: oneshot::Receiver<Result<Arrived, ClientError>>,
}

impl Asked<'_> {
    /// Waits until its answers are all here, or all coming. The client's end gives up one that nobody is at.
    async fn arrived(self) -> Result<(u64, Arc<Life>, Arrived), Fault> {
        let Asked { backend, mut interest, receiver } = self;
        let arrived = match receiver.await {
            Ok(Ok(arrived)) => arrived,
            // A read is given up unsent only by a gateway that ends, or hears of no leader.
            Ok(Err(ClientError::NotSent)) if !backend.requests.is_adrift() => {
                return Err(Fault::not_sent(STOPPING));
            }
            Ok(Err(error)) => return Err(backend.requests.fault(error)),
            Err(_) => return Err(Fault::not_sent(STOPPING)),
        };
        // The streams cancel the request when they are dropped, each for itself.
        let token = interest.token.take().expect("nobody else has seen to it");
        Ok((token, interest.life.clone(), arrived))
    }
}

impl ClusterBackend {
    /// A backend on a running client process whose events go to `requests`.
    pub(crate) fn new(handle: Port<Relay<Process>>, requests: Arc<Requests>, me: ProcessId) -> Self {
        ClusterBackend { requests, life: RwLock::new(Life::new(handle, me)) }
    }

    /// Another process is behind it from now on. What was open has been ended.
    pub(crate) fn go_on(&self, handle: Port<Relay<Process>>, me: ProcessId) {
        *self.life.write().unwrap_or_else(PoisonError::into_inner) = Life::new(handle, me);
    }

    fn life(&self) -> Arc<Life> {
        self.life.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn schema(&self, table: TableId) -> Result<Arc<Table>, Fault> {
        let catalog = self.requests.catalog();
        let found = catalog.tables.iter().find(|known| known.id == table).cloned();
        found.ok_or_else(no_such_table)
    }

    /// Sends a write or a definition, which has no id, and waits for its end. The client gives up what has no place in the
    /// order in time; what has one takes as long as it takes.
    async fn submit(
        &self,
        request: Option<RequestId>,
        command: impl FnOnce(u64) -> ClientCommand,
    ) -> Result<Vec<Answered>, Fault> {
        let (sender, receiver) = oneshot::channel();
        let token = self.requests.add(Waiter::Answer(sender));
        let interest = Interest { requests: &self.requests, life: self.life(), token: Some(token) };
        let sent = interest.life.command(command(token));
        sent.map_err(Fault::not_sent)?;
        let ended = receiver.await;
        let request = request.unwrap_or(RequestId { session: interest.life.session, number: 0 });
        match ended {
            Ok(Ok(Arrived::Whole(parts))) => Ok(parts),
            Ok(Ok(Arrived::Begun(_))) => unreachable!("only reads are told in pieces"),
            Ok(Err(error)) => Err(self.requests.fault(error)),
            // The process ended.
            Err(_) => Err(self.requests.fault(ClientError::MaybeApplied { request })),
        }
    }

    /// Waits until the ring is founded, as long as a write waits for a router: a cluster that has just been started founds it
    /// in a moment.
    async fn await_ring(&self) -> Result<(), Fault> {
        if self.requests.unfounded().is_some() {
            let founded = self.requests.config_where(|config| !config.ring.is_empty());
            // Late or not, what is known then is told.
            let _ = timer::timeout(self.requests.wait, founded).await;
        }
        self.requests.unfounded().map_or(Ok(()), Err)
    }

    /// Sends a read.
    fn ask(&self, strength: Strength, request: gateway::Request) -> Result<Asked<'_>, Fault> {
        let gateway::Request { table, mut ranges, operation, .. } = request;
        if ranges.is_empty() {
            // No row can match; any one place can say so, in the answer's own form.
            ranges.push(Range { low: 0, high: 0 });
        }
        let (sender, receiver) = oneshot::channel();
        let token = self.requests.add(Waiter::Answer(sender));
        let interest = Interest { requests: &self.requests, life: self.life(), token: Some(token) };
        interest
            .life
            .command(ClientCommand::Read { token, strength, table, ranges, operation })
            .map_err(Fault::not_sent)?;
        Ok(Asked { backend: self, interest, receiver })
    }

    /// Begins a backup of these tables, at least one.
    pub(crate) async fn backup(&self, tables: &[Arc<Table>]) -> Result<AnswerStream, Fault> {
        let tables: Vec<_> = tables.iter().map(|table| (table.id, &table.schema)).collect();
        let request = gateway::backup(&tables).expect("at least one");
        self.await_ring().await?;
        self.begin(Strength::Sequential, request).await
    }

    /// Sends a read of rows; what it begins with, as it goes on from there.
    async fn begin(&self, strength: Strength, request: gateway::Request) -> Result<AnswerStream, Fault> {
        request.fits()?;
        let (token, life, arrived) = self.ask(strength, request)?.arrived().await?;
        let parts = match arrived {
            Arrived::Whole(parts) => {
                let whole = |answered: Answered| Part::Whole(answered.pieces.into_iter());
                parts.into_iter().map(whole).collect()
            }
            Arrived::Begun(streams) => {
                let stream = |(from, pieces)| {
                    let requests = self.requests.clone();
                    Part::Stream(Box::new(Coming::new(life.handle.clone(), requests, token, from, pieces)))
                };
                streams.into_iter().map(stream).collect()
            }
        };
        Ok(AnswerStream { parts })
    }
}

#[async_trait]
impl Backend for ClusterBackend {
    fn is_ready(&self) -> bool {
        self.requests.config().is_some()
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.requests.catalog()
    }

    fn request_id(&self) -> RequestId {
        let life = self.life();
        RequestId { session: life.session, number: life.number.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    fn may_have_given(&self, id: RequestId) -> bool {
        let life = self.life();
        id.session != life.session || id.number <= life.number.load(Ordering::Relaxed)
    }

    async fn create_table(&self, _id: RequestId, schema: Schema, replicas: Option<u32>) -> Result<(), Fault> {
        let factor = self.requests.config().map_or(0, |config| u32::from(config.replicas));
        if let Some(replicas) = replicas.filter(|replicas| *replicas != factor) {
            let message = format!("replicas = {replicas}: every table of this domain has {factor}");
            return Err(Fault::Failed(Failure::new("0A000", message)));
        }
        self.await_ring().await?;
        let definition = gateway::definition(&schema);
        let control = Control::CreateTable { name: schema.name, definition };
        self.submit(None, |token| ClientCommand::Control { token, control }).await.map(drop)
    }

    async fn drop_table(&self, _id: RequestId, table: TableId) -> Result<(), Fault> {
        let control = Control::DropTable { table: table.0 };
        self.submit(None, |token| ClientCommand::Control { token, control }).await.map(drop)
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
        let WriteName { request, print, repeated } = name;
        let write = |token| ClientCommand::Write {
            token,
            request: Some(request),
            print,
            repeated,
            table,
            ranges,
            fallible,
            operation,
        };
        let parts = self.submit(Some(request), write).await?;
        let pieces = parts.into_iter().flat_map(|part| part.pieces);
        pieces.map(|piece| Piece::Encoded(piece).answer()).collect()
    }

    async fn read(&self, strength: Strength, select: &Select) -> Result<AnswerStream, Fault> {
        let table = self.schema(select.table)?;
        self.begin(strength, gateway::read(select, &table.schema)).await
    }

    async fn read_encoded(
        &self,
        strength: Strength,
        table: TableId,
        operation: Bytes,
    ) -> Result<AnswerStream, Fault> {
        self.begin(strength, gateway::everywhere(table, operation)).await
    }

    async fn analyze(&self, strength: Strength, select: &Select) -> Result<Vec<Analyzed>, Fault> {
        let table = self.schema(select.table)?;
        let request = gateway::explain(select, &table.schema);
        let (_, _, arrived) = self.ask(strength, request)?.arrived().await?;
        let Arrived::Whole(parts) = arrived else {
            return Err(Fault::Failed(Failure::malformed("a report that is too long")));
        };
        let config = self.requests.config();
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
        let Some(config) = self.requests.config() else { return vec![String::from("no configuration yet")] };
        let Ok(table) = self.schema(operation.table()) else { return vec![String::from("no such table")] };
        let request = match operation {
            Operation::Select(select) => gateway::read(select, &table.schema),
            other => gateway::request(other, &table.schema),
        };
        explain::lines(&config, operation, &request)
    }
}
