//! Verdicts on writes that can fail and span ranges (S15).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Range;
use crate::ecast::Position;

/// How many decisions are remembered for those who come late.
const SETTLED_MAX: usize = 65_536;

/// What was decided on a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is favourable everywhere.
    Publish,
    /// It failed somewhere, for this reason.
    Void(Bytes),
}

/// Verdicts that have arrived, and decisions that were taken.
#[derive(Default)]
pub(super) struct Verdicts {
    open: BTreeMap<Position, Open>,
    settled: BTreeMap<Position, Decision>,
}

#[derive(Default)]
struct Open {
    favourable: Vec<Range>,
    failure: Option<Bytes>,
}

impl Verdicts {
    /// Notes a verdict, our own or another's.
    pub(super) fn add(&mut self, at: Position, ranges: &[Range], failure: Option<Bytes>) {
        if self.settled.contains_key(&at) {
            return;
        }
        let open = self.open.entry(at).or_default();
        match failure {
            Some(failure) => {
                // Any reason will do; the least one is the same whoever asks.
                open.failure = Some(open.failure.take().map_or(failure.clone(), |known| known.min(failure)));
            }
            None => open.favourable.extend_from_slice(ranges),
        }
    }

    /// Decides on the write at `at`, which concerns `ranges`, if what is known suffices.
    pub(super) fn decide(&mut self, at: Position, ranges: &[Range]) -> Option<Decision> {
        let open = self.open.get(&at)?;
        let decision = match &open.failure {
            Some(failure) => Decision::Void(failure.clone()),
            None if ranges.iter().all(|range| covers(&open.favourable, *range)) => Decision::Publish,
            None => return None,
        };
        self.open.remove(&at);
        self.settled.insert(at, decision.clone());
        if self.settled.len() > SETTLED_MAX {
            self.settled.pop_first();
        }
        // Verdicts below are on writes that were settled without them.
        self.open = self.open.split_off(&at);
        Some(decision)
    }

    /// What can be told about the write at `at`.
    pub(super) fn known(&self, at: Position) -> Option<(Vec<Range>, Option<Bytes>)> {
        match self.settled.get(&at) {
            Some(Decision::Publish) => Some((vec![Range::ALL], None)),
            Some(Decision::Void(failure)) => Some((vec![Range::ALL], Some(failure.clone()))),
            None => self.open.get(&at).map(|open| (open.favourable.clone(), open.failure.clone())),
        }
    }
}

/// Whether `parts` together contain every key of `whole`.
pub(super) fn covers(parts: &[Range], whole: Range) -> bool {
    let mut parts: Vec<Range> = parts.iter().filter_map(|part| part.intersect(whole)).collect();
    parts.sort_unstable();
    let mut next = whole.low;
    for part in parts {
        if part.low > next {
            return false;
        }
        if part.high >= whole.high {
            return true;
        }
        next = next.max(part.high + 1);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_whole_only_without_gaps() {
        let range = |low, high| Range { low, high };
        assert!(covers(&[range(5, u64::MAX), range(0, 4)], Range::ALL));
        assert!(!covers(&[range(6, u64::MAX), range(0, 4)], Range::ALL));
        assert!(covers(&[range(0, 9), range(3, 12)], range(1, 12)));
        assert!(!covers(&[range(0, 9)], range(1, 10)));
        assert!(!covers(&[], range(7, 7)));
    }

    #[test]
    fn one_failure_voids_whatever_the_others_say() {
        let mut verdicts = Verdicts::default();
        let at = Position(3);
        verdicts.add(at, &[Range { low: 0, high: 9 }], None);
        assert_eq!(verdicts.decide(at, &[Range { low: 0, high: 19 }]), None);
        verdicts.add(at, &[Range { low: 10, high: 19 }], Some(Bytes::from_static(b"22012")));
        let void = Decision::Void(Bytes::from_static(b"22012"));
        assert_eq!(verdicts.decide(at, &[Range { low: 0, high: 19 }]), Some(void));
        assert_eq!(verdicts.known(at), Some((vec![Range::ALL], Some(Bytes::from_static(b"22012")))));
    }
}
