//! Tests of the reports of a group's rate.

use super::*;

/// Returns the levels that a member of a group of `members` members reports. Each entry of `messages` is the
/// number of messages in ten seconds.
fn reported_levels(meter: &mut Meter, members: usize, messages: &[usize]) -> Vec<Option<u8>> {
    let read = |messages: &usize| {
        meter.count(*messages);
        meter.read(10.0, Some(members), false)
    };
    messages.iter().map(read).collect()
}

#[test]
fn a_rate_is_reported_when_it_has_changed_by_two_levels() {
    let mut meter = Meter::default();
    // The rates are 7, 100, 70, 190, 500, 130, 40, 0 and 0 messages a second.
    let levels = reported_levels(&mut meter, 5, &[70, 1_000, 700, 1_900, 5_000, 1_300, 400, 0, 0]);
    assert_eq!(levels, [None, Some(7), None, None, Some(9), None, Some(6), Some(0), None]);
}

#[test]
fn two_members_have_no_rate() {
    let mut meter = Meter::default();
    assert_eq!(reported_levels(&mut meter, 2, &[1_000, 1_000]), [None, None]);
    assert_eq!(reported_levels(&mut meter, 3, &[1_000]), [Some(7)]);
    assert_eq!(reported_levels(&mut meter, 2, &[1_000, 1_000]), [Some(0), None]);
}

#[test]
fn a_member_that_begins_to_report_corrects_the_rate_of_its_predecessor() {
    let mut meter = Meter::default();
    meter.count(1_000);
    assert_eq!(meter.read(10.0, None, true), None, "another one tells");
    assert_eq!(meter.read(10.0, Some(3), true), Some(0), "the group is idle, and has an address");
    assert_eq!(meter.read(10.0, Some(3), true), None);
    meter.count(usize::MAX / 2);
    assert_eq!(meter.read(1.0, Some(3), true), Some(LEVEL_MAX));
}
