//! Measurements made in the source's way (003 §VI.C): clients that each have one call or transaction in
//! flight.
//!
//! The source's clients are processes on eight machines. Here they are tasks of one process, because
//! everything shares one machine.

use anyhow::Result;

use super::{
    args::Args,
    hosts::{REPLICAS, ServiceBench},
    measurement::Measurement,
    spec::ServiceWork,
    transactions,
};

/// The rate of calls or transactions with this number of clients.
pub(crate) struct Point {
    pub(crate) clients: usize,
    /// Number of calls or transactions that ended per second, of all clients together.
    pub(crate) per_second: f64,
}

impl Point {
    fn new(clients: usize, measured: &Measurement) -> Point {
        Point { clients, per_second: measured.rate() }
    }

    /// Returns the mean time of a call, in milliseconds: its client does nothing else.
    pub(crate) fn mean_ms(&self) -> f64 {
        self.clients as f64 * 1e3 / self.per_second
    }
}

/// The rates of calls by kind, one point for each number of clients.
pub(crate) struct Calls {
    /// Calls to a set of one replica.
    pub(crate) original: Vec<Point>,
    pub(crate) reads: Vec<Point>,
    pub(crate) writes: Vec<Point>,
    /// Number of answered writes, each of which all replicas have applied once.
    pub(crate) written: u64,
}

/// Measures calls with each of these numbers of clients, for this number of seconds each.
pub(crate) fn calls(clients: &[usize], seconds: f64) -> Result<Calls> {
    let args = Args::plain(seconds);
    let mut original = ServiceBench::begin(&args, None, (1, false))?;
    let mut of_one = Vec::new();
    for &count in clients {
        of_one.push(Point::new(count, &original.measure("original", ServiceWork::StoreWrites, 1, count, 1)?));
    }
    original.compare()?;
    let mut written = original.written[1];
    drop(original);
    let mut stage = ServiceBench::begin(&args, None, (REPLICAS, false))?;
    // Writes the values that the later reads find.
    stage.measure("first writes", ServiceWork::StoreWrites, 1, args.together, args.together)?;
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for &count in clients {
        reads.push(Point::new(count, &stage.measure("reads", ServiceWork::StoreReads, 1, count, 1)?));
        writes.push(Point::new(count, &stage.measure("writes", ServiceWork::StoreWrites, 1, count, 1)?));
    }
    stage.compare()?;
    written += stage.written[1];
    Ok(Calls { original: of_one, reads, writes, written })
}

/// Transactions of one size, by their coordination.
pub(crate) struct Transactions {
    pub(crate) requests: usize,
    pub(crate) optimised: Vec<Point>,
    pub(crate) read_write: Vec<Point>,
    pub(crate) write_only: Vec<Point>,
}

/// Measures transactions with each of these numbers of clients. Also returns the number of changes that all
/// transactions made.
pub(crate) fn transactions(clients: &[usize], seconds: f64) -> Result<(Vec<Transactions>, u64)> {
    let args = Args::plain(seconds);
    let (rows, written) = transactions::rows(&args, clients)?;
    let mut sizes: Vec<Transactions> = Vec::new();
    for row in rows {
        if sizes.last().is_none_or(|size| size.requests != row.requests) {
            let (optimised, read_write, write_only) = (Vec::new(), Vec::new(), Vec::new());
            sizes.push(Transactions { requests: row.requests, optimised, read_write, write_only });
        }
        let size = sizes.last_mut().expect("just there");
        let [optimised, read_write, write_only] = row.of.each_ref().map(|it| Point::new(row.clients, it));
        size.optimised.push(optimised);
        size.read_write.push(read_write);
        size.write_only.push(write_only);
    }
    Ok((sizes, written))
}
