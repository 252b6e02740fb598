//! 003, figures VI.6 and VI.7: the same calls over wide areas, simulated with the delays between the source's
//! sites.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, anyhow};
use quorate_sim::latency::{self, Delays};

use super::figure::{Figure, Panel};
use crate::{
    Setting,
    claim::{Claim, Compared},
    record::Record,
};

/// Clients in Berkeley, replicas in Princeton.
pub(super) struct Princeton;

/// Clients in Berkeley and Oregon, the leader in Illinois, the other replicas in Utah and Texas.
pub(super) struct Wide;

const CLAIMS_OF_PRINCETON: &[Claim] = &[
    Claim {
        says: "from Berkeley to Princeton a read takes at most 1.01 times as long as without replicas",
        value: "read_to_original",
        compared: Compared::AtMost("read_to_original"),
    },
    Claim {
        says: "from Berkeley to Princeton a write takes at most 1.014 times as long as without replicas",
        value: "write_to_original",
        compared: Compared::AtMost("write_to_original"),
    },
];

const CLAIMS_OF_WIDE: &[Claim] = &[
    Claim {
        says: "with replicas at three sites a read takes 7 % longer than without replicas",
        value: "read_to_original",
        compared: Compared::AtMost("read_to_original"),
    },
    Claim {
        says: "with replicas at three sites a write takes 51 % longer than without replicas",
        value: "write_to_original",
        compared: Compared::AtMost("write_to_original"),
    },
];

impl Figure for Princeton {
    fn id(&self) -> &'static str {
        "003/figure-VI-6"
    }

    fn title(&self) -> &'static str {
        "Throughput of a replicated service from Berkeley to Princeton"
    }

    fn section(&self) -> &'static str {
        "§VI.C.1"
    }

    fn method(&self) -> &'static str {
        "Replicas and clients run in the simulator, with constant delays: 45.925 ms between a client and a \
         replica, which is half of the time of the source's original request, and 0.5 ms between two \
         replicas, an estimate of a site's network. Each client waits for one call, so the throughput is \
         the number of clients divided by the time of a call: nothing else limits the throughput."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS_OF_PRINCETON
    }

    fn panels(&self) -> &'static [Panel] {
        PANELS
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let far = Duration::from_micros(45_925);
        let near = Duration::from_micros(500);
        played(self, setting, Delays { client: far, follower: far, replica: near, execute: Duration::ZERO })
    }
}

impl Figure for Wide {
    fn id(&self) -> &'static str {
        "003/figure-VI-7"
    }

    fn title(&self) -> &'static str {
        "Throughput of a service that is replicated over a wide area"
    }

    fn section(&self) -> &'static str {
        "§VI.C.1"
    }

    fn method(&self) -> &'static str {
        "The method is that of figure VI.6, with these delays: 35.41 ms between a client and the leader, \
         which is half of the time of the source's original request; 17.955 ms between two replicas, which \
         is a quarter of the additional time of the source's writes; 14 ms between a client and a \
         follower, an estimate of Berkeley to Utah. So the time of writes is an input of the experiment, \
         and only the time of reads is a result."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS_OF_WIDE
    }

    fn panels(&self) -> &'static [Panel] {
        PANELS
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let [client, follower, replica] = [35_410, 14_000, 17_955].map(Duration::from_micros);
        played(self, setting, Delays { client, follower, replica, execute: Duration::ZERO })
    }
}

const PANELS: &[Panel] = &[Panel::curves("clients", "calls a second")];
const CLIENTS: [u32; 5] = [1, 2, 4, 8, 16];

fn played(figure: &dyn Figure, setting: &Setting, delays: Delays) -> Result<Record> {
    let calls = latency::calls(delays).map_err(|violation| anyhow!("{violation}"))?;
    let took = |name: &str| {
        let call = calls.iter().find(|call| call.name == name).expect("every kind of call is simulated");
        call.measured.as_secs_f64()
    };
    let (original, read, write) = (took("original"), took("read, told"), took("write"));
    let values = [
        ("original_ms", original * 1e3),
        ("read_ms", read * 1e3),
        ("write_ms", write * 1e3),
        ("read_to_original", read / original),
        ("write_to_original", write / original),
    ];
    let curve = |took: f64| CLIENTS.map(|clients| (f64::from(clients), f64::from(clients) / took)).to_vec();
    let series = [("original", original), ("reads", read), ("writes", write)];
    Ok(Record {
        values: values.map(|(name, value)| (name.to_owned(), value)).into(),
        series: series.map(|(name, took)| (name.to_owned(), curve(took))).into(),
        setting: BTreeMap::from([
            (String::from("client_ms"), delays.client.as_secs_f64() * 1e3),
            (String::from("follower_ms"), delays.follower.as_secs_f64() * 1e3),
            (String::from("replica_ms"), delays.replica.as_secs_f64() * 1e3),
        ]),
        ..Record::of_phases(figure.id(), setting)
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{Running, claim::Verdict, source};

    /// Delays are constant, so the results of these figures are known.
    #[test]
    fn claims_over_wide_areas_hold() {
        let setting = Setting {
            program: PathBuf::new(),
            phase_seconds: 1.0,
            clients: 1,
            running: Running::default(),
            rate: None,
        };
        for figure in [&Princeton as &dyn Figure, &Wide] {
            let record = figure.run(&setting).unwrap();
            let source = source::values(figure.id()).unwrap();
            for claim in figure.claims() {
                let verdict = claim.judge(&source, std::slice::from_ref(&record)).verdict;
                assert_eq!(verdict, Verdict::Matched, "{}: {}", figure.id(), claim.says);
            }
        }
    }
}
