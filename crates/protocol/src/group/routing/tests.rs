//! Tests of the routing of groups: the receivers of messages, and refusals.

use std::collections::BTreeMap;

use super::*;
use crate::id::Incarnation;

fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(0) }
}

const GROUP: GroupId = GroupId(7);

fn reports(change: Position) -> Control {
    Control::Reports(vec![(GROUP, SurvivorReport { change, held: BTreeMap::new(), whole: true })])
}

fn join(name: &str) -> Control {
    Control::Join { group: GROUP, name: name.to_owned(), address: String::from("here") }
}

struct Domain {
    roster: Roster,
    at: u64,
}

impl Domain {
    fn new(nodes: &[u64]) -> Domain {
        let mut domain = Domain { roster: Roster::default(), at: 0 };
        for &node in nodes {
            domain.submit(node, &Control::Enter).expect("it enters");
        }
        domain
    }

    /// Submits a control message of `node` to the order. Returns its receivers.
    fn submit(&mut self, node: u64, control: &Control) -> Result<Vec<u64>, Refusal> {
        self.at += 1;
        let (sender, body) = (process(node), control.encode());
        let changed = Groups::apply(&self.roster, Position(self.at), sender, &body)?;
        self.roster = changed.expect("whatever is not refused changes something");
        let id = MessageId { sender, number: self.at };
        let found = Groups::destinations(&self.roster, id, Class::Control, &body)?;
        Ok(found.processes.iter().map(|id| id.node).collect())
    }

    fn join(&mut self, node: u64) -> Vec<u64> {
        let receivers = self.submit(node, &join("seven")).expect("it joins");
        self.report();
        receivers
    }

    /// Makes all survivors report that they hold nothing.
    fn report(&mut self) -> Vec<Vec<u64>> {
        let group = self.roster.group(GROUP).expect("there is a group");
        let Some(prepared) = group.change.as_ref().map(|change| change.prepared) else { return Vec::new() };
        let late = group.late();
        let report = reports(prepared);
        late.iter().map(|id| self.submit(id.node, &report).expect("it is waited for")).collect()
    }

    fn send(&self, node: u64) -> Result<Vec<u64>, Refusal> {
        let view = self.roster.group(GROUP).map_or(Position(0), |group| group.view.number);
        let header = Header { group: GROUP, view, behind: 0, number: 1, safe: Some(Phi::Count(2)) };
        let (id, body) =
            (MessageId { sender: process(node), number: 1 }, header.before(&Bytes::from_static(b"x")));
        assert_eq!(Header::take(&mut body.clone()), Ok(header));
        let found = Groups::destinations(&self.roster, id, Class::Data, &body)?;
        Ok(found.processes.iter().map(|id| id.node).collect())
    }
}

#[test]
fn control_messages_go_only_to_the_members_concerned() {
    let mut domain = Domain::new(&[1, 2, 3, 4]);
    assert_eq!(domain.join(1), [1]);
    assert_eq!(domain.join(2), [1, 2]);
    assert_eq!(domain.join(3), [1, 2, 3]);
    assert_eq!(domain.send(2), Ok(vec![1, 2, 3]));
    assert_eq!(domain.send(4), Err(NOT_MEMBER));
    // The exit of process 3 goes to the other members of its group, and not to process 4, which has no group.
    assert_eq!(domain.submit(3, &Control::Exit), Ok(vec![1, 2]));
    assert_eq!(domain.send(2), Ok(vec![1, 2]), "nobody waits for the confirmation of who was dropped");
    assert_eq!(domain.submit(3, &Control::Leave { group: GROUP }), Err(NOT_MEMBER));
    assert!(!domain.roster.has(process(3)) && domain.roster.has(process(4)));
}

#[test]
fn a_leaving_member_receives_its_removal() {
    let mut domain = Domain::new(&[1, 2]);
    domain.join(1);
    domain.join(2);
    domain.submit(2, &Control::Leave { group: GROUP }).expect("it leaves");
    assert_eq!(domain.report().last(), Some(&vec![1, 2]));
    assert_eq!(domain.send(2), Err(NOT_MEMBER));
    // The message by which the last member left does not remove the group. The next message does.
    domain.submit(1, &Control::Leave { group: GROUP }).expect("it leaves");
    assert_eq!(domain.report(), [vec![1]]);
    assert!(domain.roster.group(GROUP).is_some_and(Group::is_empty));
    domain.submit(1, &Control::Enter).expect("it is in already");
    assert_eq!(domain.roster.group(GROUP), None);
}

#[test]
fn a_stale_suspicion_is_refused() {
    let mut domain = Domain::new(&[1, 2]);
    domain.join(1);
    domain.join(2);
    domain.submit(1, &Control::Leave { group: GROUP }).expect("it leaves");
    let prepared = Position(domain.at);
    let late = |process, change| Control::Late { process, group: GROUP, change };
    assert_eq!(domain.submit(1, &late(process(2), Position(prepared.0 - 1))), Err(STALE));
    let report = reports(prepared);
    domain.submit(2, &report).expect("it is waited for");
    assert_eq!(domain.submit(2, &report), Err(STALE), "it has reported");
    assert_eq!(domain.submit(1, &late(process(2), prepared)), Err(STALE), "nobody waits for it");
    assert_eq!(domain.submit(1, &late(process(1), prepared)), Err(STALE), "nobody suspects itself");
    assert_eq!(domain.submit(2, &late(process(1), prepared)), Ok(vec![2]));
}

#[test]
fn a_joiner_receives_the_state_of_its_own_group_only() {
    let mut domain = Domain::new(&[1, 2]);
    domain.join(1);
    let join = join("seven");
    domain.submit(2, &join).expect("it joins");
    let id = MessageId { sender: process(2), number: 1 };
    let given = |to: u64| Groups::attachment(&domain.roster, id, &join.encode(), process(to));
    let admission: Admission =
        decode_body(&mut given(2).expect("it is given its group")).expect("it decodes");
    assert_eq!((Some(&admission.group), admission.record), (domain.roster.group(GROUP), None));
    assert_eq!(given(1), None);
}

fn mark(view: u64) -> Mark {
    Mark { life: 1, view: Position(view) }
}

fn comes(checkpoint: Option<Mark>, forced: bool) -> Control {
    let Control::Join { group, name, address } = join("seven") else { unreachable!("it joins") };
    Control::Return { group, name, address, offer: Offer { checkpoint, forced } }
}

impl Domain {
    /// Lets a process join a group without members. Returns whether the process was admitted; if so, the
    /// process leaves again.
    fn comes(&mut self, control: &Control) -> bool {
        self.comes_and_keeps(control, None)
    }

    fn comes_and_keeps(&mut self, control: &Control, keeps: Option<Mark>) -> bool {
        self.submit(1, control).expect("it is told");
        let id = MessageId { sender: process(1), number: self.at };
        let admission = Groups::attachment(&self.roster, id, &control.encode(), process(1));
        let admission: Admission = decode_body(&mut admission.expect("it is told")).expect("it decodes");
        assert_eq!(admission.record, self.roster.record(GROUP));
        let inside = self.roster.group(GROUP).is_some_and(|group| group.concerns(process(1)));
        assert_eq!(admission.group.concerns(process(1)), inside);
        if inside {
            if let Some(checkpoint) = keeps {
                self.submit(1, &Control::Kept { group: GROUP, checkpoint }).expect("it is in");
            }
            self.submit(1, &Control::Leave { group: GROUP }).expect("it leaves");
            self.report();
        }
        inside
    }
}

#[test]
fn an_idle_group_admits_the_newest_checkpoint_first() {
    let mut domain = Domain::new(&[1]);
    assert!(domain.comes_and_keeps(&join("seven"), Some(mark(5))), "nothing is known");
    let kept = Control::Kept { group: GROUP, checkpoint: mark(6) };
    assert_eq!(domain.submit(1, &kept), Err(STALE), "it is out");
    assert_eq!(domain.roster.record(GROUP).map(|it| it.newest), Some(mark(5)));
    assert!(!domain.comes(&join("seven")), "a plain one has none");
    assert!(!domain.comes(&comes(None, false)) && !domain.comes(&comes(Some(mark(4)), false)));
    assert!(domain.comes(&comes(Some(mark(5)), false)));
    assert!(domain.comes(&comes(Some(mark(4)), true)) && domain.comes(&comes(None, true)));
    assert_eq!(domain.roster.record(GROUP).map(|it| it.newest), Some(mark(5)), "force changes nothing");
    assert!(!domain.comes(&comes(Some(mark(4)), false)), "nor for the next one");
    assert!(domain.comes(&comes(Some(mark(9)), false)), "newer than the routers know");
    assert!(!domain.comes(&comes(Some(mark(5)), false)));
    let nonsense = Some(Mark { life: u64::MAX, view: Position(1) });
    assert_eq!(domain.submit(1, &comes(nonsense, true)), Err(MALFORMED));
    assert_eq!(domain.submit(2, &kept), Err(NOT_MEMBER));
}

#[test]
fn a_group_with_members_admits_any_joiner() {
    let mut domain = Domain::new(&[1, 2, 3]);
    domain.join(1);
    domain.submit(1, &Control::Kept { group: GROUP, checkpoint: mark(3) }).expect("it is told");
    domain.submit(2, &comes(Some(mark(1)), false)).expect("it joins");
    domain.report();
    assert_eq!(domain.join(3), [1, 2, 3], "all are told, the one with a stale checkpoint among them");
    let before = domain.roster.group(GROUP).expect("it lives").view.clone();
    // A view begins with the same members.
    assert_eq!(domain.submit(2, &Control::Save { group: GROUP, by_all: true }), Ok(vec![1, 2, 3]));
    domain.report();
    let view = &domain.roster.group(GROUP).expect("it lives").view;
    assert!(view.number > before.number && view.members.len() == 3);
    assert!(view.joined.is_empty() && view.left.is_empty());
}

#[test]
fn an_idle_group_has_a_name_as_long_as_its_checkpoint_is_known() {
    let mut domain = Domain::new(&[1]);
    let idle = |domain: &Domain| {
        let idle = domain.roster.idle().map(|(group, name, record)| (group, name.to_owned(), record.newest));
        idle.collect::<Vec<_>>()
    };
    assert!(domain.comes(&join("seven")));
    assert!(idle(&domain).is_empty(), "it has no checkpoint, so nothing is left of it");
    assert!(domain.comes_and_keeps(&join("seven"), Some(mark(5))));
    for _ in 0..2 {
        assert_eq!(idle(&domain), [(GROUP, String::from("seven"), mark(5))]);
        assert_eq!(domain.roster.groups().count(), 0, "nobody is in it");
        // Meanwhile other processes join and leave, and a process with an older checkpoint is refused.
        assert!(!domain.comes(&comes(Some(mark(4)), false)));
    }
    let left = domain.roster.group(GROUP).expect("its name is left");
    assert_eq!(left, &Group { name: String::from("seven"), ..Group::default() });
    domain.submit(1, &comes(Some(mark(5)), false)).expect("it returns");
    assert!(idle(&domain).is_empty(), "somebody is in it");
    // A group without members and without a record does not exist.
    domain.submit(1, &Control::Leave { group: GROUP }).expect("it leaves");
    domain.report();
    domain.roster.records.remove(GROUP);
    domain.submit(1, &Control::Enter).expect("it is in already");
    assert_eq!(domain.roster.group(GROUP), None);
}

#[test]
fn a_roster_without_checkpoints_has_the_bytes_that_it_always_had() {
    let mut domain = Domain::new(&[1, 2, 3]);
    domain.join(1);
    domain.join(2);
    let Roster { changed, members, groups, empty, .. } = domain.roster.clone();
    let mut before = BytesMut::new();
    encode_body(&mut before, &(changed, members, groups, empty));
    let bytes = |roster: &Roster| {
        let mut out = BytesMut::new();
        encode_body(&mut out, roster);
        out.freeze()
    };
    assert_eq!(bytes(&domain.roster), before);
    assert_eq!(decode_body(&mut before.freeze()), Ok(domain.roster.clone()), "of a build that knew none");
    domain.submit(1, &Control::Kept { group: GROUP, checkpoint: mark(3) }).expect("it is told");
    let mut with_records = bytes(&domain.roster);
    assert_eq!(decode_body(&mut with_records.clone()), Ok(domain.roster.clone()));
    domain.join(3);
    domain.submit(1, &rates(9)).expect("it is told");
    let mut with_addresses = bytes(&domain.roster);
    assert_eq!(decode_body(&mut with_addresses), Ok(domain.roster.clone()));
    while with_records.len() > 4 {
        with_records.truncate(with_records.len() - 1);
        let mut cut = BytesMut::new();
        cut.put_u32_le(with_records.len() as u32 - 4);
        cut.put_slice(&with_records[4..]);
        assert!(decode_body::<Roster>(&mut cut.freeze()).is_err(), "{} bytes", with_records.len());
    }
}

fn rates(level: u8) -> Control {
    Control::Rates(vec![(GROUP, level)])
}

impl Domain {
    /// Returns the changes of addresses that `to` gets with this control message.
    fn moves(&self, control: &Control, to: u64) -> Option<Moves> {
        let id = MessageId { sender: process(1), number: self.at };
        let attachment = Groups::attachment(&self.roster, id, &control.encode(), process(to));
        attachment.map(|mut attachment| decode_body(&mut attachment).expect("it decodes"))
    }
}

#[test]
fn the_address_of_a_busy_group_is_sent_to_its_members_only() {
    let mut domain = Domain::new(&[1, 2, 3, 4, 5]);
    domain.join(1);
    domain.join(2);
    assert_eq!(domain.submit(1, &rates(9)), Ok(vec![1]), "two are too few");
    assert_eq!((domain.roster.address(GROUP), domain.moves(&rates(9), 2)), (None, None));
    domain.join(3);
    assert_eq!(domain.submit(4, &rates(9)), Err(STALE), "it is not in the group");
    assert_eq!(domain.submit(1, &rates(2)), Ok(vec![1]), "nobody says much");
    assert_eq!(domain.roster.address(GROUP), None);
    assert_eq!(domain.submit(1, &rates(10)), Ok(vec![1, 2, 3]));
    let address = domain.roster.address(GROUP).expect("it is busy");
    assert!(address.ip().is_multicast());
    for node in 1..4 {
        assert_eq!(domain.moves(&rates(10), node), Some(vec![(GROUP, Some(address))]));
    }
    assert_eq!(domain.moves(&rates(10), 4), None);
    assert_eq!(domain.submit(2, &rates(10)), Err(STALE), "it is known");
    domain.submit(4, &join("seven")).expect("it joins");
    let id = MessageId { sender: process(4), number: domain.at };
    let admission = Groups::attachment(&domain.roster, id, &join("seven").encode(), process(4));
    let admission: Admission = decode_body(&mut admission.expect("it is admitted")).expect("it decodes");
    assert_eq!(admission.address, Some(address));
    domain.report();
    let figures = domain.roster.address_statistics();
    assert_eq!((figures.candidates, figures.served, figures.addresses, figures.unwanted), (1, 1, 1, 0));
    assert_eq!(domain.submit(1, &rates(0)), Ok(vec![1, 2, 3, 4]));
    assert_eq!(domain.moves(&rates(0), 4), Some(vec![(GROUP, None)]));
}

#[test]
fn a_group_that_all_have_left_has_no_address() {
    let mut domain = Domain::new(&[1, 2, 3]);
    for node in 1..4 {
        domain.join(node);
    }
    domain.submit(1, &rates(10)).expect("it is told");
    assert!(domain.roster.address(GROUP).is_some());
    for node in 1..4 {
        domain.submit(node, &Control::Exit).expect("it is in");
        domain.report();
    }
    domain.submit(3, &Control::Enter).expect("it comes back");
    assert_eq!(domain.roster.address(GROUP), None);
    for node in 1..3 {
        domain.submit(node, &Control::Enter).expect("it comes back");
    }
    (1..4).for_each(|node| drop(domain.join(node)));
    assert_eq!(domain.roster.address(GROUP), None, "its rate is forgotten");
}

#[test]
fn garbage_is_refused() {
    let garbage = Bytes::from_static(b"\x03\0\0\0xyz");
    let roster = Roster::default();
    assert_eq!(Groups::apply(&roster, Position(1), process(1), &garbage), Err(MALFORMED));
    let id = MessageId { sender: process(1), number: 1 };
    assert_eq!(Groups::destinations(&roster, id, Class::Data, &garbage), Err(MALFORMED));
}
