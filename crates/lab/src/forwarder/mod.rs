//! A forwarder between the nodes of a Cassandra on one machine, which gives them the distances of sites.
//!
//! **Promise.** Bytes between two nodes at distant sites arrive after the distance and its jitter, in their
//! order, and not while that direction hangs. Distances between our own cells work in the same way
//! ([`quorate::maps::Distances`]). No support of the kernel is needed.
//!
//! **Shape.** Each node listens at its own address, and gives the other nodes a different address, its
//! *broadcast address*, at which the forwarder listens instead. So all connections between nodes pass the
//! forwarder. The connecting node's source address does not identify the node; the forwarder recognises the
//! node by its first bytes (`initiate`). A site has one node: the first node is at site 0.
//!
//! **Bound.** In each direction of a connection at most `WAITING_MAX` pieces of `PIECE_BYTES` wait. Then the
//! forwarder reads no more from the sending node until a piece has arrived.
//!
//! A line to the forwarder's door ([`send_distances`]) changes the distances while nodes run. Bytes
//! under way arrive by the former distances.

mod initiate;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    str::FromStr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use quorate::maps::{Between, Distance, Way};
use quorate_protocol::{Time, partial::Site};
use rand::RngExt as _;
use rand_pcg::Pcg32;

use self::initiate::Initiate;

/// A node, as text `BROADCAST=LISTEN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The address that the node gives to other nodes. The forwarder listens there.
    pub broadcast: SocketAddr,
    /// The address at which the node itself listens.
    pub listens: SocketAddr,
}

impl FromStr for Node {
    type Err = String;

    fn from_str(text: &str) -> Result<Node, String> {
        let node = || {
            let (broadcast, listens) = text.split_once('=')?;
            Some(Node { broadcast: broadcast.parse().ok()?, listens: listens.parse().ok()? })
        };
        node().filter(|node| node.broadcast != node.listens).ok_or_else(|| {
            format!(
                "the node '{text}' must be written as two different addresses with ports, BROADCAST=LISTEN"
            )
        })
    }
}

/// The distances of all pairs of sites that have one.
type Distances = BTreeMap<[Site; 2], Distance>;

/// A running forwarder. Its threads run until the process ends.
#[derive(Clone)]
pub struct Forwarder {
    shared: Arc<ForwarderShared>,
}

struct ForwarderShared {
    nodes: Vec<Node>,
    distances: RwLock<Distances>,
    began: Instant,
    /// Number of connections so far: each has its own jitter.
    connections: AtomicU64,
}

/// Maximum number of waiting pieces in each direction of a connection: 16 MiB.
const WAITING_MAX: usize = 1 << 10;
/// Maximum size of a piece, in bytes.
const PIECE_BYTES: usize = 16 << 10;
/// Time within which a connecting node must identify itself, and a door must get its line.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of a line at the door, in bytes.
const LINE_BYTES_MAX: u64 = 16 << 10;

impl Forwarder {
    /// Listens at the broadcast addresses of all nodes, which need not run yet. At first no two sites have a
    /// distance.
    pub fn start(nodes: Vec<Node>) -> Result<Forwarder> {
        ensure!(
            nodes.len() <= usize::from(u16::MAX),
            "{} nodes are too many: each node is a site, and there are at most 65,535 sites",
            nodes.len()
        );
        let listeners = nodes.iter().map(|node| {
            TcpListener::bind(node.broadcast)
                .with_context(|| format!("the forwarder cannot listen at {}", node.broadcast))
        });
        let listeners = listeners.collect::<Result<Vec<_>>>()?;
        let shared = Arc::new(ForwarderShared {
            nodes,
            distances: RwLock::default(),
            began: Instant::now(),
            connections: AtomicU64::new(0),
        });
        for (number, listener) in (0..).zip(listeners) {
            let shared = shared.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        if let Err(error) = shared.forward(stream, Site(number)) {
                            eprintln!(
                                "the forwarder ended a connection to the node at site {number}: {error:#}"
                            );
                        }
                    });
                }
            });
        }
        Ok(Forwarder { shared })
    }

    /// Sets the distances between sites. Pairs that are not named are near.
    ///
    /// # Errors
    /// If a site does not exist, or two distances name the same pair. Then nothing changes.
    pub fn place(&self, distances: &[Between]) -> Result<()> {
        let mut placed = Distances::new();
        for between in distances {
            let mut sites = between.sites;
            sites.sort_unstable();
            let count = self.shared.nodes.len();
            ensure!(
                usize::from(sites[1].0) < count,
                "the distance {between} names a site that does not exist: the last site is {}",
                count.saturating_sub(1)
            );
            let twice = placed.insert(sites, between.distance).is_some();
            ensure!(
                !twice,
                "the distance {between} is given together with another distance for the same two sites"
            );
        }
        *self.shared.distances.write().unwrap_or_else(PoisonError::into_inner) = placed;
        Ok(())
    }

    /// Serves the door until the process ends. Each connection sends a line of distances separated by commas,
    /// possibly empty, and gets `ok` or an error text.
    pub fn serve(&self, door: &TcpListener) {
        for stream in door.incoming().flatten() {
            if let Err(error) = self.answer(&stream) {
                eprintln!("the forwarder could not answer a connection at its door: {error:#}");
            }
        }
    }

    fn answer(&self, mut stream: &TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        if BufReader::new(stream).take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            // A program connected only to test whether the door is open.
            return Ok(());
        }
        let placed = match line.strip_suffix('\n') {
            Some(line) => spelt(line.trim()).map_err(anyhow::Error::msg).and_then(|it| self.place(&it)),
            None => Err(anyhow!(
                "send one line of distances, of at most {LINE_BYTES_MAX} bytes and with a line end"
            )),
        };
        let answer = placed.map_or_else(|error| format!("{error}"), |()| String::from(OK));
        Ok(writeln!(stream, "{answer}")?)
    }
}

const OK: &str = "ok";

fn spelt(line: &str) -> Result<Vec<Between>, String> {
    line.split(',').filter(|part| !part.is_empty()).map(str::parse).collect()
}

/// Makes the forwarder with this door set these distances: `0-1=18.5,0-2=37.5`. Pairs that are not named are
/// near.
///
/// # Errors
/// If the door does not answer, or refuses.
pub fn send_distances(door: &str, distances: &str) -> Result<()> {
    let asked = || -> Result<String> {
        let mut stream = TcpStream::connect(door)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(stream, "{distances}")?;
        let mut answer = String::new();
        BufReader::new(stream).take(LINE_BYTES_MAX).read_line(&mut answer)?;
        Ok(answer)
    };
    let answer = asked().with_context(|| format!("cannot talk with the forwarder at {door}"))?;
    match answer.trim() {
        OK => Ok(()),
        "" => bail!("the forwarder at {door} closed the connection without an answer"),
        refused => bail!("the forwarder at {door} refused the distances: {refused}"),
    }
}

impl ForwarderShared {
    /// Carries a connection to the node at this site until both sides have closed it.
    fn forward(&self, mut stream: TcpStream, to: Site) -> Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let Initiate { from, bytes } = Initiate::read(&mut stream)?;
        stream.set_read_timeout(None)?;
        let site = self.nodes.iter().position(|node| node.broadcast == from);
        let site = site.with_context(|| {
            format!(
                "a node with the address {from} connected, which the forwarder does not know: add it with \
                 --node"
            )
        })?;
        let from = Site(u16::try_from(site).expect("every node has a site number"));
        let listens = self.nodes[usize::from(to.0)].listens;
        let target = TcpStream::connect(listens)
            .with_context(|| format!("the forwarder cannot connect to the node at {listens}"))?;
        for end in [&stream, &target] {
            end.set_nodelay(true)?;
        }
        let number = self.connections.fetch_add(1, Relaxed);
        let there = Pieces { shared: self, from, to, chance: Pcg32::new(number, 0) };
        let back = Pieces { shared: self, from: to, to: from, chance: Pcg32::new(number, 1) };
        thread::scope(|scope| {
            let (sender, receiver) = sync_channel(WAITING_MAX);
            scope.spawn(|| there.take(&bytes, &stream, sender));
            scope.spawn(|| hand_over(receiver, &target, &stream));
            let (sender, receiver) = sync_channel(WAITING_MAX);
            scope.spawn(|| back.take(&[], &target, sender));
            scope.spawn(|| hand_over(receiver, &stream, &target));
        });
        Ok(())
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn distance(&self, mut sites: [Site; 2]) -> Option<Distance> {
        sites.sort_unstable();
        self.distances.read().unwrap_or_else(PoisonError::into_inner).get(&sites).copied()
    }
}

/// Bytes that wait to be forwarded, with the time of their arrival.
type DelayedBytes = (Instant, Vec<u8>);

/// One direction of a connection.
struct Pieces<'a> {
    shared: &'a ForwarderShared,
    from: Site,
    to: Site,
    chance: Pcg32,
}

impl Pieces<'_> {
    /// Reads until the sending node closes the direction.
    fn take(mut self, first: &[u8], mut stream: &TcpStream, to: SyncSender<DelayedBytes>) {
        let mut last = Time::default();
        let mut send = |piece: &[u8]| {
            last = self.arrival().max(last);
            to.send((self.shared.began + Duration::from_nanos(last.0), piece.to_vec())).is_ok()
        };
        if !first.is_empty() && !send(first) {
            return;
        }
        let mut piece = vec![0; PIECE_BYTES];
        // The forwarder treats a broken connection like a closed one.
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            if !send(&piece[..length]) {
                return;
            }
        }
    }

    fn arrival(&mut self) -> Time {
        let now = self.shared.now();
        let Some(distance) = self.shared.distance([self.from, self.to]) else { return now };
        let way = Way(u64::from(self.from.0) << 16 | u64::from(self.to.0));
        distance.arrival(way, now, self.chance.random())
    }
}

/// Writes each piece at its time, and forwards the end. If the receiving node accepts no more, closes the
/// sender's connection.
fn hand_over(pieces: Receiver<DelayedBytes>, mut to: &TcpStream, from: &TcpStream) {
    for (due, piece) in &pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests;
