//! `quorate bench power`: a default cluster loses power during writes, repeatedly, and recovers.
//!
//! A killed process leaves its written bytes with the system, which keeps them. A power cut loses these
//! bytes. So the processes of this cluster hold their writes back until a sync, and then pass them on in
//! pieces, every second piece first (`up --late-files`). A kill then loses everything that was not durable,
//! and tears the record that was being written. All processes stop at one instant and are killed.
//!
//! Meanwhile clients insert numbered rows, each as soon as the one before is acknowledged. Another table
//! contains the sample, or the requested number of tickets. After each power cut the bench calls `quorate
//! up`. The figure is the time from that call until a row is acknowledged again. At the end every
//! acknowledged row must be there, once, and all rows of the other table.
//!
//! With `--torn` every journal gets half a record after its end at each power cut, and a bit flips in the
//! journal of one router or storage process. That process must notice it, and start as a new one.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use quorate_protocol::Role;
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process, test_kill_process},
};
use serde::Serialize;

use super::{
    failover::mended,
    spawned::{Process, Spawned},
    wire,
};
use quorate_sample as sample;

use crate::{record::RowAudit, sql, writers::Writers};

/// Cuts the power of a durable cluster under writers, repeatedly, and looks for the acknowledged rows.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of power cuts.
    #[arg(long, default_value_t = 20)]
    cycles: usize,
    /// Number of clients that write.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Number of tickets in a table of their own, which replaces the sample.
    #[arg(long)]
    tickets: Option<usize>,
    /// After each power cut, add half a record to every journal, and flip a bit in one of them.
    #[arg(long)]
    torn: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct PowerMeasurement {
    bench: &'static str,
    cycles: usize,
    clients: usize,
    torn: bool,
    acknowledged: u64,
    /// Number of acknowledged rows that are missing.
    lost: u64,
    /// Number of rows that are there twice.
    doubled: u64,
    /// Number of rows written to the table of tickets before the first power cut.
    rows: u64,
    /// Number of rows of the table of tickets that were found at the end.
    rows_there: u64,
    /// Time from the call of `quorate up` until a row is acknowledged.
    answers_after_ms: f64,
    answers_after_ms_max: f64,
    /// Number of journals with a flipped bit; a bit between two records does no harm.
    rotten: usize,
    /// Number of processes with a disk that came back under a new identity: the processes with a flipped bit,
    /// and any that were silent for too long on a busy machine.
    replaced: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let spawned = Spawned::on_disk(&["--late-files"])?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (table, rows) = match args.tickets {
        Some(tickets) => {
            wire::load_tickets(spawned.sql()?, tickets)?;
            ("tickets", tickets as u64)
        }
        None => {
            runtime.block_on(async { sample::load(&sql::connect(spawned.sql()?).await?).await })?;
            ("flights", sample::FLIGHTS_ROWS)
        }
    };
    let writers = Writers::start(&runtime, spawned.sql()?, args.clients)?;
    let (mut answers, mut rotten, mut replaced) = (Vec::new(), 0, 0);
    for cycle in 1..=args.cycles {
        let processes = mended(&spawned, &writers)?;
        // The power is cut at a random moment.
        thread::sleep(Duration::from_millis(below(400)));
        cut(&spawned, &processes)?;
        let turned = match args.torn {
            true => damage(&spawned, &processes)?,
            false => None,
        };
        let began = Instant::now();
        let upped = spawned.start_again(&["--late-files"])?;
        let answered = writers.first_since(began)?;
        upped.wait()?;
        let answered_ms = answered.duration_since(began).as_secs_f64() * 1000.0;
        answers.push(answered_ms);
        let back = mended(&spawned, &writers)?;
        let was = |process: &Process| {
            processes.iter().find(|before| before.name == process.name).map(|before| &before.incarnation)
        };
        let others =
            back.iter().filter(|process| has_disk(process) && was(process) != Some(&process.incarnation));
        let others: Vec<&str> = others.map(|process| &process.name[..]).collect();
        let turned: Vec<&str> = turned.iter().map(|name| &name[..]).collect();
        (rotten, replaced) = (rotten + turned.len(), replaced + others.len());
        eprintln!(
            "power cut {cycle}: the first answer came after {answered_ms:.0} ms; these processes came back \
             under new ids: {others:?}"
        );
    }
    let RowAudit { acknowledged, lost, doubled } = runtime.block_on(writers.stop())?.account;
    let there = runtime.block_on(async {
        let client = sql::connect(spawned.sql()?).await?;
        let row = client.query_one(&format!("select count(*) from {table}"), &[]).await?;
        anyhow::Ok(row.get::<_, i64>(0))
    })?;
    answers.sort_by(f64::total_cmp);
    let figures = PowerMeasurement {
        bench: "power",
        cycles: args.cycles,
        clients: args.clients,
        torn: args.torn,
        acknowledged,
        lost,
        doubled,
        rows,
        rows_there: u64::try_from(there)?,
        answers_after_ms: answers[answers.len() / 2],
        answers_after_ms_max: answers[answers.len() - 1],
        rotten,
        replaced,
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!(
            "{} power cuts with {} clients: the first answer came after {:.0} ms (at most {:.0}), {rotten} \
             journals were made to rot, {replaced} processes came back under new ids",
            args.cycles, args.clients, figures.answers_after_ms, figures.answers_after_ms_max
        );
        println!("{} rows acknowledged, {lost} lost, {doubled} doubled", figures.acknowledged);
    }
    ensure!(
        lost == 0 && doubled == 0,
        "{lost} acknowledged rows are lost, and {doubled} are in the table twice"
    );
    ensure!(
        figures.rows_there == figures.rows,
        "{} rows of the table {table} were found instead of {}",
        figures.rows_there,
        figures.rows
    );
    spawned.succeeded();
    Ok(())
}

fn has_disk(process: &Process) -> bool {
    matches!(process.role, Role::Router | Role::Storage)
}

/// Stops all processes at once, beginning with the supervisor, which would restart the other processes. Then
/// kills all of them.
fn cut(spawned: &Spawned, processes: &[Process]) -> Result<()> {
    let pids = std::iter::once(Some(spawned.supervisor()?)).chain(processes.iter().map(|it| it.pid));
    let pids: Vec<Pid> = pids
        .map(|pid| {
            pid.and_then(|pid| Pid::from_raw(pid as i32))
                .context("`quorate status` shows no process id of a process that runs")
        })
        .collect::<Result<_>>()?;
    // All processes are stopped before any is killed, because a stopped process cannot react to the end of
    // another process.
    for signal in [Signal::STOP, Signal::KILL] {
        pids.iter().try_for_each(|pid| kill_process(*pid, signal))?;
    }
    let limit = Instant::now() + GONE_PATIENCE;
    while pids.iter().any(|pid| test_kill_process(*pid) != Err(Errno::SRCH)) {
        ensure!(Instant::now() < limit, "processes that the bench killed have not ended");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

const GONE_PATIENCE: Duration = Duration::from_secs(10);

/// Adds half a record to every journal, and flips a bit in one of them. Returns the process of that journal.
fn damage(spawned: &Spawned, processes: &[Process]) -> Result<Option<String>> {
    let with_disk: Vec<&Process> = processes.iter().filter(|process| has_disk(process)).collect();
    for process in &with_disk {
        if let Some(newest) = written_segments(&journal(spawned, process))?.pop() {
            tear(&newest)?;
        }
    }
    let victim = with_disk[below(with_disk.len() as u64) as usize];
    let mut segments = written_segments(&journal(spawned, victim))?;
    // The last records before a crash may not be sealed yet; rot in them would look like a torn tail.
    segments.pop();
    if segments.is_empty() {
        return Ok(None);
    }
    let segment = &segments[below(segments.len() as u64) as usize];
    let at = below(segment.written);
    let file = fs::OpenOptions::new().read(true).write(true).open(&segment.path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 1 << below(8)], at)?;
    Ok(Some(victim.name.clone()))
}

fn journal(spawned: &Spawned, process: &Process) -> PathBuf {
    spawned.place().join(format!("journal-{}", process.node))
}

/// A segment with records, and the offset of their end.
struct Segment {
    path: PathBuf,
    written: u64,
}

/// Returns the written segments of a journal, oldest first.
fn written_segments(journal: &Path) -> Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(journal)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "segment") {
            let bytes = fs::read(&path)?;
            let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
            segments.push(Segment { path, written });
        }
    }
    segments.retain(|segment| segment.written > 0);
    segments.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(segments)
}

/// Appends half of a possible record behind the last record, which may itself be torn.
fn tear(segment: &Segment) -> Result<()> {
    let bytes = fs::read(&segment.path)?;
    let mut end = 0;
    while let Some(head) = bytes.get(end..end + FRAME_HEAD).filter(|head| head.starts_with(b"QJ")) {
        let length = u32::from_le_bytes(
            head[4..8].try_into().context("the head of a record has four bytes for its length")?,
        ) as usize;
        end += (FRAME_HEAD + length).next_multiple_of(8);
    }
    let mut piece = vec![0; 16 + 8 * below(16) as usize];
    for byte in &mut piece {
        *byte = below(256) as u8;
    }
    // Every record begins with these bytes.
    piece[..4].copy_from_slice(b"QJRC");
    let file = fs::OpenOptions::new().write(true).open(&segment.path)?;
    Ok(file.write_all_at(&piece, end as u64)?)
}

/// Size of the head of a record, in bytes; its kind and its length are the first fields.
const FRAME_HEAD: usize = 32;

/// Returns a random number below `limit`.
fn below(limit: u64) -> u64 {
    quorate_runtime::chance::incarnation().0 as u64 % limit.max(1)
}
