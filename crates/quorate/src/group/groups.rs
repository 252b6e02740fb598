//! A process of the domain that holds groups, over its lives, and how one joins.

use std::{
    fmt, future,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use quorate_protocol::{
    DomainId, ProcessId,
    group::{Command, Failure, Figures, GROUP_NAME_BYTES_MAX, GroupId, Offer},
};
use quorate_runtime::{
    Config, chance,
    counters::Counters,
    metrics::{Counter, Gauge, Metrics},
};
use tokio::sync::oneshot;
use tracing::warn;

use super::{
    Key, Member, Object,
    checkpoint::{Keeper, Loaded},
    inbox::{Brought, Seat, lock},
    key::Ring,
    member,
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
    late: Gauge,
    figures: Vec<(Gauge, Figure)>,
    datagrams: Vec<(Gauge, Count)>,
}

/// One of the figures.
type Figure = fn(&Figures) -> u64;

/// The name of a gauge, what it shows, and which figure that is.
const FIGURES: [(&str, &str, Figure); 14] = [
    ("groups", "Groups that this process is in, or about to be", |figures| figures.groups),
    ("group_views", "Views that have begun, of the process at present", |figures| figures.views),
    ("group_view_wait_us_max", "Longest that soft sends of a member waited for a view, in µs", |figures| {
        figures.longest_wait.as_micros().try_into().unwrap_or(u64::MAX)
    }),
    ("group_gaps", "Gaps in soft messages of others that were asked for again", |figures| figures.gaps),
    ("group_resent", "Soft messages sent once more, because others lacked them", |figures| figures.resent),
    ("group_cast", "Soft messages cast, as so many casts, one for each process", |figures| figures.cast),
    ("group_multicast", "Soft messages cast by an address, as so many casts", |figures| figures.multicast),
    ("group_addresses", "Multicast addresses that this process listens to", |figures| figures.addresses),
    ("group_unwanted", "Casts that came of groups in which no member is here", |figures| figures.unwanted),
    ("group_cast_fallbacks", "Times that casts to a process were given up for a while", |figures| {
        figures.fallbacks
    }),
    ("group_held_bytes", "Soft messages held until all members have them", |figures| figures.held_bytes),
    ("group_waiting", "Ordered messages delivered to nobody here yet", |figures| figures.waiting),
    ("group_firewalled", "Messages of processes that were dropped", |figures| figures.firewalled),
    ("group_refused", "Messages that no correct process sends", |figures| figures.refused),
];

/// One of the counts of the process' sockets.
type Count = fn(&Counters) -> u64;

/// The name of a gauge, what it shows, and which count that is.
const DATAGRAMS: [(&str, &str, Count); 4] = [
    ("group_datagrams_sent", "Datagrams sent, of the process at present", |counters| {
        counters.datagrams_sent.get()
    }),
    ("group_datagrams_received", "Datagrams that arrived", |counters| counters.datagrams_received.get()),
    ("group_datagrams_refused", "Datagrams without a link, or without sense", |counters| {
        counters.datagrams_refused.get()
    }),
    (
        "group_datagrams_unwanted",
        "Multicast datagrams of processes with which none here has to do",
        |counters| counters.datagrams_unwanted.get(),
    ),
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
            late: metrics.gauge(
                "group_late_replies",
                "Replies that came when their query had ended, and were dropped",
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
    /// Bytes of a datagram at most.
    pub(crate) datagram_bytes: usize,
    /// Updates that travel together at most.
    pub(crate) pack: u32,
}

/// One group, by its name: what is joined.
#[derive(Clone, Debug)]
pub struct Group {
    groups: Groups,
    name: String,
    key: Option<Key>,
    checkpoint_file: Option<PathBuf>,
    /// Whether it begins with what it has, though a newer checkpoint is known.
    forced: bool,
}

impl Groups {
    /// The process starts when it joins its first group.
    pub(crate) fn new(settings: GroupsSettings) -> Groups {
        Groups(Arc::new(Inner { settings, present: Mutex::new(None), gauges: Gauges::new() }))
    }

    /// A group of this name. It comes to be when the first joins.
    pub(crate) fn group(&self, name: impl Into<String>) -> Group {
        let (groups, name) = (self.clone(), name.into());
        Group { groups, name, key: None, checkpoint_file: None, forced: false }
    }

    /// Leaves all groups and the domain: saves the state of members with a checkpoint file, for at most 30 s, and waits until all have left, for
    /// at most 3 s. Members end. An error says that a state was not saved.
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
            let why = String::from("a checkpoint is not saved: the disk or the routers do not answer");
            Err(Error::MaybeApplied { id: None, why })
        });
        if let Err(why) = &saved {
            warn!(%why, "a node leaves before its checkpoints are saved");
        }
        let left = async {
            let leaving: Vec<_> = seats.iter().filter_map(|seat| process.shared.leave(seat).ok()).collect();
            for ending in leaving {
                // An error says that the process has ended: nothing is left to leave.
                let _ = ending.await;
            }
            let _ = process.exit().await;
        };
        timer::timeout(LEAVE_PATIENCE, left).await;
        process.stop();
        saved
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
/// How long it waits for its checkpoints.
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
            None => node::ask_domain(&self.routers, self.patience)?,
        };
        // It is nobody's successor, so that its number may be any.
        let me = ProcessId { node: chance::Chance::new().bits(), incarnation: chance::incarnation() };
        let (listener, bound) = node::bind(&self.listen)?;
        let address = node::advertised(self.advertise.as_deref(), bound);
        let mut config = Config::new(domain, me, Vec::new());
        config.listening = vec![listener];
        (config.insecure, config.advertise) = (self.insecure, Some(address.clone()));
        // Soft sends are cast.
        config.datagrams = Some(self.datagram_bytes);
        Process::start(config, address, self.routers.clone(), self.pack)
    }
}

/// The number of the group of this name.
pub(super) fn number(name: &str) -> GroupId {
    GroupId(xxhash_rust::xxh3::xxh3_64(name.as_bytes()))
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

    /// Keeps the group's state in this file, which is this member's own: when [`Member::save`] asks for it, and when this member leaves. If
    /// nobody is in the group, the first to join goes on from its file, if that is the newest one that the routers know of; else it is
    /// refused ([`Error::Stale`](crate::Error::Stale)). If there is no file, and none is known of, it begins with its object. Where the group
    /// has members, the state comes from them.
    ///
    /// The file is readable by its owner alone: it holds the group's key, if the group has one, and who joins without
    /// [`Group::key`] takes it from there. A file that is damaged, or another group's, is refused and left as it is
    /// ([`Error::File`](crate::Error::File), [`Error::Mismatch`](crate::Error::Mismatch)). So is one that another member has: a file beside it,
    /// whose name ends in `.lock`, is locked for as long as the member lives.
    pub fn checkpoint_file(self, path: impl Into<PathBuf>) -> Group {
        Group { checkpoint_file: Some(path.into()), ..self }
    }

    /// Joins though a newer checkpoint is known than this process has: if nobody is in the group, it goes on from the file that is here, or
    /// from `object`. **All that was done since is lost**, flushed and safe sends included. It holds for this time: until the next
    /// save the newer checkpoint stays the one that is known.
    pub fn give_up_newer_checkpoint(self) -> Group {
        Group { forced: true, ..self }
    }

    /// Joins it. Ready once the group's state is here; the first to join begins with `object`, or with the group's [checkpoint
    /// file](Group::checkpoint_file). Whoever drops the future gives the member up.
    ///
    /// Joined again, the node has one more member of the group, with an object of its own. All of them have one process, links and
    /// receipts in common, so a member more costs the group no message more; they fail together. Of a group with a key or a checkpoint file a
    /// node has one.
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
            let (told, ready) = oneshot::channel();
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
            let ring = key.or(from_file).map(|key| Arc::new(Ring::new(group, process.me(), key)));
            let brought = Brought { object, loaded };
            let (me, is_alone) = (process.me(), ring.is_some() || keeper.is_some());
            let seat = |id| Seat::new(name.clone(), group, (me, id), ring, keeper, brought, told);
            let (seat, is_first) = process.seat(group, is_alone, seat)?;
            // From here on, whoever drops it leaves.
            let member = Member::new(process.clone(), seat);
            let join = |id| Command::Join { id, group, name: name.clone(), offer };
            let joined = is_first.then(|| process.shared.call(join)).transpose()?;
            process.shared.reseat(group)?;
            let wait = async {
                if let Some(joined) = joined {
                    let joined = joined.await.map_err(|_| Error::wedged(DROPPED))?;
                    joined.map_err(|failure| match failure {
                        Failure::Stale(newest) => Error::Stale { file: offer.checkpoint, newest },
                        // One that is refused is no member, and leaves if the routers take it in after all.
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
                    "`{name}` did not take this process in within {} ms, through {}",
                    patience.as_millis(),
                    groups.0.settings.routers.join(", ")
                ))),
            }
        })
    }
}
