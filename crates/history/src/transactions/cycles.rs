//! The search for one cycle of each kind.

use super::graph::{
    Components, Dependencies,
    Dependency::{self, *},
    DependencyGraph, Edge, GraphBuilder, PathSearch,
};
use super::report::Anomaly;

/// A group of isolation levels: the dependencies that only these levels count, and the names of their cycles.
/// The first tier counts neither sessions nor time, the second counts sessions, and the third counts both.
struct Tier {
    /// Dependencies that only this tier counts, without anti-dependencies.
    order: Dependencies,
    /// Anti-dependencies that only this tier counts.
    anti: Dependencies,
    /// Names of four kinds of cycles: writes alone, writes and reads, one anti-dependency, and several of
    /// them.
    names: [Anomaly; 4],
}

const TIERS: [Tier; 3] = [
    Tier {
        order: Dependencies::of(&[]),
        anti: Dependencies::of(&[]),
        names: [Anomaly::G0, Anomaly::G1c, Anomaly::GSingle, Anomaly::G2Item],
    },
    Tier {
        order: Dependencies::of(&[Session, SessionWriteWrite]),
        anti: Dependencies::of(&[]),
        names: [Anomaly::G0Session, Anomaly::G1cSession, Anomaly::GSingleSession, Anomaly::G2ItemSession],
    },
    Tier {
        order: Dependencies::of(&[Session, SessionWriteWrite, Time, TimeWriteWrite]),
        anti: Dependencies::of(&[TimeReadWrite]),
        names: [Anomaly::G0Time, Anomaly::G1cTime, Anomaly::GSingleTime, Anomaly::G2ItemTime],
    },
];

const WRITES: Dependencies = Dependencies::of(&[WriteWrite, SessionWriteWrite, TimeWriteWrite]);
const READS: Dependencies = Dependencies::of(&[WriteRead]);
const ANTI: Dependencies = Dependencies::of(&[ReadWrite, TimeReadWrite]);

/// Finds at most one cycle of each kind. If a kind was found without sessions and time, it is not searched
/// for again with them.
pub(super) fn find(graph: &DependencyGraph) -> Vec<(Anomaly, Vec<Edge>)> {
    let mut found: Vec<(Anomaly, Vec<Edge>)> = Vec::new();
    let all = graph.components(Dependencies::ALL, None);
    if all.count == 0 {
        return found;
    }
    let mut is_found = [false; 4];
    for tier in TIERS {
        let writes = Dependencies::of(&[WriteWrite, Onward]).and(tier.order);
        let reads = writes.and(READS);
        let anti = reads.and(Dependencies::of(&[ReadWrite])).and(tier.anti);
        let whole = graph.components(anti, Some(&all));
        if whole.count == 0 {
            continue;
        }
        let mut search = CycleSearch { graph, paths: PathSearch::new(graph, 0), anti };
        let kinds = [(WRITES, writes), (READS, reads), (ANTI, reads)];
        for (kind, (closing, back)) in kinds.into_iter().enumerate() {
            let narrow = (kind < 2).then(|| graph.components(back, Some(&whole)));
            let within = narrow.as_ref().unwrap_or(&whole);
            if is_found[kind] || within.count == 0 {
                continue;
            }
            if let Some(cycle) = search.shortest(closing, back, within) {
                is_found[kind] = true;
                found.push((tier.names[kind], cycle));
            }
        }
        if !is_found[2]
            && tier.names[2] == Anomaly::GSingle
            && let Some(cycle) = search.without_adjacent(&whole)
        {
            found.push((Anomaly::GNonadjacent, cycle));
        }
        if !is_found[3]
            && let Some(cycle) = search.with_several(&whole)
        {
            is_found[3] = true;
            found.push((tier.names[3], cycle));
        }
        // The graph has a cycle, so the report must name a cycle, even if the budget was too small for every
        // kind.
        if found.is_empty()
            && let Some(cycle) = search.shortest(WRITES.and(READS).and(ANTI), anti, &whole)
        {
            let several = cycle.iter().filter(|edge| ANTI.has(edge.dependency)).count() > 1;
            let kind = if several { 3 } else { 2 };
            is_found[kind] = true;
            found.push((tier.names[kind], cycle));
        }
    }
    found
}

struct CycleSearch<'a> {
    graph: &'a DependencyGraph,
    paths: PathSearch<'a>,
    /// All dependencies that the tier counts.
    anti: Dependencies,
}

impl CycleSearch<'_> {
    /// Finds a shortest cycle that consists of one edge of `closing` and a path of edges of `back`.
    fn shortest(
        &mut self,
        closing: Dependencies,
        back: Dependencies,
        within: &Components,
    ) -> Option<Vec<Edge>> {
        let candidates = candidates(self.graph, closing.meet(self.anti), within);
        shortest(&mut self.paths, candidates.map(|edge| (edge, edge.to, edge.from)), back, within, |_| true)
    }

    /// Finds a cycle in which no two anti-dependencies stand next to each other. Snapshot isolation permits
    /// no such cycle.
    fn without_adjacent(&self, within: &Components) -> Option<Vec<Edge>> {
        // Each node is doubled. A walk is at the second copy if its last edge was an anti-dependency.
        let walks = doubled(self.graph, self.anti, within, |after_anti, dependency| match dependency {
            Onward => Some(after_anti),
            ReadWrite | TimeReadWrite if after_anti => None,
            ReadWrite | TimeReadWrite => Some(true),
            _ => Some(false),
        });
        let cyclic = walks.components(Dependencies::ALL, None);
        let mut paths = PathSearch::new(&walks, 0);
        let candidates = candidates(&walks, ANTI, &cyclic).map(|edge| (edge, edge.to, edge.from));
        let cycle = shortest(&mut paths, candidates, Dependencies::ALL, &cyclic, |_| true)?;
        Some(cycle.into_iter().map(single).collect())
    }

    /// Finds a cycle with at least two anti-dependencies that meets each transaction once.
    fn with_several(&self, within: &Components) -> Option<Vec<Edge>> {
        // Each node is doubled. A path is at the second copy if it has already followed an anti-dependency.
        let walks = doubled(self.graph, self.anti, within, |after_anti, dependency| {
            Some(after_anti || ANTI.has(dependency))
        });
        let mut paths = PathSearch::new(&walks, 0);
        let candidates = candidates(self.graph, ANTI.meet(self.anti), within);
        let candidates = candidates.map(|edge| (edge, 2 * edge.to, 2 * edge.from + 1));
        let transactions = self.graph.transactions;
        let is_simple = |path: &[Edge]| {
            let first = path.first().map(|edge| edge.from / 2);
            let mut nodes: Vec<u32> = first.into_iter().chain(path.iter().map(|edge| edge.to / 2)).collect();
            nodes.retain(|node| *node < transactions);
            let count = nodes.len();
            nodes.sort_unstable();
            nodes.dedup();
            nodes.len() == count
        };
        let mut cycle = shortest(&mut paths, candidates, Dependencies::ALL, &within.doubled(), is_simple)?;
        for edge in &mut cycle[1..] {
            *edge = single(*edge);
        }
        Some(cycle)
    }
}

/// Converts an edge of the doubled graph to the edge of the original graph.
fn single(edge: Edge) -> Edge {
    Edge { from: edge.from / 2, to: edge.to / 2, ..edge }
}

/// Returns a graph of walks that remember one bit: each node has a copy for either value of the bit. `next`
/// computes the bit after an edge from the bit before it, or returns `None` if the walk must not follow the
/// edge.
fn doubled(
    graph: &DependencyGraph,
    allowed: Dependencies,
    within: &Components,
    next: impl Fn(bool, Dependency) -> Option<bool>,
) -> DependencyGraph {
    let mut walks = GraphBuilder::doubled(graph);
    for edge in candidates(graph, allowed, within) {
        for bit in [false, true] {
            if let Some(then) = next(bit, edge.dependency) {
                let (from, to) = (2 * edge.from + u32::from(bit), 2 * edge.to + u32::from(then));
                walks.edge(from, to, edge.key, edge.dependency);
            }
        }
    }
    walks.finish()
}

/// Returns the edges of these dependencies whose two ends lie in one component.
fn candidates(
    graph: &DependencyGraph,
    dependencies: Dependencies,
    within: &Components,
) -> impl Iterator<Item = Edge> {
    let nodes = (0..graph.nodes()).filter(|node| within.of(*node) != 0);
    let edges = nodes.flat_map(|node| graph.edges_of(node));
    edges.filter(move |edge| dependencies.has(edge.dependency) && within.join(edge.from, edge.to))
}

/// Finds a shortest cycle over all candidates. A candidate is an edge, and the two nodes between which a path
/// must lead so that it closes the cycle.
fn shortest(
    paths: &mut PathSearch<'_>,
    candidates: impl Iterator<Item = (Edge, u32, u32)>,
    back: Dependencies,
    within: &Components,
    accepts: impl Fn(&[Edge]) -> bool,
) -> Option<Vec<Edge>> {
    // The budget always suffices for one search of the whole graph.
    paths.budget = BUDGET.max(2 * paths.edges());
    let mut best: Option<(u32, Vec<Edge>)> = None;
    for (closing, from, to) in candidates {
        let steps_max = best.as_ref().map_or(u32::MAX, |(steps, _)| *steps);
        if let Some(path) = paths.path(from, to, back, within, steps_max)
            && accepts(&path)
        {
            let steps = paths.steps(&path);
            let cycle = std::iter::once(closing).chain(path).collect();
            if best.as_ref().is_none_or(|(fewest, _)| steps < *fewest) {
                best = Some((steps, cycle));
            }
            if steps <= 1 {
                break;
            }
        }
        if paths.budget == 0 {
            break;
        }
    }
    best.map(|(_, cycle)| cycle)
}

/// Largest number of edges that the search for one kind of cycle follows.
const BUDGET: u64 = 20_000_000;
