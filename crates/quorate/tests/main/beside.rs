//! Tables, groups and services together on the same nodes.

use std::thread;

use quorate::{
    Error, Local, Node, Wait,
    group::Member,
    service::{Begin, Cx, Executed, Kind, Service},
};
use quorate_testing::wait_for;
use serde::{Deserialize, Serialize};

use crate::words::{Words, said};

/// Counts in steps of one. A read returns the count.
#[derive(Default, Serialize, Deserialize)]
struct Count(u64);

impl Service for Count {
    type Request = CountRequest;
    type Reply = u64;
    type Delta = ();
    type Undo = ();

    fn execute(&self, request: &CountRequest, _: &mut Cx<'_>) -> Executed<Self> {
        match request {
            CountRequest::Add => Executed::Changed(self.0 + 1, ()),
            CountRequest::Read => Executed::Unchanged(self.0),
        }
    }
    fn apply(&mut self, (): &()) {
        self.0 += 1;
    }
    fn revert(&mut self, (): ()) {
        self.0 -= 1;
    }
    fn kind(request: &CountRequest) -> Kind {
        match request {
            CountRequest::Add => Kind::Write,
            CountRequest::Read => Kind::Read,
        }
    }
}

#[derive(Serialize, Deserialize)]
enum CountRequest {
    Add,
    Read,
}

#[test]
fn groups_stand_beside_services_and_tables_on_one_node() {
    let cluster = Local::start().wait().unwrap();
    let start =
        |seeds: &[String]| Node::builder().routers(cluster.addresses()).seeds(seeds).start().wait().unwrap();
    let first = start(&[]);
    first.serve("count", Count::default(), Begin::Found { replicas: 3 }).wait().unwrap();
    let seeds = [first.address().to_string()];
    let mut nodes = vec![first, start(&seeds), start(&seeds)];
    for node in &nodes[1..] {
        node.serve("count", Count::default(), Begin::Join).wait().unwrap();
    }
    let mut members: Vec<Member<Words>> =
        nodes.iter().map(|node| node.group("words").join(Words::default()).wait().unwrap()).collect();
    nodes[0].db().wait().unwrap().execute("create table t (node int, number int)").wait().unwrap();
    let replicas = |node: &Node| node.replica_status("count").unwrap().replicas.len();
    wait_for("all are replicas", || nodes.iter().all(|node| replicas(node) == 3));

    // Each node uses all three kinds at the same time.
    thread::scope(|scope| {
        for (place, (node, member)) in (0i32..).zip(nodes.iter().zip(&members)) {
            scope.spawn(move || {
                let (db, count) = (node.db().wait().unwrap(), node.service::<Count>("count").unwrap());
                for number in 0..ROUNDS {
                    member.ordered_send(format!("{place} {number}")).wait().unwrap();
                    count.call(&CountRequest::Add).wait().unwrap();
                    let insert = db.execute("insert into t values ($1, $2)").bind(place).bind(number);
                    assert_eq!(insert.wait().unwrap(), 1);
                }
            });
        }
    });
    let words = 3 * ROUNDS as usize;
    wait_for("all have heard all", || members.iter().all(|member| said(member).len() == words));
    assert!(members.windows(2).all(|pair| said(&pair[0]) == said(&pair[1])), "in one order");

    // One node dies. The survivors go on with tables, group and service.
    let lost = members.remove(0).id();
    nodes.remove(0).abandon().wait();
    let count = nodes[1].service::<Count>("count").unwrap();
    assert_eq!(count.call(&CountRequest::Add).wait(), Ok(words as u64 + 1), "each call took effect once");
    assert_eq!(count.call(&CountRequest::Read).wait(), Ok(words as u64 + 1));
    let survive = || members.iter().all(|member| !member.view().unwrap().members.contains(&lost));
    wait_for("it is out of the group", survive);
    members[1].safe_send(String::from("last")).wait().unwrap();
    wait_for("both have it", || members.iter().all(|member| said(member).last().unwrap() == "last"));
    let db = nodes[0].db().wait().unwrap();
    assert_eq!(db.query("select * from t").wait().unwrap().len(), words);

    // A node leaves. The group and the tables notice that at once. To the service, the node was killed.
    let (stays, leaves) = (members.remove(0), nodes.remove(1));
    leaves.leave().wait().unwrap();
    wait_for("it has left", || stays.view().unwrap().members == [stays.id()]);
    assert_eq!(db.query("select * from t").wait().unwrap().len(), words);
}

#[test]
fn service_clients_refuse_statements() {
    let host = Node::builder().start().wait().unwrap();
    host.serve("count", Count::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let client = quorate::connect([host.address().to_string()]).wait().unwrap();
    assert_eq!(client.service::<Count>("count").unwrap().call(&CountRequest::Add).wait(), Ok(1));
    let asked = client.execute("select 1").wait();
    assert!(matches!(&asked, Err(Error::NotSent { why }) if why.contains("no tables")), "{asked:?}");
    assert!(matches!(client.begin().wait(), Err(Error::NotSent { .. })));
    // A host may call its own service. Groups need routers, and this host has none.
    assert_eq!(host.service::<Count>("count").unwrap().call(&CountRequest::Read).wait(), Ok(1));
    let joined = host.group("words").join(Words::default()).wait();
    assert!(matches!(&joined, Err(Error::Start { why }) if why.contains("no router")), "{joined:?}");
}

/// Number of operations of each kind at each node.
const ROUNDS: i32 = 20;
