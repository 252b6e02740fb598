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

use crate::words::{Crowd, Words, wait_for};

/// Whether a lock is granted within so long.
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
    let mut crowd = Crowd::start(3, 2);
    let first = crowd.members[0].lock("leader").wait().unwrap();
    let mut second = crowd.members[1].lock("leader");
    let given_up = crowd.members[1].lock("leader");
    assert!(!is_granted(&mut second, Duration::from_millis(300)), "it is held");
    let other = crowd.members[1].lock("other").wait().unwrap();
    drop(given_up);
    // One that joins knows who holds what, and waits behind them.
    crowd.join(Words::default());
    assert_eq!(crowd.members[2].lock_holder("leader"), Ok(Some(crowd.members[0].id())));
    let mut third = crowd.members[2].lock("leader");
    assert!(!is_granted(&mut third, Duration::from_millis(100)), "two are before it");
    first.check().unwrap();
    let fence = first.fence();
    drop(first);
    let second = second.wait().unwrap();
    assert!(second.fence() > fence, "{} after {fence}", second.fence());
    // The holder of both is killed: its locks go on.
    let fence = second.fence();
    std::mem::forget((second, other));
    crowd.kill(1);
    let third = third.wait().unwrap();
    assert!(third.fence() > fence, "{} after {fence}", third.fence());
    let other = crowd.members[0].lock("other").wait().unwrap();
    drop((third, other));
    wait_for("nobody holds it", || crowd.members[0].lock_holder("leader") == Ok(None));
    for name in ["", &"l".repeat(257)] {
        assert!(crowd.members[0].lock(name).wait().is_err(), "{name}");
    }
}

#[test]
fn what_a_lock_protects_is_done_by_one_at_a_time() {
    let crowd = Crowd::start(1, 3);
    let (inside, most, fences) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for member in &crowd.members {
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
