//! Nodes: routers admit or refuse them, a directory belongs to one node, and users get the reason for a
//! node's end.

use std::time::{Duration, Instant};

use quorate::{Error, Local, Node, ProcessId, Role, Wait, node::Member, process::NotDone};
use quorate_roles::tables::operate::AdminOperation;

/// Returns the process of the node's role.
fn member(node: &Node) -> Member {
    node.member().unwrap()
}

/// Waits until the member's process is another process than `before`.
fn wait_for_another(member: &Member, before: ProcessId) {
    let until = Instant::now() + Duration::from_secs(30);
    while member.id() == before {
        assert!(Instant::now() < until, "{member:?} comes back");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(member.id().node, before.node, "at its place");
}

#[test]
fn a_client_without_a_cluster_fails_in_time() {
    let began = Instant::now();
    // Nobody listens at this port, because it was just released.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let node = Node::builder().routers([nobody.to_string()]).patience(Duration::from_millis(300)).start();
    let asked = node.wait().unwrap().db().wait();
    assert!(matches!(asked, Err(Error::Start { .. })), "{asked:?}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_directory_has_one_node_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Local::start().wait().unwrap();
    let start = || Node::builder().routers(cluster.addresses()).directory(place.path()).start().wait();
    let first = start().unwrap();
    let second = start();
    let Err(Error::DirectoryInUse { node, .. }) = second else { panic!("{second:?}") };
    first.db().wait().unwrap();
    let before = member(&first).id();
    assert_eq!(before.node, node);
    first.leave().wait().unwrap();
    let again = start().unwrap();
    again.db().wait().unwrap();
    let again = member(&again).id();
    assert_eq!(again.node, before.node, "the directory keeps the number");
    assert_ne!(again.incarnation, before.incarnation, "it is another process");
}

#[test]
fn a_founder_founds_once_in_a_directory() {
    let place = tempfile::tempdir().unwrap();
    let builder = || {
        let domain = quorate::DomainId(7);
        Node::builder().domain(domain).role(Role::Router).found().directory(place.path())
    };
    builder().start().wait().unwrap().abandon().wait();
    let again = builder().start().wait();
    let Err(Error::Start { why }) = again else { panic!("{again:?}") };
    assert!(why.contains("does not found the domain again"), "{why}");
}

#[test]
fn an_operator_learns_at_once_that_the_process_ended_before_its_answer() {
    let domain = quorate::DomainId(7);
    let builder = Node::builder().domain(domain).role(Role::Router).routers([String::from("127.0.0.1:1")]);
    let node = builder.start().wait().unwrap();
    let process = member(&node).process();
    // The router should begin a generation with a member that never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let members = vec![(9, 9, silent.local_addr().unwrap().to_string())];
    let operation = AdminOperation::Refound { patience_ms: 60_000, before: (0, 0), members };
    let asked = {
        let process = process.clone();
        std::thread::spawn(move || process.operate(operation, Duration::from_secs(60)))
    };
    // The router connects to the member once it has accepted the operation.
    let (connected, connection) = std::sync::mpsc::channel();
    std::thread::spawn(move || connected.send(silent.accept()));
    let _connection = connection.recv_timeout(Duration::from_secs(30)).expect("it connects").unwrap();
    let began = Instant::now();
    process.stop();
    assert_eq!(asked.join().unwrap(), Err(NotDone::Ended));
    assert!(began.elapsed() < Duration::from_secs(30), "the operator does not wait for the patience to end");
}

#[test]
fn a_request_after_the_end_was_not_sent() {
    let cluster = Local::start().wait().unwrap();
    let db = quorate::connect(cluster.addresses()).wait().unwrap();
    db.execute("create table t (id int primary key)").wait().unwrap();
    let other = db.clone();
    db.close().wait();
    let asked = other.execute("insert into t values (1)").wait();
    assert!(matches!(&asked, Err(Error::Wedged { .. })), "{asked:?}");
    assert_eq!(asked.unwrap_err().fate(), Some(quorate::Fate::Wedged));
}

#[test]
fn a_client_that_was_expelled_comes_back_and_its_users_stay() {
    let cluster = Local::start().wait().unwrap();
    let db = quorate::connect(cluster.addresses()).wait().unwrap();
    db.execute("create table t (id int primary key)").wait().unwrap();
    db.execute("insert into t values (1)").wait().unwrap();
    let client = member(db.node());
    let (before, address) = (client.id(), client.address());
    // The client's process leaves, although no user of the client requested that.
    client.process().leave(Duration::from_secs(10)).unwrap();
    let began = Instant::now();
    // Writes that meet the end of the process report what may have happened. A later write succeeds.
    let mut id = 1;
    let answered = loop {
        id += 1;
        let write = db.execute("insert into t values ($1)").bind(id).wait();
        match write {
            Ok(_) if client.id() != before => break began.elapsed(),
            Ok(_) | Err(Error::NotSent { .. } | Error::MaybeApplied { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it comes back");
    };
    assert!(answered < Duration::from_secs(5), "{answered:?}");
    wait_for_another(&client, before);
    assert_eq!(client.address(), address, "where it was");
    assert!(db.query("select * from t").wait().unwrap().len() >= 2);
}

#[test]
fn a_leave_command_reports_success_or_its_obstacle() {
    let cluster = Local::start().wait().unwrap();
    let db = quorate::connect(cluster.addresses()).wait().unwrap();
    db.execute("create table t (id int primary key)").wait().unwrap();
    let (patience, nodes) = (Duration::from_secs(10), cluster.nodes());
    let (router, superior, storage) = (&nodes[0], member(&nodes[1]), &nodes[2]);
    let why = |node: &Node| member(node).process().leave(patience).unwrap_err();
    assert!(why(router).contains("have another router remove it"));
    assert!(why(storage).contains("some of its rows are nowhere else"));
    let until = Instant::now() + Duration::from_secs(30);
    while db.execute("insert into t values (1) on conflict do nothing").wait().is_err() {
        assert!(Instant::now() < until, "it serves on");
    }
    let before = superior.id();
    superior.process().leave(patience).unwrap();
    // A super that left comes back, regardless of who made it leave.
    wait_for_another(&superior, before);
}

#[test]
fn a_router_that_was_removed_comes_back_as_a_fresh_one() {
    let cluster = Local::builder().routers(3).start().wait().unwrap();
    let db = quorate::connect(cluster.addresses()).wait().unwrap();
    db.execute("create table t (id int primary key)").wait().unwrap();
    let patience = Duration::from_secs(10);
    let routers: Vec<Member> = cluster.nodes()[..3].iter().map(member).collect();
    let (first, third) = (&routers[0], &routers[2]);
    let votes = |router: &Member| {
        let status = first.process().status(patience).unwrap();
        status.routers.iter().any(|voter| voter.contains(&router.id().to_string()))
    };
    let until = Instant::now() + Duration::from_secs(30);
    while !votes(third) {
        assert!(Instant::now() < until, "the third votes");
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = third.id();
    // Any of the routers may lead.
    let remove = || {
        let operation = || AdminOperation::RemoveRouter { process: before.to_string() };
        routers.iter().any(|router| router.process().operate(operation(), patience).is_ok())
    };
    while !remove() {
        assert!(Instant::now() < until, "a leader removes it");
    }
    wait_for_another(third, before);
    db.execute("insert into t values (1)").wait().unwrap();
}
