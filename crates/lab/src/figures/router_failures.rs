//! 002, figure 16: writes while routers are killed and replaced.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::figure::{Figure, Panel};
use crate::{
    Setting,
    claim::{Claim, Compared},
    cluster::Cluster,
    record::Record,
    writers::{Writers, Written},
};

pub(super) struct RouterFailures;

const STORAGE: usize = 4;
/// The time that a point of the curve covers.
const POINT: Duration = Duration::from_millis(100);

const CLAIMS: &[Claim] = &[
    Claim {
        says: "writes go on within 3 s after the lead router crashed",
        value: "silence_lead_s",
        compared: Compared::AtMost("silence_lead_s"),
    },
    Claim {
        says: "writes go on within 3 s after a following router crashed",
        value: "silence_follower_s",
        compared: Compared::AtMost("silence_follower_s"),
    },
    Claim {
        says: "with one router fewer the throughput is at least as high as before the crash",
        value: "degraded_to_before",
        compared: Compared::Above(1.0),
    },
    Claim {
        says: "once the crashed router is replaced, the throughput is the same as before the crash",
        value: "restored_to_before",
        compared: Compared::AtLeast("restored", 0.1),
    },
];

impl Figure for RouterFailures {
    fn id(&self) -> &'static str {
        "002/figure-16"
    }

    fn title(&self) -> &'static str {
        "Write throughput while routers fail"
    }

    fn section(&self) -> &'static str {
        "§7.8"
    }

    fn method(&self) -> &'static str {
        "Three routers, four storage processes (the source has 16), three replicas. Connections insert rows as fast as \
         they are acknowledged. The lead router is killed after one phase and replaced after two; a following router is \
         killed after three and replaced after four. A phase of the source takes 30 s. Every acknowledged row is looked \
         for afterwards."
    }

    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn panels(&self) -> &'static [Panel] {
        const { &[Panel::curves("seconds", "acknowledged writes a second")] }
    }

    fn run(&self, setting: &Setting) -> Result<Record> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut cluster = Cluster::start(setting.program.clone(), 3, STORAGE)?;
        let writers = Writers::start(&runtime, &cluster.sql().to_string(), setting.clients)?;
        // Connections, caches and the failure detector settle first.
        thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        let phase = Duration::from_secs_f64(setting.phase_seconds);
        let until =
            |phases: u32| thread::sleep((began + phase * phases).saturating_duration_since(Instant::now()));

        until(1);
        let lead = cluster.lead()?;
        let lead_killed = Instant::now();
        cluster.kill(&lead)?;
        until(2);
        let lead_replaced = Instant::now();
        cluster.replace(&lead, "following")?;
        until(3);
        let follower = cluster.follower()?;
        let follower_killed = Instant::now();
        cluster.kill(&follower)?;
        until(4);
        let follower_replaced = Instant::now();
        cluster.replace(&follower, "following")?;
        until(5);
        let ended = Instant::now();
        let written = runtime.block_on(writers.stop())?;

        let seconds = |instant: Instant| instant.saturating_duration_since(began).as_secs_f64();
        let before = written.rate(began, lead_killed);
        // The throughput is measured only from a quarter of the phase on, because the time just after a kill
        // does not show the throughput with one router less.
        let settled = |instant: Instant| instant + phase / 4;
        let degraded = written
            .rate(settled(lead_killed), lead_replaced)
            .min(written.rate(settled(follower_killed), follower_replaced));
        let restored = written
            .rate(settled(lead_replaced), follower_killed)
            .min(written.rate(settled(follower_replaced), ended));
        let values = [
            ("silence_lead_s", written.silence(lead_killed, lead_replaced)),
            ("silence_follower_s", written.silence(follower_killed, follower_replaced)),
            ("before_per_second", before),
            ("degraded_to_before", degraded / before),
            ("restored_to_before", restored / before),
        ];
        let marks = [
            (lead_killed, "lead killed"),
            (lead_replaced, "replaced"),
            (follower_killed, "follower killed"),
            (follower_replaced, "replaced"),
        ];
        let command = format!(
            "quorate lab run {} --phase {} --clients {}",
            self.id(),
            setting.phase_seconds,
            setting.clients
        );
        Ok(Record {
            setting: BTreeMap::from([
                (String::from("clients"), setting.clients as f64),
                (String::from("phase_seconds"), setting.phase_seconds),
            ]),
            values: values.map(|(name, value)| (name.to_owned(), value)).into(),
            series: BTreeMap::from([(String::from("writes"), written.curve(began, ended))]),
            marks: marks.map(|(instant, what)| (seconds(instant), what.to_owned())).into(),
            account: written.account,
            ..Record::new(self.id(), command)
        })
    }
}

impl Written {
    /// Returns the writes per second between two instants.
    fn rate(&self, from: Instant, to: Instant) -> f64 {
        let between = self.between(from, to).len() as f64;
        between / to.saturating_duration_since(from).as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Returns the longest time without an acknowledgement between two instants, in seconds.
    fn silence(&self, from: Instant, to: Instant) -> f64 {
        let instants = || std::iter::once(from).chain(self.between(from, to).iter().copied());
        let gaps = instants().zip(instants().skip(1).chain([to])).map(|(earlier, later)| later - earlier);
        gaps.max().unwrap_or_default().as_secs_f64()
    }

    fn between(&self, from: Instant, to: Instant) -> &[Instant] {
        let position = |instant: Instant| self.instants.partition_point(|it| *it < instant);
        &self.instants[position(from)..position(to)]
    }

    /// Returns writes per second, one point for each [`POINT`].
    fn curve(&self, from: Instant, to: Instant) -> Vec<(f64, f64)> {
        let points = (to - from).as_nanos() / POINT.as_nanos();
        let point = |index: u32| {
            let begins = from + POINT * index;
            ((POINT * index).as_secs_f64(), self.rate(begins, begins + POINT))
        };
        (0..points as u32).map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RowAudit;

    #[test]
    fn rates_and_silences_follow_the_instants_of_writes() {
        let began = Instant::now();
        let at = |millis: u64| began + Duration::from_millis(millis);
        let written =
            Written { instants: [10, 20, 30, 230, 240].map(at).into(), account: RowAudit::default() };
        assert_eq!(written.silence(at(0), at(250)), 0.2);
        assert_eq!(written.silence(at(25), at(250)), 0.2);
        assert_eq!(written.silence(at(35), at(100)), 0.065, "nothing came");
        assert_eq!(written.silence(at(235), at(600)), 0.36, "nothing comes any more");
        assert_eq!(written.rate(at(0), at(100)), 30.0);
        assert_eq!(written.curve(at(0), at(300)), [(0.0, 30.0), (0.1, 0.0), (0.2, 20.0)]);
    }
}
