//! The results of inference: the graph's edges, and the anomalies that need no cycle.

use std::collections::BTreeMap;

use super::graph::{Dependency, GraphBuilder};
use super::history::TransactionHistory;
use super::report::{Anomaly, AnomalyReport};
use crate::operation::{Nanos, Outcome};

/// The edges and anomalies that were found so far.
#[derive(Debug)]
pub(super) struct Inference<'a> {
    pub(super) history: &'a TransactionHistory,
    pub(super) graph: GraphBuilder,
    /// Whether each transaction took effect: it was answered, or some read returned one of its writes.
    pub(super) committed: Vec<bool>,
    /// For each append, its place in the key's order, from 1. The place is 0 if no read of that order
    /// returned the appended element.
    pub(super) places: Vec<u32>,
    // Bounded by the kinds of anomalies.
    found: BTreeMap<Anomaly, AnomalyReport>,
}

impl<'a> Inference<'a> {
    pub(super) fn new(history: &'a TransactionHistory) -> Self {
        Self {
            history,
            graph: GraphBuilder::new(history.len()),
            committed: history.transactions.iter().map(|one| one.outcome == Outcome::Ok).collect(),
            places: vec![0; history.steps.len()],
            found: BTreeMap::new(),
        }
    }

    /// Records a case of an anomaly. The report explains the first case of each kind.
    pub(super) fn anomaly(
        &mut self,
        anomaly: Anomaly,
        transactions: &[u32],
        because: impl FnOnce(&TransactionHistory) -> Vec<String>,
    ) {
        let history = self.history;
        let report = self.found.entry(anomaly).or_insert_with(|| AnomalyReport {
            anomaly,
            refutes: anomaly.refutes(),
            count: 0,
            transactions: transactions.iter().map(|one| history.text(*one)).collect(),
            because: because(history),
        });
        report.count += 1;
    }

    /// Whether a case of this anomaly was found.
    pub(super) fn is_found(&self, anomaly: Anomaly) -> bool {
        self.found.contains_key(&anomaly)
    }

    /// Adds the edges of sessions and of time between committed transactions.
    pub(super) fn order_of_time(&mut self) {
        let transactions = &self.history.transactions;
        let mut begun: Vec<(Nanos, u32)> = Vec::new();
        let mut ended: Vec<(Nanos, u32)> = Vec::new();
        for (number, transaction) in
            (0..).zip(transactions).filter(|(number, _)| self.committed[*number as usize])
        {
            begun.push((transaction.start, number));
            ended.extend(transaction.finish.map(|finish| (finish, number)));
        }
        begun.sort_unstable();
        ended.sort_unstable();

        // Builds a chain of joints, one for each instant at which a transaction ended. Each transaction has
        // an edge to the joint of its end, and an edge from the last joint before its start.
        let mut ends = ended.into_iter().peekable();
        let mut last = None;
        for (start, number) in &begun {
            while let Some((finish, _)) = ends.peek().copied().filter(|(finish, _)| finish < start) {
                let joint = self.graph.joint();
                if let Some(last) = last {
                    self.graph.edge(last, joint, 0, Dependency::Time);
                }
                while let Some((_, ended)) = ends.next_if(|(other, _)| *other == finish) {
                    self.graph.edge(ended, joint, 0, Dependency::Time);
                }
                last = Some(joint);
            }
            if let Some(last) = last {
                self.graph.edge(last, *number, 0, Dependency::Time);
            }
        }

        let mut sessions: Vec<(u64, Nanos, u32)> = begun
            .iter()
            .map(|(start, number)| (transactions[*number as usize].client, *start, *number))
            .collect();
        sessions.sort_unstable();
        for pair in sessions.windows(2) {
            let [(client, _, former), (other, _, latter)] = [pair[0], pair[1]];
            // A transaction of unknown outcome may take effect after later transactions of its client.
            if client == other && transactions[former as usize].outcome == Outcome::Ok {
                self.graph.edge(former, latter, 0, Dependency::Session);
            }
        }
    }

    /// Returns the anomalies found so far.
    pub(super) fn into_parts(self) -> (GraphBuilder, Vec<bool>, Vec<AnomalyReport>) {
        (self.graph, self.committed, self.found.into_values().collect())
    }
}

/// Transactions that all come after some other transactions. The edges from those transactions lead to the
/// members through joints, so that the number of edges is linear.
#[derive(Debug)]
pub(super) struct Fan {
    /// The transactions, in ascending order.
    members: Vec<u32>,
    /// For each member, the node that leads to all members up to it, and the node that leads to all members
    /// from it on.
    up_to: Vec<u32>,
    from: Vec<u32>,
}

impl Fan {
    /// Creates a fan with these members, which must be sorted in ascending order.
    pub(super) fn new(graph: &mut GraphBuilder, key: u32, members: Vec<u32>) -> Self {
        let chain = |graph: &mut GraphBuilder, members: &mut dyn Iterator<Item = u32>| {
            let mut nodes: Vec<u32> = Vec::new();
            for member in members {
                let node = match nodes.last() {
                    None => member,
                    Some(last) => {
                        let joint = graph.joint();
                        graph.edge(joint, *last, key, Dependency::Onward);
                        graph.edge(joint, member, key, Dependency::Onward);
                        joint
                    }
                };
                nodes.push(node);
            }
            nodes
        };
        let up_to = chain(graph, &mut members.iter().copied());
        let mut from = chain(graph, &mut members.iter().rev().copied());
        from.reverse();
        Self { members, up_to, from }
    }

    /// Adds edges from `source` to all members except `source` itself.
    pub(super) fn after(&self, graph: &mut GraphBuilder, source: u32, key: u32, dependency: Dependency) {
        let (before, behind) = match self.members.binary_search(&source) {
            Ok(index) => (index.checked_sub(1).map(|index| self.up_to[index]), self.from.get(index + 1)),
            Err(_) => (None, self.from.first()),
        };
        for node in before.into_iter().chain(behind.copied()) {
            graph.edge(source, node, key, dependency);
        }
    }
}
