//! Tests of a replica that is the only member of its set.

use super::*;
use crate::{
    id::Incarnation,
    seam::Ticket,
    service::{Call, Executed, Kind},
};

const GROUP: GroupId = GroupId(7);

#[derive(Default)]
struct Outputs {
    events: Vec<Event>,
    answers: Vec<(u64, CallOutcome)>,
    tickets: u64,
}

impl Sink<Replica> for Outputs {
    fn send(&mut self, _: Destination, message: Message, _: Option<Ticket>) {
        if let Body::Answers { answers, .. } = message.body {
            self.answers.extend(answers);
        }
    }
    fn persist(&mut self, _: paxos::Record) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }
    fn emit(&mut self, event: Event) {
        self.events.push(event);
    }
    fn reach(&mut self, _: ProcessId, _: &str) {}
    fn forget(&mut self, _: ProcessId) {}
}

/// The only replica of a set. A proposal is chosen once its records are durable.
struct Alone {
    replica: Replica,
    outputs: Outputs,
    now: Time,
}

impl Alone {
    fn found(settings: Settings) -> Alone {
        let id = ProcessId { node: 1, incarnation: Incarnation(0) };
        let me = Peer { id, address: "h1:1".to_owned() };
        let now = Time(1_000_000_000);
        let replica = Replica::found(GROUP, me, settings, now);
        let mut alone = Alone { replica, outputs: Outputs::default(), now };
        while !alone.replica.is_serving() {
            assert!(alone.now < now + Duration::from_secs(10), "it never leads");
            alone.now = alone.now + Duration::from_millis(50);
            alone.input(Input::Deadline);
            alone.persisted();
        }
        alone
    }

    /// Gives an input and ends the batch.
    fn input(&mut self, input: Input<Replica>) {
        let me = self.replica.paxos.me();
        for input in [input, Input::Drained] {
            let mut cx = Context { now: self.now, me, random: &mut || 42 };
            self.replica.handle(&mut cx, input, &mut self.outputs);
        }
    }

    /// Reports records as durable until the replica writes no further records.
    fn persisted(&mut self) {
        let mut durable = 0;
        while durable < self.outputs.tickets {
            durable = self.outputs.tickets;
            self.input(Input::Persisted(Ticket(durable)));
        }
    }

    fn hear(&mut self, body: Body) {
        let from = ProcessId { node: 100, incarnation: Incarnation(0) };
        self.input(Input::Receive { from, message: Message { group: GROUP, body } });
    }

    fn call(&mut self, numbers: impl Iterator<Item = u64>) {
        let call = |number| Call { number, kind: Kind::Write, scope: None, request: Bytes::new() };
        self.hear(Body::Calls { session: SessionId(1), done: 0, calls: numbers.map(call).collect() });
    }

    /// Executes all requests that the replica has ordered, with long changes.
    fn execute(&mut self) {
        for event in std::mem::take(&mut self.outputs.events) {
            if let Event::Execute { work, .. } = event {
                let (reply, change) = (Bytes::from(work.to_string()), Bytes::from(vec![0; 60]));
                let result = Executed::Changed { reply, change };
                self.input(Input::Command(Command::Executed { work, result }));
            }
        }
    }
}

#[test]
fn nothing_is_chosen_behind_a_proposal_that_the_log_refused() {
    let log = paxos::Settings {
        window_min: 1,
        window_max: 1,
        batch_bytes_max: 1,
        pending_bytes_max: 100,
        ..paxos::Settings::default()
    };
    let mut alone = Alone::found(Settings { log, in_flight_bytes_max: 100, ..Settings::default() });
    alone.hear(Body::Open { nonce: 1 });
    alone.persisted();
    assert_eq!(alone.replica.chosen(), 1);
    // A change of the limit leaves the log less room than the leader believes.
    alone.replica.settings.in_flight_bytes_max = 10_000;
    alone.call(1..=4);
    alone.execute();
    assert!(alone.outputs.events.contains(&Event::Revert), "{:?}", alone.outputs.events);
    assert!(!alone.replica.is_serving(), "two proposals are not chosen");
    alone.persisted();
    assert!(alone.replica.is_serving() && alone.replica.log().is_leader());
    assert_eq!(alone.replica.chosen(), 3, "the third was refused, and the fourth came too late");
    alone.call(1..=4);
    alone.execute();
    alone.persisted();
    let done: Vec<u64> = alone.outputs.answers.iter().map(|(number, _)| *number).collect();
    assert_eq!((done, alone.replica.chosen()), (vec![1, 2, 3, 4], 5));
}
