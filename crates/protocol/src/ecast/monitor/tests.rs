//! Members that the routers judge: which of them are expelled, and which stay.

use bytes::Bytes;

use super::*;
use crate::ecast::{
    Position,
    message::Notice,
    order::Order,
    rig::Routers,
    toy::{JUDGED, Toy, block, live, process, stable},
};

const MEMBER: u64 = JUDGED + 1;

/// Builds a domain of three routers with two members: 7, which processes other than the routers judge, and
/// [`MEMBER`]. All routers have links to both members.
fn domain() -> Routers {
    let mut domain = Routers::founded();
    for router in domain.routers.keys().copied().collect::<Vec<_>>() {
        for member in [7, MEMBER] {
            domain.link(router, process(member));
        }
    }
    let leader = domain.leader();
    for member in [7, MEMBER] {
        domain.say(process(member), leader, Message::Route(block(member, 1, &["*join"])));
    }
    run(&mut domain, &[7, MEMBER], 1_000);
    domain
}

/// Runs for this many milliseconds; the processes in `alive` answer probes and confirm deliveries. Returns
/// all messages sent.
fn run(domain: &mut Routers, alive: &[u64], millis: u64) -> Vec<(ProcessId, Message)> {
    let mut all = Vec::new();
    for _ in 0..millis / 10 {
        domain.run(Duration::from_millis(10));
        let said: Vec<_> = domain.said.drain(..).collect();
        for (router, to, message) in said {
            all.push((to, message.clone()));
            let lives = alive.contains(&to.node) && domain.routers.contains_key(&router);
            match message {
                Message::Probe { asker, second_opinion } if lives => {
                    domain.say(to, router, Message::Alive { asker, second_opinion });
                }
                Message::Deliver(_) if lives => {
                    let all = domain.routers[&router].position();
                    domain.say(to, router, Message::Confirm { through: all, executed: all, durable: all });
                }
                _ => {}
            }
        }
    }
    all
}

fn is_member(domain: &Routers, node: u64) -> bool {
    domain.routers[&domain.leader()].config().contains(&process(node))
}

fn die(domain: &mut Routers, node: u64) {
    for router in domain.routers.keys().copied().collect::<Vec<_>>() {
        domain.unlink(router, process(node));
    }
}

#[test]
fn a_dead_member_is_expelled_and_nothing_is_kept_for_it() {
    let mut domain = domain();
    let leader = domain.leader();
    die(&mut domain, MEMBER);
    domain.say(process(7), leader, Message::Route(block(7, 2, &["a", "b"])));
    run(&mut domain, &[7], 100);
    let router = &domain.routers[&leader];
    assert!(router.base() < router.position(), "what it has not confirmed is kept");
    run(&mut domain, &[7], 400);
    assert!(!is_member(&domain, MEMBER));
    let router = &domain.routers[&leader];
    assert_eq!((router.base(), router.status().expelled), (router.position(), 1));
}

#[test]
fn a_member_judged_by_other_processes_is_not_expelled() {
    let mut domain = domain();
    die(&mut domain, 7);
    run(&mut domain, &[MEMBER], 5_000);
    assert!(is_member(&domain, 7) && is_member(&domain, MEMBER));
}

#[test]
fn an_idle_member_is_not_expelled() {
    let mut domain = domain();
    run(&mut domain, &[7, MEMBER], 10_000);
    assert!(is_member(&domain, MEMBER));
    assert_eq!(domain.routers[&domain.leader()].status().expelled, 0);
}

#[test]
fn a_silent_member_is_expelled_only_after_its_time() {
    let mut domain = domain();
    run(&mut domain, &[7], 1_200);
    assert!(is_member(&domain, MEMBER));
    run(&mut domain, &[7, MEMBER], 1_000);
    assert!(is_member(&domain, MEMBER), "it came back in time");
    run(&mut domain, &[7], 2_000);
    assert!(!is_member(&domain, MEMBER));
}

#[test]
fn a_member_that_any_router_hears_is_not_expelled() {
    let mut domain = domain();
    let (leader, follower) = (domain.leader(), domain.followers()[0]);
    domain.unlink(leader, process(MEMBER));
    domain.unlink(domain.followers()[1], process(MEMBER));
    run(&mut domain, &[7, MEMBER], 10_000);
    assert!(is_member(&domain, MEMBER));
    domain.unlink(follower, process(MEMBER));
    run(&mut domain, &[7], 1_000);
    assert!(!is_member(&domain, MEMBER));
}

#[test]
fn a_lead_router_that_hears_no_other_expels_nobody() {
    let mut domain = domain();
    let leader = domain.leader();
    domain.silent = Some(leader);
    domain.unlink(leader, process(MEMBER));
    // The other two routers elect a leader that hears the member.
    run(&mut domain, &[7, MEMBER], 3_000);
    domain.silent = None;
    run(&mut domain, &[7, MEMBER], 3_000);
    assert!(domain.routers.values().all(|router| router.config().contains(&process(MEMBER))));
}

#[test]
fn a_lone_router_judges_alone() {
    let mut domain = Routers::fresh(1);
    run(&mut domain, &[], 500);
    domain.link(process(1), process(MEMBER));
    domain.say(process(MEMBER), process(1), Message::Route(block(MEMBER, 1, &["*join"])));
    run(&mut domain, &[MEMBER], 1_000);
    assert!(is_member(&domain, MEMBER));
    die(&mut domain, MEMBER);
    run(&mut domain, &[], 500);
    assert!(!is_member(&domain, MEMBER));
}

#[test]
fn an_expelled_living_member_receives_its_removal_and_no_outcomes() {
    let mut domain = domain();
    let sent = run(&mut domain, &[7], 3_000);
    let notices: Vec<Notice> = sent
        .into_iter()
        .filter(|(to, _)| *to == process(MEMBER))
        .filter_map(|(_, message)| if let Message::Notice(notice) = message { Some(notice) } else { None })
        .collect();
    assert!(notices.iter().any(|notice| notice.wedged));
    assert!(notices.iter().all(|notice| notice.stable.is_empty() && notice.others.is_empty()), "{notices:?}");
}

#[test]
fn an_expulsion_is_void_if_the_member_was_heard_later() {
    let mut order: Order<Toy> = Order::new([process(MEMBER)].into(), 9);
    assert!(order.learn(block(MEMBER, 1, &["a"])).appended.is_some());
    let expel = |order: &mut Order<Toy>, learned| {
        let learned = order.learn(LogEntry::encode_expelled(process(MEMBER), learned));
        (learned.appended, learned.departed)
    };
    assert_eq!(expel(&mut order, 0), (None, vec![]));
    assert_eq!(expel(&mut order, u64::MAX), (None, vec![]));
    let two = Position(2);
    assert_eq!(expel(&mut order, 1), (Some((two, two)), vec![process(MEMBER)]));
    assert_eq!(expel(&mut order, 1), (None, vec![]), "it is out");
    assert_eq!(expel(&mut order, 2), (None, vec![]), "it is out");
    assert_eq!(live(&order), format!("1:{MEMBER}.1 a, 2:{MEMBER}.2 leave"));
    order.learn(stable(&[(1, 2)]));
    assert_eq!(order.base(), two);
    let cut = LogEntry::encode_expelled(process(MEMBER), 1);
    assert!((0..cut.len()).all(|end| LogEntry::decode(Bytes::copy_from_slice(&cut[..end])).is_err()));
}
