//! `quorate bench scan`: the scan engine alone, on one core by default, on the ticket table of 002 §2.
//!
//! A pass is one call of the engine with all queries. It compiles filters, gathers the rows of every query,
//! and keeps nothing for the next pass. Constants come from existing rows. Before the measurement, both
//! engines answer all queries (and the batch that mixes them with updates) on a smaller table, and some
//! queries are checked row by row on the full one.

use std::{io::Write, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use quorate::scan_threads::{ScanThreadOptions, ScanThreads};
use quorate_table::{
    engine::{Answer, Engine, Epoch, Holder, Job},
    expr::{Aggregate, AggregateFunction, Expr},
    operation::{Operation, Output, Select},
    plain::PlainEngine,
    scan::{Costs, ScanEngine},
    schema::KeyRange,
    value::{Row, key_of},
};
use serde::Serialize;

use super::{
    processor::processor_seconds,
    tickets::{self, TABLE, Tickets},
};
use job::{job, jobs_of, rows_of};
use updates::{Updates, grow, update};

mod job;
mod updates;

/// Measures the scan engine alone.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Tickets in the table.
    #[arg(long, default_value_t = 1_000_000)]
    rows: usize,
    /// Queries in one pass. If several numbers are given, each is measured separately.
    #[arg(long, value_delimiter = ',', default_value = "1,1024,4096,10000")]
    queries: Vec<usize>,
    /// Number of passes. The result is the median.
    #[arg(long, default_value_t = 9)]
    passes: usize,
    /// Partition by range of the departure date instead of by hash of the record locator.
    #[arg(long)]
    clustered: bool,
    /// Query single bookings, by the partition column.
    #[arg(long)]
    keys: bool,
    /// Gather all columns of a row instead of four.
    #[arg(long)]
    all_columns: bool,
    /// Measure updates, too: the cost of publishing one, and the rate of reads when updates are this share of
    /// all operations.
    #[arg(long, value_name = "SHARE", num_args = 0..=1, default_missing_value = "0.1")]
    updates: Option<f64>,
    /// Make this number of additional updates, and compare the memory before and after.
    #[arg(long, default_value_t = 0)]
    more_updates: usize,
    /// Tickets on which both engines are compared.
    #[arg(long, default_value_t = 5_000)]
    compared_rows: usize,
    /// Seed of the generator.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The core to run on. With several threads, the first thread's core; the others take the next ones.
    #[arg(long, default_value_t = 1)]
    core: usize,
    /// Threads that scan the rows in one pass, each bound to a core.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

/// Number of queries from which the cost of a single query is computed.
const ALONE: usize = 256;

/// One measurement.
#[derive(Serialize)]
struct ScanResult {
    rows: usize,
    queries: usize,
    queries_per_second: f64,
    pass_ms: f64,
    threads: usize,
    /// Processor time of the first thread for the same pass. It is smaller if other programs use the core.
    pass_cpu_ms: f64,
    slowest_pass_ms: f64,
    bytes_per_row: f64,
    part_of_fixed_width: f64,
    rows_per_query: f64,
    /// Number of queries, and number of result rows, of each template.
    templates: Vec<(usize, usize)>,
    /// The sum of the hashes of all rows of all queries.
    checksum: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    updates: Option<Updates>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let share = args.updates.unwrap_or(0.0);
    ensure!(
        (0.0..=0.9).contains(&share),
        "--updates must be a part of all operations, from 0 to 0.9, but is {share}"
    );
    ensure!(args.threads > 0, "--threads must be at least 1");
    let cores = (args.core..).take(args.threads).collect();
    let scan_threads = ScanThreads::start(ScanThreadOptions { threads: args.threads, cores })
        .context("cannot start scan threads on the cores from number --core upwards")?;
    scan_threads.join();
    let most = args.queries.iter().copied().max().unwrap_or(0);
    compare(args, most.min(4096))?;
    let begin = Instant::now();
    let mut tickets = Tickets::new(args.seed, 6 * most.max(1000));
    let costs = Costs::measured(|| begin.elapsed());
    let mut engine = ScanEngine::default().with_costs(costs);
    let mut epoch = load(&mut engine, &mut tickets, args.rows, args.clustered)?;
    if !args.json {
        eprintln!("{} tickets loaded in {:.1} s; {costs:.1?}", args.rows, begin.elapsed().as_secs_f64());
    }
    for &count in &args.queries {
        // A single query proves little, so the bench measures a number of queries, each with its own passes.
        let asked = if count == 1 { ALONE } else { count };
        let filters = filters(&mut engine, &mut tickets, epoch, asked, args.keys)?;
        let line = measure(args, &mut engine, &scan_threads, &mut tickets, &mut epoch, &filters, count)?;
        let mut out = std::io::stdout().lock();
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&line)?)?;
        } else {
            writeln!(
                out,
                "{count} queries: {:.0} queries/s, a pass takes {:.3} ms ({:.3} ms of processor time), \
                 {:.1} rows for each query; {:.0} bytes a row, {:.0} % of the size with fixed widths; \
                 queries and rows by template {:?}",
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
                    "updates: published in {:.2} us ({:.2} us if pinned epochs are read), {:.1} us in all, \
                     {:.1} rows for each update; {:.0} queries for each second of processor time without \
                     updates, {:.0} queries where {:.0} % of the operations are updates, {:.3} of the \
                     former",
                    updates.publish_us,
                    updates.publish_read_us,
                    updates.update_us,
                    updates.rows_per_update,
                    updates.queries_per_cpu_second,
                    updates.mixed_queries_per_cpu_second,
                    updates.share * 100.0,
                    updates.kept
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
                "{} updates in batches, {:.1} us for each update: the engine used {} bytes before and {} \
                 after, the process {} and {} bytes",
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

fn one(engine: &mut impl Engine, job: Job) -> Result<Answer> {
    match engine.apply(&[job]).pop() {
        Some(Answer::Failed(failure)) => bail!("{failure}"),
        Some(answer) => Ok(answer),
        None => bail!("the engine gave no answer"),
    }
}

/// Creates the table. Returns the epoch of the last write.
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

/// Returns filters with their templates, each with 1 to 200 rows.
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
            let Answer::Groups(groups) = answer else {
                bail!("the engine answered a count with {answer:?} instead of a group")
            };
            let quorate_table::aggregate::State::Count(rows) = groups[0].states[0] else {
                bail!("the engine answered a count with another aggregate")
            };
            if (1..=200).contains(&rows) && kept.len() < count {
                kept.push(candidate);
            }
        }
    }
    Ok(kept)
}

/// Returns a checksum that is independent of the order of each query's rows.
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

/// Compares the answers of the plain engine and of the scan engine on a small table.
fn compare(args: &Args, count: usize) -> Result<()> {
    let (mut plain, mut scan) = (PlainEngine::default(), ScanEngine::default());
    let mut tickets = Tickets::new(args.seed, 6 * count.max(1000));
    let epoch = load(&mut plain, &mut tickets, args.compared_rows, args.clustered)?;
    load(&mut scan, &mut Tickets::new(args.seed, 6 * count.max(1000)), args.compared_rows, args.clustered)?;
    ensure!(
        plain.digest(None, &[KeyRange::ALL])? == scan.digest(None, &[KeyRange::ALL])?,
        "the scan engine and the plain engine hold different rows"
    );
    let filters = filters(&mut scan, &mut tickets, epoch, count, args.keys)?;
    let jobs = jobs_of(epoch, &filters, true);
    let (ours, theirs) = (checksum(&scan.apply(&jobs))?, checksum(&plain.apply(&jobs))?);
    ensure!(
        ours == theirs,
        "the checksum of the answers of the scan engine is {ours:x}, but that of the plain engine is \
         {theirs:x}"
    );
    match args.updates {
        Some(share) => updates::compare((&mut plain, &mut scan), &mut tickets, epoch, &filters, share),
        None => Ok(()),
    }
}

/// Compares the pass with row-by-row reads, for the first query of each template.
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
        ensure!(
            page.rows == rows_of(&answers[query])?,
            "the answer of a pass differs from that of a comparison with every row"
        );
    }
    engine.release(Epoch(epoch), Holder::Reader);
    Ok(())
}

fn measure(
    args: &Args,
    engine: &mut ScanEngine,
    scan_threads: &ScanThreads,
    tickets: &mut Tickets,
    epoch: &mut u64,
    filters: &[(usize, Expr)],
    together: usize,
) -> Result<ScanResult> {
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
    let (seconds, processor) = passes(engine, scan_threads, &jobs, together, args.passes.max(1), sum)?;
    let updates = match args.updates {
        Some(share) => Some(update(engine, tickets, epoch, filters, (share, args.passes.max(1)))?),
        None => None,
    };
    let bytes: u64 = engine.usage().iter().map(|usage| usage.bytes).sum();
    let median = seconds[seconds.len() / 2];
    Ok(ScanResult {
        rows: args.rows,
        queries: together,
        queries_per_second: together as f64 / median,
        pass_ms: median * 1e3,
        threads: args.threads,
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

/// Returns the wall and processor seconds of passes with `together` jobs each; sorted.
fn passes(
    engine: &mut ScanEngine,
    scan_threads: &ScanThreads,
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
            answers.extend(engine.apply_keeping(jobs, &mut |_, _| false, scan_threads));
            seconds.push(begin.elapsed().as_secs_f64());
            processor.push(processor_seconds() - busy);
        }
        ensure!(checksum(&answers)? == sum, "the answers of a pass differ from those of the pass before");
    }
    seconds.sort_by(f64::total_cmp);
    processor.sort_by(f64::total_cmp);
    Ok((seconds, processor))
}
