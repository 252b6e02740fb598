//! Calls of services.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use bytes::Bytes;
use quorate_protocol::{
    CommandId,
    service::{Abort, ClientCommand, ClientSettings, Fate},
};
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    CallId, Caller, Kind, Service, Transaction,
    hosted::Hosted,
    press::{Press, opened},
    process::{Calling, Process, Seat, Side, config},
};
use crate::{
    error::{Error, Name},
    pending::Pending,
};

/// A client of services: a process of its own, on threads of this program. Its clones, and the stubs that it gave, share it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(super) process: Arc<Process>,
    addresses: Arc<[String]>,
    settings: ClientSettings,
}

impl Connection {
    /// A client of services of this domain whose hosts are at some of these addresses. It waits for nobody: calls do, for so long.
    pub(crate) fn start(domain: &str, addresses: Vec<String>, wait: Duration) -> Result<Connection, Error> {
        let settings = ClientSettings { wait, ..ClientSettings::default() };
        let process = Process::start(config(domain), addresses.clone(), None, None)?;
        Ok(Connection { process, addresses: addresses.into(), settings })
    }

    /// The stub of a service. Whether there is one of this name is found out by calls.
    pub(crate) fn service<S: Service>(&self, name: &str) -> Stub<S> {
        let (side, hosted) = (Side::Client(Calling::default()), Hosted::client(self.settings.clone()));
        let seat = self.process.add(name, side, hosted, None).unwrap_or_else(|there| there);
        let window = Arc::new(Semaphore::new(CALLS_MAX));
        Stub { connection: self.clone(), seat, window, service: PhantomData }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Calls one service. It finds the replicas, follows their leader, and has a call that was not answered sent to the next one
/// under the same name, so that it takes effect once.
pub struct Stub<S> {
    pub(super) connection: Connection,
    pub(super) seat: Arc<Seat>,
    window: Arc<Semaphore>,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> Stub<S> {
    /// Begins a transaction. Nothing is sent before its first call.
    pub fn begin(&self) -> Transaction<S> {
        Transaction::new(self.clone())
    }

    /// Calls the service. The request is encoded here, and sent when the output is polled for the first time; some thousand calls may be under
    /// way, and more wait for their turn. A call whose output is dropped may take effect all the same.
    pub fn call(&self, request: &S::Request) -> Pending<'static, S::Reply> {
        let calls = self.calls(std::slice::from_ref(request));
        Box::pin(async move { calls.await?.pop().expect("a call has one outcome") })
    }

    /// Calls the service under a key of the caller's choice: the call takes effect once, whichever client calls under this key, and however often. A
    /// repetition is given the reply of the first; with another request it is [`Error::Reused`]. The replicas remember the latest 65,536 keys of a
    /// service; a call under a key that they have forgotten takes effect. A call that is rejected leaves its key as it was.
    pub fn call_keyed(&self, key: &str, request: &S::Request) -> Pending<'static, S::Reply> {
        let (key, keys) = (xxh3_64(key.as_bytes()), S::keys(request));
        let sealed = Press::default().seal(&[], request);
        let this = self.clone();
        Box::pin(async move {
            let request = sealed.map_err(|why| Error::invalid(format!("the request: {why}")))?;
            let call = |command| vec![ClientCommand::Keyed { command, key, keys, request }];
            let mut fates = this.send(1, call).await?;
            this.outcome(fates.pop().expect("a call has one fate"))
        })
    }

    /// As many calls as there are requests, sent and told together, which costs less than so many [`call`](Stub::call)s. Each takes
    /// effect or not on its own; they are executed in their order unless a leader fails meanwhile. If a request does not serialise, none is sent.
    pub fn calls(&self, requests: &[S::Request]) -> Pending<'static, Vec<Result<S::Reply, Error>>> {
        let mut press = Press::default();
        let seal = |request| {
            let (read, keys) = (S::kind(request) == Kind::Read, S::keys(request));
            Ok(Sealed { read, keys, request: press.seal(&[], request)? })
        };
        let requests: Result<Vec<Sealed>, String> = requests.iter().map(seal).collect();
        let this = self.clone();
        Box::pin(async move {
            let requests = requests.map_err(|why| Error::invalid(format!("the request: {why}")))?;
            let mut fates: Vec<Result<Fate, Error>> = Vec::with_capacity(requests.len());
            let mut requests = requests.into_iter();
            while !requests.as_slice().is_empty() {
                let some: Vec<Sealed> = requests.by_ref().take(CALLS_MAX).collect();
                let count = some.len() as u32;
                let calls = |first: CommandId| {
                    let call = |(name, Sealed { read, keys, request })| ClientCommand::Call {
                        command: CommandId(name),
                        read,
                        keys,
                        request,
                    };
                    (first.0..).zip(some).map(call).collect()
                };
                match this.send(count, calls).await {
                    Ok(some) => fates.extend(some.into_iter().map(Ok)),
                    Err(error) => fates.extend((0..count).map(|_| Err(error.clone()))),
                }
            }
            Ok(fates.into_iter().map(|fate| fate.and_then(|fate| this.outcome(fate))).collect())
        })
    }

    /// Finds out about a call that was told as [`Error::MaybeApplied`], and has it take effect if it has not.
    pub fn again(&self, id: CallId) -> Pending<'static, S::Reply> {
        let this = self.clone();
        Box::pin(async move {
            let again = |command| vec![ClientCommand::Again { command, id: id.0 }];
            let mut fates = this.send(1, again).await?;
            this.outcome(fates.pop().expect("a call has one fate"))
        })
    }

    /// Finds out about a commit that was told as [`Error::MaybeApplied`], and has it take effect if it still can.
    pub fn committed(&self, id: CallId) -> Pending<'static, ()> {
        let this = self.clone();
        Box::pin(async move {
            let again = |command| vec![ClientCommand::Again { command, id: id.0 }];
            let mut fates = this.send(1, again).await?;
            this.reply(fates.pop().expect("a call has one fate")).map(drop)
        })
    }

    /// A write whose bytes are no request of the service's, and whose reply is empty.
    pub(super) fn call_raw(&self, request: Bytes) -> Pending<'static, ()> {
        let this = self.clone();
        Box::pin(async move {
            let (read, keys) = (false, Vec::new());
            let call = |command| vec![ClientCommand::Call { command, read, keys, request }];
            let mut fates = this.send(1, call).await?;
            this.reply(fates.pop().expect("a call has one fate")).map(drop)
        })
    }

    /// A client of its own for one thread, whose calls block and cost less each: that thread drives the links itself while it waits.
    pub fn caller(&self) -> Result<Caller<S>, Error> {
        let Connection { process, addresses, settings } = &self.connection;
        let name = &self.seat.name;
        let channel = process.channel(name);
        Caller::start(process.sibling(), channel, name, addresses.clone(), settings.clone())
    }

    /// Makes so many calls, and tells what became of each.
    pub(super) async fn send(
        &self,
        count: u32,
        calls: impl FnOnce(CommandId) -> Vec<ClientCommand>,
    ) -> Result<Vec<Fate>, Error> {
        let permits =
            self.window.clone().acquire_many_owned(count).await.expect("the window is never closed");
        let fates = self.connection.process.call(&self.seat, permits, calls)?.await;
        fates.map_err(|_| {
            let why = String::from("this process's end of the service is gone");
            Error::MaybeApplied { id: None, why }
        })
    }

    pub(super) fn outcome(&self, fate: Fate) -> Result<S::Reply, Error> {
        let reply = self.reply(fate)?;
        opened(&reply)
            .map_err(|error| Error::mismatch("the reply", format!("the call took effect, and {error}")))
    }

    /// The bytes of the reply.
    pub(super) fn reply(&self, fate: Fate) -> Result<Bytes, Error> {
        let Connection { addresses, settings, .. } = &self.connection;
        let found = self.seat.set().is_some();
        Told { name: &self.seat.name, found, wait: settings.wait, addresses }.reply(fate)
    }
}

/// What there is to say of a call whose fate is known.
pub(super) struct Told<'a> {
    pub(super) name: &'a str,
    /// Whether the replicas were found.
    pub(super) found: bool,
    pub(super) wait: Duration,
    pub(super) addresses: &'a [String],
}

impl Told<'_> {
    /// The bytes of the reply.
    pub(super) fn reply(&self, fate: Fate) -> Result<Bytes, Error> {
        match fate {
            Fate::Done(reply) => Ok(reply),
            Fate::Rejected(reason) => Err(Error::rejected(String::from_utf8_lossy(&reason))),
            Fate::Aborted(why) => {
                let why = match why {
                    Abort::Gone => {
                        "its leader was replaced, or it was idle for too long, or a new replica was taken in"
                    }
                    Abort::Deadlock => "it and others would have waited for each other",
                    Abort::TooLarge => "its changes are too many bytes",
                    Abort::Misused => "it was called while a call of it was under way",
                };
                Err(Error::Aborted { why: String::from(why) })
            }
            Fate::Reused => Err(Error::Reused),
            Fate::NotSent => Err(Error::NotSent { why: self.unsent() }),
            Fate::MaybeApplied { id } => {
                let why = format!("no answer within {:?}", self.wait);
                Err(Error::MaybeApplied { id: Some(Name::Call(CallId(id))), why })
            }
            Fate::Expired => {
                Err(Error::Expired { why: String::from("the replicas, or this client, remember it no more") })
            }
        }
    }

    fn unsent(&self) -> String {
        let Told { name, found, wait, addresses } = self;
        match found {
            true => format!("no replica of `{name}` took it within {wait:?}"),
            false => {
                let at = addresses.join(", ");
                format!("nobody who serves `{name}` was found within {wait:?} at {at}")
            }
        }
    }
}

impl<S> Clone for Stub<S> {
    fn clone(&self) -> Self {
        let (connection, seat) = (self.connection.clone(), self.seat.clone());
        Stub { connection, seat, window: self.window.clone(), service: PhantomData }
    }
}

impl<S> fmt::Debug for Stub<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stub").field("service", &self.seat.name).finish_non_exhaustive()
    }
}

/// A request in bytes, and what is said of it.
pub(super) struct Sealed {
    pub(super) read: bool,
    pub(super) keys: Vec<u64>,
    pub(super) request: Bytes,
}

/// So many calls of a stub and its clones are under way at a time.
const CALLS_MAX: usize = 8192;
