//! Credits (S7): the number of a sender's ordered data messages that some destination still has to execute
//! never exceeds the sender's credits.

use std::collections::{BTreeMap, BTreeSet};

use quorate_protocol::ProcessId;
use quorate_world::Violation;

/// Ordered data messages that some destination has not executed.
#[derive(Debug)]
pub struct CreditCheck {
    most: usize,
    /// For each sender and position, the destinations that have not executed the message.
    open: BTreeMap<ProcessId, BTreeMap<u64, BTreeSet<ProcessId>>>,
}

impl CreditCheck {
    /// Creates a check that allows each sender at most `most` unexecuted messages.
    pub fn new(most: usize) -> Self {
        CreditCheck { most, open: BTreeMap::new() }
    }

    /// Records that a data message of `sender` was ordered.
    pub fn ordered(
        &mut self,
        position: u64,
        sender: ProcessId,
        destinations: BTreeSet<ProcessId>,
    ) -> Result<(), Violation> {
        if destinations.is_empty() {
            return Ok(());
        }
        let open = self.open.entry(sender).or_default();
        open.insert(position, destinations);
        if open.len() > self.most {
            let what = format!(
                "process {sender} has {} messages under way at position {position}, more than its credits \
                 allow",
                open.len()
            );
            return Err(Violation::new("credits", what));
        }
        Ok(())
    }

    /// Records that `who` has executed everything up to `position`. For a process that will never execute
    /// again, `position` is the maximum.
    pub fn executed(&mut self, who: ProcessId, position: u64) {
        for open in self.open.values_mut() {
            for (_, waiting) in open.range_mut(..=position) {
                waiting.remove(&who);
            }
            open.retain(|_, waiting| !waiting.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::Incarnation;

    use super::*;

    #[test]
    fn what_is_executed_everywhere_is_under_way_no_more() {
        let process = |node| ProcessId { node, incarnation: Incarnation(0) };
        let mut check = CreditCheck::new(1);
        let both = BTreeSet::from([process(2), process(3)]);
        check.ordered(1, process(1), both.clone()).unwrap();
        check.executed(process(2), 1);
        assert_eq!(check.ordered(2, process(1), both.clone()).unwrap_err().rule, "credits");
        check.executed(process(3), u64::MAX);
        check.executed(process(2), 2);
        check.ordered(3, process(1), both).unwrap();
    }
}
