//! The cases: the graphs, and the leader at the moment when the network takes that shape.

use super::graph::{Graph, every, shapes, undirected};

/// A family of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Every directed graph on three routers, and every leader.
    Three,
    /// Every undirected graph on five routers, with every leader, in two numberings.
    Undirected,
    /// Every pair of undirected graphs on five routers, of which the first changes into the second, in two
    /// numberings of the second.
    Changing,
    /// Every directed graph on five routers, with every leader, in two numberings.
    Directed,
}

impl Family {
    /// All families, in the order of their cases.
    pub const ALL: [Family; 4] = [Family::Three, Family::Undirected, Family::Changing, Family::Directed];

    /// Returns the description of the family's cases.
    pub fn name(self) -> &'static str {
        match self {
            Family::Three => "directed graphs on 3 routers",
            Family::Undirected => "undirected graphs on 5 routers",
            Family::Changing => "changes between two of these",
            Family::Directed => "directed graphs on 5 routers",
        }
    }
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The index among all cases, which is also its random seed.
    pub number: u64,
    /// The family of the case.
    pub family: Family,
    /// The index of the first graph's shape among the shapes of its family.
    pub shape: usize,
    /// The shapes that the network takes in turn.
    pub graphs: Vec<Graph>,
    /// The router that leads before the first shape.
    pub leader: usize,
}

/// Returns all cases, by number.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |family, shape, graphs, leader| {
        cases.push(Case { number: cases.len() as u64, family, shape, graphs, leader });
    };
    for (shape, graph) in every(3).enumerate() {
        for leader in 0..3 {
            add(Family::Three, shape, vec![graph], leader);
        }
    }
    let directed = shapes(5);
    let plain = undirected(directed.clone());
    // Among routers that can talk with the same number of other routers, elections prefer the greater id.
    let forwards = [0, 1, 2, 3, 4];
    let backwards = [4, 3, 2, 1, 0];
    for (at, shape) in plain.iter().enumerate() {
        for (names, &place) in shape.places.iter().flat_map(|place| [(forwards, place), (backwards, place)]) {
            add(Family::Undirected, at, vec![shape.graph.renamed(&names)], names[place]);
        }
    }
    let mut leader = 0;
    for (at, before) in plain.iter().enumerate() {
        for after in plain.iter().filter(|after| after.graph != before.graph) {
            for names in [forwards, backwards] {
                add(Family::Changing, at, vec![before.graph, after.graph.renamed(&names)], leader);
                leader = (leader + 1) % 5;
            }
        }
    }
    for (at, shape) in directed.iter().enumerate() {
        for (names, &place) in shape.places.iter().flat_map(|place| [(forwards, place), (backwards, place)]) {
            add(Family::Directed, at, vec![shape.graph.renamed(&names)], names[place]);
        }
    }
    cases
}

/// Returns at most `most` cases of each family, evenly spread.
pub fn sample(cases: Vec<Case>, most: usize) -> Vec<Case> {
    let of = |family| cases.iter().filter(move |case: &&Case| case.family == family);
    let counts = Family::ALL.map(|family| (family, of(family).count()));
    let chosen = counts.into_iter().flat_map(|(family, count)| {
        let all: Vec<&Case> = of(family).collect();
        let wanted = most.min(count);
        (0..wanted).map(move |at| all[at * count / wanted].clone()).collect::<Vec<_>>()
    });
    chosen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cases_are_there_and_a_sample_has_some_of_each_kind() {
        let all = cases();
        let counts = |cases: &[Case]| {
            Family::ALL.map(|family| cases.iter().filter(|case| case.family == family).count())
        };
        assert_eq!(counts(&all), [64 * 3, 90 * 2, 34 * 33 * 2, 45_960 * 2]);
        assert!(all.iter().enumerate().all(|(at, case)| case.number == at as u64));
        assert_eq!(counts(&sample(all, 185)), [185, 180, 185, 185]);
    }
}
