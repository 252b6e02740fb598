//! Journals of ended replicas, which their set may still need.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use quorate::{
    Node, Wait,
    service::{Begin, Cx, Executed, Kind, Service},
};
use quorate_testing::wait_for;
use serde::{Deserialize, Serialize};

use super::service::{builder, connect};

/// A fault in the code of `apply`. The leader applies the change without a panic. The next `victims` replicas
/// that apply it panic.
struct Poison {
    is_there: AtomicBool,
    /// Number of times that the change was applied.
    applied: AtomicU32,
    /// Number of backups that panic.
    victims: u32,
}

static POISONS: [Poison; 2] = [
    Poison { is_there: AtomicBool::new(true), applied: AtomicU32::new(0), victims: 2 },
    Poison { is_there: AtomicBool::new(true), applied: AtomicU32::new(0), victims: 1 },
];

#[derive(Default, Serialize, Deserialize)]
struct Sum(u64);

#[derive(Serialize, Deserialize)]
enum SumRequest {
    Add,
    AddPoison(usize),
    Read,
}

impl Service for Sum {
    type Request = SumRequest;
    type Reply = u64;
    type Delta = Option<usize>;
    type Undo = ();

    fn execute(&self, request: &SumRequest, _: &mut Cx<'_>) -> Executed<Self> {
        match request {
            SumRequest::Add => Executed::Changed(self.0 + 1, None),
            SumRequest::AddPoison(which) => Executed::Changed(self.0 + 1, Some(*which)),
            SumRequest::Read => Executed::Unchanged(self.0),
        }
    }

    fn apply(&mut self, poison: &Option<usize>) {
        if let Some(which) = poison {
            let Poison { is_there, applied, victims } = &POISONS[*which];
            let before = applied.fetch_add(1, Ordering::Relaxed);
            let panics = is_there.load(Ordering::Relaxed) && (1..=*victims).contains(&before);
            assert!(!panics, "as the code has it");
        }
        self.0 += 1;
    }

    fn revert(&mut self, (): ()) {
        self.0 -= 1;
    }

    fn kind(request: &SumRequest) -> Kind {
        if matches!(request, SumRequest::Read) { Kind::Read } else { Kind::Write }
    }
}

const NAME: &str = "sum";

fn host(directory: &PathBuf, listen: &str, seeds: &[String]) -> Node {
    let host = builder().listen(listen).seeds(seeds).directory(directory).durable().start().wait().unwrap();
    let begin = if seeds.is_empty() { Begin::Found { replicas: 3 } } else { Begin::Join };
    host.serve(NAME, Sum::default(), begin).wait().unwrap();
    host
}

/// Starts three hosts on disk, all of which are replicas. The first leads.
fn three(directories: &[PathBuf]) -> (Vec<Node>, Vec<String>) {
    let (mut hosts, mut addresses) = (Vec::new(), Vec::new());
    for directory in directories {
        hosts.push(host(directory, "127.0.0.1:0", &addresses));
        addresses.push(hosts.last().unwrap().address().to_string());
        let all = |host: &Node| host.replica_status(NAME).unwrap().replicas.len() == hosts.len();
        wait_for("all are replicas", || hosts.iter().all(all));
    }
    (hosts, addresses)
}

/// Only the journals of the replicas are left. Hosts with repaired code go on from these journals.
#[test]
fn replicas_that_panic_at_the_same_change_leave_their_journals() {
    let place = tempfile::tempdir().unwrap();
    let directories: Vec<PathBuf> = (0..3).map(|number| place.path().join(number.to_string())).collect();
    let (hosts, addresses) = three(&directories);
    let sum = connect(addresses.clone()).service::<Sum>(NAME).unwrap();
    assert_eq!(sum.call(&SumRequest::Add).wait(), Ok(1));
    let before: Vec<_> = hosts.iter().map(|host| host.replica_status(NAME).unwrap().me.unwrap()).collect();
    assert_eq!(
        sum.call(&SumRequest::AddPoison(0)).wait(),
        Ok(2),
        "both backups have it before they apply it"
    );
    wait_for("both backups have ended, and come back as other processes", || {
        hosts[1..].iter().all(|host| host.replica_status(NAME).unwrap().lives > 1)
    });
    for (host, before) in hosts.iter().zip(&before).skip(1) {
        let status = host.replica_status(NAME).unwrap();
        assert!(status.last_end.as_ref().is_some_and(|why| why.contains("as the code has it")), "{status:?}");
        assert_eq!(status.kept, [*before]);
    }
    drop((sum, hosts));

    POISONS[0].is_there.store(false, Ordering::Relaxed);
    let again: Vec<Node> = directories
        .iter()
        .zip(&addresses)
        .map(|(directory, listen)| host(directory, listen, &addresses))
        .collect();
    let sum = connect(addresses).service::<Sum>(NAME).unwrap();
    assert_eq!(sum.call(&SumRequest::Read).wait(), Ok(2), "nothing that was answered is lost");
    assert_eq!(sum.call(&SumRequest::Add).wait(), Ok(3));
    for (host, before) in again.iter().zip(before) {
        assert_eq!(host.replica_status(NAME).unwrap().me, Some(before), "it is who it was");
    }
}

#[test]
fn the_journal_of_a_replica_that_was_voted_out_goes() {
    let place = tempfile::tempdir().unwrap();
    let directories: Vec<PathBuf> = (0..3).map(|number| place.path().join(number.to_string())).collect();
    let (hosts, addresses) = three(&directories);
    let sum = connect(addresses.clone()).service::<Sum>(NAME).unwrap();
    assert_eq!(sum.call(&SumRequest::AddPoison(1)).wait(), Ok(1));
    let ended = || hosts.iter().position(|host| host.replica_status(NAME).unwrap().lives > 1);
    wait_for("one has ended, and comes back", || {
        ended().is_some_and(|ended| hosts[ended].replica_status(NAME).unwrap().address.is_some())
    });
    let ended = ended().unwrap();
    let status = hosts[ended].replica_status(NAME).unwrap();
    assert_eq!(status.kept.len(), 1, "{status:?}");
    assert_eq!(sum.call(&SumRequest::Add).wait(), Ok(2), "the others go on");
    hosts[0].replace_replica(NAME, &addresses[ended], &status.address.unwrap()).wait().unwrap();
    wait_for("its journal goes", || hosts[ended].replica_status(NAME).unwrap().kept.is_empty());
    wait_for("its successor has all", || hosts[ended].replica_status(NAME).unwrap().changes == 2);
}
