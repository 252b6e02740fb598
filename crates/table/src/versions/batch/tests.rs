//! Panics in reads, caused by rows that panic for some reads.

use super::*;
use crate::{
    alter::Alteration,
    expr::Binary,
    host::SingleThread,
    operation::Output,
    saved::{OutlineLine, Saver},
    scan::{Columns, Costs},
    schema::{Column, Partition, Schema},
    value::Type,
    versions::{FoundRow, FoundRows, OwnedRow, RowPlace, RowUpdate, RowView},
};

/// Rows that panic for reads with certain limits.
#[derive(Clone)]
struct Brittle(Columns);

/// The limit of a read that panics in the pass.
const IN_THE_PASS: u64 = 1_001;
/// The limit of a read that panics when its answer is made.
const AT_THE_ANSWER: u64 = 1_002;

/// The results of a batch, and the reads whose answers panic.
struct Brittleness<'a>(<Columns as Rows>::BatchResults<'a>, Vec<usize>);

fn limit(task: &RowTask<'_>) -> Option<u64> {
    let RowTask::Read(Read { select: Select { output: Output::Rows { limit, .. }, .. }, .. }) = task else {
        return None;
    };
    *limit
}

impl Rows for Brittle {
    fn new(schema: &Arc<Schema>) -> Brittle {
        Brittle(Columns::new(schema))
    }

    fn gathered<'a>(schema: &Arc<Schema>, rows: impl Iterator<Item = (RowPlace, &'a [Value])>) -> Brittle {
        Brittle(Columns::gathered(schema, rows))
    }

    fn altered(&self, schema: &Arc<Schema>, alteration: &Alteration) -> Brittle {
        Brittle(Rows::altered(&self.0, schema, alteration))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes_uncounted(&self, counted: &mut BTreeSet<usize>) -> usize {
        self.0.bytes_uncounted(counted)
    }

    fn bytes_unshared(&self, newer: &Self) -> usize {
        self.0.bytes_unshared(&newer.0)
    }

    fn places(&self) -> impl Iterator<Item = RowPlace> {
        self.0.places()
    }

    fn has(&self, place: &RowPlace) -> bool {
        self.0.has(place)
    }

    fn within<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        start: RowPlace,
    ) -> impl Iterator<Item = (RowPlace, RowView<'a>)> {
        self.0.within(ranges, start)
    }

    fn tied(&self, key: u64, tie: u64) -> Vec<(RowPlace, RowView<'_>)> {
        self.0.tied(key, tie)
    }

    fn candidates<'a>(
        &'a self,
        ranges: &'a [KeyRange],
        filter: Option<&Expr>,
        columns: &'a [usize],
    ) -> impl Iterator<Item = (FoundRow, RowView<'a>)> {
        assert_ne!(filter, Some(&poison()), "as the test wants");
        self.0.candidates(ranges, filter, columns)
    }

    fn at(&self, found: &FoundRow, columns: &[usize]) -> Option<(FoundRow, RowView<'_>)> {
        self.0.at(found, columns)
    }

    type Undo = <Columns as Rows>::Undo;

    fn undo_bytes(undo: &Self::Undo) -> usize {
        Columns::undo_bytes(undo)
    }

    fn insert(&mut self, rows: Vec<(RowPlace, OwnedRow)>, log: Option<&mut Vec<Self::Undo>>) {
        self.0.insert(rows, log);
    }

    fn join(&mut self, others: Vec<Arc<Self>>) {
        Rows::join(&mut self.0, others.into_iter().map(|other| Arc::new(other.0.clone())).collect());
    }

    fn remove(&mut self, places: &[RowPlace], log: Option<&mut Vec<Self::Undo>>) {
        self.0.remove(places, log);
    }

    fn prepare(&self, change: &mut RowUpdate) {
        self.0.prepare(change);
    }

    fn change(&mut self, change: &RowUpdate, log: Option<&mut Vec<Self::Undo>>) {
        Rows::change(&mut self.0, change, log);
    }

    fn undo(&mut self, log: &[Self::Undo]) {
        Rows::undo(&mut self.0, log);
    }

    fn has_code(&self, column: usize, value: &Value) -> bool {
        self.0.has_code(column, value)
    }

    fn expect(&mut self, column: usize, value: &Value) {
        self.0.expect(column, value);
    }

    fn save(&self, from: (usize, usize), saver: &mut Saver<'_>) -> Option<(usize, usize)> {
        self.0.save(from, saver)
    }

    fn restore(&mut self, line: OutlineLine, records: &Records) -> Result<(), Failure> {
        self.0.restore(line, records)
    }

    fn is_tidy(&self) -> bool {
        self.0.is_tidy()
    }

    fn merge_due_tails(&mut self) {
        self.0.merge_due_tails();
    }

    const SHARED: bool = true;

    type BatchResults<'a> = Brittleness<'a>;

    type Costs = Costs;

    fn search_batch<'a>(
        &self,
        schema: &Schema,
        tasks: &[RowTask<'a>],
        corrected_later: bool,
        costs: &Costs,
        host: &dyn Host,
    ) -> Brittleness<'a> {
        let poisoned = |task: &RowTask<'_>| match task {
            RowTask::Find { filter, .. } => *filter == Some(&poison()),
            _ => limit(task) == Some(IN_THE_PASS),
        };
        assert!(!tasks.iter().any(poisoned), "as the test wants");
        let brittle = (0..tasks.len()).filter(|&task| limit(&tasks[task]) == Some(AT_THE_ANSWER));
        Brittleness(
            Rows::search_batch(&self.0, schema, tasks, corrected_later, costs, host),
            brittle.collect(),
        )
    }

    fn answer(&self, batch_results: &mut Brittleness<'_>, task: usize) -> Option<Result<Answer, Failure>> {
        assert!(!batch_results.1.contains(&task), "as the test wants");
        self.0.answer(&mut batch_results.0, task)
    }

    fn explain(&self, batch_results: &Brittleness<'_>, task: usize) -> Explanation {
        self.0.explain(&batch_results.0, task)
    }

    fn found_rows(&self, batch_results: &mut Brittleness<'_>, task: usize) -> Option<FoundRows> {
        self.0.found_rows(&mut batch_results.0, task)
    }

    fn note(
        &self,
        batch_results: &mut Brittleness<'_>,
        rows: &[FoundRow],
        changing: Option<&[usize]>,
        again: bool,
    ) {
        Rows::note(&self.0, &mut batch_results.0, rows, changing, again);
    }
}

const TABLE: TableId = TableId(1);
const ROWS: i32 = 50;

fn column() -> Expr {
    Expr::Column(0, Type::Int4)
}

/// Returns a filter that panics when rows are searched for a write.
fn poison() -> Expr {
    Expr::binary(Binary::Equal, column(), Expr::constant(Value::Int4(-1), Type::Int4))
}

fn job(epoch: u64, operation: Operation) -> Job {
    Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false }
}

fn read(epoch: u64, limit: u64) -> Job {
    let output =
        Output::Rows { columns: vec![column()], order: Vec::new(), limit: Some(limit), distinct: false };
    job(epoch, Operation::Select(Select { table: TABLE, filter: None, output }))
}

fn insert(epoch: u64, numbers: std::ops::Range<i32>) -> Job {
    let rows = numbers.map(|number| vec![Value::Int4(number)]).collect();
    job(epoch, Operation::Insert { table: TABLE, rows, returning: Vec::new() })
}

fn engine() -> Versions<Brittle> {
    let column =
        Column { name: "n".to_owned(), ty: Type::Int4, modifier: None, not_null: true, default: None };
    let partition = Partition::Hash { column: 0 };
    let schema = Schema {
        name: "t".to_owned(),
        columns: vec![column],
        primary_key: vec![0],
        partition,
        constraints: Vec::new(),
    };
    let mut engine = Versions::default();
    engine.apply(&[job(1, Operation::CreateTable { table: TABLE, schema }), insert(2, 0..ROWS)]);
    engine
}

/// Runs jobs, and checks that exactly the `panicking` jobs fail and that the read at index n returns n + 1
/// rows.
fn check(engine: &mut Versions<Brittle>, jobs: &[Job], panicking: &[usize]) {
    let answers = engine.apply_keeping(jobs, &mut |_, _| false, &SingleThread);
    assert_eq!(answers.len(), jobs.len());
    for (number, (job, answer)) in jobs.iter().zip(&answers).enumerate() {
        match (&job.operation, answer) {
            (_, Answer::Failed(failure)) => {
                assert!(panicking.contains(&number), "job {number} failed: {failure}");
                assert!(failure.is_panic());
                assert!(failure.message.ends_with("as the test wants"), "{failure}");
            }
            (_, Answer::Rows(rows)) => {
                assert!(!panicking.contains(&number));
                assert_eq!(rows.len(), number + 1, "job {number}");
            }
            (operation, Answer::Written(written)) => {
                assert!(operation.is_write());
                assert_eq!(written[0].rows, 1);
            }
            (_, answer) => panic!("{answer:?}"),
        }
    }
}

#[test]
fn a_panic_in_a_pass_fails_one_read_only() {
    let mut engine = engine();
    for poisons in [vec![0], vec![20], vec![29], vec![3, 4, 17], (0..30).collect()] {
        for poison in [IN_THE_PASS, AT_THE_ANSWER] {
            let limit = |number| if poisons.contains(&number) { poison } else { number as u64 + 1 };
            let jobs: Vec<Job> = (0..30).map(|number| read(2, limit(number))).collect();
            check(&mut engine, &jobs, &poisons);
        }
    }
}

#[test]
fn writes_of_a_batch_are_applied_once_despite_panics_of_reads() {
    for poisons in [vec![1], vec![0, 6], vec![7, 8, 29]] {
        for poison in [IN_THE_PASS, AT_THE_ANSWER] {
            let mut engine = engine();
            let mut rows = ROWS;
            let jobs: Vec<Job> = (0..30)
                .map(|number| match number % 5 {
                    2 => {
                        rows += 1;
                        insert(10 + number as u64, rows - 1..rows)
                    }
                    _ if poisons.contains(&number) => read(10 + number as u64, poison),
                    _ => read(10 + number as u64, number as u64 + 1),
                })
                .collect();
            check(&mut engine, &jobs, &poisons);
            let all = engine.apply(&[read(50, 1_000)]);
            assert!(matches!(&all[0], Answer::Rows(all) if all.len() == rows as usize));
        }
    }
}

#[test]
#[should_panic(expected = "as the test wants")]
fn a_panic_in_a_write_reaches_the_caller() {
    let delete = Operation::Delete { table: TABLE, filter: Some(poison()), returning: Vec::new() };
    engine().apply(&[read(3, 1), job(4, delete), read(4, 3)]);
}

#[test]
fn a_panic_in_a_page_fails_its_read_only() {
    let mut engine = engine();
    engine.pin(Epoch(2), Holder::Reader);
    let output = Output::Rows { columns: vec![column()], order: Vec::new(), limit: None, distinct: false };
    let page = |engine: &mut Versions<Brittle>, filter| {
        let select = Select { table: TABLE, filter, output: output.clone() };
        engine.page(Epoch(2), &[KeyRange::ALL], &select, None, 10)
    };
    assert!(page(&mut engine, Some(poison())).unwrap_err().is_panic());
    assert_eq!(page(&mut engine, None).unwrap().rows.len(), 10);
}
