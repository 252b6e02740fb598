//! Holders of all rows of a range (S14). The check follows them by events that the world saw: completed
//! copies, writes, deaths.
//!
//! The check ignores the opinions that processes have of each other. A process that all other processes
//! believe dead holds its rows until it ends or drops them. A range is lost if the last living holder of all
//! its rows crashes; the world causes such a loss, and no process is at fault. It is a violation if the last
//! holder ends, or drops its rows, of its own accord.
//!
//! A holder has all rows as long as it is a member that holds its ranges, because routers deliver all later
//! writes to it. A holder that was removed, or that made way for another process, has all rows until some
//! process executes a write that this holder has not delivered.
//!
//! A lagging member counts as a holder when the other holder crashes, because the routers have the missing
//! writes. But the lagging member may be removed a moment later, while nobody can know of the crash yet. Then
//! the crash has lost the range, too, and no process is at fault for the writes that only the crashed holder
//! had executed. The removal is a violation if the crash is old enough to be known ([`KNOWN_AFTER`]).

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{Duration, ProcessId, Time};
use quorate_world::Violation;

/// A range: its lowest and its highest key.
pub type Keys = (u64, u64);

/// The holders of every range.
#[derive(Clone, Debug, Default)]
pub struct HoldersCheck {
    ranges: BTreeMap<Keys, RangeHolders>,
}

#[derive(Clone, Debug, Default)]
struct RangeHolders {
    /// Living processes that had all rows of the range at some position.
    holders: BTreeSet<ProcessId>,
    /// The last position at which any process executed a write.
    written: u64,
    /// The time of the last crash of a process that had all rows.
    crashed_at: Option<Time>,
}

/// Time after which a crash is known. By then the order contains a suspicion of the crashed process, so
/// routers remove no member in the belief that the crashed process still has its rows.
pub const KNOWN_AFTER: Duration = Duration::from_secs(5);

/// The facts about processes that the check needs from outside.
pub trait MemberFacts {
    /// Whether the process is a member, so that routers deliver to it everything that is ordered for it.
    fn is_member(&self, process: ProcessId) -> bool;
    /// Returns the last position that the process has delivered.
    fn delivered(&self, process: ProcessId) -> u64;
}

impl RangeHolders {
    fn has_all(&self, process: ProcessId, facts: &impl MemberFacts) -> bool {
        facts.is_member(process) || facts.delivered(process) >= self.written
    }

    fn have_all(&self, facts: &impl MemberFacts) -> bool {
        self.holders.iter().any(|&holder| self.has_all(holder, facts))
    }
}

impl HoldersCheck {
    /// Records that a living process has all rows of a range.
    pub fn holds(&mut self, keys: Keys, process: ProcessId) {
        self.ranges.entry(keys).or_default().holders.insert(process);
    }

    /// Records that a process continues under a new id, with its rows.
    pub fn renamed(&mut self, former: ProcessId, process: ProcessId) {
        for held in self.ranges.values_mut() {
            if held.holders.remove(&former) {
                held.holders.insert(process);
            }
        }
    }

    /// Records that some process executed a write in this range.
    pub fn wrote(&mut self, (low, high): Keys, position: u64) {
        for (_, held) in self.ranges.iter_mut().filter(|((from, to), _)| *from <= high && low <= *to) {
            held.written = held.written.max(position);
        }
    }

    /// Records that a process was killed. Returns the ranges that are lost by its death.
    pub fn crashed(&mut self, process: ProcessId, now: Time, facts: &impl MemberFacts) -> Vec<Keys> {
        let mut lost = Vec::new();
        for (&keys, held) in &mut self.ranges {
            if held.holders.contains(&process) && held.has_all(process, facts) {
                held.crashed_at = Some(now);
            }
            if held.holders.remove(&process) && !held.have_all(facts) {
                held.holders.clear();
                lost.push(keys);
            }
        }
        lost
    }

    /// Returns the ranges that no living process has, or will have, completely. `concerns` selects ranges by
    /// their keys and holders. `removed` gives the times at which holders were removed.
    pub fn lost_ranges(
        &mut self,
        concerns: impl Fn(Keys, &BTreeSet<ProcessId>) -> bool,
        removed: &BTreeMap<ProcessId, Time>,
        facts: &impl MemberFacts,
    ) -> Result<Vec<Keys>, Violation> {
        let mut lost = Vec::new();
        for (&keys, held) in &mut self.ranges {
            if held.holders.is_empty() || !concerns(keys, &held.holders) || held.have_all(facts) {
                continue;
            }
            let last = held.holders.iter().filter_map(|holder| removed.get(holder)).max();
            let known = |&last: &Time| held.crashed_at.is_none_or(|crashed| crashed + KNOWN_AFTER < last);
            if last.is_some_and(known) {
                let what = format!(
                    "processes {:?} lack rows of the keys {keys:x?}, but were removed after all processes \
                     that had these rows",
                    held.holders
                );
                return Err(Violation::new("S14", what));
            }
            held.holders.clear();
            lost.push(keys);
        }
        Ok(lost)
    }

    /// Records that a process ends, or drops all its rows, although no fault forced it to do so.
    pub fn ended_voluntarily(
        &mut self,
        process: ProcessId,
        facts: &impl MemberFacts,
    ) -> Result<(), Violation> {
        for (keys, held) in &mut self.ranges {
            let had_all = held.has_all(process, facts);
            if held.holders.remove(&process) && had_all && !held.have_all(facts) {
                let what = format!(
                    "process {process} gave up the keys {keys:x?}, although it was the last living process \
                     with all of their rows"
                );
                return Err(Violation::new("S14", what));
            }
        }
        Ok(())
    }

    /// Returns the living processes that hold all rows of a range.
    pub fn holders(&self, keys: Keys, facts: &impl MemberFacts) -> Vec<ProcessId> {
        let Some(held) = self.ranges.get(&keys) else { return Vec::new() };
        held.holders.iter().copied().filter(|&holder| held.has_all(holder, facts)).collect()
    }

    /// Returns all ranges that ever had a holder.
    pub fn ranges(&self) -> impl Iterator<Item = Keys> {
        self.ranges.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::Incarnation;

    use super::*;

    const KEYS: Keys = (0, u64::MAX);

    fn process(node: u64) -> ProcessId {
        ProcessId { node, incarnation: Incarnation(node.into()) }
    }

    #[derive(Default)]
    struct Known {
        members: BTreeSet<ProcessId>,
        delivered: BTreeMap<ProcessId, u64>,
    }

    impl MemberFacts for Known {
        fn is_member(&self, process: ProcessId) -> bool {
            self.members.contains(&process)
        }

        fn delivered(&self, process: ProcessId) -> u64 {
            self.delivered.get(&process).copied().unwrap_or(0)
        }
    }

    /// Returns the verdict on a run. `hN`: process N becomes complete. `mN`, `rN`: N becomes a member, or is
    /// removed. `wP`: a write is executed at P. `dN`: N has delivered all writes. `xN`: N crashes. `eN`: N
    /// ends. `pN`: N learns only now that it was removed. `+S`: S seconds pass.
    fn check(run: &str) -> &'static str {
        let (mut check, mut known, mut written) = (HoldersCheck::default(), Known::default(), 0);
        let (mut verdict, mut now) = ("held", Time::ZERO);
        for step in run.split_whitespace() {
            let (kind, number) = step.split_at(1);
            let number: u64 = number.parse().expect("a number");
            let who = process(number);
            match kind {
                "h" => check.holds(KEYS, who),
                "m" => known.members.extend([who]),
                "r" => known.members.retain(|member| *member != who),
                "w" => {
                    written = number;
                    check.wrote((3, 4), number);
                }
                "d" => known.delivered.extend([(who, written)]),
                "x" => {
                    if !check.crashed(who, now, &known).is_empty() {
                        verdict = "lost";
                    }
                }
                "+" => now = now + Duration::from_secs(number),
                "p" => {
                    match check.lost_ranges(|_, it| it.contains(&who), &BTreeMap::from([(who, now)]), &known)
                    {
                        Ok(lost) if lost.is_empty() => {}
                        Ok(_) => verdict = "lost",
                        Err(_) => return "S14",
                    }
                }
                _ => {
                    if check.ended_voluntarily(who, &known).is_err() {
                        return "S14";
                    }
                }
            }
        }
        verdict
    }

    #[test]
    fn who_is_the_last_with_all_rows_may_crash_and_may_not_end() {
        for (run, verdict) in [
            ("m1 m2 h1 h2 x1", "held"),
            ("m1 m2 h1 h2 x1 x2", "lost"),
            ("m1 m2 h1 h2 r1 e1", "held"),
            // Process 1 was removed although process 2 had died before.
            ("m1 m2 h1 h2 x2 r1 e1", "S14"),
            ("m1 m2 h1 h2 r1 x2 e1", "S14"),
            // Process 1 lacks a write that process 2 executed and perhaps acknowledged.
            ("m1 m2 h1 h2 r1 w9 x2 e1", "lost"),
            // Process 1 was removed, and has delivered every executed write.
            ("m1 m2 h1 h2 w9 d1 r1 x2 e1", "S14"),
            // Process 2 only became a member, so it does not have the rows.
            ("m1 m2 h1 r1 e1", "S14"),
            ("m1 m2 h1 x1 h2 e2", "S14"),
            // Process 2 crashed while process 1 was a member and lagged. Process 1 was removed before any
            // process could know of the crash.
            ("m1 m2 h1 h2 w9 x2 r1 p1", "lost"),
            ("m1 m2 h1 h2 w9 x2 +5 r1 p1", "lost"),
            ("m1 m2 h1 h2 w9 x2 +6 r1 p1", "S14"),
            ("m1 m2 h1 h2 w9 x2 +6 d1 r1 p1", "held"),
            ("m1 m2 h1 h2 w9 r1 p1", "held"),
        ] {
            assert_eq!(check(run), verdict, "{run}");
        }
    }
}
