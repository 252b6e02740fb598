//! What must hold whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{Generation, ProcessId, rubberband::Config};

use super::{Process, Role, World};
use crate::cluster::{engine::Row, names::name};

impl World {
    /// Compares what a router has learned with what is known to be ordered.
    pub(super) fn compare(&mut self, id: ProcessId) {
        let process = self.processes.get_mut(&id).expect("it lives");
        let Role::Router(router) = &process.role else { return };
        if process.generation > self.generation {
            let Some(reformed) = router.status().reformed else { return };
            // What nobody who answered had is no part of the history any more.
            self.generation = process.generation;
            self.ghost.retain(|at, _| *at <= reformed.through);
        }
        if process.generation < self.generation {
            return;
        }
        for (at, ordered) in router.live_after(process.compared) {
            if ordered.is_hole() {
                self.ghost.remove(&at);
                continue;
            }
            let known = self.ghost.entry(at).or_insert_with(|| (ordered.id, ordered.body.clone()));
            assert_eq!(known.0, ordered.id, "{} has another message at {at}", name(id));
            assert!(ordered.is_stable() || known.1 == ordered.body, "{} has other bytes at {at}", name(id));
        }
        process.compared = router.position();
    }

    /// Every sender's messages were ordered as they were submitted, each once, without gaps.
    pub(crate) fn check_senders(&self) {
        let mut next: BTreeMap<ProcessId, u64> = BTreeMap::new();
        if self.generation > Generation::FIRST {
            // Positions and numbers may have holes; what is there is in order.
            for (id, _) in self.ghost.values() {
                let before = next.insert(id.sender, id.number);
                assert!(before.is_none_or(|before| before < id.number), "{} out of order", name(id.sender));
            }
            return;
        }
        for (expected, (at, (id, _))) in (1..).zip(&self.ghost) {
            assert_eq!(at.0, expected, "positions run without gaps");
            let number = next.entry(id.sender).or_insert(1);
            assert_eq!(id.number, *number, "{} at {at}", name(id.sender));
            *number += 1;
        }
    }

    /// The newest configuration that anybody has.
    pub(crate) fn config(&self) -> Option<&Config> {
        self.processes.values().filter_map(Process::config).max_by_key(|config| config.version)
    }

    /// Per segment what its complete replicas hold, which is the same.
    pub(crate) fn check_replicas(&self) -> Vec<Row> {
        let config = self.config().expect("somebody has a configuration");
        let mut all = Vec::new();
        for segment in config.segments() {
            let mut first: Option<(ProcessId, Vec<&Row>)> = None;
            for id in config.complete(segment) {
                let Some(Process { role: Role::Storage(_, engine), .. }) = self.processes.get(&id) else {
                    panic!("{} is active and not there", name(id));
                };
                let rows = engine.rows.iter();
                let rows = rows.filter(|row| row.range.intersect(segment.range) == Some(row.range));
                let rows: Vec<&Row> = rows.collect();
                assert!(rows.is_sorted_by_key(|row| row.at), "{} executed out of order", name(id));
                match &first {
                    None => first = Some((id, rows)),
                    Some((other, theirs)) => {
                        assert_eq!(*theirs, rows, "{} and {} differ in {segment:?}", name(*other), name(id));
                    }
                }
            }
            let (_, rows) = first.unwrap_or_else(|| panic!("nobody has {segment:?}"));
            all.extend(rows.into_iter().cloned());
        }
        let mut seen = BTreeSet::new();
        for row in &all {
            assert!(seen.insert((row.range, &row.operation)), "{row:?} took effect twice");
        }
        all
    }
}
