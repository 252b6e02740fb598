//! Graphs of links between routers: their enumeration up to isomorphism, and the promises that each graph
//! implies.
//!
//! This file uses no line of the code that it judges.

use std::collections::BTreeSet;

/// Routers numbered from 0, and the directions in which messages pass between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Graph {
    routers: usize,
    /// A bit for each direction, in the order of [`Graph::direction`].
    passing: u32,
}

/// A set of routers: bit `i` stands for router `i`.
pub type Set = u32;

impl Graph {
    /// Returns the graph in which every router hears every other.
    pub fn complete(routers: usize) -> Graph {
        assert!((1..=ROUTERS_MAX).contains(&routers), "a graph has between one and {ROUTERS_MAX} routers");
        Graph { routers, passing: (1 << (routers * (routers - 1))) - 1 }
    }

    /// Returns the number of routers.
    pub fn routers(self) -> usize {
        self.routers
    }

    /// Returns the set of all routers.
    pub fn all(self) -> Set {
        (1 << self.routers) - 1
    }

    fn direction(self, from: usize, to: usize) -> usize {
        from * (self.routers - 1) + to - usize::from(to > from)
    }

    /// Whether `to` hears `from`.
    pub fn passes(self, from: usize, to: usize) -> bool {
        from != to && self.passing & 1 << self.direction(from, to) != 0
    }

    /// Whether the routers `one` and `other` hear each other.
    pub fn talk(self, one: usize, other: usize) -> bool {
        self.passes(one, other) && self.passes(other, one)
    }

    /// Whether each pair passes messages both ways or not at all.
    pub fn is_undirected(self) -> bool {
        pairs(self.routers).all(|(one, other)| self.passes(one, other) == self.passes(other, one))
    }

    /// Returns the same graph with router `i` called `names[i]`.
    pub fn renamed(self, names: &[usize]) -> Graph {
        let mut passing = 0;
        for (from, to) in pairs(self.routers).flat_map(|(one, other)| [(one, other), (other, one)]) {
            if self.passes(from, to) {
                passing |= 1 << self.direction(names[from], names[to]);
            }
        }
        Graph { passing, ..self }
    }

    /// Returns the same graph under all possible names of its routers.
    pub fn renamings(self) -> impl Iterator<Item = Graph> {
        permutations(self.routers).into_iter().map(move |names| self.renamed(&names))
    }

    /// Returns the directions in which messages pass.
    pub fn links(self) -> impl Iterator<Item = (usize, usize)> {
        let all = (0..self.routers).flat_map(move |from| (0..self.routers).map(move |to| (from, to)));
        all.filter(move |&(from, to)| self.passes(from, to))
    }

    /// Returns the pairs that talk.
    pub fn edges(self) -> impl Iterator<Item = (usize, usize)> {
        pairs(self.routers).filter(move |&(one, other)| self.talk(one, other))
    }

    /// Returns the members that can talk both ways with a majority of the members, counting themselves.
    pub fn connected(self, members: Set) -> Set {
        let talks = |router: usize| {
            let others = (0..self.routers).filter(|&other| members & 1 << other != 0);
            others.filter(|&other| other == router || self.talk(router, other)).count()
        };
        let all = (0..self.routers).filter(|&router| members & 1 << router != 0);
        let connected = all.filter(|&router| talks(router) > members.count_ones() as usize / 2);
        connected.fold(0, |set, router| set | 1 << router)
    }

    /// Whether progress is promised to a client that talks with the routers of `linked`: it talks with a
    /// connected member, directly or through other members.
    pub fn promises(self, members: Set, linked: Set) -> bool {
        let goes = |graph: Graph, from: usize, to: usize| members & 1 << to != 0 && graph.talk(from, to);
        self.beyond(linked & members, goes) & self.connected(members) != 0
    }

    /// Whether `to` hears of `from` along some chain of members. If `both` is set, the members of the chain
    /// must hear each other.
    pub fn hears_of(self, members: Set, from: usize, to: usize, both: bool) -> bool {
        let goes = |graph: Graph, one: usize, next: usize| {
            let hears = if both { graph.talk(one, next) } else { graph.passes(one, next) };
            hears && members & 1 << next != 0
        };
        self.beyond(1 << from, goes) & 1 << to != 0
    }

    /// Returns all routers that can be reached from `start` along steps that `goes` allows.
    fn beyond(self, start: Set, goes: impl Fn(Graph, usize, usize) -> bool) -> Set {
        let mut reached = start;
        loop {
            let next = (0..self.routers)
                .filter(|&to| (0..self.routers).any(|from| reached & 1 << from != 0 && goes(self, from, to)));
            let more = next.fold(reached, |set, router| set | 1 << router);
            if more == reached {
                return reached;
            }
            reached = more;
        }
    }
}

/// A class of graphs that differ only by the names of their routers.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The first graph of the class.
    pub graph: Graph,
    /// One router for each place in the graph. Two routers have the same place if some renaming of the graph
    /// into itself exchanges them. The first router with a place stands for the place.
    pub places: Vec<usize>,
}

/// Returns all shapes of graphs with `routers` routers, in the order of their first graphs.
pub fn shapes(routers: usize) -> Vec<Shape> {
    let complete = Graph::complete(routers);
    let namings = permutations(routers);
    let mut seen = vec![false; complete.passing as usize + 1];
    let mut shapes = Vec::new();
    for passing in 0..=complete.passing {
        if seen[passing as usize] {
            continue;
        }
        let graph = Graph { routers, passing };
        let mut first: Vec<usize> = (0..routers).collect();
        for names in &namings {
            let other = graph.renamed(names);
            seen[other.passing as usize] = true;
            if other == graph {
                for (router, &name) in names.iter().enumerate() {
                    first[name] = first[name].min(router);
                }
            }
        }
        let places: BTreeSet<usize> = first.into_iter().collect();
        shapes.push(Shape { graph, places: places.into_iter().collect() });
    }
    shapes.sort_by_key(|shape| shape.graph.passing.count_ones());
    shapes
}

/// Returns the undirected shapes among `shapes`.
pub fn undirected(mut shapes: Vec<Shape>) -> Vec<Shape> {
    shapes.retain(|shape| shape.graph.is_undirected());
    shapes
}

/// Returns every graph with `routers` routers, under every naming.
pub(super) fn every(routers: usize) -> impl Iterator<Item = Graph> {
    (0..=Graph::complete(routers).passing).map(move |passing| Graph { routers, passing })
}

fn pairs(routers: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..routers).flat_map(move |one| (one + 1..routers).map(move |other| (one, other)))
}

fn permutations(length: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for next in 0..length {
        all = (all.iter())
            .flat_map(|shorter| {
                (0..=shorter.len()).map(move |at| {
                    let mut longer = shorter.clone();
                    longer.insert(at, next);
                    longer
                })
            })
            .collect();
    }
    all
}

const ROUTERS_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(routers: usize, directions: &[(usize, usize)]) -> Graph {
        let mut graph = Graph { routers, passing: 0 };
        for &(from, to) in directions {
            graph.passing |= 1 << graph.direction(from, to);
        }
        graph
    }

    fn both(routers: usize, edges: &[(usize, usize)]) -> Graph {
        let directions: Vec<_> =
            edges.iter().flat_map(|&(one, other)| [(one, other), (other, one)]).collect();
        graph(routers, &directions)
    }

    /// Counts the shapes: their numbers are those of OEIS A000273 and A000088, and the corresponding numbers
    /// with a marked vertex.
    #[test]
    fn there_are_as_many_shapes_as_others_counted() {
        let marked = |shapes: &[Shape]| shapes.iter().map(|shape| shape.places.len()).sum::<usize>();
        for (routers, directed, undirected_count) in
            [(1, (1, 1), (1, 1)), (2, (3, 4), (2, 2)), (3, (16, 36), (4, 6)), (4, (218, 752), (11, 20))]
        {
            let all = shapes(routers);
            assert_eq!((all.len(), marked(&all)), directed);
            let some = undirected(all);
            assert_eq!((some.len(), marked(&some)), undirected_count);
        }
        let all = shapes(5);
        assert_eq!((all.len(), marked(&all)), (9_608, 45_960));
        let some = undirected(all);
        assert_eq!((some.len(), marked(&some)), (34, 90));
        assert_eq!(every(3).count(), 64);
    }

    #[test]
    fn a_majority_of_five_is_promised_for_31_of_34() {
        let shapes = undirected(shapes(5));
        let promised = shapes.iter().filter(|shape| shape.graph.connected(shape.graph.all()) != 0);
        assert_eq!(promised.count(), 31);
    }

    #[test]
    fn who_is_connected_and_who_is_promised_what() {
        // 0 - 1 - 2, 3 - 4: only router 1 talks with a majority, and no router of the other side reaches it.
        let path = both(5, &[(0, 1), (1, 2), (3, 4)]);
        assert_eq!(path.connected(path.all()), 0b00010);
        assert!(path.promises(path.all(), 0b00100) && !path.promises(path.all(), 0b11000));
        // Of the members 0, 1, 2, each talks with at least two, counting itself, so all are connected.
        assert_eq!(path.connected(0b00111), 0b00111);
        // In a ring of one-way links every router is heard of, and no two routers talk.
        let ring = graph(3, &[(0, 1), (1, 2), (2, 0)]);
        assert_eq!(ring.connected(0b111), 0);
        assert!(ring.hears_of(0b111, 0, 2, false) && !ring.hears_of(0b111, 0, 2, true));
        assert!(!ring.hears_of(0b101, 0, 2, false));
        assert_eq!(Graph::complete(5).edges().count(), 10);
    }
}
