//! Services with threads of their own.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use quorate::{
    Error, Node, Wait,
    service::{Begin, Cx, Executed, Service, ServiceLoop, TaskQueue},
};
use quorate_testing::wait_for;
use serde::{Deserialize, Serialize};

use super::service::{builder, connect};

/// Hands out the things that callers put in. A call to take a thing waits until there is one.
#[derive(Default, Serialize, Deserialize)]
struct Store(BTreeSet<u64>);

#[derive(Debug, Serialize, Deserialize)]
enum Trade {
    Put(u64),
    Take,
}

#[derive(Clone, Serialize, Deserialize)]
enum Moved {
    In(u64),
    Out(u64),
}

impl Service for Store {
    type Request = Trade;
    type Reply = u64;
    type Delta = Moved;
    type Undo = Moved;

    fn execute(&self, trade: &Trade, cx: &mut Cx<'_>) -> Executed<Self> {
        match trade {
            Trade::Put(thing) => Executed::Changed(*thing, Moved::In(*thing)),
            Trade::Take if self.0.is_empty() => Executed::Rejected(String::from("nothing is there")),
            Trade::Take => {
                let any = cx.below(self.0.len() as u64) as usize;
                let thing = *self.0.iter().nth(any).expect("below the length");
                Executed::Changed(thing, Moved::Out(thing))
            }
        }
    }

    fn apply(&mut self, moved: &Moved) -> Moved {
        match *moved {
            Moved::In(thing) => {
                assert!(self.0.insert(thing), "{thing} is put once");
                Moved::Out(thing)
            }
            Moved::Out(thing) => {
                assert!(self.0.remove(&thing), "{thing} is taken once");
                Moved::In(thing)
            }
        }
    }

    fn revert(&mut self, undo: Moved) {
        self.apply(&undo);
    }
}

impl ServiceLoop for Store {
    fn threads() -> usize {
        4
    }

    fn run(tasks: &TaskQueue<Self>) {
        let mut takers = Vec::new();
        while !tasks.is_over() {
            match tasks.next_within(Duration::from_millis(1)) {
                Some(task) if matches!(task.request(), Trade::Put(_)) => drop(task.execute()),
                Some(task) => takers.push(task),
                None => {}
            }
            // Another thread may take the thing first. The host then rejects this task, and its caller calls
            // again.
            while !takers.is_empty() && tasks.look(|store| !store.0.is_empty()) {
                takers.pop().expect("there is one").execute();
            }
        }
    }
}

#[test]
fn four_threads_complete_calls_in_any_order_while_leaders_are_killed() {
    let mut hosts: Vec<Node> = Vec::new();
    for number in 0..4 {
        let seeds: Vec<String> = hosts.iter().map(|host| host.address().to_string()).collect();
        let host = builder().seeds(seeds).start().wait().unwrap();
        let begin = if number == 0 { Begin::Found { replicas: 3 } } else { Begin::Join };
        host.serve_loop("store", Store::default(), begin).wait().unwrap();
        hosts.push(host);
        if number < 3 {
            wait_for("all are replicas", || {
                hosts.iter().all(|host| host.replica_status("store").unwrap().replicas.len() == hosts.len())
            });
        }
    }
    let addresses: Vec<String> = hosts.iter().map(|host| host.address().to_string()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let taken = Arc::new(AtomicU64::new(0));
    let trader = |caller: u64| {
        let (stop, taken) = (stop.clone(), taken.clone());
        let store = connect(addresses.clone()).service::<Store>("store").unwrap();
        thread::spawn(move || {
            let (mut put, mut got) = (Vec::new(), Vec::new());
            for thing in (0..).map(|number| number * 8 + caller) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                if caller < 4 {
                    assert_eq!(store.call(&Trade::Put(thing)).wait(), Ok(thing));
                    put.push(thing);
                } else {
                    match store.call(&Trade::Take).wait() {
                        Ok(thing) => {
                            got.push(thing);
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::Rejected(_)) => {}
                        // At the end no caller puts anything in, so a call to take may stay unanswered.
                        Err(Error::MaybeApplied { .. } | Error::NotSent { .. })
                            if stop.load(Ordering::Relaxed) =>
                        {
                            break;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            (put, got)
        })
    };
    let (putters, takers): (Vec<_>, Vec<_>) =
        (0..8).map(|caller| (caller, trader(caller))).partition(|(caller, _)| *caller < 4);
    for _ in 0..2 {
        let before = taken.load(Ordering::Relaxed);
        wait_for("things are taken", || taken.load(Ordering::Relaxed) >= before + 200);
        let leads = |host: &Node| host.replica_status("store").unwrap().serving;
        wait_for("one leads", || hosts.iter().any(leads));
        let leader = hosts.iter().position(leads).expect("none resigns just now");
        drop(hosts.remove(leader));
        wait_for("things are taken again", || taken.load(Ordering::Relaxed) >= before + 300);
        let host = builder().seeds(addresses.clone()).start().wait().unwrap();
        host.serve_loop("store", Store::default(), Begin::Join).wait().unwrap();
        hosts.push(host);
        // Until the spare is a replica, a second death would leave one replica of three.
        wait_for("the spare has taken the place of the one that was killed", || {
            let statuses: Vec<_> = hosts.iter().map(|host| host.replica_status("store").unwrap()).collect();
            let living: BTreeSet<_> = statuses.iter().filter_map(|status| status.me).collect();
            statuses.iter().any(|one| {
                one.serving
                    && one.replicas.len() == 3
                    && one.replicas.iter().all(|(id, _)| living.contains(id))
            })
        });
    }
    stop.store(true, Ordering::Relaxed);
    type PutAndGot = (Vec<u64>, Vec<u64>);
    let join = |threads: Vec<(u64, thread::JoinHandle<PutAndGot>)>| -> Vec<PutAndGot> {
        threads.into_iter().map(|(_, thread)| thread.join().unwrap()).collect()
    };
    // The takers end first. Meanwhile the putters go on, so that no taker waits in vain.
    let got: Vec<u64> = join(takers).into_iter().flat_map(|(_, got)| got).collect();
    let put: BTreeSet<u64> = join(putters).into_iter().flat_map(|(put, _)| put).collect();
    let different: BTreeSet<u64> = got.iter().copied().collect();
    assert_eq!(different.len(), got.len(), "each is taken once");
    assert!(different.is_subset(&put), "nothing is taken that was not put");
}

/// Panics over some requests while it holds others.
#[derive(Default, Serialize, Deserialize)]
struct Clumsy(u64);

impl Service for Clumsy {
    type Request = u64;
    type Reply = u64;
    type Delta = u64;
    type Undo = u64;

    fn execute(&self, more: &u64, _: &mut Cx<'_>) -> Executed<Self> {
        Executed::Changed(self.0 + more, *more)
    }

    fn apply(&mut self, more: &u64) -> u64 {
        self.0 += more;
        *more
    }

    fn revert(&mut self, more: u64) {
        self.0 -= more;
    }
}

impl ServiceLoop for Clumsy {
    fn run(tasks: &TaskQueue<Self>) {
        while let Some(task) = tasks.next() {
            assert!(*task.request() != 13, "asked to panic");
            task.execute();
        }
    }
}

#[test]
fn tasks_of_a_panicked_loop_are_rejected_and_the_loop_continues() {
    let host = builder().start().wait().unwrap();
    host.serve_loop("clumsy", Clumsy::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let stub = connect(vec![host.address().to_string()]).service::<Clumsy>("clumsy").unwrap();
    assert_eq!(stub.call(&2).wait(), Ok(2));
    let refused = stub.call(&13).wait();
    assert!(
        matches!(&refused, Err(Error::Rejected(why)) if why.message.contains("without completing it")),
        "{refused:?}"
    );
    assert_eq!(stub.call(&3).wait(), Ok(5));
    let mut transaction = stub.begin();
    let refused = transaction.call(&1).wait();
    assert!(
        matches!(&refused, Err(Error::Rejected(why)) if why.message.contains("no transactions")),
        "{refused:?}"
    );
    assert_eq!(stub.call(&1).wait(), Ok(6));
}
