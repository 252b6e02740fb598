//! Tests of a process with a disk: the time at which changes of the order take effect.

use super::{
    super::layout::{Copies, Map, ReadRepair, Strategy, tests::process},
    *,
};

#[derive(Default)]
struct Out {
    records: Vec<Bytes>,
    events: Vec<Event>,
}

impl Out {
    fn last(&self) -> Ticket {
        Ticket(self.records.len() as u64)
    }
}

impl Sink<Resident> for Out {
    fn send(&mut self, _: Destination, _: Message, _: Option<Ticket>) {}

    fn persist(&mut self, record: Record) -> Ticket {
        let mut bytes = BytesMut::new();
        record.encode(&mut bytes);
        self.records.push(bytes.freeze());
        self.last()
    }

    fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    fn reach(&mut self, _: ProcessId, _: &str) {}
    fn forget(&mut self, _: ProcessId) {}
}

fn settings() -> Settings {
    Settings { checkpoint_bytes: Some(1 << 20), ..Settings::default() }
}

fn me() -> Peer {
    Peer { id: process(1), address: String::from("h1:1") }
}

/// Returns a process that asks to join, and the change that it asks for.
fn newcomer() -> (Resident, Change) {
    let place = JoinOptions { name: String::from("cell-1"), site: Site(0), tokens: vec![Token(1)] };
    let resident = Resident::new(me(), place.clone(), settings(), 0, Time::ZERO);
    let JoinOptions { name, site, tokens } = place;
    (resident, Change::Join { name, address: me().address, site, tokens })
}

/// Delivers this process's own change at the next position, as the order does.
fn deliver(resident: &mut Resident, number: u64, change: &Change, cx: &mut Context<'_>, out: &mut Out) {
    let (at, id) = (Position(number), MessageId { sender: me().id, number });
    let body = change.encode();
    let before = resident.roster().map_or(Roster::default(), |roster| Roster::clone(roster));
    let roster = Maps::apply(&before, at, me().id, &body).unwrap().unwrap();
    let attachment = Maps::attachment(&roster, id, &body, me().id);
    resident.apply(cx, (at, id), &body, attachment.filter(|_| number == 1), out);
}

/// A layout takes effect only once it is durable. Otherwise a cell could serve under a layout that it does
/// not know when it comes back.
#[test]
fn a_layout_takes_effect_once_it_is_durable() {
    let (mut resident, join) = newcomer();
    let (mut out, mut random) = (Out::default(), || 0);
    let mut cx = Context { now: Time::ZERO, me: me().id, random: &mut random };
    resident.handle(&mut cx, Input::Drained, &mut out);
    let submitted = out.last();
    assert_eq!(submitted, Ticket(1), "the message by which it joins is on its way to the disk");
    deliver(&mut resident, 1, &join, &mut cx, &mut out);
    let cells = |resident: &Resident| resident.cell().layout().cells().count();
    resident.handle(&mut cx, Input::Persisted(submitted), &mut out);
    assert_eq!(cells(&resident), 0, "its record is not durable");
    let layout = out.last();
    resident.handle(&mut cx, Input::Persisted(layout), &mut out);
    assert_eq!(cells(&resident), 1);
    let back = (0, Time::ZERO);
    let again = Resident::recover(me(), settings(), Generation::FIRST, out.records, back);
    let mut again = again.unwrap().expect("there are records");
    assert_eq!(again.roster(), resident.roster());
    again.handle(&mut cx, Input::Drained, &mut Out::default());
    assert_eq!(cells(&again), 1, "it goes on with the layout that it had");
}

/// A change ends for the user when it takes effect here, so that the next command finds it in effect. The
/// order may announce earlier that all members have the change: before it is durable here, or, after a change
/// of routers, before it was delivered.
#[test]
fn a_change_ends_when_it_takes_effect_here() {
    let (mut resident, join) = newcomer();
    let (mut out, mut random) = (Out::default(), || 0);
    let mut cx = Context { now: Time::ZERO, me: me().id, random: &mut random };
    deliver(&mut resident, 1, &join, &mut cx, &mut out);
    let joined = out.last();
    resident.handle(&mut cx, Input::Persisted(joined), &mut out);
    let copies = Copies::new([(Site(0), 1)]).unwrap();
    let map = Map { copies, strategy: Strategy::Quorum(ReadRepair::None) };
    let changes =
        [Change::CreateMap { name: String::from("m"), map }, Change::DropMap { name: String::from("m") }];
    for (number, change) in (2..).zip(changes) {
        let command = Command::Change { id: CommandId(number), change: Box::new(change.clone()) };
        resident.handle(&mut cx, Input::Command(command), &mut out);
        out.events.clear();
        let id = MessageId { sender: me().id, number };
        let stable = MemberEvent::Outcome { token: number, id, outcome: ecast::Outcome::Stable };
        if number == 2 {
            resident.learn(&mut cx, stable.clone(), &mut out);
        }
        deliver(&mut resident, number, &change, &mut cx, &mut out);
        let written = out.last();
        if number > 2 {
            resident.learn(&mut cx, stable, &mut out);
        }
        assert!(out.events.is_empty(), "it is not in force: {:?}", out.events);
        resident.handle(&mut cx, Input::Persisted(written), &mut out);
        let [Event::Roster(roster), Event::Changed { id, result: Ok(()) }] = &out.events[..] else {
            panic!("the map is known first, then it is told: {:?}", out.events)
        };
        assert_eq!((*id, roster.map("m").is_some()), (CommandId(number), number == 2));
    }
}
