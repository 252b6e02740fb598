//! Correct routing: the seven predicates of 002, appendix 1, over one sequence of messages.
//!
//! The sequence `Q` is what routers learned, fixed position by position at the first learning anywhere. Destination sets
//! come from the caller's naive twin of the routing function, which looks at nothing but `Q`. Four predicates are judged
//! as things happen; *complete* and *terminated* speak of the end, and *gap-free* holds at every moment:
//!
//! | predicate | judged | here |
//! |---|---|---|
//! | valid | at once | what is ordered was submitted; what is delivered is what `Q` has at that position |
//! | minimal | at once | who delivers is a destination |
//! | gap-free | at once | `Q` has all that its submitter submitted before |
//! | submit-ordered | at once | `Q` extends the order of submissions, through deliveries too |
//! | delivery-ordered | at once | every process delivers in the order of `Q`, nothing twice |
//! | complete | after healing | every correct destination delivered |
//! | terminated | after healing | what a correct process submitted is in `Q` |
//!
//! Beside them, *stable*: when a submitter is told that its message is stable, every destination that has not departed has
//! delivered it (002 §5.4).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
};

use quorate_protocol::ProcessId;

use crate::world::Violation;

/// What identifies a submission: who, and its number there, from zero.
pub type Submission = (ProcessId, u64);

/// The sequence and everything that happened to it.
#[derive(Debug, Default)]
pub struct RoutingCheck {
    sequence: BTreeMap<u64, Ordered>,
    position_of: BTreeMap<Submission, u64>,
    processes: BTreeMap<ProcessId, Seen>,
}

#[derive(Debug)]
struct Ordered {
    submission: Submission,
    content: u64,
    destinations: BTreeSet<ProcessId>,
    delivered: BTreeSet<ProcessId>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Per lane, what was submitted and is not ordered: its content, and the last position delivered here before.
    lanes: BTreeMap<u8, VecDeque<(u64, u64)>>,
    ordered: u64,
    delivered: u64,
    departed: bool,
}

impl RoutingCheck {
    /// `who` submitted a message with this content. Messages of one lane (a class, say) keep their order; one lane may
    /// overtake another before its messages are numbered.
    pub fn submitted(&mut self, who: ProcessId, lane: u8, content: u64) {
        let seen = self.processes.entry(who).or_default();
        seen.lanes.entry(lane).or_default().push_back((content, seen.delivered));
    }

    /// A router learned `position` first of all; the naive twin says where it goes.
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
            let what = format!("{position} was ordered after {last}");
            return Err(Violation::new("order", what));
        }
        let seen = self.processes.entry(who).or_default();
        if number != seen.ordered {
            let what = format!("{position} is {number} of {who}, of which {} are ordered", seen.ordered);
            return Err(Violation::new("gap-free", what));
        }
        let lane = seen.lanes.values_mut().find(|lane| lane.front().is_some_and(|first| first.0 == content));
        let Some((_, delivered)) = lane.and_then(VecDeque::pop_front) else {
            let later = seen.lanes.values().any(|lane| lane.iter().any(|other| other.0 == content));
            return Err(match later {
                true => {
                    Violation::new("gap-free", format!("{who} submitted others before what is at {position}"))
                }
                false => Violation::new("valid", format!("{who} never submitted what is at {position}")),
            });
        };
        seen.ordered += 1;
        if delivered >= position {
            let what =
                format!("{who} had delivered {delivered} when it submitted {number}, now at {position}");
            return Err(Violation::new("submit-ordered", what));
        }
        self.position_of.insert(submission, position);
        let delivered = BTreeSet::new();
        self.sequence.insert(position, Ordered { submission, content, destinations, delivered });
        Ok(())
    }

    /// `who` delivered something to its user.
    pub fn delivered(
        &mut self,
        who: ProcessId,
        position: u64,
        submission: Submission,
        content: u64,
    ) -> Result<(), Violation> {
        let Some(ordered) = self.sequence.get_mut(&position) else {
            let what = format!("{who} delivered {position}, which no router has learned");
            return Err(Violation::new("valid", what));
        };
        if (ordered.submission, ordered.content) != (submission, content) {
            let what =
                format!("{who} delivered {submission:?} at {position}, which is {:?}", ordered.submission);
            return Err(Violation::new("valid", what));
        }
        if !ordered.destinations.contains(&who) {
            return Err(Violation::new(
                "minimal",
                format!("{who} delivered {position}, which is not for it"),
            ));
        }
        let seen = self.processes.entry(who).or_default();
        if position <= seen.delivered {
            let what = format!("{who} delivered {position} after {}", seen.delivered);
            return Err(Violation::new("delivery-ordered", what));
        }
        // Uniform: even one who will be called faulty sees all that was for it up to here.
        let skipped = self
            .sequence
            .range(seen.delivered + 1..position)
            .find(|(_, between)| between.destinations.contains(&who));
        if let Some((skipped, _)) = skipped {
            let what = format!("{who} delivered {position} and never {skipped}, after {}", seen.delivered);
            return Err(Violation::new("complete", what));
        }
        seen.delivered = position;
        if let Some(ordered) = self.sequence.get_mut(&position) {
            ordered.delivered.insert(who);
        }
        Ok(())
    }

    /// `who` says that it has delivered all that is for it through `position`; what it makes of that is judged apart.
    pub fn delivered_through(&mut self, who: ProcessId, position: u64) -> Result<(), Violation> {
        let end = self.end();
        let seen = self.processes.entry(who).or_default();
        if position < seen.delivered {
            let what = format!("{who} stands at {position} after {}", seen.delivered);
            return Err(Violation::new("delivery-ordered", what));
        }
        if position > end {
            let what = format!("{who} delivered {position}, which no router has learned");
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

    /// Whom `position` is for.
    pub fn destinations(&self, position: u64) -> BTreeSet<ProcessId> {
        self.sequence.get(&position).map(|ordered| ordered.destinations.clone()).unwrap_or_default()
    }

    /// Whether what is at `position` is for `who`.
    pub fn is_for(&self, position: u64, who: ProcessId) -> bool {
        self.sequence.get(&position).is_some_and(|ordered| ordered.destinations.contains(&who))
    }

    /// `who` begins to receive behind `position`: it came later, or was given what came before.
    pub fn begins(&mut self, who: ProcessId, position: u64) {
        let seen = self.processes.entry(who).or_default();
        seen.delivered = seen.delivered.max(position);
    }

    /// `who` left, or was declared faulty, in `Q`.
    pub fn departed(&mut self, who: ProcessId) {
        self.processes.entry(who).or_default().departed = true;
    }

    /// Whether `who` left, or was declared faulty, in `Q`.
    pub fn has_departed(&self, who: ProcessId) -> bool {
        self.processes.get(&who).is_some_and(|seen| seen.departed)
    }

    /// `who` stands at `position`: it has delivered all that is destined there up to it, and nothing beyond.
    pub fn stamped(&self, who: ProcessId, position: u64) -> Result<(), Violation> {
        let delivered = self.processes.get(&who).map_or(0, |seen| seen.delivered);
        let wanting = delivered < position
            && self
                .sequence
                .range(delivered + 1..=position)
                .any(|(_, other)| other.destinations.contains(&who));
        if delivered > position || wanting {
            let what = format!("{who} claims to stand at {position}, and has delivered up to {delivered}");
            return Err(Violation::new("stamp", what));
        }
        Ok(())
    }

    /// Whether all destinations of a submission departed before they were known to have delivered it, or its submitter
    /// did and cannot know.
    pub fn may_be_lost(&self, submission: Submission) -> bool {
        let ordered = self.position_of.get(&submission).map(|position| &self.sequence[position]);
        self.has_departed(submission.0)
            || ordered.is_some_and(|ordered| ordered.destinations.iter().all(|&to| self.has_departed(to)))
    }

    /// A submitter was told that its message is stable: every destination delivered it or departed; with `somebody`, not
    /// all departed without.
    pub fn stable(&self, submission: Submission, somebody: bool) -> Result<(), Violation> {
        let (who, number) = submission;
        let Some(position) = self.position_of.get(&submission) else {
            let what = format!("{who} was told that {number} is stable, which is not even ordered");
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
                format!("{who} was told that {number} (at {position}) is stable, which nobody delivered"),
            )),
            None => Ok(()),
            Some(to) => Err(Violation::new(
                "stable",
                format!(
                    "{who} was told that {number} (at {position}) is stable, yet {to} has not delivered it"
                ),
            )),
        }
    }

    /// Where a submission was ordered.
    pub fn position_of(&self, submission: Submission) -> Option<u64> {
        self.position_of.get(&submission).copied()
    }

    /// The last position ordered.
    pub fn end(&self) -> u64 {
        self.sequence.last_key_value().map_or(0, |(&position, _)| position)
    }

    /// How many messages are ordered.
    pub fn length(&self) -> usize {
        self.sequence.len()
    }

    /// Judges what can be judged only once all faults have ended and everything had time. Correct is who is alive and has
    /// not departed.
    pub fn finish(&self, alive: impl Fn(ProcessId) -> bool) -> Result<(), Violation> {
        let correct = |who: ProcessId| alive(who) && !self.has_departed(who);
        for (position, ordered) in &self.sequence {
            for &to in &ordered.destinations {
                if !ordered.delivered.contains(&to) && correct(to) {
                    return Err(Violation::new("complete", format!("{to} never delivered {position}")));
                }
            }
        }
        for (&who, seen) in &self.processes {
            let left: usize = seen.lanes.values().map(VecDeque::len).sum();
            if left > 0 && correct(who) {
                let what =
                    format!("of what {who} submitted, {} are ordered and {left} are not", seen.ordered);
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

    /// What the check says of a run: `sN` process 1 submits content N; `oN@P` that is ordered at P for processes 2 and 3;
    /// `dP:N>W` process W delivers at P what is N; `tN` process 1 is told that N is stable; `f3` process 3 departs;
    /// `end` judges the end.
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
                    check.submitted(process(1), 0, number(rest));
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
