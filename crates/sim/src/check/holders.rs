//! Who holds all rows of a range (S14), by what the world saw: who became complete where, what was written, who died.
//!
//! What processes think of each other does not enter: a process that everybody takes for dead holds its rows until it ends
//! or drops them. A range is lost once the last living holder of all its rows has crashed; that is the world's doing. It is
//! a violation that the last one ends, or drops its rows, of its own accord.
//!
//! A holder has all rows as long as it is a member that holds its ranges, since routers deliver the rest to it. One that was
//! removed, or made way, has all rows until somebody executes a write that it has not delivered.
//!
//! A member that lags counts for a holder when the other one crashes, for the routers have what it lacks. But it may be removed
//! the moment after: nobody can know of the crash yet. Then the range is lost by the crash, too, and what the other had written
//! and nobody has is no fault of anybody. It is a violation if the crash is as old as to be known ([`KNOWN_AFTER`]).

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::{Duration, ProcessId, Time};
use quorate_world::Violation;

/// A range: its lowest and its highest key.
pub type Keys = (u64, u64);

/// The holders of every range.
#[derive(Clone, Debug, Default)]
pub struct HoldersCheck {
    ranges: BTreeMap<Keys, Held>,
}

#[derive(Clone, Debug, Default)]
struct Held {
    /// Living processes that were complete at some position.
    holders: BTreeSet<ProcessId>,
    /// The last position at which anybody executed a write.
    written: u64,
    /// When somebody who had all rows crashed last.
    crashed_at: Option<Time>,
}

/// By then a crash is known: the order has a suspicion of whoever crashed, and nobody is removed in reliance on it.
pub const KNOWN_AFTER: Duration = Duration::from_secs(5);

/// What is known of processes otherwise.
pub trait Standings {
    /// Whether it is a member, so that whatever is ordered for it comes to it.
    fn is_member(&self, process: ProcessId) -> bool;
    /// The last position that it has delivered.
    fn delivered(&self, process: ProcessId) -> u64;
}

impl Held {
    fn has_all(&self, process: ProcessId, standings: &impl Standings) -> bool {
        standings.is_member(process) || standings.delivered(process) >= self.written
    }

    fn have_all(&self, standings: &impl Standings) -> bool {
        self.holders.iter().any(|&holder| self.has_all(holder, standings))
    }
}

impl HoldersCheck {
    /// A living process has all rows of a range.
    pub fn holds(&mut self, keys: Keys, process: ProcessId) {
        self.ranges.entry(keys).or_default().holders.insert(process);
    }

    /// A process goes on as another, with the rows that it has.
    pub fn renamed(&mut self, former: ProcessId, process: ProcessId) {
        for held in self.ranges.values_mut() {
            if held.holders.remove(&former) {
                held.holders.insert(process);
            }
        }
    }

    /// Somebody executed a write in this range.
    pub fn wrote(&mut self, (low, high): Keys, position: u64) {
        for (_, held) in self.ranges.iter_mut().filter(|((from, to), _)| *from <= high && low <= *to) {
            held.written = held.written.max(position);
        }
    }

    /// A process was killed. Tells which ranges are lost by that.
    pub fn crashed(&mut self, process: ProcessId, now: Time, standings: &impl Standings) -> Vec<Keys> {
        let mut lost = Vec::new();
        for (&keys, held) in &mut self.ranges {
            if held.holders.contains(&process) && held.has_all(process, standings) {
                held.crashed_at = Some(now);
            }
            if held.holders.remove(&process) && !held.have_all(standings) {
                held.holders.clear();
                lost.push(keys);
            }
        }
        lost
    }

    /// Of those ranges that `concerns` names by their keys and holders: which nobody living has whole, and will not have. `removed`
    /// says when holders were removed.
    pub fn bereft(
        &mut self,
        concerns: impl Fn(Keys, &BTreeSet<ProcessId>) -> bool,
        removed: &BTreeMap<ProcessId, Time>,
        standings: &impl Standings,
    ) -> Result<Vec<Keys>, Violation> {
        let mut lost = Vec::new();
        for (&keys, held) in &mut self.ranges {
            if held.holders.is_empty() || !concerns(keys, &held.holders) || held.have_all(standings) {
                continue;
            }
            let last = held.holders.iter().filter_map(|holder| removed.get(holder)).max();
            let known = |&last: &Time| held.crashed_at.is_none_or(|crashed| crashed + KNOWN_AFTER < last);
            if last.is_some_and(known) {
                let what = format!("{:?} lack rows of {keys:x?}, and were removed last", held.holders);
                return Err(Violation::new("S14", what));
            }
            held.holders.clear();
            lost.push(keys);
        }
        Ok(lost)
    }

    /// A process ends, or drops all its rows, though nothing has happened to it.
    pub fn gave_up(&mut self, process: ProcessId, standings: &impl Standings) -> Result<(), Violation> {
        for (keys, held) in &mut self.ranges {
            let had_all = held.has_all(process, standings);
            if held.holders.remove(&process) && had_all && !held.have_all(standings) {
                let what =
                    format!("{process} gave up {keys:x?}, and was the last that lived and had all its rows");
                return Err(Violation::new("S14", what));
            }
        }
        Ok(())
    }

    /// Those that live and hold all rows of a range.
    pub fn holders(&self, keys: Keys, standings: &impl Standings) -> Vec<ProcessId> {
        let Some(held) = self.ranges.get(&keys) else { return Vec::new() };
        held.holders.iter().copied().filter(|&holder| held.has_all(holder, standings)).collect()
    }

    /// All ranges that ever had a holder.
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

    impl Standings for Known {
        fn is_member(&self, process: ProcessId) -> bool {
            self.members.contains(&process)
        }

        fn delivered(&self, process: ProcessId) -> u64 {
            self.delivered.get(&process).copied().unwrap_or(0)
        }
    }

    /// What the check says of a run: `hN` process N becomes complete, `mN` and `rN`: it becomes a member, or is removed;
    /// `wP` a write is executed at P, `dN` process N has delivered all that was written; `xN` it crashes, `eN` it ends, `pN` it hears that
    /// it was removed, just now; `+S` so many seconds pass.
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
                "p" => match check.bereft(|_, it| it.contains(&who), &BTreeMap::from([(who, now)]), &known) {
                    Ok(lost) if lost.is_empty() => {}
                    Ok(_) => verdict = "lost",
                    Err(_) => return "S14",
                },
                _ => {
                    if check.gave_up(who, &known).is_err() {
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
            // Removed, though the other had died before.
            ("m1 m2 h1 h2 x2 r1 e1", "S14"),
            ("m1 m2 h1 h2 r1 x2 e1", "S14"),
            // It lacks what the other executed and perhaps acknowledged.
            ("m1 m2 h1 h2 r1 w9 x2 e1", "lost"),
            // It was removed, and has delivered all that anybody executed.
            ("m1 m2 h1 h2 w9 d1 r1 x2 e1", "S14"),
            // Nobody has the rows who only became a member.
            ("m1 m2 h1 r1 e1", "S14"),
            ("m1 m2 h1 x1 h2 e2", "S14"),
            // The other crashed while this one was a member and lagged; it was removed before anybody could know.
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
