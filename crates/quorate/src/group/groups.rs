//! A node's process that holds groups, over all incarnations of the process, and the joining of a group.

use std::{
    fmt, future,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use quorate_protocol::{
    DomainId, ProcessId,
    group::{Command, Failure, GROUP_NAME_BYTES_MAX, GroupCounters, GroupId, Offer},
};
use quorate_runtime::{
    Config, chance,
    counters::Counters,
    metrics::{Counter, Gauge, Metrics},
};
use tokio::sync::oneshot;
use tracing::warn;

use super::{
    Key, Member, Object, checkpoint::Loaded, keeper::Keeper, key::GroupKeys, member, process::Process,
    replica::JoinerState, shared::Seat,
};
use crate::{
    address::{advertised, ask_domain, bind},
    error::{Error, groups::DROPPED},
    lock::lock,
    pending::{Pending, on_a_thread},
    timer,
};

/// A node's part in process groups: a process of the domain on threads of its own. Its clones, and the
/// members that it made, share it. When the last clone and the last member are dropped, the process ends as
/// if it had been killed. [`Groups::leave`] ends it in order.
///
/// A process that the domain has dropped never comes back, nor do its members ([`Error::Wedged`]). The next
/// join starts a new process.
#[derive(Clone)]
pub(crate) struct Groups(Arc<GroupsInner>);

struct GroupsInner {
    settings: GroupsSettings,
    present: Mutex<Option<Arc<Process>>>,
    gauges: Gauges,
}

/// The gauges of a process with groups, for Prometheus.
struct Gauges {
    metrics: Metrics,
    processes: Counter,
    wedged: Gauge,
    inbox: Gauge,
    late: Gauge,
    figures: Vec<(Gauge, GroupFigure)>,
    datagrams: Vec<(Gauge, Count)>,
}

/// A function that reads one number from the protocol's counters.
type GroupFigure = fn(&GroupCounters) -> u64;

/// Gauges of the protocol's counters: name, help text, reader.
const FIGURES: [(&str, &str, GroupFigure); 14] = [
    ("groups", "Groups that this process is in, or about to be", |figures| figures.groups),
    ("group_views", "Views that have begun since the present process started", |figures| figures.views),
    (
        "group_view_wait_us_max",
        "Longest time that soft sends of a member waited for a view, in µs",
        |figures| figures.longest_wait.as_micros().try_into().unwrap_or(u64::MAX),
    ),
    ("group_gaps", "Requests for soft messages of other processes that did not arrive", |figures| {
        figures.gaps
    }),
    ("group_resent", "Soft messages sent once more, because others lacked them", |figures| figures.resent),
    ("group_cast", "Casts of soft messages to single processes", |figures| figures.cast),
    ("group_multicast", "Casts of soft messages to multicast addresses", |figures| figures.multicast),
    ("group_addresses", "Multicast addresses that this process listens to", |figures| figures.addresses),
    ("group_unwanted", "Casts that arrived for groups without a member in this process", |figures| {
        figures.unwanted
    }),
    ("group_cast_fallbacks", "Times that casting to a process was suspended for a while", |figures| {
        figures.fallbacks
    }),
    ("group_held_bytes", "Bytes of soft messages that are held until all members have them", |figures| {
        figures.held_bytes
    }),
    ("group_waiting", "Ordered messages that wait to be delivered in this process", |figures| {
        figures.waiting
    }),
    ("group_firewalled", "Messages refused because their sender was dropped from the group", |figures| {
        figures.firewalled
    }),
    ("group_refused", "Messages refused because no correct process sends them", |figures| figures.refused),
];

/// A function that reads one counter of the process's sockets.
type Count = fn(&Counters) -> u64;

/// Gauges of the datagram counters: name, help text, reader.
const DATAGRAMS: [(&str, &str, Count); 4] = [
    ("group_datagrams_sent", "Datagrams that the present process has sent", |counters| {
        counters.datagrams_sent.get()
    }),
    ("group_datagrams_received", "Datagrams that the present process has received", |counters| {
        counters.datagrams_received.get()
    }),
    (
        "group_datagrams_refused",
        "Datagrams refused because they came without a link or could not be decoded",
        |counters| counters.datagrams_refused.get(),
    ),
    (
        "group_datagrams_unwanted",
        "Multicast datagrams of processes that share no group with this process",
        |counters| counters.datagrams_unwanted.get(),
    ),
];

impl Gauges {
    fn new() -> Gauges {
        let metrics = Metrics::default();
        let figures = FIGURES.map(|(name, help, figure)| (metrics.gauge(name, help), figure)).into();
        Gauges {
            processes: metrics.counter(
                "group_processes",
                "Processes that this node started, each after the former one was dropped",
            ),
            wedged: metrics.gauge(
                "group_wedged",
                "Whether the process was dropped: 1 until the next process is started",
            ),
            inbox: metrics
                .gauge("group_inbox_bytes", "Bytes of updates that are delivered and not applied yet"),
            late: metrics.gauge(
                "group_late_replies",
                "Replies that were dropped because they came after the end of their query",
            ),
            datagrams: DATAGRAMS.map(|(name, help, figure)| (metrics.gauge(name, help), figure)).into(),
            figures,
            metrics,
        }
    }

    fn show(&self, process: Option<&Process>) {
        self.wedged.set(process.is_some_and(|process| process.shared.is_wedged()).into());
        let (figures, inbox) = process.and_then(Process::figures).unwrap_or_default();
        self.inbox.set(inbox as i64);
        let late = process.map_or(0, Process::late_replies);
        self.late.set(i64::try_from(late).unwrap_or(i64::MAX));
        for (gauge, figure) in &self.figures {
            gauge.set(i64::try_from(figure(&figures)).unwrap_or(i64::MAX));
        }
        let counters = process.map(Process::counters);
        for (gauge, count) in &self.datagrams {
            gauge.set(counters.map_or(0, |counters| i64::try_from(count(counters)).unwrap_or(i64::MAX)));
        }
    }
}

/// The settings of a process with groups.
pub(crate) struct GroupsSettings {
    /// Addresses of routers, `host:port`.
    pub(crate) routers: Vec<String>,
    /// The routers' domain; if `None`, the process asks the routers for it.
    pub(crate) domain: Option<DomainId>,
    /// The address at which the process listens for other members.
    pub(crate) listen: String,
    /// The address at which other members reach the process, if not `listen`. Port 0 stands for the port at
    /// which the process listens.
    pub(crate) advertise: Option<String>,
    /// Whether the process may listen at addresses other than loopback.
    pub(crate) insecure: bool,
    /// Upper bound of the time to join, including the transfer of the state.
    pub(crate) patience: Duration,
    /// Length of the longest datagram, in bytes.
    pub(crate) datagram_bytes: usize,
    /// Upper bound of the number of updates that travel in one message.
    pub(crate) pack: u32,
}

/// A group with this name, and the options of a join.
#[derive(Clone, Debug)]
pub struct Group {
    groups: Groups,
    name: String,
    key: Option<Key>,
    checkpoint_file: Option<PathBuf>,
    /// Whether the member begins with its own state although the routers know a newer checkpoint.
    forced: bool,
}

impl Groups {
    /// Makes a node's groups. The process starts at the first join.
    pub(crate) fn new(settings: GroupsSettings) -> Groups {
        Groups(Arc::new(GroupsInner { settings, present: Mutex::new(None), gauges: Gauges::new() }))
    }

    /// Returns the group of this name. The group comes into existence when its first member joins.
    pub(crate) fn group(&self, name: impl Into<String>) -> Group {
        let (groups, name) = (self.clone(), name.into());
        Group { groups, name, key: None, checkpoint_file: None, forced: false }
    }

    /// Leaves all groups and the domain, and ends the members. First saves the state of members with a
    /// checkpoint file, for at most 30 s; then waits until all members have left, for at most 3 s. An error
    /// means that a state was not saved.
    pub(crate) async fn leave(self) -> Result<(), Error> {
        let Some(process) = lock(&self.0.present).take() else { return Ok(()) };
        let seats = process.groups();
        let saving = async {
            let closing: Vec<_> =
                seats.iter().filter_map(|seat| Some((seat, process.shared.close(seat)?))).collect();
            let mut saved = Ok(());
            for (seat, closing) in closing {
                saved = saved.and(member::finish(seat, closing).await);
            }
            saved
        };
        let saved = timer::timeout(SAVE_PATIENCE, saving).await.unwrap_or_else(|| {
            let why = String::from("the disk or the routers do not answer, so a checkpoint is not saved");
            Err(Error::MaybeApplied { id: None, why })
        });
        if let Err(why) = &saved {
            warn!(%why, "this node leaves its groups before all checkpoints are saved");
        }
        let left = async {
            let leaving: Vec<_> = seats.iter().map(|seat| process.shared.leave(seat)).collect();
            for ending in leaving {
                // An error means that the process has ended, so there is nothing to leave.
                let _ = ending.await;
            }
            let _ = process.exit().await;
        };
        timer::timeout(LEAVE_PATIENCE, left).await;
        process.stop();
        saved
    }

    /// Returns the metrics, brought up to date.
    pub(crate) fn metrics(&self) -> Metrics {
        let present = lock(&self.0.present).clone();
        self.0.gauges.show(present.as_deref());
        self.0.gauges.metrics.clone()
    }

    /// Stops without a message, as if the process had been killed. The other members detect the loss.
    pub(crate) fn abandon(self) {
        if let Some(process) = lock(&self.0.present).take() {
            process.stop();
        }
    }

    /// Returns the running process, unless there is none or the domain has dropped it.
    fn present(&self) -> Option<Arc<Process>> {
        // Another thread may hold the lock while it starts a process. The caller then waits for the lock on a
        // blocking thread, not here.
        let present = self.0.present.try_lock().ok()?;
        present.as_ref().filter(|process| !process.shared.is_wedged()).cloned()
    }

    /// Returns the running process, or starts one.
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

/// Longest time for which a leaving process waits for the others to acknowledge.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);
/// Upper bound of the wait for checkpoints of a process that leaves.
const SAVE_PATIENCE: Duration = Duration::from_secs(30);

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
            None => ask_domain(&self.routers, self.patience)?,
        };
        // The process continues no earlier process, so its node number is random.
        let me = ProcessId { node: chance::Chance::new().bits(), incarnation: chance::incarnation() };
        let (listener, bound) = bind(&self.listen)?;
        let address = advertised(self.advertise.as_deref(), bound);
        let mut config = Config::new(domain, me, Vec::new());
        config.listening = vec![listener];
        (config.insecure, config.advertise) = (self.insecure, Some(address.clone()));
        // Soft sends travel as datagrams.
        config.datagrams = Some(self.datagram_bytes);
        Process::start(config, address, self.routers.clone(), self.pack)
    }
}

/// Returns the id of the group of this name: a hash of the name.
pub(super) fn number(name: &str) -> GroupId {
    GroupId(xxhash_rust::xxh3::xxh3_64(name.as_bytes()))
}

impl Group {
    /// Returns the group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the group's [key](Key). Members seal their messages with it, and a join without it is refused.
    /// The first member decides whether the group has a key.
    pub fn key(self, key: Key) -> Group {
        Group { key: Some(key), ..self }
    }

    /// Keeps the group's state in this file, which belongs to this member alone. The member saves when
    /// [`Member::save`] asks for it, and when it leaves. If nobody is in the group, the first member to join
    /// continues from its file, provided that the routers know no newer one. Otherwise the join fails
    /// ([`Error::Stale`](crate::Error::Stale)). If there is no file and the routers know of none, the member
    /// begins with its object. If the group has members, the state comes from them.
    ///
    /// Only the owner can read the file, because it holds the group's key, if there is one. A join without
    /// [`Group::key`] takes the key from the file. A damaged file, or one of another group, is refused and
    /// left unchanged ([`Error::File`](crate::Error::File), [`Error::Mismatch`](crate::Error::Mismatch)). A
    /// file that another member uses is refused, too: a neighbouring file whose name ends in `.lock` stays
    /// locked while the member lives.
    pub fn checkpoint_file(self, path: impl Into<PathBuf>) -> Group {
        Group { checkpoint_file: Some(path.into()), ..self }
    }

    /// Lets the member join although the routers know a newer checkpoint than this process has. If nobody is
    /// in the group, the group continues from the local file, or from `object`. **All changes since that
    /// state are lost**, flushed and safe sends included. The permission covers one join: until the next
    /// save, the routers still name the newer checkpoint.
    pub fn give_up_newer_checkpoint(self) -> Group {
        Group { forced: true, ..self }
    }

    /// Joins the group. The future ends once the member has the group's state. The first member to join
    /// begins with `object`, or with the group's [checkpoint file](Group::checkpoint_file). Dropping the
    /// future ends the member.
    ///
    /// A second join of the same group gives the node another member, with its own object. The members of a
    /// node share one process, its links and its receipts. So a further member of a node costs the group no
    /// extra messages, but members of one node fail together. A node has at most one member of a group with a
    /// key or a checkpoint file.
    pub fn join<R: Object>(&self, object: R) -> Pending<'static, Member<R>> {
        let Group { groups, name, key, checkpoint_file, forced } = self.clone();
        let patience = groups.0.settings.patience;
        let started: Pending<_> = match groups.present() {
            Some(process) => Box::pin(future::ready(Ok(process))),
            None => {
                let starter = groups.clone();
                on_a_thread("start", move || starter.process())
            }
        };
        Box::pin(async move {
            if name.is_empty() || name.len() > GROUP_NAME_BYTES_MAX || name.contains(char::is_control) {
                let most = GROUP_NAME_BYTES_MAX;
                return Err(Error::invalid(format!(
                    "the name of a group has 1 to {most} bytes, and no control characters"
                )));
            }
            let until = Instant::now() + patience;
            let process = started.await?;
            let (sender, ready) = oneshot::channel();
            let group = number(&name);
            let domain = process.domain();
            let (object, loaded, keeper) = match checkpoint_file {
                Some(path) => {
                    let name = name.clone();
                    let read = move || {
                        let keeper = Keeper::claim(path.clone(), domain)?;
                        let loaded = Loaded::read(&path, domain, &name, &object)?;
                        Ok((object, loaded, Some(Arc::new(keeper))))
                    };
                    on_a_thread("checkpoint", read).await?
                }
                None => (object, None, None),
            };
            let offer = Offer { checkpoint: loaded.as_ref().map(|loaded| loaded.mark), forced };
            let loaded = loaded.map(|loaded| loaded.check_key(key.as_ref()).map(|()| loaded));
            let from_file = loaded.as_ref().and_then(|loaded| loaded.as_ref().ok()?.key().cloned());
            let numbers = process.shared.numbers.clone();
            let group_keys =
                key.or(from_file).map(|key| Arc::new(GroupKeys::new(group, process.me(), key, numbers)));
            let brought = JoinerState { object, loaded };
            let (me, is_alone) = (process.me(), group_keys.is_some() || keeper.is_some());
            let seat = |id| Seat::new(name.clone(), group, (me, id), group_keys, keeper, brought, sender);
            let (seat, is_first) = process.seat(group, is_alone, seat)?;
            // From here on, dropping the future makes the member leave.
            let member = Member::new(process.clone(), seat);
            let join = |id| Command::Join { id, group, name: name.clone(), offer };
            let file = offer.checkpoint;
            let joined = is_first.then(|| process.shared.join(member.seat(), file, join)).transpose()?;
            process.shared.reseat(group);
            let wait = async {
                if let Some(joined) = joined {
                    let joined = joined.await.map_err(|_| Error::wedged(DROPPED))?;
                    joined.map_err(|failure| match failure {
                        Failure::Stale(newest) => Error::Stale { file: offer.checkpoint, newest },
                        // The wait for the join ended without an outcome. If the routers admit the process
                        // later, it leaves the group.
                        Failure::MaybeApplied => Error::OutOfTouch,
                        other => other.into(),
                    })?;
                }
                ready.await.map_err(|_| Error::wedged(DROPPED))?
            };
            match timer::timeout(until.saturating_duration_since(Instant::now()), wait).await {
                Some(joined) => {
                    joined.map_err(|error| member.ended().unwrap_or(error))?;
                    Ok(member)
                }
                None => Err(Error::start(format!(
                    "the group `{name}` did not admit this process within {} ms through the routers at {}",
                    patience.as_millis(),
                    groups.0.settings.routers.join(", ")
                ))),
            }
        })
    }
}
