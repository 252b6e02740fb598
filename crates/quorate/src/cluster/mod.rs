//! The tables of a cluster, for SQL: a backend that uses a client process of Rubberband.
//!
//! Operations go to the protocol thread as commands. The client's events come back on that thread and wake
//! the waiting callers, under any executor. The client process decides how long a request may take, so this
//! module has no clock.
//!
//! | file | subject |
//! |---|---|
//! | `requests` | the waiting callers, by request |
//! | `stream` | the pieces of a long read |
//! | `fault` | the errors of unanswered requests |
//! | `explain` | the destinations of an operation |
//!
//! **Lives.** A process that was cut off comes back as a new process. The backend and all handles to it stay
//! valid: requests that were open have ended with an error, and later requests go to the new process.

mod explain;
mod fault;
mod requests;
mod stream;

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    relay::Relay,
    rubberband::{
        ClientCommand, ClientError, Control, DEFINITIONS_SINCE, ProcessAnswer, Range, TRANSACTIONS_SINCE,
        TYPES_SINCE, TableChange,
    },
};
use quorate_roles::tables::{Command, Process, gateway};
use quorate_runtime::{CommandError, Port};
use quorate_sql::{
    backend::{
        Analyzed, AnswerStream, Attempt, Backend, Catalog, Definition, OperationError, Piece, RangeAnswers,
        RequestId, Strength, Table, WriteName,
    },
    index::is_index,
};
use quorate_table::{
    constraint::Constraint,
    engine::{Answer, Failure},
    operation::{Operation, Select, TableTransaction, Trial},
    schema::{Schema, TableId},
};

pub(crate) use self::requests::Requests;
use self::{
    fault::no_such_table,
    requests::{AnswerReceiver, Arrived, STOPPING},
    stream::PartStream,
};
use crate::timer;

/// A gateway's tables.
pub struct ClusterBackend {
    requests: Arc<Requests>,
    life: RwLock<Arc<BackendProcess>>,
}

/// The process that a backend uses at present.
struct BackendProcess {
    handle: Port<Relay<Process>>,
    session: u128,
    /// Number of the last request.
    number: AtomicU64,
}

impl BackendProcess {
    fn new(handle: Port<Relay<Process>>, me: ProcessId) -> Arc<BackendProcess> {
        Arc::new(BackendProcess { handle, session: me.incarnation.0, number: AtomicU64::new(0) })
    }

    /// Passes a command to the protocol thread. Fails if the process is ending or the queue is full, and
    /// returns that reason. The queue has room for far more commands than all connections and their
    /// cancellations need.
    fn command(&self, command: ClientCommand) -> Result<(), &'static str> {
        self.handle.try_command(Command::Client(command)).map_err(|untaken| match untaken {
            CommandError::Full(_) => "too many requests wait for the gateway",
            CommandError::Stopped(_) => STOPPING,
        })
    }
}

/// A guard that cancels a request when its caller drops it, unless the request has ended.
struct RequestGuard<'a> {
    requests: &'a Requests,
    life: Arc<BackendProcess>,
    /// The token of the request; `None` once the streams of the answer are responsible for the cancellation.
    token: Option<u64>,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token
            && self.requests.remove(token)
        {
            // If the command is refused, the request is still executed, but no caller gets its answer.
            let _ = self.life.command(ClientCommand::Cancel { token });
        }
    }
}

/// A read that the client has sent.
struct PendingRead<'a> {
    backend: &'a ClusterBackend,
    guard: RequestGuard<'a>,
    receiver: AnswerReceiver,
}

impl PendingRead<'_> {
    /// Waits until all answers to the read are complete, or all have begun. The client gives up a read that
    /// no replica executes.
    async fn arrived(self) -> Result<(u64, Arc<BackendProcess>, Arrived), OperationError> {
        let PendingRead { backend, mut guard, receiver } = self;
        let arrived = match receiver.await {
            Ok(Ok(arrived)) => arrived,
            // The client gives a read up unsent only if the gateway ends or the gateway hears of no leader.
            Ok(Err(ClientError::NotSent)) if !backend.requests.is_adrift() => {
                return Err(OperationError::not_sent(STOPPING));
            }
            Ok(Err(error)) => return Err(backend.requests.fault(error)),
            Err(_) => return Err(OperationError::not_sent(STOPPING)),
        };
        // Each stream cancels the request when it is dropped.
        let token = guard.token.take().expect("only one caller takes the token of a request");
        Ok((token, guard.life.clone(), arrived))
    }
}

impl ClusterBackend {
    /// Makes a backend of a running client process whose events go to `requests`.
    pub(crate) fn new(handle: Port<Relay<Process>>, requests: Arc<Requests>, me: ProcessId) -> Self {
        ClusterBackend { requests, life: RwLock::new(BackendProcess::new(handle, me)) }
    }

    /// Switches to another process. All requests of the former process have ended before this call.
    pub(crate) fn go_on(&self, handle: Port<Relay<Process>>, me: ProcessId) {
        *self.life.write().unwrap_or_else(PoisonError::into_inner) = BackendProcess::new(handle, me);
    }

    fn life(&self) -> Arc<BackendProcess> {
        self.life.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn schema(&self, table: TableId) -> Result<Arc<Table>, OperationError> {
        let catalog = self.requests.catalog();
        let found = catalog.tables.iter().find(|known| known.id == table).cloned();
        found.ok_or_else(no_such_table)
    }

    /// Sends a request to the present process.
    fn send(
        &self,
        command: impl FnOnce(u64) -> ClientCommand,
    ) -> Result<(RequestGuard<'_>, AnswerReceiver), OperationError> {
        let life = self.life();
        let sent = self.requests.send(|token| life.command(command(token)));
        let (token, receiver) = sent.map_err(OperationError::not_sent)?;
        Ok((RequestGuard { requests: &self.requests, life, token: Some(token) }, receiver))
    }

    /// Sends a write without an id, or a definition, and waits for its end. The client limits the time until
    /// the request has a place in the total order, but not the time after that.
    async fn submit(
        &self,
        request: Option<RequestId>,
        command: impl FnOnce(u64) -> ClientCommand,
    ) -> Result<Vec<ProcessAnswer>, OperationError> {
        let (guard, receiver) = self.send(command)?;
        let ended = receiver.await;
        let request = request.unwrap_or(RequestId { session: guard.life.session, number: 0 });
        match ended {
            Ok(Ok(Arrived::Whole(parts))) => Ok(parts),
            Ok(Ok(Arrived::Begun(_))) => unreachable!("only reads are answered in pieces"),
            Ok(Err(error)) => Err(self.requests.fault(error)),
            // The process ended before it reported an outcome.
            Err(_) => Err(self.requests.fault(ClientError::MaybeApplied { request })),
        }
    }

    /// Waits until the ring is founded, but not longer than a write waits for a router. A new cluster founds
    /// its ring within a moment.
    async fn await_ring(&self) -> Result<(), OperationError> {
        if self.requests.unfounded().is_some() {
            let founded = self.requests.config_where(|config| !config.ring.is_empty());
            // A timeout is ignored, because the check below decides by the present state.
            let _ = timer::timeout(self.requests.wait, founded).await;
        }
        self.requests.unfounded().map_or(Ok(()), Err)
    }

    /// Sends a write, and waits for its end.
    async fn submit_write(
        &self,
        name: WriteName,
        request: gateway::TableRequest,
    ) -> Result<Vec<Answer>, OperationError> {
        let gateway::TableRequest { table, ranges, fallible, operation } = request;
        self.require_readable(&operation)?;
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

    /// Sends a control message, and waits for its end.
    async fn control(&self, control: Control) -> Result<(), OperationError> {
        self.submit(None, |token| ClientCommand::Control { token, control }).await.map(drop)
    }

    /// Fails if an earlier build founded the domain, so that the domain has an earlier version of routing.
    /// Some storage processes of such a domain may not know `feature`.
    fn require(&self, version: u32, feature: &str) -> Result<(), OperationError> {
        match self.requests.config() {
            Some(config) if config.routing < version => {
                let message = format!("{feature} is not possible: an earlier build founded the domain");
                let detail = "Load a backup into a new domain to use it.";
                Err(Failure::new("0A000", message).with_detail(detail).into())
            }
            _ => Ok(()),
        }
    }

    /// Fails if the domain has an earlier version of routing and the operation has values, types or functions
    /// that the storage processes of an earlier build cannot read.
    fn require_readable(&self, operation: &Bytes) -> Result<(), OperationError> {
        match self.requests.config() {
            Some(config) if config.routing < TYPES_SINCE => {
                match gateway::operation(operation).is_none_or(|operation| operation.is_of_first_form()) {
                    true => Ok(()),
                    false => self.require(TYPES_SINCE, "a statement with such a type or function"),
                }
            }
            _ => Ok(()),
        }
    }

    /// Sends a read.
    fn ask(
        &self,
        strength: Strength,
        request: gateway::TableRequest,
    ) -> Result<PendingRead<'_>, OperationError> {
        self.require_readable(&request.operation)?;
        let gateway::TableRequest { table, mut ranges, operation, .. } = request;
        if ranges.is_empty() {
            // No row can match. Any replica can return the empty answer, in the right form, so the range does
            // not matter.
            ranges.push(Range { low: 0, high: 0 });
        }
        let (guard, receiver) =
            self.send(|token| ClientCommand::Read { token, strength, table, ranges, operation })?;
        Ok(PendingRead { backend: self, guard, receiver })
    }

    /// Begins a backup of these tables, at least one.
    pub(crate) async fn backup(&self, tables: &[Arc<Table>]) -> Result<AnswerStream, OperationError> {
        let tables: Vec<_> = tables.iter().map(|table| (table.id, &table.schema)).collect();
        let request = gateway::backup(&tables).expect("at least one");
        self.await_ring().await?;
        self.begin(Strength::Sequential, request).await
    }

    /// Sends a read of rows. Returns its answers, which may still be arriving.
    async fn begin(
        &self,
        strength: Strength,
        request: gateway::TableRequest,
    ) -> Result<AnswerStream, OperationError> {
        request.fits()?;
        let (token, life, arrived) = self.ask(strength, request)?.arrived().await?;
        let parts = match arrived {
            Arrived::Whole(parts) => {
                // The session binds a read of an ended table again, so this error must come before any row of
                // the read.
                if parts.iter().flat_map(|part| &part.pieces).any(gateway::is_of_ended_table) {
                    return Err(no_such_table());
                }
                let whole = |answered: ProcessAnswer| RangeAnswers::Whole(answered.pieces.into_iter());
                parts.into_iter().map(whole).collect()
            }
            Arrived::Begun(streams) => {
                let stream = |(from, pieces)| {
                    let requests = self.requests.clone();
                    RangeAnswers::Stream(Box::new(PartStream::new(
                        life.handle.clone(),
                        requests,
                        token,
                        from,
                        pieces,
                    )))
                };
                streams.into_iter().map(stream).collect()
            }
        };
        Ok(AnswerStream { parts })
    }
}

/// Returns the definition of a table.
fn schema_in(catalog: &Catalog, table: TableId) -> Option<&Schema> {
    catalog.tables.iter().find(|known| known.id == table).map(|table| &table.schema)
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

    fn may_have_issued(&self, id: RequestId) -> bool {
        let life = self.life();
        id.session != life.session || id.number <= life.number.load(Ordering::Relaxed)
    }

    async fn define(&self, _id: RequestId, definitions: Vec<Definition>) -> Result<(), OperationError> {
        self.await_ring().await?;
        let config = self.requests.config();
        let factor = config.as_ref().map_or(0, |config| u32::from(config.replicas));
        let knows_definitions = config.is_some_and(|config| config.routing >= DEFINITIONS_SINCE);
        let catalog = self.requests.catalog();
        let mut changes = Vec::with_capacity(definitions.len());
        for definition in definitions {
            changes.push(match definition {
                Definition::Create { replicas: Some(replicas), .. } if replicas != factor => {
                    let message = format!(
                        "replicas = {replicas} is not possible: every table of this domain has {factor} replicas"
                    );
                    return Err(OperationError::Failed(Failure::new("0A000", message)));
                }
                Definition::Create { mut schema, .. } => {
                    let is_named = |one: &Constraint| matches!(one, Constraint::KeyName(_));
                    if !knows_definitions && !is_index(&schema) && schema.constraints.iter().all(is_named) {
                        // Earlier builds do not know the name of a primary key, so the key gets its usual
                        // name.
                        schema.constraints.clear();
                    }
                    if !schema.is_of_first_form() {
                        let refers = schema.references().next().is_some();
                        let feature =
                            if refers { "REFERENCES" } else { "a table with such constraints or types" };
                        self.require(DEFINITIONS_SINCE, feature)?;
                    }
                    let definition = gateway::definition(&schema);
                    TableChange::Create { name: schema.name, definition }
                }
                Definition::Drop { table } => TableChange::Drop { table: table.0 },
                Definition::Alter { table, alteration } => {
                    self.require(DEFINITIONS_SINCE, "ALTER TABLE")?;
                    // Every alteration that gets a place in the order must be one that storage processes can
                    // execute.
                    alteration.check(schema_in(&catalog, table).ok_or_else(no_such_table)?)?;
                    TableChange::Alter {
                        table: table.0,
                        definition: gateway::definition(&alteration.schema),
                        columns: gateway::column_sources(&alteration.columns),
                        name: alteration.schema.name,
                    }
                }
            });
        }
        if knows_definitions {
            return self.control(Control::Define { changes }).await;
        }
        // Earlier builds know only messages with one change.
        for change in changes {
            self.control(match change {
                TableChange::Create { name, definition } => Control::CreateTable { name, definition },
                TableChange::Drop { table } => Control::DropTable { table },
                TableChange::Alter { .. } => unreachable!("the domain was required to know alterations"),
            })
            .await?;
        }
        Ok(())
    }

    async fn write(&self, name: WriteName, operation: Operation) -> Result<Vec<Answer>, OperationError> {
        let table = self.schema(operation.table())?;
        let request = gateway::request(&operation, &table.schema);
        request.fits()?;
        let gateway::TableRequest { table, ranges, fallible, operation } = request;
        if ranges.is_empty() {
            // No row can match, so nothing has to be executed.
            return Ok(vec![Answer::Written(Vec::new())]);
        }
        self.submit_write(name, gateway::TableRequest { table, ranges, fallible, operation }).await
    }

    async fn transact(
        &self,
        name: WriteName,
        transaction: TableTransaction,
    ) -> Result<Vec<Answer>, OperationError> {
        self.require(TRANSACTIONS_SINCE, "a transaction of several statements")?;
        let catalog = self.requests.catalog();
        let request = gateway::transaction(transaction, |table| schema_in(&catalog, table));
        let mut request = request.map_err(|_| no_such_table())?;
        request.fits()?;
        if request.ranges.is_empty() {
            // No statement can match a row. The transaction is sent nevertheless, because some storage
            // process has to remember its id.
            request.ranges.push(Range { low: 0, high: 0 });
        }
        self.submit_write(name, request).await
    }

    async fn attempt(&self, strength: Strength, trial: Trial) -> Result<Attempt, OperationError> {
        self.require(TRANSACTIONS_SINCE, "a transaction of several statements")?;
        let catalog = self.requests.catalog();
        let request = gateway::trial(trial, |table| schema_in(&catalog, table));
        Attempt::of(self.begin(strength, request.map_err(|_| no_such_table())?).await?).await
    }

    async fn read(&self, strength: Strength, select: &Select) -> Result<AnswerStream, OperationError> {
        let table = self.schema(select.table)?;
        self.begin(strength, gateway::read(select, &table.schema)).await
    }

    async fn read_encoded(
        &self,
        strength: Strength,
        table: TableId,
        operation: Bytes,
    ) -> Result<AnswerStream, OperationError> {
        self.begin(strength, gateway::everywhere(table, operation)).await
    }

    async fn analyze(&self, strength: Strength, select: &Select) -> Result<Vec<Analyzed>, OperationError> {
        let table = self.schema(select.table)?;
        let request = gateway::explain(select, &table.schema);
        let (_, _, arrived) = self.ask(strength, request)?.arrived().await?;
        let Arrived::Whole(parts) = arrived else {
            return Err(OperationError::Failed(Failure::malformed(
                "a replica's EXPLAIN ANALYZE report does not fit into one message: use EXPLAIN without ANALYZE",
            )));
        };
        let config = self.requests.config();
        let analyzed = |ProcessAnswer { from, spent, pieces, .. }| {
            let known = config.as_ref().and_then(|config| config.members.get(&from));
            let replica = known.map_or_else(|| from.to_string(), |member| member.name.clone());
            let answer = pieces.into_iter().next().map(|piece| Piece::Encoded(piece).answer());
            match answer.transpose()? {
                Some(Answer::Explanation(explained)) => {
                    Ok(Analyzed { replica, waited: spent.waited, took: spent.took, explained })
                }
                _ => Err(OperationError::Failed(Failure::malformed(
                    "a replica answered a request for an explanation with another kind of answer",
                ))),
            }
        };
        parts.into_iter().map(analyzed).collect()
    }

    async fn sleep(&self, time: Duration) {
        timer::sleep(time).await;
    }

    fn explain(&self, operation: &Operation) -> Vec<String> {
        let Some(config) = self.requests.config() else {
            return vec![String::from("this gateway has no configuration of the cluster yet")];
        };
        let Ok(table) = self.schema(operation.table()) else {
            return vec![String::from("the table does not exist")];
        };
        let request = match operation {
            Operation::Select(select) => gateway::read(select, &table.schema),
            other => gateway::request(other, &table.schema),
        };
        explain::lines(&config, operation, &request)
    }
}
