//! A group of words for tests, and processes whose members send the words.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use quorate::{
    Local, Node, ProcessId, Wait,
    group::{Answer, Corrupt, Member, Object, Origin, Promise, Share, Snapshot, View},
};
use quorate_testing::wait_for;

/// All words that this member received, and the views that it saw.
#[derive(Default)]
pub(crate) struct Words {
    pub(crate) said: Vec<String>,
    /// The views that began at this member, in their order, each with the words that were received in it.
    pub(crate) views: Vec<(View, Vec<String>)>,
    /// Words that this member sent itself.
    pub(crate) own: Vec<String>,
    /// Whether this member panics, sleeps, declines or defers its answers on request. Other members do not.
    fragile: bool,
    /// The deferred answers.
    promises: Promises,
}

impl Words {
    pub(crate) fn fragile() -> Words {
        Words { fragile: true, ..Words::default() }
    }

    /// Returns [`Words::fragile`], with its deferred answers.
    pub(crate) fn slow() -> (Words, Promises) {
        let words = Words::fragile();
        let promises = words.promises.clone();
        (words, promises)
    }

    pub(crate) fn of(said: &[&str]) -> Words {
        Words { said: said.iter().map(ToString::to_string).collect(), ..Words::default() }
    }
}

impl Object for Words {
    type Update = String;
    type Query = String;
    type Reply = (Rank, usize);

    fn name(&self) -> &'static str {
        "words/1"
    }

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
            "later" if self.fragile => {
                let (answer, promise) = Answer::later();
                self.promises.lock().unwrap().push(promise);
                answer
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

    fn restore(&self, snapshot: &Snapshot) -> Result<Self, Corrupt> {
        let (fragile, promises) = (self.fragile, self.promises.clone());
        Ok(Words { said: snapshot.read()?, fragile, promises, ..Words::default() })
    }

    fn view(&mut self, view: &View) {
        self.views.push((view.clone(), Vec::new()));
    }
}

/// Deferred answers, oldest first.
pub(crate) type Promises = Arc<Mutex<Vec<Promise<(Rank, usize)>>>>;

/// A member's rank, and the number of members.
pub(crate) type Rank = (usize, usize);

/// A cluster, and processes that have each joined one group.
pub(crate) struct TestGroup {
    pub(crate) cluster: Local,
    pub(crate) nodes: Vec<Node>,
    pub(crate) members: Vec<Member<Words>>,
}

impl TestGroup {
    pub(crate) fn start(routers: usize, members: usize) -> TestGroup {
        let cluster = Local::builder().routers(routers).start().wait().unwrap();
        let mut test_group = TestGroup { cluster, nodes: Vec::new(), members: Vec::new() };
        for _ in 0..members {
            test_group.join(Words::default());
        }
        test_group
    }

    /// Adds a member. Each process has its own address, as on a machine of its own, so soft words travel as
    /// datagrams.
    pub(crate) fn join(&mut self, words: Words) {
        let address = format!("127.0.4.{}:0", self.nodes.len() + 1);
        let node = Node::builder().routers(self.cluster.addresses()).listen(address).start().wait().unwrap();
        self.members.push(node.group("words").join(words).wait().unwrap());
        self.nodes.push(node);
    }

    /// Ends a member's process as if it had been killed.
    pub(crate) fn kill(&mut self, place: usize) -> ProcessId {
        let id = self.members[place].id();
        self.nodes.remove(place).abandon().wait();
        self.members.remove(place);
        id
    }

    pub(crate) fn said(&self) -> Vec<Vec<String>> {
        self.members.iter().map(said).collect()
    }

    /// Waits until all members have received `words` words, and checks that all have the same order.
    pub(crate) fn settle(&self, words: usize) {
        wait_for("all have heard all", || self.said().iter().all(|said| said.len() == words));
        assert!(self.said().windows(2).all(|pair| pair[0] == pair[1]), "{:?}", self.said());
    }

    /// Waits until all members have received `words` words, in any order.
    pub(crate) fn settle_count(&self, words: usize) {
        wait_for("all have heard all", || self.said().iter().all(|said| said.len() == words));
    }
}

pub(crate) fn node(routers: &[String]) -> Node {
    Node::builder().routers(routers).start().wait().unwrap()
}

pub(crate) fn said(member: &Member<Words>) -> Vec<String> {
    member.read(|words| words.said.clone()).unwrap()
}

pub(crate) fn word(text: &str) -> String {
    text.to_owned()
}
