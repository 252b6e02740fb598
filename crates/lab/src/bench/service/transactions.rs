//! Transactions: the time that T-Paxos saves them (003 §VI.C.2, table VI.1 and figure VI.8).
//!
//! A client makes one transaction at a time, of three requests of which one writes, or of five of which two
//! write, and commits it. There are three coordinations. *Optimised*: only the commit is agreed on.
//! *Read/write*: each request is a call of its own, reads go through X-Paxos, and the commit is one more
//! write, as the source counts it. *Write-only*: every request is a write of its own. Clients are tasks of
//! one process.
//!
//! The three coordinations are measured in turns, each for a part of the time, because a shared machine's
//! speed changes from second to second.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{
    args::Args,
    hosts::ServiceBench,
    measurement::Measurement,
    spec::{Mode, ServiceWork, Transact},
};

/// Numbers of concurrent clients, as in figure VI.8.
const CLIENTS: [usize; 5] = [1, 2, 4, 8, 16];
/// Number of requests of a transaction, and number of those that write.
const SIZES: [(usize, usize); 2] = [(3, 1), (5, 2)];

/// The share of its response time that a transaction saves according to hop counts, in percent: against
/// read/write and against write-only transactions (`quorate sim latency`).
const RESPONSE: [[f64; 2]; 2] = [[28.6, 37.5], [33.3, 41.7]];
const RESPONSE_POINTS: f64 = 5.0;
/// Minimum gain in throughput, in percent: the source's smallest, for 1 client with three requests, against
/// read/write transactions.
const GAIN_LEAST: f64 = 42.0;
/// Number of turns of each coordination; a turn takes at least a second.
const TURNS: usize = 4;
const TURN_SECONDS_LEAST: f64 = 1.0;

/// Transactions of one size, made by one number of clients, with each of the three coordinations.
pub(super) struct TransactionSize {
    pub(super) requests: usize,
    pub(super) clients: usize,
    pub(super) of: [Measurement; 3],
}

impl TransactionSize {
    /// Returns the gain in throughput against the other two coordinations, in percent.
    fn gains(&self) -> [f64; 2] {
        let [optimised, plain @ ..] = &self.of;
        [&plain[0], &plain[1]].map(|plain| (optimised.rate() / plain.rate() - 1.0) * 100.0)
    }

    /// Returns by how much the median time of a transaction is shorter than with each of the other two
    /// coordinations, in percent.
    fn spared(&self) -> [f64; 2] {
        let [optimised, plain @ ..] = &self.of;
        [&plain[0], &plain[1]].map(|plain| (1.0 - optimised.calls.p50_us / plain.calls.p50_us) * 100.0)
    }

    fn json(&self) -> Value {
        let [optimised, mixed, writes] = &self.of;
        let one = |it: &Measurement| {
            json!({
                "per_second": it.rate().round(), "p50_us": it.calls.p50_us, "processor_us": it.processor_us().round(),
            })
        };
        json!({
            "requests": self.requests, "clients": self.clients, "optimised": one(optimised), "read_write": one(mixed),
            "write_only": one(writes), "gain_percent": self.gains(), "response_spared_percent": self.spared(),
        })
    }
}

/// Measures all sizes with each number of clients. Also returns the number of changes that all transactions
/// made.
pub(super) fn rows(args: &Args, clients: &[usize]) -> Result<(Vec<TransactionSize>, u64)> {
    let args = Args { seconds: (args.seconds / TURNS as f64).max(TURN_SECONDS_LEAST), ..args.clone() };
    let mut stage = ServiceBench::start(&args, None)?;
    let mut rows = Vec::new();
    for (requests, writes) in SIZES {
        for &clients in clients {
            let mut of = [Mode::Optimised, Mode::ReadWrite, Mode::WriteOnly].map(|mode| (mode, Vec::new()));
            for _ in 0..TURNS {
                for (mode, turns) in &mut of {
                    let work = ServiceWork::Transactions(Transact { requests, writes, mode: *mode });
                    turns.push(stage.measure("transactions", work, 1, clients, 1)?);
                }
            }
            rows.push(TransactionSize {
                requests,
                clients,
                of: of.map(|(_, turns)| Measurement::of_turns(turns)),
            });
        }
    }
    stage.compare()?;
    ensure!(!rows.is_empty(), "at least one size of transactions was measured");
    Ok((rows, stage.written[2]))
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (rows, _) = rows(args, &CLIENTS)?;
    let verdict = verdicts(&rows);
    if args.json {
        let rows: Vec<Value> = rows.iter().map(TransactionSize::json).collect();
        let result = json!({
            "bench": "service", "transactions": rows, "seconds": args.seconds,
            "verdict": verdict.iter().map(|(_, words)| words).collect::<Vec<_>>(),
            "holds": verdict.iter().all(|(holds, _)| *holds),
        });
        println!("{result}");
    } else {
        for row in &rows {
            let [optimised, mixed, writes] = row.of.each_ref().map(Measurement::rate);
            let ([gain, gain_writes], [spared, spared_writes]) = (row.gains(), row.spared());
            let [own, mixed_own, writes_own] = row.of.each_ref().map(Measurement::processor_us);
            println!(
                "{} requests, {:>2} clients: {optimised:.0}, {mixed:.0}, {writes:.0} transactions/s: {gain:+.0} %, {gain_writes:+.0} %; \
                 response −{spared:.1} %, −{spared_writes:.1} %; {own:.0}, {mixed_own:.0}, {writes_own:.0} µs of the processors each",
                row.requests, row.clients
            );
        }
        verdict.iter().for_each(|(_, words)| println!("{words}"));
    }
    Ok(())
}

fn verdicts(rows: &[TransactionSize]) -> Vec<(bool, String)> {
    let mut verdicts = Vec::new();
    for ((requests, _), expected) in SIZES.into_iter().zip(RESPONSE) {
        let Some(alone) = rows.iter().find(|row| row.requests == requests && row.clients == 1) else {
            continue;
        };
        for (beside, (spared, least)) in
            ["read/write", "write-only"].into_iter().zip(alone.spared().into_iter().zip(expected))
        {
            let holds = spared >= least - RESPONSE_POINTS;
            let word = if holds { "holds" } else { "misses" };
            let words = format!(
                "{word}: a transaction of {requests} requests takes {spared:.1} % less time than a \
                 {beside} one; the limit is at least {least:.1} − {RESPONSE_POINTS:.0} %"
            );
            verdicts.push((holds, words));
        }
    }
    let gains = rows.iter().flat_map(TransactionSize::gains);
    let (least, most) =
        gains.fold((f64::MAX, f64::MIN), |(least, most), gain| (least.min(gain), most.max(gain)));
    let holds = least >= GAIN_LEAST;
    let word = if holds { "holds" } else { "misses" };
    let words = format!(
        "{word}: throughput is {least:+.0} % to {most:+.0} % compared with plain transactions; the limit \
         is at least {GAIN_LEAST:+.0} %"
    );
    verdicts.push((holds, words));
    verdicts
}
