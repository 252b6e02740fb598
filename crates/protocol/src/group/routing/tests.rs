//! Who is told what, and what is refused.

use std::collections::BTreeMap;

use super::*;
use crate::id::Incarnation;

fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(0) }
}

const GROUP: GroupId = GroupId(7);

fn reports(change: Position) -> Control {
    Control::Reports(vec![(GROUP, Report { change, held: BTreeMap::new(), whole: true })])
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

    /// Orders a control message. Tells who gets it.
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
        let told = self.submit(node, &join("seven")).expect("it joins");
        self.report();
        told
    }

    /// All survivors hold nothing, and say so.
    fn report(&mut self) -> Vec<Vec<u64>> {
        let group = self.roster.group(GROUP).expect("there is a group");
        let Some(prepared) = group.change.as_ref().map(|change| change.prepared) else { return Vec::new() };
        let late = group.late();
        let report = reports(prepared);
        late.iter().map(|id| self.submit(id.node, &report).expect("it is waited for")).collect()
    }

    fn send(&self, node: u64) -> Result<Vec<u64>, Refusal> {
        let view = self.roster.group(GROUP).map_or(Position(0), |group| group.view.number);
        let header = Header { group: GROUP, view, behind: 0, pack: 1, safe: Some(Phi::Count(2)) };
        let (id, body) =
            (MessageId { sender: process(node), number: 1 }, header.before(&Bytes::from_static(b"x")));
        assert_eq!(Header::take(&mut body.clone()), Ok(header));
        let found = Groups::destinations(&self.roster, id, Class::Data, &body)?;
        Ok(found.processes.iter().map(|id| id.node).collect())
    }
}

#[test]
fn control_goes_to_whom_it_concerns() {
    let mut domain = Domain::new(&[1, 2, 3, 4]);
    assert_eq!(domain.join(1), [1]);
    assert_eq!(domain.join(2), [1, 2]);
    assert_eq!(domain.join(3), [1, 2, 3]);
    assert_eq!(domain.send(2), Ok(vec![1, 2, 3]));
    assert_eq!(domain.send(4), Err(NOT_MEMBER));
    // A process that is in no group is told of no exit.
    assert_eq!(domain.submit(3, &Control::Exit), Ok(vec![1, 2]));
    assert_eq!(domain.send(2), Ok(vec![1, 2]), "nobody waits for the confirmation of who was dropped");
    assert_eq!(domain.submit(3, &Control::Leave { group: GROUP }), Err(NOT_MEMBER));
    assert!(!domain.roster.has(process(3)) && domain.roster.has(process(4)));
}

#[test]
fn who_leaves_hears_that_it_is_out() {
    let mut domain = Domain::new(&[1, 2]);
    domain.join(1);
    domain.join(2);
    domain.submit(2, &Control::Leave { group: GROUP }).expect("it leaves");
    assert_eq!(domain.report().last(), Some(&vec![1, 2]));
    assert_eq!(domain.send(2), Err(NOT_MEMBER));
    // The last one's group is forgotten behind the message by which it left.
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
fn a_joiner_is_given_its_group_alone() {
    let mut domain = Domain::new(&[1, 2]);
    domain.join(1);
    let join = join("seven");
    domain.submit(2, &join).expect("it joins");
    let id = MessageId { sender: process(2), number: 1 };
    let given = |to: u64| Groups::attachment(&domain.roster, id, &join.encode(), process(to));
    let group: Group = decode_body(&mut given(2).expect("it is given its group")).expect("it decodes");
    assert_eq!(Some(&group), domain.roster.group(GROUP));
    assert_eq!(given(1), None);
}

#[test]
fn garbage_is_refused() {
    let garbage = Bytes::from_static(b"\x03\0\0\0xyz");
    let roster = Roster::default();
    assert_eq!(Groups::apply(&roster, Position(1), process(1), &garbage), Err(MALFORMED));
    let id = MessageId { sender: process(1), number: 1 };
    assert_eq!(Groups::destinations(&roster, id, Class::Data, &garbage), Err(MALFORMED));
}
