//! The ghost log: the first process that learns a position fixes its value for ever.

use std::{collections::BTreeMap, fmt::Debug};

use quorate_world::Violation;

/// The values that processes have learned, and the last position that each life of a process has learned. The
/// ghost log numbers lives itself, because it does not trust the identity that a process claims.
#[derive(Debug)]
pub struct GhostLog<V> {
    entries: BTreeMap<u64, (V, u64)>,
    learners: BTreeMap<u64, u64>,
}

impl<V> Default for GhostLog<V> {
    fn default() -> Self {
        GhostLog { entries: BTreeMap::new(), learners: BTreeMap::new() }
    }
}

impl<V: PartialEq + Debug + Clone> GhostLog<V> {
    /// Records that the life `who` learned `value` at `position`. Agreement: the value equals that of the
    /// first learner. Order: each life learns one position after the other. Returns whether this was the
    /// first learning anywhere.
    pub fn learned(&mut self, who: u64, position: u64, value: V) -> Result<bool, Violation> {
        let last = self.learners.entry(who).or_insert(0);
        if position != *last + 1 {
            return Err(Violation::new(
                "order",
                format!(
                    "process life {who} learned position {position} directly after position {last}, not \
                     the next position"
                ),
            ));
        }
        *last = position;
        match self.entries.get(&position) {
            None => {
                let end = self.end();
                if position != end + 1 {
                    return Err(Violation::new(
                        "order",
                        format!(
                            "process life {who} was the first to learn position {position}, but no process \
                             has learned position {}",
                            end + 1
                        ),
                    ));
                }
                self.entries.insert(position, (value, who));
                Ok(true)
            }
            Some((fixed, _)) if *fixed == value => Ok(false),
            Some((fixed, by)) => Err(Violation::new(
                "agreement",
                format!(
                    "at position {position} process life {who} learned {value:?}, but process life {by} \
                     had learned {fixed:?} there"
                ),
            )),
        }
    }

    /// Records that `who` installed a snapshot that covers everything up to `position`.
    pub fn installed(&mut self, who: u64, position: u64) -> Result<(), Violation> {
        let last = self.learners.entry(who).or_insert(0);
        if position < *last {
            return Err(Violation::new(
                "order",
                format!(
                    "process life {who} had learned up to position {last}, and then installed an older \
                     snapshot of position {position}"
                ),
            ));
        }
        *last = position;
        if position > self.end() {
            return Err(Violation::new(
                "agreement",
                format!(
                    "process life {who} installed a snapshot of position {position}, which no process has \
                     learned"
                ),
            ));
        }
        Ok(())
    }

    /// Returns the value that is fixed at `position`.
    pub fn at(&self, position: u64) -> Option<&V> {
        self.entries.get(&position).map(|(value, _)| value)
    }

    /// Returns the last position that any life has learned; 0 before the first.
    pub fn end(&self) -> u64 {
        self.entries.last_key_value().map_or(0, |(&position, _)| position)
    }

    /// Returns the last position that `who` has learned.
    pub fn learned_through(&self, who: u64) -> u64 {
        self.learners.get(&who).copied().unwrap_or(0)
    }

    /// Returns all fixed values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.entries.iter().map(|(&position, (value, _))| (position, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_once_stays() {
        let mut ghost = GhostLog::default();
        assert_eq!(ghost.learned(1, 1, 'a'), Ok(true));
        assert_eq!(ghost.learned(2, 1, 'a'), Ok(false));
        assert_eq!(ghost.learned(3, 1, 'b').unwrap_err().rule, "agreement");
    }

    #[test]
    fn nobody_skips_repeats_or_invents() {
        let mut ghost = GhostLog::default();
        assert_eq!(ghost.learned(1, 2, 'b').unwrap_err().rule, "order");
        let mut ghost = GhostLog::default();
        ghost.learned(1, 1, 'a').unwrap();
        assert_eq!(ghost.learned(1, 1, 'a').unwrap_err().rule, "order");
        assert_eq!(ghost.installed(2, 5).unwrap_err().rule, "agreement");
        let mut ghost = GhostLog::default();
        ghost.learned(1, 1, 'a').unwrap();
        ghost.installed(2, 1).unwrap();
        assert_eq!(ghost.learned(2, 2, 'b'), Ok(true));
    }
}
