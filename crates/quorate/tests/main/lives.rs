//! Lives of replicas: they end and come back, are replaced during calls, or begin with the state of an
//! earlier set.

use std::{collections::BTreeSet, path::Path};

use quorate::{
    Error, Node, Wait,
    service::{Begin, Export, ReplicaStatus},
};
use quorate_testing::wait_for;

use super::service::{Callers, Counter, CounterRequest, Hosts, NAME, builder, connect};

#[test]
fn an_ended_replica_comes_back_in_its_process_without_disturbing_other_services() {
    let hosts = Hosts::start(3);
    for (number, host) in hosts.0.iter().enumerate() {
        let begin = if number == 0 { Begin::Found { replicas: 3 } } else { Begin::Join };
        host.serve("second", Counter::default(), begin).wait().unwrap();
    }
    let second = connect(hosts.addresses()).service::<Counter>("second").unwrap();
    assert_eq!(second.call(&CounterRequest::Add).wait(), Ok(1));
    let stub = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(1));
    assert!(matches!(stub.call(&CounterRequest::PanicInApply).wait(), Err(Error::Rejected(_))));
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(2));
    wait_for("the leader of then is a replica again", || {
        let statuses = hosts.statuses();
        let back = statuses.iter().find(|status| status.lives == 2);
        back.is_some_and(|back| {
            let is_in = |id| back.replicas.iter().any(|(replica, _)| replica == id);
            back.me.as_ref().is_some_and(is_in) && back.changes == 2 && back.ended.is_none()
        })
    });
    let back = hosts.statuses().iter().position(|status| status.lives == 2).unwrap();
    let (host, status) = (&hosts.0[back], &hosts.statuses()[back]);
    assert!(status.last_end.as_ref().unwrap().contains("in apply"), "{status:?}");
    assert_ne!(status.address, Some(host.address().to_string()), "it is another process");
    assert_eq!(host.replica_status("second").unwrap().lives, 1);
    assert_eq!(second.call(&CounterRequest::Add).wait(), Ok(2));
    // A client that knows only this host learns of the other hosts from it.
    let through = connect(vec![host.address().to_string()]).service::<Counter>(NAME).unwrap();
    assert_eq!(through.call(&CounterRequest::Add).wait(), Ok(3));
}

#[test]
fn a_replica_is_replaced_while_calls_go_on() {
    let hosts = Hosts::start(3);
    let callers = Callers::start(&[connect(hosts.addresses())], 4);
    callers.wait_for_more(50);
    let spare = builder().seeds(hosts.addresses()).start().wait().unwrap();
    spare.serve(NAME, Counter::default(), Begin::Join).wait().unwrap();
    let (old, new) = (hosts.0[1].address().to_string(), spare.address().to_string());
    let nobody = hosts.0[0].replace_replica(NAME, "127.0.0.1:1", &new).wait();
    assert!(matches!(&nobody, Err(Error::Rejected(why)) if why.message.contains("no replica")), "{nobody:?}");
    hosts.0[0].replace_replica(NAME, &old, &new).wait().unwrap();
    let replicas = |host: &Node| -> BTreeSet<String> {
        host.replica_status(NAME).unwrap().replicas.into_iter().map(|(_, address)| address).collect()
    };
    let wanted: BTreeSet<String> =
        [0, 2].map(|at| hosts.0[at].address().to_string()).into_iter().chain([new]).collect();
    wait_for("all know the replicas", || {
        [&hosts.0[0], &hosts.0[2], &spare].iter().all(|host| replicas(host) == wanted)
    });
    callers.wait_for_more(50);
    let values = callers.stop();
    assert_eq!(values, (1..=values.len() as u64).collect::<Vec<_>>(), "each once, and none is missing");
    wait_for("the new one has all", || spare.replica_status(NAME).unwrap().changes == values.len() as u64);

    // A fourth replica exceeds the wanted number. The replaced replica comes back as a spare, now or soon.
    wait_for("it is a spare", || {
        hosts.0[1].replica_status(NAME).is_some_and(|status| status.lives == 2 && status.address.is_some())
    });
    let again = hosts.0[1].replica_status(NAME).unwrap().address.unwrap();
    hosts.0[2].add_replica(NAME, &again).wait().unwrap();
    wait_for("there are four", || replicas(&spare).len() == 4);
    assert!(hosts.0[1].withdraw(NAME).is_ok() && hosts.0[1].replica_status(NAME).is_none());
    assert!(hosts.0[1].withdraw(NAME).is_err(), "it is not there any more");
}

#[test]
fn the_only_replica_of_a_set_ends_for_good() {
    let hosts = Hosts::start(1);
    let stub = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(1));
    assert!(matches!(stub.call(&CounterRequest::PanicInApply).wait(), Err(Error::Rejected(_))));
    wait_for("it ends", || hosts.statuses()[0].ended.is_some());
    let ended = hosts.statuses().remove(0).ended.unwrap();
    assert!(ended.contains("in apply") && ended.contains("the only replica"), "{ended}");
    // The name is free again for another set.
    hosts.0[0].serve(NAME, Counter::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let stub = connect(vec![hosts.statuses()[0].address.clone().unwrap()]).service::<Counter>(NAME).unwrap();
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(1), "nothing is left of the first");
}

/// Starts a durable host.
fn durable(directory: &Path, listen: &str, seeds: &[String]) -> Node {
    let host = builder().listen(listen).seeds(seeds).directory(directory).durable().start().wait().unwrap();
    let begin = if seeds.is_empty() { Begin::Found { replicas: 3 } } else { Begin::Join };
    host.serve(NAME, Counter::default(), begin).wait().unwrap();
    host
}

#[test]
fn a_replica_that_came_back_as_another_process_keeps_its_own_journal() {
    let place = tempfile::tempdir().unwrap();
    let directories: Vec<_> = (0..4).map(|number| place.path().join(number.to_string())).collect();
    let mut hosts: Vec<Node> = Vec::new();
    let mut addresses = Vec::new();
    let status = |host: &Node| host.replica_status(NAME).unwrap();
    for directory in &directories {
        hosts.push(durable(directory, "127.0.0.1:0", &addresses));
        addresses.push(hosts.last().unwrap().address().to_string());
        let count = hosts.len().min(3);
        let all = || hosts.iter().take(3).all(|host| status(host).replicas.len() == count);
        wait_for("the first three are replicas", all);
    }
    let stub = connect(addresses.clone()).service::<Counter>(NAME).unwrap();
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(1));
    hosts[0].replace_replica(NAME, &addresses[1], &addresses[3]).wait().unwrap();
    let back = || Some(status(&hosts[1])).filter(|back| back.lives == 2)?.address;
    wait_for("the one that was replaced is a spare", || back().is_some());
    hosts[0].add_replica(NAME, &back().unwrap()).wait().unwrap();
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(2));
    let has = |host: &Node, changes: u64| {
        let ReplicaStatus { me, replicas, changes: there, .. } = status(host);
        replicas.len() == 4 && there == changes && replicas.iter().any(|(id, _)| Some(*id) == me)
    };
    wait_for("it has all", || has(&hosts[1], 2));
    let before = status(&hosts[1]);

    drop(hosts.remove(1));
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(3), "the others go on");
    let again = durable(&directories[1], &addresses[1], &addresses[..1]);
    let after = status(&again);
    assert_eq!((after.me, after.address), (before.me, before.address), "it is who it was, where it was");
    wait_for("it has all again", || has(&again, 3));
    let through = connect(vec![addresses[1].clone()]).service::<Counter>(NAME).unwrap();
    assert_eq!(through.call(&CounterRequest::Add).wait(), Ok(4), "its host sends on those who ask it");
}

#[test]
fn an_exported_state_founds_another_set() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("counter.export");
    let (set, count) = {
        let hosts = Hosts::start(3);
        let callers = Callers::start(&[connect(hosts.addresses())], 4);
        callers.wait_for_more(50);
        let leader = hosts.0.iter().find(|host| host.replica_status(NAME).unwrap().serving).unwrap();
        let busy = leader.export(NAME).wait().unwrap();
        let answered = callers.stop().len() as u64;
        assert!(
            busy.led() && busy.changes() >= 50 && busy.changes() <= answered,
            "{} of {answered}",
            busy.changes()
        );
        let export = leader.export(NAME).wait().unwrap();
        assert_eq!((export.name(), export.changes()), (NAME, answered));
        export.write(&file).unwrap();
        (export.set(), answered)
    };
    let export = Export::read(&file).unwrap();
    let first = builder().start().wait().unwrap();
    first.restore(NAME, Counter::default(), export, 3).wait().unwrap();
    let address = first.address().to_string();
    assert_ne!(first.replica_status(NAME).unwrap().set, Some(set), "it is another set");
    let mut hosts = Hosts(vec![first]);
    hosts.join();
    hosts.join();
    let stub = connect(vec![address]).service::<Counter>(NAME).unwrap();
    assert_eq!(stub.call(&CounterRequest::Read).wait(), Ok(count));
    drop(hosts.kill_leader());
    let stub = connect(hosts.addresses()).service::<Counter>(NAME).unwrap();
    assert_eq!(stub.call(&CounterRequest::Add).wait(), Ok(count + 1), "those that joined have it, too");
}
