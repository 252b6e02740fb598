//! The graph of dependencies, its strongly connected components, and shortest paths in it.
//!
//! The first nodes are the transactions. The nodes after them are *joints*. If every one of many transactions
//! comes before every one of many others, a joint between them saves edges. An edge that leaves a joint
//! continues the edge that entered it, and does not count as a step.

use std::collections::VecDeque;

/// The reason why one transaction comes before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Dependency {
    /// The latter replaced a version that the former wrote.
    WriteWrite,
    /// The latter read a version that the former wrote.
    WriteRead,
    /// The latter replaced a version that the former read.
    ReadWrite,
    /// The same client began the former transaction and then the latter.
    Session,
    /// Like `WriteWrite`. The order of the versions is known because a client saw them in this order.
    SessionWriteWrite,
    /// The former ended before the latter began.
    Time,
    /// Like `WriteWrite`. The order of the versions is known because the former transaction ended before a
    /// read of the latter's version began.
    TimeWriteWrite,
    /// Like `ReadWrite`. The order of the versions is known because the version that the former read had been
    /// written before the latter began.
    TimeReadWrite,
    /// An edge that leaves a joint. It continues the dependency that entered the joint.
    Onward,
}

/// A set of dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dependencies(u16);

impl Dependencies {
    pub(super) const ALL: Self = Self(u16::MAX);

    pub(super) const fn of(list: &[Dependency]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < list.len() {
            bits |= 1 << list[index] as u16;
            index += 1;
        }
        Self(bits)
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the dependencies that are in both sets.
    pub(super) fn meet(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn has(self, dependency: Dependency) -> bool {
        self.0 & 1 << dependency as u16 != 0
    }
}

/// An edge, with the key by which its transactions depend on each other. Edges of time and of sessions
/// concern no key, and their key is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) key: u32,
    pub(super) dependency: Dependency,
}

/// Collects the edges of a graph.
#[derive(Debug)]
pub(super) struct GraphBuilder {
    transactions: u32,
    nodes: u32,
    edges: Vec<Edge>,
}

impl GraphBuilder {
    pub(super) fn new(transactions: usize) -> Self {
        let transactions = transactions as u32;
        Self { transactions, nodes: transactions, edges: Vec::new() }
    }

    /// Creates a builder for a graph that has two nodes for each node of `graph`.
    pub(super) fn doubled(graph: &DependencyGraph) -> Self {
        Self { transactions: 2 * graph.transactions, nodes: 2 * graph.nodes(), edges: Vec::new() }
    }

    /// Adds a joint and returns its node.
    pub(super) fn joint(&mut self) -> u32 {
        self.nodes += 1;
        self.nodes - 1
    }

    /// Adds an edge. An edge from a transaction to itself is left out.
    pub(super) fn edge(&mut self, from: u32, to: u32, key: u32, dependency: Dependency) {
        if from != to {
            self.edges.push(Edge { from, to, key, dependency });
        }
    }

    /// Sorts the edges by their first node.
    pub(super) fn finish(self) -> DependencyGraph {
        let Self { transactions, nodes, edges } = self;
        let mut first = vec![0u32; nodes as usize + 2];
        for edge in &edges {
            first[edge.from as usize + 2] += 1;
        }
        for node in 2..first.len() {
            first[node] += first[node - 1];
        }
        let mut heads = vec![(0, 0, Dependency::Onward); edges.len()];
        for edge in &edges {
            let place = &mut first[edge.from as usize + 1];
            heads[*place as usize] = (edge.to, edge.key, edge.dependency);
            *place += 1;
        }
        first.pop();
        DependencyGraph { transactions, first, heads }
    }
}

/// The graph. The edges that leave a node are stored side by side.
#[derive(Debug)]
pub(super) struct DependencyGraph {
    pub(super) transactions: u32,
    first: Vec<u32>,
    heads: Vec<(u32, u32, Dependency)>,
}

/// The components of a graph that hold a cycle.
#[derive(Debug)]
pub(super) struct Components {
    /// Number of each node's component, or 0 for a node on no cycle.
    of: Vec<u32>,
    /// Number of components with a cycle.
    pub(super) count: u32,
}

impl Components {
    pub(super) fn of(&self, node: u32) -> u32 {
        self.of[node as usize]
    }

    /// Returns the components of a graph that has two nodes for each node of this graph. Both nodes are in
    /// the component of the original node.
    pub(super) fn doubled(&self) -> Self {
        let of = self.of.iter().flat_map(|of| [*of, *of]).collect();
        Self { of, count: self.count }
    }

    pub(super) fn join(&self, from: u32, to: u32) -> bool {
        self.of(from) != 0 && self.of(from) == self.of(to)
    }
}

impl DependencyGraph {
    pub(super) fn nodes(&self) -> u32 {
        self.first.len() as u32 - 1
    }

    fn edge_range(&self, node: u32) -> std::ops::Range<usize> {
        self.first[node as usize] as usize..self.first[node as usize + 1] as usize
    }

    pub(super) fn edges_of(&self, from: u32) -> impl Iterator<Item = Edge> {
        let heads = &self.heads[self.edge_range(from)];
        heads.iter().map(move |(to, key, dependency)| Edge {
            from,
            to: *to,
            key: *key,
            dependency: *dependency,
        })
    }

    /// Finds the components with a cycle, by Tarjan's algorithm without recursion. Uses only edges of
    /// `allowed`. If `within` is given, the search uses only edges inside one of its components.
    pub(super) fn components(&self, allowed: Dependencies, within: Option<&Components>) -> Components {
        const UNSEEN: u32 = u32::MAX;
        let nodes = self.nodes() as usize;
        let mut index = vec![UNSEEN; nodes];
        let mut low = vec![0u32; nodes];
        let mut of = vec![0u32; nodes];
        let mut on_stack = vec![false; nodes];
        let (mut stack, mut calls) = (Vec::new(), Vec::<(u32, u32)>::new());
        let (mut next, mut count) = (0, 0);
        for root in 0..nodes as u32 {
            if index[root as usize] != UNSEEN || within.is_some_and(|within| within.of(root) == 0) {
                continue;
            }
            calls.push((root, self.first[root as usize]));
            while let Some((node, edge)) = calls.last_mut() {
                let (at, node) = (*node as usize, *node);
                if index[at] == UNSEEN {
                    (index[at], low[at], on_stack[at]) = (next, next, true);
                    next += 1;
                    stack.push(node);
                }
                if *edge < self.first[at + 1] {
                    let (to, _, dependency) = self.heads[*edge as usize];
                    *edge += 1;
                    if !allowed.has(dependency) || within.is_some_and(|within| !within.join(node, to)) {
                        continue;
                    }
                    if index[to as usize] == UNSEEN {
                        calls.push((to, self.first[to as usize]));
                    } else if on_stack[to as usize] {
                        low[at] = low[at].min(index[to as usize]);
                    }
                    continue;
                }
                calls.pop();
                if let Some((caller, _)) = calls.last() {
                    let caller = *caller as usize;
                    low[caller] = low[caller].min(low[at]);
                }
                if low[at] == index[at] {
                    let begin =
                        stack.iter().rposition(|member| *member == node).expect("a root is on the stack");
                    let members = &stack[begin..];
                    count += u32::from(members.len() > 1);
                    for member in members {
                        on_stack[*member as usize] = false;
                        of[*member as usize] = if members.len() > 1 { count } else { 0 };
                    }
                    stack.truncate(begin);
                }
            }
        }
        Components { of, count }
    }
}

/// Searches shortest paths in one graph. Many searches share one budget of edges.
#[derive(Debug)]
pub(super) struct PathSearch<'a> {
    graph: &'a DependencyGraph,
    /// Edges that the searches may still follow.
    pub(super) budget: u64,
    /// Number of the present search, and for each node the number of the last search that reached it.
    search: u32,
    reached: Vec<u32>,
    /// For each reached node, the number of steps to it and the last edge of the path to it.
    steps: Vec<u32>,
    by: Vec<Edge>,
    // Bounded by the history: the queue holds each node of the graph at most twice.
    queue: VecDeque<(u32, u32)>,
}

impl<'a> PathSearch<'a> {
    pub(super) fn new(graph: &'a DependencyGraph, budget: u64) -> Self {
        let nodes = graph.nodes() as usize;
        let none = Edge { from: 0, to: 0, key: 0, dependency: Dependency::Onward };
        Self {
            graph,
            budget,
            search: 0,
            reached: vec![0; nodes],
            steps: vec![0; nodes],
            by: vec![none; nodes],
            queue: VecDeque::new(),
        }
    }

    /// Returns the edges of a shortest path with fewer than `steps_max` steps, if there is one and the budget
    /// suffices. The path stays in the component of `from`, and an edge that leaves a joint is no step.
    pub(super) fn path(
        &mut self,
        from: u32,
        to: u32,
        allowed: Dependencies,
        within: &Components,
        steps_max: u32,
    ) -> Option<Vec<Edge>> {
        self.search += 1;
        self.queue.clear();
        self.reached[from as usize] = self.search;
        self.steps[from as usize] = 0;
        self.queue.push_back((from, 0));
        while let Some((node, steps)) = self.queue.pop_front() {
            if steps > self.steps[node as usize] {
                continue; // reached with fewer steps since
            }
            if node == to {
                return Some(self.path_back(from, to));
            }
            let is_joint = node >= self.graph.transactions;
            let steps = steps + u32::from(!is_joint);
            if steps >= steps_max {
                continue;
            }
            for edge in self.graph.edges_of(node) {
                self.budget = self.budget.checked_sub(1)?;
                let at = edge.to as usize;
                let is_new = self.reached[at] != self.search || steps < self.steps[at];
                if !is_new || !allowed.has(edge.dependency) || !within.join(from, edge.to) {
                    continue;
                }
                (self.reached[at], self.steps[at], self.by[at]) = (self.search, steps, edge);
                match is_joint {
                    true => self.queue.push_front((edge.to, steps)),
                    false => self.queue.push_back((edge.to, steps)),
                }
            }
        }
        None
    }

    /// Returns the number of edges of the graph.
    pub(super) fn edges(&self) -> u64 {
        self.graph.heads.len() as u64
    }

    /// Returns the number of steps of a path.
    pub(super) fn steps(&self, path: &[Edge]) -> u32 {
        path.iter().filter(|edge| edge.from < self.graph.transactions).count() as u32
    }

    fn path_back(&self, from: u32, to: u32) -> Vec<Edge> {
        let mut path = Vec::new();
        let mut node = to;
        while node != from {
            let edge = self.by[node as usize];
            path.push(edge);
            node = edge.from;
        }
        path.reverse();
        path
    }
}
