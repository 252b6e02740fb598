//! Tests of a process's touch with the order: a process that is cut off notices this in time.

use super::*;
use crate::{
    id::Incarnation,
    seam::{Destination, Ticket},
};

#[derive(Default)]
struct Out(Vec<bool>);

impl Sink<Process> for Out {
    fn send(&mut self, _: Destination, _: Message, _: Option<Ticket>) {}

    fn persist(&mut self, _: paxos::Record) -> Ticket {
        unreachable!("a process of groups writes no records")
    }

    fn emit(&mut self, event: Event) {
        self.0.extend(if let Event::InTouch(in_touch) = event { Some(in_touch) } else { None });
    }

    fn reach(&mut self, _: ProcessId, _: &str) {}

    fn forget(&mut self, _: ProcessId) {}

    fn adopt(&mut self, _: Arc<dyn Policy>) {}
}

struct Alone {
    process: Process,
    now: Time,
}

impl Alone {
    /// Advances time by `millis` milliseconds. Returns the reports of touch.
    fn pass(&mut self, millis: u64) -> Vec<bool> {
        self.now = self.now + Duration::from_millis(millis);
        let (me, mut random, mut out) = (self.process.me.id, || 0, Out::default());
        let mut cx = Context { now: self.now, me, random: &mut random };
        self.process.handle(&mut cx, Input::Deadline, &mut out);
        out.0
    }

    /// Advances time by `millis` milliseconds in steps of 50 ms. Returns the reports of touch.
    fn wait(&mut self, millis: u64) -> Vec<bool> {
        (0..millis / 50).flat_map(|_| self.pass(50)).collect()
    }
}

#[test]
fn a_member_that_hears_no_router_is_out_of_touch_despite_its_links() {
    let me = Peer { id: ProcessId { node: 9, incarnation: Incarnation(1) }, address: String::new() };
    let process = Process::new(me, Settings::default(), MemberSettings::default());
    let mut alone = Alone { process, now: Time::ZERO + Duration::from_secs(10) };
    alone.pass(0);
    assert!(alone.wait(5_000).is_empty(), "where nobody watches the routers only their word counts");
    alone.process.routers_heard(alone.now);
    assert!(alone.wait(1_450).is_empty());
    assert_eq!(alone.wait(100), [false]);
    assert!(alone.wait(1_000).is_empty(), "it was told");
    alone.process.routers_heard(alone.now);
    assert_eq!(alone.wait(50), [true]);
    // A process that slept does not report a loss of touch, because it has not yet read the messages that
    // came meanwhile.
    assert!(alone.pass(5_000).is_empty() && alone.wait(1_400).is_empty());
    assert_eq!(alone.wait(100), [false]);
}
