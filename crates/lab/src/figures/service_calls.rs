//! 003, figures VI.4 and VI.5: reads and writes compared with an unreplicated service, on one site.

use std::collections::BTreeMap;

use anyhow::Result;

use super::figure::{Figure, Panel};
use crate::{
    Setting,
    bench::service_source::{self, Calls, Point},
    claim::{Claim, Compared},
    record::{Record, RowAudit},
};

/// Figure VI.4.
pub(super) struct FewClients;

/// Figure VI.5.
pub(super) struct ManyClients;

const FEW: [usize; 5] = [1, 2, 4, 8, 16];
const MANY: [usize; 5] = [8, 16, 32, 64, 128];

const CLAIMS_OF_FEW: &[Claim] = &[
    Claim {
        says: "with X-Paxos a read takes 22 % less time than a write",
        value: "read_to_write",
        compared: Compared::AtMost("read_to_write"),
    },
    Claim {
        says: "the throughput of reads is at least 13 % higher than that of writes",
        value: "reads_to_writes",
        compared: Compared::AtLeast("reads_to_writes", 0.0),
    },
    Claim {
        says: "a request to a service without replication takes 0.181 ms",
        value: "original_ms",
        compared: Compared::AtMost("original_ms"),
    },
    Claim {
        says: "a read of a replicated service takes 0.263 ms",
        value: "read_ms",
        compared: Compared::AtMost("read_ms"),
    },
    Claim {
        says: "a write to a replicated service takes 0.338 ms",
        value: "write_ms",
        compared: Compared::AtMost("write_ms"),
    },
];

const CLAIMS_OF_MANY: &[Claim] = &[
    Claim {
        says: "the throughput of writes grows with the number of clients up to 8 clients or more",
        value: "writes_peak_clients",
        compared: Compared::AtLeast("writes_peak_clients", 0.0),
    },
    Claim {
        says: "the throughput of reads grows with the number of clients up to 16 clients or more",
        value: "reads_peak_clients",
        compared: Compared::AtLeast("reads_peak_clients", 0.0),
    },
];

impl Figure for FewClients {
    fn id(&self) -> &'static str {
        "003/figure-VI-4"
    }

    fn title(&self) -> &'static str {
        "Throughput of a replicated service on one site"
    }

    fn section(&self) -> &'static str {
        "§VI.C.1"
    }

    fn method(&self) -> &'static str {
        "Three replicas are processes; an original request is a write to a set of one replica. Each of 1 \
         to 16 clients has one call of 100 bytes under way. All processes share one machine (the source \
         has eleven), and all clients share one process. A client sends a call to the leader, and a read \
         to all replicas if there are few clients."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS_OF_FEW
    }

    fn panels(&self) -> &'static [Panel] {
        const { &[Panel::curves("clients", "calls a second")] }
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let calls = service_source::calls(&FEW, setting.phase_seconds)?;
        let ratios =
            calls.reads.iter().zip(&calls.writes).map(|(read, write)| read.per_second / write.per_second);
        let alone = |points: &[Point]| points[0].mean_ms();
        let values = [
            ("original_ms", alone(&calls.original)),
            ("read_ms", alone(&calls.reads)),
            ("write_ms", alone(&calls.writes)),
            ("read_to_write", alone(&calls.reads) / alone(&calls.writes)),
            ("reads_to_writes", ratios.fold(f64::MAX, f64::min)),
        ];
        Ok(record(self, setting, &values, &calls))
    }
}

impl Figure for ManyClients {
    fn id(&self) -> &'static str {
        "003/figure-VI-5"
    }

    fn title(&self) -> &'static str {
        "Throughput of a replicated service with more clients"
    }

    fn section(&self) -> &'static str {
        "§VI.C.1"
    }

    fn method(&self) -> &'static str {
        "The method is that of figure VI.4, with 8 to 128 clients. The source's throughput falls beyond 32 \
         writing and 64 reading clients."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS_OF_MANY
    }

    fn panels(&self) -> &'static [Panel] {
        const { &[Panel::curves("clients", "calls a second")] }
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let calls = service_source::calls(&MANY, setting.phase_seconds)?;
        let peak = |points: &[Point]| {
            let best = points.iter().max_by(|a, b| a.per_second.total_cmp(&b.per_second));
            best.map_or(0.0, |best| best.clients as f64)
        };
        let values =
            [("reads_peak_clients", peak(&calls.reads)), ("writes_peak_clients", peak(&calls.writes))];
        Ok(record(self, setting, &values, &calls))
    }
}

fn record(figure: &dyn Figure, setting: &Setting, values: &[(&str, f64)], calls: &Calls) -> Record {
    let series = [("original", &calls.original), ("reads", &calls.reads), ("writes", &calls.writes)];
    Record {
        values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        series: series.map(|(name, points)| (name.to_owned(), curve(points))).into(),
        account: RowAudit { acknowledged: calls.written, ..RowAudit::default() },
        ..Record::of_phases(figure.id(), setting)
    }
}

/// Returns the rates over the numbers of clients.
pub(super) fn curve(points: &[Point]) -> Vec<(f64, f64)> {
    points.iter().map(|point| (point.clients as f64, point.per_second)).collect()
}

impl Record {
    /// Creates a record of a figure that sets the phase's duration, and perhaps the store and the rate.
    pub(super) fn of_phases(figure: &str, setting: &Setting) -> Record {
        let phase = setting.phase_seconds;
        let mut set = BTreeMap::from([(String::from("phase_seconds"), phase)]);
        let mut command = format!("quorate lab run {figure} --phase {phase}");
        if let Some(rate) = setting.rate {
            set.insert(String::from("rate"), rate);
            command.push_str(&format!(" --rate {rate}"));
        }
        let mut record = Record { setting: set, ..Record::new(figure, command) };
        if let Some(store) = &setting.running.store {
            record.store = store.name().to_owned();
            record.command.push_str(&format!(" --store {}://…", record.store));
        }
        record
    }
}
