//! 000, figure 9: groups of up to 800 members.

use anyhow::Result;
use quorate::group::{Phi, SendStrength};

use super::{
    figure::{Figure, Panel},
    group::{Curve, quantile, record},
};
use crate::{
    Setting,
    bench::group_source::GroupBench,
    claim::{Claim, Compared},
    record::Record,
};

/// The experiment of figure 9 of the paper 000.
pub(super) struct Large;

/// Members in each process.
const STACKED: usize = 20;
/// Numbers of processes. The source has 80 machines with ten members each.
const PROCESSES: [usize; 4] = [5, 10, 20, 40];

const CLAIMS: &[Claim] = &[
    Claim {
        says: "a Send to 800 members takes at most twice as long as a Send to 100 members",
        value: "send_few_to_800",
        compared: Compared::Above(0.5),
    },
    Claim {
        says: "a SafeSend with φ = 3 to 800 members often takes more than 100 ms",
        value: "safe_p95_ms",
        compared: Compared::AtMost("safe_p95_ms"),
    },
    Claim {
        says: "a SafeSend with φ = 3 to 800 members takes longer than a Send",
        value: "safe_to_send",
        compared: Compared::Above(1.0),
    },
];

impl Figure for Large {
    fn id(&self) -> &'static str {
        "000/figure-9"
    }

    fn title(&self) -> &'static str {
        "Send and SafeSend in very large groups"
    }

    fn section(&self) -> &'static str {
        "§9"
    }

    fn method(&self) -> &'static str {
        "A group has 100 to 800 members, twenty in each of 5 to 40 processes, which share one machine: 80 \
         processes with links to each other are too many for two cores. The lab makes up to ten runs of \
         twenty updates of 100 bytes, one after another, and waits until the last member has applied each \
         update. A SafeSend has φ = 3."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn panels(&self) -> &'static [Panel] {
        super::group::PANELS
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let mut curves = ["Send", "SafeSend, φ = 3"].map(Curve::new);
        let mut bench = GroupBench::begin(STACKED)?;
        for processes in PROCESSES {
            bench.grow(processes)?;
            for (curve, strength) in
                curves.iter_mut().zip([SendStrength::Soft, SendStrength::Safe(Phi::Count(3))])
            {
                let took = bench.deliveries(strength, setting.phase_seconds)?;
                curve.points.push((bench.members(), took));
            }
        }
        let [send, safe] = &curves;
        let (few, many) = send.ends();
        let largest = safe.points.last().map_or(&[][..], |(_, took)| &took[..]);
        let values = [
            ("send_few_to_800", few / many),
            ("safe_p95_ms", quantile(largest, 0.95)),
            ("safe_to_send", safe.of_largest() / many),
        ];
        Ok(record(self, setting, &values, &curves, bench.sent))
    }
}
