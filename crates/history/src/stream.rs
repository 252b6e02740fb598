//! Judges operations while they are recorded, in bounded memory.
//!
//! Zones affect each other only by conflicts, so a key's history can be judged in *pieces* if no two
//! conflicting zones lie in different pieces. A cut is an instant. It is valid if every zone that begins
//! before the cut also ends before the cut. The stream judges the operations of all zones before the cut like
//! a separate history, and then forgets them. The stream adds up sums, keeps the larger of two maxima, and
//! carries the clients' sessions on to the next piece. The numbers are those of the whole history if no
//! operation of a forgotten zone comes later.
//!
//! The *horizon* makes such late operations rare. Let `now` be the latest finish seen. A zone may be
//! forgotten once its value has been replaced for longer than the horizon. An operation may still come later,
//! because it was recorded too late or is a read staler than the horizon. [`Stream::past_horizon`] counts
//! such operations, and such a read looks like a read of a value that nobody wrote. While the count is zero,
//! the result equals that of a check of the whole history.
//!
//! Memory: the operations of the last horizon, the current value of each key, a few words per key and client,
//! and the values without a known write that reads of the first piece returned.
//!
//! Zones cannot judge a key whose values repeat or that is no register. The stream counts the operations of
//! such a key, and the verdict is [`Verdict::Unknown`](crate::Verdict::Unknown).

use rustc_hash::{FxHashMap, FxHashSet};

use crate::check::{Options, by_zones};
use crate::history::{BEGINNING, FOREVER, Impossible, KeyHistory, Verb, admit};
use crate::operation::{Action, Nanos, Operation, Value};
use crate::report::{KeyReport, Method, Report, Verdict};
use crate::session::Sessions;
use crate::zone::{Zone, Zones};

/// Default number of a key's operations that the stream holds before it looks for an instant up to which it
/// can judge and forget them.
const LIVE_MIN: usize = 128;

/// Judges operations as they arrive.
pub struct Stream {
    options: Options,
    horizon: i64,
    live_min: usize,
    now: Nanos,
    keys: Vec<KeyStream>,
    key_numbers: FxHashMap<Box<str>, usize>,
    left_out: u64,
    past_horizon: u64,
    live: u64,
    live_max: u64,
}

struct KeyStream {
    live: KeyHistory,
    sessions: Sessions,
    /// Result for the forgotten pieces.
    report: Option<KeyReport>,
    /// Latest cut. All zones before it are forgotten.
    cut: Nanos,
    /// Values of the first piece that were read and not yet written. Later operations on such a value may
    /// have come too late.
    orphans: FxHashSet<Value>,
    /// Number of operations at which the stream looks for the next cut.
    cut_after_operations: usize,
    /// Number of operations of this key, if zones cannot judge the key.
    unjudged_operations: Option<u64>,
}

impl Stream {
    /// Creates a stream that forgets values replaced more than `horizon` nanoseconds ago.
    pub fn new(horizon: u64, options: &Options) -> Self {
        Self {
            options: *options,
            horizon: i64::try_from(horizon).unwrap_or(i64::MAX),
            live_min: LIVE_MIN,
            now: BEGINNING,
            keys: Vec::new(),
            key_numbers: FxHashMap::default(),
            left_out: 0,
            past_horizon: 0,
            live: 0,
            live_max: 0,
        }
    }

    /// Sets how many operations a key must hold before the stream looks for a cut. A smaller number saves
    /// memory and costs processor time.
    pub fn cut_after_operations(mut self, operations: usize) -> Self {
        self.live_min = operations.max(1);
        self
    }

    /// Adds one operation. Operations may come in any order within the horizon.
    pub fn push(&mut self, operation: Operation) -> Result<(), Impossible> {
        let Some(finish) = admit(&operation)? else {
            self.left_out += 1;
            return Ok(());
        };
        let Operation { client, key, action, start, outcome, .. } = operation;
        self.now = self.now.max(if finish == FOREVER { start } else { finish });
        let index = match self.key_numbers.get(&key) {
            Some(index) => *index,
            None => {
                self.keys.push(KeyStream {
                    live: KeyHistory::new(&key),
                    sessions: Sessions::default(),
                    report: None,
                    cut: BEGINNING,
                    orphans: FxHashSet::default(),
                    cut_after_operations: self.live_min,
                    unjudged_operations: None,
                });
                self.key_numbers.insert(key, self.keys.len() - 1);
                self.keys.len() - 1
            }
        };
        let stream = &mut self.keys[index];
        if let Some(unjudged_operations) = &mut stream.unjudged_operations {
            *unjudged_operations += 1;
            return Ok(());
        }
        // The operation is late if it ended before the cut, or if it wrote a value that was read before the
        // cut.
        let was_read = matches!(&action, Action::Write(value) if stream.orphans.contains(value));
        self.past_horizon += u64::from(finish <= stream.cut || was_read);
        stream.live.push(client, action, start, finish, outcome)?;
        self.live += 1;
        self.live_max = self.live_max.max(self.live);
        if !stream.live.has_distinct_writes() {
            self.live -= stream.live.len() as u64;
            stream.unjudged_operations = Some(stream.live.len() as u64);
            stream.live = KeyHistory::new(stream.live.key());
        } else if stream.live.len() >= stream.cut_after_operations {
            let before = stream.live.len();
            let settled = self.now.saturating_sub(self.horizon);
            self.past_horizon += stream.forget(settled, &self.options);
            stream.cut_after_operations = self.live_min.max(2 * stream.live.len());
            self.live -= (before - stream.live.len()) as u64;
        }
        Ok(())
    }

    /// Returns the number of operations that may have come too late to be judged with their cluster. If the
    /// number is zero, the result is exact.
    pub fn past_horizon(&self) -> u64 {
        self.past_horizon
    }

    /// Returns the largest number of operations held at once.
    pub fn live_max(&self) -> u64 {
        self.live_max
    }

    /// Returns the number of operations that are left out: failed operations and unanswered reads.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Judges the remaining operations. Returns the report and the final [`Self::past_horizon`].
    pub fn finish(mut self) -> (Report, u64) {
        let mut report = Report::new();
        for mut stream in std::mem::take(&mut self.keys) {
            if let Some(unjudged_operations) = stream.unjudged_operations {
                report.add(not_judged(stream, unjudged_operations));
                continue;
            }
            let rest = std::mem::replace(&mut stream.live, KeyHistory::new(""));
            self.past_horizon += stream.judge(&rest, &self.options);
            report.add(stream.report.expect("a key of a stream has been judged"));
        }
        report.rank();
        (report, self.past_horizon)
    }
}

impl KeyStream {
    /// Judges and forgets the zones that ended before `settled`. Returns the number of reads that may belong
    /// to a forgotten zone.
    fn forget(&mut self, settled: Nanos, options: &Options) -> u64 {
        let Some(cut) = self.find_cut(settled, options) else { return 0 };
        let Zones { written, orphans } = Zones::of(&self.live);
        let mut leaves = vec![false; self.live.numbers()];
        for zone in written.iter().chain(&orphans) {
            let abandoned = zone.write_finish == FOREVER && zone.reads == 0 && zone.write_start <= cut;
            leaves[zone.value as usize] = abandoned || zone.first_finish() <= cut;
        }
        if self.live.from_nothing {
            let left = orphans.iter().filter(|zone| leaves[zone.value as usize]);
            self.orphans.extend(left.filter_map(|zone| self.live.value(zone.value).cloned()));
        }
        let piece = self.live.take(|step| leaves[step.value as usize]);
        self.cut = cut;
        self.judge(&piece, options)
    }

    /// Returns the latest valid cut: every zone that begins before the cut has ended before the cut and gets
    /// no more operations.
    fn find_cut(&self, settled: Nanos, options: &Options) -> Option<Nanos> {
        let slack = i64::try_from(options.clock_error).unwrap_or(i64::MAX);
        // For each value, the instant since which it has certainly been replaced: the earliest finish of a
        // write that began after the value's first finish.
        let mut writes: Vec<(Nanos, Nanos)> = self
            .live
            .steps
            .iter()
            .filter(|step| step.verb == Verb::Write)
            .map(|step| (step.start, step.finish))
            .collect();
        writes.sort_unstable();
        let mut earliest = FOREVER;
        for (_, finish) in writes.iter_mut().rev() {
            earliest = earliest.min(*finish);
            *finish = earliest;
        }
        let replaced = |first_finish: Nanos| {
            let later = writes.partition_point(|(start, _)| *start <= first_finish);
            writes.get(later).map_or(FOREVER, |(_, finish)| *finish)
        };
        // Until some write ends, a later read may return "nothing", even if no read has returned it so far.
        if self.live.from_nothing && replaced(BEGINNING) >= settled {
            return None;
        }

        let Zones { written, orphans } = Zones::of(&self.live);
        // Begin and end of each zone, for finding a cut. A zone without an end is still open. The zone of an
        // orphan ends with its last read, so its missing write delays a cut only until the reads are settled.
        let begin = |zone: &Zone| zone.first_finish().saturating_sub(slack);
        let ends = written.iter().map(|zone| {
            let over = replaced(zone.first_finish()) < settled;
            (begin(zone), if over { zone.last_start() } else { FOREVER })
        });
        let mut spans: Vec<(Nanos, Nanos)> =
            ends.chain(orphans.iter().map(|zone| (begin(zone), zone.read_start_max))).collect();
        spans.sort_unstable();

        let latest = settled.saturating_sub(slack).saturating_sub(1);
        let mut reach = BEGINNING;
        let mut cut = None;
        for (position, (begin, end)) in spans.iter().enumerate() {
            reach = reach.max(*begin).max(*end);
            let until =
                spans.get(position + 1).map_or(latest, |(next, _)| latest.min(next.saturating_sub(1)));
            if reach <= until {
                cut = Some(until);
            }
        }
        cut.filter(|cut| *cut > self.cut)
    }

    /// Judges a piece and adds its result. Returns the number of orphan reads that may be reads of forgotten
    /// values.
    fn judge(&mut self, piece: &KeyHistory, options: &Options) -> u64 {
        let found = by_zones(piece, options, &mut self.sessions);
        let doubtful = if piece.from_nothing { 0 } else { found.orphan_reads };
        match &mut self.report {
            Some(report) => report.append_piece(found),
            None => self.report = Some(found),
        }
        doubtful
    }
}

fn not_judged(stream: KeyStream, unjudged_operations: u64) -> KeyReport {
    let before = stream.report.as_ref();
    KeyReport {
        key: stream.live.key().into(),
        operations: unjudged_operations + before.map_or(0, |report| report.operations),
        values: before.map_or(0, |report| report.values),
        method: Method::Search,
        verdict: before.map_or(Verdict::Unknown, |report| report.verdict.max(Verdict::Unknown)),
        orphan_reads: before.map_or(0, |report| report.orphan_reads),
        measures: None,
        witness: stream.report.and_then(|report| report.witness),
    }
}
