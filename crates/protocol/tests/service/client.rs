//! Tests a client alone: its messages, and the outcomes that it reports.

use std::collections::BTreeSet;

use bytes::Bytes;
use quorate_protocol::{
    CommandId, Context, Destination, Duration, Incarnation, Input, Peer, ProcessId, Protocol, Session, Sink,
    Ticket, Time, paxos,
    service::{
        Abort, Body, CallId, CallOutcome, Client, ClientCommand, ClientEvent, ClientSettings, Fate, GroupId,
        Kind, Message, SessionId,
    },
};

const GROUP: GroupId = GroupId(7);

#[derive(Default)]
struct Outputs {
    sent: Vec<(Destination, Body)>,
    fates: Vec<(u64, Fate)>,
    reached: BTreeSet<ProcessId>,
}

impl Sink<Client> for Outputs {
    fn send(&mut self, to: Destination, message: Message, _: Option<Ticket>) {
        self.sent.push((to, message.body));
    }
    fn persist(&mut self, _: paxos::Record) -> Ticket {
        panic!("a client has no disk")
    }
    fn emit(&mut self, event: ClientEvent) {
        self.fates.push((event.command.0, event.fate));
    }
    fn reach(&mut self, peer: ProcessId, _: &str) {
        self.reached.insert(peer);
    }
    fn forget(&mut self, peer: ProcessId) {
        self.reached.remove(&peer);
    }
}

fn replica(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(0) }
}

fn peers(nodes: impl Iterator<Item = u64>) -> Vec<Peer> {
    nodes.map(|node| Peer { id: replica(node), address: format!("h{node}:1") }).collect()
}

struct Alone {
    client: Client,
    now: Time,
    links: u64,
}

impl Alone {
    /// Returns a client with links to replicas 1, 2 and 3. It asks replica 1.
    fn new() -> Alone {
        let client = Client::new(GROUP, peers(1..=3), ClientSettings::default());
        let mut alone = Alone { client, now: Time(1_000_000_000), links: 0 };
        assert_eq!(alone.input(Input::Drained).reached.len(), 3);
        (1..=3).for_each(|node| drop(alone.link(node)));
        alone
    }

    /// Returns a client with a session.
    fn open() -> Alone {
        let mut alone = Alone::new();
        let sent = alone.call(1, "a").sent;
        let [(_, Body::Open { nonce })] = sent[..] else { panic!("{sent:?}") };
        let opened = alone.answer(1, Body::Opened { nonce, session: SessionId(5) });
        assert_eq!(numbers(&opened), [(1, 1, vec![1])]);
        alone.answer(1, Body::Members { members: peers(1..=3) });
        alone
    }

    /// Passes an input to the client and ends the batch.
    fn input(&mut self, input: Input<Client>) -> Outputs {
        let mut outputs = Outputs::default();
        let mut chance = || 42;
        let mut cx = Context { now: self.now, me: replica(100), random: &mut chance };
        self.client.handle(&mut cx, input, &mut outputs);
        self.client.handle(&mut cx, Input::Drained, &mut outputs);
        outputs
    }

    fn link(&mut self, node: u64) -> Outputs {
        self.links += 1;
        self.input(Input::Linked { peer: replica(node), session: Session(self.links) })
    }

    fn unlink(&mut self, node: u64) -> Outputs {
        self.input(Input::Unlinked { peer: replica(node) })
    }

    fn call(&mut self, command: u64, request: &'static str) -> Outputs {
        let (command, request) = (CommandId(command), Bytes::from_static(request.as_bytes()));
        self.input(Input::Command(ClientCommand::Call { command, read: false, keys: Vec::new(), request }))
    }

    fn part(&mut self, command: u64, transaction: u64) -> Outputs {
        let (command, request) = (CommandId(command), Bytes::from_static(b"part"));
        let keys = Vec::new();
        self.input(Input::Command(ClientCommand::Part { command, transaction, read: false, keys, request }))
    }

    fn again(&mut self, command: u64, id: CallId) -> Outputs {
        self.input(Input::Command(ClientCommand::Again { command: CommandId(command), id }))
    }

    fn answer(&mut self, node: u64, body: Body) -> Outputs {
        self.input(Input::Receive { from: replica(node), message: Message { group: GROUP, body } })
    }

    fn outcome(&mut self, node: u64, number: u64, outcome: CallOutcome) -> Outputs {
        self.answer(node, Body::Answers { session: SessionId(5), answers: vec![(number, outcome)] })
    }

    fn wait(&mut self, span: Duration) -> Outputs {
        self.now = self.now + span;
        self.input(Input::Deadline)
    }
}

/// Returns the sent calls: the replica, the number up to which the client has all answers, and the calls'
/// numbers.
fn numbers(outputs: &Outputs) -> Vec<(u64, u64, Vec<u64>)> {
    let calls = outputs.sent.iter().filter_map(|(to, body)| match (to, body) {
        (Destination::One(to), Body::Calls { done, calls, .. }) => {
            Some((to.node, *done, calls.iter().map(|call| call.number).collect()))
        }
        _ => None,
    });
    calls.collect()
}

/// Returns for each sent call whether a transaction begins with it.
fn begins(outputs: &Outputs) -> Vec<bool> {
    let calls = outputs.sent.iter().flat_map(|(_, body)| match body {
        Body::Calls { calls, .. } => calls.as_slice(),
        _ => &[],
    });
    let parts = calls.map(|call| call.scope.as_ref().and_then(|scope| scope.part).expect("a part"));
    parts.map(|part| part.first).collect()
}

fn id(number: u64) -> CallId {
    CallId { session: SessionId(5), number }
}

fn done() -> CallOutcome {
    CallOutcome::Done(Bytes::from_static(b"r"))
}

#[test]
fn an_unanswered_call_is_sent_to_the_next_replica_under_the_same_number() {
    let mut alone = Alone::open();
    assert_eq!(numbers(&alone.call(2, "b")), [(1, 1, vec![2])], "without waiting for the first answer");
    assert_eq!(alone.outcome(1, 1, done()).fates, [(1, Fate::Done(Bytes::from_static(b"r")))]);
    assert_eq!(numbers(&alone.unlink(1)), [(2, 2, vec![2])]);
    let members = Vec::new();
    let sent_on = alone.answer(2, Body::Redirect { leader: Some(replica(3)), members });
    assert_eq!(numbers(&sent_on), [(3, 2, vec![2])]);
    assert_eq!(
        alone.outcome(2, 2, done()).fates.len(),
        1,
        "an answer of one that is asked no more is as good"
    );
    assert_eq!(alone.outcome(3, 2, done()).fates, [], "once");
    assert_eq!(alone.client.under_way(), 0);
}

#[test]
fn a_call_with_an_expired_attempt_is_made_in_another_session() {
    let mut alone = Alone::open();
    let sent = alone.outcome(1, 1, CallOutcome::Expired).sent;
    let [(_, Body::Open { nonce })] = sent[..] else { panic!("{sent:?}") };
    let opened = alone.answer(1, Body::Opened { nonce, session: SessionId(9) });
    let [(_, Body::Calls { session, calls, .. })] = &opened.sent[..] else { panic!("{:?}", opened.sent) };
    assert_eq!((*session, calls[0].number), (SessionId(9), 1));
}

#[test]
fn a_call_that_may_have_been_made_before_its_session_ended_is_unknown() {
    let mut alone = Alone::open();
    alone.unlink(1);
    assert_eq!(alone.outcome(2, 1, CallOutcome::Expired).fates, [(1, Fate::MaybeApplied { id: id(1) })]);
    assert_eq!(alone.again(2, id(1)).fates, [(2, Fate::Expired)]);
}

#[test]
fn a_call_without_room_is_sent_again_later() {
    let mut alone = Alone::open();
    assert_eq!(numbers(&alone.outcome(1, 1, CallOutcome::Full)), []);
    let patience = ClientSettings::default().retry_after;
    assert_eq!(numbers(&alone.wait(patience)), [(1, 1, vec![1])]);
    alone.outcome(1, 1, CallOutcome::Full);
    let wait = ClientSettings::default().wait;
    assert_eq!(alone.wait(wait).fates, [(1, Fate::NotSent)], "no replica took it");
}

#[test]
fn a_call_that_was_given_up_can_be_asked_for_again() {
    let mut alone = Alone::open();
    let wait = ClientSettings::default().wait;
    let given_up = alone.wait(wait);
    assert_eq!(given_up.fates, [(1, Fate::MaybeApplied { id: id(1) })]);
    let sent = numbers(&alone.call(2, "b"));
    assert_eq!(sent.iter().map(|(_, done, _)| *done).collect::<Vec<_>>(), [1], "its reply is to be kept");
    let again = alone.again(3, id(1));
    assert_eq!(numbers(&again).last().map(|(_, _, numbers)| numbers.clone()), Some(vec![1]));
    let (node, ..) = numbers(&again)[0];
    assert_eq!(alone.outcome(node, 1, done()).fates, [(3, Fate::Done(Bytes::from_static(b"r")))]);
    assert_eq!(alone.again(4, id(1)).fates, [(4, Fate::Expired)]);
}

#[test]
fn without_a_link_a_call_ends_as_not_sent() {
    let mut alone = Alone::new();
    (1..=3).for_each(|node| drop(alone.unlink(node)));
    assert_eq!(alone.call(1, "a").sent, []);
    assert_eq!(alone.wait(ClientSettings::default().wait).fates, [(1, Fate::NotSent)]);
}

#[test]
fn requests_beyond_the_memory_bound_are_refused_at_once() {
    let mut alone = Alone::new();
    let request = Bytes::from(vec![0; ClientSettings::default().kept_bytes_max + 1]);
    let call = ClientCommand::Call { command: CommandId(1), read: false, keys: Vec::new(), request };
    assert_eq!(alone.input(Input::Command(call)).fates, [(1, Fate::NotSent)]);
}

#[test]
fn few_reads_are_announced_to_all_replicas_and_many_are_not() {
    let mut alone = Alone::open();
    alone.outcome(1, 1, done());
    let most = ClientSettings::default().announced_reads_max as u64;
    for number in 2..=most + 3 {
        let request = Bytes::from_static(b"get");
        let command =
            ClientCommand::Call { command: CommandId(number), read: true, keys: Vec::new(), request };
        let sent = alone.input(Input::Command(command)).sent;
        let is_announced = number < most + 2;
        let kind = if is_announced { Kind::AnnouncedRead } else { Kind::Read };
        assert_eq!(sent.len(), 1 + usize::from(is_announced), "{number}");
        assert!(
            matches!(sent.last(), Some((_, Body::Calls { calls, .. })) if calls[0].kind == kind),
            "{number}"
        );
    }
    // The client sends the read again as an ordinary read, to one replica.
    let sent = alone.unlink(1).sent;
    assert!(
        matches!(&sent[..], [(_, Body::Calls { calls, .. })] if calls.iter().all(|call| call.kind == Kind::Read))
    );
}

#[test]
fn an_unused_session_is_kept_alive() {
    let mut alone = Alone::open();
    alone.outcome(1, 1, done());
    let alive = ClientSettings::default().alive_every;
    assert_eq!(numbers(&alone.wait(alive)), [(1, 2, vec![])]);
    assert_eq!(numbers(&alone.wait(alive / 2)), []);
    assert_eq!(numbers(&alone.wait(alive / 2)), [(1, 2, vec![])]);
}

#[test]
fn leaders_announce_new_replicas_and_idle_clients_contact_them() {
    let mut alone = Alone::open();
    alone.outcome(1, 1, done());
    let reached = alone.answer(1, Body::Members { members: peers(4..=6) }).reached;
    assert_eq!(reached.into_iter().map(|id| id.node).collect::<Vec<_>>(), [4, 5, 6]);
    assert_eq!(numbers(&alone.unlink(1)), [(2, 2, vec![])]);
    let redirect = Body::Redirect { leader: Some(replica(3)), members: Vec::new() };
    assert_eq!(numbers(&alone.answer(2, redirect)), [(3, 2, vec![])]);
    let second = Duration::from_secs(1);
    assert_eq!(numbers(&alone.wait(second)), [(3, 2, vec![])], "nobody has said that it leads");
    alone.answer(3, Body::Members { members: peers(3..=6) });
    assert_eq!(numbers(&alone.wait(second)), []);
}

/// Two users may have chosen the same key, or one user may call twice under it.
#[test]
fn two_calls_under_one_key_get_the_same_answer() {
    let mut alone = Alone::open();
    alone.outcome(1, 1, done());
    let keyed = |command, request: &'static [u8]| {
        let (key, keys, request) = (7, Vec::new(), Bytes::from_static(request));
        Input::Command(ClientCommand::Keyed { command: CommandId(command), key, keys, request })
    };
    let sent = alone.input(keyed(2, b"a")).sent;
    let [(_, Body::Calls { session: SessionId::KEYED, done: through, calls })] = &sent[..] else {
        panic!("{sent:?}")
    };
    let number = calls[0].number;
    assert_eq!((*through, number & 0xff), (2, 7), "of its own calls it has all answers");
    assert_eq!(alone.input(keyed(3, b"a")).sent, []);
    assert_eq!(alone.input(keyed(4, b"b")).fates, [(4, Fate::Reused)]);
    assert_eq!(numbers(&alone.unlink(1)), [(2, 2, vec![number])], "under the same number");
    let answers = vec![(number, done())];
    let fates = alone.answer(2, Body::Answers { session: SessionId::KEYED, answers }).fates;
    let reply = Fate::Done(Bytes::from_static(b"r"));
    assert_eq!(fates, [(3, reply.clone()), (2, reply)]);
    assert_eq!(numbers(&alone.call(5, "b")), [(2, 2, vec![2])], "calls without keys go on counting");
}

/// A replica without room refuses a later call of a transaction. When the client sends the call again, the
/// call must not begin the transaction again, because the commit would then lack the earlier calls.
#[test]
fn a_later_call_without_room_does_not_begin_its_transaction_again() {
    let mut alone = Alone::open();
    alone.outcome(1, 1, done());
    assert_eq!(begins(&alone.part(2, 7)), [true]);
    alone.outcome(1, 2, CallOutcome::Full);
    let patience = ClientSettings::default().retry_after;
    assert_eq!(begins(&alone.wait(patience)), [true], "it had not begun");
    alone.outcome(1, 2, done());
    assert_eq!(begins(&alone.part(3, 7)), [false]);
    alone.outcome(1, 3, CallOutcome::Full);
    assert_eq!(begins(&alone.wait(patience)), [false]);
    let gone = Fate::Aborted(Abort::Gone);
    assert_eq!(alone.outcome(1, 3, CallOutcome::Aborted(Abort::Gone)).fates, [(3, gone.clone())]);
    let commit = ClientCommand::Commit { command: CommandId(4), transaction: 7 };
    let committed = alone.input(Input::Command(commit));
    assert_eq!((committed.sent, committed.fates), (Vec::new(), vec![(4, gone)]));
}

/// A commit takes effect once, whichever leader gets it. If one leader does not know its outcome, another
/// leader may know it.
#[test]
fn a_commit_is_asked_for_at_the_next_leader_and_other_calls_of_transactions_are_not() {
    let mut alone = Alone::open();
    alone.outcome(1, 1, done());
    alone.part(2, 7);
    alone.outcome(1, 2, done());
    alone.part(3, 8);
    let commit = ClientCommand::Commit { command: CommandId(4), transaction: 7 };
    assert_eq!(numbers(&alone.input(Input::Command(commit))), [(1, 3, vec![4])]);
    let lost = alone.unlink(1);
    assert_eq!(lost.fates, [(3, Fate::Aborted(Abort::Gone))]);
    assert_eq!(numbers(&lost), [(2, 4, vec![4])]);
    assert_eq!(
        alone.outcome(2, 4, CallOutcome::Expired).fates,
        [(4, Fate::MaybeApplied { id: id(4) })],
        "the first leader may have had it chosen before the session ended"
    );
}

#[test]
fn a_call_with_a_key_that_was_given_up_can_be_asked_for_again() {
    let mut alone = Alone::open();
    alone.outcome(1, 1, done());
    let keyed = |command, request: &'static [u8]| {
        let (key, keys, request) = (7, Vec::new(), Bytes::from_static(request));
        Input::Command(ClientCommand::Keyed { command: CommandId(command), key, keys, request })
    };
    let [(_, _, sent)] = &numbers(&alone.input(keyed(2, b"a")))[..] else { panic!("one message") };
    let id = CallId { session: SessionId::KEYED, number: sent[0] };
    let wait = ClientSettings::default().wait;
    assert_eq!(alone.wait(wait).fates, [(2, Fate::MaybeApplied { id })]);
    // The keyed session does not belong to this client, so the end of the client's session does not end it.
    alone.outcome(1, 99, CallOutcome::Expired);
    let again = alone.again(3, id);
    assert_eq!(again.fates, [], "it is not forgotten");
    assert_eq!(numbers(&again).last().map(|(_, _, numbers)| numbers.clone()), Some(vec![id.number]));
    assert_eq!(alone.again(4, id).fates, [], "it is asked for already");
    assert_eq!(alone.input(keyed(5, b"b")).fates, [(5, Fate::Reused)]);
    let answers = vec![(id.number, done())];
    let fates = alone.answer(1, Body::Answers { session: SessionId::KEYED, answers }).fates;
    let reply = Fate::Done(Bytes::from_static(b"r"));
    assert_eq!(fates, [(4, reply.clone()), (3, reply)]);
    assert_eq!(alone.again(6, id).fates, [(6, Fate::Expired)]);
}

/// One user may repeat a call of unknown fate twice, for example because the user went away and came back.
/// Each repetition gets an answer.
#[test]
fn a_call_that_is_asked_for_twice_is_answered_twice() {
    let mut alone = Alone::open();
    let given_up = alone.wait(ClientSettings::default().wait);
    assert_eq!(given_up.fates, [(1, Fate::MaybeApplied { id: id(1) })]);
    assert_eq!(alone.again(2, id(1)).fates, []);
    assert_eq!(alone.again(3, id(1)).fates, []);
    let asked = alone.client.asked().expect("a replica is asked").node;
    let reply = Fate::Done(Bytes::from_static(b"r"));
    assert_eq!(alone.outcome(asked, 1, done()).fates, [(3, reply.clone()), (2, reply)]);
}

/// The client forgets calls of unknown fate to make room for new calls. Otherwise calls whose users never
/// repeat them would keep thousands of later calls out.
#[test]
fn calls_of_unknown_fate_give_way_to_new_ones() {
    let mut alone = Alone::open();
    alone.outcome(1, 1, done());
    let long = Bytes::from(vec![0; ClientSettings::default().kept_bytes_max]);
    let call = |command| {
        let (command, keys, request) = (CommandId(command), Vec::new(), long.clone());
        Input::Command(ClientCommand::Call { command, read: false, keys, request })
    };
    alone.input(call(2));
    assert_eq!(alone.wait(ClientSettings::default().wait).fates, [(2, Fate::MaybeApplied { id: id(2) })]);
    assert_eq!(alone.input(call(3)).fates, [], "it has room");
    assert_eq!(alone.again(4, id(2)).fates, [(4, Fate::Expired)], "and this one is forgotten");
}
