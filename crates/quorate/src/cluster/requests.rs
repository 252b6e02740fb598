//! The requests of a gateway: who waits for which, and what has come of it.
//!
//! The protocol thread hands over the client's events ([`Requests::take`], which never blocks) and wakes whoever waits when
//! there is something to do for it. The client decides how a request goes and when it ends; here is only what it has told so
//! far, for the one who waits.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use quorate_protocol::{
    ProcessId,
    rubberband::{ClientError, ClientEvent, Config, Spent, TableEntry},
};
use quorate_sql::backend::{Catalog, Fault, Table};
use quorate_table::schema::TableId;
use quorate_tables::gateway;
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use tokio::sync::{mpsc, oneshot, watch};

use super::fault::{no_room, untaken};

/// The requests of a gateway that have not ended, and what it knows of its domain. It outlives the process behind it: the next
/// one has its requests here as well.
pub(crate) struct Requests {
    waiting: Mutex<FxHashMap<u64, Waiter>>,
    token: AtomicU64,
    /// No majority of the routers leads, as far as this gateway hears.
    adrift: AtomicBool,
    config: watch::Sender<Option<Arc<Config>>>,
    catalog: RwLock<Arc<Catalog>>,
}

pub(super) enum Waiter {
    Write {
        parts: Vec<Bytes>,
        sender: oneshot::Sender<Result<Vec<Bytes>, ClientError>>,
    },
    Gathering(Gathering),
    /// A long read whose connection has its streams.
    Streaming(BTreeMap<ProcessId, mpsc::UnboundedSender<Result<Bytes, Fault>>>),
}

/// A read whose answers have not all begun.
pub(super) struct Gathering {
    pub(super) parts: Vec<Answered>,
    pub(super) sender: oneshot::Sender<Result<Gathered, ClientError>>,
}

/// What a process has answered. Nearly always it is one piece.
pub(super) struct Answered {
    pub(super) from: ProcessId,
    pub(super) spent: Spent,
    pub(super) pieces: SmallVec<[Bytes; 1]>,
    /// It is all here.
    ended: bool,
}

/// What a read begins with.
pub(super) enum Gathered {
    /// All of it.
    Whole(Vec<Answered>),
    /// A stream per process.
    Streams(Vec<(ProcessId, mpsc::UnboundedReceiver<Result<Bytes, Fault>>)>),
}

impl Default for Requests {
    fn default() -> Self {
        Requests {
            waiting: Mutex::default(),
            token: AtomicU64::new(0),
            adrift: AtomicBool::new(false),
            config: watch::Sender::new(None),
            catalog: RwLock::default(),
        }
    }
}

impl Requests {
    fn waiting(&self) -> MutexGuard<'_, FxHashMap<u64, Waiter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a request wait for its end, under a name that no other has.
    pub(super) fn add(&self, waiter: Waiter) -> u64 {
        let token = self.token.fetch_add(1, Ordering::Relaxed) + 1;
        self.waiting().insert(token, waiter);
        token
    }

    /// Nobody waits for this one any more. Whether it had not ended.
    pub(super) fn remove(&self, token: u64) -> bool {
        self.waiting().remove(&token).is_some()
    }

    /// The newest configuration, once there is one.
    pub(crate) fn config(&self) -> Option<Arc<Config>> {
        self.config.borrow().clone()
    }

    /// Waits for a configuration of which this is so.
    pub(crate) async fn config_where(&self, mut is_so: impl FnMut(&Config) -> bool) {
        let mut configs = self.config.subscribe();
        // The sender is here: it is not dropped meanwhile.
        let _ = configs.wait_for(|config| config.as_deref().is_some_and(&mut is_so)).await;
    }

    pub(super) fn is_adrift(&self) -> bool {
        self.adrift.load(Ordering::Relaxed)
    }

    pub(super) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The process has ended and answers nothing more: what of its requests may have happened stays open.
    pub(crate) fn end(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        let mut waiting: Vec<(u64, Waiter)> = waiting.into_iter().collect();
        waiting.sort_unstable_by_key(|(token, _)| *token);
        for (_, waiter) in waiting {
            // The senders of all others go, which says the same.
            if let Waiter::Streaming(streams) = waiter {
                break_off(streams, None);
            }
        }
        self.adrift.store(false, Ordering::Relaxed);
    }

    /// Takes an event. Never blocks.
    pub(crate) fn take(&self, event: ClientEvent) {
        match event {
            ClientEvent::Config(config) => {
                // Statements are bound against a catalog, and not anew because somebody joined.
                let same = |before: &Arc<Config>| {
                    before.tables == config.tables && before.replicas == config.replicas
                };
                if !self.config().is_some_and(|before| same(&before)) {
                    *self.catalog.write().unwrap_or_else(PoisonError::into_inner) =
                        Arc::new(catalog_of(&config));
                }
                self.config.send_replace(Some(config));
            }
            ClientEvent::Part { token, from, content, last, spent } => {
                self.part(token, from, content, last, spent);
            }
            ClientEvent::Gathered { token } => self.gathered(token),
            ClientEvent::Restart { token } => self.restart(token),
            ClientEvent::Done { token, .. } => {
                let waiter = self.waiting().remove(&token);
                match waiter {
                    // Whoever waited may be gone; the request is done all the same.
                    Some(Waiter::Write { parts, sender, .. }) => drop(sender.send(Ok(parts))),
                    Some(Waiter::Gathering(Gathering { mut parts, sender, .. })) => {
                        // Whoever explains them tells them in one order.
                        parts.sort_unstable_by_key(|part| part.from);
                        drop(sender.send(Ok(Gathered::Whole(parts))));
                    }
                    Some(Waiter::Streaming(_)) | None => {}
                }
            }
            ClientEvent::Failed { token, error } => {
                let waiter = self.waiting().remove(&token);
                match waiter {
                    Some(Waiter::Write { sender, .. }) => drop(sender.send(Err(error))),
                    Some(Waiter::Gathering(read)) => drop(read.sender.send(Err(error))),
                    Some(Waiter::Streaming(streams)) => break_off(streams, Some(error)),
                    None => {}
                }
            }
            ClientEvent::Adrift(adrift) => self.adrift.store(adrift, Ordering::Relaxed),
            ClientEvent::Unreached { .. } | ClientEvent::Wedged => {}
        }
    }

    fn part(&self, token: u64, from: ProcessId, content: Bytes, last: bool, spent: Spent) {
        let mut waiting = self.waiting();
        match waiting.get_mut(&token) {
            Some(Waiter::Write { parts, .. }) => parts.push(content),
            Some(Waiter::Gathering(read)) => match read.parts.iter_mut().find(|part| part.from == from) {
                Some(part) => {
                    part.pieces.push(content);
                    part.ended = last;
                }
                None => {
                    let pieces = smallvec![content];
                    read.parts.push(Answered { from, spent, pieces, ended: last });
                }
            },
            Some(Waiter::Streaming(streams)) => {
                if let Some(stream) = streams.get(&from) {
                    // A receiver that is gone cancels the request when it goes.
                    let _ = stream.send(Ok(content));
                }
                if last {
                    streams.remove(&from);
                }
            }
            None => {}
        }
    }

    /// The answers have all begun: a read that is not complete already becomes streams.
    fn gathered(&self, token: u64) {
        let mut waiting = self.waiting();
        let unfinished = |waiter: &Waiter| matches!(waiter, Waiter::Gathering(read) if !read.parts.iter().all(|part| part.ended));
        if !waiting.get(&token).is_some_and(unfinished) {
            return;
        }
        let Some(Waiter::Gathering(read)) = waiting.remove(&token) else { return };
        let mut senders = BTreeMap::new();
        let mut streams = Vec::with_capacity(read.parts.len());
        for Answered { from, pieces, ended, .. } in read.parts {
            let (sender, receiver) = mpsc::unbounded_channel();
            for piece in pieces {
                let _ = sender.send(Ok(piece));
            }
            // What is all here ends; its reader may be waited for before another's rest is taken.
            if !ended {
                senders.insert(from, sender);
            }
            streams.push((from, receiver));
        }
        // Whoever is gone already finds it here, and cancels it.
        waiting.insert(token, Waiter::Streaming(senders));
        let _ = read.sender.send(Ok(Gathered::Streams(streams)));
    }

    fn restart(&self, token: u64) {
        let mut waiting = self.waiting();
        match waiting.get_mut(&token) {
            Some(Waiter::Gathering(read)) => read.parts.clear(),
            // Rows may have reached the user, and the new attempt would tell them again.
            Some(Waiter::Streaming(_)) => {
                if let Some(Waiter::Streaming(streams)) = waiting.remove(&token) {
                    break_off(streams, None);
                }
            }
            Some(Waiter::Write { .. }) | None => {}
        }
    }
}

/// Ends streams of which some rows may have reached the user.
fn break_off(
    streams: BTreeMap<ProcessId, mpsc::UnboundedSender<Result<Bytes, Fault>>>,
    error: Option<ClientError>,
) {
    for stream in streams.into_values() {
        let fault = match error {
            Some(ClientError::Died { process, again }) => Fault::Died { process: process.to_string(), again },
            Some(ClientError::NoRoom { .. }) => no_room(),
            Some(ClientError::Untaken { .. }) => untaken(),
            _ => Fault::Retry { reason: String::from("a replica was lost in the middle of the answer") },
        };
        let _ = stream.send(Err(fault));
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
    use quorate_protocol::id::Incarnation;
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn the_catalog_stays_while_tables_do() {
        let events = Requests::default();
        let told = |replicas: u8| {
            events.take(ClientEvent::Config(Arc::new(Config::new(replicas))));
            events.catalog()
        };
        let first = told(3);
        assert!(Arc::ptr_eq(&first, &told(3)));
        assert!(!Arc::ptr_eq(&first, &told(2)));
    }

    #[test]
    fn who_is_gone_when_answers_begin_still_finds_the_read() {
        let events = Requests::default();
        let (sender, receiver) = oneshot::channel();
        let from = ProcessId { node: 1, incarnation: Incarnation(1) };
        let part = Answered { from, spent: Spent::default(), pieces: smallvec![], ended: false };
        let token = events.add(Waiter::Gathering(Gathering { parts: vec![part], sender }));
        drop(receiver);
        events.take(ClientEvent::Gathered { token });
        assert!(events.remove(token), "so that it is cancelled");
    }

    #[test]
    fn a_process_that_ended_answers_nothing_more() {
        let requests = Requests::default();
        let (sender, mut receiver) = oneshot::channel();
        let token = requests.add(Waiter::Write { parts: Vec::new(), sender });
        requests.end();
        assert!(receiver.try_recv().is_err(), "the one who waits is told");
        assert!(!requests.remove(token));
    }
}
