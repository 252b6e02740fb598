//! What a client does alone: how long its requests wait for an order that nobody gives.

use bytes::Bytes;
use smallvec::SmallVec;

use super::*;
use crate::{id::Incarnation, seam::Ticket, strength::Strength};

#[derive(Default)]
struct Told(Vec<ClientEvent>);

impl Sink<Client> for Told {
    fn send(&mut self, _: Destination, _: Message, _: Option<Ticket>) {}

    fn persist(&mut self, _: Record) -> Ticket {
        unreachable!("a client writes no records")
    }

    fn emit(&mut self, event: ClientEvent) {
        self.0.push(event);
    }

    fn reach(&mut self, _: ProcessId, _: &str) {}

    fn forget(&mut self, _: ProcessId) {}
}

const ME: ProcessId = ProcessId { node: 1, incarnation: Incarnation(1) };
const WAIT: Duration = Duration::from_secs(3);

fn client(write_wait: Option<Duration>) -> Client {
    let settings = ClientSettings { write_wait, ..ClientSettings::default() };
    Client::new(Peer { id: ME, address: String::new() }, String::from("gateway-1"), settings)
}

fn give(client: &mut Client, now: Time, input: Input<Client>) -> Vec<ClientEvent> {
    let mut told = Told::default();
    let mut random = || 7;
    client.handle(&mut Context { now, me: ME, random: &mut random }, input, &mut told);
    told.0
}

fn control(token: u64) -> Input<Client> {
    Input::Command(ClientCommand::Control { token, control: Control::DropTable { table: 1 } })
}

/// Which of these have failed, and how.
fn failed(told: &[ClientEvent]) -> Vec<(u64, ClientError)> {
    let failed = |event: &ClientEvent| match event {
        ClientEvent::Failed { token, error } => Some((*token, *error)),
        _ => None,
    };
    told.iter().filter_map(failed).collect()
}

#[test]
fn a_request_without_a_place_in_the_order_ends_when_its_time_is_over() {
    let mut client = client(Some(WAIT));
    let start = Time::ZERO + Duration::from_secs(1);
    assert!(failed(&give(&mut client, start, control(1))).is_empty());
    let later = start + Duration::from_secs(1);
    assert!(failed(&give(&mut client, later, control(2))).is_empty());
    assert!(client.deadline().is_some_and(|at| at <= start + WAIT));
    let told = give(&mut client, start + WAIT, Input::Deadline);
    assert_eq!(failed(&told), [(1, ClientError::NotSent)]);
    let told = give(&mut client, later + WAIT, Input::Deadline);
    assert_eq!(failed(&told), [(2, ClientError::NotSent)]);
    assert!(client.unordered.is_empty());
}

#[test]
fn one_that_ended_before_leaves_no_deadline_behind() {
    let mut client = client(Some(WAIT));
    let start = Time::ZERO + Duration::from_secs(1);
    give(&mut client, start, control(1));
    give(&mut client, start, control(2));
    let told = give(&mut client, start, Input::Command(ClientCommand::Cancel { token: 1 }));
    assert_eq!(failed(&told), [(1, ClientError::NotSent)]);
    assert_eq!(client.unordered, [(start + WAIT, 2)]);
    // A read waits as long as its own settings say.
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
fn without_a_bound_it_waits_until_it_is_cancelled() {
    let mut client = client(None);
    let start = Time::ZERO + Duration::from_secs(1);
    give(&mut client, start, control(1));
    let told = give(&mut client, start + Duration::from_secs(3600), Input::Deadline);
    assert!(failed(&told).is_empty());
    assert_eq!(client.outstanding(), 1);
}
