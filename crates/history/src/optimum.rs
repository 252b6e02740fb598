//! The smallest number of single operations without which a key is atomic. 004 removes only whole clusters;
//! this measure may remove single operations.
//!
//! A read may be removed alone. Removing a write also removes the reads of its value, because these would
//! otherwise return a value that nobody wrote. No efficient method is known. Any solution must remove one of
//! the at most four operations that cause a given conflict. The search therefore branches on these
//! operations, bounded by the best solution so far. The search settles small histories, and reports if it
//! runs out of steps.

use crate::history::{KeyHistory, KeyStep, NOTHING, Verb};
use crate::zone::{Zone, Zones, worst};

/// Returns the smallest number of operations whose removal makes a key with distinct writes atomic. Returns
/// `None` if `steps` branches did not suffice.
///
/// # Panics
/// If the key does not [have distinct writes](KeyHistory::has_distinct_writes).
pub fn fewest_operations(key: &KeyHistory, steps: u64) -> Option<u64> {
    let orphans = Zones::of(key).orphans;
    let is_orphan = |step: &KeyStep| orphans.iter().any(|zone| zone.value == step.value);
    let gone: Vec<bool> = key.steps.iter().map(is_orphan).collect();
    let removed = gone.iter().filter(|gone| **gone).count() as u64;
    let mut removal = Removal { key, gone, best: u64::MAX, steps };
    removal.branch(removed);
    (removal.steps > 0).then_some(removal.best)
}

struct Removal<'a> {
    key: &'a KeyHistory,
    gone: Vec<bool>,
    best: u64,
    steps: u64,
}

impl Removal<'_> {
    /// Tries all ways to resolve the remaining conflicts, after `removed` operations were removed.
    fn branch(&mut self, removed: u64) {
        self.steps = self.steps.saturating_sub(1);
        if self.steps == 0 || removed >= self.best {
            return;
        }
        let culprits = self.culprits();
        if culprits.is_empty() {
            self.best = removed;
            return;
        }
        for culprit in culprits {
            let taken = self.take_out(culprit);
            self.branch(removed + taken.len() as u64);
            taken.into_iter().for_each(|index| self.gone[index] = false);
        }
    }

    /// Returns operations of which one must be removed, because they cause the same violation.
    fn culprits(&self) -> Vec<usize> {
        let left = || self.key.steps.iter().zip(&self.gone).filter(|(_, gone)| !**gone).map(|(step, _)| step);
        let Zones { written, .. } = Zones::of_steps(self.key, left());
        let find = |zone: &Zone, which: &dyn Fn(&KeyStep) -> bool| {
            let found = |index: &usize| {
                let step = &self.key.steps[*index];
                !self.gone[*index] && step.value == zone.value && which(step)
            };
            (0..self.key.len()).find(found)
        };
        let mut culprits: Vec<usize> = Vec::new();
        if let Some(zone) = written.iter().find(|zone| zone.future_read_lead() > 0) {
            // The read must be removed in any case, alone or together with its write.
            culprits
                .extend(find(zone, &|step| step.verb == Verb::Read && step.finish == zone.read_finish_min));
        } else {
            let worst = worst(&written);
            let most = written.iter().zip(&worst).max_by_key(|(_, worst)| worst.gamma);
            if let Some((zone, worst)) = most.filter(|(_, worst)| worst.gamma > 0) {
                for zone in [zone, &written[worst.partner]] {
                    culprits.extend(find(zone, &|step| step.finish == zone.first_finish()));
                    culprits.extend(find(zone, &|step| step.start == zone.last_start()));
                }
            }
        }
        culprits.sort_unstable();
        culprits.dedup();
        culprits
    }

    /// Removes an operation, and with a write also its reads. Returns the removed operations.
    fn take_out(&mut self, index: usize) -> Vec<usize> {
        let KeyStep { verb, value, .. } = self.key.steps[index];
        assert!(verb == Verb::Read || value != NOTHING, "the initial value is not written by an operation");
        let goes = |other: &usize| match verb {
            Verb::Write => self.key.steps[*other].value == value,
            _ => *other == index,
        };
        let taken: Vec<usize> =
            (0..self.key.len()).filter(|other| !self.gone[*other] && goes(other)).collect();
        taken.iter().for_each(|index| self.gone[*index] = true);
        taken
    }
}
