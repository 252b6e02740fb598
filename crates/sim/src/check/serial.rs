//! Whether transactions and plain calls are serializable, in an order that agrees with real time.
//!
//! Every value names the call that wrote it, and every write remembers the value that it replaced. So the
//! versions of a key form a chain. The reads and writes of each unit (a transaction or a plain call) give
//! edges: a unit comes behind the writer of each value that it saw, before the writer of the next version,
//! and behind every unit that had ended when it began. The units are serializable in real time exactly if the
//! graph has no cycle (Adya, *Weak Consistency*, 1999, §3 and §4.4).

use std::collections::BTreeMap;

/// A transaction or a plain call that took effect, or may have taken effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unit {
    /// The earliest time at which the unit can have taken effect.
    pub(crate) start: i64,
    /// The latest time at which the unit can have taken effect, if known.
    pub(crate) finish: Option<i64>,
    /// The unit's calls that wrote.
    pub(crate) writes: Vec<u64>,
    /// The keys that the unit read, each with the call that had written the value.
    pub(crate) reads: Vec<(u64, Option<u64>)>,
}

/// The writes that took effect, as the service's content at the end shows them: for each call, its key and
/// the call whose value it replaced.
pub(crate) type Versions = BTreeMap<u64, (u64, Option<u64>)>;

/// Fails unless the units are serializable in real time. `versions` has the writes that took effect.
pub(crate) fn check(units: &[Unit], versions: &Versions) -> Result<(), String> {
    let writes =
        units.iter().enumerate().flat_map(|(unit, it)| it.writes.iter().map(move |call| (*call, unit)));
    let writer: BTreeMap<u64, usize> = writes.collect();
    let of = |call: u64| {
        let known = versions.contains_key(&call).then(|| writer.get(&call)).flatten();
        known.copied().ok_or_else(|| {
            format!("a transaction or a read saw the value of call {call}, but this call did not take effect")
        })
    };
    let mut next = BTreeMap::new();
    for (call, (key, before)) in versions {
        if let Some(other) = next.insert((*key, *before), *call) {
            return Err(format!("calls {other} and {call} both replaced the same value of key {key}"));
        }
    }
    let mut graph = Graph::new(units);
    for (call, (_, before)) in versions {
        if let Some(before) = before {
            graph.edge(of(*before)?, of(*call)?);
        }
    }
    for (unit, it) in units.iter().enumerate() {
        for (key, seen) in &it.reads {
            if let Some(seen) = seen {
                graph.edge(of(*seen)?, unit);
            }
            if let Some(behind) = next.get(&(*key, *seen)) {
                graph.edge(unit, of(*behind)?);
            }
        }
    }
    match graph.circle() {
        None => Ok(()),
        Some(circle) => {
            let circle: Vec<_> =
                circle.into_iter().take(8).map(|unit| format!("{:?}", units[unit])).collect();
            Err(format!(
                "no order of these transactions and calls explains the values that they saw: {}",
                circle.join("; ")
            ))
        }
    }
}

/// A graph with one node for each unit, followed by one *time node* for each start of a unit, in the order of
/// the starts. Each unit has an edge to the first time node that is later than the end of the unit. Each time
/// node has an edge to the next time node, and an edge to the unit that starts there.
struct Graph {
    edges: Vec<Vec<usize>>,
    units: usize,
}

impl Graph {
    fn new(units: &[Unit]) -> Graph {
        let mut graph = Graph { edges: vec![Vec::new(); 2 * units.len()], units: units.len() };
        let mut starts: Vec<(i64, usize)> =
            units.iter().enumerate().map(|(unit, it)| (it.start, unit)).collect();
        starts.sort_unstable();
        for (place, (_, unit)) in starts.iter().enumerate() {
            graph.edge(units.len() + place, *unit);
            if place + 1 < units.len() {
                graph.edge(units.len() + place, units.len() + place + 1);
            }
        }
        for (unit, it) in units.iter().enumerate() {
            let behind = it.finish.map(|finish| starts.partition_point(|(start, _)| *start <= finish));
            if let Some(behind) = behind.filter(|behind| *behind < units.len()) {
                graph.edge(unit, units.len() + behind);
            }
        }
        graph
    }

    fn edge(&mut self, from: usize, to: usize) {
        if from != to {
            self.edges[from].push(to);
        }
    }

    /// Returns units that cannot be put in order, if there are any.
    fn circle(&self) -> Option<Vec<usize>> {
        let mut before = vec![0; self.edges.len()];
        self.edges.iter().flatten().for_each(|to| before[*to] += 1);
        let mut free: Vec<usize> = (0..before.len()).filter(|node| before[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for to in &self.edges[node] {
                before[*to] -= 1;
                if before[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        let left: Vec<usize> = (0..self.units).filter(|unit| before[*unit] > 0).collect();
        (!left.is_empty()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(span: (i64, i64), writes: &[u64], reads: &[(u64, Option<u64>)]) -> Unit {
        Unit { start: span.0, finish: Some(span.1), writes: writes.to_vec(), reads: reads.to_vec() }
    }

    #[test]
    fn units_that_happen_one_after_another_are_in_order() {
        let units =
            [unit((0, 9), &[1], &[]), unit((0, 9), &[2], &[(7, Some(1))]), unit((3, 5), &[], &[(7, None)])];
        let versions = Versions::from([(1, (7, None)), (2, (7, Some(1)))]);
        assert_eq!(check(&units, &versions), Ok(()));
    }

    #[test]
    fn a_write_skew_is_a_circle() {
        let units = [unit((0, 9), &[1], &[(8, None)]), unit((0, 9), &[2], &[(7, None)])];
        let versions = Versions::from([(1, (7, None)), (2, (8, None))]);
        assert!(check(&units, &versions).unwrap_err().contains("no order"));
    }

    #[test]
    fn a_lost_update_and_a_dirty_read_are_seen() {
        let units = [unit((0, 9), &[1], &[]), unit((0, 9), &[2], &[])];
        let versions = Versions::from([(1, (7, None)), (2, (7, None))]);
        assert!(check(&units, &versions).unwrap_err().contains("the same value"));
        let units = [unit((0, 9), &[], &[(7, Some(3))])];
        assert!(check(&units, &Versions::new()).unwrap_err().contains("did not take effect"));
    }

    #[test]
    fn what_ended_before_is_behind_nothing_that_began_later() {
        let units = [unit((0, 1), &[1], &[]), unit((5, 6), &[], &[(7, None)])];
        let versions = Versions::from([(1, (7, None))]);
        assert!(check(&units, &versions).is_err(), "a stale read");
        let at_once = [unit((0, 5), &[1], &[]), unit((5, 6), &[], &[(7, None)])];
        assert_eq!(check(&at_once, &versions), Ok(()));
    }
}
