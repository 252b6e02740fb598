//! The cost of updates: the time to publish an update and to find its rows, and the slowdown of concurrent
//! reads.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use quorate_table::{
    engine::{Answer, Engine, Epoch, Holder, Job},
    expr::Expr,
    host::SingleThread,
    operation::Operation,
    plain::PlainEngine,
    scan::ScanEngine,
    schema::KeyRange,
};
use serde::Serialize;

use super::{
    super::{
        processor::processor_time,
        tickets::{self, Tickets},
    },
    job::{job, jobs_of, rows_of},
};

const HUNDREDS: usize = 21;
/// Number of reads of a batch with updates that are checked row by row.
const VERIFIED: usize = 24;

#[derive(Serialize)]
pub(super) struct Updates {
    /// Time to make an update visible, in microseconds, if an epoch is pinned after every hundred updates.
    pub(super) publish_us: f64,
    /// Time to make an update visible, in microseconds, if every pinned epoch is also read after its hundred
    /// updates.
    pub(super) publish_read_us: f64,
    /// Number of rows that an update changes.
    pub(super) rows_per_update: f64,
    /// Time to find the rows and make the update visible, in microseconds.
    pub(super) update_us: f64,
    /// The share of updates in the batches that have updates.
    pub(super) share: f64,
    /// Queries per processor second, without updates.
    pub(super) queries_per_cpu_second: f64,
    /// Queries per processor second, with updates.
    pub(super) mixed_queries_per_cpu_second: f64,
    /// `mixed_queries_per_cpu_second` divided by `queries_per_cpu_second`.
    pub(super) kept: f64,
}

/// The memory after many updates.
#[derive(Serialize)]
pub(super) struct Growth {
    pub(super) updates: usize,
    pub(super) update_us: f64,
    /// Memory according to the engine, before and after, in bytes.
    pub(super) bytes: (u64, u64),
    /// Resident memory of the process, before and after, in bytes.
    pub(super) resident: (u64, u64),
}

/// Measures single updates, then batches with and without updates in turns.
pub(super) fn update(
    engine: &mut ScanEngine,
    tickets: &mut Tickets,
    epoch: &mut u64,
    filters: &[(usize, Expr)],
    (share, turns): (f64, usize),
) -> Result<Updates> {
    let (publish_us, update_us, rows_per_update) = published(engine, tickets, epoch, false)?;
    let (publish_read_us, ..) = published(engine, tickets, epoch, true)?;
    verify(engine, &mixed(tickets, epoch, filters, share))?;
    let (mut without, mut with) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..turns {
        let jobs = jobs_of(*epoch, filters, false);
        without = without.min(processor_time(|| engine.apply(&jobs)).1);
        let jobs = mixed(tickets, epoch, filters, share);
        with = with.min(processor_time(|| engine.apply(&jobs)).1);
    }
    Ok(Updates {
        publish_us,
        publish_read_us,
        rows_per_update,
        update_us,
        share,
        queries_per_cpu_second: filters.len() as f64 / without,
        mixed_queries_per_cpu_second: filters.len() as f64 / with,
        kept: without / with,
    })
}

/// Returns a batch of these reads with updates, spread evenly among the reads. `share` is the updates' share
/// of the batch.
fn mixed(tickets: &mut Tickets, epoch: &mut u64, filters: &[(usize, Expr)], share: f64) -> Vec<Job> {
    let (mut jobs, mut due) = (Vec::new(), 0.0);
    for (_, filter) in filters {
        due += share / (1.0 - share);
        while due >= 1.0 {
            due -= 1.0;
            *epoch += 1;
            jobs.push(job(*epoch, tickets.update()));
        }
        jobs.push(job(*epoch, Operation::Select(tickets::select(filter.clone(), false))));
    }
    jobs
}

/// Checks that the plain engine and the scan engine, with the same rows, answer one batch of reads and
/// updates alike, and hold the same rows afterwards.
pub(super) fn compare(
    (plain, scan): (&mut PlainEngine, &mut ScanEngine),
    tickets: &mut Tickets,
    mut epoch: u64,
    filters: &[(usize, Expr)],
    share: f64,
) -> Result<()> {
    let jobs = mixed(tickets, &mut epoch, filters, share);
    let differs = plain.apply(&jobs).iter().zip(&scan.apply(&jobs)).position(|(theirs, ours)| theirs != ours);
    ensure!(
        differs.is_none(),
        "the scan engine and the plain engine answer job {differs:?} of a batch with updates differently"
    );
    ensure!(
        plain.digest(None, &[KeyRange::ALL])? == scan.digest(None, &[KeyRange::ALL])?,
        "the scan engine and the plain engine hold different rows after the same updates"
    );
    Ok(())
}

/// Checks some reads of a batch: looks at every row of the version that a read saw, and compares the rows
/// that match with the answer.
fn verify(engine: &mut ScanEngine, jobs: &[Job]) -> Result<()> {
    let step = (jobs.len() / VERIFIED).max(1);
    let is_kept = |number: usize| number % step == step - 1 && !jobs[number].operation.is_write();
    let answers = engine.apply_keeping(jobs, &mut |number, _| is_kept(number), &SingleThread);
    for (job, answer) in
        jobs.iter().zip(&answers).enumerate().filter(|(n, _)| is_kept(*n)).map(|(_, one)| one)
    {
        let Operation::Select(select) = &job.operation else {
            unreachable!("only answers of reads are verified")
        };
        let page = engine.page(job.epoch, &[KeyRange::ALL], select, None, usize::MAX)?;
        ensure!(
            page.rows == rows_of(answer)?,
            "the answer of a read in a batch with updates differs from that of a comparison with every row"
        );
        engine.release(job.epoch, Holder::Reader);
    }
    Ok(())
}

/// Makes a hundred updates to an epoch, repeatedly. Returns the microseconds to publish an update, the
/// microseconds to find its rows and publish it, and the number of rows that it changes. The times are
/// medians over the hundreds, because other programs may use the core.
fn published(
    engine: &mut ScanEngine,
    tickets: &mut Tickets,
    epoch: &mut u64,
    read: bool,
) -> Result<(f64, f64, f64)> {
    let (mut publishing, mut whole, mut changed) = (Vec::new(), Vec::new(), 0);
    let some = tickets::select(tickets.booking(), false);
    for _ in 0..HUNDREDS {
        let (mut settling, mut all) = (0.0, 0.0);
        let pinned = Epoch(*epoch);
        engine.pin(pinned, Holder::Reader);
        for _ in 0..100 {
            *epoch += 1;
            let held = Job { held: true, ..job(*epoch, tickets.update()) };
            let begin = Instant::now();
            let mut answers = engine.apply(std::slice::from_ref(&held));
            let found = Instant::now();
            engine.settle(Epoch(*epoch), true);
            settling += found.elapsed().as_secs_f64();
            all += begin.elapsed().as_secs_f64();
            let Some(Answer::Written(written)) = answers.pop() else { bail!("the engine refused an update") };
            changed += written.iter().map(|written| written.rows).sum::<u64>();
        }
        if read {
            let read = job(pinned.0, Operation::Select(some.clone()));
            let begin = Instant::now();
            engine.apply(std::slice::from_ref(&read));
            settling += begin.elapsed().as_secs_f64();
        }
        engine.release(pinned, Holder::Reader);
        publishing.push(settling);
        whole.push(all);
    }
    let median = |mut hundreds: Vec<f64>| {
        hundreds.sort_by(f64::total_cmp);
        hundreds[HUNDREDS / 2] / 100.0 * 1e6
    };
    Ok((median(publishing), median(whole), changed as f64 / (100 * HUNDREDS) as f64))
}

/// Makes many updates, a thousand to a batch, and pins an epoch after every hundred batches.
pub(super) fn grow(
    engine: &mut ScanEngine,
    tickets: &mut Tickets,
    epoch: &mut u64,
    updates: usize,
) -> Result<Growth> {
    let bytes = |engine: &ScanEngine| engine.usage().iter().map(|usage| usage.bytes).sum::<u64>();
    let before = (bytes(engine), resident()?);
    let mut seconds = 0.0;
    for batch in 0..updates.div_ceil(1000) {
        let pinned = Epoch(*epoch);
        engine.pin(pinned, Holder::Reader);
        let jobs = (0..1000.min(updates - batch * 1000)).map(|_| {
            *epoch += 1;
            job(*epoch, tickets.update())
        });
        let jobs: Vec<Job> = jobs.collect();
        let (answers, busy) = processor_time(|| engine.apply(&jobs));
        seconds += busy;
        ensure!(
            answers.iter().all(|answer| matches!(answer, Answer::Written(_))),
            "the engine refused an update"
        );
        if batch % 100 == 99 {
            let read = job(pinned.0, Operation::Select(tickets::select(tickets.booking(), false)));
            rows_of(&engine.apply(&[read]).remove(0))?;
        }
        engine.release(pinned, Holder::Reader);
    }
    let update_us = seconds / updates as f64 * 1e6;
    let (now, held) = (bytes(engine), resident()?);
    Ok(Growth { updates, update_us, bytes: (before.0, now), resident: (before.1, held) })
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("/proc/self/status has no line 'VmRSS'")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}
