//! A process of the domain that holds groups, over its lives, and how one joins.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use quorate_protocol::{
    DomainId, ProcessId,
    group::{Command, GroupId},
};
use quorate_runtime::{Config, chance};
use tokio::sync::oneshot;

use super::{
    Error, Member, Pending, Replica,
    inbox::{Seat, lock},
    process::Process,
};
use crate::{node, timer};

/// This program's part in process groups: a process of the domain on threads of its own. Its clones, and the members that it gave, share
/// it; it ends with the last of them, as if it had been killed ([`Groups::leave`] is the polite way).
///
/// A process that was dropped from the domain is over for good, and so are its members ([`Error::Wedged`]). The next one to join does so
/// from a new process.
#[derive(Clone)]
pub struct Groups(Arc<Inner>);

struct Inner {
    settings: GroupsBuilder,
    present: Mutex<Option<Arc<Process>>>,
}

/// How a process with groups is set up ([`Groups::builder`]).
#[derive(Clone, Debug)]
pub struct GroupsBuilder {
    routers: Vec<String>,
    domain: Option<DomainId>,
    listen: String,
    advertise: Option<String>,
    insecure: bool,
    patience: Duration,
}

/// One group, by its name: what is joined.
#[derive(Clone, Debug)]
pub struct Group {
    groups: Groups,
    name: String,
}

impl Groups {
    /// Takes part in groups whose routers are at some of these addresses (`host:port`). It waits for nobody: who joins does.
    pub fn connect<A: Into<String>>(routers: impl IntoIterator<Item = A>) -> Groups {
        Groups::builder().routers(routers).build()
    }

    /// Sets more up.
    pub fn builder() -> GroupsBuilder {
        GroupsBuilder {
            routers: Vec::new(),
            domain: None,
            listen: String::from("127.0.0.1:0"),
            advertise: None,
            insecure: false,
            patience: Duration::from_secs(10),
        }
    }

    /// A group of this name. It comes to be when the first joins.
    pub fn group(&self, name: impl Into<String>) -> Group {
        Group { groups: self.clone(), name: name.into() }
    }

    /// Which process it is at present; none before the first joins.
    pub fn id(&self) -> Option<ProcessId> {
        lock(&self.0.present).as_ref().map(|process| process.me())
    }

    /// Where it listens for other processes; none before the first joins.
    pub fn address(&self) -> Option<SocketAddr> {
        lock(&self.0.present).as_ref().and_then(|process| process.addresses().first().copied())
    }

    /// Leaves all groups and the domain, and waits until that is so, for at most 3 s. Members end.
    pub async fn leave(self) {
        let Some(process) = lock(&self.0.present).take() else { return };
        let left = async {
            let leaving: Vec<_> =
                process.groups().iter().filter_map(|seat| process.shared.leave(seat).ok()).collect();
            for ending in leaving {
                // An error says that the process has ended: nothing is left to leave.
                let _ = ending.await;
            }
            let _ = process.exit().await;
        };
        timer::timeout(LEAVE_PATIENCE, left).await;
        process.stop();
    }

    /// Stops without a word, as if it had been killed: the others find out.
    pub fn abandon(self) {
        if let Some(process) = lock(&self.0.present).take() {
            process.stop();
        }
    }

    /// The process at present, or a new one.
    fn process(&self) -> Result<Arc<Process>, Error> {
        let mut present = lock(&self.0.present);
        if let Some(process) = present.as_ref().filter(|process| !process.shared.is_wedged()) {
            return Ok(process.clone());
        }
        let process = Arc::new(self.0.settings.start()?);
        *present = Some(process.clone());
        Ok(process)
    }
}

/// How long a process that leaves waits for the others to take note.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl GroupsBuilder {
    /// Where routers may be found, `host:port`. All that is needed.
    #[must_use]
    pub fn routers<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.routers = addresses.into_iter().map(Into::into).collect();
        self
    }

    /// The domain of the routers. Asked of them unless said.
    #[must_use]
    pub fn domain(mut self, domain: DomainId) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Where it listens for other members; `127.0.0.1` at a port of the system's choice, unless said otherwise.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = address.into();
        self
    }

    /// Where the others reach it, `host:port`, if not where it listens; port 0 stands for the port that it listens at.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.advertise = Some(address.into());
        self
    }

    /// Lets it listen at addresses other than loopback. Links are neither encrypted nor authenticated.
    #[must_use]
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// How long joining may take, the state included; 10 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The process, which starts when it joins its first group.
    pub fn build(self) -> Groups {
        Groups(Arc::new(Inner { settings: self, present: Mutex::new(None) }))
    }

    fn start(&self) -> Result<Process, Error> {
        let domain = match self.domain {
            Some(domain) => domain,
            None => node::ask_domain(&self.routers, self.patience).map_err(not_started)?,
        };
        // It is nobody's successor, so that its number may be any.
        let me = ProcessId { node: chance::Chance::new().bits(), incarnation: chance::incarnation() };
        let (listener, bound) = node::bind(&self.listen).map_err(not_started)?;
        let address = node::advertised(self.advertise.as_deref(), bound);
        let mut config = Config::new(domain, me, Vec::new());
        config.listening = vec![listener];
        (config.insecure, config.advertise) = (self.insecure, Some(address.clone()));
        Process::start(config, address, self.routers.clone())
    }
}

fn not_started(error: crate::Error) -> Error {
    match error {
        crate::Error::Start { why } => Error::Start { why },
        other => Error::start(other),
    }
}

impl Group {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Joins it. Ready once the group's state is here; the first to join begins with `object`. A process has one member of a
    /// group. Whoever drops the future gives the member up.
    pub fn join<R: Replica>(&self, object: R) -> Pending<Member<R>> {
        let Group { groups, name } = self.clone();
        let patience = groups.0.settings.patience;
        // Starting waits for routers, which is nothing for a thread of an executor.
        let (sender, started) = oneshot::channel();
        let starter = groups.clone();
        let spawned = thread::Builder::new().name(String::from("start")).spawn(move || {
            // The one who joins may have lost interest.
            let _ = sender.send(starter.process());
        });
        Box::pin(async move {
            spawned.map_err(Error::start)?;
            let until = Instant::now() + patience;
            let process = started.await.map_err(|_| Error::start("the thread that starts it panicked"))??;
            let (told, ready) = oneshot::channel();
            let group = GroupId(xxhash_rust::xxh3::xxh3_64(name.as_bytes()));
            let seat = process.seat(Seat::new(name.clone(), group, process.me(), object, told))?;
            // From here on, whoever drops it leaves.
            let member = Member::new(process.clone(), seat);
            let joined = process.shared.call(None, |id| Command::Join { id, group })?;
            let wait = async {
                joined.await.map_err(|_| Error::Wedged)??;
                ready.await.map_err(|_| Error::Wedged)?
            };
            match timer::timeout(until.saturating_duration_since(Instant::now()), wait).await {
                Some(joined) => {
                    joined.map_err(|error| member.ended().unwrap_or(error))?;
                    Ok(member)
                }
                None => Err(Error::start(format!(
                    "`{name}` did not take this process in within {} ms, through {}",
                    patience.as_millis(),
                    groups.0.settings.routers.join(", ")
                ))),
            }
        })
    }
}
