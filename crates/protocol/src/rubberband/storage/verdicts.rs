//! Verdicts on writes that can fail and span ranges (S15).
//!
//! Every range evaluates such a write at its position, and any live replica tells how it fared; the write is published when
//! all ranges are favourable, and voided everywhere otherwise.
//!
//! **When a verdict can come no more.** All replicas of a range may die before one of them told, and be declared lost by an
//! ordered message (S14). From then on nobody listens to them; but one of the survivors may have heard, and published.
//! So whoever still waits asks all that were concerned or replicate the range now, and each says what it knows, or that it
//! knows nothing as of what it has delivered. Once everyone alive has said so who has delivered the last departure, no one
//! knows and no one can learn: those who could have told are out at that position, for all alike. Then the write is
//! published in the ranges that live, all of which are favourable: a failure would have voided it at once. What it did in
//! the range that was lost is lost with that range. To void it instead would take back, in ranges that lost nothing, what a
//! replica that died had published and its client was told; one that published told the others first, but nobody waits
//! until they have heard.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{
        Range,
        placement::{covers, uncovered},
    },
};

/// How many decisions are remembered for those who come late.
const SETTLED_MAX: usize = 65_536;

/// The reason of a range that refuses a write because it knows the id as that of another statement: none. Answers that
/// tell why a write failed have bytes.
pub(super) const OTHER_STATEMENT: Bytes = Bytes::new();

/// The reason of a write that failed before, for a reason that is no longer known.
pub(super) const FORGOTTEN: Bytes = Bytes::from_static(b"?");

/// What was decided on a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is favourable everywhere.
    Publish,
    /// It failed somewhere, for this reason.
    Void(Bytes),
}

/// Verdicts that have arrived, and what can be told of writes that are settled here.
#[derive(Default)]
pub(super) struct Verdicts {
    open: BTreeMap<Position, Open>,
    settled: BTreeMap<Position, Told>,
}

/// A verdict: on which ranges, and why it failed, if it did.
pub(super) type Told = (Vec<Range>, Option<Bytes>);

#[derive(Default)]
struct Open {
    favourable: Vec<Range>,
    failure: Option<Bytes>,
    /// Who said that it knows no more, having delivered how much.
    unknowing: BTreeMap<ProcessId, Position>,
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
            // Only what is new: those who wait for long tell each other again and again.
            None => {
                for range in ranges {
                    let news = uncovered(&open.favourable, *range);
                    open.favourable.extend(news);
                }
            }
        }
    }

    /// `process`, which has delivered so much, knows nothing beyond what it told.
    pub(super) fn add_unknowing(&mut self, at: Position, process: ProcessId, through: Position) {
        if let Some(open) = self.open.get_mut(&at) {
            let known = open.unknowing.entry(process).or_default();
            *known = through.max(*known);
        }
    }

    /// Of `ranges`, what no verdict on the write at `at` speaks of.
    pub(super) fn missing(&self, at: Position, ranges: &[Range]) -> Vec<Range> {
        let favourable = self.open.get(&at).map_or(&[][..], |open| &open.favourable);
        ranges.iter().flat_map(|range| uncovered(favourable, *range)).collect()
    }

    /// Whether `process` said that it knows no more of the write at `at`, having delivered `since`.
    pub(super) fn is_unknowing(&self, at: Position, process: ProcessId, since: Position) -> bool {
        let open = self.open.get(&at);
        open.and_then(|open| open.unknowing.get(&process)).is_some_and(|through| *through >= since)
    }

    /// Decides on the write at `at`, which concerns `ranges`, if what is known suffices. Decisions on writes from `needed`
    /// on are kept, however many: somebody who imports will ask for them.
    pub(super) fn decide(
        &mut self,
        at: Position,
        ranges: &[Range],
        needed: Option<Position>,
    ) -> Option<Decision> {
        // A process that came back from its disk has read what was decided.
        if self.is_decided(at) {
            let (_, failure) = self.settled.get(&at)?;
            return Some(failure.clone().map_or(Decision::Publish, Decision::Void));
        }
        let open = self.open.get(&at)?;
        let decision = match &open.failure {
            Some(failure) => Decision::Void(failure.clone()),
            None if ranges.iter().all(|range| covers(&open.favourable, *range)) => Decision::Publish,
            None => return None,
        };
        let failure = match &decision {
            Decision::Publish => None,
            Decision::Void(failure) => Some(failure.clone()),
        };
        self.settle(at, (vec![Range::ALL], failure), needed);
        Some(decision)
    }

    /// The write at `at` is settled here: this is what can be told of it from now on.
    pub(super) fn settle(&mut self, at: Position, told: Told, needed: Option<Position>) {
        self.settled.insert(at, told);
        while self.settled.len() > SETTLED_MAX
            && let Some(first) = self.settled.first_entry()
            && needed.is_none_or(|needed| *first.key() < needed)
        {
            first.remove();
        }
        // Verdicts up to here are on writes that were settled without them.
        self.open = self.open.split_off(&Position(at.0 + 1));
    }

    /// Whether it is known here what all ranges make of the write at `at`.
    pub(super) fn is_decided(&self, at: Position) -> bool {
        self.settled.get(&at).is_some_and(|(known, _)| covers(known, Range::ALL))
    }

    /// What can be told of writes that are settled here, as bytes.
    pub(super) fn encode(&self) -> Bytes {
        postcard::to_stdvec(&self.settled).expect("our own types always serialise").into()
    }

    /// Takes in what [`Verdicts::encode`] wrote; `false` if it is none.
    pub(super) fn take_in(&mut self, section: &[u8]) -> bool {
        let Ok(settled) = postcard::from_bytes::<BTreeMap<Position, Told>>(section) else { return false };
        self.settled.extend(settled);
        true
    }

    /// What can be told about the write at `at`.
    pub(super) fn known(&self, at: Position) -> Option<Told> {
        match self.settled.get(&at) {
            Some(told) => Some(told.clone()),
            None => self.open.get(&at).map(|open| (open.favourable.clone(), open.failure.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Incarnation;

    #[test]
    fn one_failure_voids_whatever_the_others_say() {
        let mut verdicts = Verdicts::default();
        let at = Position(3);
        verdicts.add(at, &[Range { low: 0, high: 9 }], None);
        assert_eq!(verdicts.decide(at, &[Range { low: 0, high: 19 }], None), None);
        verdicts.add(at, &[Range { low: 10, high: 19 }], Some(Bytes::from_static(b"22012")));
        let void = Decision::Void(Bytes::from_static(b"22012"));
        assert_eq!(verdicts.decide(at, &[Range { low: 0, high: 19 }], None), Some(void));
        assert_eq!(verdicts.known(at), Some((vec![Range::ALL], Some(Bytes::from_static(b"22012")))));
    }

    #[test]
    fn what_an_import_may_ask_for_is_kept() {
        let mut verdicts = Verdicts::default();
        let decide = |verdicts: &mut Verdicts, at: u64, needed| {
            verdicts.add(Position(at), &[Range::ALL], None);
            assert_eq!(verdicts.decide(Position(at), &[Range::ALL], needed), Some(Decision::Publish));
        };
        for at in 1..=SETTLED_MAX as u64 + 10 {
            decide(&mut verdicts, at, Some(Position(5)));
        }
        assert_eq!(verdicts.known(Position(4)), None);
        assert!(verdicts.known(Position(5)).is_some(), "an import as of 5 may still ask for it");
        decide(&mut verdicts, 1_000_000, None);
        assert_eq!(verdicts.settled.len(), SETTLED_MAX);
    }

    #[test]
    fn unknowing_counts_from_a_departure_on() {
        let mut verdicts = Verdicts::default();
        let (at, other) = (Position(3), ProcessId { node: 1, incarnation: Incarnation(1) });
        verdicts.add(at, &[Range { low: 0, high: 9 }], None);
        assert_eq!(verdicts.missing(at, &[Range { low: 5, high: 19 }]), [Range { low: 10, high: 19 }]);
        verdicts.add(at, &[Range { low: 0, high: 9 }, Range { low: 3, high: 5 }], None);
        let known = Some((vec![Range { low: 0, high: 9 }], None));
        assert_eq!(verdicts.known(at), known, "what is told again adds nothing");
        verdicts.add_unknowing(at, other, Position(7));
        verdicts.add_unknowing(at, other, Position(6));
        assert!(verdicts.is_unknowing(at, other, Position(7)));
        assert!(!verdicts.is_unknowing(at, other, Position(8)), "what left at 8 may have told it since");
    }
}
