//! Names to addresses, off the protocol thread: the system's resolver may block for seconds.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    thread,
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use mio::Waker;
use quorate_protocol::ProcessId;
use tracing::{debug, warn};

/// Asks the system's resolver on a thread that starts with the first question, and ends when this is dropped and the
/// last question answered.
#[derive(Debug)]
pub(crate) struct Resolver {
    questions: Option<Sender<Question>>,
    answers: (Sender<Answer>, Receiver<Answer>),
    waker: Arc<Waker>,
}

#[derive(Debug)]
struct Question {
    peer: ProcessId,
    address: String,
}

/// Where a name leads; nowhere when it does not resolve.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) peer: ProcessId,
    pub(crate) address: String,
    pub(crate) route: Vec<SocketAddr>,
}

impl Resolver {
    /// Wakes the loop by `waker` when an answer is there.
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        // Unbounded, but a peer has at most one question under way.
        Resolver { questions: None, answers: unbounded(), waker }
    }

    /// Asks; the answer comes later by [`Resolver::answer`].
    pub(crate) fn ask(&mut self, peer: ProcessId, address: &str) {
        let question = Question { peer, address: address.to_owned() };
        let questions = self.questions.get_or_insert_with(|| {
            let (questions, asked) = unbounded();
            let (answers, waker) = (self.answers.0.clone(), self.waker.clone());
            let spawned = thread::Builder::new()
                .name("resolver".to_owned())
                .spawn(move || answer_all(&asked, &answers, &waker));
            if let Err(error) = spawned {
                warn!(%error, "no thread to resolve names with");
            }
            questions
        });
        if let Err(unasked) = questions.send(question) {
            // The thread could not start: that answers the question, and the next one tries to start it again.
            self.questions = None;
            let Question { peer, address } = unasked.into_inner();
            let _ = self.answers.0.send(Answer { peer, address, route: Vec::new() });
        }
    }

    /// The next answer, if one is there.
    pub(crate) fn answer(&self) -> Option<Answer> {
        self.answers.1.try_recv().ok()
    }
}

fn answer_all(asked: &Receiver<Question>, answers: &Sender<Answer>, waker: &Waker) {
    for Question { peer, address } in asked {
        let route = match address.to_socket_addrs() {
            Ok(route) => route.collect(),
            Err(error) => {
                debug!(address, %error, "cannot resolve the address of {peer}");
                Vec::new()
            }
        };
        if answers.send(Answer { peer, address, route }).is_err() || waker.wake().is_err() {
            return;
        }
    }
}
