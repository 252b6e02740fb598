//! The requests of a gateway, and their waiting callers.
//!
//! The client tracks each request, gathers its answer and decides when it ends. [`Requests::take`] passes the
//! client's events to the callers: an answer, or the beginning of an answer and then its pieces. It runs on
//! the protocol thread and never blocks.

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    rubberband::{ClientError, ClientEvent, Config, ProcessAnswer, TableEntry},
};
use quorate_roles::tables::gateway;
use quorate_sql::backend::{Catalog, Table};
use quorate_table::schema::TableId;
use tokio::sync::{mpsc, oneshot, watch};

use crate::waiters::Waiters;

/// The requests of a gateway that have not ended, and its knowledge of the domain. This value outlives the
/// gateway's process: the next process uses it, too.
pub(crate) struct Requests {
    waiting: Waiters<Waiter>,
    /// Longest time that a write or a definition waits for the cluster.
    pub(super) wait: Duration,
    /// Whether no majority of the routers leads, as far as this gateway hears.
    adrift: AtomicBool,
    config: watch::Sender<Option<Arc<Config>>>,
    catalog: RwLock<Arc<Catalog>>,
}

pub(super) const STOPPING: &str = "the gateway is coming back as a new process, or shutting down";

/// A caller that waits for a request.
pub(super) enum Waiter {
    /// The caller waits for the answer, or for the beginning of an answer.
    Answer(oneshot::Sender<Result<Arrived, ClientError>>),
    /// The caller has the beginning of the answer and waits for the remaining pieces. The senders are keyed
    /// by the process that sends the pieces.
    Rest(BTreeMap<ProcessId, mpsc::UnboundedSender<Arrival>>),
}

/// The outcome of a request, as far as it is known.
pub(super) enum Arrived {
    /// The complete answer.
    Whole(Vec<ProcessAnswer>),
    /// The beginning of the answer. Each process sends the remaining pieces through its receiver.
    Begun(Vec<(ProcessId, mpsc::UnboundedReceiver<Arrival>)>),
}

/// The receiver of a request's outcome. A receive error means that the process has ended.
pub(super) type AnswerReceiver = oneshot::Receiver<Result<Arrived, ClientError>>;

/// The next piece of a process's answer, or the reason why no further piece comes.
pub(super) type Arrival = Result<Bytes, ClientError>;

impl Requests {
    /// Makes the requests of a gateway whose writes wait for the cluster at most for `wait`.
    pub(crate) fn new(wait: Duration) -> Self {
        Requests {
            wait,
            waiting: Waiters::default(),
            adrift: AtomicBool::new(false),
            config: watch::Sender::new(None),
            catalog: RwLock::default(),
        }
    }

    /// Adds a caller, and sends its request under a new token. Returns the token, and the caller's receiver.
    pub(super) fn send(
        &self,
        send: impl FnOnce(u64) -> Result<(), &'static str>,
    ) -> Result<(u64, AnswerReceiver), &'static str> {
        let (sender, receiver) = oneshot::channel();
        Ok((self.waiting.send(Waiter::Answer(sender), || STOPPING, send)?, receiver))
    }

    /// Removes a caller. Returns whether its request was still open.
    pub(super) fn remove(&self, token: u64) -> bool {
        self.waiting.take(token).is_some()
    }

    /// Returns the newest configuration, once there is one.
    pub(crate) fn config(&self) -> Option<Arc<Config>> {
        self.config.borrow().clone()
    }

    /// Waits for a configuration for which `is_met` returns true.
    pub(crate) async fn config_where(&self, mut is_met: impl FnMut(&Config) -> bool) {
        let mut configs = self.config.subscribe();
        // The sender is in `self`, so it is not dropped meanwhile.
        let _ = configs.wait_for(|config| config.as_deref().is_some_and(&mut is_met)).await;
    }

    pub(super) fn is_adrift(&self) -> bool {
        self.adrift.load(Ordering::Relaxed)
    }

    pub(super) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends all requests with an unknown outcome, because their process has ended and sends no more answers.
    pub(crate) fn end(&self) {
        for waiter in self.waiting.take_where(|_| true) {
            // All other waiters are dropped, which their callers take as the same error.
            if let Waiter::Rest(streams) = waiter {
                break_off(streams, ClientError::Broken);
            }
        }
        self.adrift.store(false, Ordering::Relaxed);
    }

    /// Takes an event. Never blocks.
    pub(crate) fn take(&self, event: ClientEvent) {
        match event {
            ClientEvent::Config(config) => {
                // Statements are bound against a catalog. A change of members must not invalidate the
                // catalog.
                let same = |before: &Arc<Config>| {
                    before.tables == config.tables && before.replicas == config.replicas
                };
                if !self.config().is_some_and(|before| same(&before)) {
                    *self.catalog.write().unwrap_or_else(PoisonError::into_inner) =
                        Arc::new(catalog_of(&config));
                }
                self.config.send_replace(Some(config));
            }
            ClientEvent::Begun { token, parts } => self.begun(token, parts),
            ClientEvent::Part { token, from, content, last } => self.part(token, from, content, last),
            ClientEvent::Done { token, parts, .. } => {
                if let Some(Waiter::Answer(sender)) = self.waiting.take(token) {
                    // The caller may be gone; the request was executed all the same.
                    let _ = sender.send(Ok(Arrived::Whole(parts)));
                }
            }
            ClientEvent::Failed { token, error } => match self.waiting.take(token) {
                Some(Waiter::Answer(sender)) => drop(sender.send(Err(error))),
                Some(Waiter::Rest(streams)) => break_off(streams, error),
                None => {}
            },
            ClientEvent::Adrift(adrift) => self.adrift.store(adrift, Ordering::Relaxed),
            ClientEvent::Unreached { .. } | ClientEvent::Left { .. } | ClientEvent::Wedged => {}
        }
    }

    /// Passes on the beginnings of all answers, and prepares the caller for further pieces.
    fn begun(&self, token: u64, parts: Vec<ProcessAnswer>) {
        let mut senders = BTreeMap::new();
        let mut streams = Vec::with_capacity(parts.len());
        for ProcessAnswer { from, pieces, ended, .. } in parts {
            let (stream, receiver) = mpsc::unbounded_channel();
            for piece in pieces {
                let _ = stream.send(Ok(piece));
            }
            // The stream of a complete answer ends here. Its reader may await that end before it reads the
            // pieces of another process.
            if !ended {
                senders.insert(from, stream);
            }
            streams.push((from, receiver));
        }
        // The waiter is changed before the caller gets the beginning. So if the caller drops its reader at
        // once, the reader still finds the request and cancels it.
        let before = self.waiting.change(token, |waiter| mem::replace(waiter, Waiter::Rest(senders)));
        if let Some(Waiter::Answer(sender)) = before {
            let _ = sender.send(Ok(Arrived::Begun(streams)));
        }
    }

    fn part(&self, token: u64, from: ProcessId, content: Bytes, last: bool) {
        let stream = self.waiting.change(token, |waiter| match waiter {
            Waiter::Rest(streams) if last => streams.remove(&from),
            Waiter::Rest(streams) => streams.get(&from).cloned(),
            Waiter::Answer(_) => None,
        });
        if let Some(stream) = stream.flatten() {
            // If the receiver was dropped, its drop has already cancelled the request.
            let _ = stream.send(Ok(content));
        }
    }
}

/// Ends streams with an error. Some of their rows may have reached the user.
fn break_off(streams: BTreeMap<ProcessId, mpsc::UnboundedSender<Arrival>>, error: ClientError) {
    for stream in streams.into_values() {
        let _ = stream.send(Err(error));
    }
}

fn catalog_of(config: &Config) -> Catalog {
    let table = |(&id, entry): (&u32, &TableEntry)| {
        let schema = gateway::schema(&entry.definition)?;
        let replicas = u32::from(config.replicas);
        Some(Arc::new(Table { id: TableId(id), schema, replicas, rows: None }))
    };
    Catalog { version: config.version, tables: config.tables.iter().filter_map(table).collect() }
}

#[cfg(test)]
mod tests {
    use quorate_protocol::{id::Incarnation, rubberband::ReadCost};
    use smallvec::smallvec;

    use super::*;

    const FROM: ProcessId = ProcessId { node: 1, incarnation: Incarnation(1) };

    fn requests() -> Requests {
        Requests::new(Duration::from_secs(3))
    }

    fn sent(requests: &Requests) -> (u64, AnswerReceiver) {
        requests.send(|_| Ok(())).expect("it is taken")
    }

    fn begun(ended: bool) -> ProcessAnswer {
        let pieces = smallvec![Bytes::from_static(b"first")];
        ProcessAnswer { from: FROM, spent: ReadCost::default(), pieces, ended }
    }

    #[test]
    fn the_catalog_stays_while_tables_do() {
        let events = requests();
        let catalog_with = |replicas: u8| {
            events.take(ClientEvent::Config(Arc::new(Config::new(replicas))));
            events.catalog()
        };
        let first = catalog_with(3);
        assert!(Arc::ptr_eq(&first, &catalog_with(3)));
        assert!(!Arc::ptr_eq(&first, &catalog_with(2)));
    }

    #[test]
    fn a_reader_that_is_gone_when_answers_begin_still_finds_the_read() {
        let events = requests();
        let (token, receiver) = sent(&events);
        drop(receiver);
        events.take(ClientEvent::Begun { token, parts: vec![begun(false)] });
        assert!(events.remove(token), "so that it is cancelled");
    }

    #[test]
    fn the_rest_of_an_answer_comes_until_it_ends_or_breaks_off() {
        let events = requests();
        for breaks in [false, true] {
            let (token, mut receiver) = sent(&events);
            events.take(ClientEvent::Begun { token, parts: vec![begun(false)] });
            let Ok(Ok(Arrived::Begun(mut streams))) = receiver.try_recv() else { panic!("it has begun") };
            let (_, mut pieces) = streams.pop().unwrap();
            assert_eq!(pieces.try_recv(), Ok(Ok(Bytes::from_static(b"first"))));
            if breaks {
                events.take(ClientEvent::Failed { token, error: ClientError::Broken });
                assert_eq!(pieces.try_recv(), Ok(Err(ClientError::Broken)));
            } else {
                let content = Bytes::from_static(b"last");
                events.take(ClientEvent::Part { token, from: FROM, content: content.clone(), last: true });
                assert_eq!(pieces.try_recv(), Ok(Ok(content)));
            }
            assert_eq!(pieces.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        }
    }

    #[test]
    fn a_process_that_ended_answers_nothing_more() {
        let requests = requests();
        let (token, mut receiver) = sent(&requests);
        requests.end();
        assert!(receiver.try_recv().is_err(), "the one who waits is told");
        assert!(!requests.remove(token));
    }
}
