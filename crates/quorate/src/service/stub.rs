//! Calls of services.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use bytes::Bytes;
use quorate_protocol::{
    CommandId,
    service::{ClientCommand, ClientSettings, Fate},
};
use tokio::sync::{Semaphore, oneshot};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    CallId, Kind, Service,
    encoder::Encoder,
    fate_context::{FateContext, decode_reply},
    process::{CALLS_MAX, ClientCalls, EndpointHandle, EndpointKind, Process, config},
    service_endpoint::ServiceEndpoint,
};
use crate::{error::Error, pending::Pending};

/// A client of services: a process of its own, on threads of this program. Its clones, and the stubs that it
/// made, share it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(super) process: Arc<Process>,
    pub(super) addresses: Arc<[String]>,
    pub(super) settings: ClientSettings,
}

impl Connection {
    /// Makes a client of services of this domain whose hosts are at some of these addresses. Does not wait
    /// for the hosts; calls wait for them, at most for `wait`.
    pub(crate) fn start(domain: &str, addresses: Vec<String>, wait: Duration) -> Result<Connection, Error> {
        let settings = ClientSettings { wait, ..ClientSettings::default() };
        let process = Process::start(config(domain), addresses.clone(), None, None)?;
        Ok(Connection { process, addresses: addresses.into(), settings })
    }

    /// Returns the stub of a service. The first call finds out whether there is a service of this name.
    pub(crate) fn service<S: Service>(&self, name: &str) -> Stub<S> {
        let (kind, service_endpoint) =
            (EndpointKind::Client(ClientCalls::default()), ServiceEndpoint::client(self.settings.clone()));
        let endpoint = self.process.add(name, kind, service_endpoint, None).unwrap_or_else(|there| there);
        let window = Arc::new(Semaphore::new(CALLS_MAX));
        Stub { connection: self.clone(), endpoint, window, service: PhantomData }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// A client of one service. A stub finds the replicas and follows their leader. It sends an unanswered call
/// to the next leader under the same name, so that the call takes effect once.
pub struct Stub<S> {
    pub(super) connection: Connection,
    pub(super) endpoint: Arc<EndpointHandle>,
    window: Arc<Semaphore>,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> Stub<S> {
    /// Calls the service. This method encodes the request, and the first poll of the future sends it. Up to
    /// 8,192 calls may be in progress, and further calls wait for their turn. If the future is dropped, the
    /// call may still take effect.
    pub fn call(&self, request: &S::Request) -> Pending<'static, S::Reply> {
        let calls = self.calls(std::slice::from_ref(request));
        Box::pin(async move { calls.await?.pop().expect("a call has one outcome") })
    }

    /// Calls the service with a key of the caller's choice: the call takes effect once, however often and
    /// through whichever client it is repeated with this key. A repetition gets the first reply. If the
    /// repetition has another request, it fails with [`Error::Reused`]. The replicas remember the latest
    /// 65,536 keys of a service. A call with a forgotten key takes effect again. A rejected call does not use
    /// up its key.
    pub fn call_keyed(&self, key: &str, request: &S::Request) -> Pending<'static, S::Reply> {
        let reply = self.call_for_bytes(Some(key), request);
        Box::pin(async move { decode_reply(&reply.await?) })
    }

    /// Calls the service, with a key if there is one, and returns the bytes of the reply.
    pub(super) fn call_for_bytes(&self, key: Option<&str>, request: &S::Request) -> Pending<'static, Bytes> {
        let (read, keys) = (S::kind(request) == Kind::Read, S::keys(request));
        let key = key.map(|key| xxh3_64(key.as_bytes()));
        let encoded = Encoder::default().encode(&[], request);
        let this = self.clone();
        Box::pin(async move {
            let request =
                encoded.map_err(|why| Error::invalid(format!("the request cannot be encoded: {why}")))?;
            let call = |command| match key {
                Some(key) => vec![ClientCommand::Keyed { command, key, keys, request }],
                None => vec![ClientCommand::Call { command, read, keys, request }],
            };
            let mut fates = this.send(1, call).await?;
            this.reply(fates.pop().expect("a call has one fate"))
        })
    }

    /// Makes one call for each request. The calls are sent and reported together, which costs less than
    /// single [`call`](Stub::call)s. Each call takes effect or fails on its own. They are executed in order
    /// unless a leader fails meanwhile. If a request does not serialise, no request is sent.
    pub fn calls(&self, requests: &[S::Request]) -> Pending<'static, Vec<Result<S::Reply, Error>>> {
        let mut encoder = Encoder::default();
        let encode = |request| {
            let (read, keys) = (S::kind(request) == Kind::Read, S::keys(request));
            Ok(EncodedRequest { read, keys, request: encoder.encode(&[], request)? })
        };
        let requests: Result<Vec<EncodedRequest>, String> = requests.iter().map(encode).collect();
        let this = self.clone();
        Box::pin(async move {
            let requests =
                requests.map_err(|why| Error::invalid(format!("the request cannot be encoded: {why}")))?;
            let mut fates: Vec<Result<Fate, Error>> = Vec::with_capacity(requests.len());
            let mut requests = requests.into_iter();
            while !requests.as_slice().is_empty() {
                let some: Vec<EncodedRequest> = requests.by_ref().take(CALLS_MAX).collect();
                let count = some.len() as u32;
                let calls = |first: CommandId| {
                    let call = |(name, EncodedRequest { read, keys, request })| ClientCommand::Call {
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

    /// Finds the outcome of a call that ended as [`Error::MaybeApplied`]. If the call has not taken effect,
    /// makes it take effect.
    pub fn again(&self, id: CallId) -> Pending<'static, S::Reply> {
        let this = self.clone();
        Box::pin(async move {
            let again = |command| vec![ClientCommand::Again { command, id: id.0 }];
            let mut fates = this.send(1, again).await?;
            this.outcome(fates.pop().expect("a call has one fate"))
        })
    }

    /// Finds the outcome of a commit that ended as [`Error::MaybeApplied`]. If the transaction can still take
    /// effect, makes it take effect.
    pub fn committed(&self, id: CallId) -> Pending<'static, ()> {
        let this = self.clone();
        Box::pin(async move {
            let again = |command| vec![ClientCommand::Again { command, id: id.0 }];
            let mut fates = this.send(1, again).await?;
            this.reply(fates.pop().expect("a call has one fate")).map(drop)
        })
    }

    /// Sends a write whose bytes are not a request of the service, and waits for its empty reply.
    pub(super) fn call_raw(&self, request: Bytes) -> Pending<'static, ()> {
        let this = self.clone();
        Box::pin(async move {
            let (read, keys) = (false, Vec::new());
            let call = |command| vec![ClientCommand::Call { command, read, keys, request }];
            let mut fates = this.send(1, call).await?;
            this.reply(fates.pop().expect("a call has one fate")).map(drop)
        })
    }

    /// Makes `count` calls, whose commands `calls` returns. Returns the fate of each call.
    pub(super) async fn send(
        &self,
        count: u32,
        calls: impl FnOnce(CommandId) -> Vec<ClientCommand>,
    ) -> Result<Vec<Fate>, Error> {
        self.hand_over(count, calls).await?.fates().await
    }

    /// Passes `count` calls to the protocol thread as soon as the window of calls in progress has room. If
    /// the future is dropped before it is ready, it has passed no call on. After that the calls go on, even
    /// if no caller waits for them.
    pub(super) async fn hand_over(
        &self,
        count: u32,
        calls: impl FnOnce(CommandId) -> Vec<ClientCommand>,
    ) -> Result<HandedOver, Error> {
        let permits =
            self.window.clone().acquire_many_owned(count).await.expect("the window is never closed");
        self.connection.process.call(&self.endpoint, permits, calls).map(HandedOver)
    }

    pub(super) fn outcome(&self, fate: Fate) -> Result<S::Reply, Error> {
        decode_reply(&self.reply(fate)?)
    }

    /// Returns the encoded reply, or the error that describes the fate of the call.
    pub(super) fn reply(&self, fate: Fate) -> Result<Bytes, Error> {
        let Connection { addresses, settings, .. } = &self.connection;
        let found = self.endpoint.set().is_some();
        FateContext { name: &self.endpoint.name, found, wait: settings.wait, addresses }.reply(fate)
    }
}

/// Calls that were passed to the protocol thread.
pub(super) struct HandedOver(oneshot::Receiver<Vec<Fate>>);

impl HandedOver {
    /// Returns the fate of each call, in the order of the calls.
    pub(super) async fn fates(self) -> Result<Vec<Fate>, Error> {
        self.0.await.map_err(|_| {
            let why = String::from("this process's connection to the service has ended");
            Error::MaybeApplied { id: None, why }
        })
    }
}

impl<S> Clone for Stub<S> {
    fn clone(&self) -> Self {
        let (connection, endpoint) = (self.connection.clone(), self.endpoint.clone());
        Stub { connection, endpoint, window: self.window.clone(), service: PhantomData }
    }
}

impl<S> fmt::Debug for Stub<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stub").field("service", &self.endpoint.name).finish_non_exhaustive()
    }
}

/// An encoded request, with its kind and keys.
pub(super) struct EncodedRequest {
    pub(super) read: bool,
    pub(super) keys: Vec<u64>,
    pub(super) request: Bytes,
}
