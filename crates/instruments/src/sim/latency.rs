//! `quorate sim latency`: measures calls of a replicated service in a world of constant delays.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use quorate_command::print_line;
use quorate_sim::latency::{self, Delays, Figure, Saving};

/// Measures the latencies of a replicated service with constant delays.
///
/// Single calls must take exactly the time that the paper 003 (docs/sources.md) computes in its section
/// VI.A.3. Transactions of three and five requests run in three ways: by T-Paxos, with X-Paxos for their
/// reads, and with every request as a write.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Delay between a client and a replica (M), in microseconds.
    #[arg(long, default_value_t = 100)]
    client_micros: u64,
    /// Delay between two replicas (m), in microseconds.
    #[arg(long, default_value_t = 40)]
    replica_micros: u64,
    /// Execution time of a request (E), in microseconds.
    #[arg(long, default_value_t = 60)]
    execute_micros: u64,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let delays = Delays {
        client: Duration::from_micros(args.client_micros),
        follower: Duration::from_micros(args.client_micros),
        replica: Duration::from_micros(args.replica_micros),
        execute: Duration::from_micros(args.execute_micros),
    };
    let failed = |violation| anyhow!("{violation}");
    let calls = latency::calls(delays).map_err(failed)?;
    let hop = Duration::from_micros(args.client_micros.max(1));
    let savings = latency::savings(hop).map_err(failed)?;
    match args.json {
        true => print_json(args, &calls, &savings, hop)?,
        false => print(&calls, &savings, hop)?,
    }
    let missed = calls.iter().find(|figure| figure.measured != figure.promised);
    match missed {
        None => Ok(()),
        Some(Figure { name, formula, promised, measured }) => {
            bail!("a call of the kind {name} takes {measured:?}, but {formula} is {promised:?}")
        }
    }
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

fn hops(saving: &Saving, hop: Duration) -> [u128; 3] {
    saving.took.map(|took| took.as_nanos() / hop.as_nanos())
}

fn print(calls: &[Figure], savings: &[Saving], hop: Duration) -> Result<()> {
    for Figure { name, formula, promised, measured } in calls {
        let verdict = if measured == promised { "exactly" } else { "not" };
        print_line!("{name:>12}: {:8.1} µs, {verdict} {formula}", micros(*measured))?;
    }
    print_line!(
        "transactions with their commit, in message delays: by T-Paxos, with reads by X-Paxos, with writes only; then the time \
         that T-Paxos saves against the two others"
    )?;
    for saving in savings {
        let ([optimised, mixed, writes], [saved_of_mixed, saved_of_writes]) =
            (hops(saving, hop), saving.shares());
        print_line!(
            "{:>2} requests, {} of them writes: {optimised}, {mixed}, {writes}: −{:.1} %, −{:.1} %",
            saving.requests.0,
            saving.requests.1,
            saved_of_mixed * 100.0,
            saved_of_writes * 100.0
        )?;
    }
    Ok(())
}

fn print_json(args: &Args, calls: &[Figure], savings: &[Saving], hop: Duration) -> Result<()> {
    let figures: Vec<_> = (calls.iter())
        .map(|figure| {
            serde_json::json!({
                "call": figure.name, "formula": figure.formula, "promised_us": micros(figure.promised),
                "measured_us": micros(figure.measured), "exact": figure.measured == figure.promised,
            })
        })
        .collect();
    let transactions: Vec<_> = (savings.iter())
        .map(|saving| {
            let [saved_of_mixed, saved_of_writes] = saving.shares();
            serde_json::json!({
                "requests": saving.requests.0, "writes": saving.requests.1, "hops": hops(saving, hop),
                "saved_beside_reads_and_writes": saved_of_mixed, "saved_beside_writes": saved_of_writes,
            })
        })
        .collect();
    print_line!(
        "{}",
        serde_json::json!({
            "scenario": "latency", "client_us": args.client_micros, "replica_us": args.replica_micros,
            "execute_us": args.execute_micros, "calls": figures, "transactions": transactions,
        })
    )?;
    Ok(())
}
