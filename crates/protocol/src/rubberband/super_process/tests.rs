//! Tests of a super alone, in a given configuration.

use super::*;
use crate::rubberband::{
    MemberInfo,
    config::State,
    sample::{RecordingSink, SUPER, process, texts, town},
};

/// Builds a super of a ring of three processes with two replicas, and with standbys 5 and 6.
fn super_process(states: &str, suspected: &[u64]) -> Super {
    let mut state = State::from(town(2, &[0, 10, 20], states));
    let info = MemberInfo { role: Role::Storage, name: String::new(), address: String::new() };
    for node in [5, 6] {
        state.members.insert(process(node), info.clone());
        state.storage.insert(process(node), StorageState::Standby);
    }
    state.suspected = suspected.iter().map(|&node| (process(node), Position(3))).collect();
    let me = Peer { id: process(SUPER), address: String::new() };
    let mut super_process = Super::new(me, String::from("super-9"), SuperSettings::default());
    super_process.membership.know(Config::from(state));
    super_process
}

/// Formats the replacement of a process: the standby, and the sources of its ranges.
fn replacement_of(super_process: &Super, old: u64, now: Time) -> Option<String> {
    super_process.replacement_of(process(old), now).map(|control| {
        let Control::Replace { old, new, copy, .. } = control else { panic!("{control:?}") };
        let from = |(range, source): &(Range, ProcessId)| format!("{} of {}", texts(&[*range]), source.node);
        let copy: Vec<String> = copy.iter().map(from).collect();
        format!("{} by {}: {}", old.node, new.node, copy.join(", "))
    })
}

#[test]
fn the_first_in_reserve_that_seems_well_takes_a_place() {
    let now = Time::ZERO + Duration::from_secs(60);
    let of = |super_process: &Super, old| replacement_of(super_process, old, now);
    let all_well = super_process("AAA", &[]);
    let first = of(&all_well, 1).expect("5 is there");
    assert!(first.starts_with("1 by 5: 0-9 of 2") && first.ends_with("20-end of 3"), "{first}");
    let second = of(&all_well, 2).expect("5 is there");
    assert!(second.starts_with("2 by 5: 0-9 of 1") && second.ends_with("10-19 of 3"), "{second}");
    assert_eq!(of(&all_well, 77), None, "it has no place");
    // A standby that other processes suspect does not count, nor does a standby that this super does not
    // hear.
    let doubted = super_process("AAA", &[5]);
    assert!(of(&doubted, 1).is_some_and(|it| it.starts_with("1 by 6: ")));
    let mut deaf = super_process("AAA", &[]);
    deaf.detector.watch(process(5), Time::ZERO);
    deaf.detector.tick(now);
    assert!(of(&deaf, 1).is_some_and(|it| it.starts_with("1 by 6: ")), "{:?}", of(&deaf, 1));
    deaf.detector.watch(process(6), Time::ZERO);
    assert_eq!(of(&deaf, 1), None);
}

#[test]
fn a_failed_announcement_is_taken_back() {
    let mut super_process = super_process("AAA", &[]);
    super_process.announced.insert(process(1), (None, Time::ZERO));
    // The super's `Join` waits, and there is no router to take the announcement.
    let mut random = || 0;
    let mut cx = Context { now: Time::ZERO, me: process(SUPER), random: &mut random };
    super_process.handle(&mut cx, Input::Drained, &mut RecordingSink::default());
    assert!(super_process.announced.is_empty());
    assert_eq!(super_process.membership.member.outstanding().1, 1, "and nothing else is");
}

/// Regression: a super that has just joined has heard nobody. Such a super dismissed a keeper, because it
/// took a replica for alive that had been killed before the super joined.
#[test]
fn a_super_that_has_just_joined_has_heard_nobody() {
    let now = Time::ZERO + Duration::from_secs(60);
    let mut super_process = super_process("AAA", &[]);
    let config = super_process.membership.config().expect("it knows one").clone();
    for node in 1..=3 {
        super_process.detector.watch(process(node), now);
    }
    assert!(
        !super_process.can_be_missed(&config, process(1), now),
        "they are watched, and have said nothing"
    );
    super_process.detector.heard(process(2), now);
    assert!(!super_process.can_be_missed(&config, process(1), now), "a range of it is not held by 2");
    super_process.detector.heard(process(3), now);
    assert!(super_process.can_be_missed(&config, process(1), now));
}

const ROUTER: u64 = 50;
/// Time for which a super does not remove a member that is away, or that it has not heard yet.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// Lets a super with the configuration `states` join at `start`, suspected process 1 included. Returns it
/// with a link to a lead router.
fn joined(states: &str, start: Time) -> Super {
    let mut super_process = super_process(states, &[1]);
    let routers = vec![Peer { id: process(ROUTER), address: String::new() }];
    let (leader, generation) = (Some(process(ROUTER)), crate::id::Generation::FIRST);
    let message = Message::Order(ecast::Message::Lead { generation, leader, routers, learned: 1 });
    let mut random = || 0;
    let mut cx = Context { now: start, me: process(SUPER), random: &mut random };
    let out = &mut RecordingSink::default();
    super_process.handle(&mut cx, Input::Receive { from: process(ROUTER), message }, out);
    super_process.on_config(&mut cx, None, out);
    super_process
}

/// Lets a super judge at an instant at which it hears processes 2 and 3, while the router has no link to
/// process 1. Returns whether the super suspects process 1 again, and whether it removes that
/// process.
fn judged(super_process: &mut Super, now: Time) -> (bool, bool) {
    let mut random = || 0;
    let mut cx = Context { now, me: process(SUPER), random: &mut random };
    let mut out = RecordingSink::default();
    [2, 3].into_iter().for_each(|node| super_process.detector.heard(process(node), now));
    super_process.hear(now, &mut out);
    if let Some(second_opinion) = super_process.second_opinions.get_mut(&process(1)) {
        second_opinion.record(process(ROUTER), Opinion::Unlinked, now);
    }
    super_process.judge(&mut cx, &mut out);
    let suspected = out.events.iter().any(|event| matches!(event, SuperEvent::Suspected(it) if it.node == 1));
    let removes =
        |event: &SuperEvent| matches!(event, SuperEvent::Removing { process, .. } if process.node == 1);
    (suspected, out.events.iter().any(removes))
}

/// When all processes of a cluster start again, a super may join before the storage processes come back.
#[test]
fn a_member_that_a_new_super_has_not_heard_is_removed_after_thirty_seconds() {
    let start = Time::ZERO + Duration::from_secs(60);
    let moment = Duration::from_millis(1);
    let mut super_process = joined("AAA", start);
    super_process.detector.unlinked(process(1), start);
    let early = start + Duration::from_secs(1);
    assert_eq!(judged(&mut super_process, early), (true, false), "it was suspected before, and stays");
    assert_eq!(judged(&mut super_process, start + (AWAY_MAX - moment)), (false, false));
    assert_eq!(judged(&mut super_process, start + AWAY_MAX), (false, true));

    // A member that was heard once is removed as soon as its links break.
    let mut super_process = joined("AAA", start);
    super_process.heard(process(1), start);
    super_process.detector.unlinked(process(1), start);
    assert_eq!(judged(&mut super_process, early), (true, true));
}

#[test]
fn a_member_that_is_away_is_suspected_after_thirty_seconds() {
    let start = Time::ZERO + Duration::from_secs(60);
    let moment = Duration::from_millis(1);
    let mut super_process = joined("WAA", start);
    super_process.detector.unlinked(process(1), start);
    assert_eq!(judged(&mut super_process, start + (AWAY_MAX - moment)), (false, false));
    assert!(judged(&mut super_process, start + AWAY_MAX).0, "it counts as any other member from now on");
}
