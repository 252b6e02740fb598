//! Judging while it is recorded, in bounded memory.
//!
//! Only zones that conflict have anything to do with each other, so a key's history can be judged in *pieces*, provided that no conflict
//! is cut: a cut at an instant is good if every zone that begins before it also ends before it. The operations of all zones
//! before the cut are judged like a history of their own and forgotten; sums are added, maxima compared, and the sessions of
//! the clients carried on. So the numbers are those of the whole history — as long as no operation of a forgotten zone comes later.
//!
//! That is what the *horizon* is for. With `now` the latest finish seen, a zone may be forgotten once its value has been
//! replaced for longer than the horizon. What comes after all — an operation recorded too late, a read staler than
//! the horizon — is counted as [`Stream::past_horizon`]; the read then looks like one of a value that nobody wrote. While
//! that count is zero, the result is exactly the offline one.
//!
//! Memory: the operations of the last horizon, the current value of each key, a few words per key and client, and the values that were
//! read in the first piece and that nobody had written.
//!
//! A key whose values repeat, or that is no register, cannot be judged so: its operations are counted, and its verdict is
//! [`Verdict::Unknown`](crate::Verdict::Unknown).

use rustc_hash::{FxHashMap, FxHashSet};

use crate::check::{Options, by_zones};
use crate::history::{BEGINNING, FOREVER, Impossible, KeyHistory, Verb, admit};
use crate::operation::{Action, Nanos, Operation, Value};
use crate::report::{KeyReport, Method, Report, Verdict};
use crate::session::Sessions;
use crate::zone::{Zone, Zones};

/// How many operations a key must hold before it is looked through for pieces, unless told otherwise.
const LIVE_MIN: usize = 128;

/// Judges operations as they come.
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
    /// What the forgotten pieces showed.
    report: Option<KeyReport>,
    /// Everything before has been forgotten.
    cut: Nanos,
    /// Values of the first piece that were read, and that nobody had written until then. Reads of such in later pieces are counted.
    orphans: FxHashSet<Value>,
    /// Look through the key again when it holds so many operations.
    look_at: usize,
    /// Operations counted since the key turned out not to be judgeable by zones.
    unjudged: Option<u64>,
}

impl Stream {
    /// A stream that forgets what was replaced more than `horizon` nanoseconds ago.
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

    /// Looks through a key as soon as it holds so many operations: fewer mean less memory and more work.
    pub fn look_at(mut self, operations: usize) -> Self {
        self.live_min = operations.max(1);
        self
    }

    /// Takes one operation, in any order that keeps within the horizon.
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
                    look_at: self.live_min,
                    unjudged: None,
                });
                self.key_numbers.insert(key, self.keys.len() - 1);
                self.keys.len() - 1
            }
        };
        let stream = &mut self.keys[index];
        if let Some(unjudged) = &mut stream.unjudged {
            *unjudged += 1;
            return Ok(());
        }
        // Late: it ended before the cut, or it wrote what was read before the cut.
        let was_read = matches!(&action, Action::Write(value) if stream.orphans.contains(value));
        self.past_horizon += u64::from(finish <= stream.cut || was_read);
        stream.live.push(client, action, start, finish, outcome)?;
        self.live += 1;
        self.live_max = self.live_max.max(self.live);
        if !stream.live.has_distinct_writes() {
            self.live -= stream.live.len() as u64;
            stream.unjudged = Some(stream.live.len() as u64);
            stream.live = KeyHistory::new(stream.live.key());
        } else if stream.live.len() >= stream.look_at {
            let before = stream.live.len();
            let settled = self.now.saturating_sub(self.horizon);
            self.past_horizon += stream.forget(settled, &self.options);
            stream.look_at = self.live_min.max(2 * stream.live.len());
            self.live -= (before - stream.live.len()) as u64;
        }
        Ok(())
    }

    /// How many operations came too late to be judged with those they belong to, or may have. Zero: the result is exact.
    pub fn past_horizon(&self) -> u64 {
        self.past_horizon
    }

    /// The most operations that were held at once.
    pub fn live_max(&self) -> u64 {
        self.live_max
    }

    /// How many operations do not count: failed ones, and reads that were never answered.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Judges what is left, and reports.
    pub fn finish(mut self) -> (Report, u64) {
        let mut report = Report::new();
        for mut stream in std::mem::take(&mut self.keys) {
            if let Some(unjudged) = stream.unjudged {
                report.add(not_judged(stream, unjudged));
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
    /// Judges and forgets what was settled before `settled`. Returns how many reads may belong to something forgotten earlier.
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

    /// The latest instant such that whatever begins before it is over before it and will not come again.
    fn find_cut(&self, settled: Nanos, options: &Options) -> Option<Nanos> {
        let slack = i64::try_from(options.clock_error).unwrap_or(i64::MAX);
        // From when on each value had been replaced: the earliest finish of a write that began after the value was there.
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
        // "Nothing" may be read until something was written, whether it was read so far or not.
        if self.live.from_nothing && replaced(BEGINNING) >= settled {
            return None;
        }

        let Zones { written, orphans } = Zones::of(&self.live);
        // Where each zone begins for the sake of cutting, and its end, if it is over. The value of an orphan is awaited no longer than its
        // reads are unsettled.
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

    /// Judges a piece and adds it to what is known. Returns how many of its orphan reads may be of forgotten values.
    fn judge(&mut self, piece: &KeyHistory, options: &Options) -> u64 {
        let found = by_zones(piece, options, &mut self.sessions);
        let doubtful = if piece.from_nothing { 0 } else { found.orphan_reads };
        match &mut self.report {
            Some(report) => report.join(found),
            None => self.report = Some(found),
        }
        doubtful
    }
}

fn not_judged(stream: KeyStream, unjudged: u64) -> KeyReport {
    let before = stream.report.as_ref();
    KeyReport {
        key: stream.live.key().into(),
        operations: unjudged + before.map_or(0, |report| report.operations),
        values: before.map_or(0, |report| report.values),
        method: Method::Search,
        verdict: before.map_or(Verdict::Unknown, |report| report.verdict.max(Verdict::Unknown)),
        orphan_reads: before.map_or(0, |report| report.orphan_reads),
        measures: None,
        witness: stream.report.and_then(|report| report.witness),
    }
}
