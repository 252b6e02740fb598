//! Locks of groups.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use quorate::{Pending, Wait, group::Lock};
use quorate_testing::wait_for;

use crate::words::{TestGroup, Words};

/// Whether a lock is granted within `patience`.
pub(super) fn is_granted(claim: &mut Pending<'static, Lock>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let mut cx = Context::from_waker(Waker::noop());
    while Instant::now() < until {
        if let Poll::Ready(granted) = claim.as_mut().poll(&mut cx) {
            granted.map(drop).expect("a claim ends in a lock");
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn a_lock_is_held_by_one_and_moves_in_order() {
    let mut test_group = TestGroup::start(3, 2);
    let first = test_group.members[0].lock("leader").wait().unwrap();
    let mut second = test_group.members[1].lock("leader");
    let given_up = test_group.members[1].lock("leader");
    assert!(!is_granted(&mut second, Duration::from_millis(300)), "it is held");
    let other = test_group.members[1].lock("other").wait().unwrap();
    drop(given_up);
    // A joining member learns who holds each lock, and waits behind the earlier claims.
    test_group.join(Words::default());
    assert_eq!(test_group.members[2].lock_holder("leader"), Ok(Some(test_group.members[0].id())));
    let mut third = test_group.members[2].lock("leader");
    assert!(!is_granted(&mut third, Duration::from_millis(100)), "two are before it");
    first.check().unwrap();
    let fence = first.fence();
    drop(first);
    let second = second.wait().unwrap();
    assert!(second.fence() > fence, "{} after {fence}", second.fence());
    // The member that holds both locks is killed. The members with the next claims get the locks.
    let fence = second.fence();
    std::mem::forget((second, other));
    test_group.kill(1);
    let third = third.wait().unwrap();
    assert!(third.fence() > fence, "{} after {fence}", third.fence());
    let other = test_group.members[0].lock("other").wait().unwrap();
    drop((third, other));
    wait_for("nobody holds it", || test_group.members[0].lock_holder("leader") == Ok(None));
    for name in ["", &"l".repeat(257)] {
        assert!(test_group.members[0].lock(name).wait().is_err(), "{name}");
    }
}

#[test]
fn work_under_a_lock_is_done_by_one_member_at_a_time() {
    let test_group = TestGroup::start(1, 3);
    let (inside, most, fences) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for member in &test_group.members {
            scope.spawn(|| {
                for _ in 0..50 {
                    let held = member.lock("counter").wait().unwrap();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    fences.lock().unwrap().push(held.fence());
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(most.into_inner(), 1, "one at a time");
    let fences = fences.into_inner().unwrap();
    assert!(fences.len() == 150 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}
