//! `quorate backup` and `quorate restore`: copies tables to a file, and back.

use std::{
    io::IsTerminal,
    num::{NonZeroU32, NonZeroU64},
    path::{Path, PathBuf},
    time::{Instant, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use quorate::{
    Db, Wait,
    backup::{self, Summary, Transfer},
};
use quorate_command::report;
use quorate_table::calendar;
use serde_json::json;

use crate::cluster::RoutersArgs;

/// Copies the rows of tables to a file, all as of one position, while the cluster keeps working.
///
/// If the command exits with 0, the file is complete and on disk. Otherwise there is no file.
/// `quorate restore` copies the tables back, into this cluster or another one.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File for the backup. It must not exist.
    file: PathBuf,
    /// Tables to copy. By default all tables.
    #[arg(value_name = "TABLE")]
    tables: Vec<String>,
    /// Makes no backup, but reads this file completely. It checks all checksums, and every row against its
    /// table's definition. No cluster is needed.
    #[arg(long)]
    verify: bool,
    /// Reads at most this many MiB of rows a second, before compression, to leave more of the machines to
    /// others.
    #[arg(long, value_name = "MIB", conflicts_with = "verify")]
    max_rate: Option<NonZeroU32>,
    #[command(flatten)]
    shown: OutputArgs,
    #[command(flatten)]
    routers: RoutersArgs,
}

/// Restores tables from a file of `quorate backup`.
///
/// The tables must not exist. The command first verifies the whole file and does nothing if any part is
/// damaged. The rows of a table become visible together, once all of them are there. If the command fails, it
/// drops the incomplete tables that it created.
#[derive(clap::Args)]
pub(crate) struct RestoreArgs {
    /// File of a backup.
    file: PathBuf,
    /// Tables to restore. By default all tables of the file.
    #[arg(value_name = "TABLE")]
    tables: Vec<String>,
    #[command(flatten)]
    shown: OutputArgs,
    #[command(flatten)]
    routers: RoutersArgs,
}

const MIB: NonZeroU64 = NonZeroU64::new(1 << 20).unwrap();

/// The form of the output.
#[derive(clap::Args)]
struct OutputArgs {
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Args { file, tables, verify, max_rate, shown, routers } = args;
    if verify {
        return perform(backup::verify(&file).only(tables), "verified", &file, &shown);
    }
    let db = connect(routers)?;
    let mut made = db.backup(&file).only(tables);
    if let Some(mib) = max_rate {
        made = made.bytes_per_second_max(NonZeroU64::from(mib).saturating_mul(MIB));
    }
    perform(made, "backed up", &file, &shown)?;
    db.close().wait();
    Ok(())
}

pub(crate) fn restore(args: RestoreArgs) -> Result<()> {
    let RestoreArgs { file, tables, shown, routers } = args;
    let db = connect(routers)?;
    perform(db.restore(&file).only(tables), "restored", &file, &shown)?;
    db.close().wait();
    Ok(())
}

fn connect(routers: RoutersArgs) -> Result<Db> {
    Ok(quorate::connect(routers.addresses()?).wait()?)
}

/// Runs the transfer and prints its result.
fn perform(transfer: Transfer, done: &str, file: &Path, shown: &OutputArgs) -> Result<()> {
    let bar = bar()?;
    let began = Instant::now();
    let summary = transfer.watch({
        let bar = bar.clone();
        move |progress| {
            if let Some(of) = progress.of {
                bar.set_length(of);
            }
            bar.set_position(progress.bytes);
            bar.set_message(format!("{} rows", progress.rows));
        }
    });
    let summary = summary.wait();
    bar.finish_and_clear();
    show(&summary?, done, file, began.elapsed().as_secs_f64(), shown)
}

/// Returns a progress bar, which is hidden unless standard error is a terminal.
fn bar() -> Result<ProgressBar> {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{spinner} {msg}, {bytes}, {bytes_per_sec}");
    bar.set_style(style.context("the template of the progress bar is wrong")?);
    Ok(bar)
}

fn show(summary: &Summary, done: &str, file: &Path, seconds: f64, shown: &OutputArgs) -> Result<()> {
    let made_at = summary.made_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if shown.json {
        let tables: Vec<_> =
            summary.tables.iter().map(|(table, rows)| json!({ "table": table, "rows": rows })).collect();
        report!(
            "{}",
            json!({
                "file": file, "domain": format!("{:032x}", summary.domain.0), "position": summary.position,
                "made_at": made_at, "tables": tables, "rows": summary.rows(), "bytes": summary.bytes,
                "seconds": seconds,
            })
        );
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["TABLE", "ROWS"]);
    for (name, rows) in &summary.tables {
        table.add_row([name.clone(), rows.to_string()]);
    }
    if let Some(rows) = table.column_mut(1) {
        rows.set_cell_alignment(CellAlignment::Right);
    }
    report!("{table}");
    report!(
        "{done} in {seconds:.1} s: {} rows as of position {}, written at {}, {} in {}",
        summary.rows(),
        summary.position,
        instant(made_at),
        HumanBytes(summary.bytes),
        file.display()
    );
    Ok(())
}

/// Formats seconds of Unix time as SQL does.
fn instant(seconds: u64) -> String {
    let micros = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    calendar::timestamp_text(micros.saturating_sub(calendar::UNIX_EPOCH_DAYS * calendar::DAY), true)
}
