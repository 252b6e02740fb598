//! Process groups on real threads and sockets: members in one program, over loopback.

mod keys;
mod locks;
mod query;
mod seats;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use quorate::{
    Error, Local, Node, Wait,
    group::{Answer, Corrupt, Member, Origin, Phi, Place, Replica, Share, Snapshot},
};
use quorate_testing::wait_for;

use crate::words::{Rank, TestGroup, Words, node, said, word};

/// A type with another name and other updates than [`Words`].
struct Others;

impl Replica for Others {
    const NAME: &'static str = "words/2";
    type Update = ();
    type Query = ();
    type Reply = ();

    fn apply(&mut self, (): (), _: &Origin) {}
    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Declined
    }
    fn checkpoint(&self) -> Snapshot {
        Snapshot::of(&())
    }
    fn restore(_: &Snapshot) -> Result<Self, Corrupt> {
        Ok(Others)
    }
}

#[test]
fn members_of_three_processes_hear_the_same() {
    let mut test_group = TestGroup::start(3, 1);
    let first = test_group.members[0].clone();
    assert!(first.is_fresh().unwrap());
    assert!(matches!(first.ordered_send(word("one")).wait(), Ok(Place::Ordered(..))));
    assert_eq!(said(&first), ["one"], "what was sent is read");
    test_group.join(Words::of(&["of its own"]));
    test_group.join(Words::default());
    assert_eq!(said(&test_group.members[1]), ["one"], "the group's state, and not what it brought");
    assert!(!test_group.members[1].is_fresh().unwrap());
    let [a, b, c] = [0, 1, 2].map(|place| test_group.members[place].clone());
    assert_eq!(a.send(word("two")).wait(), Ok(Place::Soft(1)));
    assert!(matches!(a.safe_send(word("three")).wait(), Ok(Place::Ordered(..))));
    a.send(word("four")).wait().unwrap();
    a.flush().wait().unwrap();
    test_group.settle(4);
    assert_eq!(said(&c), ["one", "two", "three", "four"]);
    // All members send at once, and all receive one order.
    let sending: Vec<_> = (0..30).map(|n| [&a, &b, &c][n % 3].ordered_send(format!("o{n}"))).collect();
    let mut places: Vec<Place> = sending.into_iter().map(|sent| sent.wait().unwrap()).collect();
    test_group.settle(34);
    let count = places.len();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), count, "no two have one place");
    // All members have the same view, in which the oldest member comes first.
    let view = a.view().unwrap();
    assert_eq!(view.members, test_group.members.iter().map(Member::id).collect::<Vec<_>>());
    assert_eq!((view.rank(), c.view().unwrap().rank()), (Some(0), Some(2)));
    let left = b.id();
    drop(b);
    test_group.members.remove(1).leave().wait().unwrap();
    wait_for("it is seen to have left", || a.view().unwrap().left == [left]);
    a.safe_send(word("last")).wait().unwrap();
    test_group.settle(35);
}

#[test]
fn soft_updates_travel_as_datagrams() {
    let test_group = TestGroup::start(1, 3);
    for round in 0..50 {
        let sends: Vec<_> = test_group
            .members
            .iter()
            .flat_map(|it| (0..10).map(move |n| it.send(format!("{round} {n}"))))
            .collect();
        sends.into_iter().for_each(|sent| assert!(sent.wait().is_ok()));
    }
    test_group.members.iter().for_each(|member| member.flush().wait().unwrap());
    test_group.settle_count(3 * 50 * 10);
    for node in &test_group.nodes {
        let shown = node.group_metrics().render();
        let figure = |name: &str| -> u64 {
            let line = shown.lines().find_map(|line| line.strip_prefix(name));
            line.expect("it is shown").trim().parse().unwrap()
        };
        let (sent, received) =
            (figure("quorate_group_datagrams_sent "), figure("quorate_group_datagrams_received "));
        assert!(sent > 20 && received > 20, "{sent} sent, {received} received");
        assert!(figure("quorate_group_cast ") >= sent, "of several casts one datagram is made");
    }
}

#[test]
fn a_busy_group_gets_an_address_and_is_multicast_to() {
    let test_group = TestGroup::start(1, 3);
    let figure = |node: &Node, name: &str| -> u64 {
        let shown = node.group_metrics().render();
        let line = shown.lines().find_map(|line| line.strip_prefix(name));
        line.expect("it is shown").trim().parse().unwrap()
    };
    let mut words = 0;
    wait_for("all multicast", || {
        for member in &test_group.members {
            for _ in 0..10 {
                member.send(format!("{words}")).wait().unwrap();
                words += 1;
            }
        }
        test_group.nodes.iter().all(|node| figure(node, "quorate_group_multicast ") > 20)
    });
    test_group.members.iter().for_each(|member| member.flush().wait().unwrap());
    test_group.settle_count(words);
    for node in &test_group.nodes {
        assert_eq!(figure(node, "quorate_group_addresses "), 1);
        assert_eq!(figure(node, "quorate_group_cast_fallbacks "), 0, "all hear what is multicast");
        assert_eq!(figure(node, "quorate_group_refused "), 0);
    }
}

#[test]
fn a_node_of_tables_joins_groups_of_its_domain() {
    let cluster = Local::start().wait().unwrap();
    let node = node(cluster.addresses());
    let one = node.group("words").join(Words::default()).wait().unwrap();
    let other = cluster.nodes()[0].group("words").join(Words::default()).wait().unwrap();
    one.ordered_send(word("groups")).wait().unwrap();
    let db = node.db().wait().unwrap();
    db.execute("create table t (id int primary key)").wait().unwrap();
    db.execute("insert into t values (1), (2)").wait().unwrap();
    other.safe_send(word("and tables")).wait().unwrap();
    assert_eq!(db.query("select * from t").wait().unwrap().count(), 2);
    wait_for("both have it", || [&one, &other].iter().all(|it| said(it) == ["groups", "and tables"]));
    // A process may be in several groups.
    let second = node.group("second").join(Words::default()).wait().unwrap();
    second.send(word("alone")).wait().unwrap();
    assert_eq!((said(&second).len(), said(&one).len()), (1, 2));
}

/// Threads that send until `stop`. Each records its answered sends.
struct Senders {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<Sent>>,
}

/// The words that one member sent.
#[derive(Default)]
struct Sent {
    answered: Vec<String>,
    /// Words that were sent as safe and answered, or that a flush covered.
    durable: Vec<String>,
}

impl Senders {
    fn start(members: &[Member<Words>]) -> Senders {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |(name, member): (usize, &Member<Words>)| {
            let (stop, member) = (stop.clone(), member.clone());
            thread::spawn(move || send(name, &member, &stop))
        };
        let threads = members.iter().enumerate().map(start).collect();
        Senders { stop, threads }
    }

    fn stop(self) -> Vec<Sent> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

fn send(name: usize, member: &Member<Words>, stop: &AtomicBool) -> Sent {
    let mut sent = Sent::default();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let word = format!("{name} {number:06}");
        let answer = match number % 7 {
            0 => member.safe_send(word.clone()).wait(),
            1 | 2 => member.ordered_send(word.clone()).wait(),
            _ => member.send(word.clone()).wait(),
        };
        match answer {
            Ok(_) => sent.answered.push(word),
            // The process was killed, or no router led at that moment.
            Err(Error::Wedged { .. } | Error::MaybeApplied { .. } | Error::NotMember { .. }) => break,
            Err(Error::OutOfTouch | Error::NotSent { .. }) => {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
            Err(other) => panic!("{other}"),
        }
        let flushed = number % 7 == 6 && member.flush().wait().is_ok();
        if flushed || number % 7 == 0 {
            sent.durable.clone_from(&sent.answered);
        }
    }
    sent
}

/// Checks that survivors agree, and that each sender's promise holds.
fn judge(test_group: &TestGroup, sent: &[Sent]) {
    let logs: Vec<_> = test_group
        .members
        .iter()
        .map(|member| member.read(|words| (words.said.clone(), words.views.clone())).unwrap())
        .collect();
    // All survivors have the same messages in the same view.
    let mut views: BTreeMap<u64, Vec<Vec<String>>> = BTreeMap::new();
    for (_, seen) in &logs {
        for (view, words) in seen {
            let mut words = words.clone();
            words.sort_unstable();
            views.entry(view.number).or_default().push(words);
        }
    }
    for (number, seen) in views {
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "view {number} has different messages");
    }
    for (said, _) in &logs {
        for (name, sent) in sent.iter().enumerate() {
            let prefix = format!("{name} ");
            let heard: Vec<&String> = said.iter().filter(|word| word.starts_with(&prefix)).collect();
            assert!(heard.is_sorted_by(|a, b| a < b), "{name}: each once, in its order");
            let lost: Vec<&String> =
                sent.durable.iter().filter(|word| heard.binary_search(word).is_err()).collect();
            assert!(lost.is_empty(), "{name}: {lost:?} of {} durable ones are lost", sent.durable.len());
        }
    }
    // All survivors have the ordered messages in the same order.
    let ordered = |said: &[String]| -> Vec<String> {
        let is = |word: &&String| word[2..].parse::<u64>().unwrap() % 7 < 3;
        said.iter().filter(is).cloned().collect()
    };
    assert!(logs.windows(2).all(|pair| ordered(&pair[0].0) == ordered(&pair[1].0)), "one order");
}

#[test]
fn survivors_of_killed_members_agree_and_have_every_flushed_update() {
    let mut test_group = TestGroup::start(3, 4);
    let senders = Senders::start(&test_group.members);
    thread::sleep(Duration::from_millis(300));
    let mut killed = vec![test_group.kill(1)];
    let first = test_group.members[0].clone();
    wait_for("a view without it", || !first.view().unwrap().members.contains(&killed[0]));
    // A new member joins while all others send.
    test_group.join(Words::default());
    thread::sleep(Duration::from_millis(200));
    killed.push(test_group.kill(2));
    wait_for("a view without it", || !first.view().unwrap().members.contains(&killed[1]));
    thread::sleep(Duration::from_millis(100));
    let sent = senders.stop();
    assert!(sent.iter().all(|sent| sent.durable.len() > 10), "all got somewhere");
    // After the flush, every member has received all messages that any member had delivered, including the
    // last words of the killed sender.
    test_group.members.iter().for_each(|member| member.flush().wait().unwrap());
    let count = said(&first).len();
    test_group.settle_count(count);
    judge(&test_group, &sent);
    let views =
        first.read(|words| words.views.iter().map(|(view, _)| view.waited).collect::<Vec<_>>()).unwrap();
    assert_eq!(views[0], Duration::ZERO, "nothing waited for the first");
    assert!(views[1..].iter().all(|waited| !waited.is_zero()), "soft sends waited for each: {views:?}");
    let shown = test_group.nodes[0].group_metrics().render();
    let longest = shown.lines().find_map(|line| line.strip_prefix("quorate_group_view_wait_us_max "));
    let longest: u128 = longest.expect("it is shown").parse().unwrap();
    assert_eq!(longest, views.iter().max().unwrap().as_micros());
}

#[test]
fn groups_go_on_when_the_lead_router_is_killed() {
    let test_group = TestGroup::start(3, 3);
    let senders = Senders::start(&test_group.members);
    thread::sleep(Duration::from_millis(200));
    // The founder leads until it is killed.
    test_group.cluster.nodes()[0].clone().abandon().wait();
    let before = said(&test_group.members[0]).len();
    let ordered = test_group.members[0].ordered_send(word("9 000001"));
    assert!(matches!(ordered.wait(), Ok(Place::Ordered(..))), "another one leads");
    wait_for("more is said", || said(&test_group.members[0]).len() > before + 50);
    let sent = senders.stop();
    // After the flush, every member has received all messages that any member had delivered, including the
    // last words of the killed sender.
    test_group.members.iter().for_each(|member| member.flush().wait().unwrap());
    let count = said(&test_group.members[1]).len();
    test_group.settle_count(count);
    judge(&test_group, &sent);
    assert_eq!(test_group.members[0].view().unwrap().members.len(), 3, "and nobody was dropped");
}

#[test]
fn a_member_that_panics_in_apply_is_out_and_the_others_go_on() {
    let mut test_group = TestGroup::start(1, 2);
    test_group.join(Words::default());
    let fragile = test_group.nodes[2].group("fragile").join(Words::fragile()).wait().unwrap();
    let other = test_group.nodes[0].group("fragile").join(Words::default()).wait().unwrap();
    other.ordered_send(word("panic")).wait().unwrap();
    wait_for("it ends", || fragile.ended().is_some());
    let why = fragile.send(word("more")).wait().unwrap_err();
    assert!(
        matches!(&why, Error::NotMember { why } if why.contains("told to panic behind 0 words")),
        "{why:?}"
    );
    wait_for("a view without it", || other.view().unwrap().members == [other.id()]);
    other.safe_send(word("alone")).wait().unwrap();
    assert_eq!(said(&other), ["panic", "alone"]);
    // The process's other groups go on. The process may join the lost group again, and gets the group's
    // state.
    test_group.members[2].safe_send(word("still here")).wait().unwrap();
    let again = test_group.nodes[2].group("fragile").join(Words::default()).wait().unwrap();
    assert_eq!(said(&again), ["panic", "alone"]);
}

#[test]
fn a_sleeping_member_delays_nobody() {
    let mut test_group = TestGroup::start(1, 0);
    test_group.join(Words::fragile());
    test_group.join(Words::default());
    let (slow, fast) = (test_group.members[0].clone(), test_group.members[1].clone());
    let began = Instant::now();
    fast.send(word("sleep 2000")).wait().unwrap();
    for _ in 0..20 {
        fast.safe_send(word("safe")).wait().unwrap();
    }
    fast.send(word("soft")).wait().unwrap();
    fast.flush().wait().unwrap();
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    // A reader of the slow member waits until the member has applied the earlier deliveries.
    assert_eq!(said(&slow).len(), 22);
    assert!(began.elapsed() >= Duration::from_secs(2));
}

#[test]
fn replicas_of_another_name_are_refused_with_both() {
    let test_group = TestGroup::start(1, 1);
    let other = node(test_group.cluster.addresses());
    let refused = other.group("words").join(Others).wait().unwrap_err();
    let Error::Mismatch { why, .. } = &refused else { panic!("{refused:?}") };
    assert!(why.contains("`words/1`") && why.contains("`words/2`"), "{refused}");
    test_group.members[0].safe_send(word("alone")).wait().unwrap();
    wait_for("it is out", || test_group.members[0].view().unwrap().members.len() == 1);
}

#[test]
fn a_name_that_is_too_long_is_refused_at_once() {
    let test_group = TestGroup::start(1, 0);
    let node = node(test_group.cluster.addresses());
    let began = Instant::now();
    let refused = node.group("g".repeat(256)).join(Words::default()).wait().unwrap_err();
    assert!(refused.to_string().contains("255 bytes"), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(5), "it was not waited for");
    node.group("g".repeat(255)).join(Words::default()).wait().unwrap();
}

#[test]
fn replicas_of_another_structure_are_refused_with_both() {
    /// A later version of [`Words`], in which a word has a weight.
    struct Heavy;

    impl Replica for Heavy {
        const NAME: &'static str = "words/1";
        type Update = (String, u32);
        type Query = String;
        type Reply = (Rank, usize);

        fn apply(&mut self, _: (String, u32), _: &Origin) {}
        fn query(&self, _: String, _: Share) -> Answer<(Rank, usize)> {
            Answer::Declined
        }
        fn checkpoint(&self) -> Snapshot {
            Snapshot::of(&())
        }
        fn restore(_: &Snapshot) -> Result<Self, Corrupt> {
            Ok(Heavy)
        }
    }

    let test_group = TestGroup::start(1, 1);
    let other = node(test_group.cluster.addresses());
    let refused = other.group("words").join(Heavy).wait().unwrap_err();
    let Error::Mismatch { why, .. } = &refused else { panic!("{refused:?}") };
    assert!(why.contains(r#"updates are "STR""#) && why.contains(r#"["STR","U32"]"#), "{refused}");
}

#[test]
fn without_routers_nothing_is_shown_for_current() {
    let TestGroup { cluster, nodes, members } = TestGroup::start(1, 2);
    members[0].send(word("before")).wait().unwrap();
    members[0].flush().wait().unwrap();
    let began = Instant::now();
    cluster.stop().wait();
    wait_for("reads are refused", || members[1].read(|_| ()) == Err(Error::OutOfTouch));
    assert!(began.elapsed() < Duration::from_millis(2500), "{:?}", began.elapsed());
    wait_for("and sends", || members[0].send(word("after")).wait() == Err(Error::OutOfTouch));
    assert_eq!(members[0].flush().wait(), Err(Error::OutOfTouch));
    let nobody = Node::builder().routers(["127.0.0.1:1"]).patience(Duration::from_millis(200));
    let nobody = nobody.start().wait().unwrap();
    let refused = nobody.group("words").join(Words::default()).wait();
    assert!(matches!(refused, Err(Error::Start { .. })), "{refused:?}");
    drop(nodes);
}

#[test]
fn a_group_has_a_name_that_can_be_shown() {
    let test_group = TestGroup::start(1, 1);
    for name in ["", "two\nlines", &"x".repeat(256)] {
        let refused = test_group.nodes[0].group(name).join(Words::default()).wait();
        assert!(matches!(&refused, Err(Error::Invalid { why }) if why.contains("name")), "{refused:?}");
    }
}

#[test]
fn a_malformed_address_is_refused_at_once() {
    for address in ["", "localhost", ":1", "localhost:", "localhost:70000"] {
        let builders = [Node::builder().routers([address]), Node::builder().seeds(["127.0.0.1:1", address])];
        for builder in builders {
            let error = builder.patience(Duration::from_secs(60)).start().wait().err();
            assert!(matches!(&error, Some(Error::Invalid { why }) if why.contains(address)), "{error:?}");
        }
    }
    let short = Node::builder().datagram_bytes(100).start().wait().err();
    assert!(matches!(&short, Some(Error::Invalid { why }) if why.contains("512")), "{short:?}");
}

#[test]
fn callbacks_may_send_and_may_not_read() {
    /// Answers each number above 0 by sending the next lower number, and records the outcome of a read inside
    /// `apply`.
    struct Echo(Arc<Mutex<Option<Member<Echo>>>>, Arc<Mutex<Vec<Result<(), Error>>>>);

    impl Replica for Echo {
        const NAME: &'static str = "echo/1";
        type Update = u64;
        type Query = ();
        type Reply = ();

        fn apply(&mut self, number: u64, _: &Origin) {
            let member = self.0.lock().unwrap().clone();
            let Some(member) = member else { return };
            self.1.lock().unwrap().push(member.read(|_| ()));
            if number > 0 {
                drop(member.ordered_send(number - 1));
            }
        }
        fn query(&self, (): (), _: Share) -> Answer<()> {
            Answer::Declined
        }
        fn checkpoint(&self) -> Snapshot {
            Snapshot::of(&())
        }
        fn restore(_: &Snapshot) -> Result<Self, Corrupt> {
            Err(Corrupt(word("it is of one member")))
        }
    }

    let test_group = TestGroup::start(1, 1);
    let (own, read) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
    let echo = test_group.nodes[0].group("echo").join(Echo(own.clone(), read.clone())).wait().unwrap();
    *own.lock().unwrap() = Some(echo.clone());
    echo.send(3).wait().unwrap();
    wait_for("it echoes", || read.lock().unwrap().len() == 4);
    assert!(read.lock().unwrap().iter().all(|read| matches!(read, Err(Error::Invalid { .. }))));
    // A joiner that cannot load the state gets an error that says so.
    let other = node(test_group.cluster.addresses());
    let refused = other.group("echo").join(Echo(Arc::default(), Arc::default())).wait().unwrap_err();
    assert_eq!(refused.to_string(), "the state of the group `echo`: it is of one member");
    own.lock().unwrap().take();
    let large = test_group.members[0].send("x".repeat(9 << 20)).wait();
    assert!(matches!(large, Err(Error::TooLarge { limit, .. }) if limit == 8 << 20), "{large:?}");
}

#[test]
fn processes_that_leave_are_gone_from_the_domain() {
    let mut test_group = TestGroup::start(1, 2);
    let stays = test_group.members[0].clone();
    let leaves = test_group.members.remove(1);
    leaves.send(word("farewell")).wait().unwrap();
    test_group.nodes.remove(1).leave().wait().unwrap();
    assert_eq!(leaves.send(word("more")).wait().unwrap_err().fate(), Some(quorate::Fate::NotSent));
    wait_for("it has left", || stays.view().unwrap().members == [stays.id()]);
    assert_eq!(said(&stays), ["farewell"]);
    // The last member leaves. The next joiner begins with its own state.
    let few = stays.safe_send_to(Phi::Count(1), word("to one")).wait();
    assert!(matches!(few, Ok(Place::Ordered(..))), "{few:?}");
    drop(stays);
    test_group.members.remove(0).leave().wait().unwrap();
    test_group.join(Words::of(&["its own"]));
    assert!(test_group.members[0].is_fresh().unwrap());
    assert_eq!(said(&test_group.members[0]), ["its own"]);
}
