//! Process groups on real threads and sockets: members in one program, over loopback.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use quorate::{
    Error, Local, Node, Pending, ProcessId, Wait,
    group::{
        Absence, Answer, Corrupt, Key, Lock, Member, Origin, Phi, Place, Replica, Share, Snapshot, View, Want,
    },
};

/// All words that were said, and what this member saw of views.
#[derive(Default)]
struct Words {
    said: Vec<String>,
    /// What was said in each view that began here, in its order.
    views: Vec<(View, Vec<String>)>,
    /// Words that this member sent itself.
    own: Vec<String>,
    /// Whether this one does what others do not: panics, sleeps, declines.
    fragile: bool,
}

impl Words {
    fn fragile() -> Words {
        Words { fragile: true, ..Words::default() }
    }

    fn of(said: &[&str]) -> Words {
        Words { said: said.iter().map(ToString::to_string).collect(), ..Words::default() }
    }
}

impl Replica for Words {
    const NAME: &'static str = "words/1";
    type Update = String;
    type Query = String;
    type Reply = (Rank, usize);

    fn apply(&mut self, word: String, origin: &Origin) {
        assert!(!(self.fragile && word == "panic"), "told to panic behind {} words", self.said.len());
        if let Some(millis) = word.strip_prefix("sleep ").filter(|_| self.fragile) {
            thread::sleep(Duration::from_millis(millis.parse().unwrap()));
        }
        if let Some((_, words)) = self.views.last_mut() {
            words.push(word.clone());
        }
        self.own.extend(origin.own.then(|| word.clone()));
        self.said.push(word);
    }

    fn query(&self, word: String, share: Share) -> Answer<(Rank, usize)> {
        match &*word {
            "decline" if self.fragile => Answer::Declined,
            "panic" if self.fragile => panic!("asked to panic"),
            "sleep" if self.fragile => {
                thread::sleep(Duration::from_secs(3));
                Answer::Declined
            }
            word => Answer::Now((
                (share.rank, share.of),
                self.said.iter().filter(|said| said.starts_with(word)).count(),
            )),
        }
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::later(self.said.clone())
    }

    fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt> {
        Ok(Words { said: snapshot.read()?, ..Words::default() })
    }

    fn view(&mut self, view: &View) {
        self.views.push((view.clone(), Vec::new()));
    }
}

/// A member's rank, and how many there are.
type Rank = (usize, usize);

/// Words of another kind.
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

/// A cluster, and processes that have each joined one group.
struct Crowd {
    cluster: Local,
    nodes: Vec<Node>,
    members: Vec<Member<Words>>,
}

impl Crowd {
    fn start(routers: usize, members: usize) -> Crowd {
        let cluster = Local::builder().routers(routers).start().wait().unwrap();
        let mut crowd = Crowd { cluster, nodes: Vec::new(), members: Vec::new() };
        for _ in 0..members {
            crowd.join(Words::default());
        }
        crowd
    }

    fn join(&mut self, words: Words) {
        let node = node(self.cluster.addresses());
        self.members.push(node.group("words").join(words).wait().unwrap());
        self.nodes.push(node);
    }

    /// Ends a member's process as if it had been killed.
    fn kill(&mut self, place: usize) -> ProcessId {
        let id = self.members[place].id();
        self.nodes.remove(place).abandon().wait();
        self.members.remove(place);
        id
    }

    fn said(&self) -> Vec<Vec<String>> {
        self.members.iter().map(said).collect()
    }

    /// Waits until all members have heard the same so many words.
    fn settle(&self, words: usize) {
        wait_for("all have heard all", || self.said().iter().all(|said| said.len() == words));
        assert!(self.said().windows(2).all(|pair| pair[0] == pair[1]), "{:?}", self.said());
    }

    /// Waits until all members have heard so many words, in whatever order.
    fn settle_count(&self, words: usize) {
        wait_for("all have heard all", || self.said().iter().all(|said| said.len() == words));
    }
}

fn node(routers: &[String]) -> Node {
    Node::builder().routers(routers).start().wait().unwrap()
}

fn said(member: &Member<Words>) -> Vec<String> {
    member.read(|words| words.said.clone()).unwrap()
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < until, "{what}, in time");
        thread::sleep(Duration::from_millis(5));
    }
}

fn word(text: &str) -> String {
    text.to_owned()
}

#[test]
fn members_of_three_processes_hear_the_same() {
    let mut crowd = Crowd::start(3, 1);
    let first = crowd.members[0].clone();
    assert!(first.is_fresh().unwrap());
    assert!(matches!(first.ordered_send(word("one")).wait(), Ok(Place::Ordered(..))));
    assert_eq!(said(&first), ["one"], "what was sent is read");
    crowd.join(Words::of(&["of its own"]));
    crowd.join(Words::default());
    assert_eq!(said(&crowd.members[1]), ["one"], "the group's state, and not what it brought");
    assert!(!crowd.members[1].is_fresh().unwrap());
    let [a, b, c] = [0, 1, 2].map(|place| crowd.members[place].clone());
    assert_eq!(a.send(word("two")).wait(), Ok(Place::Soft(1)));
    assert!(matches!(a.safe_send(word("three")).wait(), Ok(Place::Ordered(..))));
    a.send(word("four")).wait().unwrap();
    a.flush().wait().unwrap();
    crowd.settle(4);
    assert_eq!(said(&c), ["one", "two", "three", "four"]);
    // From all at once: one order.
    let sending: Vec<_> = (0..30).map(|n| [&a, &b, &c][n % 3].ordered_send(format!("o{n}"))).collect();
    let mut places: Vec<Place> = sending.into_iter().map(|sent| sent.wait().unwrap()).collect();
    crowd.settle(34);
    let count = places.len();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), count, "no two have one place");
    // Views: the oldest first, the same at all.
    let view = a.view().unwrap();
    assert_eq!(view.members, crowd.members.iter().map(Member::id).collect::<Vec<_>>());
    assert_eq!((view.rank(), c.view().unwrap().rank()), (Some(0), Some(2)));
    let left = b.id();
    drop(b);
    crowd.members.remove(1).leave().wait().unwrap();
    wait_for("it is seen to have left", || a.view().unwrap().left == [left]);
    a.safe_send(word("last")).wait().unwrap();
    crowd.settle(35);
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
    // Several groups of one process.
    let second = node.group("second").join(Words::default()).wait().unwrap();
    second.send(word("alone")).wait().unwrap();
    assert_eq!((said(&second).len(), said(&one).len()), (1, 2));
}

/// Threads that send until they are told to stop. Each says which of its sends were answered.
struct Senders {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<Sent>>,
}

/// What one member sent.
#[derive(Default)]
struct Sent {
    answered: Vec<String>,
    /// Answered as safe, or flushed.
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
            // The process was killed; or no router led just now.
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

/// What the survivors must agree in, and what each sender is promised of it.
fn judge(crowd: &Crowd, sent: &[Sent]) {
    let logs: Vec<_> = crowd
        .members
        .iter()
        .map(|member| member.read(|words| (words.said.clone(), words.views.clone())).unwrap())
        .collect();
    // The same messages in the same view.
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
    // In one order, where an order was asked for.
    let ordered = |said: &[String]| -> Vec<String> {
        let is = |word: &&String| word[2..].parse::<u64>().unwrap() % 7 < 3;
        said.iter().filter(is).cloned().collect()
    };
    assert!(logs.windows(2).all(|pair| ordered(&pair[0].0) == ordered(&pair[1].0)), "one order");
}

#[test]
fn survivors_of_killed_members_agree_and_have_what_was_flushed() {
    let mut crowd = Crowd::start(3, 4);
    let senders = Senders::start(&crowd.members);
    thread::sleep(Duration::from_millis(300));
    let mut killed = vec![crowd.kill(1)];
    let first = crowd.members[0].clone();
    wait_for("a view without it", || !first.view().unwrap().members.contains(&killed[0]));
    // Another one comes while all send.
    crowd.join(Words::default());
    thread::sleep(Duration::from_millis(200));
    killed.push(crowd.kill(2));
    wait_for("a view without it", || !first.view().unwrap().members.contains(&killed[1]));
    thread::sleep(Duration::from_millis(100));
    let sent = senders.stop();
    assert!(sent.iter().all(|sent| sent.durable.len() > 10), "all got somewhere");
    first.flush().wait().unwrap();
    let count = said(&first).len();
    crowd.settle_count(count);
    judge(&crowd, &sent);
    let views =
        first.read(|words| words.views.iter().map(|(view, _)| view.waited).collect::<Vec<_>>()).unwrap();
    assert_eq!(views[0], Duration::ZERO, "nothing waited for the first");
    assert!(views[1..].iter().all(|waited| !waited.is_zero()), "soft sends waited for each: {views:?}");
    let shown = crowd.nodes[0].group_metrics().render();
    let longest = shown.lines().find_map(|line| line.strip_prefix("quorate_group_view_wait_us_max "));
    let longest: u128 = longest.expect("it is shown").parse().unwrap();
    assert_eq!(longest, views.iter().max().unwrap().as_micros());
}

#[test]
fn groups_go_on_when_the_lead_router_is_killed() {
    let crowd = Crowd::start(3, 3);
    let senders = Senders::start(&crowd.members);
    thread::sleep(Duration::from_millis(200));
    // The founder leads until it is killed.
    crowd.cluster.nodes()[0].clone().abandon().wait();
    let before = said(&crowd.members[0]).len();
    let ordered = crowd.members[0].ordered_send(word("9 000001"));
    assert!(matches!(ordered.wait(), Ok(Place::Ordered(..))), "another one leads");
    wait_for("more is said", || said(&crowd.members[0]).len() > before + 50);
    let sent = senders.stop();
    crowd.members[1].flush().wait().unwrap();
    let count = said(&crowd.members[1]).len();
    crowd.settle_count(count);
    judge(&crowd, &sent);
    assert_eq!(crowd.members[0].view().unwrap().members.len(), 3, "and nobody was dropped");
}

#[test]
fn a_member_that_panics_in_apply_is_out_and_the_others_go_on() {
    let mut crowd = Crowd::start(1, 2);
    crowd.join(Words::default());
    let fragile = crowd.nodes[2].group("fragile").join(Words::fragile()).wait().unwrap();
    // A joiner's object is the group's: only the first can be another one.
    let other = crowd.nodes[0].group("fragile").join(Words::default()).wait().unwrap();
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
    // Its process has other groups, and they go on. The state of the one that it lost it gets again.
    crowd.members[2].safe_send(word("still here")).wait().unwrap();
    let again = crowd.nodes[2].group("fragile").join(Words::default()).wait().unwrap();
    assert_eq!(said(&again), ["panic", "alone"]);
}

#[test]
fn queries_name_who_does_not_reply() {
    let mut crowd = Crowd::start(1, 0);
    crowd.join(Words::fragile());
    crowd.join(Words::default());
    crowd.join(Words::default());
    let asker = crowd.members[1].clone();
    for _ in 0..3 {
        asker.ordered_send(word("counted")).wait().unwrap();
    }
    let told = asker.ordered_query(word("counted"), Want::All).wait().unwrap();
    let replies: Vec<_> = told.replies.iter().map(|replied| (replied.rank, replied.reply)).collect();
    assert_eq!(replies, [(0, ((0, 3), 3)), (1, ((1, 3), 3)), (2, ((2, 3), 3))]);
    assert!(told.complete && told.missing.is_empty());
    let members: Vec<ProcessId> = crowd.members.iter().map(Member::id).collect();
    let missing = |query: &str, want| {
        let told = asker.query(word(query), want).deadline(Duration::from_millis(500)).wait().unwrap();
        let missing = told.missing.into_iter().map(|it| (it.member, it.rank, it.why)).collect::<Vec<_>>();
        (told.replies.len(), told.complete, missing)
    };
    assert_eq!(missing("decline", Want::All), (2, false, vec![(members[0], 0, Absence::Declined)]));
    let (replies, complete, failed) = missing("panic", Want::All);
    assert_eq!((replies, complete, failed.len()), (2, false, 1));
    assert!(matches!(&failed[0].2, Absence::Failed(why) if why.contains("asked to panic")), "{failed:?}");
    // A member that sleeps is late; the majority does not wait for it.
    let began = Instant::now();
    assert!(matches!(missing("sleep", Want::Majority), (2, true, _)));
    assert!(began.elapsed() < Duration::from_millis(450), "{:?}", began.elapsed());
    let (replies, complete, late) = missing("counted", Want::All);
    assert_eq!((replies, complete), (2, false), "it sleeps still");
    assert_eq!(late, [(members[0], 0, Absence::Late)]);
    // One that is killed while it is asked.
    let asking = asker.query(word("counted"), Want::All).deadline(Duration::from_secs(20)).into_future();
    crowd.kill(0);
    let told = asking.wait().unwrap();
    assert_eq!((told.replies.len(), told.missing[0].why.clone()), (2, Absence::Gone));
}

#[test]
fn a_sleeping_member_holds_nobody_up() {
    let mut crowd = Crowd::start(1, 0);
    crowd.join(Words::fragile());
    crowd.join(Words::default());
    let (slow, fast) = (crowd.members[0].clone(), crowd.members[1].clone());
    let began = Instant::now();
    fast.send(word("sleep 2000")).wait().unwrap();
    for _ in 0..20 {
        fast.safe_send(word("safe")).wait().unwrap();
    }
    fast.send(word("soft")).wait().unwrap();
    fast.flush().wait().unwrap();
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    // Its reader waits for what was delivered before.
    assert_eq!(said(&slow).len(), 22);
    assert!(began.elapsed() >= Duration::from_secs(2));
}

#[test]
fn replicas_of_another_name_are_refused_with_both() {
    let crowd = Crowd::start(1, 1);
    let other = node(crowd.cluster.addresses());
    let refused = other.group("words").join(Others).wait().unwrap_err();
    let Error::Mismatch { why, .. } = &refused else { panic!("{refused:?}") };
    assert!(why.contains("`words/1`") && why.contains("`words/2`"), "{refused}");
    crowd.members[0].safe_send(word("alone")).wait().unwrap();
    wait_for("it is out", || crowd.members[0].view().unwrap().members.len() == 1);
}

#[test]
fn a_name_that_is_too_long_is_refused_at_once() {
    let crowd = Crowd::start(1, 0);
    let node = node(crowd.cluster.addresses());
    let began = Instant::now();
    let refused = node.group("g".repeat(256)).join(Words::default()).wait().unwrap_err();
    assert!(refused.to_string().contains("255 bytes"), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(5), "it was not waited for");
    node.group("g".repeat(255)).join(Words::default()).wait().unwrap();
}

#[test]
fn replicas_of_another_structure_are_refused_with_both() {
    /// A later version of [`Words`]: a word has a weight.
    struct Heavy;

    impl Replica for Heavy {
        const NAME: &'static str = Words::NAME;
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

    let crowd = Crowd::start(1, 1);
    let other = node(crowd.cluster.addresses());
    let refused = other.group("words").join(Heavy).wait().unwrap_err();
    let Error::Mismatch { why, .. } = &refused else { panic!("{refused:?}") };
    assert!(why.contains(r#"its updates are "STR""#) && why.contains(r#"["STR","U32"]"#), "{refused}");
}

/// A member of a group with this key, or none.
fn keyed(node: &Node, key: Option<&Key>) -> Result<Member<Words>, Error> {
    let group = node.group("words");
    let group = match key {
        Some(key) => group.key(key.clone()),
        None => group,
    };
    group.join(Words::default()).wait()
}

#[test]
fn who_has_another_key_or_none_is_refused_with_both() {
    let cluster = Local::builder().routers(1).start().wait().unwrap();
    let nodes: Vec<Node> = (0..4).map(|_| node(cluster.addresses())).collect();
    let (key, other) = (Key::generate(), Key::generate());
    let one = nodes[0].group("words").key(key.clone()).join(Words::fragile()).wait().unwrap();
    let two = keyed(&nodes[1], Some(&key)).unwrap();
    one.send(word("soft")).wait().unwrap();
    one.ordered_send(word("ordered")).wait().unwrap();
    one.safe_send(word("safe")).wait().unwrap();
    wait_for("all is opened", || said(&two) == ["soft", "ordered", "safe"]);
    let told = two.ordered_query(word("s"), Want::All).wait().unwrap();
    assert!(told.complete && told.replies.iter().all(|replied| replied.reply.1 == 2), "{told:?}");
    let lock = two.lock("lock").wait().unwrap();
    drop(lock);
    for (word, absent) in [("decline", Absence::Declined), ("panic", Absence::Failed(String::new()))] {
        let told = two.query(String::from(word), Want::All).wait().unwrap();
        let [missing] = &told.missing[..] else { panic!("{told:?}") };
        let alike = std::mem::discriminant(&missing.why) == std::mem::discriminant(&absent);
        assert!(alike && missing.member == one.id(), "{told:?}");
        assert!(!matches!(&missing.why, Absence::Failed(why) if !why.contains("asked to panic")), "{told:?}");
    }

    let refused = keyed(&nodes[2], Some(&other)).unwrap_err();
    let both = [key.id(), other.id()].map(|id| id.to_string());
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused:?}");
    assert!(both.iter().all(|id| refused.to_string().contains(id)), "{refused}");
    let refused = keyed(&nodes[3], None).unwrap_err();
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused:?}");
    one.safe_send(word("they go on")).wait().unwrap();
    assert_eq!((one.key_refusals(), two.key_refusals()), ((0, 0), (0, 0)));

    // And where there is no key, who brings one is refused as well.
    let open = node(cluster.addresses()).group("open").join(Words::default()).wait().unwrap();
    let refused = nodes[2].group("open").key(key).join(Words::default()).wait().unwrap_err();
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused:?}");
    assert!(matches!(open.rotate(&other).wait(), Err(Error::NotSent { .. })));
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
        let send = |member: &Member<Words>| {
            let (mut sent, mut last) = (0, None);
            while !stop.load(Ordering::Relaxed) {
                // In turn soft, ordered, safe; not waited for, but for some.
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
        for key in &keys[1..] {
            thread::sleep(Duration::from_millis(150));
            members[1].rotate(key).wait().unwrap();
        }
        thread::sleep(Duration::from_millis(150));
        stop.store(true, Ordering::Relaxed);
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
    // Who joins needs the newest.
    let refused = keyed(&nodes[3], Some(&keys[1])).unwrap_err();
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused:?}");
    let late = node(cluster.addresses());
    let late = keyed(&late, Some(&keys[2])).unwrap();
    assert_eq!(said(&late).len(), sent);
    members[0].safe_send(word("behind")).wait().unwrap();
    wait_for("it hears", || said(&late).len() == sent + 1);
}

#[test]
fn without_routers_nothing_is_shown_for_current() {
    let Crowd { cluster, nodes, members } = Crowd::start(1, 2);
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
fn callbacks_may_send_and_may_not_read() {
    /// Says a word behind each that others said, and tells what a read inside came to.
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

    let crowd = Crowd::start(1, 1);
    let (own, read) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
    let echo = crowd.nodes[0].group("echo").join(Echo(own.clone(), read.clone())).wait().unwrap();
    *own.lock().unwrap() = Some(echo.clone());
    echo.send(3).wait().unwrap();
    wait_for("it echoes", || read.lock().unwrap().len() == 4);
    assert!(read.lock().unwrap().iter().all(|read| matches!(read, Err(Error::NotSent { .. }))));
    // A joiner that cannot take the state is told so.
    let other = node(crowd.cluster.addresses());
    let refused = other.group("echo").join(Echo(Arc::default(), Arc::default())).wait().unwrap_err();
    assert_eq!(refused.to_string(), "the group's state: it is of one member");
    own.lock().unwrap().take();
    let large = crowd.members[0].send("x".repeat(9 << 20)).wait();
    assert!(matches!(large, Err(Error::TooLarge { limit, .. }) if limit == 8 << 20), "{large:?}");
}

#[test]
fn processes_that_leave_are_gone_from_the_domain() {
    let mut crowd = Crowd::start(1, 2);
    let stays = crowd.members[0].clone();
    let leaves = crowd.members.remove(1);
    leaves.send(word("farewell")).wait().unwrap();
    crowd.nodes.remove(1).leave().wait();
    assert_eq!(leaves.send(word("more")).wait().unwrap_err().fate(), Some(quorate::Fate::NotSent));
    wait_for("it has left", || stays.view().unwrap().members == [stays.id()]);
    assert_eq!(said(&stays), ["farewell"]);
    // The last one goes, and who comes then begins anew.
    let few = stays.safe_send_to(Phi::Count(1), word("to one")).wait();
    assert!(matches!(few, Ok(Place::Ordered(..))), "{few:?}");
    drop(stays);
    crowd.members.remove(0).leave().wait().unwrap();
    crowd.join(Words::of(&["its own"]));
    assert!(crowd.members[0].is_fresh().unwrap());
    assert_eq!(said(&crowd.members[0]), ["its own"]);
}

/// Whether a lock is granted within so long.
fn is_granted(claim: &mut Pending<'static, Lock>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let mut cx = Context::from_waker(Waker::noop());
    while Instant::now() < until {
        if let Poll::Ready(granted) = claim.as_mut().poll(&mut cx) {
            granted.map(drop).expect("a claim ends in a lock");
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn a_lock_is_held_by_one_and_moves_in_order() {
    let mut crowd = Crowd::start(3, 2);
    let first = crowd.members[0].lock("leader").wait().unwrap();
    let mut second = crowd.members[1].lock("leader");
    let given_up = crowd.members[1].lock("leader");
    assert!(!is_granted(&mut second, Duration::from_millis(300)), "it is held");
    let other = crowd.members[1].lock("other").wait().unwrap();
    drop(given_up);
    // One that joins knows who holds what, and waits behind them.
    crowd.join(Words::default());
    assert_eq!(crowd.members[2].lock_holder("leader"), Ok(Some(crowd.members[0].id())));
    let mut third = crowd.members[2].lock("leader");
    assert!(!is_granted(&mut third, Duration::from_millis(100)), "two are before it");
    first.check().unwrap();
    let fence = first.fence();
    drop(first);
    let second = second.wait().unwrap();
    assert!(second.fence() > fence, "{} after {fence}", second.fence());
    // The holder of both is killed: its locks go on.
    let fence = second.fence();
    std::mem::forget((second, other));
    crowd.kill(1);
    let third = third.wait().unwrap();
    assert!(third.fence() > fence, "{} after {fence}", third.fence());
    let other = crowd.members[0].lock("other").wait().unwrap();
    drop((third, other));
    wait_for("nobody holds it", || crowd.members[0].lock_holder("leader") == Ok(None));
    for name in ["", &"l".repeat(257)] {
        assert!(crowd.members[0].lock(name).wait().is_err(), "{name}");
    }
}

#[test]
fn what_a_lock_protects_is_done_by_one_at_a_time() {
    let crowd = Crowd::start(1, 3);
    let (inside, most, fences) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for member in &crowd.members {
            scope.spawn(|| {
                for _ in 0..50 {
                    let held = member.lock("counter").wait().unwrap();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    fences.lock().unwrap().push(held.fence());
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(most.into_inner(), 1, "one at a time");
    let fences = fences.into_inner().unwrap();
    assert!(fences.len() == 150 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

/// The ranks that the members see, once each of them sees so many members.
fn ranks(members: &[&Member<Words>], count: usize) -> Vec<usize> {
    wait_for("all see all", || members.iter().all(|it| it.view().unwrap().members.len() == count));
    members.iter().map(|it| it.view().unwrap().rank().unwrap()).collect()
}

#[test]
fn members_of_one_process_are_members_like_others() {
    let mut crowd = Crowd::start(1, 1);
    let first = crowd.members[0].clone();
    first.send(word("one")).wait().unwrap();
    let here = crowd.nodes[0].group("words");
    let second = here.join(Words::of(&["of its own"])).wait().unwrap();
    assert_eq!(said(&second), ["one"], "the group's object, and not what it brought");
    assert!(first.is_fresh().unwrap() && !second.is_fresh().unwrap());
    crowd.join(Words::default());
    let other = crowd.members[1].clone();
    let third = here.join(Words::default()).wait().unwrap();
    let all = [&first, &second, &third, &other];
    assert_eq!(ranks(&all, 4), [0, 1, 2, 3], "those of a process stand together");
    assert_eq!(other.view().unwrap().joined, [first.id()]);
    second.send(word("two")).wait().unwrap();
    third.ordered_send(word("three")).wait().unwrap();
    first.safe_send(word("four")).wait().unwrap();
    wait_for("it is heard", || said(&other).len() == 4);
    other.send(word("five")).wait().unwrap();
    other.flush().wait().unwrap();
    for member in all {
        wait_for("all have heard all", || said(member).len() == 5);
        assert_eq!(said(member), ["one", "two", "three", "four", "five"]);
    }
    let own = all.map(|it| it.read(|words| words.own.join(" ")).unwrap());
    assert_eq!(own, ["one four", "two", "three", "five"]);
    // Each is asked, and answers for its own place.
    for asks in [&second, &other] {
        let told = asks.ordered_query(word("f"), Want::All).wait().unwrap();
        let replies: Vec<_> = told.replies.iter().map(|replied| (replied.rank, replied.reply)).collect();
        let expected: Vec<_> = (0..4).map(|rank| (rank, ((rank, 4), 2))).collect();
        assert!(told.complete && replies == expected, "{told:?}");
    }
    // A lock is a member's, not its process's.
    let held = second.lock("l").wait().unwrap();
    let mut claim = third.lock("l");
    assert!(!is_granted(&mut claim, Duration::from_millis(100)));
    second.leave().wait().unwrap();
    assert!(is_granted(&mut claim, Duration::from_secs(10)), "{held:?} is over with its member");
    let all = [&first, &third, &other];
    assert_eq!(ranks(&all, 3), [0, 1, 2]);
    assert_eq!(other.view().unwrap().left, [first.id()]);
    // The one that all others got the object from leaves, and more come at the same time.
    let more = thread::scope(|threads| {
        let joining = [0; 6].map(|_| threads.spawn(|| here.join(Words::default()).wait().unwrap()));
        first.leave().wait().unwrap();
        joining.map(|joining| joining.join().unwrap())
    });
    third.safe_send(word("six")).wait().unwrap();
    for member in more.iter().chain([&third, &other]) {
        wait_for("all have heard all", || said(member).len() == 6);
    }
    assert_eq!(ranks(&[&third, &other], 8), [0, 7]);
    // They fail together.
    let gone = crowd.kill(0);
    wait_for("they are seen to be gone", || other.view().unwrap().members == [other.id()]);
    assert_eq!(other.view().unwrap().left, [gone; 7]);
}

#[test]
fn a_member_that_panics_takes_no_other_of_its_process_along() {
    let mut crowd = Crowd::start(1, 0);
    crowd.join(Words::fragile());
    crowd.join(Words::default());
    let [first, other] = [0, 1].map(|place| crowd.members[place].clone());
    let second = crowd.nodes[0].group("words").join(Words::default()).wait().unwrap();
    other.safe_send(word("panic")).wait().unwrap();
    wait_for("it has ended", || first.ended().is_some());
    assert!(matches!(first.send(word("no")).wait(), Err(Error::NotMember { .. })));
    assert_eq!(ranks(&[&second, &other], 2), [0, 1]);
    // It has the object still, and gives it.
    let third = crowd.nodes[0].group("words").join(Words::default()).wait().unwrap();
    crowd.join(Words::default());
    second.safe_send(word("on")).wait().unwrap();
    for member in [&second, &third, &other, &crowd.members[2]] {
        wait_for("all have heard all", || said(member) == ["panic", "on"]);
    }
}

#[test]
fn a_process_has_one_member_of_a_group_with_a_key() {
    let cluster = Local::builder().routers(1).start().wait().unwrap();
    let (node, key) = (node(cluster.addresses()), Key::generate());
    let first = keyed(&node, Some(&key)).unwrap();
    for key in [Some(&key), None] {
        let second = keyed(&node, key);
        assert!(matches!(&second, Err(Error::Start { why }) if why.contains("key")), "{second:?}");
    }
    first.safe_send(word("on")).wait().unwrap();
}
