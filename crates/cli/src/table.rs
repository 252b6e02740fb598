//! `quorate table`: lists tables with their sizes, and replaces a storage process by a standby.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use quorate_command::{print_line, report};
use quorate_protocol::{Role, role::State};
use quorate_roles::tables::operate::AdminOperation;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    operate::{self, AnsweringProcess, Target},
    reports,
};

/// Lists tables with their sizes, and replaces the storage processes that hold them.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Lists every table with its number of rows, the memory of all its copies, its ranges and replicas, and
    /// the position in the total order at which it was created.
    List {
        #[command(flatten)]
        target: Target,
    },
    /// Replaces a storage process by a standby.
    ///
    /// The storage process becomes a standby itself. Reads and writes continue.
    Replace {
        /// Name of the storage process, as in `quorate status`.
        process: String,
        #[command(flatten)]
        target: Target,
    },
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::List { target } => list(&target),
        Command::Replace { process, target } => replace(process, &target),
    }
}

/// The size of one table, as a storage process reports it.
#[derive(Deserialize)]
struct TableSize {
    table: u32,
    rows: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct TableRow {
    table: String,
    /// Number of rows, or `None` while some holder does not answer or is incomplete.
    rows: Option<u64>,
    bytes: Option<u64>,
    ranges: usize,
    replicas: u8,
    created: u64,
    /// Last position that every holder has executed.
    executed: u64,
}

fn list(target: &Target) -> Result<()> {
    let processes = target.answering()?;
    let knowing = processes.iter().filter(|it| it.report.role != Role::Storage && it.report.has_joined());
    let newest =
        knowing.max_by_key(|it| it.report.position).context(
        "the processes that answer do not know the tables: start a router, super or gateway, or wait until it has joined the domain",
    )?;
    let holders: Vec<&AnsweringProcess> = processes
        .iter()
        .filter(|it| it.report.role == Role::Storage && it.report.state == State::Serving)
        .collect();
    let mut usage: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut answered = 0;
    for holder in &holders {
        let Some(tables) = reports::fetch::<Vec<TableSize>>(&holder.http, "tables") else { continue };
        answered += 1;
        for TableSize { table, rows, bytes } in tables {
            let (all_rows, all_bytes) = usage.entry(table).or_default();
            *all_rows += rows;
            *all_bytes += bytes;
        }
    }
    let report = &newest.report;
    let copies = u64::from(report.replicas).min(report.ranges as u64);
    let whole = answered == report.ranges && copies > 0;
    let executed = holders.iter().map(|holder| holder.report.executed).min().unwrap_or(0);
    let rows = report.tables.iter().map(|table| {
        let (rows, bytes) = usage.get(&table.table).copied().unwrap_or_default();
        TableRow {
            table: table.name.clone(),
            rows: whole.then(|| rows / copies),
            bytes: whole.then_some(bytes),
            ranges: report.ranges,
            replicas: report.replicas,
            created: table.created,
            executed,
        }
    });
    let rows: Vec<TableRow> = rows.collect();
    if target.json {
        for row in &rows {
            print_line!("{}", serde_json::to_string(row)?)?;
        }
        return Ok(());
    }
    let mut shown = Table::new();
    shown.load_style(presets::NOTHING);
    shown.set_header(["TABLE", "ROWS", "BYTES", "RANGES", "REPLICAS", "CREATED", "EXECUTED"]);
    for TableRow { table, rows, bytes, ranges, replicas, created, executed } in rows {
        let shown_or_not =
            |number: Option<u64>| number.map_or(String::from("?"), |number| number.to_string());
        let rows = shown_or_not(rows);
        let numbers = [shown_or_not(bytes), ranges.to_string(), replicas.to_string(), created.to_string()];
        shown.add_row([table, rows].into_iter().chain(numbers).chain([executed.to_string()]));
    }
    for column in 1..=6 {
        if let Some(column) = shown.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    print_line!("{shown}")?;
    Ok(())
}

fn replace(process: String, target: &Target) -> Result<()> {
    let processes = target.answering()?;
    let superior = operate::in_role(&processes, Role::Super)?;
    operate::ask(&superior.http, &AdminOperation::Replace { process: process.clone() })?;
    if target.json {
        report!("{}", json!({ "replaced": process }));
    } else {
        report!(
            "a standby takes the place of {process}; `quorate status` shows the standby as serving once it has all rows"
        );
    }
    Ok(())
}
