//! The ways of hosting a service: what its log carries, which thread executes it, and whether it is checked.

use std::{
    collections::BTreeSet,
    marker::PhantomData,
    thread,
    time::{Duration, Instant},
};

use quorate::{
    Error, Node, Wait,
    node::Builder,
    service::{Begin, Carries, Cx, Executed, Kind, ReplicaStatus, Service, Stub},
};
use quorate_testing::wait_for;
use serde::{Deserialize, Serialize};

/// The way in which [`Draws`] is hosted: what its log carries, and whether it declares itself short.
trait LogContent: Send + 'static {
    const CARRIES: Carries;
    const SHORT: bool;
}

macro_rules! ways {
    ($($name:ident: $carries:ident, $short:literal;)*) => {
        $(struct $name;

        impl LogContent for $name {
            const CARRIES: Carries = Carries::$carries;
            const SHORT: bool = $short;
        })*
    };
}

ways! {
    ShortDelta: Delta, true;
    Witnessed: Witness, false;
    ShortWitness: Witness, true;
    Whole: State, false;
    ShortWhole: State, true;
}

/// Draws distinct numbers and keeps them.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct Draws<W> {
    drawn: Vec<u64>,
    way: PhantomData<W>,
}

impl<W> Default for Draws<W> {
    fn default() -> Self {
        Draws { drawn: Vec::new(), way: PhantomData }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum DrawRequest {
    Draw,
    /// Draws after two milliseconds.
    DrawSlowly,
    All,
    PanicInApply,
}

const PANIC: u64 = u64::MAX;

impl<W: LogContent> Service for Draws<W> {
    type Request = DrawRequest;
    type Reply = Vec<u64>;
    type Delta = u64;
    type Undo = ();

    const CARRIES: Carries = W::CARRIES;
    const SHORT: bool = W::SHORT;

    fn execute(&self, request: &DrawRequest, cx: &mut Cx<'_>) -> Executed<Self> {
        let draw = match request {
            DrawRequest::All => return Executed::Unchanged(self.drawn.clone()),
            DrawRequest::PanicInApply => PANIC,
            DrawRequest::Draw => cx.random() >> 1,
            DrawRequest::DrawSlowly => {
                thread::sleep(Duration::from_millis(2));
                cx.random() >> 1
            }
        };
        Executed::Changed(vec![draw], draw)
    }

    fn apply(&mut self, draw: &u64) {
        assert!(*draw != PANIC, "asked to panic in apply");
        self.drawn.push(*draw);
    }

    fn revert(&mut self, (): ()) {
        self.drawn.pop();
    }

    fn kind(request: &DrawRequest) -> Kind {
        if matches!(request, DrawRequest::All) { Kind::Read } else { Kind::Write }
    }
}

const NAME: &str = "draws";

fn builder() -> Builder {
    Node::builder().log_bytes_kept(4096)
}

fn statuses(hosts: &[Node]) -> Vec<ReplicaStatus> {
    hosts.iter().map(|host| host.replica_status(NAME).unwrap()).collect()
}

fn addresses(hosts: &[Node]) -> Vec<String> {
    hosts.iter().map(|host| host.address().to_string()).collect()
}

/// Adds a replica.
fn join<S: Service + Default>(hosts: &mut Vec<Node>) {
    let host = builder().seeds(addresses(hosts)).start().wait().unwrap();
    host.serve(NAME, S::default(), Begin::Join).wait().unwrap();
    hosts.push(host);
    let count = hosts.len();
    wait_for("all are replicas", || statuses(hosts).iter().all(|one| one.replicas.len() == count));
}

fn three<S: Service + Default>() -> Vec<Node> {
    let first = builder().start().wait().unwrap();
    first.serve(NAME, S::default(), Begin::Found { replicas: 3 }).wait().unwrap();
    let mut hosts = vec![first];
    join::<S>(&mut hosts);
    join::<S>(&mut hosts);
    hosts
}

fn take_leader(hosts: &mut Vec<Node>) -> Node {
    wait_for("one leads", || statuses(hosts).iter().any(|one| one.serving));
    let leader = statuses(hosts).iter().position(|one| one.serving).unwrap();
    hosts.remove(leader)
}

/// Sends `count` draws at once.
fn draw<W: LogContent>(stub: &Stub<Draws<W>>, count: usize) -> Vec<u64> {
    let outcomes = stub.calls(&vec![DrawRequest::Draw; count]).wait().unwrap();
    outcomes.into_iter().flat_map(Result::unwrap).collect()
}

fn draws_outlive_their_leaders<W: LogContent>() {
    let mut hosts = three::<Draws<W>>();
    assert!(statuses(&hosts).iter().all(|status| status.inline == W::SHORT));
    let client = quorate::connect(addresses(&hosts)).wait().unwrap();
    let stub = client.service::<Draws<W>>(NAME).unwrap();
    let mut drawn = draw(&stub, 100);
    let other = stub.clone();
    let caller = thread::spawn(move || (0..20).flat_map(|_| draw(&other, 50)).collect::<Vec<u64>>());
    drop(take_leader(&mut hosts));
    drawn.extend(caller.join().unwrap());
    wait_for("the dead one is out", || statuses(&hosts).iter().all(|one| one.replicas.len() == 2));
    // The log is short, so the new replica needs a checkpoint.
    join::<Draws<W>>(&mut hosts);
    drawn.extend(draw(&stub, 10));
    let all: Vec<u64> = stub.call(&DrawRequest::All).wait().unwrap();
    assert_eq!(all.len(), drawn.len(), "each took effect once");
    assert_eq!(all.iter().collect::<BTreeSet<_>>(), drawn.iter().collect::<BTreeSet<_>>());
    wait_for("all have applied it", || {
        statuses(&hosts).iter().all(|status| status.changes == all.len() as u64)
    });
    // The other replicas have the same state: the next leader returns it, too.
    drop(take_leader(&mut hosts));
    assert_eq!(stub.call(&DrawRequest::All).wait().unwrap(), all);
}

#[test]
fn short_services_outlive_their_leaders() {
    draws_outlive_their_leaders::<ShortDelta>();
}

#[test]
fn witnesses_outlive_their_leaders() {
    draws_outlive_their_leaders::<Witnessed>();
    draws_outlive_their_leaders::<ShortWitness>();
}

#[test]
fn whole_states_outlive_their_leaders() {
    draws_outlive_their_leaders::<Whole>();
    draws_outlive_their_leaders::<ShortWhole>();
}

#[test]
fn a_short_service_that_panics_at_the_leader_is_refused_and_another_replica_leads() {
    let hosts = three::<Draws<ShortDelta>>();
    let client = quorate::connect(addresses(&hosts)).wait().unwrap();
    let stub = client.service::<Draws<ShortDelta>>(NAME).unwrap();
    let mut calls = vec![DrawRequest::Draw; 20];
    calls.push(DrawRequest::PanicInApply);
    let mut outcomes = stub.calls(&calls).wait().unwrap();
    let refused = outcomes.pop().unwrap();
    assert!(matches!(&refused, Err(Error::Rejected(why)) if why.message.contains("in apply")), "{refused:?}");
    let drawn: BTreeSet<u64> = outcomes.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(drawn.len(), 20);
    let all: BTreeSet<u64> = stub.call(&DrawRequest::All).wait().unwrap().into_iter().collect();
    assert_eq!(all, drawn);
    let ended = || statuses(&hosts).into_iter().filter(|one| one.last_end.is_some()).count();
    wait_for("the leader ends", || ended() == 1);
    wait_for("it comes back, and the process that it was is out", || {
        let all = statuses(&hosts);
        let ids: BTreeSet<_> = all.iter().filter_map(|one| one.me).collect();
        all.iter().all(|one| one.replicas.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>() == ids)
    });
    wait_for("it has all", || statuses(&hosts).iter().all(|one| one.changes == 20 && one.inline));
}

#[test]
fn a_service_that_exceeds_its_promised_length_gets_a_thread() {
    let hosts = three::<Draws<ShortDelta>>();
    let client = quorate::connect(addresses(&hosts)).wait().unwrap();
    let stub = client.service::<Draws<ShortDelta>>(NAME).unwrap();
    let mut drawn = 0;
    let until = Instant::now() + Duration::from_secs(30);
    while statuses(&hosts).iter().all(|status| status.inline) {
        assert!(Instant::now() < until, "it is found out");
        stub.call(&DrawRequest::DrawSlowly).wait().unwrap();
        drawn += 1;
    }
    assert!(drawn > 30, "one long call is no reason: {drawn}");
    drawn += draw(&stub, 100).len();
    assert_eq!(stub.call(&DrawRequest::All).wait().unwrap().len(), drawn);
}

/// Counts. If an odd number was added, `revert` subtracts one less than it should.
#[derive(Default, Serialize, Deserialize)]
struct Careless(u64);

impl Service for Careless {
    type Request = u64;
    type Reply = u64;
    type Delta = u64;
    type Undo = u64;

    fn execute(&self, more: &u64, _: &mut Cx<'_>) -> Executed<Self> {
        Executed::Changed(self.0 + more, *more)
    }

    fn apply(&mut self, more: &u64) -> u64 {
        self.0 += more;
        more / 2 * 2
    }

    fn revert(&mut self, added: u64) {
        self.0 -= added;
    }
}

#[test]
fn a_host_that_checks_finds_a_wrong_revert() {
    let checked = builder().check_services().start().wait().unwrap();
    checked.serve(NAME, Careless::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let client = quorate::connect([checked.address().to_string()]).wait().unwrap();
    let stub = client.service::<Careless>(NAME).unwrap();
    assert_eq!(stub.call(&2).wait(), Ok(2));
    let refused = stub.call(&3).wait();
    let found =
        |error: &Error| error.to_string().contains("a reverted change has not left the earlier state");
    assert!(refused.as_ref().is_err_and(found), "{refused:?}");
    wait_for("it ends", || checked.replica_status(NAME).unwrap().ended.is_some());
    assert!(
        checked
            .replica_status(NAME)
            .unwrap()
            .ended
            .unwrap()
            .contains("a reverted change has not left the earlier state")
    );
}
