//! Calls of a service by a thread that waits for them.
//!
//! A [`Stub`] passes a call to the thread of its links, and that thread wakes the calling thread with the
//! answer. A [`Caller`] has no such thread: the calling thread drives the links until the answer is there,
//! which saves two changes of threads for each call.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    time::{Duration, Instant},
};

use quorate_node::{self as node, Channel, NewEndpoint, Node};
use quorate_protocol::{
    CommandId, Time,
    service::{ClientCommand, ClientEvent, ClientSettings, Fate},
};
use quorate_runtime::{Config, Driven, Host};

use super::{
    Kind, Service,
    encoder::{Encoder, decode},
    fate_context::FateContext,
    service_endpoint::{Command, Event, ServiceEndpoint, Set},
    stub::{Connection, Stub},
};
use crate::{error::Error, seek::Search};

/// A client of one service, for one call at a time. It is not for async code, because calls block. Between
/// calls the client does nothing. If a link breaks meanwhile, the next call makes a new link.
pub struct Caller<S> {
    driven: Driven<Node<ServiceEndpoint>, CallerHost>,
    channel: Channel,
    name: String,
    addresses: Arc<[String]>,
    settings: ClientSettings,
    search: Search,
    /// Time of the next search at the addresses.
    look: Instant,
    /// Pause after the next search.
    pause: Duration,
    /// Number of calls so far.
    last: u64,
    found: bool,
    encoder: Encoder,
    service: PhantomData<fn() -> S>,
}

/// The shortest pause between two searches at the addresses while no process answers there. `PAUSE_MAX` is
/// the longest.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

impl<S: Service> Caller<S> {
    /// Makes a client of a service whose hosts are at some of these addresses. Does not wait for a host,
    /// because calls do.
    pub(super) fn start(
        config: Config,
        channel: Channel,
        name: &str,
        addresses: Arc<[String]>,
        settings: ClientSettings,
    ) -> Result<Caller<S>, Error> {
        let search = Search::quiet(config.domain, config.me, addresses.to_vec());
        let mut node = Node::new();
        let client = NewEndpoint::typed(channel, ServiceEndpoint::client(settings.clone())).vital();
        assert!(node.add(client).is_ok(), "the node of a caller has one endpoint");
        let driven = Driven::start(node, CallerHost::default(), config).map_err(Error::start)?;
        Ok(Caller {
            driven,
            channel,
            name: name.to_owned(),
            addresses,
            settings,
            search,
            look: Instant::now(),
            pause: PAUSE_MIN,
            last: 0,
            found: false,
            encoder: Encoder::default(),
            service: PhantomData,
        })
    }

    /// Calls the service. Returns when the reply has come, or when no reply can come.
    pub fn call(&mut self, request: &S::Request) -> Result<S::Reply, Error> {
        let (read, keys) = (S::kind(request) == Kind::Read, S::keys(request));
        let encoded = self.encoder.encode(&[], request);
        let request =
            encoded.map_err(|why| Error::invalid(format!("the request cannot be encoded: {why}")))?;
        let command = CommandId(self.last);
        self.last += 1;
        self.pass_command(Command::Calls(vec![ClientCommand::Call { command, read, keys, request }]));
        let fate = self.wait();
        let fate_context = FateContext {
            name: &self.name,
            found: self.found,
            wait: self.settings.wait,
            addresses: &self.addresses,
        };
        let reply = fate_context.reply(fate)?;
        decode(&reply).map_err(|error| {
            Error::mismatch(
                "the reply",
                format!("the call took effect, and the reply cannot be decoded: {error}"),
            )
        })
    }

    /// Drives the links until the call in progress has ended. The client ends each call within the call's
    /// time limit.
    fn wait(&mut self) -> Fate {
        // A client that knows the set finds its replicas without the addresses, unless all of them are gone.
        self.look = if self.found { Instant::now() + PAUSE_MAX } else { Instant::now() };
        self.pause = PAUSE_MIN;
        loop {
            let now = Instant::now();
            if now >= self.look {
                let peers = self.search.look();
                if !peers.is_empty() {
                    self.pass_command(Command::Seeds(peers));
                }
                self.look = Instant::now() + self.pause;
                self.pause = (2 * self.pause).min(PAUSE_MAX);
            }
            self.driven.turn(self.look.saturating_duration_since(Instant::now()));
            let host = self.driven.host();
            if let Some(fate) = host.fate.take() {
                return fate;
            }
            if let Some(set) = host.shown.take().filter(|_| !self.found) {
                self.found = true;
                self.pass_command(Command::Begin { set, founded: false });
            }
        }
    }

    fn pass_command(&mut self, command: Command) {
        let taken = self.driven.command(node::Command::Typed(self.channel, command));
        assert!(taken.is_ok(), "each turn takes all commands");
    }
}

impl<S> fmt::Debug for Caller<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("service", &self.name).finish_non_exhaustive()
    }
}

/// The host of a caller's client. It keeps the outcome of the call, and the set of replicas that the client
/// found.
#[derive(Default)]
struct CallerHost {
    fate: Option<Fate>,
    /// The first set that a process showed to the client.
    shown: Option<Set>,
}

impl Host<Node<ServiceEndpoint>> for CallerHost {
    fn event(&mut self, event: node::Event<ServiceEndpoint>, _: Time) {
        match event {
            node::Event::Typed(_, Event::Client(ClientEvent { fate, .. })) => {
                assert!(self.fate.replace(fate).is_none(), "one call is under way");
            }
            node::Event::PolicyMismatch { theirs, .. } if self.shown.is_none() => {
                self.shown = Set::of_pass(&theirs);
            }
            // If a peer sends an invalid message, the session ends, and the client asks another replica.
            _ => {}
        }
    }
}

impl<S: Service> Stub<S> {
    /// Makes a client for one thread, whose calls block and cost less each: that thread drives the links
    /// itself while it waits.
    pub fn caller(&self) -> Result<Caller<S>, Error> {
        let Connection { process, addresses, settings } = &self.connection;
        let name = &self.endpoint.name;
        let channel = process.channel(name);
        Caller::start(process.sibling(), channel, name, addresses.clone(), settings.clone())
    }
}
