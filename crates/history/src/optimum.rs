//! The fewest single operations without which a key is atomic: the measure of 004 without its rule that whole clusters go.
//!
//! A read may be taken out alone; a write takes its reads with it, which would else be of a value that nobody wrote. No efficient
//! method is known. Whatever set is right, it must hold one of the operations (four at most) that make a given conflict, so a search
//! branches on those, bounded by the best set found so far. That settles small histories, and says so when it does not.

use crate::history::{KeyHistory, NOTHING, Step, Verb};
use crate::zone::{Zone, Zones, worst};

/// The fewest operations to take out of a key with distinct writes so that the rest is atomic; `None` if that was not found
/// in `steps` branches.
///
/// # Panics
/// If the key does not [have distinct writes](KeyHistory::has_distinct_writes).
pub fn fewest_operations(key: &KeyHistory, steps: u64) -> Option<u64> {
    let orphans = Zones::of(key).orphans;
    let is_orphan = |step: &Step| orphans.iter().any(|zone| zone.value == step.value);
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
    /// Tries all ways to mend what is left, `removed` operations being gone.
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

    /// The operations one of which must go because of some violation that is left.
    fn culprits(&self) -> Vec<usize> {
        let left = || self.key.steps.iter().zip(&self.gone).filter(|(_, gone)| !**gone).map(|(step, _)| step);
        let Zones { written, .. } = Zones::of_steps(self.key, left());
        let find = |zone: &Zone, which: &dyn Fn(&Step) -> bool| {
            let found = |index: &usize| {
                let step = &self.key.steps[*index];
                !self.gone[*index] && step.value == zone.value && which(step)
            };
            (0..self.key.len()).find(found)
        };
        let mut culprits: Vec<usize> = Vec::new();
        if let Some(zone) = written.iter().find(|zone| zone.future() > 0) {
            // The read goes in any case: alone, or with its write.
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

    /// Takes out an operation, and with a write its reads; returns what was taken.
    fn take_out(&mut self, index: usize) -> Vec<usize> {
        let Step { verb, value, .. } = self.key.steps[index];
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
