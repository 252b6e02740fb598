//! `quorate bench backup`: the duration of a backup, and its effect on concurrent writes.

use std::{
    fs,
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use quorate::{Wait, backup};
use quorate_protocol::Role;
use serde::Serialize;

use super::{
    result::{self, ArrivedRows},
    spawned::Spawned,
};
use crate::{sql, writers::Writers};

/// Backs a table up repeatedly while clients write to another table, then verifies and restores the last
/// backup.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rows of the table.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Bytes of a row's text.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(16..1_000_000))]
    row_bytes: u32,
    /// Number of backups. The result is the median.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    backups: u16,
    /// Clients that write, each of them one row at a time.
    #[arg(long, default_value_t = 8)]
    writers: usize,
    /// Seconds for which the clients write before the backups.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// MiB of rows that a backup reads per second, at most; unlimited by default.
    #[arg(long, value_name = "MIB")]
    max_rate: Option<NonZeroU32>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct BackupMeasurement {
    bench: &'static str,
    rows: u64,
    /// Size of the rows before compression, in MiB.
    mib: f64,
    file_mib: f64,
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    mib_per_second: f64,
    /// Acknowledged writes per second without backups.
    writes_per_second: f64,
    /// Acknowledged writes per second during backups.
    writes_per_second_beside: f64,
    load_kept: f64,
    verify_seconds: f64,
    restore_seconds: f64,
}

const MIB: f64 = (1 << 20) as f64;
const MIB_BYTES: NonZeroU64 = NonZeroU64::new(1 << 20).unwrap();

pub(crate) fn run(args: &Args) -> Result<()> {
    let spawned = Spawned::start(&[])?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let client = runtime.block_on(async {
        let client = sql::connect(spawned.sql()?).await?;
        result::load(&client, args.rows, args.row_bytes).await?;
        anyhow::Ok(client)
    })?;
    let routers = spawned.processes().iter().filter(|entry| entry.role == Role::Router);
    let routers: Vec<String> =
        routers.filter_map(|entry| Some(entry.bound.as_ref()?.listen.clone())).collect();
    let db = quorate::connect(routers).wait()?;

    let writers = Writers::start(&runtime, spawned.sql()?, args.writers)?;
    writers.wait_for_all_since(Instant::now() + Duration::from_secs(2))?;
    let alone = Instant::now();
    thread::sleep(Duration::from_secs(args.seconds));
    let rate = |from: Instant, to: Instant| writers.acknowledged(from, to) as f64 / (to - from).as_secs_f64();
    let writes_per_second = rate(alone, Instant::now());

    let beside = Instant::now();
    let (mut seconds, mut last) = (Vec::new(), None);
    for number in 0..args.backups {
        let file = spawned.place().join(format!("{number}.backup"));
        let began = Instant::now();
        let whole = Arc::new(std::sync::Mutex::new(0));
        let watched = whole.clone();
        let watch = move |progress: backup::Progress| {
            if let Ok(mut whole) = watched.lock() {
                *whole = progress.bytes;
            }
        };
        let mut backup = db.backup(&file).only(["long"]).watch(watch);
        if let Some(most) = args.max_rate {
            backup = backup.bytes_per_second_max(NonZeroU64::from(most).saturating_mul(MIB_BYTES));
        }
        let made = backup.wait()?;
        seconds.push(began.elapsed().as_secs_f64());
        ensure!(
            made.rows() == args.rows,
            "the backup contains {} rows, but the table has {}",
            made.rows(),
            args.rows
        );
        let whole = whole.lock().map_or(0, |whole| *whole);
        if let Some((former, ..)) = last.replace((file, made, whole)) {
            fs::remove_file(former)?;
        }
    }
    let writes_per_second_beside = rate(beside, Instant::now());
    let account = runtime.block_on(writers.stop())?.account;
    ensure!(
        account.is_complete(),
        "rows that clients wrote during the backups were lost or doubled: {account:?}"
    );

    let (file, made, whole) = last.context("--backups must be at least 1")?;
    let began = Instant::now();
    ensure!(
        backup::verify(&file).wait()? == made,
        "the verification of the backup found other contents than the backup reported"
    );
    let verify_seconds = began.elapsed().as_secs_f64();
    runtime.block_on(client.batch_execute("drop table long"))?;
    let began = Instant::now();
    db.restore(&file).wait()?;
    let restore_seconds = began.elapsed().as_secs_f64();
    runtime.block_on(async {
        let rows = result::select(&client).await?;
        ArrivedRows::of(args.rows, args.row_bytes).read(rows, |_| Duration::ZERO).await
    })?;
    fs::remove_file(file)?;
    db.close().wait();
    spawned.succeeded();

    seconds.sort_by(f64::total_cmp);
    let (median, mib) = (seconds[seconds.len() / 2], whole as f64 / MIB);
    show(
        args,
        &BackupMeasurement {
            bench: "backup",
            rows: args.rows,
            mib,
            file_mib: made.bytes as f64 / MIB,
            seconds: median,
            seconds_min: seconds[0],
            seconds_max: seconds[seconds.len() - 1],
            mib_per_second: mib / median,
            writes_per_second,
            writes_per_second_beside,
            load_kept: writes_per_second_beside / writes_per_second,
            verify_seconds,
            restore_seconds,
        },
    )
}

fn show(args: &Args, figures: &BackupMeasurement) -> Result<()> {
    if args.json {
        println!("{}", serde_json::to_string(figures)?);
        return Ok(());
    }
    println!(
        "{} rows, {:.0} MiB, backed up in {:.2} s (median of {}; {:.2} to {:.2} s): {:.0} MiB/s, {:.0} MiB of file",
        figures.rows,
        figures.mib,
        figures.seconds,
        args.backups,
        figures.seconds_min,
        figures.seconds_max,
        figures.mib_per_second,
        figures.file_mib
    );
    println!(
        "{} clients wrote {:.0} rows/s without a backup and {:.0} rows/s during backups: {:.0} % of the \
         load was kept",
        args.writers,
        figures.writes_per_second,
        figures.writes_per_second_beside,
        figures.load_kept * 100.0
    );
    println!(
        "verified in {:.2} s, restored in {:.2} s; the restored table has every row",
        figures.verify_seconds, figures.restore_seconds
    );
    Ok(())
}
