//! `quorate backup` and `quorate restore`: tables in a file, and back.

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
use quorate_command::say;
use quorate_table::calendar;
use serde_json::json;

use crate::cluster::RoutersArgs;

/// Writes the rows of tables to a file, all as of one position, while the cluster goes on.
///
/// The file is whole and on disk when this ends with 0, and not there otherwise. `quorate restore` brings the tables back, into this
/// cluster or another one.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file, which must not exist.
    file: PathBuf,
    /// Of these tables alone.
    #[arg(value_name = "TABLE")]
    tables: Vec<String>,
    /// Make none, but read the whole of this one: all checksums, and every row against its table's definition. No cluster is
    /// needed.
    #[arg(long)]
    verify: bool,
    /// Read no more than so many MiB of rows a second, before they are compressed, so that more of the machines is left to others.
    #[arg(long, value_name = "MIB", conflicts_with = "verify")]
    max_rate: Option<NonZeroU32>,
    #[command(flatten)]
    shown: Shown,
    #[command(flatten)]
    routers: RoutersArgs,
}

/// Brings tables back from a file that `quorate backup` wrote.
///
/// The tables must not be there. All of the file is verified first; if any of it is damaged, nothing is done. Rows become visible
/// a table at a time, once all of them are there. If it fails, tables that it has made and that are not whole are dropped.
#[derive(clap::Args)]
pub(crate) struct RestoreArgs {
    /// The file.
    file: PathBuf,
    /// These tables alone.
    #[arg(value_name = "TABLE")]
    tables: Vec<String>,
    #[command(flatten)]
    shown: Shown,
    #[command(flatten)]
    routers: RoutersArgs,
}

const MIB: NonZeroU64 = NonZeroU64::new(1 << 20).unwrap();

/// How to answer.
#[derive(clap::Args)]
struct Shown {
    /// One JSON object.
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

/// Does it, and tells what came of it.
fn perform(transfer: Transfer, done: &str, file: &Path, shown: &Shown) -> Result<()> {
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

/// On a terminal.
fn bar() -> Result<ProgressBar> {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{spinner} {msg}, {bytes}, {bytes_per_sec}");
    bar.set_style(style.context("the progress bar's template")?);
    Ok(bar)
}

fn show(summary: &Summary, done: &str, file: &Path, seconds: f64, shown: &Shown) -> Result<()> {
    let made_at = summary.made_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if shown.json {
        let tables: Vec<_> =
            summary.tables.iter().map(|(table, rows)| json!({ "table": table, "rows": rows })).collect();
        say!(
            "{}",
            json!({
                "file": file, "domain": format!("{:032x}", summary.domain.0), "position": summary.position,
                "made_at": made_at, "tables": tables, "rows": summary.rows(), "bytes": summary.bytes,
                "seconds": seconds,
            })
        )?;
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
    say!("{table}")?;
    say!(
        "{done} in {seconds:.1} s: {} rows as of position {}, written at {}, {} in {}",
        summary.rows(),
        summary.position,
        instant(made_at),
        HumanBytes(summary.bytes),
        file.display()
    )?;
    Ok(())
}

/// Seconds of Unix time, as SQL shows them.
fn instant(seconds: u64) -> String {
    let micros = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    calendar::timestamp_text(micros.saturating_sub(calendar::UNIX_EPOCH_DAYS * calendar::DAY), true)
}
