//! Tables, groups and services on the same nodes, side by side.

use std::thread;

use quorate::{
    Error, Local, Node, Wait,
    group::Member,
    service::{Begin, Cx, Executed, Kind, Service},
};
use serde::{Deserialize, Serialize};

use crate::words::{Words, said, wait_for};

/// Counts by ones; a read tells how far.
#[derive(Default, Serialize, Deserialize)]
struct Count(u64);

impl Service for Count {
    type Request = Ask;
    type Reply = u64;
    type Delta = ();
    type Undo = ();

    fn execute(&self, request: &Ask, _: &mut Cx<'_>) -> Executed<Self> {
        match request {
            Ask::Add => Executed::Changed(self.0 + 1, ()),
            Ask::Read => Executed::Unchanged(self.0),
        }
    }
    fn apply(&mut self, (): &()) {
        self.0 += 1;
    }
    fn revert(&mut self, (): ()) {
        self.0 -= 1;
    }
    fn kind(request: &Ask) -> Kind {
        match request {
            Ask::Add => Kind::Write,
            Ask::Read => Kind::Read,
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Ask {
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
    let replicas = |node: &Node| node.standing("count").unwrap().replicas.len();
    wait_for("all are replicas", || nodes.iter().all(|node| replicas(node) == 3));

    // Each node does all three at once.
    thread::scope(|scope| {
        for (place, (node, member)) in (0i32..).zip(nodes.iter().zip(&members)) {
            scope.spawn(move || {
                let (db, count) = (node.db().wait().unwrap(), node.service::<Count>("count").unwrap());
                for number in 0..ROUNDS {
                    member.ordered_send(format!("{place} {number}")).wait().unwrap();
                    count.call(&Ask::Add).wait().unwrap();
                    let insert = db.execute("insert into t values ($1, $2)").bind(place).bind(number);
                    assert_eq!(insert.wait().unwrap(), 1);
                }
            });
        }
    });
    let words = 3 * ROUNDS as usize;
    wait_for("all have heard all", || members.iter().all(|member| said(member).len() == words));
    assert!(members.windows(2).all(|pair| said(&pair[0]) == said(&pair[1])), "in one order");

    // One of them dies: in each of the three the others go on.
    let lost = members.remove(0).id();
    nodes.remove(0).abandon().wait();
    let count = nodes[1].service::<Count>("count").unwrap();
    assert_eq!(count.call(&Ask::Add).wait(), Ok(words as u64 + 1), "each call took effect once");
    assert_eq!(count.call(&Ask::Read).wait(), Ok(words as u64 + 1));
    let survive = || members.iter().all(|member| !member.view().unwrap().members.contains(&lost));
    wait_for("it is out of the group", survive);
    members[1].safe_send(String::from("last")).wait().unwrap();
    wait_for("both have it", || members.iter().all(|member| said(member).last().unwrap() == "last"));
    let db = nodes[0].db().wait().unwrap();
    assert_eq!(db.query("select * from t").wait().unwrap().len(), words);

    // They leave: groups and tables at once, services as if they had been killed.
    let (stays, leaves) = (members.remove(0), nodes.remove(1));
    leaves.leave().wait().unwrap();
    wait_for("it has left", || stays.view().unwrap().members == [stays.id()]);
    assert_eq!(db.query("select * from t").wait().unwrap().len(), words);
}

#[test]
fn clients_of_services_have_no_tables_and_say_so() {
    let host = Node::builder().start().wait().unwrap();
    host.serve("count", Count::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let client = quorate::connect([host.address().to_string()]).wait().unwrap();
    assert_eq!(client.service::<Count>("count").unwrap().call(&Ask::Add).wait(), Ok(1));
    let asked = client.execute("select 1").wait();
    assert!(matches!(&asked, Err(Error::NotSent { why }) if why.contains("no tables")), "{asked:?}");
    assert!(matches!(client.begin().wait(), Err(Error::NotSent { .. })));
    // The host itself may call, too, and groups need routers.
    assert_eq!(host.service::<Count>("count").unwrap().call(&Ask::Read).wait(), Ok(1));
    let joined = host.group("words").join(Words::default()).wait();
    assert!(matches!(&joined, Err(Error::Start { why }) if why.contains("no router")), "{joined:?}");
}

/// What each node does of each kind.
const ROUNDS: i32 = 20;
