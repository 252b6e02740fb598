//! Compares replicas during the run: they hold the same rows at equal positions.
//!
//! The world can cause one difference (S15). Suppose that all replicas of a range void a write that failed
//! there, and are lost before any living process hears of it. Then no process can know, and the write takes
//! effect in the remaining ranges. One of the lost replicas may have held such a range, too, and voided the
//! write there as well. Its later rows are then no standard for the survivors. While any process that voided
//! the write is a member, its rows stay the standard, because a member would have reported the verdict.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{
    ProcessId,
    rubberband::{Config, StorageState, Task, TaskKind},
};
use quorate_roles::tables::gateway;
use quorate_table::{
    alter::ColumnSource,
    engine::{Chunk, Engine},
    schema::KeyRange,
    value::Value,
};
use xxhash_rust::xxh3::xxh3_64;

use super::twin::TableTwin;
use quorate_world::Violation;

use crate::{check::RoutingCheck, mutation::Mutation};

/// The rows that replicas were seen to hold.
#[derive(Default)]
pub(super) struct Replicas {
    /// For each range, and the last position that may have changed the range: the first process seen there,
    /// and the hash of its rows.
    digests: BTreeMap<(u64, u64, u64), (ProcessId, u64)>,
    /// Writes that needed a verdict, by position: whether they were published, and the processes that decided
    /// so.
    decided: BTreeMap<u64, (bool, BTreeSet<ProcessId>)>,
    /// The last write that each process executed.
    executed: BTreeMap<ProcessId, u64>,
    /// Number of comparisons of two replicas.
    pub(super) compared: u64,
    /// Number of writes that took effect although the lost replicas had voided them.
    pub(super) overruled: u64,
}

impl Replicas {
    /// Notes that `who` has come back, and repeats the tasks after its last checkpoint.
    pub(super) fn returned(&mut self, who: ProcessId) {
        self.executed.remove(&who);
    }

    /// Checks the tasks that `who` gives to its engine: every write is ordered, is for `who`, and comes
    /// behind the preceding write.
    pub(super) fn execute<'a>(
        &mut self,
        who: ProcessId,
        tasks: impl Iterator<Item = &'a Task>,
        twin: &TableTwin,
        check: &RoutingCheck,
    ) -> Result<(), Violation> {
        for task in tasks {
            let TaskKind::Write { operation, .. } = &task.kind else { continue };
            let at = task.at.0;
            if twin.written(at) != Some(xxh3_64(operation)) {
                return Err(Violation::new(
                    "valid",
                    format!(
                        "storage process {who} executes a write at position {at} that differs from the \
                         ordered one"
                    ),
                ));
            }
            if !check.is_for(at, who) {
                return Err(Violation::new(
                    "minimal",
                    format!(
                        "storage process {who} executes the write at position {at}, and is no destination \
                         of that write"
                    ),
                ));
            }
            let last = self.executed.entry(who).or_insert(0);
            if at <= *last {
                return Err(Violation::new(
                    "delivery-ordered",
                    format!(
                        "storage process {who} executes the write at position {at} after that at position \
                         {last}"
                    ),
                ));
            }
            *last = at;
        }
        Ok(())
    }

    /// Notes which writes the complete replica `who` publishes or voids. If `who` publishes a write that
    /// replicas voided which have been lost since, the check forgets the rows that these replicas wrote
    /// later.
    fn settle(&mut self, who: ProcessId, tasks: &[Task], twin: &TableTwin, check: &RoutingCheck) {
        for task in tasks {
            let TaskKind::Settle { publish } = task.kind else { continue };
            let at = task.at.0;
            let (published, by) = self.decided.entry(at).or_insert_with(|| (publish, BTreeSet::new()));
            let lost = |&(key, last): &(u64, ProcessId)| twin.concerns(at, key) && check.is_for(at, last);
            if publish
                && !*published
                && by.iter().all(|&it| !twin.has_member(it))
                && twin.forsaken().iter().any(lost)
            {
                let overruled = |low: u64, touched: u64, it: &ProcessId| {
                    touched >= at && by.contains(it) && twin.concerns(at, low)
                };
                self.digests.retain(|&(low, _, touched), (it, _)| !overruled(low, touched, it));
                self.overruled += 1;
                *published = true;
                by.clear();
            }
            if *published == publish {
                by.insert(who);
            }
        }
    }

    /// Compares the engine of `who` after these tasks: its rows of each range equal those of any other
    /// replica at the same position.
    pub(super) fn done(
        &mut self,
        who: ProcessId,
        config: &Config,
        tasks: &[Task],
        twin: &TableTwin,
        check: &RoutingCheck,
        engine: &mut dyn Engine,
    ) -> Result<(), Violation> {
        let is_complete = |at: u64| match config.storage.get(&who) {
            Some(StorageState::Active | StorageState::Unreachable | StorageState::Away { on_ring: true }) => {
                true
            }
            // A process that imports has all rows at positions behind the change that it imports.
            Some(StorageState::Receiving { change }) => at > change.0,
            Some(
                StorageState::Standby | StorageState::Keeping(_) | StorageState::Away { on_ring: false },
            )
            | None => false,
        };
        let settles = |task: &&Task| matches!(task.kind, TaskKind::Settle { .. });
        if tasks.iter().filter(settles).all(|task| is_complete(task.at.0)) {
            self.settle(who, tasks, twin, check);
        }
        // A held write is undecided: its staged rows are not the published ones.
        if tasks.iter().any(|task| matches!(task.kind, TaskKind::Write { held: true, .. })) {
            return Ok(());
        }
        // Pages and transfers read versions that were kept earlier.
        let ordered = tasks.iter().filter(|task| {
            !matches!(
                task.kind,
                TaskKind::Page { .. }
                    | TaskKind::Finish
                    | TaskKind::Export { .. }
                    | TaskKind::Save { .. }
                    | TaskKind::Restore { .. }
                    | TaskKind::Import { .. }
                    | TaskKind::Release
            )
        });
        let Some(at) = ordered.map(|task| task.at.0).max() else { return Ok(()) };
        if !is_complete(at) {
            return Ok(());
        }
        for range in config.ranges_of(who) {
            let place = (range.low, range.high, twin.touched((range.low, range.high), at));
            let digest =
                engine.digest(None, &[KeyRange { low: range.low, high: range.high }]).map_err(|failure| {
                    Violation::new(
                        "replicas",
                        format!(
                            "the engine of storage process {who} could not compute the hash of its rows: \
                             {failure:?}"
                        ),
                    )
                })?;
            match self.digests.get(&place) {
                None => {
                    self.digests.insert(place, (who, digest));
                }
                Some((other, known)) if *known == digest => self.compared += u64::from(*other != who),
                Some((other, _)) => {
                    let what = format!(
                        "storage processes {other} and {who} hold different rows of {range:?} at position \
                         {}",
                        place.2
                    );
                    return Err(Violation::new("replicas", what));
                }
            }
        }
        Ok(())
    }
}

/// Returns the tasks that a broken engine executes instead of `tasks`.
pub(super) fn mutated(mutation: Mutation, machine: usize, mut tasks: Vec<Task>) -> Vec<Task> {
    for task in &mut tasks {
        // Every second machine is broken, so that its ranges also have correct replicas.
        let broken = machine.is_multiple_of(2);
        match (mutation, &mut task.kind) {
            (Mutation::VoidedPublished, TaskKind::Settle { publish }) if broken => *publish = true,
            (Mutation::WriteSkipped, TaskKind::Write { ranges, held: false, .. })
                if broken && task.at.0.is_multiple_of(97) =>
            {
                ranges.clear();
            }
            (Mutation::AlteredWithoutRows, TaskKind::AlterTable { altered, definition, .. }) if broken => {
                task.kind = TaskKind::CreateTable { table: *altered, definition: definition.clone() };
            }
            (Mutation::AddedValueForgotten, TaskKind::AlterTable { columns, .. }) if broken => {
                let mut sources: Vec<ColumnSource> =
                    postcard::from_bytes(columns).expect("sources from an alteration");
                sources.pop();
                sources.push(ColumnSource::Constant(Value::Int8(0)));
                *columns = gateway::column_sources(&sources);
            }
            (Mutation::ImportLost, TaskKind::Import { rows }) => {
                let mut chunk: Chunk = postcard::from_bytes(rows).expect("a chunk from an export");
                chunk.rows.pop();
                *rows = postcard::to_stdvec(&chunk).expect("a chunk of rows can always be serialised").into();
            }
            _ => {}
        }
    }
    tasks
}
