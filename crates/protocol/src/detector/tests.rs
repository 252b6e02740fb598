use super::*;
use crate::id::Incarnation;

fn peer() -> ProcessId {
    ProcessId { node: 1, incarnation: Incarnation(1) }
}

fn at(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

/// Returns a detector that ticks every 50 ms until time `until`, and hears its peer every `gap` ms until time
/// `last`.
fn watching(gap: u64, last: u64, until: u64) -> Detector {
    let mut detector = Detector::new(Settings::default());
    detector.watch(peer(), at(0));
    for now in 1..=until {
        if now % gap == 0 && now <= last {
            detector.heard(peer(), at(now));
        }
        if now % 50 == 0 {
            detector.tick(at(now));
        }
    }
    detector
}

#[test]
fn a_silent_peer_is_suspected_once_its_usual_interval_no_longer_explains_the_silence() {
    let regular = watching(50, 2000, 2700);
    assert_eq!(regular.suspected_from(peer()), Some(at(2600)));
    assert!(!regular.suspects(peer(), at(2599)) && regular.suspects(peer(), at(2600)));
    // A habit of 200 ms with a small deviation would explain less than the minimum silence, so the minimum
    // counts.
    let slow = watching(200, 20_000, 20_000);
    assert_eq!(slow.suspected_from(peer()), Some(at(20_600)), "never sooner than the least");
    let rare = watching(3000, 30_000, 30_000);
    let from = rare.suspected_from(peer()).expect("it is watched");
    assert!(at(33_000) < from && from <= at(34_000), "never later than the most: {from:?}");
    assert_eq!(Detector::new(Settings::default()).suspected_from(peer()), None);
}

#[test]
fn a_burst_does_not_change_the_measured_interval() {
    let mut detector = watching(50, 1000, 1000);
    for _ in 0..1000 {
        detector.heard(peer(), at(1001));
    }
    assert_eq!(
        detector.suspected_from(peer()),
        Some(at(1600)),
        "what comes within half an interval is one sign"
    );
    detector.heard(peer(), at(1025));
    assert_eq!(detector.suspected_from(peer()), Some(at(1625)));
}

#[test]
fn a_link_may_stay_broken_for_a_moment() {
    let mut detector = watching(50, 1000, 1000);
    assert_eq!(detector.opinion(peer(), at(1000)), Some(Opinion::Heard));
    detector.unlinked(peer(), at(1010));
    detector.unlinked(peer(), at(1100));
    assert_eq!(detector.suspected_from(peer()), Some(at(1160)), "the first instant counts");
    assert_eq!(detector.opinion(peer(), at(1020)), Some(Opinion::Unlinked));
    assert!(!detector.in_touch(peer(), at(1020)));
    detector.linked(peer(), at(1300));
    assert_eq!(detector.suspected_from(peer()), Some(at(1900)), "a new link is a sign of life");
    assert_eq!(detector.opinion(peer(), at(1400)), Some(Opinion::Heard));
    assert_eq!(detector.opinion(peer(), at(1401)), Some(Opinion::Linked));
    assert_eq!(detector.silence(peer(), at(1401)), Some(Duration::from_millis(101)));
    detector.unwatch(peer());
    assert_eq!((detector.opinion(peer(), at(1401)), detector.silence(peer(), at(1401))), (None, None));
}

#[test]
fn a_process_that_slept_suspects_nobody_at_once() {
    let mut detector = watching(50, 1000, 1000);
    detector.unlinked(peer(), at(1000));
    detector.tick(at(1150));
    assert!(detector.suspects(peer(), at(1150)), "three intervals are no sleep");
    let mut detector = watching(50, 1000, 1000);
    detector.unlinked(peer(), at(1000));
    detector.tick(at(1151));
    assert_eq!(detector.suspected_from(peer()), Some(at(1301)), "the broken link counts from now on");
    detector.tick(at(5000));
    assert_eq!(detector.silence(peer(), at(5000)), Some(Duration::ZERO));
}

#[test]
fn the_benefit_of_the_doubt_is_no_sign_of_life() {
    let mut detector = Detector::new(Settings::default());
    detector.watch(peer(), at(0));
    assert_eq!(detector.opinion(peer(), at(0)), Some(Opinion::Heard), "it is not to be suspected");
    assert!(!detector.lives(peer(), at(0)));
    detector.heard(peer(), at(10));
    assert!(detector.lives(peer(), at(110)) && !detector.lives(peer(), at(111)));
    detector.linked(peer(), at(500));
    detector.tick(at(500));
    detector.tick(at(5000));
    assert!(!detector.lives(peer(), at(5000)), "neither a new link nor a sleep of one's own");
    detector.heard(peer(), at(5001));
    detector.unlinked(peer(), at(5002));
    assert!(!detector.lives(peer(), at(5002)));
}
