//! The list of a block's statements, which is sent at COMMIT.
//!
//! Nothing of an open block is in the cluster. The session keeps each write as a step, and also each read
//! whose result has to be compared. A statement is tried behind the earlier steps that may concern its rows
//! ([`earlier`]).
//!
//! **Savepoints.** A savepoint is a length of the list. ROLLBACK TO cuts the list to that length. At a
//! strict level the client keeps the results of the part, so they have to stay true. So the part stays in
//! the list, between a [`Step::Savepoint`] and a [`Step::RollBack`].

use quorate_roles::tables::gateway::{OPERATION_BYTES_MAX, ranges_of};
use quorate_table::{
    operation::{
        Compared, Operation, ReceivedResult, SAVEPOINTS_MAX, Step, TableTransaction, TransactionStatement,
        Trial,
    },
    schema::{KeyRange, Schema, TableId},
};
use xxhash_rust::xxh3::Xxh3;

use crate::{
    budget::{MemoryReservation, weight},
    copy::CopyIn,
    error::{Result, SqlError, code},
};

/// Maximum number of steps of a block.
const STEPS_MAX: usize = 10_000;

/// Maximum number of reads of a block whose results are compared.
const READS_MAX: usize = 1_000;

/// Maximum size of a block's steps in a message, in bytes. The message also has a few bytes of its own.
const BYTES_MAX: usize = OPERATION_BYTES_MAX - 1024;

/// The steps of a block, in order.
pub(super) struct Steps {
    /// The key of the fingerprints, a random number.
    key: u128,
    list: Vec<BlockStep>,
    /// Number of reads whose results are compared.
    reads: usize,
    /// Length of the encoded steps, in bytes.
    bytes: usize,
    /// Memory of the steps.
    hold: MemoryReservation,
}

struct BlockStep {
    step: Step,
    /// The ring ranges that the step's statement concerns.
    ranges: Vec<KeyRange>,
    origin: Origin,
    /// The staged rows that the step publishes. They are discarded with the step.
    copy: Option<Box<CopyIn>>,
    /// Length of the encoded step, in bytes.
    bytes: usize,
    /// Memory of the step, in bytes.
    memory: usize,
}

/// The statement for which a step is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A read of the client.
    Read,
    /// A write of the client.
    Write {
        /// The print of the statement and its parameters.
        print: u64,
    },
    /// A read that a write of the client needs for a constraint.
    KeyRead,
    /// A further part of a write of the client.
    WritePart,
}

impl Origin {
    fn is_write(self) -> bool {
        matches!(self, Origin::Write { .. } | Origin::WritePart)
    }

    fn is_of_client(self) -> bool {
        matches!(self, Origin::Read | Origin::Write { .. })
    }
}

/// A statement that is being tried.
pub(super) struct Attempted {
    statement: TransactionStatement,
    ranges: Vec<KeyRange>,
    origin: Origin,
}

impl Steps {
    /// Creates an empty list. `hold` counts the memory of the steps.
    pub(super) fn new(hold: MemoryReservation) -> Steps {
        Steps { key: rand::random(), list: Vec::new(), reads: 0, bytes: 0, hold }
    }

    /// Returns the number of steps.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether a step writes.
    pub(super) fn has_writes(&self) -> bool {
        self.list.iter().any(|step| step.origin.is_write())
    }

    /// Whether earlier writes or locks may concern rows of a table.
    pub(super) fn concern_table(&self, table: TableId) -> bool {
        self.list.iter().any(|step| step.owns_rows_of(table))
    }

    /// Whether earlier writes or locks may concern rows of a table in these ranges.
    pub(super) fn concern(&self, table: TableId, ranges: &[KeyRange]) -> bool {
        self.list.iter().any(|step| step.owns_rows_of(table) && meet(&step.ranges, ranges))
    }

    /// Begins a statement. Returns the trial to send, and the statement for [`Steps::push`]. Fails if the
    /// statement does not fit into the block.
    pub(super) fn begin(
        &self,
        operation: Operation,
        compared: Compared,
        schema: &Schema,
        origin: Origin,
        is_strict: bool,
    ) -> Result<(Trial, Attempted)> {
        self.check_room(!origin.is_write())?;
        let ranges = ranges_of(&operation, schema);
        let statement = TransactionStatement { operation, compared, received: Vec::new() };
        let table = statement.operation.table();
        let earlier = earlier(&self.list, table, &ranges, is_strict);
        let trial = Trial { key: self.key, earlier, compares_all: is_strict, statement: statement.clone() };
        if self.bytes + encoded_len(&Step::Execute(statement.clone())) > BYTES_MAX {
            return Err(too_long());
        }
        Ok((trial, Attempted { statement, ranges, origin }))
    }

    /// Returns a trial of a statement that also compares the results of all earlier steps.
    pub(super) fn comparison(&self, attempted: &Attempted) -> Trial {
        let earlier = self.list.iter().map(|step| step.step.clone()).collect();
        Trial { key: self.key, earlier, compares_all: true, statement: attempted.statement.clone() }
    }

    /// Adds a write that was not tried. Returns the index of its step.
    pub(super) fn add_untried(
        &mut self,
        operation: Operation,
        schema: &Schema,
        origin: Origin,
    ) -> Result<usize> {
        self.check_room(false)?;
        let ranges = ranges_of(&operation, schema);
        let statement = TransactionStatement { operation, compared: Compared::All, received: Vec::new() };
        self.push(Attempted { statement, ranges, origin }, Vec::new())?;
        Ok(self.list.len() - 1)
    }

    /// Returns the trial of a step that was not tried.
    pub(super) fn trial_of(&self, index: usize, is_strict: bool) -> Trial {
        let BlockStep { step, ranges, .. } = &self.list[index];
        let statement = step.statement().expect("only statements are tried").clone();
        let earlier = earlier(&self.list[..index], statement.operation.table(), ranges, is_strict);
        Trial { key: self.key, earlier, compares_all: is_strict, statement }
    }

    /// Records the result of a step that was not tried.
    pub(super) fn set_received(
        &mut self,
        index: usize,
        received: Vec<(KeyRange, ReceivedResult)>,
    ) -> Result<()> {
        let added = &mut self.list[index];
        let Step::Execute(statement) = &mut added.step else { unreachable!("only statements are tried") };
        statement.received = received;
        let more = encoded_len(&added.step).saturating_sub(added.bytes);
        if self.bytes + more > BYTES_MAX {
            return Err(too_long());
        }
        self.hold.grow(more)?;
        self.bytes += more;
        added.bytes += more;
        added.memory += more;
        Ok(())
    }

    /// Returns the number of statements before a step.
    pub(super) fn statements_before(&self, index: usize) -> usize {
        self.list[..index].iter().filter(|step| step.step.statement().is_some()).count()
    }

    /// Returns for each statement the number of the client's statement to which it belongs, from 1 on.
    pub(super) fn client_numbers(&self) -> Vec<usize> {
        let statements = self.list.iter().filter(|step| step.step.statement().is_some());
        let number = |number: &mut usize, step: &BlockStep| {
            *number += usize::from(step.origin.is_of_client());
            Some((*number).max(1))
        };
        statements.scan(0, number).collect()
    }

    fn check_room(&self, is_read: bool) -> Result<()> {
        check_count(self.list.len() + 1)?;
        if is_read && self.reads >= READS_MAX {
            return Err(too_many("reads whose results are compared", READS_MAX));
        }
        Ok(())
    }

    /// Adds a statement with the results that the client receives.
    pub(super) fn push(
        &mut self,
        attempted: Attempted,
        received: Vec<(KeyRange, ReceivedResult)>,
    ) -> Result<()> {
        let Attempted { mut statement, ranges, origin } = attempted;
        statement.received = received;
        let rows = match &statement.operation {
            Operation::Insert { rows, .. } | Operation::Upsert { rows, .. } => rows.iter().map(weight).sum(),
            _ => 0,
        };
        self.add(Step::Execute(statement), ranges, origin, rows)?;
        self.reads += usize::from(!origin.is_write());
        Ok(())
    }

    fn add(&mut self, step: Step, ranges: Vec<KeyRange>, origin: Origin, rows_memory: usize) -> Result<()> {
        let bytes = encoded_len(&step);
        if self.bytes + bytes > BYTES_MAX {
            return Err(too_long());
        }
        let memory = bytes + rows_memory + size_of::<BlockStep>() + ranges.len() * size_of::<KeyRange>();
        self.hold.grow(memory)?;
        self.bytes += bytes;
        self.list.push(BlockStep { step, ranges, origin, copy: None, bytes, memory });
        Ok(())
    }

    /// Gives the last step the staged rows that it publishes.
    pub(super) fn keep_copy(&mut self, copy: Box<CopyIn>) {
        self.list.last_mut().expect("the step that publishes the rows").copy = Some(copy);
    }

    /// Rolls the list back to `len` steps. At a strict level the part behind stays in the list, because the
    /// client has received its results. Fails if that nests too many savepoints.
    pub(super) fn roll_back_to(&mut self, len: usize, is_strict: bool) -> Result<()> {
        if self.list.len() == len {
            return Ok(());
        }
        if !is_strict {
            self.truncate(len);
            return Ok(());
        }
        if depth(&self.list[len..]) >= SAVEPOINTS_MAX {
            return Err(SqlError::new(
                code::PROGRAM_LIMIT_EXCEEDED,
                format!("more than {SAVEPOINTS_MAX} savepoints within one another were rolled back"),
            )
            .hint("Roll the transaction back, and use fewer nested savepoints."));
        }
        self.add(Step::RollBack, Vec::new(), Origin::Read, 0)?;
        let end = self.list.pop().expect("the step was just added");
        self.add(Step::Savepoint, Vec::new(), Origin::Read, 0)?;
        let begin = self.list.pop().expect("the step was just added");
        self.list.insert(len, begin);
        self.list.push(end);
        Ok(())
    }

    /// Removes all steps but the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        for step in self.list.drain(len.min(self.list.len())..) {
            self.bytes -= step.bytes;
            self.hold.shrink(step.memory);
            self.reads -= usize::from(step.is_read());
        }
    }

    /// Whether the results have to be compared although no step writes: the client received two results or
    /// more, and all must have been true at one position.
    pub(super) fn needs_check(&self) -> bool {
        self.reads > 1
    }

    /// Returns the print of all writes of the client, in order. The print of one write is the print that it
    /// has outside of a block, so that a program may send it again either way.
    pub(super) fn print(&self) -> u64 {
        let print = |step: &BlockStep| match step.origin {
            Origin::Write { print } => Some(print),
            _ => None,
        };
        let mut prints = self.list.iter().filter_map(print);
        if let (Some(print), None) = (prints.next(), prints.next()) {
            return print;
        }
        let mut digest = Xxh3::new();
        for print in self.list.iter().filter_map(print) {
            digest.update(&print.to_le_bytes());
        }
        digest.digest()
    }

    /// Returns the transaction, and the staged rows that it publishes.
    pub(super) fn transaction(self) -> (TableTransaction, Vec<CopyIn>, MemoryReservation) {
        let Steps { key, list, hold, .. } = self;
        let mut copies = Vec::new();
        let take = |step: BlockStep| {
            copies.extend(step.copy.map(|copy| *copy));
            step.step
        };
        let steps = list.into_iter().map(take).collect();
        (TableTransaction { key, steps }, copies, hold)
    }
}

impl BlockStep {
    fn is_read(&self) -> bool {
        !self.origin.is_write() && self.step.statement().is_some()
    }

    /// Whether the step wrote or locked rows of a table.
    fn owns_rows_of(&self, table: TableId) -> bool {
        let Some(statement) = self.step.statement() else { return false };
        let owns = self.origin.is_write() || statement.compared == Compared::Locked;
        owns && statement.operation.table() == table
    }
}

/// Fails if a transaction has more statements than fit into a block.
fn check_count(statements: usize) -> Result<()> {
    if statements > STEPS_MAX { Err(too_many("statements", STEPS_MAX)) } else { Ok(()) }
}

/// Returns how many parts that were rolled back lie within one another.
fn depth(steps: &[BlockStep]) -> usize {
    let (mut open, mut most) = (0, 0);
    for step in steps {
        match step.step {
            Step::Savepoint => open += 1,
            Step::RollBack => open -= 1,
            Step::Execute(_) => {}
        }
        most = most.max(open);
    }
    most
}

/// Returns those steps that have to be sent with a trial on these ranges of a table.
fn earlier(steps: &[BlockStep], table: TableId, ranges: &[KeyRange], is_strict: bool) -> Vec<Step> {
    let concerns = |step: &&BlockStep| is_strict || (step.owns_rows_of(table) && meet(&step.ranges, ranges));
    steps.iter().filter(concerns).map(|step| step.step.clone()).collect()
}

fn meet(left: &[KeyRange], right: &[KeyRange]) -> bool {
    left.iter().any(|left| right.iter().any(|right| left.low <= right.high && right.low <= left.high))
}

fn encoded_len(step: &Step) -> usize {
    postcard::to_stdvec(step).expect("our own types always serialise").len()
}

fn too_many(what: &str, most: usize) -> SqlError {
    SqlError::new(code::PROGRAM_LIMIT_EXCEEDED, format!("a transaction block has at most {most} {what}"))
        .hint("Commit earlier.")
}

fn too_long() -> SqlError {
    let message = format!("the statements of a transaction block have at most {BYTES_MAX} bytes");
    SqlError::new(code::PROGRAM_LIMIT_EXCEEDED, message)
        .hint("Commit earlier, or load rows with COPY: copied rows do not count.")
}
