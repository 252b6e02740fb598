//! Verdicts on writes that can fail and span ranges (S15).
//!
//! Every range evaluates such a write at its position, and each live replica sends its verdict. The write is
//! published if the verdicts of all ranges are favourable, and voided everywhere otherwise.
//!
//! **When a verdict cannot come.** All replicas of a range may die before one of them sends its verdict. An
//! operator may then declare them lost by an ordered message (S14). From then on nobody accepts their
//! messages. But a survivor may have received the verdict and published the write. So a process that still
//! waits asks all replicas that the write concerned and all present replicas of the range. Each answers with
//! the verdicts it knows, or reports that it knows nothing, and the position up to which it has delivered.
//! Suppose every live process has reported, after it delivered the last departure, that it knows nothing.
//! Then nobody knows the verdict and nobody can learn it, because at that position all have excluded its
//! senders. The process publishes the write in the surviving ranges, which are all favourable, since a
//! failure would have voided it at once. The write's effect in the lost range is lost with the range. Voiding
//! the write instead could take back a write that a dead replica had published and answered, in ranges that
//! lost nothing. That replica sent its verdict first, but it did not wait until the other replicas received
//! it.
//!
//! **Kept decisions.** A process that comes back from its disk may have lost the decisions on its last
//! writes. It asks the other processes, and holds all later work until one of them answers. So a process
//! keeps the newest decisions, and the older decisions for which a member may still ask. Each verdict carries
//! the position through which its sender has decisions on disk. The *debt* to a member is the list of decided
//! writes that concern it and lie after that position. The debt ends when the member reports a later
//! position, or leaves.
//!
//! **Bounds.** The newest decisions are bounded in number and in bytes ([`VerdictLimits`]). At the bound of
//! bytes, the reasons of the oldest failures are dropped first. Such a write stays void, with an unknown
//! reason ([`FORGOTTEN`]). Then the oldest decisions are dropped. An owed decision outlives both bounds,
//! because a process could hold for ever without it. The decision takes [`DECISION_BYTES`], and loses its
//! reason if there is no room. Debts grow only while routers keep messages for the member. A range without a
//! complete replica refuses writes, so the debt to its last replica stops growing.
//!
//! **A removed process** is owed nothing: its debt ends with its membership. If it keeps its rows (`keeping`)
//! and still holds a write, it asks for the decision under its new id. The other processes answer if they
//! still keep that decision, or if their ranges still remember the write's reply. Suppose that they have
//! decided 65,536 later writes that span ranges, or 16 MiB of them, and forgot the reply, too. Then no
//! process can answer. The process cannot give the write up, because live replicas are concerned. So it holds
//! the write, and the rows that it keeps wait, until a super dismisses the process because other processes
//! have the rows, or an operator declares it lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{
        Range,
        range::{covers, uncovered},
    },
};

/// Bounds of the kept decisions.
#[derive(Clone, Copy, Debug)]
pub(super) struct VerdictLimits {
    /// Number of the newest decisions that are kept.
    pub(super) settled_max: usize,
    /// Maximum size of all kept decisions, including their reasons, in bytes.
    pub(super) settled_bytes_max: usize,
    /// Maximum size of one reason, in bytes. The engine's own reasons are shorter.
    pub(super) failure_bytes_max: usize,
}

/// Memory of a decision in addition to its reason and its ranges, in bytes.
const DECISION_BYTES: usize = 96;

/// The reason of a range that refuses a write because the write's id belongs to a different statement. It is
/// empty; real reasons never are.
pub(super) const OTHER_STATEMENT: Bytes = Bytes::new();

/// The reason of a failed write whose reason was dropped.
pub(super) const FORGOTTEN: Bytes = Bytes::from_static(b"?");

/// The decision on a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// All verdicts are favourable.
    Publish,
    /// Some range failed, for this reason.
    Void(Bytes),
}

/// Verdicts that have arrived, and decisions that other processes may ask for.
pub(super) struct Verdicts {
    limits: VerdictLimits,
    open: BTreeMap<Position, OpenVerdict>,
    /// The newest decisions.
    settled: BTreeMap<Position, DecidedRanges>,
    /// Older decisions for which a member may still ask.
    owed: BTreeMap<Position, DecidedRanges>,
    /// For each member, the decided writes that concern the member and whose decisions it may not have on
    /// disk, in order.
    debts: BTreeMap<ProcessId, VecDeque<Position>>,
    /// First position for which an importing process may ask for a verdict, as of the last decision.
    needed: Option<Position>,
    /// Settled writes whose reasons of failure are kept and may be dropped.
    reasons: BTreeSet<Position>,
    /// Memory of all decisions, in bytes.
    bytes: usize,
}

/// The ranges of a decided write, and the reason if the write failed.
pub(super) type DecidedRanges = (Vec<Range>, Option<Bytes>);

#[derive(Default)]
struct OpenVerdict {
    favourable: Vec<Range>,
    failure: Option<Bytes>,
    /// Processes that have reported that they know no more verdicts on this write, each with the last
    /// position that it had delivered then.
    unknowing: BTreeMap<ProcessId, Position>,
}

impl Verdicts {
    /// Creates an empty collection of verdicts.
    pub(super) fn new(limits: VerdictLimits) -> Verdicts {
        Verdicts {
            limits,
            open: BTreeMap::new(),
            settled: BTreeMap::new(),
            owed: BTreeMap::new(),
            debts: BTreeMap::new(),
            needed: None,
            reasons: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Returns a reason in the form in which it is kept and sent: a reason that is too long becomes
    /// [`FORGOTTEN`]. The result is a copy, which does not keep the message or the journal segment of the
    /// original in memory.
    pub(super) fn cut(&self, failure: &Bytes) -> Bytes {
        match failure.len() {
            0 => OTHER_STATEMENT,
            length if length > self.limits.failure_bytes_max => FORGOTTEN,
            _ => Bytes::copy_from_slice(failure),
        }
    }

    /// Notes a verdict of this process or of another process.
    pub(super) fn add(&mut self, at: Position, ranges: &[Range], failure: Option<Bytes>) {
        if self.decision(at).is_some() {
            return;
        }
        let failure = failure.map(|failure| self.cut(&failure));
        let open = self.open.entry(at).or_default();
        match failure {
            Some(failure) => {
                // Any of the reasons serves. The least reason is kept, because it does not depend on the
                // order of arrival.
                open.failure = Some(open.failure.take().map_or(failure.clone(), |known| known.min(failure)));
            }
            // Only uncovered ranges are added, because processes that wait for long repeat their verdicts.
            None => {
                for range in ranges {
                    let news = uncovered(&open.favourable, *range);
                    open.favourable.extend(news);
                }
            }
        }
    }

    /// Notes that `process`, which has delivered up to `through`, knows nothing beyond the verdicts it sent.
    pub(super) fn add_unknowing(&mut self, at: Position, process: ProcessId, through: Position) {
        if let Some(open) = self.open.get_mut(&at) {
            let known = open.unknowing.entry(process).or_default();
            *known = through.max(*known);
        }
    }

    /// Returns the parts of `ranges` for which no favourable verdict on the write at `at` is known.
    pub(super) fn missing(&self, at: Position, ranges: &[Range]) -> Vec<Range> {
        let favourable = self.open.get(&at).map_or(&[][..], |open| &open.favourable);
        ranges.iter().flat_map(|range| uncovered(favourable, *range)).collect()
    }

    /// Whether `process` has reported, after it delivered `since`, that it knows no more of the write at
    /// `at`.
    pub(super) fn is_unknowing(&self, at: Position, process: ProcessId, since: Position) -> bool {
        let open = self.open.get(&at);
        open.and_then(|open| open.unknowing.get(&process)).is_some_and(|through| *through >= since)
    }

    /// Decides on the write at `at`, which concerns `ranges` and the members `others`, if the known
    /// verdicts suffice. A process that imports ranges may ask for decisions from `needed` on.
    pub(super) fn decide(
        &mut self,
        at: Position,
        ranges: &[Range],
        others: impl Iterator<Item = ProcessId>,
        needed: Option<Position>,
    ) -> Option<Decision> {
        // If this process came back from its disk, it may have read the decision there.
        if self.is_decided(at) {
            let (_, failure) = self.decision(at)?;
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
        self.settle(at, (vec![Range::ALL], failure), others, needed);
        Some(decision)
    }

    /// Settles the write at `at`, which concerns the members `others`: this process answers questions about
    /// the write with `decided` from now on.
    pub(super) fn settle(
        &mut self,
        at: Position,
        decided: DecidedRanges,
        others: impl Iterator<Item = ProcessId>,
        needed: Option<Position>,
    ) {
        for process in others {
            let debt = self.debts.entry(process).or_default();
            if debt.back().is_none_or(|last| *last < at) {
                debt.push_back(at);
            }
        }
        self.restore(at, decided);
        if self.needed != needed {
            self.needed = needed;
            let owed: Vec<Position> = self.owed.keys().copied().collect();
            owed.into_iter().for_each(|at| self.release(at));
        }
        self.shrink();
        // Verdicts on writes up to this position are no longer needed: those writes were settled without
        // them.
        self.open = self.open.split_off(&Position(at.0 + 1));
    }

    /// Adds a decision that an earlier life knew.
    pub(super) fn restore(&mut self, at: Position, (ranges, failure): DecidedRanges) {
        let decided = (ranges, failure.map(|failure| self.cut(&failure)));
        // `reasons` lists only reasons that may be dropped, which excludes the two special reasons.
        match &decided.1 {
            Some(failure) if *failure != FORGOTTEN && *failure != OTHER_STATEMENT => self.reasons.insert(at),
            _ => self.reasons.remove(&at),
        };
        self.bytes += weight(&decided);
        let before = self.owed.remove(&at).into_iter().chain(self.settled.insert(at, decided));
        self.bytes -= before.map(|decided| weight(&decided)).sum::<usize>();
    }

    /// Owes all decisions to each of these members, because this process came back from its disk and does not
    /// know which decisions they have.
    pub(super) fn owe_all_decisions(&mut self, others: impl Iterator<Item = ProcessId>) {
        let all: VecDeque<Position> = self.owed.keys().chain(self.settled.keys()).copied().collect();
        if !all.is_empty() {
            self.debts.extend(others.map(|process| (process, all.clone())));
        }
        self.shrink();
    }

    /// Notes that `process` has its decisions on disk through this position.
    pub(super) fn note_settled(&mut self, process: ProcessId, through: Position) {
        while let Some(debt) = self.debts.get_mut(&process)
            && let Some(at) = debt.pop_front_if(|at| *at <= through)
        {
            self.release(at);
        }
    }

    /// Notes that `process` has left, and so will ask for nothing.
    pub(super) fn departed(&mut self, process: ProcessId) {
        self.note_settled(process, Position(u64::MAX));
        self.debts.remove(&process);
    }

    /// Whether a process may still ask for the decision on this write.
    fn is_owed(&self, at: Position) -> bool {
        self.needed.is_some_and(|needed| at >= needed)
            || self.debts.values().any(|debt| debt.binary_search(&at).is_ok())
    }

    /// Drops an older decision unless a process may still ask for it.
    fn release(&mut self, at: Position) {
        if self.owed.contains_key(&at)
            && !self.is_owed(at)
            && let Some(decided) = self.owed.remove(&at)
        {
            self.forget(at, &decided);
        }
    }

    fn forget(&mut self, at: Position, decided: &DecidedRanges) {
        self.bytes -= weight(decided);
        self.reasons.remove(&at);
    }

    /// Drops reasons and decisions until the limits hold.
    fn shrink(&mut self) {
        while self.bytes > self.limits.settled_bytes_max
            && let Some(at) = self.reasons.pop_first()
        {
            let decided = match self.settled.get_mut(&at) {
                Some(decided) => decided,
                None => self.owed.get_mut(&at).expect("a reason belongs to a settled or owed verdict"),
            };
            self.bytes -= weight(decided);
            decided.1 = Some(FORGOTTEN);
            self.bytes += weight(decided);
        }
        while self.settled.len() > self.limits.settled_max
            || self.bytes > self.limits.settled_bytes_max && self.settled.len() > 1
        {
            let (at, decided) =
                self.settled.pop_first().expect("settled verdicts are kept while their bytes are counted");
            if self.is_owed(at) {
                self.owed.insert(at, decided);
            } else {
                self.forget(at, &decided);
            }
        }
    }

    /// Returns the decision on the write at `at`, if it is kept.
    fn decision(&self, at: Position) -> Option<&DecidedRanges> {
        self.settled.get(&at).or_else(|| self.owed.get(&at))
    }

    /// Whether the decision of all ranges on the write at `at` is known here.
    pub(super) fn is_decided(&self, at: Position) -> bool {
        self.decision(at).is_some_and(|(known, _)| covers(known, Range::ALL))
    }

    /// Encodes all decisions, in pieces of about `bytes_max` each.
    pub(super) fn encode(&self, bytes_max: usize) -> Vec<Bytes> {
        let (mut pieces, mut piece, mut bytes) = (Vec::new(), BTreeMap::new(), 0);
        for (at, decided) in self.owed.iter().chain(&self.settled) {
            if bytes + weight(decided) > bytes_max && !piece.is_empty() {
                pieces.push(encode(&std::mem::take(&mut piece)));
                bytes = 0;
            }
            bytes += weight(decided);
            piece.insert(*at, decided);
        }
        pieces.push(encode(&piece));
        pieces
    }

    /// Adds a piece that [`Verdicts::encode`] wrote. Returns `false` if the bytes are no such piece.
    pub(super) fn take_in(&mut self, section: &[u8]) -> bool {
        let Ok(settled) = postcard::from_bytes::<BTreeMap<Position, DecidedRanges>>(section) else {
            return false;
        };
        settled.into_iter().for_each(|(at, decided)| self.restore(at, decided));
        true
    }

    /// Returns the number of owed decisions beyond the limits, and the bytes of all decisions.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.owed.len() as u64, self.bytes as u64)
    }

    /// Returns the answer to a question about the write at `at`.
    pub(super) fn known(&self, at: Position) -> Option<DecidedRanges> {
        match self.decision(at) {
            Some(decided) => Some(decided.clone()),
            None => self.open.get(&at).map(|open| (open.favourable.clone(), open.failure.clone())),
        }
    }
}

/// Returns the memory of a decision in bytes.
fn weight((ranges, failure): &DecidedRanges) -> usize {
    DECISION_BYTES + size_of_val(&ranges[..]) + failure.as_ref().map_or(0, Bytes::len)
}

fn encode(settled: &BTreeMap<Position, &DecidedRanges>) -> Bytes {
    postcard::to_stdvec(settled).expect("every type of this crate serialises").into()
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::id::Incarnation;

    const LIMITS: VerdictLimits =
        VerdictLimits { settled_max: 65_536, settled_bytes_max: 16 << 20, failure_bytes_max: 1_100 };

    fn verdicts(settled_max: usize) -> Verdicts {
        Verdicts::new(VerdictLimits { settled_max, ..LIMITS })
    }

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(1) }
    }

    /// Decides a favourable write at `at` that also concerns the members `others`.
    fn decide(verdicts: &mut Verdicts, at: u64, others: &[u64], needed: Option<Position>) {
        let others = others.iter().copied().map(process);
        verdicts.add(Position(at), &[Range::ALL], None);
        let decision = verdicts.decide(Position(at), &[Range::ALL], others, needed);
        assert_eq!(decision, Some(Decision::Publish));
    }

    #[test]
    fn one_failure_voids_a_write_despite_other_verdicts() {
        let mut verdicts = verdicts(4);
        let at = Position(3);
        verdicts.add(at, &[Range { low: 0, high: 9 }], None);
        assert_eq!(verdicts.decide(at, &[Range { low: 0, high: 19 }], iter::empty(), None), None);
        verdicts.add(at, &[Range { low: 10, high: 19 }], Some(Bytes::from_static(b"22012")));
        let void = Decision::Void(Bytes::from_static(b"22012"));
        assert_eq!(verdicts.decide(at, &[Range { low: 0, high: 19 }], iter::empty(), None), Some(void));
        assert_eq!(verdicts.known(at), Some((vec![Range::ALL], Some(Bytes::from_static(b"22012")))));
    }

    #[test]
    fn decisions_that_an_import_may_ask_for_are_kept() {
        let mut verdicts = verdicts(4);
        for at in 1..=30 {
            decide(&mut verdicts, at, &[], Some(Position(5)));
        }
        assert_eq!(verdicts.known(Position(4)), None);
        assert!(verdicts.known(Position(5)).is_some(), "an import as of 5 may still ask for it");
        decide(&mut verdicts, 1_000, &[], None);
        assert_eq!((verdicts.settled.len(), verdicts.owed.len()), (4, 0));
    }

    /// A process that comes back from its disk asks for decisions that it had not written. The other
    /// processes have kept these decisions.
    #[test]
    fn decisions_that_a_member_may_have_lost_are_kept() {
        let mut verdicts = verdicts(4);
        decide(&mut verdicts, 7, &[1, 2], None);
        (8..=30).for_each(|at| decide(&mut verdicts, at, &[2], None));
        verdicts.note_settled(process(2), Position(25));
        assert!(verdicts.is_decided(Position(7)), "1 has not told that it has this on disk");
        assert!(!verdicts.is_decided(Position(8)), "2 has");
        assert!((26..=30).all(|at| verdicts.is_decided(Position(at))), "or it has not, here");
        // The journal of a process that comes back contains the decisions, too.
        let mut again = self::verdicts(4);
        assert!(verdicts.encode(1).iter().all(|piece| again.take_in(piece)));
        again.owe_all_decisions([1, 2].into_iter().map(process));
        again.note_settled(process(2), Position(30));
        assert_eq!(again.known(Position(7)), Some((vec![Range::ALL], None)));
        for verdicts in [&mut verdicts, &mut again] {
            verdicts.note_settled(process(1), Position(6));
            assert!(verdicts.is_decided(Position(7)));
        }
        verdicts.note_settled(process(1), Position(7));
        again.departed(process(1));
        for verdicts in [&mut verdicts, &mut again] {
            verdicts.note_settled(process(2), Position(30));
            assert!(!verdicts.is_decided(Position(7)) && verdicts.owed.is_empty());
            assert_eq!(verdicts.bytes, verdicts.settled.values().map(weight).sum::<usize>());
        }
    }

    /// The memory of failed writes must be bounded, because clients choose how long the reasons of failure
    /// are, and how often writes fail.
    #[test]
    fn reasons_are_bounded_in_bytes() {
        let decided = (vec![Range::ALL], Some(Bytes::from(vec![7; 1_000])));
        for (number, length) in [(1_000, 1 << 20), (40_000, 1_000)] {
            let mut verdicts = verdicts(LIMITS.settled_max);
            for at in (1..=number).map(Position) {
                verdicts.add(at, &[], Some(Bytes::from(vec![7; length])));
                let decision = verdicts.decide(at, &[Range::ALL], iter::once(process(1)), None);
                assert!(matches!(decision, Some(Decision::Void(_))));
            }
            assert!(verdicts.bytes <= LIMITS.settled_bytes_max, "{}", verdicts.bytes);
            let pieces = verdicts.encode(1 << 20);
            assert!(pieces.iter().all(|piece| piece.len() <= 1 << 20), "records stay short");
            assert!(pieces.iter().map(Bytes::len).sum::<usize>() <= LIMITS.settled_bytes_max);
            let void = Some((vec![Range::ALL], Some(FORGOTTEN)));
            assert_eq!(verdicts.known(Position(1)), void, "it stays void, whatever goes");
            let newest = if length > LIMITS.failure_bytes_max { void } else { Some(decided.clone()) };
            assert_eq!(verdicts.known(Position(number)), newest);
            // An earlier version of the program did not cut long reasons.
            let mut again = self::verdicts(LIMITS.settled_max);
            again.restore(Position(1), (vec![Range::ALL], Some(Bytes::from(vec![7; 1 << 20]))));
            assert!(pieces.iter().all(|piece| again.take_in(piece)));
            assert_eq!(again.bytes, verdicts.bytes);
        }
    }

    /// At both bounds, the decisions owed to a member that is away are kept.
    #[test]
    fn a_debt_outlives_the_bound_of_bytes() {
        let most = 50 * DECISION_BYTES;
        let mut verdicts = Verdicts::new(VerdictLimits { settled_max: 4, settled_bytes_max: most, ..LIMITS });
        for at in (1..=100).map(Position) {
            verdicts.add(at, &[], Some(Bytes::from(vec![7; 900])));
            verdicts.decide(at, &[Range::ALL], iter::once(process(1)), None);
        }
        let known = |verdicts: &Verdicts| (1..=100).filter(|at| verdicts.is_decided(Position(*at))).count();
        assert_eq!(known(&verdicts), 100);
        assert!(verdicts.bytes < 100 * (DECISION_BYTES + 32), "{}", verdicts.bytes);
        verdicts.note_settled(process(1), Position(100));
        decide(&mut verdicts, 101, &[], None);
        assert_eq!(known(&verdicts), 1, "debts had taken all room");
    }

    #[test]
    fn unknowing_counts_from_a_departure_on() {
        let mut verdicts = verdicts(4);
        let (at, other) = (Position(3), process(1));
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
