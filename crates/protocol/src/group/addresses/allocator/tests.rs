//! Tests of the allocator: the groups that share an address, and the unwanted deliveries that result.

use super::*;
use crate::{group::ADDRESSES_MAX, id::Incarnation};

fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(0) }
}

fn candidate(group: u64, members: impl IntoIterator<Item = u64>, rate: u64) -> Candidate {
    let mut members: Vec<ProcessId> = members.into_iter().map(process).collect();
    members.sort_unstable();
    members.dedup();
    Candidate { group: GroupId(group), members, rate, before: None }
}

/// A deterministic source of uniform numbers below a bound.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Draws a number below `bound`. Smaller numbers are likelier.
    fn skewed(&mut self, bound: u64) -> u64 {
        let most = 1 + self.below(bound);
        self.below(most)
    }

    fn some(&mut self, count: u64, of: u64) -> Vec<u64> {
        (0..count).map(|_| self.below(of)).collect()
    }
}

/// Counts the wanted and the unwanted deliveries from the listeners of each address, without the allocator's
/// own counters.
fn deliveries(candidates: &[Candidate], assigned: &BTreeMap<GroupId, u16>) -> (u64, u64) {
    let mut listens: BTreeMap<u16, Vec<ProcessId>> = BTreeMap::new();
    for it in candidates {
        if let Some(address) = assigned.get(&it.group) {
            listens.entry(*address).or_default().extend(&it.members);
        }
    }
    for all in listens.values_mut() {
        all.sort_unstable();
        all.dedup();
    }
    candidates.iter().filter_map(|it| Some((it, assigned.get(&it.group)?))).fold(
        (0, 0),
        |(wanted, unwanted), (it, address)| {
            let (members, all) = (it.members.len() as u64, listens[address].len() as u64);
            (wanted + it.rate * members, unwanted + it.rate * (all - members))
        },
    )
}

/// Assigns addresses, and asserts the rules that every assignment obeys.
fn judged(candidates: &[Candidate], limit: usize) -> (BTreeMap<GroupId, u16>, AddressStatistics) {
    let (assigned, statistics) = assign(candidates, limit);
    let mut used: Vec<u16> = assigned.values().copied().collect();
    used.sort_unstable();
    used.dedup();
    assert!(used.len() <= limit && used.iter().all(|address| usize::from(*address) < limit));
    assert_eq!(statistics.addresses, used.len() as u64);
    assert_eq!(statistics.served, assigned.len() as u64);
    let (wanted, unwanted) = deliveries(candidates, &assigned);
    assert_eq!((statistics.wanted, statistics.unwanted), (wanted, unwanted));
    assert!(unwanted * 100 <= UNWANTED_PERCENT_MAX * (wanted + unwanted), "{statistics:?}");
    assert_eq!(assign(candidates, limit).0, assigned, "the same for the same");
    (assigned, statistics)
}

/// Draws groups as services make them. Each group belongs to one of 150 services, which run on some of 1,000
/// processes. Of every three groups, two have exactly the processes of their service as members. Most of the
/// remaining groups have one member more or less. One group in fifty has arbitrary members.
fn of_services(dice: &mut Dice, groups: u64) -> Vec<Candidate> {
    let services: Vec<Vec<u64>> = (0..150)
        .map(|_| {
            let count = 5 + dice.below(40);
            dice.some(count, 1_000)
        })
        .collect();
    let group = |group| {
        let service = dice.skewed(services.len() as u64) as usize;
        let mut members = services[service].clone();
        match dice.below(50) {
            0 => {
                let count = 3 + dice.below(10);
                members = dice.some(count, 1_000);
            }
            1..9 => members.push(dice.below(1_000)),
            9..17 => drop(members.pop()),
            _ => {}
        }
        candidate(group, members, 1 << (4 + dice.skewed(12)))
    };
    (0..groups).map(group).collect()
}

#[test]
fn ten_thousand_groups_share_a_tenth_as_many_addresses_or_less() {
    let candidates = of_services(&mut Dice(7), 10_000);
    let all: u64 = candidates.iter().map(|it| it.rate * it.members.len() as u64).sum();
    for (limit, served) in [(ADDRESSES_MAX, 8_000), (900, 9_000)] {
        let (assigned, statistics) = judged(&candidates, limit);
        println!("{statistics:?} of {all}");
        assert!(assigned.len() >= served && assigned.len() >= 10 * limit, "{statistics:?}");
        assert!(statistics.wanted * 100 >= all * 95, "the busiest are served: {statistics:?} of {all}");
    }
}

#[test]
fn groups_that_have_nothing_in_common_share_nothing() {
    let mut dice = Dice(9);
    let candidates: Vec<Candidate> = (0..2_000)
        .map(|group| {
            let members = dice.some(20, 1_000);
            candidate(group, members, 100)
        })
        .collect();
    let (assigned, statistics) = judged(&candidates, 256);
    assert_eq!((assigned.len(), statistics.addresses, statistics.unwanted), (256, 256, 0));
}

#[test]
fn groups_of_the_same_members_share_an_address_and_others_do_not() {
    let candidates = [
        candidate(1, 1..20, 100),
        candidate(2, 1..20, 10),
        candidate(3, 30..40, 100),
        // Group 4 has one process more than groups 1 and 2. That process hears the messages of all three.
        candidate(4, 1..21, 10),
        // With groups 1 and 2, half of the deliveries of group 5 would be unwanted.
        candidate(5, 1..10, 100),
    ];
    let (assigned, _) = judged(&candidates, 16);
    let of = |group: u64| assigned[&GroupId(group)];
    assert_eq!(of(1), of(2));
    assert_eq!(of(1), of(4));
    assert!(of(3) != of(1) && of(5) != of(1) && of(5) != of(3));
}

/// Returns these candidates, with the assigned addresses as their present addresses.
fn again(candidates: &[Candidate], assigned: &BTreeMap<GroupId, u16>) -> Vec<Candidate> {
    let again = |it: &Candidate| Candidate { before: assigned.get(&it.group).copied(), ..it.clone() };
    candidates.iter().map(again).collect()
}

#[test]
fn groups_with_an_address_keep_it() {
    let mut dice = Dice(10);
    let mut candidates = of_services(&mut dice, 3_000);
    let (before, _) = judged(&candidates, 1_000);
    candidates = again(&candidates, &before);
    // A tenth of the groups change their rates, 100 groups end, and 100 new groups begin.
    for place in (0..candidates.len()).step_by(10) {
        candidates[place].rate = 1 << (4 + dice.skewed(12));
    }
    candidates.drain(..100);
    for (number, mut fresh) in (0..).zip(of_services(&mut dice, 100)) {
        fresh.group = GroupId(100_000 + number);
        candidates.push(fresh);
    }
    let (after, _) = judged(&candidates, 1_000);
    let stayed = after.iter().filter(|(group, address)| before.get(group) == Some(address)).count();
    assert!(stayed * 100 >= 2_900 * 98, "{stayed} of 2,900");
}

#[test]
fn a_group_that_no_longer_fits_moves_to_another_address() {
    let candidates = [candidate(1, 1..20, 100), candidate(2, 1..20, 10)];
    let (before, _) = judged(&candidates, 16);
    let moved = again(&[candidate(1, 1..20, 100), candidate(2, 10..40, 10)], &before);
    let (after, _) = judged(&moved, 16);
    assert_eq!(after[&GroupId(1)], before[&GroupId(1)]);
    assert_ne!(after[&GroupId(2)], before[&GroupId(2)]);
}

#[test]
fn more_addresses_than_there_are_now_were_used_before() {
    let candidates: Vec<Candidate> =
        (0..8).map(|group| candidate(group, group * 9..group * 9 + 9, 100)).collect();
    let (before, _) = judged(&candidates, 8);
    let (after, _) = judged(&again(&candidates, &before), 3);
    assert_eq!(after.len(), 3);
}
