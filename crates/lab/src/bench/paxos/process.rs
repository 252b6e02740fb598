//! One router of the bench, or one bare journal.

use std::{
    fs,
    io::{BufRead, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use crossbeam_channel::{Sender, unbounded};
use hdrhistogram::Histogram;
use quorate_protocol::{
    DomainId, Peer, ProcessId, Time, journal,
    paxos::{self, Paxos},
};
use quorate_runtime::{
    Config, Disk, Host, Reactor, chance, clock,
    counters::Counters,
    discover::discover,
    disk::{self, Directory, DiskError, Files, Opened, faults::UnsyncedFiles},
};
use serde::{Deserialize, Serialize};

use super::replica::{PaxosReplica, ReplicaCommand, ReplicaEvent, RouterReport};

/// The role of a process in the bench.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum PaxosProcessSpec {
    Router(RouterSpec),
    /// A bare journal: writes of `bytes` bytes, each made durable before the next.
    Journal {
        directory: PathBuf,
        bytes: usize,
        /// Rest between two writes.
        rest: Duration,
        seconds: f64,
    },
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct RouterSpec {
    pub(super) domain: u128,
    pub(super) node: u64,
    /// The router's address.
    pub(super) address: String,
    /// Addresses of the other routers.
    pub(super) routers: Vec<String>,
    /// Whether the router founds the domain if its disk contains no log.
    pub(super) founds: bool,
    pub(super) disk: Option<DiskSpec>,
    pub(super) value_bytes: usize,
    /// Whether to print the numbers of own acknowledged values at once.
    pub(super) prints_acknowledged: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct DiskSpec {
    pub(super) directory: PathBuf,
    /// Whether bytes reach the system at a sync only, so that a kill loses all bytes since the last sync.
    pub(super) late: bool,
    pub(super) segment_bytes: u64,
    pub(super) checkpoint_bytes: usize,
}

/// The first line of a router.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Begun {
    pub(super) process: String,
    pub(super) author: u64,
    /// Whether the router recovered from its disk.
    pub(super) recovered: bool,
    /// The damage of the journal, if any.
    pub(super) damage: Option<String>,
}

/// The work of a router's threads since the measurement began.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct RouterWork {
    pub(super) disk_bytes: u64,
    pub(super) disk_syncs: u64,
    pub(super) disk_seconds: f64,
    pub(super) protocol_seconds: f64,
    pub(super) turns: u64,
}

/// The measurements of a bare journal.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Bare {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) p50_us: f64,
}

pub(super) fn run(spec: PaxosProcessSpec) -> Result<()> {
    match spec {
        PaxosProcessSpec::Router(spec) => router(spec),
        PaxosProcessSpec::Journal { directory, bytes, rest, seconds } => {
            bare(&directory, bytes, rest, seconds)
        }
    }
}

struct EventForwarder {
    sender: Sender<ReplicaEvent>,
    prints_acknowledged: bool,
}

impl Host<PaxosReplica> for EventForwarder {
    fn event(&mut self, event: ReplicaEvent, _now: Time) {
        if self.prints_acknowledged || matches!(event, ReplicaEvent::Report(_)) {
            let _ = self.sender.send(event);
        }
    }

    fn disk_failed(&mut self, error: &DiskError) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn router(spec: RouterSpec) -> Result<()> {
    let domain = DomainId(spec.domain);
    let listener = TcpListener::bind(&spec.address)?;
    let fresh = ProcessId { node: spec.node, incarnation: chance::incarnation() };
    // With these settings the other routers do not remove a router that starts slowly on a busy machine.
    let settings = |checkpoint_bytes| paxos::Settings {
        wanted: 3,
        remove_after: Duration::from_secs(30),
        checkpoint_bytes,
        ..paxos::Settings::default()
    };
    let checkpoint_bytes = spec.disk.as_ref().map(|disk| disk.checkpoint_bytes);
    let opened = spec.disk.as_ref().map(|disk| open(disk, domain, spec.node)).transpose()?;
    let me = opened.as_ref().map_or(fresh, |opened| opened.disk.process());
    let peer = Peer { id: me, address: spec.address.clone() };
    let author = chance::incarnation().0 as u64;
    let mut begun = Begun { process: me.to_string(), author, recovered: false, damage: None };
    let (mut disk, mut recovered) = (None, None);
    if let Some(Opened { disk: opened, records, found }) = opened {
        match found {
            disk::DirectoryState::Nothing | disk::DirectoryState::Records { .. } => {}
            disk::DirectoryState::Damaged(damage) => begun.damage = Some(damage.to_string()),
            disk::DirectoryState::Abandoned => {
                begun.damage = Some(String::from(
                    "the journal was abandoned, and no process goes on from an abandoned journal",
                ))
            }
        }
        let records: Vec<_> = records.into_iter().map(|(_, record)| record).collect();
        recovered = Paxos::recover(peer.clone(), settings(checkpoint_bytes), records, clock::now())?;
        disk = Some(opened);
    }
    begun.recovered = recovered.is_some();
    // A founder with a damaged journal joins the domain that it founded.
    let founds = spec.founds && begun.damage.is_none();
    let paxos = match recovered {
        Some(paxos) => paxos,
        None if founds => Paxos::found(peer, settings(checkpoint_bytes), clock::now()),
        None => Paxos::join(peer, Vec::new(), settings(checkpoint_bytes), clock::now()),
    };
    let (sender, events) = unbounded();
    let replica = PaxosReplica::new(paxos, author, spec.value_bytes);
    let config = Config { listening: vec![Arc::new(listener)], ..Config::new(domain, me, Vec::new()) };
    let forwarder = EventForwarder { sender, prints_acknowledged: spec.prints_acknowledged };
    let handle = Reactor::start_with(replica, forwarder, config, disk, None)?;
    say(&begun)?;
    let counters = handle.counters().clone();
    let zero = Arc::new(std::sync::Mutex::new(work(&counters)));
    let begin = zero.clone();
    thread::spawn(move || {
        for event in events {
            let said = match event {
                ReplicaEvent::Acknowledged(number) => say(&RouterLine::Acknowledged(number)),
                ReplicaEvent::Report(report) => {
                    let zero = *zero.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    say(&RouterLine::Report(report, since(zero, work(&counters))))
                }
            };
            if said.is_err() {
                return;
            }
        }
    });
    let seeker = handle.clone();
    let (others, mine) = (spec.routers.clone(), me);
    thread::spawn(move || {
        // Every process without a leader looks for routers; a process with a leader ignores the routers that
        // it finds.
        loop {
            for address in &others {
                if let Ok(met) = discover(address, domain, Duration::from_secs(1))
                    && met.process != mine
                {
                    let peer = Peer { id: met.process, address: address.clone() };
                    let _ = seeker.try_command(ReplicaCommand::Seeds(vec![peer]));
                }
            }
            thread::sleep(Duration::from_millis(200));
        }
    });
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let ask = match line.split_once(' ') {
            Some(("load", in_flight)) => ReplicaCommand::Load(in_flight.parse()?),
            None if line == "report" => ReplicaCommand::Report,
            None if line == "reset" => {
                *begin.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = work(handle.counters());
                ReplicaCommand::Reset
            }
            _ => bail!("a process of the bench received the unknown command {line}"),
        };
        handle.command(ask).ok().context("the protocol thread of a process of the bench has ended")?;
    }
    // The bench has closed the pipe, or has died.
    Ok(())
}

/// A line that a router prints.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum RouterLine {
    Acknowledged(u64),
    Report(Box<RouterReport>, RouterWork),
}

fn open(spec: &DiskSpec, domain: DomainId, node: u64) -> Result<Opened> {
    let settings = disk::Settings {
        journal: journal::Settings { segment_bytes: spec.segment_bytes, ..journal::Settings::default() },
        ..disk::Settings::default()
    };
    let files = |files| -> Box<dyn Files> {
        match spec.late {
            true => Box::new(UnsyncedFiles::new(files)),
            false => Box::new(files),
        }
    };
    Ok(Disk::open_on(&spec.directory, files, domain, node, settings)?)
}

fn work(counters: &Counters) -> RouterWork {
    RouterWork {
        disk_bytes: counters.disk_bytes.get(),
        disk_syncs: counters.disk_syncs.get(),
        disk_seconds: counters.disk_busy_nanoseconds.get() as f64 / 1e9,
        protocol_seconds: counters.busy_nanoseconds.get() as f64 / 1e9,
        turns: counters.turns.get(),
    }
}

fn since(zero: RouterWork, now: RouterWork) -> RouterWork {
    RouterWork {
        disk_bytes: now.disk_bytes - zero.disk_bytes,
        disk_syncs: now.disk_syncs - zero.disk_syncs,
        disk_seconds: now.disk_seconds - zero.disk_seconds,
        protocol_seconds: now.protocol_seconds - zero.protocol_seconds,
        turns: now.turns - zero.turns,
    }
}

fn say(line: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    Ok(out.flush()?)
}

/// Writes like a journal, in files of 64 MiB that exist before they are needed. Waits for a line before it
/// begins.
fn bare(directory: &Path, bytes: usize, rest: Duration, seconds: f64) -> Result<()> {
    const SEGMENT_BYTES: u64 = 64 << 20;
    ensure!((bytes as u64) < SEGMENT_BYTES, "a write of the bench fits into a segment of the journal");
    let mut files = Directory::create(directory)?;
    let name = |number: u64| format!("bare-{number}");
    files.create(&name(0), SEGMENT_BYTES)?;
    files.create(&name(1), SEGMENT_BYTES)?;
    // The bytes are not zeros, because a disk may write zeros faster.
    let noise: Vec<u8> =
        (0..bytes as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let noise = Bytes::from(noise);
    let mut took: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    println!("ready");
    let mut word = String::new();
    std::io::stdin().lock().read_line(&mut word)?;
    let (mut number, mut offset, mut written) = (0, 0, 0);
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < seconds {
        if offset + bytes as u64 > SEGMENT_BYTES {
            (number, offset) = (number + 1, 0);
            files.create(&name(number + 1), SEGMENT_BYTES)?;
            files.remove(&name(number - 1))?;
        }
        let before = Instant::now();
        files.write(&name(number), offset, std::slice::from_ref(&noise))?;
        files.sync(&name(number))?;
        took.saturating_record(before.elapsed().as_nanos() as u64);
        offset += bytes as u64;
        written += bytes as u64;
        if !rest.is_zero() {
            thread::sleep(rest);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    say(&Bare { bytes: written, seconds, p50_us: took.value_at_quantile(0.5) as f64 / 1000.0 })?;
    fs::remove_dir_all(directory)?;
    Ok(())
}
