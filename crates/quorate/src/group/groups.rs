//! A process of the domain that holds groups, over its lives, and how one joins.

use std::{
    fmt, future,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use quorate_protocol::{
    DomainId, ProcessId,
    group::{Command, Figures, GROUP_NAME_BYTES_MAX, GroupId},
};
use quorate_runtime::{
    Config, chance,
    metrics::{Counter, Gauge, Metrics},
};
use tokio::sync::oneshot;

use super::{
    Key, Member, Replica,
    inbox::{Seat, lock},
    key::Ring,
    process::Process,
};
use crate::{
    error::{DROPPED, Error},
    node,
    pending::{Pending, on_a_thread},
    timer,
};

/// A node's part in process groups: a process of the domain on threads of its own. Its clones, and the members that it gave, share
/// it; it ends with the last of them, as if it had been killed ([`Groups::leave`] is the polite way).
///
/// A process that was dropped from the domain is over for good, and so are its members ([`Error::Wedged`]). The next one to join does so
/// from a new process.
#[derive(Clone)]
pub(crate) struct Groups(Arc<Inner>);

struct Inner {
    settings: GroupsSettings,
    present: Mutex<Option<Arc<Process>>>,
    gauges: Gauges,
}

/// The figures of processes with groups, as Prometheus reads them.
struct Gauges {
    metrics: Metrics,
    processes: Counter,
    wedged: Gauge,
    inbox: Gauge,
    figures: Vec<(Gauge, Figure)>,
}

/// One of the figures.
type Figure = fn(&Figures) -> u64;

/// The name of a gauge, what it shows, and which figure that is.
const FIGURES: [(&str, &str, Figure); 9] = [
    ("groups", "Groups that this process is in, or about to be", |figures| figures.groups),
    ("group_views", "Views that have begun, of the process at present", |figures| figures.views),
    ("group_view_wait_us_max", "Longest that soft sends of a member waited for a view, in µs", |figures| {
        figures.longest_wait.as_micros().try_into().unwrap_or(u64::MAX)
    }),
    ("group_gaps", "Gaps in soft messages of others that were asked for again", |figures| figures.gaps),
    ("group_resent", "Soft messages sent once more, because others lacked them", |figures| figures.resent),
    ("group_held_bytes", "Soft messages held until all members have them", |figures| figures.held_bytes),
    ("group_waiting", "Ordered messages delivered to nobody here yet", |figures| figures.waiting),
    ("group_firewalled", "Messages of processes that were dropped", |figures| figures.firewalled),
    ("group_refused", "Messages that no correct process sends", |figures| figures.refused),
];

impl Gauges {
    fn new() -> Gauges {
        let metrics = Metrics::default();
        let figures = FIGURES.map(|(name, help, figure)| (metrics.gauge(name, help), figure)).into();
        Gauges {
            processes: metrics
                .counter("group_processes", "Processes started, each after the former was dropped"),
            wedged: metrics
                .gauge("group_wedged", "Whether the process was dropped: 1 until another one is started"),
            inbox: metrics.gauge("group_inbox_bytes", "Bytes delivered and not applied yet"),
            figures,
            metrics,
        }
    }

    fn show(&self, process: Option<&Process>) {
        self.wedged.set(process.is_some_and(|process| process.shared.is_wedged()).into());
        let (figures, inbox) = process.and_then(Process::figures).unwrap_or_default();
        self.inbox.set(inbox as i64);
        for (gauge, figure) in &self.figures {
            gauge.set(i64::try_from(figure(&figures)).unwrap_or(i64::MAX));
        }
    }
}

/// How a process with groups is set up.
pub(crate) struct GroupsSettings {
    /// Where routers may be found, `host:port`.
    pub(crate) routers: Vec<String>,
    /// Their domain. Asked of them unless said.
    pub(crate) domain: Option<DomainId>,
    /// Where it listens for other members.
    pub(crate) listen: String,
    /// Where the others reach it, if not where it listens; port 0 stands for the port that it listens at.
    pub(crate) advertise: Option<String>,
    /// Lets it listen at addresses other than loopback.
    pub(crate) insecure: bool,
    /// How long joining may take, the state included.
    pub(crate) patience: Duration,
}

/// One group, by its name: what is joined.
#[derive(Clone, Debug)]
pub struct Group {
    groups: Groups,
    name: String,
    key: Option<Key>,
}

impl Groups {
    /// The process starts when it joins its first group.
    pub(crate) fn new(settings: GroupsSettings) -> Groups {
        Groups(Arc::new(Inner { settings, present: Mutex::new(None), gauges: Gauges::new() }))
    }

    /// A group of this name. It comes to be when the first joins.
    pub(crate) fn group(&self, name: impl Into<String>) -> Group {
        Group { groups: self.clone(), name: name.into(), key: None }
    }

    /// Leaves all groups and the domain, and waits until that is so, for at most 3 s. Members end.
    pub(crate) async fn leave(self) {
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

    /// Its metrics, brought up to date.
    pub(crate) fn metrics(&self) -> Metrics {
        let present = lock(&self.0.present).clone();
        self.0.gauges.show(present.as_deref());
        self.0.gauges.metrics.clone()
    }

    /// Stops without a word, as if it had been killed: the others find out.
    pub(crate) fn abandon(self) {
        if let Some(process) = lock(&self.0.present).take() {
            process.stop();
        }
    }

    /// The process at present, unless it was dropped.
    fn present(&self) -> Option<Arc<Process>> {
        // Another thread may be starting one. That is waited for on a thread, too.
        let present = self.0.present.try_lock().ok()?;
        present.as_ref().filter(|process| !process.shared.is_wedged()).cloned()
    }

    /// The process at present, or a new one.
    fn process(&self) -> Result<Arc<Process>, Error> {
        let mut present = lock(&self.0.present);
        if let Some(process) = present.as_ref().filter(|process| !process.shared.is_wedged()) {
            return Ok(process.clone());
        }
        let process = Arc::new(self.0.settings.start()?);
        self.0.gauges.processes.inc();
        *present = Some(process.clone());
        Ok(process)
    }
}

/// How long a process that leaves waits for the others to take note.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = lock(&self.0.present).as_ref().map(|process| process.me());
        f.debug_struct("Groups").field("id", &id).finish_non_exhaustive()
    }
}

impl GroupsSettings {
    fn start(&self) -> Result<Process, Error> {
        let domain = match self.domain {
            Some(domain) => domain,
            None => node::ask_domain(&self.routers, self.patience)?,
        };
        // It is nobody's successor, so that its number may be any.
        let me = ProcessId { node: chance::Chance::new().bits(), incarnation: chance::incarnation() };
        let (listener, bound) = node::bind(&self.listen)?;
        let address = node::advertised(self.advertise.as_deref(), bound);
        let mut config = Config::new(domain, me, Vec::new());
        config.listening = vec![listener];
        (config.insecure, config.advertise) = (self.insecure, Some(address.clone()));
        Process::start(config, address, self.routers.clone())
    }
}

impl Group {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The group's [key](Key): what its members say to each other is sealed with it, and who joins without it is refused. The first
    /// to join decides.
    pub fn key(self, key: Key) -> Group {
        Group { key: Some(key), ..self }
    }

    /// Joins it. Ready once the group's state is here; the first to join begins with `object`. A process has one member of a
    /// group. Whoever drops the future gives the member up.
    pub fn join<R: Replica>(&self, object: R) -> Pending<'static, Member<R>> {
        let Group { groups, name, key } = self.clone();
        let patience = groups.0.settings.patience;
        let started: Pending<_> = match groups.present() {
            Some(process) => Box::pin(future::ready(Ok(process))),
            None => {
                let starter = groups.clone();
                on_a_thread("start", move || starter.process())
            }
        };
        Box::pin(async move {
            if name.len() > GROUP_NAME_BYTES_MAX {
                return Err(Error::start(format!(
                    "the name of a group has at most {GROUP_NAME_BYTES_MAX} bytes"
                )));
            }
            let until = Instant::now() + patience;
            let process = started.await?;
            let (told, ready) = oneshot::channel();
            let group = GroupId(xxhash_rust::xxh3::xxh3_64(name.as_bytes()));
            let ring = key.map(|key| Arc::new(Ring::new(group, process.me(), key)));
            let seat = process.seat(Seat::new(name.clone(), group, process.me(), ring, object, told))?;
            // From here on, whoever drops it leaves.
            let member = Member::new(process.clone(), seat);
            let joined = process.shared.call(None, |id| Command::Join { id, group, name: name.clone() })?;
            let wait = async {
                joined.await.map_err(|_| Error::wedged(DROPPED))??;
                ready.await.map_err(|_| Error::wedged(DROPPED))?
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
