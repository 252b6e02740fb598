//! Services on real threads and sockets: hosts and clients in one program, over loopback.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use quorate::{
    Db, Error, Fate, Name, Node, Wait,
    node::Builder,
    service::{Begin, Cx, Executed, Kind, ReplicaStatus, Service, Stub},
};
use quorate_testing::wait_for;
use serde::{Deserialize, Serialize};

/// Accounts. Each account is a key of its own.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct AccountService(std::collections::BTreeMap<u64, i64>);

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Adds an amount to an account. The reply is the new balance.
    Add(u64, i64),
    Look(u64),
    Sum,
}

impl Service for AccountService {
    type Request = Order;
    type Reply = i64;
    type Delta = (u64, i64);
    type Undo = (u64, i64);

    fn execute(&self, order: &Order, _: &mut Cx<'_>) -> Executed<Self> {
        let there = |account| self.0.get(account).copied().unwrap_or(0);
        match order {
            Order::Add(account, amount) => Executed::Changed(there(account) + amount, (*account, *amount)),
            Order::Look(account) => Executed::Unchanged(there(account)),
            Order::Sum => Executed::Unchanged(self.0.values().sum()),
        }
    }

    fn apply(&mut self, (account, amount): &(u64, i64)) -> (u64, i64) {
        *self.0.entry(*account).or_default() += amount;
        (*account, -amount)
    }

    fn revert(&mut self, undo: (u64, i64)) {
        self.apply(&undo);
    }

    fn kind(order: &Order) -> Kind {
        match order {
            Order::Add(..) => Kind::Write,
            Order::Look(_) | Order::Sum => Kind::Read,
        }
    }

    fn keys(order: &Order) -> Vec<u64> {
        match order {
            Order::Add(account, _) | Order::Look(account) => vec![*account],
            Order::Sum => Vec::new(),
        }
    }
}

/// Counts, and misbehaves on request.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Counter {
    value: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum CounterRequest {
    Add,
    /// Sleeps for this time before it adds.
    AddSlowly(Duration),
    /// Adds, with a delta of this many bytes.
    AddWith(usize),
    Read,
    /// Adds, but claims to be a read.
    AddAsRead,
    Refuse,
    Panic,
    PanicInApply,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Delta {
    One(Vec<u8>),
    Panic,
}

impl Service for Counter {
    type Request = CounterRequest;
    type Reply = u64;
    type Delta = Delta;
    type Undo = u64;

    fn execute(&self, request: &CounterRequest, _: &mut Cx<'_>) -> Executed<Self> {
        let padding = match request {
            CounterRequest::Read => return Executed::Unchanged(self.value),
            CounterRequest::Refuse => return Executed::Rejected(format!("not at {}", self.value)),
            CounterRequest::Panic => panic!("asked to panic at {}", self.value),
            CounterRequest::PanicInApply => return Executed::Changed(0, Delta::Panic),
            CounterRequest::AddSlowly(span) => {
                thread::sleep(*span);
                0
            }
            CounterRequest::AddWith(bytes) => *bytes,
            CounterRequest::Add | CounterRequest::AddAsRead => 0,
        };
        Executed::Changed(self.value + 1, Delta::One(vec![7; padding]))
    }

    fn apply(&mut self, delta: &Delta) -> u64 {
        match delta {
            Delta::One(_) => self.value += 1,
            Delta::Panic => panic!("asked to panic in apply"),
        }
        1
    }

    fn revert(&mut self, added: u64) {
        self.value -= added;
    }

    fn kind(request: &CounterRequest) -> Kind {
        match request {
            CounterRequest::Read | CounterRequest::AddAsRead => Kind::Read,
            _ => Kind::Write,
        }
    }
}

/// Looks like [`Counter`] to other replicas, but panics in `apply`.
#[derive(Default, Serialize, Deserialize)]
struct Fragile(Counter);

impl Service for Fragile {
    type Request = CounterRequest;
    type Reply = u64;
    type Delta = Delta;
    type Undo = u64;

    fn execute(&self, _: &CounterRequest, _: &mut Cx<'_>) -> Executed<Self> {
        Executed::Rejected(String::from("it leads nobody"))
    }

    fn apply(&mut self, _: &Delta) -> u64 {
        panic!("as fragile as it was made at {}", self.0.value)
    }

    fn revert(&mut self, added: u64) {
        self.0.revert(added);
    }
}

pub(super) const NAME: &str = "counter";

/// The hosts of one counter.
pub(super) struct Hosts(pub(super) Vec<Node>);

impl Hosts {
    /// Starts `count` hosts, all of which are replicas.
    pub(super) fn start(count: usize) -> Hosts {
        let mut hosts = Hosts(Vec::new());
        let first = builder().start().wait().unwrap();
        first.serve(NAME, Counter::default(), Begin::Found { replicas: 3 }).wait().unwrap();
        hosts.0.push(first);
        for _ in 1..count {
            hosts.join();
        }
        hosts
    }

    /// Adds a host, which becomes a replica.
    pub(super) fn join(&mut self) {
        let host = builder().seeds(self.addresses()).start().wait().unwrap();
        host.serve(NAME, Counter::default(), Begin::Join).wait().unwrap();
        self.0.push(host);
        self.settle();
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.0.iter().map(|host| host.address().to_string()).collect()
    }

    pub(super) fn statuses(&self) -> Vec<ReplicaStatus> {
        self.0.iter().map(|host| host.replica_status(NAME).unwrap()).collect()
    }

    /// Waits until exactly these hosts are the replicas in the view of each of them.
    fn settle(&self) {
        let ids: Vec<_> = self.statuses().iter().map(|status| status.me.unwrap()).collect();
        wait_for("all are replicas", || {
            self.statuses().iter().all(|status| {
                let known = |id| status.replicas.iter().any(|(replica, _)| replica == id);
                status.replicas.len() == ids.len() && ids.iter().all(known)
            })
        });
    }

    /// Removes the leader as if it had been killed.
    pub(super) fn kill_leader(&mut self) -> Node {
        let leads = |host: &Node| host.replica_status(NAME).unwrap().serving;
        wait_for("one leads", || self.0.iter().any(leads));
        let leader = self.0.iter().position(leads).expect("none resigns just now");
        self.0.remove(leader)
    }
}

pub(super) fn builder() -> Builder {
    // The short log forces a joiner to load a checkpoint.
    Node::builder().log_bytes_kept(4096)
}

pub(super) fn connect(addresses: Vec<String>) -> Db {
    quorate::connect(addresses).wait().unwrap()
}

/// Threads that add and then read the count until `stop`.
pub(super) struct Callers {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<Vec<u64>>>,
}

impl Callers {
    pub(super) fn start(clients: &[Db], threads: usize) -> Callers {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let stubs = clients.iter().map(|client| client.service::<Counter>(NAME).unwrap());
        let start = |stub: Stub<Counter>| {
            let (stop, answered) = (stop.clone(), answered.clone());
            thread::spawn(move || {
                let mut values = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let value = stub.call(&CounterRequest::Add).wait().unwrap();
                    let seen = stub.call(&CounterRequest::Read).wait().unwrap();
                    assert!(seen >= value, "{seen} was read after {value} was told");
                    values.push(value);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                values
            })
        };
        let threads = stubs.flat_map(|stub| vec![stub; threads]).map(start).collect();
        Callers { stop, answered, threads }
    }

    pub(super) fn wait_for_more(&self, calls: u64) {
        let before = self.answered.load(Ordering::Relaxed);
        wait_for("calls are answered", || self.answered.load(Ordering::Relaxed) >= before + calls);
    }

    /// Stops the threads, and returns the values of their replies in ascending order.
    pub(super) fn stop(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut values: Vec<u64> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        values.sort_unstable();
        values
    }
}

#[test]
fn calls_go_on_and_take_effect_once_when_leaders_are_killed() {
    let mut hosts = Hosts::start(3);
    let clients = [0, 1].map(|_| connect(hosts.addresses()));
    let callers = Callers::start(&clients, 4);
    callers.wait_for_more(100);
    drop(hosts.kill_leader());
    callers.wait_for_more(100);
    // A new host takes the place of the killed one, so that the test can kill another.
    hosts.join();
    let joined = hosts.0.last().unwrap().replica_status(NAME).unwrap();
    assert!(joined.restored >= 1, "its log was cut off: {joined:?}");
    callers.wait_for_more(100);
    drop(hosts.kill_leader());
    callers.wait_for_more(100);
    let values = callers.stop();
    assert_eq!(values, (1..=values.len() as u64).collect::<Vec<_>>(), "each once, and none is missing");
    let count = values.len() as u64;
    wait_for("all that was told is everywhere", || {
        hosts.statuses().iter().all(|status| status.changes == count)
    });
    let fresh = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    assert_eq!(fresh.call(&CounterRequest::Read).wait(), Ok(count));
}

#[test]
fn a_caller_with_its_own_links_works_like_a_stub() {
    let mut hosts = Hosts::start(3);
    let stub = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    let mut caller = stub.caller().unwrap();
    for value in 1..=100 {
        assert_eq!(caller.call(&CounterRequest::Add), Ok(value));
        assert_eq!(caller.call(&CounterRequest::Read), Ok(value));
    }
    // The caller's links stand idle while the leader dies and another host takes its place.
    drop(hosts.kill_leader());
    hosts.join();
    assert_eq!(caller.call(&CounterRequest::Add), Ok(101));
    drop(hosts.kill_leader());
    assert_eq!(caller.call(&CounterRequest::Add), Ok(102));
    assert_eq!(stub.call(&CounterRequest::Read).wait(), Ok(102));
    let refused = caller.call(&CounterRequest::Refuse);
    assert!(matches!(&refused, Err(Error::Rejected(why)) if why.message == "not at 102"), "{refused:?}");

    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let node = Node::builder().seeds([nowhere.clone()]).call_wait(Duration::from_millis(300)).start().wait();
    let mut lost = node.unwrap().service::<Counter>(NAME).unwrap().caller().unwrap();
    let begun = Instant::now();
    match lost.call(&CounterRequest::Add) {
        Err(Error::NotSent { why }) => {
            assert!(why.contains(&nowhere) && why.contains("no process that serves"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn learned_changes_outlive_the_processes_that_computed_them() {
    let mut hosts = Hosts::start(3);
    let stub = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    for value in 1..=40 {
        assert_eq!(stub.call(&CounterRequest::AddWith(1000)).wait(), Ok(value));
    }
    for _ in 0..3 {
        drop(hosts.0.remove(0));
        hosts.join();
    }
    assert!(hosts.statuses().iter().all(|status| status.restored >= 1), "{:?}", hosts.statuses());
    let fresh = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    assert_eq!(fresh.call(&CounterRequest::Read).wait(), Ok(40));
    assert_eq!(fresh.call(&CounterRequest::Add).wait(), Ok(41));
}

#[test]
fn a_stub_follows_the_replacement_of_all_known_replicas() {
    let mut hosts = Hosts::start(3);
    let stub = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(1));
    // The leader stays until both others have been replaced. It answers meanwhile, so nothing redirects the
    // stub.
    for value in 2..=3 {
        drop(hosts.0.remove(1));
        hosts.join();
        assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(value));
    }
    drop(hosts.kill_leader());
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(4));
}

pub(super) const BANK: &str = "bank";

/// Starts three hosts of a bank, all of which are replicas.
fn banks() -> Vec<Node> {
    let mut hosts: Vec<Node> = Vec::new();
    for _ in 0..3 {
        let seeds = hosts.iter().map(|host| host.address().to_string());
        let host = builder().seeds(seeds.collect::<Vec<_>>()).start().wait().unwrap();
        let begin = if hosts.is_empty() { Begin::Found { replicas: 3 } } else { Begin::Join };
        host.serve(BANK, AccountService::default(), begin).wait().unwrap();
        hosts.push(host);
    }
    let all = |host: &Node| host.replica_status(BANK).unwrap().replicas.len() == 3;
    wait_for("all are replicas", || hosts.iter().all(all));
    hosts
}

#[test]
fn a_transaction_takes_effect_at_its_commit_or_not_at_all() {
    let hosts = banks();
    let addresses: Vec<_> = hosts.iter().map(|host| host.address().to_string()).collect();
    let bank = connect(addresses).service::<AccountService>(BANK).unwrap();
    let mut transfer = bank.begin();
    assert_eq!(transfer.call(&Order::Add(1, -50)).wait(), Ok(-50));
    assert_eq!(bank.call(&Order::Look(2)).wait(), Ok(0), "nobody has account 2");
    let waiting = {
        let bank = bank.clone();
        thread::spawn(move || bank.call(&Order::Look(1)).wait())
    };
    assert_eq!(transfer.call(&Order::Add(2, 50)).wait(), Ok(50));
    assert!(!waiting.is_finished(), "account 1 is the transaction's");
    assert_eq!(transfer.commit().wait(), Ok(()));
    assert_eq!(waiting.join().unwrap(), Ok(-50));

    let mut dropped = bank.begin();
    assert_eq!(dropped.call(&Order::Add(1, 7)).wait(), Ok(-43));
    drop(dropped);
    assert_eq!(bank.call(&Order::Look(1)).wait(), Ok(-50));
    let mut reader = bank.begin();
    assert_eq!(reader.call(&Order::Sum).wait(), Ok(0));
    assert_eq!(reader.commit().wait(), Ok(()));
    assert_eq!(bank.begin().commit().wait(), Ok(()), "of nothing");
    let same = |host: &Node| host.replica_status(BANK).unwrap().changes == 2;
    wait_for("all have the transfer and nothing else", || hosts.iter().all(same));
}

#[test]
fn of_two_transactions_that_wait_for_each_other_one_is_aborted() {
    let host = builder().start().wait().unwrap();
    host.serve(BANK, AccountService::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let bank = connect(vec![host.address().to_string()]).service::<AccountService>(BANK).unwrap();
    let (mut one, mut other) = (bank.begin(), bank.begin());
    assert_eq!(one.call(&Order::Add(1, 1)).wait(), Ok(1));
    assert_eq!(other.call(&Order::Add(2, 1)).wait(), Ok(1));
    let one = thread::spawn(move || one.call(&Order::Add(2, 10)).wait().and_then(|_| one.commit().wait()));
    let refused = other.call(&Order::Add(1, 10)).wait();
    let commits = [one.join().unwrap(), refused.and_then(|_| other.commit().wait())];
    let aborted = |outcome: &&Result<(), Error>| matches!(outcome, Err(Error::Aborted { .. }));
    assert_eq!(commits.iter().filter(aborted).count(), 1, "{commits:?}");
    let sum = bank.call(&Order::Sum).wait();
    assert_eq!(sum, Ok(11), "the other one has taken effect");
}

#[test]
fn transfers_go_on_and_the_sum_stays_when_leaders_are_killed() {
    let mut hosts = banks();
    let addresses: Vec<_> = hosts.iter().map(|host| host.address().to_string()).collect();
    let (stop, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let transfer = |bank: &Stub<AccountService>, turn: u64| -> Result<(), Error> {
        let mut transaction = bank.begin();
        transaction.call(&Order::Add(turn % 5, -1)).wait()?;
        transaction.call(&Order::Add((turn + 1) % 5, 1)).wait()?;
        transaction.commit().wait()
    };
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let bank = connect(addresses.clone()).service::<AccountService>(BANK).unwrap();
            let (stop, committed) = (stop.clone(), committed.clone());
            thread::spawn(move || {
                let mut changes = 0;
                let mut turn = caller;
                while !stop.load(Ordering::Relaxed) {
                    turn += 3;
                    match transfer(&bank, turn) {
                        Ok(()) => {
                            changes += 2;
                            committed.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::Aborted { .. } | Error::NotSent { .. }) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
                changes
            })
        })
        .collect();
    let more = |count: u64| {
        let before = committed.load(Ordering::Relaxed);
        wait_for("transfers are committed", || committed.load(Ordering::Relaxed) >= before + count);
    };
    more(50);
    let leads = |host: &Node| host.replica_status(BANK).unwrap().serving;
    wait_for("one leads", || hosts.iter().any(leads));
    let leader = hosts.iter().position(leads).unwrap();
    drop(hosts.remove(leader));
    more(50);
    stop.store(true, Ordering::Relaxed);
    let changes: u64 = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    let bank = connect(addresses.clone()).service::<AccountService>(BANK).unwrap();
    assert_eq!(bank.call(&Order::Sum).wait(), Ok(0));
    let same = |host: &Node| host.replica_status(BANK).unwrap().changes == changes;
    wait_for("all have what was committed, once", || hosts.iter().all(same));
}

#[test]
fn a_refusal_or_a_panic_changes_nothing() {
    let hosts = Hosts::start(1);
    let stub = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(1));
    let rejected = |request| match stub.call(&request).wait() {
        Err(error @ Error::Rejected(_)) => error.to_string(),
        other => panic!("{request:?}: {other:?}"),
    };
    assert!(rejected(CounterRequest::Refuse).contains("not at 1"));
    assert!(rejected(CounterRequest::Panic).contains("asked to panic at 1"));
    assert!(rejected(CounterRequest::AddAsRead).contains("as a read"));
    assert!(rejected(CounterRequest::AddWith(5 << 20)).contains("too many"));
    assert_eq!(stub.call(&CounterRequest::Read).wait(), Ok(1));
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(2));
}

#[test]
fn a_panic_in_apply_ends_that_replica_and_no_other() {
    let mut hosts = Hosts::start(2);
    let fragile = builder().seeds(hosts.addresses()).start().wait().unwrap();
    fragile.serve(NAME, Fragile::default(), Begin::Join).wait().unwrap();
    let stub = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    let is_in = || fragile.replica_status(NAME).unwrap().replicas.len() == 3;
    wait_for("it is taken in", is_in);
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(1));
    let ended = || fragile.replica_status(NAME).unwrap().last_end;
    wait_for("it ends", || ended().is_some());
    assert!(ended().unwrap().contains("as fragile as it was made"), "{:?}", ended());
    let again = fragile.serve(NAME, Counter::default(), Begin::Join).wait();
    assert!(
        matches!(&again, Err(Error::Start { why }) if why.contains("serves the service `counter` already")),
        "{again:?}"
    );
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(2), "two of three go on");
    drop(fragile);
    hosts.join();

    // The leader's host refuses the request. So the next leader does not get it, and does not end because of
    // it.
    let refused = stub.call(&CounterRequest::PanicInApply).wait();
    assert!(matches!(&refused, Err(Error::Rejected(why)) if why.message.contains("in apply")), "{refused:?}");
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(3));
    let ended = hosts.statuses().into_iter().filter(|status| status.last_end.is_some()).count();
    assert_eq!(ended, 1, "{:?}", hosts.statuses());
}

#[test]
fn an_unserved_name_is_reported_and_awaited() {
    let host = builder().start().wait().unwrap();
    // The host serves another service.
    host.serve("other", Counter::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let address = host.address().to_string();
    let impatient = Node::builder().seeds([&address]).call_wait(Duration::from_millis(200)).start();
    let stub = impatient.wait().unwrap().service::<Counter>("no such thing").unwrap();
    let nobody = stub.call(&CounterRequest::Add).wait().unwrap_err();
    assert_eq!(nobody.fate(), Some(Fate::NotSent));
    assert!(nobody.to_string().contains("no process that serves `no such thing`"), "{nobody}");

    let patient = connect(vec![address]).service::<Counter>(NAME).unwrap();
    let caller = thread::spawn(move || patient.call(&CounterRequest::Add).wait());
    thread::sleep(Duration::from_millis(100));
    host.serve(NAME, Counter::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    assert_eq!(caller.join().unwrap(), Ok(1), "the call was there before the service");
}

#[test]
fn an_open_outcome_is_asked_for_again() {
    let hosts = Hosts::start(1);
    let wait = Duration::from_secs(1);
    let client = Node::builder().seeds(hosts.addresses()).call_wait(wait).start().wait().unwrap();
    let stub = client.service::<Counter>(NAME).unwrap();
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(1));
    let open = stub.call(&CounterRequest::AddSlowly(4 * wait)).wait();
    let Err(Error::MaybeApplied { id: Some(Name::Call(mut id)), .. }) = open else { panic!("{open:?}") };
    let until = Instant::now() + Duration::from_secs(30);
    let value = loop {
        assert!(Instant::now() < until, "its outcome comes about");
        match stub.again(id).wait() {
            Err(Error::MaybeApplied { id: Some(Name::Call(again)), .. }) => id = again,
            other => break other,
        }
    };
    assert_eq!(value, Ok(2));
    assert_eq!(stub.call(&CounterRequest::Read).wait(), Ok(2), "once, however often it was asked for");
    assert!(matches!(stub.again(id).wait(), Err(Error::Expired { .. })), "it was told");
}

#[test]
fn a_set_is_founded_once_and_joined_with_its_first_state() {
    let hosts = Hosts::start(1);
    let other = builder().seeds(hosts.addresses()).start().wait().unwrap();
    let again = other.serve(NAME, Counter::default(), Begin::Found { replicas: 3 }).wait();
    assert!(matches!(&again, Err(Error::Start { why }) if why.contains("exists already")), "{again:?}");
    other.serve(NAME, Counter { value: 5 }, Begin::Join).wait().unwrap();
    wait_for("it ends", || other.replica_status(NAME).unwrap().ended.is_some());
    assert!(other.replica_status(NAME).unwrap().ended.unwrap().contains("another first state"));
    let alone = builder().start().wait().unwrap();
    let alone = alone.serve(NAME, Counter::default(), Begin::Join).wait();
    assert!(matches!(&alone, Err(Error::Start { why }) if why.contains("without seeds")), "{alone:?}");
    // Another name stands for another service.
    other.serve("second", Counter::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let second = connect(vec![other.address().to_string()]).service::<Counter>("second").unwrap();
    assert_eq!(second.call(&CounterRequest::Add).wait(), Ok(1));
}
