//! The resolution of names on a thread of its own, because the system's resolver may block for seconds.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    thread,
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use mio::Waker;
use quorate_protocol::ProcessId;
use tracing::{debug, warn};

/// The system's resolver, on a thread that starts with the first question. The thread ends after this value
/// is dropped and the last question is answered.
#[derive(Debug)]
pub(crate) struct Resolver {
    questions: Option<Sender<Lookup>>,
    answers: (Sender<Resolution>, Receiver<Resolution>),
    waker: Arc<Waker>,
}

#[derive(Debug)]
struct Lookup {
    peer: ProcessId,
    address: String,
}

/// The addresses of a name; empty if the name does not resolve.
#[derive(Debug)]
pub(crate) struct Resolution {
    pub(crate) peer: ProcessId,
    pub(crate) address: String,
    pub(crate) route: Vec<SocketAddr>,
}

impl Resolver {
    /// Makes a resolver that calls `waker` after each answer.
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        // The queue of answers is unbounded, but each peer has at most one question under way.
        Resolver { questions: None, answers: unbounded(), waker }
    }

    /// Asks for the addresses of a name. [`Resolver::answer`] later returns them.
    pub(crate) fn ask(&mut self, peer: ProcessId, address: &str) {
        let question = Lookup { peer, address: address.to_owned() };
        let questions = self.questions.get_or_insert_with(|| {
            let (questions, asked) = unbounded();
            let (answers, waker) = (self.answers.0.clone(), self.waker.clone());
            let spawned = thread::Builder::new()
                .name("resolver".to_owned())
                .spawn(move || answer_all(&asked, &answers, &waker));
            if let Err(error) = spawned {
                warn!(
                    %error,
                    "cannot start the thread that resolves host names; this process tries again with the \
                     next name"
                );
            }
            questions
        });
        if let Err(unasked) = questions.send(question) {
            // The thread could not start, so the answer is empty. The next question tries to start it again.
            self.questions = None;
            let Lookup { peer, address } = unasked.into_inner();
            let _ = self.answers.0.send(Resolution { peer, address, route: Vec::new() });
        }
    }

    /// Returns the next answer, if there is one.
    pub(crate) fn answer(&self) -> Option<Resolution> {
        self.answers.1.try_recv().ok()
    }
}

fn answer_all(asked: &Receiver<Lookup>, answers: &Sender<Resolution>, waker: &Waker) {
    for Lookup { peer, address } in asked {
        let route = match address.to_socket_addrs() {
            Ok(route) => route.collect(),
            Err(error) => {
                debug!(address, %error, "cannot resolve the address of process {peer}");
                Vec::new()
            }
        };
        if answers.send(Resolution { peer, address, route }).is_err() || waker.wake().is_err() {
            return;
        }
    }
}
