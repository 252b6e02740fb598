//! `quorate bench scan`: the scan engine alone, one thread on one core, on the ticket table of 002 §2.
//!
//! A pass is one call of the engine with all queries: filters are compiled, the rows of every query gathered, and
//! nothing is kept from one pass to the next. Constants come from rows that are there. Before anything is measured, all
//! queries are answered by both engines on a smaller table, and some of them are asked row by row on the full one.

use std::{io::Write, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use quorate_table::{
    engine::{Answer, Engine, Epoch, Holder, Job},
    expr::{Aggregate, AggregateFunction, Expr},
    operation::{Operation, Output, Select},
    plain::PlainEngine,
    scan::ScanEngine,
    schema::KeyRange,
    value::{Row, key_of},
};
use serde::Serialize;

use super::tickets::{self, TABLE, Tickets};

/// Measures the scan engine alone.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One JSON object.
    #[arg(long)]
    json: bool,
    /// How many tickets.
    #[arg(long, default_value_t = 1_000_000)]
    rows: usize,
    /// How many queries in one pass; several numbers, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,1024,4096,10000")]
    queries: Vec<usize>,
    /// Passes to take the median of.
    #[arg(long, default_value_t = 9)]
    passes: usize,
    /// Partition by range of the departure date instead of by hash of the record locator.
    #[arg(long)]
    clustered: bool,
    /// Ask for single bookings, by the partition column.
    #[arg(long)]
    keys: bool,
    /// Gather all columns of a row instead of four.
    #[arg(long)]
    all_columns: bool,
    /// Measure updates, too.
    #[arg(long)]
    updates: bool,
    /// Make so many updates more, and look at the memory before and after.
    #[arg(long, default_value_t = 0)]
    more_updates: usize,
    /// How many tickets both engines are compared on.
    #[arg(long, default_value_t = 5_000)]
    compared_rows: usize,
    /// Where the generator starts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The core to run on.
    #[arg(long, default_value_t = 1)]
    core: usize,
}

/// How many queries tell what one costs.
const ALONE: usize = 256;

/// One measurement.
#[derive(Serialize)]
struct Line {
    rows: usize,
    queries: usize,
    queries_per_second: f64,
    pass_ms: f64,
    /// The processor's time of the same, which is less where others use the core.
    pass_cpu_ms: f64,
    slowest_pass_ms: f64,
    bytes_per_row: f64,
    part_of_fixed_width: f64,
    rows_per_query: f64,
    /// Queries and result rows of each template.
    templates: Vec<(usize, usize)>,
    /// The sum of the hashes of all rows of all queries.
    checksum: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    updates: Option<Updates>,
}

#[derive(Serialize)]
struct Updates {
    /// Making an update visible, a hundred to an epoch that is pinned.
    publish_us: f64,
    /// The same where every pinned epoch is read, too, behind its hundred updates.
    publish_read_us: f64,
    /// Rows changed by an update.
    rows_per_update: f64,
    /// Finding the rows, too.
    update_us: f64,
    /// Queries a second of the processor without updates, and when a tenth of what comes is updates.
    queries_per_cpu_second: f64,
    mixed_queries_per_cpu_second: f64,
}

/// What many updates left behind.
#[derive(Serialize)]
struct Growth {
    updates: usize,
    update_us: f64,
    /// What the engine says that it takes, before and after.
    bytes: (u64, u64),
    /// What the process takes.
    resident: (u64, u64),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(args.core);
    rustix::thread::sched_setaffinity(None, &cores).context("the core to run on")?;
    let most = args.queries.iter().copied().max().unwrap_or(0);
    compare(args, most.min(4096))?;
    let begin = Instant::now();
    let mut tickets = Tickets::new(args.seed, 6 * most.max(1000));
    let mut engine = ScanEngine::default();
    let mut epoch = load(&mut engine, &mut tickets, args.rows, args.clustered)?;
    if !args.json {
        eprintln!("{} tickets loaded in {:.1} s", args.rows, begin.elapsed().as_secs_f64());
    }
    for &count in &args.queries {
        // A single query says little: many of them, each with passes of its own.
        let asked = if count == 1 { ALONE } else { count };
        let filters = filters(&mut engine, &mut tickets, epoch, asked, args.keys)?;
        let line = measure(args, &mut engine, &mut tickets, &mut epoch, &filters, count)?;
        let mut out = std::io::stdout().lock();
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&line)?)?;
        } else {
            writeln!(
                out,
                "{count} queries: {:.0} queries/s, a pass in {:.3} ms ({:.3} of the processor), {:.1} rows each; {:.0} bytes a row, {:.0} % of \
                 fixed width; queries and rows by template {:?}",
                line.queries_per_second,
                line.pass_ms,
                line.pass_cpu_ms,
                line.rows_per_query,
                line.bytes_per_row,
                line.part_of_fixed_width * 100.0,
                line.templates
            )?;
            if let Some(updates) = &line.updates {
                writeln!(
                    out,
                    "updates: published in {:.2} us ({:.2} if pinned epochs are read), in all {:.1} us, {:.1} rows each; \
                     {:.0} queries a second of the processor without updates, {:.0} beside 10 %",
                    updates.publish_us,
                    updates.publish_read_us,
                    updates.update_us,
                    updates.rows_per_update,
                    updates.queries_per_cpu_second,
                    updates.mixed_queries_per_cpu_second
                )?;
            }
        }
    }
    if args.more_updates > 0 {
        let growth = grow(&mut engine, &mut tickets, &mut epoch, args.more_updates)?;
        let mut out = std::io::stdout().lock();
        match args.json {
            true => writeln!(out, "{}", serde_json::to_string(&growth)?)?,
            false => writeln!(
                out,
                "{} updates in batches, {:.1} us each: the engine took {} bytes before and {} after, the process {} and {}",
                growth.updates,
                growth.update_us,
                growth.bytes.0,
                growth.bytes.1,
                growth.resident.0,
                growth.resident.1
            )?,
        }
    }
    Ok(())
}

fn job(epoch: u64, operation: Operation) -> Job {
    Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false }
}

fn one(engine: &mut impl Engine, job: Job) -> Result<Answer> {
    match engine.apply(&[job]).pop() {
        Some(Answer::Failed(failure)) => bail!("{failure}"),
        Some(answer) => Ok(answer),
        None => bail!("no answer"),
    }
}

/// Makes the table; the epoch of the last write.
fn load(engine: &mut impl Engine, tickets: &mut Tickets, rows: usize, clustered: bool) -> Result<u64> {
    let mut epoch = 1;
    one(engine, job(epoch, Operation::CreateTable { table: TABLE, schema: tickets::schema(clustered) }))?;
    let mut left = rows;
    while left > 0 {
        let rows: Vec<Row> = (0..left.min(1 << 18)).map(|_| tickets.row()).collect();
        left -= rows.len();
        epoch += 1;
        one(engine, job(epoch, Operation::Insert { table: TABLE, rows, returning: Vec::new() }))?;
    }
    Ok(epoch)
}

/// Filters and their templates, each with 1 to 200 rows.
fn filters(
    engine: &mut impl Engine,
    tickets: &mut Tickets,
    epoch: u64,
    count: usize,
    keys: bool,
) -> Result<Vec<(usize, Expr)>> {
    let mut kept = Vec::new();
    while kept.len() < count {
        let candidates: Vec<(usize, Expr)> = (0..count + count / 4 + 16)
            .map(|_| if keys { (0, tickets.booking()) } else { tickets.filter() })
            .collect();
        let counts = candidates.iter().map(|(_, filter)| {
            let all = Aggregate { function: AggregateFunction::Count, argument: None, distinct: false };
            let output = Output::Groups { keys: Vec::new(), aggregates: vec![all] };
            job(epoch, Operation::Select(Select { table: TABLE, filter: Some(filter.clone()), output }))
        });
        let answers = engine.apply(&counts.collect::<Vec<_>>());
        for (candidate, answer) in candidates.into_iter().zip(answers) {
            let Answer::Groups(groups) = answer else { bail!("a count is answered {answer:?}") };
            let quorate_table::aggregate::State::Count(rows) = groups[0].states[0] else { bail!("no count") };
            if (1..=200).contains(&rows) && kept.len() < count {
                kept.push(candidate);
            }
        }
    }
    Ok(kept)
}

fn jobs_of(epoch: u64, filters: &[(usize, Expr)], all_columns: bool) -> Vec<Job> {
    let select = |(_, filter): &(usize, Expr)| tickets::select(filter.clone(), all_columns);
    filters.iter().map(|filter| job(epoch, Operation::Select(select(filter)))).collect()
}

fn rows_of(answer: &Answer) -> Result<&[Row]> {
    match answer {
        Answer::Rows(rows) => Ok(rows),
        other => bail!("a read is answered {other:?}"),
    }
}

/// The same for the same rows of the same query, in whatever order.
fn checksum(answers: &[Answer]) -> Result<u64> {
    let mut sum = 0u64;
    for (number, answer) in answers.iter().enumerate() {
        for row in rows_of(answer)? {
            let hash = key_of(row).iter().fold(number as u64 + 1, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
            });
            sum = sum.wrapping_add(hash);
        }
    }
    Ok(sum)
}

/// Both engines on a small table.
fn compare(args: &Args, count: usize) -> Result<()> {
    let (mut plain, mut scan) = (PlainEngine::default(), ScanEngine::default());
    let mut tickets = Tickets::new(args.seed, 6 * count.max(1000));
    let epoch = load(&mut plain, &mut tickets, args.compared_rows, args.clustered)?;
    load(&mut scan, &mut Tickets::new(args.seed, 6 * count.max(1000)), args.compared_rows, args.clustered)?;
    ensure!(
        plain.digest(None, &[KeyRange::ALL])? == scan.digest(None, &[KeyRange::ALL])?,
        "the engines hold different rows"
    );
    let filters = filters(&mut scan, &mut tickets, epoch, count, args.keys)?;
    let jobs = jobs_of(epoch, &filters, true);
    let (ours, theirs) = (checksum(&scan.apply(&jobs))?, checksum(&plain.apply(&jobs))?);
    ensure!(ours == theirs, "the engines answer differently: {ours:x}, not {theirs:x}");
    Ok(())
}

/// Reads row by row, which no pass is part of, answer as the pass did for the first query of each template.
fn verify(
    engine: &mut ScanEngine,
    epoch: u64,
    filters: &[(usize, Expr)],
    answers: &[Answer],
    all: bool,
) -> Result<()> {
    engine.pin(Epoch(epoch), Holder::Reader);
    for template in [0, 4, 7] {
        let Some(query) = filters.iter().position(|(of, _)| *of == template) else { continue };
        let select = tickets::select(filters[query].1.clone(), all);
        let page = engine.page(Epoch(epoch), &[KeyRange::ALL], &select, None, usize::MAX)?;
        ensure!(page.rows == rows_of(&answers[query])?, "the pass differs from a look at every row");
    }
    engine.release(Epoch(epoch), Holder::Reader);
    Ok(())
}

fn measure(
    args: &Args,
    engine: &mut ScanEngine,
    tickets: &mut Tickets,
    epoch: &mut u64,
    filters: &[(usize, Expr)],
    together: usize,
) -> Result<Line> {
    let jobs = jobs_of(*epoch, filters, args.all_columns);
    let answers = engine.apply(&jobs);
    verify(engine, *epoch, filters, &answers, args.all_columns)?;
    let sum = checksum(&answers)?;
    let mut templates = vec![(0, 0); 8];
    let mut results = 0;
    for ((template, _), answer) in filters.iter().zip(&answers) {
        let rows = rows_of(answer)?.len();
        templates[*template].0 += 1;
        templates[*template].1 += rows;
        results += rows;
    }
    drop(answers);
    let (seconds, processor) = passes(engine, &jobs, together, args.passes.max(1), sum)?;
    let updates = match args.updates {
        true => Some(update(engine, tickets, epoch, filters)?),
        false => None,
    };
    let bytes: u64 = engine.usage().iter().map(|usage| usage.bytes).sum();
    let median = seconds[seconds.len() / 2];
    Ok(Line {
        rows: args.rows,
        queries: together,
        queries_per_second: together as f64 / median,
        pass_ms: median * 1e3,
        pass_cpu_ms: processor[processor.len() / 2] * 1e3,
        slowest_pass_ms: seconds[seconds.len() - 1] * 1e3,
        bytes_per_row: bytes as f64 / args.rows as f64,
        part_of_fixed_width: bytes as f64 / args.rows as f64 / tickets::FIXED_BYTES,
        rows_per_query: results as f64 / filters.len() as f64,
        templates,
        checksum: format!("{sum:016x}"),
        updates,
    })
}

/// The seconds, and those of the processor, that passes took with so many of the jobs together; sorted.
fn passes(
    engine: &mut ScanEngine,
    jobs: &[Job],
    together: usize,
    count: usize,
    sum: u64,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut seconds, mut processor) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let mut answers = Vec::new();
        for jobs in jobs.chunks(together) {
            let (begin, busy) = (Instant::now(), processor_seconds());
            answers.extend(engine.apply(jobs));
            seconds.push(begin.elapsed().as_secs_f64());
            processor.push(processor_seconds() - busy);
        }
        ensure!(checksum(&answers)? == sum, "a pass differs from the one before");
    }
    seconds.sort_by(f64::total_cmp);
    processor.sort_by(f64::total_cmp);
    Ok((seconds, processor))
}

/// How long this thread has run.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Updates one by one; then batches with and without, by turns.
fn update(
    engine: &mut ScanEngine,
    tickets: &mut Tickets,
    epoch: &mut u64,
    filters: &[(usize, Expr)],
) -> Result<Updates> {
    let (publish_us, update_us, rows_per_update) = published(engine, tickets, epoch, false)?;
    let (publish_read_us, ..) = published(engine, tickets, epoch, true)?;
    let (mut without, mut with) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..5 {
        let mut jobs = jobs_of(*epoch, filters, false);
        without = without.min(processor_time(|| engine.apply(&jobs)).1);
        jobs.clear();
        for (number, (_, filter)) in filters.iter().enumerate() {
            if number % 9 == 8 {
                *epoch += 1;
                jobs.push(job(*epoch, tickets.update()));
            }
            jobs.push(job(*epoch, Operation::Select(tickets::select(filter.clone(), false))));
        }
        with = with.min(processor_time(|| engine.apply(&jobs)).1);
    }
    Ok(Updates {
        publish_us,
        publish_read_us,
        rows_per_update,
        update_us,
        queries_per_cpu_second: filters.len() as f64 / without,
        mixed_queries_per_cpu_second: filters.len() as f64 / with,
    })
}

/// A hundred updates to an epoch, a thousand in all: microseconds to publish one, and to find its rows, too; and how
/// many rows it changed.
fn published(
    engine: &mut ScanEngine,
    tickets: &mut Tickets,
    epoch: &mut u64,
    read: bool,
) -> Result<(f64, f64, f64)> {
    let (mut publishing, mut whole, mut changed, count) = (0.0, 0.0, 0, 1000);
    let some = tickets::select(tickets.booking(), false);
    for _ in 0..count / 100 {
        let pinned = Epoch(*epoch);
        engine.pin(pinned, Holder::Reader);
        for _ in 0..100 {
            *epoch += 1;
            let held = Job { held: true, ..job(*epoch, tickets.update()) };
            let begin = Instant::now();
            let mut answers = engine.apply(std::slice::from_ref(&held));
            let found = Instant::now();
            engine.settle(Epoch(*epoch), true);
            publishing += found.elapsed().as_secs_f64();
            whole += begin.elapsed().as_secs_f64();
            let Some(Answer::Written(written)) = answers.pop() else { bail!("an update is refused") };
            changed += written.iter().map(|written| written.rows).sum::<u64>();
        }
        if read {
            let read = job(pinned.0, Operation::Select(some.clone()));
            let begin = Instant::now();
            engine.apply(std::slice::from_ref(&read));
            publishing += begin.elapsed().as_secs_f64();
        }
        engine.release(pinned, Holder::Reader);
    }
    let each = |sum: f64| sum / f64::from(count);
    Ok((each(publishing) * 1e6, each(whole) * 1e6, each(changed as f64)))
}

/// Many updates, a thousand to a batch, a pinned epoch behind each hundred batches.
fn grow(engine: &mut ScanEngine, tickets: &mut Tickets, epoch: &mut u64, updates: usize) -> Result<Growth> {
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
        ensure!(answers.iter().all(|answer| matches!(answer, Answer::Written(_))), "an update is refused");
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

/// Bytes of this process in memory.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("the memory of this process")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("its resident part")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}

/// What comes of something, and the seconds of this thread that it took.
fn processor_time<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let busy = processor_seconds();
    let result = work();
    (result, processor_seconds() - busy)
}
