//! 003, table VI.1 and figure VI.8: the time that T-Paxos saves transactions.

use anyhow::Result;

use super::{
    figure::{Figure, Panel},
    service_calls::curve,
};
use crate::{
    Setting,
    bench::service_source::{self, Point, Transactions},
    claim::{Claim, Compared},
    record::{Record, RowAudit},
};

/// Table VI.1.
pub(super) struct Responses;

/// Figure VI.8.
pub(super) struct Rates;

const CLIENTS: [usize; 5] = [1, 2, 4, 8, 16];

/// Creates a claim whose value has the same name as the source's.
const fn more(says: &'static str, value: &'static str) -> Claim {
    Claim { says, value, compared: Compared::AtLeast(value, 0.0) }
}

const CLAIMS_OF_RESPONSES: &[Claim] = &[
    more(
        "a transaction of 3 requests takes 28 % less time with T-Paxos than a read/write transaction",
        "spared_3_read_write",
    ),
    more(
        "a transaction of 3 requests takes 34 % less time with T-Paxos than a write-only transaction",
        "spared_3_write_only",
    ),
    more(
        "a transaction of 5 requests takes 31 % less time with T-Paxos than a read/write transaction",
        "spared_5_read_write",
    ),
    more(
        "a transaction of 5 requests takes 39 % less time with T-Paxos than a write-only transaction",
        "spared_5_write_only",
    ),
    Claim {
        says: "a transaction of 3 requests takes 0.85 ms with T-Paxos",
        value: "optimised_3_ms",
        compared: Compared::AtMost("optimised_3_ms"),
    },
    Claim {
        says: "a transaction of 5 requests takes 1.23 ms with T-Paxos",
        value: "optimised_5_ms",
        compared: Compared::AtMost("optimised_5_ms"),
    },
];

const CLAIMS_OF_RATES: &[Claim] = &[
    more(
        "the throughput of transactions of 3 requests is at least 42 % higher with T-Paxos than with \
         read/write transactions",
        "gain_3_read_write",
    ),
    more(
        "the throughput of transactions of 3 requests is at least 52 % higher with T-Paxos than with \
         write-only transactions",
        "gain_3_write_only",
    ),
    more(
        "the throughput of transactions of 5 requests is at least 53 % higher with T-Paxos than with \
         read/write transactions",
        "gain_5_read_write",
    ),
    more(
        "the throughput of transactions of 5 requests is at least 69 % higher with T-Paxos than with \
         write-only transactions",
        "gain_5_write_only",
    ),
];

impl Figure for Responses {
    fn id(&self) -> &'static str {
        "003/table-VI-1"
    }

    fn title(&self) -> &'static str {
        "Response times of transactions"
    }

    fn section(&self) -> &'static str {
        "§VI.C.2"
    }

    fn method(&self) -> &'static str {
        METHOD
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS_OF_RESPONSES
    }

    fn panels(&self) -> &'static [Panel] {
        const { &[Panel::curves("requests of a transaction", "ms")] }
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let (sizes, written) = service_source::transactions(&[1], setting.phase_seconds)?;
        let mut record = Record {
            account: RowAudit { acknowledged: written, ..RowAudit::default() },
            ..Record::of_phases(self.id(), setting)
        };
        for size in &sizes {
            let took = |points: &[Point]| points[0].mean_ms();
            let optimised = took(&size.optimised);
            let mut put = |name: String, value| record.values.insert(name, value);
            put(format!("optimised_{}_ms", size.requests), optimised);
            for (name, points) in ways(size) {
                put(format!("{name}_{}_ms", size.requests), took(points));
                put(format!("spared_{}_{name}", size.requests), 1.0 - optimised / took(points));
                let point = (size.requests as f64, took(points));
                record.series.entry(name.to_owned()).or_default().push(point);
            }
            let point = (size.requests as f64, optimised);
            record.series.entry(String::from("optimised")).or_default().push(point);
        }
        Ok(record)
    }
}

impl Figure for Rates {
    fn id(&self) -> &'static str {
        "003/figure-VI-8"
    }

    fn title(&self) -> &'static str {
        "Throughput of transactions"
    }

    fn section(&self) -> &'static str {
        "§VI.C.2"
    }

    fn method(&self) -> &'static str {
        METHOD
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS_OF_RATES
    }

    fn panels(&self) -> &'static [Panel] {
        const { &[Panel::curves("clients", "transactions a second")] }
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let (sizes, written) = service_source::transactions(&CLIENTS, setting.phase_seconds)?;
        let mut record = Record {
            account: RowAudit { acknowledged: written, ..RowAudit::default() },
            ..Record::of_phases(self.id(), setting)
        };
        for size in &sizes {
            let requests = size.requests;
            for (name, points) in ways(size) {
                let gains = size.optimised.iter().zip(points);
                let gains = gains.map(|(optimised, plain)| optimised.per_second / plain.per_second - 1.0);
                record.values.insert(format!("gain_{requests}_{name}"), gains.fold(f64::MAX, f64::min));
                record.series.insert(format!("{name}, {requests} requests"), curve(points));
            }
            record.series.insert(format!("optimised, {requests} requests"), curve(&size.optimised));
        }
        Ok(record)
    }
}

/// Returns the kinds of transaction with which T-Paxos is compared.
fn ways(size: &Transactions) -> [(&'static str, &[Point]); 2] {
    [("read_write", &size.read_write), ("write_only", &size.write_only)]
}

const METHOD: &str = "Three replicas are processes on one machine. Each client has one transaction under \
    way: three requests, one of which writes, or five requests, two of which write. Each transaction \
    touches keys of its own. In optimised transactions (T-Paxos) the replicas agree on the commit alone. \
    In read/write transactions each request is a separate call, and the commit is one more write. \
    Write-only transactions are the same, but every request writes.";
