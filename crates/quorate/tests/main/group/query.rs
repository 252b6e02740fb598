//! Queries of groups, and the members that answer them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use quorate::{
    Error, Node, ProcessId, Wait,
    group::{Absence, Answer, Handlers, Key, Member, Object, Promise, Want},
};
use quorate_testing::wait_for;

use crate::words::{Promises, Rank, TestGroup, Words, node, said, word};

#[test]
fn queries_name_the_members_that_do_not_reply() {
    let mut test_group = TestGroup::start(1, 0);
    test_group.join(Words::fragile());
    test_group.join(Words::default());
    test_group.join(Words::default());
    let asker = test_group.members[1].clone();
    for _ in 0..3 {
        asker.ordered_send(word("counted")).wait().unwrap();
    }
    let answer = asker.ordered_query(word("counted"), Want::All).wait().unwrap();
    let replies: Vec<_> = answer.replies.iter().map(|replied| (replied.rank, replied.reply)).collect();
    assert_eq!(replies, [(0, ((0, 3), 3)), (1, ((1, 3), 3)), (2, ((2, 3), 3))]);
    assert!(answer.complete && answer.missing.is_empty());
    let members: Vec<ProcessId> = test_group.members.iter().map(Member::id).collect();
    let missing = |query: &str, want| {
        let answer = asker.query(word(query), want).deadline(Duration::from_millis(500)).wait().unwrap();
        let missing = answer.missing.into_iter().map(|it| (it.member, it.rank, it.why)).collect::<Vec<_>>();
        (answer.replies.len(), answer.complete, missing)
    };
    assert_eq!(missing("decline", Want::All), (2, false, vec![(members[0], 0, Absence::Declined)]));
    let (replies, complete, failed) = missing("panic", Want::All);
    assert_eq!((replies, complete, failed.len()), (2, false, 1));
    assert!(matches!(&failed[0].2, Absence::Failed(why) if why.contains("asked to panic")), "{failed:?}");
    // The sleeping member is late. A query that needs a majority does not wait for it.
    let began = Instant::now();
    assert!(matches!(missing("sleep", Want::Majority), (2, true, _)));
    assert!(began.elapsed() < Duration::from_millis(450), "{:?}", began.elapsed());
    let (replies, complete, late) = missing("counted", Want::All);
    assert_eq!((replies, complete), (2, false), "it sleeps still");
    assert_eq!(late, [(members[0], 0, Absence::Late)]);
    // A member is killed during a query.
    let asking = asker.query(word("counted"), Want::All).deadline(Duration::from_secs(20)).into_future();
    test_group.kill(0);
    let answer = asking.wait().unwrap();
    assert_eq!((answer.replies.len(), answer.missing[0].why.clone()), (2, Absence::Gone));
}

/// Waits until a member has deferred an answer, and returns the oldest promise.
fn put_off(promises: &Promises) -> Promise<(Rank, usize)> {
    wait_for("it is asked", || !promises.lock().unwrap().is_empty());
    promises.lock().unwrap().remove(0)
}

#[test]
fn a_deferred_answer_delays_nobody() {
    let mut test_group = TestGroup::start(1, 0);
    let (words, promises) = Words::slow();
    test_group.join(words);
    test_group.join(Words::default());
    let [slow, asker] = [0, 1].map(|place| test_group.members[place].clone());
    // The query comes once from another process, and once from the member's own process.
    for member in [&asker, &slow] {
        let asking = member.query(word("later"), Want::All).deadline(Duration::from_secs(20)).into_future();
        let asking = thread::spawn(move || asking.wait().unwrap());
        let promise = put_off(&promises);
        // The member applies updates while its answer is pending.
        member.safe_send(word("meanwhile")).wait().unwrap();
        wait_for("it is applied", || said(&slow).last().is_some_and(|said| said == "meanwhile"));
        assert!(!asking.is_finished(), "one is still to answer");
        let answering = thread::spawn(move || promise.answer(((7, 8), 9)));
        let answer = asking.join().unwrap();
        answering.join().unwrap();
        assert!(answer.complete && answer.missing.is_empty(), "{answer:?}");
        assert_eq!(answer.replies.iter().map(|it| (it.rank, it.reply)).next(), Some((0, ((7, 8), 9))));
    }
    assert_eq!(late(&test_group, 1), 0);
}

/// Returns the number of late replies that a process has counted.
fn late(test_group: &TestGroup, place: usize) -> u64 {
    let shown = test_group.nodes[place].group_metrics().render();
    let late = shown.lines().find_map(|line| line.strip_prefix("quorate_group_late_replies "));
    late.expect("it is shown").parse().unwrap()
}

#[test]
fn a_deferred_answer_always_ends_in_one_reply() {
    let mut test_group = TestGroup::start(1, 0);
    let (words, promises) = Words::slow();
    test_group.join(Words::default());
    test_group.join(words);
    test_group.join(Words::default());
    let asker = test_group.members[0].clone();
    let ask = |deadline| {
        let asking = asker.query(word("later"), Want::All).deadline(deadline).into_future();
        thread::spawn(move || asking.wait().unwrap())
    };
    let long = Duration::from_secs(20);
    let missing = |asking: thread::JoinHandle<quorate::group::Replies<_>>| {
        let answer = asking.join().unwrap();
        assert_eq!(
            (answer.complete, answer.replies.len(), answer.missing.len()),
            (false, 2, 1),
            "{answer:?}"
        );
        answer.missing.into_iter().next().map(|it| (it.rank, it.why)).unwrap()
    };
    // One thread drops the promise and goes on. Another thread drops it by panicking.
    let asking = ask(long);
    drop(put_off(&promises));
    assert_eq!(missing(asking), (1, Absence::Declined));
    let asking = ask(long);
    let promise = put_off(&promises);
    let panicked = thread::spawn(move || {
        let _held = promise;
        panic!("it was to answer");
    });
    assert!(panicked.join().is_err());
    assert!(matches!(missing(asking), (1, Absence::Failed(why)) if why.contains("panicked")));
    // The deadline holds. The asker counts the reply that arrives later, and drops it.
    assert_eq!(missing(ask(Duration::from_millis(300))), (1, Absence::Late));
    assert_eq!(late(&test_group, 0), 0);
    put_off(&promises).answer(((0, 0), 0));
    wait_for("it is counted", || late(&test_group, 0) == 1);
    // The member leaves, and its pending promise is void.
    let asking = ask(long);
    let promise = put_off(&promises);
    test_group.members.remove(1).leave().wait().unwrap();
    assert_eq!(missing(asking), (1, Absence::Gone));
    promise.answer(((0, 0), 0));
    assert_eq!(late(&test_group, 0), 1, "it said nothing");
    // If the member is killed, its pending promise is void, too.
    let (words, promises) = Words::slow();
    let fresh = test_group.nodes[2].group("other").join(words).wait().unwrap();
    let asks = test_group.nodes[0].group("other").join(Words::default()).wait().unwrap();
    let asking = asks.query(word("later"), Want::All).deadline(long).into_future();
    let asking = thread::spawn(move || asking.wait().unwrap());
    let promise = put_off(&promises);
    test_group.nodes.remove(2).abandon().wait();
    let answer = asking.join().unwrap();
    assert_eq!(answer.missing[0].why, Absence::Gone);
    promise.answer(((0, 0), 0));
    drop(fresh);
}

#[test]
fn a_deferred_answer_is_sealed_with_the_key_of_its_sending() {
    let test_group = TestGroup::start(1, 0);
    let (first, next) = (Key::generate(), Key::generate());
    let nodes = [0, 1].map(|_| node(test_group.cluster.addresses()));
    let (words, promises) = Words::slow();
    let slow = nodes[0].group("sealed").key(first.clone()).join(words).wait().unwrap();
    let asker = nodes[1].group("sealed").key(first).join(Words::default()).wait().unwrap();
    let asking = asker.query(word("later"), Want::All).deadline(Duration::from_secs(20)).into_future();
    let asking = thread::spawn(move || asking.wait().unwrap());
    let promise = put_off(&promises);
    asker.rotate(&next).wait().unwrap();
    let turned = |member: &Member<Words>| member.read(|_| member.key()) == Ok(Some(next.id()));
    wait_for("both have the next key", || turned(&slow) && turned(&asker));
    promise.answer(((1, 2), 3));
    let answer = asking.join().unwrap();
    assert!(answer.complete && answer.replies[0].reply == ((1, 2), 3), "{answer:?}");
}

/// Returns the error of a join that must fail. The node may still be leaving its former group.
fn refused<O: Object>(node: &Node, object: impl Fn() -> O) -> Error {
    let mut error = None;
    wait_for("the object is refused", || {
        let refused = node.group("closures").join(object()).wait().err();
        error = refused.filter(|error| !matches!(error, Error::Start { .. }));
        error.is_some()
    });
    error.expect("it was refused")
}

#[test]
fn a_group_of_closures_is_a_group_like_others() {
    let test_group = TestGroup::start(1, 0);
    let nodes = [0, 1, 2].map(|_| node(test_group.cluster.addresses()));
    let views = Arc::new(AtomicUsize::new(0));
    let words = || {
        let views = views.clone();
        Handlers::new("words/1", Vec::new())
            .update(|said: &mut Vec<String>, word: String, _| said.push(word))
            .query(|said, word: String, share| {
                let count = said.iter().filter(|said| said.starts_with(&word)).count();
                Answer::Now(((share.rank, share.of), count))
            })
            .view(move |_, _| {
                views.fetch_add(1, Ordering::Relaxed);
            })
    };
    let one = nodes[0].group("closures").join(words()).wait().unwrap();
    one.safe_send(word("one")).wait().unwrap();
    let other = nodes[1].group("closures").join(words()).wait().unwrap();
    other.safe_send(word("two")).wait().unwrap();
    assert_eq!(views.load(Ordering::Relaxed), 3, "the first was told of two, and the other of one");
    let all = ["one", "two"];
    for member in [&one, &other] {
        wait_for("both have all", || member.read(|words| words.state() == &all).unwrap());
    }
    let answer = one.ordered_query(word("t"), Want::All).wait().unwrap();
    assert_eq!(answer.replies.iter().map(|it| it.reply).collect::<Vec<_>>(), [((0, 2), 1), ((1, 2), 1)]);
    // A replica with the same name and structure fits, in whichever way it was made.
    let made = nodes[2].group("closures").join(Words::default()).wait().unwrap();
    assert_eq!(said(&made), all);
    made.leave().wait().unwrap();
    // A replica with another name or another structure is refused, and the error names both.
    let renamed = refused(&nodes[2], || Handlers::new("words/2", ()));
    assert!(renamed.to_string().contains("`words/1`") && renamed.to_string().contains("`words/2`"));
    let heavy = || Handlers::new("words/1", ()).update(|(), _: (String, u32), _| {});
    let refused = refused(&nodes[2], heavy);
    let Error::Mismatch { why, .. } = &refused else { panic!("{refused:?}") };
    assert!(why.contains(r#"updates are "STR""#) && why.contains(r#"["STR","U32"]"#), "{refused}");
}

#[test]
fn a_group_of_closures_goes_on_from_its_checkpoint_file() {
    let test_group = TestGroup::start(1, 0);
    let place = tempfile::tempdir().unwrap();
    let sum = |sum: i64| Handlers::new("sum/1", sum).update(|sum: &mut i64, add: i64, _| *sum += add);
    for (begins, goes_on) in [(40, 42), (0, 44)] {
        let node = node(test_group.cluster.addresses());
        let group = node.group("sum").checkpoint_file(place.path().join("sum"));
        let member = group.join(sum(begins)).wait().unwrap();
        member.send(2).wait().unwrap();
        assert_eq!(member.read(|sum| *sum.state()), Ok(goes_on));
        member.leave().wait().unwrap();
    }
}
