use std::collections::BTreeSet;

use super::*;
use crate::ecast::{
    Pace,
    block::DeliveryKind,
    toy::{Toy, block, process, stable},
};

/// Builds an order with members 1 and 2, in which everything is stable.
fn order() -> Order<Toy> {
    let mut order = Order::new(BTreeSet::new(), 4);
    for payload in [block(1, 1, &["*join"]), block(2, 1, &["*join"]), stable(&[(1, 2)])] {
        order.learn(payload);
    }
    order
}

/// A leader: its order and its dispatch.
struct Leader {
    order: Order<Toy>,
    dispatch: Dispatch,
}

impl Leader {
    fn new(order: Order<Toy>) -> Leader {
        let dispatch = Dispatch::new(&order, 100, |_| true);
        Leader { order, dispatch }
    }

    fn learn(&mut self, payload: Bytes) {
        let learned = self.order.learn(payload);
        if learned.reconfigured {
            self.dispatch.reconfigured(&self.order);
        }
        self.dispatch.route(&self.order, &|_| true);
        for (at, id, outcome) in learned.settled {
            self.dispatch.settle(at, id, outcome);
        }
        for process in learned.departed {
            self.dispatch.depart(process);
        }
    }

    /// Confirms for a member without a disk, or whose disk is up to date.
    fn confirm(&mut self, process: ProcessId, through: u64, executed: u64) {
        let (through, executed) = (Position(through), Position(executed));
        self.dispatch.confirm(process, Watermarks { through, executed, durable: through });
    }

    /// Confirms for a member whose disk lags.
    fn keeps(&mut self, process: ProcessId, through: u64, durable: u64) {
        let (through, durable) = (Position(through), Position(durable));
        self.dispatch.confirm(process, Watermarks { through, executed: Position(0), durable });
    }

    /// Formats everything sent: deliveries as position and previous position, outcomes as numbers.
    fn flush(&mut self) -> String {
        let mut sent = Vec::new();
        self.dispatch.flush(&self.order, &mut |to, message| match message {
            Message::Deliver(block) => {
                for item in block.into_items() {
                    let item = item.expect("our own bytes decode");
                    let injected = if item.kind == DeliveryKind::Injected { "injected " } else { "" };
                    sent.push(format!("{}<-{injected}{}({})", to.node, item.at, item.previous));
                }
            }
            Message::Notice(notice) => {
                let numbers = notice.stable.iter().flat_map(|&(first, n)| first..first + u64::from(n));
                sent.extend(numbers.map(|number| format!("{}:{number} stable", to.node)));
                sent.extend(
                    notice.others.iter().map(|(number, how)| format!("{}:{number} {how:?}", to.node)),
                );
                if notice.wedged {
                    sent.push(format!("{}:wedged", to.node));
                }
            }
            other => panic!("a dispatcher sends {other:?}"),
        });
        sent.join(", ")
    }
}

#[test]
fn deliveries_are_chained_and_sent_again_on_a_new_link() {
    let mut leader = Leader::new(order());
    leader.flush();
    leader.learn(block(1, 2, &["a", "b"]));
    assert_eq!(leader.flush(), "1<-3(0), 1<-4(3), 2<-3(0), 2<-4(3)");
    leader.confirm(process(1), 4, 3);
    leader.confirm(process(2), 3, 0);
    assert_eq!(leader.flush(), "1:2 stable");
    assert_eq!(leader.dispatch.resends, 0);
    leader.dispatch.link(process(2), false);
    assert_eq!(leader.dispatch.resends, 1, "something was sent on the link that broke");
    leader.learn(block(1, 4, &["c"]));
    assert_eq!(leader.flush(), "1<-5(4)", "nothing to whom no link stands");
    leader.dispatch.link(process(2), true);
    assert_eq!(leader.flush(), "2<-4(3), 2<-5(4)");
    leader.confirm(process(2), 5, 5);
    assert_eq!(leader.flush(), "1:3 stable", "number 4 is at position 5, which member 1 has not confirmed");
    assert_eq!(leader.dispatch.resends, 1, "and nothing on the new one before it");
}

#[test]
fn an_unreachable_member_delays_nobody_and_later_gets_missed_messages() {
    let mut leader = Leader::new(order());
    leader.flush();
    // A first message was sent to the member before it went away, and a second one comes while it is away.
    leader.learn(block(1, 2, &["a"]));
    leader.flush();
    leader.confirm(process(1), 3, 3);
    assert_eq!(leader.flush(), "");
    leader.learn(block(1, 3, &["*~\u{2}"]));
    assert_eq!(leader.flush(), "1<-4(3), 2<-4(3), 1:2 stable");
    leader.dispatch.link(process(2), false);
    leader.learn(block(1, 4, &["b"]));
    assert_eq!(leader.flush(), "1<-5(4)");
    leader.confirm(process(1), 5, 5);
    assert_eq!(leader.flush(), "1:3 stable, 1:4 stable");
    assert!(!leader.dispatch.has_stable(), "what is not durable at one that is away is not logged");
    // The member comes back with the first message only, which is not even on its disk.
    leader.dispatch.link(process(2), true);
    assert_eq!(leader.flush(), "2<-3(0), 2<-4(3), 2<-5(4)");
    leader.keeps(process(2), 5, 3);
    assert!(leader.dispatch.has_stable(), "the first is durable everywhere");
    leader.learn(block(1, 5, &["*=\u{2}", "c"]));
    assert_eq!(leader.flush(), "1<-6(5), 1<-7(6), 2<-6(5), 2<-7(6)");
    leader.confirm(process(1), 7, 7);
    assert_eq!(leader.flush(), "", "it is waited for again");
    leader.keeps(process(2), 7, 7);
    assert_eq!(leader.flush(), "1:5 stable, 1:6 stable");
    let logged = leader.dispatch.stable_entry().expect("all is durable");
    leader.order.learn(logged);
    assert_eq!(leader.order.base(), Position(7), "each once, and all of them");
}

#[test]
fn an_unreachable_member_that_dies_is_no_longer_awaited() {
    let mut leader = Leader::new(order());
    leader.flush();
    leader.learn(block(1, 2, &["*~\u{2}", "a"]));
    leader.confirm(process(1), 4, 4);
    leader.flush();
    assert!(!leader.dispatch.has_stable());
    leader.learn(block(1, 4, &["*-\u{2}"]));
    leader.confirm(process(1), 5, 5);
    leader.flush();
    let logged = leader.dispatch.stable_entry().expect("nobody else is waited for");
    leader.order.learn(logged);
    assert_eq!(leader.order.base(), Position(5));
}

#[test]
fn messages_that_are_not_durable_are_sent_again_to_a_returning_member() {
    let mut leader = Leader::new(order());
    leader.flush();
    leader.learn(block(1, 2, &["a", "b"]));
    leader.flush();
    leader.confirm(process(1), 4, 4);
    leader.keeps(process(2), 4, 3);
    assert_eq!(leader.flush(), "1:2 stable, 1:3 stable", "nobody waits for the disk");
    assert_eq!(leader.dispatch.stable_entry(), Some(stable(&[(3, 1)])), "the other may still be lost");
    leader.dispatch.answer(&leader.order, process(1), 2, 3);
    assert_eq!(leader.flush(), "1:3 stable", "who asks again is told at once");

    // The member lost everything that was not durable. It gets a new message first, and confirms less than it
    // had confirmed earlier.
    leader.dispatch.link(process(2), false);
    leader.learn(block(1, 4, &["c"]));
    leader.dispatch.link(process(2), true);
    assert_eq!(leader.flush(), "2<-5(4), 1<-5(4)");
    leader.keeps(process(2), 3, 3);
    assert_eq!(leader.flush(), "2<-4(3), 2<-5(4)");
    leader.keeps(process(2), 5, 3);
    assert_eq!(leader.flush(), "", "it was told before, and member 1 has not confirmed the other");
    leader.keeps(process(2), 5, 5);
    assert_eq!(leader.dispatch.stable_entry(), Some(stable(&[(4, 1)])));
    leader.confirm(process(1), 5, 5);
    assert_eq!(leader.flush(), "1:4 stable");
    assert_eq!(leader.dispatch.stable_entry(), Some(stable(&[(5, 1)])));
    leader.keeps(process(2), 5, 5);
    assert_eq!(leader.dispatch.stable_entry(), None);
}

#[test]
fn a_lost_message_is_logged_as_stable_once_it_is_confirmed_again_and_durable() {
    let mut leader = Leader::new(order());
    leader.flush();
    leader.learn(block(1, 2, &["a"]));
    leader.confirm(process(1), 3, 3);
    leader.keeps(process(2), 3, 0);
    leader.dispatch.link(process(2), false);
    leader.dispatch.link(process(2), true);
    leader.keeps(process(2), 0, 0);
    assert_eq!(leader.flush(), "2<-3(0), 1:2 stable");
    leader.keeps(process(2), 3, 3);
    assert_eq!(leader.dispatch.stable_entry(), Some(stable(&[(3, 1)])));
}

/// A router that comes back from its disk during a reform learns several messages at once, after members have
/// confirmed them. It waits for no second confirmation of them.
#[test]
fn a_message_confirmed_before_its_routing_is_not_awaited() {
    let mut leader = Leader::new(order());
    leader.flush();
    leader.order.learn(block(1, 2, &["a"]));
    leader.confirm(process(1), 3, 3);
    leader.keeps(process(2), 3, 0);
    leader.dispatch.route(&leader.order, &|_| true);
    assert_eq!(leader.flush(), "1:2 stable");
    assert_eq!(leader.dispatch.stable_entry(), None, "the other may still lose it");
    leader.confirm(process(2), 3, 3);
    assert_eq!(leader.dispatch.stable_entry(), Some(stable(&[(3, 1)])));
    leader.learn(block(1, 3, &["b"]));
    assert_eq!(leader.flush(), "1<-4(3), 2<-4(3)");
}

#[test]
fn an_injection_before_confirmed_messages_delays_nothing() {
    let mut leader = Leader::new(order());
    leader.flush();
    assert!(leader.dispatch.inject(&leader.order, process(1), 9, &Bytes::new()));
    leader.learn(block(1, 2, &["a"]));
    // An earlier leader had delivered the message.
    leader.confirm(process(1), 3, 3);
    leader.confirm(process(2), 3, 3);
    assert_eq!(leader.flush(), "1:2 stable", "the reads have no place any more");
    assert_eq!(leader.dispatch.stable_entry(), Some(stable(&[(3, 1)])));
    leader.learn(block(1, 3, &["b"]));
    assert_eq!(leader.flush(), "1<-4(3), 2<-4(3)");
}

#[test]
fn a_leaving_member_need_not_make_messages_durable() {
    let mut leader = Leader::new(order());
    leader.flush();
    leader.learn(block(1, 2, &["a", "b"]));
    leader.confirm(process(1), 4, 4);
    leader.keeps(process(2), 3, 0);
    assert_eq!(leader.dispatch.stable_entry(), None);
    leader.learn(block(1, 4, &["*-\u{2}"]));
    assert_eq!(leader.dispatch.stable_entry(), Some(stable(&[(3, 2)])));
}

#[test]
fn messages_that_an_earlier_leader_logged_as_stable_are_not_sent_again() {
    let mut order = order();
    order.learn(block(1, 2, &["a", "b"]));
    // A new leader learns its predecessor's entry after its own election.
    let mut leader = Leader::new(order);
    leader.learn(stable(&[(3, 2)]));
    assert_eq!(leader.order.base(), Position(4), "the history has forgotten them");
    assert_eq!(leader.flush(), "1:2 stable, 1:3 stable");
    leader.learn(block(2, 2, &["c"]));
    assert_eq!(leader.flush(), "1<-5(4), 2<-5(4)");
    leader.confirm(process(1), 5, 5);
    leader.confirm(process(2), 5, 5);
    assert_eq!(leader.flush(), "2:2 stable");
}

#[test]
fn departed_members_delay_nothing() {
    let mut leader = Leader::new(order());
    leader.flush();
    leader.learn(block(1, 2, &["a"]));
    leader.confirm(process(1), 3, 3);
    leader.flush();
    leader.learn(block(1, 3, &["*-\u{2}"]));
    assert_eq!(leader.flush(), "1<-4(3), 2:wedged, 1:2 stable");
    leader.confirm(process(2), 4, 4);
    leader.confirm(process(1), 4, 4);
    assert_eq!(leader.flush(), "1:3 stable");
    assert_eq!(leader.dispatch.routes.kept(), 0, "everything is done with");
}

#[test]
fn a_silent_destination_retains_only_its_own_messages() {
    let mut leader = Leader::new(order());
    leader.learn(block(1, 2, &["a"]));
    let log_stability = |leader: &mut Leader| {
        if let Some(entry) = leader.dispatch.stable_entry() {
            leader.learn(entry);
        }
    };
    for number in 3..500 {
        leader.learn(block(1, number, &["1:b"]));
        let last = leader.order.last();
        leader.confirm(process(1), last.0, last.0);
        log_stability(&mut leader);
        leader.flush();
    }
    assert!(leader.dispatch.routes.kept() <= 5 && leader.order.live_messages().kept() <= 5);
    assert_eq!(leader.order.base(), Position(2), "position 3 is not stable");
    // The next leader continues from that history, and counts credit for messages that the history has
    // forgotten.
    let mut leader = Leader::new(leader.order);
    let submitter = &leader.dispatch.submitters[leader.dispatch.by_sender[&process(1)] as usize];
    assert_eq!((submitter.learned, submitter.outstanding), (499, 1));
    assert_eq!(leader.flush(), "1<-3(0), 2<-3(0)");
    for member in [1, 2] {
        leader.confirm(process(member), 3, 3);
    }
    assert_eq!(leader.flush(), "1:2 stable");
    log_stability(&mut leader);
    assert_eq!((leader.order.base(), leader.order.live_messages().kept()), (leader.order.last(), 0));
    assert_eq!(leader.dispatch.routes.kept(), 0);
}

/// S7: messages that an unreachable destination has not executed use no credit, whether they were routed
/// before or after it became unreachable. Messages routed after its return count again.
#[test]
fn messages_to_an_unreachable_destination_use_no_credit() {
    let mut leader = Leader::new(order());
    let outstanding = |leader: &Leader| {
        leader.dispatch.submitters[leader.dispatch.by_sender[&process(1)] as usize].outstanding
    };
    leader.learn(block(1, 2, &["a", "b", "c"]));
    let executes = |leader: &mut Leader, member: u64| {
        let last = leader.order.last();
        leader.confirm(process(member), last.0, last.0);
    };
    executes(&mut leader, 1);
    assert_eq!(outstanding(&leader), 3);
    leader.learn(block(1, 5, &["*?\u{2}"]));
    executes(&mut leader, 1);
    assert_eq!(outstanding(&leader), 0, "the other is waited for");
    leader.learn(block(1, 6, &["d"]));
    assert_eq!(outstanding(&leader), 1);
    executes(&mut leader, 1);
    assert_eq!(outstanding(&leader), 0);
    let later = Leader::new(leader.order);
    assert_eq!(outstanding(&later), 5, "a new leader has not heard yet what is executed");
    let mut leader = later;
    executes(&mut leader, 1);
    assert_eq!(outstanding(&leader), 0, "but knows who is waited for");
    leader.learn(block(1, 7, &["*!\u{2}", "e"]));
    executes(&mut leader, 1);
    assert_eq!(outstanding(&leader), 2, "back, it counts for what comes");
    executes(&mut leader, 2);
    assert_eq!(outstanding(&leader), 0);
    leader.flush();
    if let Some(entry) = leader.dispatch.stable_entry() {
        leader.learn(entry);
    }
    assert_eq!(leader.dispatch.routes.kept(), 0, "everything is done with");
}

#[test]
fn a_sender_that_asks_before_the_log_knows_is_answered_later() {
    let mut leader = Leader::new(order());
    leader.learn(block(1, 2, &["a"]));
    leader.flush();
    for member in [1, 2] {
        leader.confirm(process(member), 3, 3);
    }
    assert_eq!(leader.flush(), "1:2 stable");
    // The notice was lost with its link, and the member submits again.
    leader.dispatch.answer(&leader.order, process(1), 2, 2);
    assert_eq!(leader.flush(), "");
    let entry = leader.dispatch.stable_entry().expect("it is to be logged");
    assert!(leader.dispatch.has_unlogged());
    leader.dispatch.logged(&entry);
    leader.learn(entry);
    assert!(!leader.dispatch.has_unlogged());
    assert_eq!(leader.flush(), "1:2 stable");
}

#[test]
fn injected_reads_stand_between_ordered_messages() {
    let mut leader = Leader::new(order());
    leader.flush();
    leader.learn(block(1, 2, &["a"]));
    assert!(leader.dispatch.inject(&leader.order, process(1), 9, &Bytes::new()));
    leader.learn(block(1, 3, &["b"]));
    assert_eq!(leader.flush(), "1<-3(0), 1<-injected 3(3), 1<-4(3), 2<-3(0), 2<-injected 3(3), 2<-4(3)");
    leader.dispatch.link(process(2), false);
    assert!(!leader.dispatch.inject(&leader.order, process(1), 9, &Bytes::new()), "one can not be reached");
    leader.dispatch.link(process(2), true);
    leader.confirm(process(1), 4, 4);
    assert_eq!(leader.flush(), "2<-3(0), 2<-4(3)", "injected ones are not sent again");
    leader.confirm(process(2), 4, 4);
    assert_eq!(leader.flush(), "1:2 stable, 1:3 stable");
    assert_eq!(leader.dispatch.routes.kept(), 0);
}

#[test]
fn the_places_of_the_departed_are_taken_once_no_route_names_them() {
    let mut leader = Leader::new(order());
    let places = |leader: &Leader| (leader.dispatch.destinations.len(), leader.dispatch.submitters.len());
    leader.flush();
    // Member 2's message waits for member 1 when member 2 leaves.
    leader.learn(block(2, 2, &["a"]));
    leader.learn(block(1, 2, &["*-\u{2}"]));
    leader.flush();
    leader.learn(block(3, 1, &["*join"]));
    assert_eq!(places(&leader), (3, 3), "the place of 2 is still named");
    leader.flush();
    for member in [1, 3] {
        leader.confirm(process(member), 5, 5);
    }
    leader.flush();
    leader.learn(block(4, 1, &["*join"]));
    assert_eq!(places(&leader), (3, 3), "4 sits where 2 was");
    assert_eq!(leader.flush(), "1<-6(5), 3<-6(5), 4<-6(0)", "and begins a chain of its own");
    for member in [1, 2, 3] {
        leader.confirm(process(member), 6, 6);
    }
    assert_eq!(leader.flush(), "", "2 can not confirm for it");
    leader.confirm(process(4), 6, 6);
    assert_eq!(leader.flush(), "4:1 stable");
    for node in 5..105 {
        leader.learn(block(node, 1, &["*join"]));
        leader.learn(block(node, 2, &["*leave"]));
        let last = leader.order.last();
        for member in [1, 3, 4] {
            leader.confirm(process(member), last.0, last.0);
        }
        assert!(leader.flush().contains(&format!("{node}:wedged")));
        assert_eq!(leader.dispatch.routes.kept(), 0, "everything is done with");
    }
    assert_eq!(places(&leader), (4, 4), "a hundred that came and went took one place");
}

/// Messages that nobody has to execute use no credit.
#[test]
fn messages_that_nobody_executes_use_no_credit() {
    let mut leader = Leader::new(order());
    let outstanding = |leader: &Leader| {
        leader.dispatch.submitters[leader.dispatch.by_sender[&process(1)] as usize].outstanding
    };
    leader.learn(block(1, 2, &["*?\u{2}"]));
    leader.confirm(process(1), 3, 3);
    assert_eq!(outstanding(&leader), 0);
    leader.learn(block(1, 3, &["2:a"]));
    assert_eq!(outstanding(&leader), 0, "only one that is waited for would");
    leader.learn(block(1, 4, &["once!", "once!"]));
    assert_eq!(outstanding(&leader), 1, "the second was refused, and goes to nobody");
}

#[test]
fn unconfirmed_bytes_to_one_destination_are_bounded() {
    let mut leader = Leader::new(order());
    leader.flush();
    let large = "x".repeat(5 << 20);
    leader.learn(block(1, 2, &[&large, &large, &large, &large]));
    // The second message begins within the bound of unconfirmed bytes, the third does not.
    assert_eq!(leader.flush(), "1<-3(0), 1<-4(3), 2<-3(0), 2<-4(3)");
    leader.confirm(process(1), 3, 3);
    assert_eq!(leader.flush(), "1<-5(4)");
    assert_eq!(leader.flush(), "");
    leader.confirm(process(1), 5, 5);
    assert_eq!(leader.flush(), "1<-6(5)");
}

/// A new leader receives a confirmation of a message that its predecessor sent. A message injected at the new
/// leader is delivered after that message, not before it.
#[test]
fn an_injection_stays_behind_messages_sent_by_an_earlier_leader() {
    let mut order = order();
    order.learn(block(1, 2, &["a"]));
    let mut leader = Leader::new(order);
    assert!(leader.dispatch.inject(&leader.order, process(1), 9, &Bytes::new()));
    leader.confirm(process(1), 3, 3);
    assert_eq!(leader.flush(), "1<-injected 3(3), 2<-3(0), 2<-injected 3(3)");
}

#[test]
fn a_destination_that_catches_up_counts_for_credit_when_its_queue_is_long() {
    let mut destination = Destination::new(process(1), true, Pace::Receives);
    let route = |destination: &mut Destination, at, bytes| destination.route(Position(at), bytes).execution;
    assert!(!route(&mut destination, 1, u32::MAX), "nothing waited there");
    assert!(route(&mut destination, 2, 1));
    destination.execute(Position(2));
    assert!(!route(&mut destination, 3, 1));
    // All bytes count as behind, even those of messages that use no credit.
    assert_eq!(destination.change_pace(Pace::Waits).unexecuted, []);
    assert!(!route(&mut destination, 4, 1));
    destination.change_pace(Pace::Executes);
    assert!(route(&mut destination, 5, 1));
    assert_eq!(destination.execute(Position(5))[..], [Position(5)]);
}

/// A new leader may receive a member's progress report before it learns the messages. It does not wait for
/// messages that the report covers, only for later ones.
#[test]
fn messages_covered_by_an_early_progress_report_are_not_awaited() {
    let mut destination = Destination::new(process(1), true, Pace::Executes);
    assert!(destination.confirm(Position(2), Position(1)).is_empty());
    assert!(destination.keep(Position(1)).is_empty());
    assert!(destination.execute(Position(1)).is_empty());
    let awaited = [1, 2, 3].map(|at| {
        let AwaitedSteps { confirmed, confirmation, execution, durability } =
            destination.route(Position(at), 1);
        (confirmed, confirmation, execution, durability)
    });
    assert_eq!(awaited, [(true, false, false, false), (true, false, true, true), (false, true, true, true)]);
    assert_eq!(destination.lag(), Some(1), "the third is to be sent");
}
