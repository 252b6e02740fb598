//! A super alone, in a configuration that it is given.

use super::*;
use crate::rubberband::{
    MemberInfo,
    config::State,
    sample::{SUPER, Said, process, texts, town},
};

/// A super of a ring of three with two replicas, and of 5 and 6 in reserve.
fn superior(states: &str, suspected: &[u64]) -> Super {
    let mut state = State::from(town(2, &[0, 10, 20], states));
    let info = MemberInfo { role: Role::Storage, name: String::new(), address: String::new() };
    for node in [5, 6] {
        state.members.insert(process(node), info.clone());
        state.storage.insert(process(node), StorageState::Standby);
    }
    state.suspected = suspected.iter().map(|&node| (process(node), Position(3))).collect();
    let me = Peer { id: process(SUPER), address: String::new() };
    let mut superior = Super::new(me, String::from("super-9"), SuperSettings::default());
    superior.membership.know(Config::from(state));
    superior
}

/// Who would take the place of a process, and what it would copy from whom, as text.
fn replacement_of(superior: &Super, old: u64, now: Time) -> Option<String> {
    superior.replacement_of(process(old), now).map(|control| {
        let Control::Replace { old, new, copy, .. } = control else { panic!("{control:?}") };
        let from = |(range, source): &(Range, ProcessId)| format!("{} of {}", texts(&[*range]), source.node);
        let copy: Vec<String> = copy.iter().map(from).collect();
        format!("{} by {}: {}", old.node, new.node, copy.join(", "))
    })
}

#[test]
fn the_first_in_reserve_that_seems_well_takes_a_place() {
    let now = Time::ZERO + Duration::from_secs(60);
    let of = |superior: &Super, old| replacement_of(superior, old, now);
    let all_well = superior("AAA", &[]);
    let first = of(&all_well, 1).expect("5 is there");
    assert!(first.starts_with("1 by 5: 0-9 of 2") && first.ends_with("20-end of 3"), "{first}");
    let second = of(&all_well, 2).expect("5 is there");
    assert!(second.starts_with("2 by 5: 0-9 of 1") && second.ends_with("10-19 of 3"), "{second}");
    assert_eq!(of(&all_well, 77), None, "it has no place");
    // One that others suspect does not count, nor one that is not heard here.
    let doubted = superior("AAA", &[5]);
    assert!(of(&doubted, 1).is_some_and(|it| it.starts_with("1 by 6: ")));
    let mut deaf = superior("AAA", &[]);
    deaf.detector.watch(process(5), Time::ZERO);
    deaf.detector.tick(now);
    assert!(of(&deaf, 1).is_some_and(|it| it.starts_with("1 by 6: ")), "{:?}", of(&deaf, 1));
    deaf.detector.watch(process(6), Time::ZERO);
    assert_eq!(of(&deaf, 1), None);
}

#[test]
fn what_could_not_be_announced_is_taken_back() {
    let mut superior = superior("AAA", &[]);
    superior.announced.insert(process(1), (None, Time::ZERO));
    // Its joining waits, and no router is there to take that.
    let mut random = || 0;
    let mut cx = Context { now: Time::ZERO, me: process(SUPER), random: &mut random };
    superior.handle(&mut cx, Input::Drained, &mut Said::default());
    assert!(superior.announced.is_empty());
    assert_eq!(superior.membership.member.outstanding().1, 1, "and nothing else is");
}

/// It dismissed a process that kept the rows of a range because it took a replica for alive that had been killed before it joined.
#[test]
fn a_super_that_has_just_joined_has_heard_nobody() {
    let now = Time::ZERO + Duration::from_secs(60);
    let mut superior = superior("AAA", &[]);
    let config = superior.membership.config().expect("it knows one").clone();
    for node in 1..=3 {
        superior.detector.watch(process(node), now);
    }
    assert!(!superior.is_spared(&config, process(1), now), "they are watched, and have said nothing");
    superior.detector.heard(process(2), now);
    assert!(!superior.is_spared(&config, process(1), now), "a range of it is not held by 2");
    superior.detector.heard(process(3), now);
    assert!(superior.is_spared(&config, process(1), now));
}
