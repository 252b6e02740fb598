//! A backend of one engine in this process, for use without a cluster.
//!
//! It serves tests, examples and the documentation. Its ring is cut into a few ranges that are answered one
//! by one, so that merging is exercised as with many replicas.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use quorate_roles::tables::gateway;
use quorate_table::{
    engine::{Answer, Engine, Epoch, Holder, Job},
    failure::Failure,
    operation::{Operation, Output, Select, TableTransaction, Trial},
    plain::PlainEngine,
    schema::{KeyRange, TableId},
};
use tokio::sync::mpsc;

use crate::{
    backend::{
        Analyzed, AnswerStream, Attempt, Backend, Catalog, ClientError, Definition, OperationError, Piece,
        RangeAnswers, RequestId, Strength, Table, WriteName,
    },
    error::code,
};

/// Number of ranges of the ring.
const RANGES: u64 = 4;

/// Maximum number of rows of a chunk of an answer.
const CHUNK_ROWS: usize = 1_000;

/// Maximum number of chunks of a range that are under way.
const CHUNKS: usize = 2;

/// Number of replicas of a table whose definition gives no number.
const REPLICAS: u32 = 1;

/// One engine, shared by all sessions.
pub struct LocalBackend {
    state: Arc<Mutex<State>>,
}

struct State {
    engine: PlainEngine,
    epoch: u64,
    requests: u64,
    tables: u32,
    catalog: Arc<Catalog>,
    /// The print of the statement and its answer, by request id, so that a retry gets the same answer.
    answered: BTreeMap<RequestId, (u64, Result<Vec<Answer>, OperationError>)>,
}

impl Default for LocalBackend {
    fn default() -> Self {
        LocalBackend::new()
    }
}

impl LocalBackend {
    /// Creates an empty backend.
    pub fn new() -> Self {
        let state = State {
            engine: PlainEngine::default(),
            epoch: 0,
            requests: 0,
            tables: 0,
            catalog: Arc::default(),
            answered: BTreeMap::new(),
        };
        LocalBackend { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the ranges of the ring.
fn ranges() -> impl Iterator<Item = KeyRange> {
    let width = u64::MAX / RANGES;
    (0..RANGES).map(move |index| KeyRange {
        low: index * width + u64::from(index > 0),
        high: if index == RANGES - 1 { u64::MAX } else { (index + 1) * width },
    })
}

impl State {
    /// Executes a write over the whole ring. One engine holds the ring, so the write is atomic.
    fn run(&mut self, operation: Operation) -> Result<Vec<Answer>, OperationError> {
        self.epoch += 1;
        let job = Job { epoch: Epoch(self.epoch), ranges: vec![KeyRange::ALL], operation, held: false };
        let answers = self.engine.apply(&[job]);
        match answers.into_iter().next() {
            Some(Answer::Failed(failure)) => Err(OperationError::Failed(failure)),
            Some(answer) => Ok(vec![answer]),
            None => Err(OperationError::Failed(Failure::malformed("no answer"))),
        }
    }

    fn once(
        &mut self,
        name: WriteName,
        work: impl FnOnce(&mut State) -> Result<Vec<Answer>, OperationError>,
    ) -> Result<Vec<Answer>, OperationError> {
        match self.answered.get(&name.request) {
            Some((print, answered)) if *print == name.print => return answered.clone(),
            Some(_) => return Err(OperationError::from_client(ClientError::OtherStatement)),
            None => {}
        }
        let answered = work(self);
        self.answered.insert(name.request, (name.print, answered.clone()));
        answered
    }

    /// Creates, drops or alters a table.
    fn change(&mut self, definition: Definition) -> Result<(), OperationError> {
        match definition {
            Definition::Create { schema, replicas } => {
                self.tables += 1;
                let id = TableId(self.tables);
                self.run(Operation::CreateTable { table: id, schema: schema.clone() })?;
                let table = Table { id, schema, replicas: replicas.unwrap_or(REPLICAS), rows: None };
                self.change_catalog(|tables| tables.push(Arc::new(table)));
            }
            Definition::Drop { table } => {
                self.run(Operation::DropTable { table })?;
                self.change_catalog(|tables| tables.retain(|known| known.id != table));
            }
            Definition::Alter { table, alteration } => {
                self.tables += 1;
                let altered = TableId(self.tables);
                let schema = alteration.schema.clone();
                self.run(Operation::AlterTable { table, altered, alteration })?;
                self.change_catalog(|tables| {
                    for known in tables.iter_mut().filter(|known| known.id == table) {
                        let Table { replicas, rows, .. } = **known;
                        *known = Arc::new(Table { id: altered, schema: schema.clone(), replicas, rows });
                    }
                });
            }
        }
        Ok(())
    }

    fn change_catalog(&mut self, change: impl FnOnce(&mut Vec<Arc<Table>>)) {
        let mut tables = self.catalog.tables.clone();
        change(&mut tables);
        self.catalog = Arc::new(Catalog { version: self.catalog.version + 1, tables });
    }
}

/// The number of the only session.
const SESSION: u128 = 1;

#[async_trait]
impl Backend for LocalBackend {
    fn catalog(&self) -> Arc<Catalog> {
        self.state().catalog.clone()
    }

    fn request_id(&self) -> RequestId {
        let mut state = self.state();
        state.requests += 1;
        RequestId { session: SESSION, number: state.requests }
    }

    fn may_have_issued(&self, id: RequestId) -> bool {
        id.session != SESSION || id.number <= self.state().requests
    }

    async fn define(&self, id: RequestId, definitions: Vec<Definition>) -> Result<(), OperationError> {
        let mut state = self.state();
        let defined = state.once(WriteName::nameless(id), |state| {
            let mut names = BTreeSet::new();
            let ended = |definition: &Definition| match definition {
                Definition::Create { .. } => None,
                Definition::Drop { table } | Definition::Alter { table, .. } => Some(*table),
            };
            let ended: BTreeSet<TableId> = definitions.iter().filter_map(ended).collect();
            if ended.iter().any(|id| !state.catalog.tables.iter().any(|table| table.id == *id)) {
                return Err(OperationError::Failed(Failure::table_ended()));
            }
            for definition in &definitions {
                let name = match definition {
                    Definition::Create { schema, .. } => &schema.name,
                    Definition::Alter { alteration, .. } => &alteration.schema.name,
                    Definition::Drop { .. } => continue,
                };
                let is_kept = state.catalog.table(name).is_some_and(|table| !ended.contains(&table.id));
                if !names.insert(name) || is_kept {
                    let message = format!("relation \"{name}\" already exists");
                    return Err(OperationError::Failed(Failure::new(code::DUPLICATE_TABLE, message)));
                }
            }
            let (drops, others): (Vec<Definition>, Vec<Definition>) =
                definitions.into_iter().partition(|definition| matches!(definition, Definition::Drop { .. }));
            for definition in drops.into_iter().chain(others) {
                state.change(definition)?;
            }
            Ok(Vec::new())
        });
        defined.map(drop)
    }

    async fn write(&self, name: WriteName, operation: Operation) -> Result<Vec<Answer>, OperationError> {
        self.state().once(name, |state| state.run(operation))
    }

    async fn transact(
        &self,
        name: WriteName,
        transaction: TableTransaction,
    ) -> Result<Vec<Answer>, OperationError> {
        let executed = self.state().once(name, |state| state.run(Operation::Transaction(transaction)))?;
        let of_range = |answer| match answer {
            Answer::Transaction(results) => results.into_iter().map(Answer::Written).collect(),
            other => vec![other],
        };
        Ok(executed.into_iter().flat_map(of_range).collect())
    }

    async fn attempt(&self, _strength: Strength, trial: Trial) -> Result<Attempt, OperationError> {
        let answers = {
            let mut state = self.state();
            let epoch = Epoch(state.epoch);
            let catalog = state.catalog.clone();
            let schema = |id| catalog.tables.iter().find(|table| table.id == id).map(|table| &table.schema);
            // A trial has only the earlier steps that concern its own ranges.
            let concerned = gateway::trial(trial.clone(), schema);
            let concerned = concerned.map_err(|_| OperationError::Failed(Failure::table_ended()))?;
            let job = |range: KeyRange| {
                let operation = Operation::Trial(Box::new(trial.clone()));
                let within = concerned.ranges.iter().filter_map(|concerned| {
                    let (low, high) = (range.low.max(concerned.low), range.high.min(concerned.high));
                    (low <= high).then_some(KeyRange { low, high })
                });
                Job { epoch, ranges: within.collect(), operation, held: false }
            };
            let jobs: Vec<Job> = ranges().map(job).filter(|job| !job.ranges.is_empty()).collect();
            state.engine.apply(&jobs)
        };
        let mut parts = Vec::new();
        for answer in answers {
            match answer {
                Answer::Failed(failure) => return Err(OperationError::Failed(failure)),
                answer => parts.push(RangeAnswers::begun(answer)),
            }
        }
        Attempt::of(AnswerStream { parts }).await
    }

    async fn read(&self, _strength: Strength, select: &Select) -> Result<AnswerStream, OperationError> {
        let mut state = self.state();
        let epoch = Epoch(state.epoch);
        let pages = matches!(
            &select.output,
            Output::Rows { order, limit: None, distinct: false, .. } if order.is_empty()
        );
        let mut parts = Vec::new();
        for range in ranges() {
            let (sender, part) = mpsc::channel(CHUNKS);
            parts.push(RangeAnswers::Stream(Box::new(part)));
            if pages {
                state.engine.pin(epoch, Holder::Reader);
                let (shared, select) = (self.state.clone(), select.clone());
                tokio::spawn(async move { page(shared, epoch, range, select, sender).await });
                continue;
            }
            let operation = Operation::Select(select.clone());
            let job = Job { epoch, ranges: vec![range], operation, held: false };
            let answer = state.engine.apply(&[job]).pop().unwrap_or(Answer::Rows(Vec::new()));
            tokio::spawn(async move {
                for chunk in chunks(answer) {
                    if sender.send(Ok(Piece::Answer(chunk))).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(AnswerStream { parts })
    }

    async fn analyze(&self, _strength: Strength, select: &Select) -> Result<Vec<Analyzed>, OperationError> {
        let mut state = self.state();
        let epoch = Epoch(state.epoch);
        let mut all = Vec::new();
        for (number, range) in ranges().enumerate() {
            let operation = Operation::Explain(select.clone());
            let began = Instant::now();
            let job = Job { epoch, ranges: vec![range], operation, held: false };
            match state.engine.apply(&[job]).pop() {
                Some(Answer::Explanation(explained)) => all.push(Analyzed {
                    replica: format!("range {}", number + 1),
                    waited: Duration::ZERO,
                    took: began.elapsed(),
                    explained,
                }),
                Some(Answer::Failed(failure)) => return Err(OperationError::Failed(failure)),
                other => unreachable!("a read that is explained answers {other:?}"),
            }
        }
        Ok(all)
    }

    fn explain(&self, operation: &Operation) -> Vec<String> {
        let table = operation.table();
        let catalog = self.catalog();
        let Some(table) = catalog.tables.iter().find(|known| known.id == table) else { return Vec::new() };
        let touched = match operation.filter() {
            None => RANGES,
            Some(filter) => {
                let arcs = table.schema.partition.ranges(filter);
                ranges()
                    .filter(|range| arcs.iter().any(|arc| arc.low <= range.high && range.low <= arc.high))
                    .count() as u64
            }
        };
        vec![format!("Destinations: {touched} of {RANGES} ranges, in this process")]
    }
}

/// Sends the answers of a range page by page, as fast as the reader takes the pages.
async fn page(
    shared: Arc<Mutex<State>>,
    epoch: Epoch,
    range: KeyRange,
    select: Select,
    sender: mpsc::Sender<Result<Piece, OperationError>>,
) {
    let mut cursor = None;
    loop {
        let page = {
            let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
            state.engine.page(epoch, &[range], &select, cursor, CHUNK_ROWS)
        };
        let (answer, next) = match page {
            Ok(page) => (Answer::Rows(page.rows), page.next),
            Err(failure) => (Answer::Failed(failure), None),
        };
        if sender.send(Ok(Piece::Answer(answer))).await.is_err() || next.is_none() {
            break;
        }
        cursor = next;
    }
    shared.lock().unwrap_or_else(PoisonError::into_inner).engine.release(epoch, Holder::Reader);
}

/// Cuts a long answer into chunks.
fn chunks(answer: Answer) -> Vec<Answer> {
    match answer {
        Answer::Rows(mut rows) => {
            let mut cut = Vec::new();
            while rows.len() > CHUNK_ROWS {
                let rest = rows.split_off(CHUNK_ROWS);
                cut.push(Answer::Rows(rows));
                rows = rest;
            }
            cut.push(Answer::Rows(rows));
            cut
        }
        other => vec![other],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_the_ring_once() {
        let all: Vec<KeyRange> = ranges().collect();
        assert_eq!(all.first().unwrap().low, 0);
        assert_eq!(all.last().unwrap().high, u64::MAX);
        assert!(all.windows(2).all(|pair| pair[1].low == pair[0].high + 1));
    }
}
