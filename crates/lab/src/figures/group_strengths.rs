//! 000, figure 7: soft updates compared with safe ones that all members must have.

use anyhow::Result;
use quorate::group::SendStrength;

use super::{
    figure::{Figure, Panel},
    group::{Curve, SIZES, acceptors, record},
};
use crate::{
    Setting,
    bench::group_source::GroupBench,
    claim::{Claim, Compared},
    record::Record,
};

/// The experiment of figure 7 of the paper 000.
pub(super) struct Strengths;

const CLAIMS: &[Claim] = &[
    Claim {
        says: "a Send is delivered within 4 ms, however large the group",
        value: "send_ms",
        compared: Compared::AtMost("send_ms"),
    },
    Claim {
        says: "the longest Send takes 60 ms",
        value: "send_longest_ms",
        compared: Compared::AtMost("send_longest_ms"),
    },
    Claim {
        says: "a SafeSend with φ = N takes up to 50 ms",
        value: "safe_ms",
        compared: Compared::AtMost("safe_ms"),
    },
    Claim {
        says: "the longest SafeSend with φ = N takes 120 ms",
        value: "safe_longest_ms",
        compared: Compared::AtMost("safe_longest_ms"),
    },
    Claim {
        says: "a SafeSend with φ = N takes longer than a Send",
        value: "safe_to_send",
        compared: Compared::Above(1.0),
    },
];

impl Figure for Strengths {
    fn id(&self) -> &'static str {
        "000/figure-7"
    }

    fn title(&self) -> &'static str {
        "Delivery of a Send and of a SafeSend to all members"
    }

    fn section(&self) -> &'static str {
        "§9"
    }

    fn method(&self) -> &'static str {
        "As in figure 6, each member is a process, and all processes share one machine. The lab makes up \
         to ten runs of twenty updates of 100 bytes, one after another, and waits until the last member \
         has applied each update."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn panels(&self) -> &'static [Panel] {
        super::group::PANELS
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let mut curves = ["Send", "SafeSend, φ = N"].map(Curve::new);
        let mut bench = GroupBench::begin(1)?;
        for size in SIZES {
            bench.grow(size)?;
            let [.., all] = acceptors(size);
            for (curve, verb) in curves.iter_mut().zip([SendStrength::Soft, SendStrength::Safe(all)]) {
                curve.points.push((size, bench.deliveries(verb, setting.phase_seconds)?));
            }
        }
        let [send, safe] = &curves;
        let values = [
            ("send_ms", send.slowest()),
            ("send_longest_ms", send.longest()),
            ("safe_ms", safe.slowest()),
            ("safe_longest_ms", safe.longest()),
            ("safe_to_send", safe.of_largest() / send.of_largest()),
        ];
        Ok(record(self, setting, &values, &curves, bench.sent))
    }
}
