//! A program with groups and without tables. `checks/features` runs this test with the feature `groups`
//! alone.

use quorate::{
    Node, Role, Wait,
    group::{Answer, Corrupt, Member, Origin, Replica, Share, Snapshot},
};

/// A sum of numbers.
#[derive(Default)]
struct Sum(u64);

impl Replica for Sum {
    const NAME: &'static str = "sum/1";
    type Update = u64;
    type Query = ();
    type Reply = ();

    fn apply(&mut self, more: u64, _: &Origin) {
        self.0 += more;
    }

    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Declined
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::of(&self.0)
    }

    fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt> {
        Ok(Sum(snapshot.read()?))
    }
}

fn sum(member: &Member<Sum>) -> u64 {
    member.read(|sum| sum.0).unwrap()
}

#[test]
fn a_group_needs_a_router_and_no_tables() {
    let router = Node::builder().role(Role::Router).found().start().wait().unwrap();
    let join = || {
        let node = Node::builder().routers([router.address().to_string()]).start().wait().unwrap();
        let member = node.group("sum").join(Sum::default()).wait().unwrap();
        (node, member)
    };
    let (one, first) = join();
    first.safe_send(2).wait().unwrap();
    let (two, second) = join();
    assert_eq!(sum(&second), 2, "the group gives a joiner its state");
    second.safe_send(3).wait().unwrap();
    first.safe_send(4).wait().unwrap();
    assert_eq!((sum(&first), first.view().unwrap().members.len()), (9, 2));
    two.leave().wait().unwrap();
    one.leave().wait().unwrap();
}

#[cfg(not(feature = "tables"))]
#[test]
fn a_role_of_tables_is_refused_by_the_name_of_its_feature() {
    for role in [Role::Storage, Role::Gateway] {
        let refused = Node::builder().role(role).start().wait().unwrap_err();
        assert!(refused.to_string().contains("feature `tables`"), "{refused}");
    }
}
