//! Several members of a group in one process.

use std::{thread, time::Duration};

use quorate::{
    Error, Wait,
    group::{Member, Want},
};
use quorate_testing::wait_for;

use super::locks::is_granted;
use crate::words::{TestGroup, Words, said, word};

/// Returns the ranks of the members, once each of them sees `count` members.
fn ranks(members: &[&Member<Words>], count: usize) -> Vec<usize> {
    wait_for("all see all", || members.iter().all(|it| it.view().unwrap().members.len() == count));
    members.iter().map(|it| it.view().unwrap().rank().unwrap()).collect()
}

#[test]
fn members_of_one_process_are_members_like_others() {
    let mut test_group = TestGroup::start(1, 1);
    let first = test_group.members[0].clone();
    first.send(word("one")).wait().unwrap();
    let here = test_group.nodes[0].group("words");
    let second = here.join(Words::of(&["of its own"])).wait().unwrap();
    assert_eq!(said(&second), ["one"], "the group's object, and not what it brought");
    assert!(first.is_fresh().unwrap() && !second.is_fresh().unwrap());
    test_group.join(Words::default());
    let other = test_group.members[1].clone();
    let third = here.join(Words::default()).wait().unwrap();
    let all = [&first, &second, &third, &other];
    assert_eq!(ranks(&all, 4), [0, 1, 2, 3], "those of a process stand together");
    assert_eq!(other.view().unwrap().joined, [first.id()]);
    second.send(word("two")).wait().unwrap();
    third.ordered_send(word("three")).wait().unwrap();
    first.safe_send(word("four")).wait().unwrap();
    wait_for("it is heard", || said(&other).len() == 4);
    other.send(word("five")).wait().unwrap();
    other.flush().wait().unwrap();
    for member in all {
        wait_for("all have heard all", || said(member).len() == 5);
        assert_eq!(said(member), ["one", "two", "three", "four", "five"]);
    }
    let own = all.map(|it| it.read(|words| words.own.join(" ")).unwrap());
    assert_eq!(own, ["one four", "two", "three", "five"]);
    // A query reaches each member, and each member answers for its own rank.
    for asks in [&second, &other] {
        let answer = asks.ordered_query(word("f"), Want::All).wait().unwrap();
        let replies: Vec<_> = answer.replies.iter().map(|replied| (replied.rank, replied.reply)).collect();
        let expected: Vec<_> = (0..4).map(|rank| (rank, ((rank, 4), 2))).collect();
        assert!(answer.complete && replies == expected, "{answer:?}");
    }
    // A lock belongs to a member, not to the member's process.
    let held = second.lock("l").wait().unwrap();
    let mut claim = third.lock("l");
    assert!(!is_granted(&mut claim, Duration::from_millis(100)));
    second.leave().wait().unwrap();
    assert!(is_granted(&mut claim, Duration::from_secs(10)), "{held:?} is over with its member");
    let all = [&first, &third, &other];
    assert_eq!(ranks(&all, 3), [0, 1, 2]);
    assert_eq!(other.view().unwrap().left, [first.id()]);
    // The member that gave the object to all others leaves, while more members join.
    let more = thread::scope(|threads| {
        let joining = [0; 6].map(|_| threads.spawn(|| here.join(Words::default()).wait().unwrap()));
        first.leave().wait().unwrap();
        joining.map(|joining| joining.join().unwrap())
    });
    third.safe_send(word("six")).wait().unwrap();
    for member in more.iter().chain([&third, &other]) {
        wait_for("all have heard all", || said(member).len() == 6);
    }
    assert_eq!(ranks(&[&third, &other], 8), [0, 7]);
    // All members of the process fail together.
    let gone = test_group.kill(0);
    wait_for("they are seen to be gone", || other.view().unwrap().members == [other.id()]);
    assert_eq!(other.view().unwrap().left, [gone; 7]);
}

#[test]
fn a_member_that_panics_takes_no_other_of_its_process_along() {
    let mut test_group = TestGroup::start(1, 0);
    test_group.join(Words::fragile());
    test_group.join(Words::default());
    let [first, other] = [0, 1].map(|place| test_group.members[place].clone());
    let second = test_group.nodes[0].group("words").join(Words::default()).wait().unwrap();
    other.safe_send(word("panic")).wait().unwrap();
    wait_for("it has ended", || first.ended().is_some());
    assert!(matches!(first.send(word("no")).wait(), Err(Error::NotMember { .. })));
    assert_eq!(ranks(&[&second, &other], 2), [0, 1]);
    // The other member still has the object, and gives it to a joiner.
    let third = test_group.nodes[0].group("words").join(Words::default()).wait().unwrap();
    test_group.join(Words::default());
    second.safe_send(word("on")).wait().unwrap();
    for member in [&second, &third, &other, &test_group.members[2]] {
        wait_for("all have heard all", || said(member) == ["panic", "on"]);
    }
}
