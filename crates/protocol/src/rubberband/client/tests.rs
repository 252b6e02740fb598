//! Tests of a client alone: how long its requests wait for an order when nobody leads.

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use super::*;
use crate::{
    ecast,
    id::{Generation, Incarnation, RequestId},
    rubberband::{
        Range, ReadCost, ReplyContent, TableEntry,
        config::State,
        sample::{RecordingSink, process, town},
    },
    strength::Strength,
    wire::Wire,
};

pub(super) const ME: ProcessId = ProcessId { node: 1, incarnation: Incarnation(1) };
const WAIT: Duration = Duration::from_secs(3);

fn client(write_wait: Option<Duration>) -> Client {
    let settings = ClientSettings { write_wait, ..ClientSettings::default() };
    Client::new(Peer { id: ME, address: String::new() }, String::from("gateway-1"), settings)
}

fn give(client: &mut Client, now: Time, input: Input<Client>) -> Vec<ClientEvent> {
    said(client, now, input).events
}

/// Gives the client an input, and returns all its output.
pub(super) fn said(client: &mut Client, now: Time, input: Input<Client>) -> RecordingSink<Client> {
    within(now, |cx, out| client.handle(cx, input, out))
}

/// Acts on the client at `now`, and returns all its output.
pub(super) fn within(
    now: Time,
    act: impl FnOnce(&mut Context<'_>, &mut RecordingSink<Client>),
) -> RecordingSink<Client> {
    let (mut said, mut random) = (RecordingSink::default(), || 7);
    act(&mut Context { now, me: ME, random: &mut random }, &mut said);
    said
}

/// An instant long after the clock began.
pub(super) const START: Time = Time(1_000_000_000_000);

/// Builds a gateway of a ring with this number of replicas, linked to all its storage processes. Table 1
/// exists.
pub(super) fn gateway(replicas: u8, keys: &[u64], states: &str, settings: ClientSettings) -> Client {
    let mut client =
        Client::new(Peer { id: ME, address: String::new() }, String::from("gateway-1"), settings);
    let mut state = State::from(town(replicas, keys, states));
    let created = Position(1);
    let table = TableEntry { name: String::from("t"), definition: Bytes::new(), created };
    state.tables.insert(1, table);
    state.sessions.insert(ME.incarnation.0, 0);
    let storage: Vec<ProcessId> = state.storage.keys().copied().collect();
    client.membership.know(Config::from(state));
    for peer in storage {
        let session = crate::seam::Session(peer.node);
        said(&mut client, START, Input::Linked { peer, session });
    }
    client
}

/// Gives the gateway a router's message.
pub(super) fn order(client: &mut Client, message: ecast::Message) -> RecordingSink<Client> {
    let from = process(ROUTER);
    said(client, START, Input::Receive { from, message: Message::Order(message) })
}

/// Tells the gateway who leads.
pub(super) fn led(client: &mut Client) {
    let routers = vec![Peer { id: process(ROUTER), address: String::new() }];
    let leader = Some(process(ROUTER));
    order(client, ecast::Message::Lead { generation: Generation::FIRST, leader, routers, learned: 1 });
}

const ROUTER: u64 = 50;

pub(super) fn read(token: u64, strength: Strength, ranges: &[Range]) -> Input<Client> {
    let (ranges, operation) = (SmallVec::from_slice(ranges), Bytes::new());
    Input::Command(ClientCommand::Read { token, strength, table: 1, ranges, operation })
}

pub(super) fn write(token: u64, request: Option<RequestId>, repeated: bool, range: Range) -> Input<Client> {
    Input::Command(ClientCommand::Write {
        token,
        request,
        print: 3,
        repeated,
        table: 1,
        ranges: smallvec![range],
        fallible: false,
        operation: Bytes::new(),
    })
}

/// Returns a piece of the answer to the current attempt at this request.
pub(super) fn piece(client: &Client, token: u64, piece: u32, last: bool, covers: Range) -> Reply {
    let token = client.requests[&token].attempt;
    let content = ReplyContent::Answer(Bytes::from_static(b"rows"));
    Reply {
        token,
        at: Position(5),
        ranges: smallvec![covers],
        piece,
        last,
        spent: ReadCost::default(),
        content,
    }
}

/// Gives the client a reply of a storage process.
pub(super) fn reply(client: &mut Client, now: Time, from: u64, reply: Reply) -> RecordingSink<Client> {
    let message = Message::Direct(Direct::Reply(reply));
    said(client, now, Input::Receive { from: process(from), message })
}

/// Returns the direct messages that were sent, with the receivers' nodes, without signs of life.
pub(super) fn direct(said: &RecordingSink<Client>) -> Vec<(u64, Direct)> {
    let sent = said.sent.iter().filter_map(|(to, message)| match message {
        Message::Direct(Direct::Alive { .. }) | Message::Order(_) => None,
        Message::Direct(direct) => Some((to.node, direct.clone())),
    });
    sent.collect()
}

fn control(token: u64) -> Input<Client> {
    Input::Command(ClientCommand::Control { token, control: Control::DropTable { table: 1 } })
}

/// Returns the requests that have failed, with their errors.
pub(super) fn failed(events: &[ClientEvent]) -> Vec<(u64, ClientError)> {
    let failed = |event: &ClientEvent| match event {
        ClientEvent::Failed { token, error } => Some((*token, *error)),
        _ => None,
    };
    events.iter().filter_map(failed).collect()
}

#[test]
fn a_request_without_a_place_in_the_order_ends_when_its_time_is_over() {
    let mut client = client(Some(WAIT));
    let start = Time::ZERO + Duration::from_secs(1);
    assert!(failed(&give(&mut client, start, control(1))).is_empty());
    let later = start + Duration::from_secs(1);
    assert!(failed(&give(&mut client, later, control(2))).is_empty());
    assert!(client.deadline().is_some_and(|at| at <= start + WAIT));
    let events = give(&mut client, start + WAIT, Input::Deadline);
    assert_eq!(failed(&events), [(1, ClientError::NotSent)]);
    let events = give(&mut client, later + WAIT, Input::Deadline);
    assert_eq!(failed(&events), [(2, ClientError::NotSent)]);
    assert!(client.unordered.is_empty());
}

#[test]
fn a_request_that_ended_early_leaves_no_deadline() {
    let mut client = client(Some(WAIT));
    let start = Time::ZERO + Duration::from_secs(1);
    give(&mut client, start, control(1));
    give(&mut client, start, control(2));
    let events = give(&mut client, start, Input::Command(ClientCommand::Cancel { token: 1 }));
    assert_eq!(failed(&events), [(1, ClientError::NotSent)]);
    assert_eq!(client.unordered, [(start + WAIT, 2)]);
    // `write_wait` does not limit the waiting of a read.
    let read = ClientCommand::Read {
        token: 3,
        strength: Strength::Sequential,
        table: 1,
        ranges: SmallVec::new(),
        operation: Bytes::new(),
    };
    give(&mut client, start, Input::Command(read));
    assert_eq!(client.unordered.len(), 1);
}

#[test]
fn a_request_without_a_bound_waits_until_it_is_cancelled() {
    let mut client = client(None);
    let start = Time::ZERO + Duration::from_secs(1);
    give(&mut client, start, control(1));
    let events = give(&mut client, start + Duration::from_secs(3600), Input::Deadline);
    assert!(failed(&events).is_empty());
    assert_eq!(client.outstanding(), 1);
}

#[test]
fn a_wedged_client_refuses_requests_at_once() {
    let mut client = gateway(1, &[0], "A", ClientSettings::default());
    led(&mut client);
    // A notice without outcomes or credit; its last byte reports that the process is no longer a member.
    let out = [&[3], &[0; 16][..], &[1]].concat();
    let out = ecast::Message::decode(&mut Bytes::from(out)).expect("a notice");
    order(&mut client, out);
    let events = give(&mut client, START, control(1));
    assert_eq!(failed(&events), [(1, ClientError::NotSent)]);
    assert_eq!(client.outstanding(), 0);
}

#[test]
fn an_unwanted_answer_is_cancelled_if_more_pieces_would_come() {
    let mut client = gateway(1, &[0], "A", ClientSettings::default());
    let range = Range { low: 0, high: 9 };
    give(&mut client, START, read(1, Strength::Basic, &[range]));
    let (more, all) = (piece(&client, 1, 0, false, range), piece(&client, 1, 0, true, range));
    let attempt = more.token;
    give(&mut client, START, Input::Command(ClientCommand::Cancel { token: 1 }));
    let said = reply(&mut client, START, 1, more);
    assert_eq!(direct(&said), [(1, Direct::Cancel { token: attempt })]);
    let said = reply(&mut client, START, 1, all);
    assert_eq!(direct(&said), []);
}
