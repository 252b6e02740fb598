//! Groups with keys.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use quorate::{
    Error, Local, Node, Wait,
    group::{Absence, Key, Member, Want},
};
use quorate_testing::{SetOnDrop, wait_for};

use crate::words::{Words, node, said, word};

/// Joins the group with this key, or without a key.
fn keyed(node: &Node, key: Option<&Key>) -> Result<Member<Words>, Error> {
    let group = node.group("words");
    let group = match key {
        Some(key) => group.key(key.clone()),
        None => group,
    };
    group.join(Words::default()).wait()
}

#[test]
fn a_member_with_another_key_or_none_is_refused() {
    let cluster = Local::builder().routers(1).start().wait().unwrap();
    let nodes: Vec<Node> = (0..4).map(|_| node(cluster.addresses())).collect();
    let (key, other) = (Key::generate(), Key::generate());
    let one = nodes[0].group("words").key(key.clone()).join(Words::fragile()).wait().unwrap();
    let two = keyed(&nodes[1], Some(&key)).unwrap();
    one.send(word("soft")).wait().unwrap();
    one.ordered_send(word("ordered")).wait().unwrap();
    one.safe_send(word("safe")).wait().unwrap();
    wait_for("all is opened", || said(&two) == ["soft", "ordered", "safe"]);
    let answer = two.ordered_query(word("s"), Want::All).wait().unwrap();
    assert!(answer.complete && answer.replies.iter().all(|replied| replied.reply.1 == 2), "{answer:?}");
    let lock = two.lock("lock").wait().unwrap();
    drop(lock);
    for (word, absent) in [("decline", Absence::Declined), ("panic", Absence::Failed(String::new()))] {
        let answer = two.query(String::from(word), Want::All).wait().unwrap();
        let [missing] = &answer.missing[..] else { panic!("{answer:?}") };
        let alike = std::mem::discriminant(&missing.why) == std::mem::discriminant(&absent);
        assert!(alike && missing.member == one.id(), "{answer:?}");
        assert!(
            !matches!(&missing.why, Absence::Failed(why) if !why.contains("asked to panic")),
            "{answer:?}"
        );
    }

    let refused = keyed(&nodes[2], Some(&other)).unwrap_err();
    let both = [key.id(), other.id()].map(|id| id.to_string());
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused:?}");
    assert!(both.iter().all(|id| refused.to_string().contains(id)), "{refused}");
    let refused = keyed(&nodes[3], None).unwrap_err();
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused:?}");
    one.safe_send(word("they go on")).wait().unwrap();
    assert_eq!((one.key_refusals(), two.key_refusals()), ((0, 0), (0, 0)));

    // A group without a key refuses a member with a key, too.
    let open = node(cluster.addresses()).group("open").join(Words::default()).wait().unwrap();
    let refused = nodes[2].group("open").key(key).join(Words::default()).wait().unwrap_err();
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused:?}");
    assert!(matches!(open.rotate(&other).wait(), Err(Error::Invalid { .. })));
}

#[test]
fn a_key_is_rotated_under_load_and_nothing_is_lost() {
    let cluster = Local::builder().routers(1).start().wait().unwrap();
    let nodes: Vec<Node> = (0..4).map(|_| node(cluster.addresses())).collect();
    let keys = [Key::generate(), Key::generate(), Key::generate()];
    let members: Vec<Member<Words>> =
        nodes[..3].iter().map(|node| keyed(node, Some(&keys[0])).unwrap()).collect();
    let stop = AtomicBool::new(false);
    let sent: usize = thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let send = |member: &Member<Words>| {
            let (mut sent, mut last) = (0, None);
            while !stop.load(Ordering::Relaxed) {
                // The strengths alternate: soft, ordered, safe. The sender waits for few of its sends.
                let text = format!("{} {sent}", member.id());
                let sending = match sent % 3 {
                    0 => member.send(text),
                    1 => member.ordered_send(text),
                    _ => member.safe_send(text),
                };
                sent += 1;
                if let Some(former) = last.replace(sending).filter(|_| sent % 64 == 0) {
                    former.wait().unwrap();
                }
            }
            last.map(Wait::wait).transpose().unwrap();
            sent
        };
        let senders: Vec<_> = members.iter().map(|member| scope.spawn(move || send(member))).collect();
        // The asker gets every reply, whichever key seals it.
        let ask = |member: &Member<Words>| {
            while !stop.load(Ordering::Relaxed) {
                let asked = member.query(word("nobody"), Want::All).deadline(Duration::from_secs(20));
                let answer = asked.wait().unwrap();
                assert!(answer.complete, "{answer:?}");
            }
        };
        members.iter().for_each(|member| drop(scope.spawn(move || ask(member))));
        for key in &keys[1..] {
            thread::sleep(Duration::from_millis(150));
            members[1].rotate(key).wait().unwrap();
        }
        thread::sleep(Duration::from_millis(150));
        drop(stopping);
        senders.into_iter().map(|sender| sender.join().unwrap()).sum()
    });
    wait_for("all have all", || members.iter().all(|member| said(member).len() == sent));
    let metrics = nodes[0].group_metrics().render();
    let shown = |line: &str| metrics.lines().any(|shown| shown == line);
    assert!(shown("quorate_groups 1") && shown("quorate_group_wedged 0"), "{metrics}");
    assert!(metrics.lines().any(|line| line.starts_with("quorate_group_views ")), "{metrics}");
    for member in &members {
        assert_eq!((member.key(), member.key_refusals()), (Some(keys[2].id()), (0, 0)));
        assert_eq!(member.ended(), None);
    }
    // A joining member needs the newest key.
    let refused = keyed(&nodes[3], Some(&keys[1])).unwrap_err();
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused:?}");
    let late = node(cluster.addresses());
    let late = keyed(&late, Some(&keys[2])).unwrap();
    assert_eq!(said(&late).len(), sent);
    members[0].safe_send(word("behind")).wait().unwrap();
    wait_for("it hears", || said(&late).len() == sent + 1);
}

#[test]
fn a_process_has_one_member_of_a_group_with_a_key() {
    let cluster = Local::builder().routers(1).start().wait().unwrap();
    let (node, key) = (node(cluster.addresses()), Key::generate());
    let first = keyed(&node, Some(&key)).unwrap();
    for key in [Some(&key), None] {
        let second = keyed(&node, key);
        assert!(matches!(&second, Err(Error::Invalid { why }) if why.contains("key")), "{second:?}");
    }
    first.safe_send(word("on")).wait().unwrap();
}
