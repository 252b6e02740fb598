//! `quorate bench converge`: the time and bytes until different replicas are equal, and the memory of a key.
//!
//! Three cells on loopback keep every key. One cell stands still while some keys are written, and no cell
//! keeps hints for it. When it resumes, comparing alone makes it equal. The clock starts at that moment, so
//! the time includes the pause between two rounds of comparing. Bytes are those of all messages of comparing:
//! questions, answers and entries.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use quorate_protocol::Role;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::spawned::{Process, Spawned};

/// Measures the time and bytes until different cells are equal, and the memory of a key.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Keys, of which each cell has a copy.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: u64,
    /// One in this number of keys is written while a cell stands still.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    one_in: u64,
    /// Bytes of a value.
    #[arg(long, default_value_t = 128)]
    value_bytes: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ConvergenceMeasurement {
    bench: &'static str,
    keys: u64,
    different: u64,
    key_bytes: usize,
    value_bytes: usize,
    /// Writes per second at level one while the keys were loaded, all clients together.
    loaded_per_second: f64,
    /// Time from the cell's resumption until all cells had the same keys and stamps.
    equal_after_ms: f64,
    /// Bytes of the keys and values that differed.
    difference_bytes: u64,
    /// Bytes of all messages of comparing until all cells were equal.
    compared_bytes: u64,
    compared_for_one: f64,
    /// Entries that comparing moved: at least the number that differed.
    moved: u64,
    /// Resident memory of a cell per key, in addition to keys and values; the maximum over the cells.
    memory_bytes_a_key: f64,
}

/// The status that a cell reports.
#[derive(Deserialize)]
struct Cell {
    number: Option<u32>,
    reachable: Vec<u32>,
    keys: u64,
    keys_print: String,
    compared_bytes: u64,
    entries_taken: u64,
    entries_given: u64,
}

#[derive(Deserialize)]
struct Status {
    cell: Cell,
}

const KEY_BYTES: usize = 16;
/// Number of writes that are sent before their answers are read.
const PIPELINE: u64 = 256;
/// Silence of a cell after which the other cells work without it.
const SILENCE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn run(args: &Args) -> Result<()> {
    let spawned =
        Spawned::start(&["--storage", "0", "--cells", "3", "--level", "one", "--hint-bytes-max", "0"])?;
    let cells: Vec<&Process> = spawned.processes().iter().filter(|it| it.role == Role::Cell).collect();
    let doors: Vec<&str> = spawned.redis().collect();
    let before = memory(&cells)?;
    let began = Instant::now();
    thread::scope(|scope| {
        let shares: Vec<_> = (0u64..)
            .zip(&doors)
            .map(|(share, door)| {
                let numbers = (share..args.keys).step_by(doors.len());
                scope.spawn(move || write(door, numbers, args.value_bytes, 'a'))
            })
            .collect();
        shares.into_iter().try_for_each(|share| share.join().expect("no writing thread panics"))
    })?;
    let loaded_per_second = args.keys as f64 / began.elapsed().as_secs_f64();
    wait("all cells have all keys", || {
        let cells = states(&cells)?;
        Ok(cells.iter().all(|cell| cell.keys == args.keys && cell.keys_print == cells[0].keys_print))
    })?;
    let own = args.keys as f64 * (KEY_BYTES + args.value_bytes) as f64;
    let added = memory(&cells)?.into_iter().zip(before).map(|(after, before)| after.saturating_sub(before));
    let memory_bytes_a_key = (added.max().unwrap_or(0) as f64 - own) / args.keys as f64;

    let compared = |cells: &[Cell]| cells.iter().map(|cell| cell.compared_bytes).sum::<u64>();
    let moved =
        |cells: &[Cell]| cells.iter().map(|cell| cell.entries_taken + cell.entries_given).sum::<u64>();
    let (away, others) = cells.split_last().context("the cluster has no cells")?;
    let present = states(&cells)?;
    let number =
        present.last().and_then(|cell| cell.number).context("the status of the cell has no cell number")?;
    let pid = away
        .pid
        .and_then(|pid| Pid::from_raw(pid.cast_signed()))
        .context("`quorate status` shows no process id for a cell")?;
    kill_process(pid, Signal::STOP)?;
    let asleep = Asleep(pid);
    // For a moment the other cells still receive messages that the stopped cell sent earlier.
    let stopped = Instant::now();
    wait("no other cell takes the stopped cell for reachable", || {
        let without = states(others)?.iter().all(|cell| !cell.reachable.contains(&number));
        Ok(without && stopped.elapsed() > SILENCE)
    })?;
    let different = (0..args.keys).step_by(usize::try_from(args.one_in)?);
    let count = different.clone().count() as u64;
    write(doors[0], different, args.value_bytes, 'b')?;
    let bytes_before = compared(&states(others)?) + present.last().map_or(0, |cell| cell.compared_bytes);
    drop(asleep);
    let woken = Instant::now();
    wait("all cells have equal keys", || {
        let cells = states(&cells)?;
        Ok(cells.iter().all(|cell| cell.keys_print == cells[0].keys_print))
    })?;
    let equal_after_ms = woken.elapsed().as_secs_f64() * 1e3;
    let after = states(&cells)?;
    let (compared_bytes, moved) = (compared(&after) - bytes_before, moved(&after) - moved(&present));
    ensure!(
        moved >= count,
        "only {moved} of the {count} different entries were found by comparing; the others arrived in \
         another way"
    );
    let difference_bytes = count * (KEY_BYTES + args.value_bytes) as u64;
    let figures = ConvergenceMeasurement {
        bench: "converge",
        keys: args.keys,
        different: count,
        key_bytes: KEY_BYTES,
        value_bytes: args.value_bytes,
        loaded_per_second,
        equal_after_ms,
        difference_bytes,
        compared_bytes,
        moved,
        compared_for_one: compared_bytes as f64 / difference_bytes as f64,
        memory_bytes_a_key,
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!(
            "{count} of {} keys differed: the cells were equal after {equal_after_ms:.0} ms, with \
             {compared_bytes} bytes of messages for {difference_bytes} bytes of different keys and values \
             ({:.2} bytes for one)",
            args.keys, figures.compared_for_one
        );
        println!(
            "{memory_bytes_a_key:.0} bytes of memory for a key in addition to key and value; \
             {loaded_per_second:.0} keys/s loaded"
        );
    }
    spawned.succeeded();
    Ok(())
}

/// A process that stands still until this value is dropped.
struct Asleep(Pid);

impl Drop for Asleep {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Writes keys through a cell's door at level one, and waits for all answers.
fn write(door: &str, numbers: impl Iterator<Item = u64>, value_bytes: usize, value: char) -> Result<()> {
    let stream = TcpStream::connect(door)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = BufReader::new(stream);
    let value = value.to_string().repeat(value_bytes);
    let mut numbers = numbers.peekable();
    while numbers.peek().is_some() {
        let (mut requests, mut count) = (String::new(), 0);
        for number in numbers.by_ref().take(PIPELINE as usize) {
            let key = format!("key:{number:0width$}", width = KEY_BYTES - 4);
            requests += &format!("*3\r\n$3\r\nSET\r\n${KEY_BYTES}\r\n{key}\r\n${value_bytes}\r\n{value}\r\n");
            count += 1;
        }
        stream.get_mut().write_all(requests.as_bytes())?;
        for _ in 0..count {
            let mut answer = String::new();
            stream.read_line(&mut answer)?;
            ensure!(answer == "+OK\r\n", "a cell answered SET with {answer:?} instead of +OK");
        }
    }
    Ok(())
}

/// Returns the resident memory of each cell, in bytes.
fn memory(cells: &[&Process]) -> Result<Vec<u64>> {
    let of = |cell: &&Process| {
        let pid = cell.pid.context("`quorate status` shows no process id for a cell")?;
        let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("/proc/PID/status of a cell has no line 'VmRSS'")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib << 10)
    };
    cells.iter().map(of).collect()
}

fn states(cells: &[&Process]) -> Result<Vec<Cell>> {
    let of = |cell: &&Process| {
        let bound = cell.bound.as_ref().context("a cell has no HTTP address in `quorate status`")?;
        let text = ureq::get(format!("http://{}/status", bound.http)).call()?.body_mut().read_to_string()?;
        let status: Status = serde_json::from_str(&text).with_context(|| format!("{}: {text}", cell.name))?;
        Ok(status.cell)
    };
    cells.iter().map(of).collect()
}

/// Waits until `done` returns true. An error of `done` counts as false.
fn wait(what: &str, done: impl Fn() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    loop {
        let seen = done();
        if matches!(seen, Ok(true)) {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            seen.with_context(|| format!("{PATIENCE:?} have passed, and this is not yet true: {what}"))?;
            anyhow::bail!("{PATIENCE:?} have passed, and this is not yet true: {what}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}
