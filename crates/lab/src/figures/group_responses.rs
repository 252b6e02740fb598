//! 000, figure 8: the wait of an end user behind a series of updates.

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

/// The experiment of figure 8 of the paper 000.
pub(super) struct Responses;

const CLAIMS: &[Claim] = &[
    Claim {
        says: "a series of Sends with a Flush is faster than a series of SafeSends with φ = 1",
        value: "one_to_flush",
        compared: Compared::Above(1.0),
    },
    Claim {
        says: "a series of Sends with a Flush is faster than a series of SafeSends with φ = 3",
        value: "three_to_flush",
        compared: Compared::Above(1.0),
    },
    Claim {
        says: "a series of Sends with a Flush is faster than a series of SafeSends with φ = N/2",
        value: "half_to_flush",
        compared: Compared::Above(1.0),
    },
    Claim {
        says: "a series of Sends with a Flush is faster than a series of SafeSends with φ = N",
        value: "all_to_flush",
        compared: Compared::Above(1.0),
    },
];

impl Figure for Responses {
    fn id(&self) -> &'static str {
        "000/figure-8"
    }

    fn title(&self) -> &'static str {
        "Delay before an end user is answered"
    }

    fn section(&self) -> &'static str {
        "§9"
    }

    fn method(&self) -> &'static str {
        "Each member is a process, and all processes share one machine. The lab sends up to ten series of \
         twenty updates of 100 bytes; the updates of a series are sent at once. A measurement ends when \
         the end user may be answered: all updates are flushed, or each update is safe. Safe sends that \
         are under way together travel in packs, and no safe send waits for another one. The means of the \
         largest group decide the claims."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn panels(&self) -> &'static [Panel] {
        super::group::PANELS
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let mut curves = ["Send and Flush", "φ = 1", "φ = 3", "φ = N/2", "φ = N"].map(Curve::new);
        let mut bench = GroupBench::begin(1)?;
        for size in SIZES {
            bench.grow(size)?;
            let safe = acceptors(size).map(SendStrength::Safe);
            for (curve, verb) in curves.iter_mut().zip([SendStrength::Soft].into_iter().chain(safe)) {
                curve.points.push((size, bench.responses(verb, setting.phase_seconds)?));
            }
        }
        let [flush, one, three, half, all] = curves.each_ref().map(Curve::of_largest);
        let values = [
            ("one_to_flush", one / flush),
            ("three_to_flush", three / flush),
            ("half_to_flush", half / flush),
            ("all_to_flush", all / flush),
        ];
        Ok(record(self, setting, &values, &curves, bench.sent))
    }
}
