//! 000, figure 5: the cost of several members on each machine.

use anyhow::Result;
use quorate::group::SendStrength;

use super::{
    figure::{Figure, Panel},
    group::{Curve, record},
};
use crate::{
    Setting,
    bench::group_source::GroupBench,
    claim::{Claim, Compared},
    record::Record,
};

/// The experiment of figure 5 of the paper 000.
pub(super) struct Stacking;

const SIZES: [usize; 4] = [24, 36, 48, 60];
const STACKED: usize = 12;

const CLAIMS: &[Claim] = &[
    Claim {
        says: "in a group of 60 members, one on each machine, a Send is delivered within 2.21 ms",
        value: "send_alone_ms",
        compared: Compared::AtMost("send_alone_ms"),
    },
    Claim {
        says: "in a group of 60 members, twelve on each machine, a Send is delivered within 2.63 ms",
        value: "send_stacked_ms",
        compared: Compared::AtMost("send_stacked_ms"),
    },
    Claim {
        says: "a Send to twelve members on each machine takes at most 1.19 times as long as to one member \
            on each machine",
        value: "send_stacked_to_alone",
        compared: Compared::AtMost("send_stacked_to_alone"),
    },
    Claim {
        says: "all 60 members, one on each machine, reply to a query within 33.63 ms",
        value: "query_alone_ms",
        compared: Compared::AtMost("query_alone_ms"),
    },
    Claim {
        says: "all 60 members, twelve on each machine, reply to a query within 14.76 ms",
        value: "query_stacked_ms",
        compared: Compared::AtMost("query_stacked_ms"),
    },
    Claim {
        says: "sixty members reply to a query sooner with twelve on each machine than with one on each \
            machine",
        value: "query_alone_to_stacked",
        compared: Compared::Above(1.0),
    },
];

impl Figure for Stacking {
    fn id(&self) -> &'static str {
        "000/figure-5"
    }

    fn title(&self) -> &'static str {
        "Several members on each machine"
    }

    fn section(&self) -> &'static str {
        "§9"
    }

    fn method(&self) -> &'static str {
        "A process stands for a machine of the source, and all processes share one machine; twelve members \
         in a process belong to one node. The lab makes up to ten runs of twenty soft sends and of twenty \
         queries of all members, 100 bytes each, one after another. A send counts as delivered when the \
         last member has applied the update."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn panels(&self) -> &'static [Panel] {
        super::group::PANELS
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let mut curves = ["Send, 1", "Send, 12", "query of all, 1", "query of all, 12"].map(Curve::new);
        let mut sent = 0;
        for (of, each) in [1, STACKED].into_iter().enumerate() {
            let mut bench = GroupBench::begin(each)?;
            for size in SIZES {
                bench.grow(size / each)?;
                let took = bench.deliveries(SendStrength::Soft, setting.phase_seconds)?;
                curves[of].points.push((size, took));
                curves[of + 2].points.push((size, bench.queries(setting.phase_seconds)?));
            }
            sent += bench.sent;
        }
        let [send_alone, send_stacked, query_alone, query_stacked] = curves.each_ref().map(Curve::of_largest);
        let values = [
            ("send_alone_ms", send_alone),
            ("send_stacked_ms", send_stacked),
            ("send_stacked_to_alone", send_stacked / send_alone),
            ("query_alone_ms", query_alone),
            ("query_stacked_ms", query_stacked),
            ("query_alone_to_stacked", query_alone / query_stacked),
        ];
        Ok(record(self, setting, &values, &curves, sent))
    }
}
