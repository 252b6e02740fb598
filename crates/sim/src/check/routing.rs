//! Correct routing: the seven predicates of 002, appendix 1, over one sequence of messages.
//!
//! The sequence `Q` is what routers learned; the first learning anywhere fixes each position. Destination
//! sets come from the caller's naive twin of the routing function, which looks at `Q` alone. Four predicates
//! are judged as things happen; *complete* and *terminated* speak of the end, and *gap-free* holds at every
//! moment:
//!
//! | predicate | judged | here |
//! |---|---|---|
//! | valid | at once | what is ordered was submitted; what is delivered is what `Q` has at that position |
//! | minimal | at once | the process that delivers is a destination |
//! | gap-free | at once | `Q` has all that its submitter submitted before |
//! | submit-ordered | at once | `Q` extends the order of submissions, through deliveries too |
//! | delivery-ordered | at once | every process delivers in the order of `Q`, nothing twice |
//! | complete | after healing | every correct destination delivered |
//! | terminated | after healing | what a correct process submitted is in `Q` |
//!
//! An operator may continue the sequence, as another generation, from a position behind which not all ordered
//! messages are known ([`RoutingCheck::forked`]). Some of the later messages keep their positions; the other
//! messages have no positions, or different ones. Then a submitter's numbers may skip messages whose outcome
//! it has already received, or messages that are never reported to it as stable. Where no router was left to
//! continue from, the outcomes of the earlier messages are forgotten, too ([`RoutingCheck::forget`]).
//!
//! In addition, *stable* is judged: when a submitter receives the report that its message is stable, every
//! destination that has not departed has delivered it (002 §5.4).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use quorate_protocol::ProcessId;
use quorate_world::Violation;

/// The identity of a submission: the submitter, and the submission's number at that submitter, from zero.
pub type Submission = (ProcessId, u64);

/// The sequence, and the submissions, deliveries and departures that the caller reported.
#[derive(Clone, Debug, Default)]
pub struct RoutingCheck {
    sequence: BTreeMap<u64, Ordered>,
    position_of: BTreeMap<Submission, u64>,
    processes: BTreeMap<ProcessId, ProcessRecord>,
    /// The position up to which messages may skip earlier submissions of their submitter.
    recovered: u64,
}

#[derive(Clone, Debug)]
struct Ordered {
    submission: Submission,
    content: u64,
    destinations: BTreeSet<ProcessId>,
    delivered: BTreeSet<ProcessId>,
}

#[derive(Clone, Debug, Default)]
struct ProcessRecord {
    /// The submissions, by number: content, and the last position that the process had delivered before.
    submitted: Vec<(u64, u64)>,
    /// The number after the last ordered number.
    ordered: u64,
    /// Numbers below `ordered` that have no position.
    skipped: BTreeSet<u64>,
    /// Numbers whose outcome the process has received.
    outcomes_heard: BTreeSet<u64>,
    /// A number and a position: no living router knows the outcomes of messages with lower numbers, unless
    /// these messages are ordered behind the position.
    forgotten: (u64, u64),
    delivered: u64,
    departed: bool,
}

impl RoutingCheck {
    /// Records that `who` submitted a message with this content, under its next number.
    pub fn submitted(&mut self, who: ProcessId, content: u64) {
        let seen = self.processes.entry(who).or_default();
        seen.submitted.push((content, seen.delivered));
    }

    /// Records that a submitter received the outcome of its message.
    pub fn outcome_heard(&mut self, (who, number): Submission) {
        self.processes.entry(who).or_default().outcomes_heard.insert(number);
    }

    /// Returns the check of a sequence that continues behind `position`. The caller reports again all later
    /// messages that are known, and all departures. Up to `recovered`, numbers of messages may have gaps.
    pub fn forked(&self, position: u64, recovered: u64) -> RoutingCheck {
        let mut fork = self.clone();
        fork.recovered = recovered;
        fork.sequence.split_off(&(position + 1));
        fork.position_of.retain(|_, at| *at <= position);
        for seen in fork.processes.values_mut() {
            (seen.ordered, seen.departed) = (0, false);
        }
        for ordered in fork.sequence.values() {
            let (who, number) = ordered.submission;
            fork.processes.entry(who).or_default().ordered = number + 1;
        }
        for seen in fork.processes.values_mut() {
            seen.skipped.split_off(&seen.ordered);
        }
        fork
    }

    /// Notes that no living router knows the outcomes of the present submissions that are ordered up to
    /// `position`, or that are not ordered at all.
    pub fn forget(&mut self, position: u64) {
        for seen in self.processes.values_mut() {
            seen.forgotten = (seen.submitted.len() as u64, position);
        }
    }

    /// Notes that `who` is no member of this fork of `before`, and must join it as a new process. A process
    /// that had delivered anything cannot join, and counts as departed.
    pub fn excluded(&mut self, who: ProcessId, before: &RoutingCheck) {
        let delivered = before.has_delivered(who);
        let seen = self.processes.entry(who).or_default();
        (seen.delivered, seen.departed) = (0, delivered);
        // The positions that the process had delivered before its submissions do not exist in this fork.
        for (_, before) in &mut seen.submitted {
            *before = 0;
        }
    }

    /// Takes over the deliveries of `position` from the sequence from which this sequence forked.
    pub fn inherit(&mut self, position: u64, before: &RoutingCheck) {
        if let (Some(ordered), Some(old)) = (self.sequence.get_mut(&position), before.sequence.get(&position))
        {
            ordered.delivered.clone_from(&old.delivered);
        }
    }

    /// Returns the positions behind `position` that `who` has delivered.
    pub fn delivered_behind(&self, who: ProcessId, position: u64) -> impl Iterator<Item = u64> {
        let behind = self.sequence.range(position + 1..);
        behind.filter(move |(_, ordered)| ordered.delivered.contains(&who)).map(|(&at, _)| at)
    }

    /// Whether `who` has delivered anything.
    pub fn has_delivered(&self, who: ProcessId) -> bool {
        self.delivered_behind(who, 0).next().is_some()
    }

    /// Returns all processes that ever submitted or delivered.
    pub fn processes(&self) -> impl Iterator<Item = ProcessId> {
        self.processes.keys().copied()
    }

    /// Records that a router learned `position` before any other router. The naive twin supplies the
    /// destinations.
    pub fn ordered(
        &mut self,
        position: u64,
        submission: Submission,
        content: u64,
        destinations: BTreeSet<ProcessId>,
    ) -> Result<(), Violation> {
        let (who, number) = submission;
        if let Some((&last, _)) = self.sequence.last_key_value()
            && position <= last
        {
            let what =
                format!("position {position} was ordered after position {last}, which is greater or equal");
            return Err(Violation::new("order", what));
        }
        let seen = self.processes.entry(who).or_default();
        let may_skip = |number: &u64| {
            position <= self.recovered || seen.outcomes_heard.contains(number) || *number < seen.forgotten.0
        };
        if number < seen.ordered || !(seen.ordered..number).all(|skipped| may_skip(&skipped)) {
            let what = format!(
                "position {position} has submission {number} of process {who}, of whose submissions only \
                 the first {} are ordered",
                seen.ordered
            );
            return Err(Violation::new("gap-free", what));
        }
        let submitted = seen.submitted.get(number as usize);
        let Some(&(_, delivered)) = submitted.filter(|(known, _)| *known == content) else {
            let other = seen.submitted.iter().any(|(known, _)| *known == content);
            return Err(match other {
                true => Violation::new(
                    "gap-free",
                    format!(
                        "process {who} submitted other messages before the message at position {position}, \
                         and these have no position"
                    ),
                ),
                false => {
                    let count = seen.submitted.len();
                    let what = format!(
                        "process {who} never submitted the message at position {position}, which has \
                         number {number} of the {count} submissions of this process"
                    );
                    Violation::new("valid", what)
                }
            });
        };
        seen.skipped.extend(seen.ordered..number);
        seen.ordered = number + 1;
        // The last deliveries of a departed process may be lost although its own message is known.
        if delivered >= position && !seen.departed {
            let what = format!(
                "process {who} had delivered position {delivered} when it submitted message {number}, but \
                 this message was ordered at position {position}"
            );
            return Err(Violation::new("submit-ordered", what));
        }
        self.position_of.insert(submission, position);
        let delivered = BTreeSet::new();
        self.sequence.insert(position, Ordered { submission, content, destinations, delivered });
        Ok(())
    }

    /// Records that `who` delivered a message to its user.
    pub fn delivered(
        &mut self,
        who: ProcessId,
        position: u64,
        submission: Submission,
        content: u64,
    ) -> Result<(), Violation> {
        let Some(ordered) = self.sequence.get_mut(&position) else {
            let what = format!("process {who} delivered position {position}, which no router has learned");
            return Err(Violation::new("valid", what));
        };
        if (ordered.submission, ordered.content) != (submission, content) {
            let what = format!(
                "process {who} delivered {submission:?} at position {position}, where the order has {:?}",
                ordered.submission
            );
            return Err(Violation::new("valid", what));
        }
        if !ordered.destinations.contains(&who) {
            return Err(Violation::new(
                "minimal",
                format!("process {who} delivered position {position}, and is no destination of that message"),
            ));
        }
        let seen = self.processes.entry(who).or_default();
        if position <= seen.delivered {
            let what =
                format!("process {who} delivered position {position} after position {}", seen.delivered);
            return Err(Violation::new("delivery-ordered", what));
        }
        // Uniform: even a process that is later declared faulty has delivered all earlier messages for it.
        let skipped = self
            .sequence
            .range(seen.delivered + 1..position)
            .find(|(_, between)| between.destinations.contains(&who));
        if let Some((skipped, _)) = skipped {
            let what = format!(
                "process {who} delivered position {position} but skipped position {skipped}, which was \
                 destined to it; its last delivery before was position {}",
                seen.delivered
            );
            return Err(Violation::new("complete", what));
        }
        seen.delivered = position;
        if let Some(ordered) = self.sequence.get_mut(&position) {
            ordered.delivered.insert(who);
        }
        Ok(())
    }

    /// Records that `who` claims to have delivered all its messages through `position`. Other checks judge
    /// its results.
    pub fn delivered_through(&mut self, who: ProcessId, position: u64) -> Result<(), Violation> {
        let end = self.end();
        let seen = self.processes.entry(who).or_default();
        if position < seen.delivered {
            let what = format!(
                "process {who} says that it has delivered up to position {position}, after it had \
                 delivered up to position {}",
                seen.delivered
            );
            return Err(Violation::new("delivery-ordered", what));
        }
        if position > end {
            let what = format!("process {who} delivered position {position}, which no router has learned");
            return Err(Violation::new("valid", what));
        }
        let newly = (Bound::Excluded(seen.delivered), Bound::Included(position));
        for (_, ordered) in self.sequence.range_mut(newly) {
            if ordered.destinations.contains(&who) {
                ordered.delivered.insert(who);
            }
        }
        seen.delivered = position;
        Ok(())
    }

    /// Records that `who` has recovered its deliveries up to `position`, and the number of its submissions if
    /// given. Submissions with later numbers waited for its disk and never left, so the process assigns these
    /// numbers again.
    pub fn returned(&mut self, who: ProcessId, position: u64, numbered: Option<u64>) {
        let seen = self.processes.entry(who).or_default();
        seen.delivered = position;
        if let Some(numbered) = numbered {
            let ordered = seen.ordered;
            assert!(
                ordered <= numbered,
                "process {who} came back with {numbered} submissions on its disk, but {ordered} of its \
                 submissions are ordered"
            );
            seen.submitted.truncate(numbered as usize);
        }
    }

    /// Returns the number of submissions of `who`.
    pub fn submissions_of(&self, who: ProcessId) -> u64 {
        self.processes.get(&who).map_or(0, |seen| seen.submitted.len() as u64)
    }

    /// Returns the destinations of `position`.
    pub fn destinations(&self, position: u64) -> BTreeSet<ProcessId> {
        self.sequence.get(&position).map(|ordered| ordered.destinations.clone()).unwrap_or_default()
    }

    /// Whether the message at `position` is for `who`.
    pub fn is_for(&self, position: u64, who: ProcessId) -> bool {
        self.sequence.get(&position).is_some_and(|ordered| ordered.destinations.contains(&who))
    }

    /// Lets the deliveries of `who` begin behind `position`, because it joined later or got the earlier
    /// content as state.
    pub fn begins(&mut self, who: ProcessId, position: u64) {
        let seen = self.processes.entry(who).or_default();
        seen.delivered = seen.delivered.max(position);
    }

    /// Returns the last position that `who` has delivered.
    pub fn delivered_last(&self, who: ProcessId) -> u64 {
        self.processes.get(&who).map_or(0, |seen| seen.delivered)
    }

    /// Records that `who` left, or was declared faulty, in `Q`.
    pub fn departed(&mut self, who: ProcessId) {
        self.processes.entry(who).or_default().departed = true;
    }

    /// Whether `who` left, or was declared faulty, in `Q`.
    pub fn has_departed(&self, who: ProcessId) -> bool {
        self.processes.get(&who).is_some_and(|seen| seen.departed)
    }

    /// Checks the claim of `who` to stand at `position`: it has delivered all messages for it up to
    /// `position`, and no later message.
    pub fn stamped(&self, who: ProcessId, position: u64) -> Result<(), Violation> {
        let delivered = self.processes.get(&who).map_or(0, |seen| seen.delivered);
        let wanting = delivered < position
            && self
                .sequence
                .range(delivered + 1..=position)
                .any(|(_, other)| other.destinations.contains(&who));
        if delivered > position || wanting {
            let what = format!(
                "process {who} claims to have delivered exactly its messages up to position {position}, \
                 but has delivered up to position {delivered}"
            );
            return Err(Violation::new("stamp", what));
        }
        Ok(())
    }

    /// Whether a submission may be lost: if its submitter departed, if all its destinations departed, if the
    /// fork of the sequence left it out, or if no living router knows its outcome.
    pub fn may_be_lost(&self, submission: Submission) -> bool {
        let skipped = |seen: &ProcessRecord| seen.skipped.contains(&submission.1);
        let ordered = self.position_of.get(&submission).map(|position| &self.sequence[position]);
        let forgotten = |seen: &ProcessRecord| {
            let (number, position) = seen.forgotten;
            submission.1 < number && self.position_of(submission).is_none_or(|at| at <= position)
        };
        self.has_departed(submission.0)
            || self.processes.get(&submission.0).is_some_and(|seen| skipped(seen) || forgotten(seen))
            || ordered.is_some_and(|ordered| ordered.destinations.iter().all(|&to| self.has_departed(to)))
    }

    /// Judges a submitter's notice that its message is stable: every destination must have delivered it or
    /// departed. If `somebody` is set, at least one destination must have delivered it.
    pub fn stable(&self, submission: Submission, somebody: bool) -> Result<(), Violation> {
        let (who, number) = submission;
        let Some(position) = self.position_of.get(&submission) else {
            let what = format!(
                "process {who} was told that its message {number} is stable, but this message has no \
                 position in the order"
            );
            return Err(Violation::new("stable", what));
        };
        let ordered = &self.sequence[position];
        let missing = ordered
            .destinations
            .iter()
            .find(|&&to| !ordered.delivered.contains(&to) && !self.has_departed(to));
        match missing {
            None if somebody && ordered.delivered.is_empty() => Err(Violation::new(
                "stable",
                format!(
                    "process {who} was told that its message {number} (at position {position}) is stable, \
                     but no process has delivered this message"
                ),
            )),
            None => Ok(()),
            Some(to) => Err(Violation::new(
                "stable",
                format!(
                    "process {who} was told that its message {number} (at position {position}) is stable, \
                     but destination {to} has not delivered this message"
                ),
            )),
        }
    }

    /// Returns the position of a submission.
    pub fn position_of(&self, submission: Submission) -> Option<u64> {
        self.position_of.get(&submission).copied()
    }

    /// Returns the last ordered position.
    pub fn end(&self) -> u64 {
        self.sequence.last_key_value().map_or(0, |(&position, _)| position)
    }

    /// Returns the number of ordered messages.
    pub fn length(&self) -> usize {
        self.sequence.len()
    }

    /// Judges the predicates that hold only once all faults have ended and every process had time. A process
    /// is correct if it is alive and has not departed.
    pub fn finish(&self, alive: impl Fn(ProcessId) -> bool) -> Result<(), Violation> {
        let correct = |who: ProcessId| alive(who) && !self.has_departed(who);
        for (position, ordered) in &self.sequence {
            for &to in &ordered.destinations {
                if !ordered.delivered.contains(&to) && correct(to) {
                    return Err(Violation::new(
                        "complete",
                        format!("process {to} never delivered position {position}, which was destined to it"),
                    ));
                }
            }
        }
        for (&who, seen) in &self.processes {
            let left = (seen.ordered..seen.submitted.len() as u64)
                .find(|number| !seen.outcomes_heard.contains(number));
            if let Some(left) = left.filter(|_| correct(who)) {
                let what = format!(
                    "process {who} submitted {} messages, and its message {left} was never ordered",
                    seen.submitted.len()
                );
                return Err(Violation::new("terminated", what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::Incarnation;

    use super::*;

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(node.into()) }
    }

    /// Returns the verdict on a run. `sN`: process 1 submits content N. `oN@P`: N is ordered at P for
    /// processes 2 and 3. `dP:N>W`: process W delivers N at P. `tN`: process 1 receives the report that N is
    /// stable. `f3`: process 3 departs. `end`: judges the end.
    fn check(run: &str) -> &'static str {
        let mut check = RoutingCheck::default();
        let both = BTreeSet::from([process(2), process(3)]);
        for to in &both {
            check.begins(*to, 0);
        }
        let number = |text: &str| text.parse::<u64>().expect("a number");
        for step in run.split_whitespace() {
            let (kind, rest) = step.split_at(1);
            let outcome = match kind {
                "s" => {
                    check.submitted(process(1), number(rest));
                    Ok(())
                }
                "o" => {
                    let (content, position) = rest.split_once('@').expect("N@P");
                    let content = number(content);
                    check.ordered(number(position), (process(1), content), content, both.clone())
                }
                "d" => {
                    let (position, rest) = rest.split_once(':').expect("P:N>W");
                    let (content, who) = rest.split_once('>').expect("P:N>W");
                    let content = number(content);
                    check.delivered(process(number(who)), number(position), (process(1), content), content)
                }
                "t" => check.stable((process(1), number(rest)), true),
                "f" => {
                    check.departed(process(number(rest)));
                    Ok(())
                }
                _ => check.finish(|_| true),
            };
            if let Err(violation) = outcome {
                return violation.rule;
            }
        }
        "correct"
    }

    #[test]
    fn each_predicate_is_seen_to_fail() {
        for (run, verdict) in [
            ("s0 s1 o0@1 o1@2 d1:0>2 d2:1>2 d1:0>3 d2:1>3 t0 t1 end", "correct"),
            ("o0@1", "valid"),
            ("s0 o0@1 d2:0>2", "valid"),
            ("s0 s1 o0@1 d1:1>2", "valid"),
            ("s0 o0@1 d1:0>4", "minimal"),
            ("s0 s1 o1@1", "gap-free"),
            ("s1 s0 o0@1", "gap-free"),
            ("s0 s1 o0@1 o1@2 d1:0>2 d2:1>2 d1:0>2", "delivery-ordered"),
            ("s0 o0@1 d1:0>2 d1:0>2", "delivery-ordered"),
            ("s0 s1 o0@1 o1@2 d2:1>2", "complete"),
            ("s0 o0@1 d1:0>2 end", "complete"),
            ("s0 o0@1 d1:0>2 f3 t0 end", "correct"),
            ("s0 end", "terminated"),
            ("s0 f1 end", "correct"),
            ("s0 o0@1 d1:0>2 t0", "stable"),
            ("s0 t0", "stable"),
        ] {
            assert_eq!(check(run), verdict, "{run}");
        }
    }
}
