//! Tests of view changes, step by step.

use super::*;
use crate::{group::SEATS_MAX, id::Incarnation};

fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(0) }
}

fn peer(node: u64) -> Peer {
    Peer { id: process(node), address: String::new() }
}

fn held(counts: &[(u64, u64)]) -> BTreeMap<ProcessId, u64> {
    counts.iter().map(|(node, count)| (process(*node), *count)).collect()
}

fn report(node: u64, prepared: u64, counts: &[(u64, u64)]) -> GroupStep {
    report_of(process(node), prepared, counts, true)
}

fn report_of(id: ProcessId, prepared: u64, counts: &[(u64, u64)], whole: bool) -> GroupStep {
    GroupStep::Report(id, SurvivorReport { change: Position(prepared), held: held(counts), whole })
}

fn members(group: &Group) -> Vec<u64> {
    group.view.ids().map(|id| id.node).collect()
}

/// Makes a group of these processes in view 10, all with the state.
fn group(nodes: &[u64]) -> Group {
    let mut group = Group::default();
    for (at, &node) in (1..).zip(nodes) {
        group.step(Position(at), &GroupStep::Join(peer(node)));
        for id in group.late() {
            group.step(Position(at), &report_of(id, at, &[], true));
        }
        group.step(Position(at), &GroupStep::Whole(process(node), Position(at)));
    }
    assert_eq!(members(&group), nodes);
    assert!(group.view.members.iter().all(|entry| entry.transfer == StateTransfer::Complete));
    group
}

fn seats(numbers: &[u32]) -> Vec<SeatId> {
    numbers.iter().copied().map(SeatId).collect()
}

fn places(places: &[(ProcessId, SeatId)]) -> Vec<(u64, u32)> {
    places.iter().map(|(id, seat)| (id.node, seat.0)).collect()
}

/// Makes all survivors send the same report, so that the change in progress ends.
fn agree(group: &mut Group, at: u64) {
    let prepared = group.change.as_ref().expect("one is under way").prepared.0;
    for id in group.late() {
        group.step(Position(at), &report_of(id, prepared, &[], true));
    }
}

#[test]
fn seats_change_with_the_view() {
    let mut group = group(&[1, 2]);
    let taken = group.step(Position(20), &GroupStep::Seats(process(1), seats(&[0, 1, 2])));
    assert_eq!(taken, Some(vec![Turn::Prepared]));
    assert_eq!(group.view.places().count(), 2, "not before the next view");
    // Seats that are submitted during the change belong to the same new view.
    assert_eq!(group.step(Position(21), &GroupStep::Seats(process(2), seats(&[0, 1]))), Some(vec![]));
    agree(&mut group, 22);
    let all: Vec<_> = group.view.places().collect();
    assert_eq!(places(&all), [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]);
    assert!(group.view.joined.is_empty() && group.view.left.is_empty());
    // A process may give up its first seat before its other seats.
    group.step(Position(30), &GroupStep::Seats(process(1), seats(&[1, 2])));
    agree(&mut group, 31);
    let all: Vec<_> = group.view.places().collect();
    assert_eq!(places(&all), [(1, 1), (1, 2), (2, 0), (2, 1)]);
    assert!(group.view.has(process(1), SeatId(2)) && !group.view.has(process(1), SeatId(0)));
    group.step(Position(40), &GroupStep::Drop(process(1)));
    agree(&mut group, 41);
    assert!(!group.view.has(process(1), SeatId(1)));
    assert_eq!(group.seats.of(process(1)), [SeatId(0)], "nothing is kept of who is gone");
}

/// The stored form of a group in builds that knew one member for each process.
#[derive(serde::Serialize)]
struct Before {
    name: String,
    view: View,
    joining: Vec<Peer>,
    leaving: BTreeSet<ProcessId>,
    dropped: BTreeSet<ProcessId>,
    change: Option<ViewChange>,
}

#[test]
fn a_group_is_decoded_from_its_bytes_and_without_seats_has_the_former_bytes() {
    let mut group = group(&[1, 2]);
    let mut stored = Vec::new();
    for at in [20, 30, 40] {
        if at == 30 {
            group.step(Position(at), &GroupStep::Seats(process(1), seats(&[0, 1])));
        }
        for changing in [true, false] {
            if changing {
                group.step(Position(at), &GroupStep::Join(peer(at)));
            } else {
                agree(&mut group, at + 1);
            }
            let bytes = postcard::to_stdvec(&group).unwrap();
            assert_eq!(postcard::from_bytes::<Group>(&bytes).as_ref(), Ok(&group));
            let Group { name, view, joining, leaving, dropped, change, .. } = group.clone();
            let before = Before { name, view, joining, leaving, dropped, change };
            stored.push(bytes == postcard::to_stdvec(&before).unwrap());
        }
    }
    assert_eq!(stored, [true, true, false, false, false, false]);
}

#[test]
fn seats_that_no_correct_process_announces_change_nothing() {
    let mut group = group(&[1, 2]);
    let many: Vec<u32> = (0..=SEATS_MAX as u32).collect();
    for wrong in [&[][..], &[0], &[1, 0], &[1, 1], &many] {
        assert_eq!(group.step(Position(20), &GroupStep::Seats(process(1), seats(wrong))), None, "{wrong:?}");
    }
    assert_eq!(group.step(Position(20), &GroupStep::Seats(process(3), seats(&[0, 1]))), None, "no member");
    group.step(Position(21), &GroupStep::Drop(process(1)));
    assert_eq!(group.step(Position(22), &GroupStep::Seats(process(1), seats(&[0, 1]))), None, "suspected");
}

#[test]
fn reports_make_the_cut_and_repairs_the_view() {
    let mut group = group(&[1, 2, 3]);
    assert_eq!(group.step(Position(20), &GroupStep::Drop(process(1))), Some(vec![Turn::Prepared]));
    assert_eq!(group.step(Position(21), &report(2, 20, &[(1, 5), (2, 1)])), Some(vec![]));
    // A report does not count if its sender is suspected, if it belongs to an earlier change, or if it
    // repeats another report.
    assert_eq!(group.step(Position(22), &report(1, 20, &[(1, 9)])), None);
    assert_eq!(group.step(Position(22), &report(3, 19, &[])), None);
    assert_eq!(group.step(Position(22), &report(2, 20, &[(1, 6)])), None);
    // The cut is the longest prefix that any survivor holds.
    let cut = held(&[(1, 5), (2, 1), (3, 7)]);
    assert_eq!(
        group.step(Position(23), &report(3, 20, &[(1, 4), (2, 1), (3, 7)])),
        Some(vec![Turn::Cut(cut)])
    );
    assert_eq!(group.late(), [process(2), process(3)]);
    assert_eq!(group.step(Position(24), &GroupStep::Repaired(process(2), Position(20))), Some(vec![]));
    assert_eq!(
        group.step(Position(25), &GroupStep::Repaired(process(3), Position(20))),
        Some(vec![Turn::Installed])
    );
    assert_eq!((group.view.number, members(&group)), (Position(25), vec![2, 3]));
    assert_eq!((&group.view.left, &group.change), (&vec![process(1)], &None));
}

#[test]
fn a_member_that_lost_its_state_rejoins_in_the_view_that_removes_it() {
    let mut group = group(&[1, 2]);
    group.step(Position(20), &GroupStep::Drop(process(1)));
    assert_eq!(group.step(Position(21), &GroupStep::Join(peer(1))), Some(vec![]), "it waits");
    assert_eq!(group.step(Position(22), &GroupStep::Join(peer(1))), None, "once");
    let end = group.step(Position(23), &report(2, 20, &[]));
    assert_eq!(end.map(|turns| turns.last().cloned()), Some(Some(Turn::Installed)));
    assert_eq!(
        (members(&group), &group.view.joined, &group.view.left),
        (vec![2, 1], &vec![process(1)], &vec![process(1)])
    );
    let fed = StateTransfer::Receiving { giver: process(2), since: Position(23) };
    assert_eq!(group.view.entry(process(1)).map(|entry| entry.transfer), Some(fed));
}

#[test]
fn a_member_that_comes_back_begins_with_the_first_seat() {
    let mut group = group(&[1, 2]);
    group.step(Position(10), &GroupStep::Seats(process(1), seats(&[0, 1])));
    agree(&mut group, 11);
    group.step(Position(20), &GroupStep::Drop(process(1)));
    group.step(Position(21), &GroupStep::Join(peer(1)));
    group.step(Position(22), &report(2, 20, &[]));
    let all: Vec<_> = group.view.places().collect();
    assert_eq!((group.view.number, places(&all)), (Position(22), vec![(2, 0), (1, 0)]));
}

#[test]
fn a_save_is_a_view_of_the_same_members() {
    let mut group = group(&[1, 2]);
    let save = |node, by_all| GroupStep::Save { sender: process(node), by_all };
    assert_eq!(group.step(Position(20), &save(3, true)), None, "it is no member");
    assert_eq!(group.step(Position(20), &save(1, true)), Some(vec![Turn::Prepared]));
    assert_eq!(group.step(Position(21), &save(2, false)), Some(vec![]), "the change under way serves it");
    group.step(Position(22), &report(1, 20, &[]));
    let end = group.step(Position(23), &report(2, 20, &[]));
    assert_eq!(end.map(|turns| turns.last().cloned()), Some(Some(Turn::Installed)));
    assert_eq!((group.view.number, members(&group)), (Position(23), vec![1, 2]));
    assert!(group.view.joined.is_empty() && group.view.left.is_empty());
}

#[test]
fn a_member_that_holds_the_cut_need_not_confirm_it() {
    let mut group = group(&[1, 2]);
    group.step(Position(20), &GroupStep::Leave(process(2)));
    group.step(Position(21), &report(1, 20, &[(2, 3)]));
    let cut = held(&[(1, 0), (2, 3)]);
    let turns = group.step(Position(22), &report(2, 20, &[(2, 3)]));
    assert_eq!(turns, Some(vec![Turn::Cut(cut), Turn::Installed]));
    assert_eq!(members(&group), [1]);
}

#[test]
fn a_second_suspicion_voids_reports_and_cut() {
    let mut group = group(&[1, 2, 3, 4]);
    group.step(Position(20), &GroupStep::Drop(process(1)));
    for (node, count) in [(2, 5), (3, 2), (4, 2)] {
        group.step(Position(21), &report(node, 20, &[(1, count)]));
    }
    assert_eq!(group.change.as_ref().and_then(|it| it.cut.as_ref()).map(|cut| cut[&process(1)]), Some(5));
    assert_eq!(group.step(Position(22), &GroupStep::Drop(process(2))), Some(vec![Turn::Prepared]));
    assert_eq!(group.step(Position(23), &GroupStep::Repaired(process(3), Position(20))), None);
    group.step(Position(24), &report(3, 22, &[(1, 3)]));
    let turns = group.step(Position(25), &report(4, 22, &[(1, 2)]));
    assert!(matches!(&turns.as_deref(), Some([Turn::Cut(cut)]) if cut[&process(1)] == 3), "{turns:?}");
}

#[test]
fn joins_and_leaves_during_a_change_end_in_one_view() {
    let mut group = group(&[1, 2, 3]);
    group.step(Position(20), &GroupStep::Join(peer(4)));
    assert_eq!(group.step(Position(21), &GroupStep::Join(peer(5))), Some(vec![]));
    assert_eq!(group.step(Position(21), &GroupStep::Join(peer(6))), Some(vec![]));
    assert_eq!(group.step(Position(21), &GroupStep::Join(peer(6))), None, "it waits already");
    assert_eq!(group.step(Position(22), &GroupStep::Leave(process(3))), Some(vec![]));
    assert_eq!(group.step(Position(22), &GroupStep::Drop(process(5))), Some(vec![]), "nobody waits for it");
    for node in [1, 2, 3] {
        group.step(Position(23), &report(node, 20, &[]));
    }
    assert_eq!(members(&group), [1, 2, 4, 6]);
    assert_eq!(group.view.joined, [process(4), process(6)]);
}

#[test]
fn another_member_gives_the_state_if_the_giver_leaves() {
    let mut group = group(&[1, 2]);
    group.step(Position(20), &GroupStep::Join(peer(3)));
    for node in [1, 2] {
        group.step(Position(21), &report(node, 20, &[]));
    }
    let fed = |group: &Group| group.view.entry(process(3)).map(|entry| entry.transfer);
    let Some(StateTransfer::Receiving { giver, since }) = fed(&group) else { panic!("it has no state") };
    assert_eq!(since, Position(21));
    // The process waits for the state of another view, so this report is ignored.
    assert_eq!(group.step(Position(22), &GroupStep::Whole(process(3), Position(20))), None);
    let other = if giver == process(1) { 2 } else { 1 };
    group.step(Position(30), &GroupStep::Drop(giver));
    for id in group.late() {
        group.step(Position(31), &report_of(id, 30, &[], id != process(3)));
    }
    assert_eq!(fed(&group), Some(StateTransfer::Receiving { giver: process(other), since: Position(31) }));
    // When the last holder leaves, the oldest begins with a fresh state.
    group.step(Position(40), &GroupStep::Drop(process(other)));
    group.step(Position(41), &report_of(process(3), 40, &[], false));
    assert_eq!((fed(&group), members(&group)), (Some(StateTransfer::Complete), vec![3]));
}

/// A joiner that received the state keeps it, even if its report becomes ordered only after its giver's
/// death. An earlier version dropped the state in this case, together with all flushed messages.
#[test]
fn a_state_that_arrived_is_not_forgotten() {
    let mut group = group(&[1]);
    group.step(Position(20), &GroupStep::Join(peer(2)));
    group.step(Position(21), &report(1, 20, &[]));
    let transfer = |group: &Group| group.view.entry(process(2)).map(|entry| entry.transfer);
    assert_eq!(transfer(&group), Some(StateTransfer::Receiving { giver: process(1), since: Position(21) }));
    group.step(Position(30), &GroupStep::Drop(process(1)));
    group.step(Position(30), &GroupStep::Join(peer(3)));
    group.step(Position(31), &report_of(process(2), 30, &[], true));
    assert_eq!(transfer(&group), Some(StateTransfer::Complete));
    assert_eq!(group.step(Position(32), &GroupStep::Whole(process(2), Position(21))), None);
    let third = group.view.entry(process(3)).map(|entry| entry.transfer);
    assert_eq!(third, Some(StateTransfer::Receiving { giver: process(2), since: Position(31) }));
}

#[test]
fn the_last_member_with_the_state_stays() {
    let mut group = group(&[1]);
    group.step(Position(20), &GroupStep::Join(peer(2)));
    group.step(Position(20), &GroupStep::Leave(process(1)));
    group.step(Position(21), &report(1, 20, &[]));
    assert_eq!((members(&group), group.change.is_some()), (vec![1, 2], false));
    let turns = group.step(Position(22), &GroupStep::Whole(process(2), Position(21)));
    assert_eq!(turns, Some(vec![Turn::Prepared]));
    for node in [1, 2] {
        group.step(Position(23), &report(node, 22, &[]));
    }
    assert_eq!(members(&group), [2]);
    // A member that is alone in its group leaves at once.
    group.step(Position(30), &GroupStep::Leave(process(2)));
    group.step(Position(31), &report(2, 30, &[]));
    assert!(group.is_empty());
}

#[test]
fn a_group_of_the_dead_is_empty_at_once() {
    let mut group = group(&[1]);
    let turns = group.step(Position(20), &GroupStep::Drop(process(1)));
    assert!(matches!(turns.as_deref(), Some([Turn::Prepared, Turn::Cut(_), Turn::Installed])), "{turns:?}");
    assert!(group.is_empty());
}
