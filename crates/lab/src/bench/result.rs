//! `quorate bench result`: a result far larger than any process may hold, read through a cluster of real
//! processes.
//!
//! The stages read the result in turn: by SELECT, by COPY, by a slow client, by a client that dies in the
//! middle, and by several clients that all stop in the middle. During each stage the bench watches the memory
//! of the gateway and of every storage process. It fails if the gateway grows beyond its limit, if a row is
//! missing, duplicate or damaged, or if the resources of a client that left are not freed.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use quorate_protocol::Role;
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, RowStream};

use super::{processor, spawned::Spawned};
use crate::sql;

/// Reads a result of a gigabyte and more, and watches the memory of the processes on its way.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// MiB of the result.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..))]
    mib: u32,
    /// Bytes of a row's text.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(16..1_000_000))]
    row_bytes: u32,
    /// Clients that stop in the middle of the result at the same time.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// MiB by which the gateway may grow.
    #[arg(long, default_value_t = 64)]
    growth_mib: u64,
    /// The strength of the reads.
    #[arg(long, default_value = "sequential", value_parser = ["sequential", "snapshot", "basic"])]
    read: String,
    /// Print one JSON object a stage.
    #[arg(long)]
    json: bool,
}

/// The measurements of a stage.
#[derive(Serialize)]
struct ResultMeasurement {
    bench: &'static str,
    stage: &'static str,
    rows: u64,
    mib: f64,
    seconds: f64,
    mib_per_second: f64,
    /// Largest growth of the gateway's memory, in MiB.
    gateway_growth_mib: f64,
    /// Largest growth of any storage process's memory, in MiB.
    storage_growth_mib: f64,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let spawned = Spawned::start(&[])?;
    sql::runtime()?.block_on(stages(&args, &spawned))?;
    spawned.succeeded();
    Ok(())
}

const SELECT: &str = "select n, t from long";

async fn stages(args: &Args, cluster: &Spawned) -> Result<()> {
    let (client, _connection) = connect(args, cluster).await?;
    let rows = (u64::from(args.mib) << 20).div_ceil(u64::from(args.row_bytes));
    load(&client, rows, args.row_bytes).await?;
    // Waits until the memory that loading used is freed.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let whole = ArrivedRows::of(rows, args.row_bytes);

    let stage = MeasuredStep::begin(args, cluster, "select");
    let read = whole.clone().read(select(&client).await?, |_| Duration::ZERO).await?;
    stage.end(read)?;

    let stage = MeasuredStep::begin(args, cluster, "copy");
    let read = copy(&client, whole.clone()).await?;
    stage.end(read)?;

    // Pauses once for longer than any timeout, then once for every MiB in the first quarter of the result.
    let every = (1 << 20) / u64::from(args.row_bytes);
    let pause = |row| match row {
        1_000 => Duration::from_secs(3),
        row if row < rows / 4 && row % every == 0 => Duration::from_millis(50),
        _ => Duration::ZERO,
    };
    let stage = MeasuredStep::begin(args, cluster, "slow reader");
    let read = whole.clone().read(select(&client).await?, pause).await?;
    stage.end(read)?;

    let stage = MeasuredStep::begin(args, cluster, "dying clients");
    let mut read = 0;
    for part in 1..=4 {
        read += AbortingClient::reach(args, cluster, rows * part / 8).await?.read;
    }
    come_to(cluster, 0).await?;
    stage.end(read)?;

    let stage = MeasuredStep::begin(args, cluster, "clients in the middle");
    let mut middle = Vec::new();
    for _ in 0..args.clients {
        middle.push(AbortingClient::reach(args, cluster, rows / 64).await?);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    come_to(cluster, args.clients as u64).await?;
    let read = middle.iter().map(|client| client.read).sum();
    drop(middle);
    come_to(cluster, 0).await?;
    stage.end(read)
}

async fn connect(args: &Args, cluster: &Spawned) -> Result<(Client, Aborted)> {
    let (client, connection) = sql::open(cluster.sql()?).await?;
    let connection = Aborted(tokio::spawn(connection));
    client.batch_execute(&format!("set quorate.read = '{}'", args.read)).await?;
    Ok((client, connection))
}

/// A connection that breaks off when this value is dropped.
struct Aborted(JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Fills a table `long` with `rows` numbered rows, each with a text of `bytes` bytes.
pub(super) async fn load(client: &Client, rows: u64, bytes: u32) -> Result<()> {
    client.batch_execute("create table long (n bigint, t text) with (partition_by = 'hash(n)')").await?;
    let mut copy = pin!(client.copy_in("copy long from stdin").await?);
    let mut piece = String::new();
    for n in 0..rows {
        piece += &format!("{n}\t{}\n", text(n, bytes));
        if piece.len() >= PIECE_BYTES || n + 1 == rows {
            copy.send(Bytes::from(std::mem::take(&mut piece))).await?;
        }
    }
    let loaded = copy.finish().await?;
    ensure!(loaded == rows, "{loaded} rows were loaded instead of {rows}");
    Ok(())
}

/// Size of one message of a COPY, in bytes.
const PIECE_BYTES: usize = 256 << 10;

fn text(n: u64, bytes: u32) -> String {
    format!("{n:0bytes$}", bytes = bytes as usize)
}

pub(super) async fn select(client: &Client) -> Result<RowStream> {
    Ok(client.query_raw(SELECT, Vec::<i32>::new()).await?)
}

/// The rows of a result that have arrived.
#[derive(Clone)]
pub(super) struct ArrivedRows {
    rows: Vec<bool>,
    bytes: u32,
}

impl ArrivedRows {
    pub(super) fn of(rows: u64, bytes: u32) -> ArrivedRows {
        ArrivedRows { rows: vec![false; rows as usize], bytes }
    }

    fn take(&mut self, n: u64, text: &str) -> Result<()> {
        let seen = self
            .rows
            .get_mut(n as usize)
            .with_context(|| format!("the result contains row {n}, which was never loaded"))?;
        ensure!(!std::mem::replace(seen, true), "the result contains row {n} twice");
        // Zeros precede the digits, so texts differ at their ends.
        let whole =
            text.len() == self.bytes as usize && text.trim_start_matches('0').parse().unwrap_or(0) == n;
        ensure!(whole, "the text of row {n} in the result is damaged");
        Ok(())
    }

    fn end(self) -> Result<u64> {
        let missing = self.rows.iter().filter(|seen| !**seen).count();
        ensure!(missing == 0, "the result lacks {missing} rows");
        Ok(self.rows.len() as u64)
    }

    /// Reads the whole result, with pauses after rows.
    pub(super) async fn read(mut self, rows: RowStream, pause: impl Fn(u64) -> Duration) -> Result<u64> {
        let mut rows = pin!(rows);
        let mut count = 0;
        while let Some(row) = rows.try_next().await? {
            self.take(row.try_get::<_, i64>(0)? as u64, row.try_get(1)?)?;
            count += 1;
            let pause = pause(count);
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        self.end()
    }
}

async fn copy(client: &Client, mut seen: ArrivedRows) -> Result<u64> {
    let mut data = pin!(client.copy_out("copy long to stdout").await?);
    let mut kept = Vec::new();
    while let Some(piece) = data.try_next().await? {
        kept.extend_from_slice(&piece);
        let end = kept.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in std::str::from_utf8(&kept[..end])?.lines() {
            let (n, text) = line.split_once('\t').context("COPY returned a line without a tab")?;
            seen.take(n.parse()?, text)?;
        }
        kept.drain(..end);
    }
    ensure!(kept.is_empty(), "the last line that COPY returned is cut off");
    seen.end()
}

/// A client in the middle of the result; dropping it breaks the connection there.
struct AbortingClient {
    read: u64,
    _rows: Pin<Box<RowStream>>,
    _client: Client,
    _connection: Aborted,
}

impl AbortingClient {
    async fn reach(args: &Args, cluster: &Spawned, row: u64) -> Result<AbortingClient> {
        let (client, connection) = connect(args, cluster).await?;
        let mut rows = Box::pin(select(&client).await?);
        for _ in 0..row {
            rows.try_next().await?.context("the result has fewer rows than the table")?;
        }
        Ok(AbortingClient { read: row, _rows: rows, _client: client, _connection: connection })
    }
}

/// Waits until the gateway has `count` open requests, and each storage process as many answers.
async fn come_to(cluster: &Spawned, count: u64) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut under_way = Vec::new();
        for entry in cluster.processes() {
            let Some(bound) = &entry.bound else { continue };
            let status = || -> Result<Value> {
                let text =
                    ureq::get(format!("http://{}/status", bound.http)).call()?.body_mut().read_to_string()?;
                Ok(serde_json::from_str(&text)?)
            };
            match entry.role {
                Role::Gateway => under_way.push((&entry.name, status()?["waiting"].as_u64())),
                Role::Storage => {
                    let status = status()?;
                    // A standby sends no answers.
                    if status["state"] == "serving" {
                        let figures = status["figures"].as_array().into_iter().flatten();
                        let open =
                            figures.filter(|figure| figure[0] == "answering").find_map(|it| it[1].as_u64());
                        under_way.push((&entry.name, open));
                    }
                }
                Role::Router | Role::Super | Role::Cell => {}
            }
        }
        if under_way.iter().all(|(_, open)| *open == Some(count)) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "after 10 s not every gateway and storage process has {count} requests under way: \
             {under_way:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A running stage.
struct MeasuredStep<'a> {
    args: &'a Args,
    name: &'static str,
    watch: MemoryWatch,
    began: Instant,
}

impl<'a> MeasuredStep<'a> {
    fn begin(args: &'a Args, cluster: &Spawned, name: &'static str) -> MeasuredStep<'a> {
        MeasuredStep { args, name, watch: MemoryWatch::begin(cluster), began: Instant::now() }
    }

    fn end(self, rows: u64) -> Result<()> {
        let (seconds, growth) = (self.began.elapsed().as_secs_f64(), self.watch.end());
        let most = |role| growth.iter().filter(|(of, _)| *of == role).map(|(_, bytes)| *bytes).max();
        let mib = |bytes: Option<u64>| bytes.unwrap_or(0) as f64 / f64::from(1 << 20);
        let read = (rows * u64::from(self.args.row_bytes)) as f64 / f64::from(1 << 20);
        let figures = ResultMeasurement {
            bench: "result",
            stage: self.name,
            rows,
            mib: read,
            seconds,
            mib_per_second: read / seconds,
            gateway_growth_mib: mib(most(Role::Gateway)),
            storage_growth_mib: mib(most(Role::Storage)),
        };
        if self.args.json {
            println!("{}", serde_json::to_string(&figures)?);
        } else {
            println!(
                "{}: {rows} rows, {read:.0} MiB in {seconds:.1} s ({:.0} MiB/s); the memory of the gateway \
                 grew by {:.1} MiB, that of a storage process by {:.1} MiB at most",
                self.name, figures.mib_per_second, figures.gateway_growth_mib, figures.storage_growth_mib
            );
        }
        let allowed = self.args.growth_mib;
        ensure!(
            figures.gateway_growth_mib <= allowed as f64,
            "{}: the memory of the gateway grew by {:.1} MiB, more than the allowed {allowed} MiB",
            self.name,
            figures.gateway_growth_mib
        );
        Ok(())
    }
}

/// Samples the memory of gateways and storage processes.
struct MemoryWatch {
    over: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<(Role, u64)>>,
}

impl MemoryWatch {
    fn begin(cluster: &Spawned) -> MemoryWatch {
        let watched: Vec<(Role, u32, u64)> = cluster
            .processes()
            .iter()
            .filter(|entry| matches!(entry.role, Role::Gateway | Role::Storage))
            .filter_map(|entry| Some((entry.role, entry.pid?, processor::memory(entry.pid?).ok()?)))
            .collect();
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let thread = thread::spawn(move || {
            let mut growth: Vec<(Role, u64)> = watched.iter().map(|(role, _, _)| (*role, 0)).collect();
            while !stop.load(Ordering::Relaxed) {
                for ((_, pid, before), (_, most)) in watched.iter().zip(&mut growth) {
                    let now = processor::memory(*pid).unwrap_or(0);
                    *most = (*most).max(now.saturating_sub(*before));
                }
                thread::sleep(Duration::from_millis(20));
            }
            growth
        });
        MemoryWatch { over, thread }
    }

    /// Returns the largest growth of each process.
    fn end(self) -> Vec<(Role, u64)> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}
