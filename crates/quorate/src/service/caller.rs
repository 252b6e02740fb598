//! Calls of a service by a thread that waits for them.
//!
//! A [`Stub`] hands a call to the thread of its links, and is woken by it. A [`Caller`] has no such thread: whoever calls drives the links
//! until the answer is there, which spares two changes of threads for each call.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    time::{Duration, Instant},
};

use quorate_node::{self as node, Channel, Newcomer, Node};
use quorate_protocol::{
    CommandId, Time,
    service::{ClientCommand, ClientEvent, ClientSettings, Fate},
};
use quorate_runtime::{Config, Driven, Host};

use super::{
    Kind, Service,
    hosted::{Command, Event, Hosted, Set},
    press::{Press, opened},
    stub::Told,
};
use crate::{error::Error, seek::Search};

/// Calls one service, one call at a time, and is a client of its own. It is not for async code: calls block.
///
/// Between calls it does nothing. A link may break meanwhile; the next call mends that.
pub struct Caller<S> {
    driven: Driven<Node<Hosted>, Ear>,
    channel: Channel,
    name: String,
    addresses: Arc<[String]>,
    settings: ClientSettings,
    search: Search,
    /// When the addresses are looked at again, and how long after that once more.
    look: Instant,
    pause: Duration,
    /// Calls that were made.
    last: u64,
    found: bool,
    press: Press,
    service: PhantomData<fn() -> S>,
}

/// The pauses between looks at the addresses, while nobody answers.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

impl<S: Service> Caller<S> {
    /// A client of a service whose hosts are at some of these addresses. Nobody is waited for: calls do that.
    pub(super) fn start(
        config: Config,
        channel: Channel,
        name: &str,
        addresses: Arc<[String]>,
        settings: ClientSettings,
    ) -> Result<Caller<S>, Error> {
        let search = Search::quiet(config.domain, config.me, addresses.to_vec());
        let mut node = Node::new();
        let client = Newcomer::home(channel, Hosted::client(settings.clone())).vital();
        assert!(node.add(client).is_ok(), "it is the only endpoint");
        let driven = Driven::start(node, Ear::default(), config).map_err(Error::start)?;
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
            press: Press::default(),
            service: PhantomData,
        })
    }

    /// Calls the service, and waits for the reply, or until it is clear that there is none.
    pub fn call(&mut self, request: &S::Request) -> Result<S::Reply, Error> {
        let (read, keys) = (S::kind(request) == Kind::Read, S::keys(request));
        let sealed = self.press.seal(&[], request);
        let request = sealed.map_err(|why| Error::invalid(format!("the request: {why}")))?;
        let command = CommandId(self.last);
        self.last += 1;
        self.tell(Command::Calls(vec![ClientCommand::Call { command, read, keys, request }]));
        let fate = self.wait();
        let told = Told {
            name: &self.name,
            found: self.found,
            wait: self.settings.wait,
            addresses: &self.addresses,
        };
        let reply = told.reply(fate)?;
        opened(&reply)
            .map_err(|error| Error::mismatch("the reply", format!("the call took effect, and {error}")))
    }

    /// Drives the links until the call that is under way has ended. The client ends each within its time.
    fn wait(&mut self) -> Fate {
        // A set that is known leads to its replicas by itself, unless all of them are gone.
        self.look = if self.found { Instant::now() + PAUSE_MAX } else { Instant::now() };
        self.pause = PAUSE_MIN;
        loop {
            let now = Instant::now();
            if now >= self.look {
                let peers = self.search.look();
                if !peers.is_empty() {
                    self.tell(Command::Seeds(peers));
                }
                self.look = Instant::now() + self.pause;
                self.pause = (2 * self.pause).min(PAUSE_MAX);
            }
            self.driven.turn(self.look.saturating_duration_since(Instant::now()));
            let ear = self.driven.host();
            if let Some(fate) = ear.fate.take() {
                return fate;
            }
            if let Some(set) = ear.shown.take().filter(|_| !self.found) {
                self.found = true;
                self.tell(Command::Begin { set, founded: false });
            }
        }
    }

    fn tell(&mut self, command: Command) {
        let taken = self.driven.command(node::Command::Home(self.channel, command));
        assert!(taken.is_ok(), "each turn takes all commands");
    }
}

impl<S> fmt::Debug for Caller<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("service", &self.name).finish_non_exhaustive()
    }
}

/// The host: it keeps the outcome of the call, and the set that was shown.
#[derive(Default)]
struct Ear {
    fate: Option<Fate>,
    /// The first set that was shown.
    shown: Option<Set>,
}

impl Host<Node<Hosted>> for Ear {
    fn event(&mut self, event: node::Event<Hosted>, _: Time) {
        match event {
            node::Event::Home(_, Event::Client(ClientEvent { fate, .. })) => {
                assert!(self.fate.replace(fate).is_none(), "one call is under way");
            }
            node::Event::Stranger { theirs, .. } if self.shown.is_none() => {
                self.shown = Set::of_pass(&theirs);
            }
            // A session with one who sends what is no message ends, and another one is asked.
            _ => {}
        }
    }
}
