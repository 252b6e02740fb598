//! `quorate bench restart`: restarts all processes of a durable cluster one after another while clients
//! write.
//!
//! Clients insert numbered rows, each as soon as the one before is acknowledged, on connections that they
//! keep. Meanwhile `quorate restart --rolling` restarts everything. No statement may fail, no connection may
//! end, and every process with a disk keeps its identity. At the end every acknowledged row must be there,
//! once. The figure is the longest time that any client waited between two acknowledgements.

use std::time::Instant;

use anyhow::{Result, ensure};
use quorate_protocol::Role;
use serde::{Deserialize, Serialize};

use super::{failover::mended, spawned::Spawned, wire};
use crate::{record::RowAudit, writers::Writers};

/// Restarts all processes of a durable cluster one after another under writers, and measures how long writes
/// stop.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of clients that write.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Number of restarts of the whole cluster.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Number of tickets in a table of their own, which storage processes recover.
    #[arg(long, default_value_t = 0)]
    tickets: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct RestartMeasurement {
    bench: &'static str,
    clients: usize,
    tickets: usize,
    restarts: usize,
    seconds: f64,
    acknowledged: u64,
    failed_statements: u64,
    /// Number of reconnections of clients.
    reconnects: u64,
    /// Number of acknowledged rows that are missing.
    lost: u64,
    /// Number of rows that are there twice.
    doubled: u64,
    /// Number of processes with a disk that came back under a new identity.
    replaced: u64,
    /// Longest time between two acknowledgements of one client.
    silence_ms_max: f64,
    /// For each process: the longest time without an acknowledgement of a client while the process restarted.
    silences: Vec<Silence>,
}

#[derive(Serialize)]
struct Silence {
    process: String,
    back_ms: f64,
    silence_ms: f64,
}

/// The report of `quorate restart --json` on one process.
#[derive(Deserialize)]
struct Restarted {
    process: String,
    role: Role,
    seconds: f64,
    same_incarnation: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let spawned = Spawned::on_disk(&[])?;
    if args.tickets > 0 {
        wire::load_tickets(spawned.sql()?, args.tickets)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let writers = Writers::start(&runtime, spawned.sql()?, args.clients)?;
    let processes = mended(&spawned, &writers)?;
    let (mut silences, mut replaced) = (Vec::new(), 0);
    let began = Instant::now();
    for _ in 0..args.rounds {
        for process in &processes {
            let since = Instant::now();
            let restarted: Restarted = serde_json::from_str(&spawned.restart(&process.name)?)?;
            writers.wait_for_all_since(Instant::now())?;
            let (_, silence) = writers.stood_still(since);
            let has_disk = matches!(restarted.role, Role::Router | Role::Storage);
            replaced += u64::from(has_disk && !restarted.same_incarnation);
            let (back_ms, silence_ms) = (restarted.seconds * 1000.0, silence.as_secs_f64() * 1000.0);
            eprintln!(
                "{} was back after {back_ms:.0} ms; the longest silence of a client was {silence_ms:.0} ms",
                restarted.process
            );
            silences.push(Silence { process: restarted.process, back_ms, silence_ms });
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let (_, silence) = writers.stood_still(began);
    let (failed_statements, reconnects) = writers.failures();
    let RowAudit { acknowledged, lost, doubled } = runtime.block_on(writers.stop())?.account;
    let figures = RestartMeasurement {
        bench: "restart",
        clients: args.clients,
        tickets: args.tickets,
        restarts: silences.len(),
        seconds,
        acknowledged,
        failed_statements,
        reconnects,
        lost,
        doubled,
        replaced,
        silence_ms_max: silence.as_secs_f64() * 1000.0,
        silences,
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!(
            "{} restarts in {seconds:.1} s with {} clients: longest silence {:.0} ms, {failed_statements} \
             of {} statements failed, {reconnects} connections ended, {replaced} processes with a disk \
             came back under new ids",
            figures.restarts, args.clients, figures.silence_ms_max, figures.acknowledged
        );
        println!("{} rows acknowledged, {lost} lost, {doubled} doubled", figures.acknowledged);
    }
    ensure!(
        lost == 0 && doubled == 0,
        "{lost} acknowledged rows are lost, and {doubled} are in the table twice"
    );
    ensure!(failed_statements == 0, "{failed_statements} statements of clients failed during the restarts");
    ensure!(reconnects == 0, "{reconnects} connections of clients ended during the restarts");
    ensure!(replaced == 0, "{replaced} processes with a disk came back under new ids");
    spawned.succeeded();
    Ok(())
}
