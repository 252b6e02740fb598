//! A process with a disk: what of the order takes effect, and when.

use super::{super::layout::tests::process, *};

#[derive(Default)]
struct Out {
    records: Vec<Bytes>,
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

    fn emit(&mut self, _: Event) {}
    fn reach(&mut self, _: ProcessId, _: &str) {}
    fn forget(&mut self, _: ProcessId) {}
}

/// Else a cell could serve under a layout that it does not know when it comes back.
#[test]
fn a_layout_takes_effect_once_it_is_durable() {
    let settings = Settings { checkpoint_bytes: Some(1 << 20), ..Settings::default() };
    let me = Peer { id: process(1), address: String::from("h1:1") };
    let place = Place { name: String::from("cell-1"), site: Site(0), tokens: vec![Token(1)] };
    let mut resident = Resident::new(me.clone(), place.clone(), settings, 0, Time::ZERO);
    let (mut out, mut random) = (Out::default(), || 0);
    let mut cx = Context { now: Time::ZERO, me: me.id, random: &mut random };
    resident.handle(&mut cx, Input::Drained, &mut out);
    let submitted = out.last();
    assert_eq!(submitted, Ticket(1), "the message by which it joins is on its way to the disk");
    let Place { name, site, tokens } = place;
    let join = Change::Join { name, address: me.address.clone(), site, tokens }.encode();
    let at = Position(1);
    let id = MessageId { sender: me.id, number: 1 };
    let roster = Maps::apply(&Roster::default(), at, me.id, &join).unwrap().unwrap();
    let attachment = Maps::attachment(&roster, id, &join, me.id);
    resident.apply(&mut cx, (at, id), &join, attachment, &mut out);
    let cells = |resident: &Resident| resident.cell().layout().cells().count();
    resident.handle(&mut cx, Input::Persisted(submitted), &mut out);
    assert_eq!(cells(&resident), 0, "its record is not durable");
    let layout = out.last();
    resident.handle(&mut cx, Input::Persisted(layout), &mut out);
    assert_eq!(cells(&resident), 1);
    let back = (0, Time::ZERO);
    let again = Resident::recover(me, settings, Generation::FIRST, out.records, back);
    let mut again = again.unwrap().expect("there are records");
    assert_eq!(again.roster(), resident.roster());
    again.handle(&mut cx, Input::Drained, &mut Out::default());
    assert_eq!(cells(&again), 1, "it goes on with the layout that it had");
}
