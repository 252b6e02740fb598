//! Callers drop the output of a call at each point at which it waits. The next call finds the true state.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use quorate::{
    Error, Local, Name, Node, Wait,
    service::{Begin, Stub},
};

use super::service::{AccountService, BANK, Counter, CounterRequest, Hosts, NAME, Order, builder, connect};

/// Polls a future each time that it wakes, up to `polls` times, and then drops it. Returns its output if it
/// becomes ready earlier.
fn drop_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    struct Sleeper(Thread);
    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    let mut future = pin!(future);
    for poll in 0..polls {
        if poll > 0 {
            thread::park();
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
    }
    None
}

/// Number of polls that complete a call. A future of this library waits at most twice: for its turn and for
/// the answer.
const POLLS: usize = 3;

#[test]
fn a_call_that_is_dropped_takes_effect_once_or_not_at_all() {
    let hosts = Hosts::start(1);
    let stub = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    for polls in 0..POLLS {
        let before = stub.call(&CounterRequest::Read).wait().unwrap();
        let outcome = drop_after(polls, stub.call(&CounterRequest::Add));
        let after = stub.call(&CounterRequest::Read).wait().unwrap();
        match (polls, outcome) {
            (0, _) => assert_eq!(after, before, "it was never sent"),
            (_, Some(value)) => assert_eq!(value, Ok(after)),
            (_, None) => assert_eq!(after, before + 1, "calls of one stub are executed in their order"),
        }
    }
    let before = stub.call(&CounterRequest::Read).wait().unwrap();
    for (polls, asks) in [(0, 0), (1, 2), (2, 2)] {
        let requests = [CounterRequest::Add, CounterRequest::Add];
        let read = stub.call(&CounterRequest::Read).wait().unwrap();
        drop_after(polls, stub.calls(&requests));
        assert_eq!(stub.call(&CounterRequest::Read).wait(), Ok(read + asks));
    }
    for polls in 0..POLLS {
        let key = format!("key {polls}");
        drop_after(polls, stub.call_keyed(&key, &CounterRequest::Add));
        let value = stub.call_keyed(&key, &CounterRequest::Add).wait();
        assert_eq!(stub.call_keyed(&key, &CounterRequest::Add).wait(), value);
        assert_eq!(value, Ok(before + 5 + polls as u64), "once under its key");
    }
}

#[test]
fn a_question_that_is_dropped_does_not_hide_the_outcome_from_the_next() {
    let hosts = Hosts::start(1);
    let wait = Duration::from_millis(300);
    let client = Node::builder().seeds(hosts.addresses()).call_wait(wait).start().wait().unwrap();
    let stub = client.service::<Counter>(NAME).unwrap();
    let found = |call: &dyn Fn() -> Result<u64, Error>| {
        let open = call();
        let Err(Error::MaybeApplied { id: Some(Name::Call(id)), .. }) = open else { panic!("{open:?}") };
        assert_eq!(drop_after(1, stub.again(id)), None);
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            assert!(Instant::now() < until, "its outcome comes about");
            match stub.again(id).wait() {
                Err(Error::MaybeApplied { .. }) => {}
                other => return other,
            }
        }
    };
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(1));
    assert_eq!(found(&|| stub.call(&CounterRequest::AddSlowly(3 * wait)).wait()), Ok(2));
    assert_eq!(found(&|| stub.call_keyed("k", &CounterRequest::AddSlowly(3 * wait)).wait()), Ok(3));
    assert_eq!(stub.call(&CounterRequest::Read).wait(), Ok(3));
}

/// Starts one host of a bank, and returns it with a stub.
fn bank() -> (Node, Stub<AccountService>) {
    let host = builder().start().wait().unwrap();
    host.serve(BANK, AccountService::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let stub = connect(vec![host.address().to_string()]).service::<AccountService>(BANK).unwrap();
    (host, stub)
}

fn is_aborted<T: std::fmt::Debug>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Aborted { .. }))
}

#[test]
fn a_call_that_is_dropped_in_a_transaction_aborts_it_at_the_next() {
    let (_host, bank) = bank();
    for polls in 0..POLLS {
        for begins in [true, false] {
            let before = bank.call(&Order::Sum).wait().unwrap();
            let mut transaction = bank.begin();
            if !begins {
                transaction.call(&Order::Add(7, 0)).wait().unwrap();
            }
            let outcome = drop_after(polls, transaction.call(&Order::Add(1, 10)));
            let next = transaction.call(&Order::Add(1, 10)).wait();
            let is_known = polls == 0 || outcome.is_some();
            assert_eq!(is_aborted(&next), !is_known, "{polls} {begins}: {next:?}");
            let committed = transaction.commit().wait();
            assert_eq!(is_aborted(&committed), !is_known, "{polls} {begins}: {committed:?}");
            let made = if is_known { 1 + i64::from(outcome.is_some()) } else { 0 };
            assert_eq!(bank.call(&Order::Sum).wait(), Ok(before + 10 * made), "{polls} {begins}");
        }
    }
}

#[test]
fn a_commit_that_is_dropped_holds_no_locks() {
    let (_host, bank) = bank();
    for polls in 0..POLLS {
        let before = bank.call(&Order::Sum).wait().unwrap();
        let mut transaction = bank.begin();
        transaction.call(&Order::Add(1, 10)).wait().unwrap();
        drop_after(polls, transaction.commit());
        let began = Instant::now();
        let after = bank.call(&Order::Sum).wait().unwrap();
        assert!(began.elapsed() < Duration::from_secs(3), "a forgotten transaction ends after 5 s");
        assert_eq!(after, before + if polls == 0 { 0 } else { 10 }, "{polls}");
    }
}

/// A caller drops a write in a transaction block. The block must not commit as if the write had not been
/// sent.
#[test]
fn a_statement_that_is_dropped_in_a_transaction_fails_it() {
    let cluster = Local::start().wait().unwrap();
    let db = quorate::connect(cluster.addresses()).wait().unwrap();
    db.execute("create table t (id int primary key)").wait().unwrap();
    for polls in 0..6 {
        let mut block = db.begin().wait().unwrap();
        let insert = format!("insert into t values ({polls})");
        let outcome = drop_after(polls, block.execute(&insert).into_future());
        let committed = block.commit().wait();
        let count = format!("select id from t where id = {polls}");
        match &outcome {
            Some(Ok(1)) => assert_eq!(committed, Ok(())),
            None if polls == 0 => assert_eq!(committed, Ok(()), "nothing was asked"),
            None => assert!(committed.is_err(), "after {polls} polls: {committed:?}"),
            other => panic!("{other:?}"),
        }
        if outcome == Some(Ok(1)) {
            assert_eq!(db.query(&count).wait().unwrap().count(), 1);
        }
    }
    cluster.stop().wait();
}
