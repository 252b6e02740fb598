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
    disk::{self, Directory, DiskError, Files, Opened, faults::Late},
};
use serde::{Deserialize, Serialize};

use super::replica::{Ask, Replica, Report, Told};

/// What a process of the bench is.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Spec {
    Router(RouterSpec),
    /// A journal with nothing around it: writes of so many bytes, each made durable before the next.
    Journal {
        directory: PathBuf,
        bytes: usize,
        /// How long it rests between one and the next.
        rest: Duration,
        seconds: f64,
    },
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct RouterSpec {
    pub(super) domain: u128,
    pub(super) node: u64,
    /// Its address.
    pub(super) address: String,
    /// Addresses of the others.
    pub(super) routers: Vec<String>,
    /// Whether it founds the domain if its disk says nothing else.
    pub(super) founds: bool,
    pub(super) disk: Option<DiskSpec>,
    pub(super) value_bytes: usize,
    /// Whether to tell which own values are acknowledged, as they are.
    pub(super) tells: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct DiskSpec {
    pub(super) directory: PathBuf,
    /// Bytes reach the system at a sync only, so that a kill loses the others.
    pub(super) late: bool,
    pub(super) segment_bytes: u64,
    pub(super) checkpoint_bytes: usize,
}

/// What a router says first.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Begun {
    pub(super) process: String,
    pub(super) author: u64,
    /// Whether it goes on from its disk.
    pub(super) recovered: bool,
    /// The damage of the journal.
    pub(super) damage: Option<String>,
}

/// What a router's threads have done since it was told to measure.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Work {
    pub(super) disk_bytes: u64,
    pub(super) disk_syncs: u64,
    pub(super) disk_seconds: f64,
    pub(super) protocol_seconds: f64,
    pub(super) turns: u64,
}

/// Figures of a bare journal.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Bare {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) p50_us: f64,
}

pub(super) fn run(spec: Spec) -> Result<()> {
    match spec {
        Spec::Router(spec) => router(spec),
        Spec::Journal { directory, bytes, rest, seconds } => bare(&directory, bytes, rest, seconds),
    }
}

struct Ear {
    tell: Sender<Told>,
    tells: bool,
}

impl Host<Replica> for Ear {
    fn event(&mut self, event: Told, _now: Time) {
        if self.tells || matches!(event, Told::Report(_)) {
            let _ = self.tell.send(event);
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
    // A router that starts slowly on a busy machine is not given up.
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
            disk::Found::Nothing | disk::Found::Records { .. } => {}
            disk::Found::Damaged(damage) => begun.damage = Some(damage.to_string()),
            disk::Found::Abandoned => begun.damage = Some(String::from("nobody goes on from this journal")),
        }
        let records: Vec<_> = records.into_iter().map(|(_, record)| record).collect();
        recovered = Paxos::recover(peer.clone(), settings(checkpoint_bytes), records, clock::now())?;
        disk = Some(opened);
    }
    begun.recovered = recovered.is_some();
    // A damaged founder joins what it has founded.
    let founds = spec.founds && begun.damage.is_none();
    let paxos = match recovered {
        Some(paxos) => paxos,
        None if founds => Paxos::found(peer, settings(checkpoint_bytes), clock::now()),
        None => Paxos::join(peer, Vec::new(), settings(checkpoint_bytes), clock::now()),
    };
    let (tell, told) = unbounded();
    let replica = Replica::new(paxos, author, spec.value_bytes);
    let config = Config { listening: vec![Arc::new(listener)], ..Config::new(domain, me, Vec::new()) };
    let ear = Ear { tell, tells: spec.tells };
    let handle = match disk {
        Some(disk) => Reactor::start_on_disk(replica, ear, config, disk)?,
        None => Reactor::start(replica, ear, config)?,
    };
    say(&begun)?;
    let counters = handle.counters().clone();
    let zero = Arc::new(std::sync::Mutex::new(work(&counters)));
    let begin = zero.clone();
    thread::spawn(move || {
        for told in told {
            let said = match told {
                Told::Acknowledged(number) => say(&Line::Acknowledged(number)),
                Told::Report(report) => {
                    let zero = *zero.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    say(&Line::Report(report, since(zero, work(&counters))))
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
        // As every process does that knows no leader; who has one ignores it.
        loop {
            for address in &others {
                if let Ok(met) = discover(address, domain, Duration::from_secs(1))
                    && met.process != mine
                {
                    let peer = Peer { id: met.process, address: address.clone() };
                    let _ = seeker.try_command(Ask::Seeds(vec![peer]));
                }
            }
            thread::sleep(Duration::from_millis(200));
        }
    });
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let ask = match line.split_once(' ') {
            Some(("load", in_flight)) => Ask::Load(in_flight.parse()?),
            None if line == "report" => Ask::Report,
            None if line == "reset" => {
                *begin.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = work(handle.counters());
                Ask::Reset
            }
            _ => bail!("{line}: no such word"),
        };
        handle.command(ask).ok().context("the protocol thread ended")?;
    }
    // The bench has closed the pipe, or died.
    Ok(())
}

/// A line that a router prints.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Line {
    Acknowledged(u64),
    Report(Box<Report>, Work),
}

fn open(spec: &DiskSpec, domain: DomainId, node: u64) -> Result<Opened> {
    let settings = disk::Settings {
        journal: journal::Settings { segment_bytes: spec.segment_bytes, ..journal::Settings::default() },
        ..disk::Settings::default()
    };
    let files = |files| -> Box<dyn Files> {
        match spec.late {
            true => Box::new(Late::new(files)),
            false => Box::new(files),
        }
    };
    Ok(Disk::open_on(&spec.directory, files, domain, node, settings)?)
}

fn work(counters: &Counters) -> Work {
    Work {
        disk_bytes: counters.disk_bytes.get(),
        disk_syncs: counters.disk_syncs.get(),
        disk_seconds: counters.disk_busy_nanoseconds.get() as f64 / 1e9,
        protocol_seconds: counters.busy_nanoseconds.get() as f64 / 1e9,
        turns: counters.turns.get(),
    }
}

fn since(zero: Work, now: Work) -> Work {
    Work {
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

/// Writes as a journal does, in files of 64 MiB that are there before they are needed, and waits for a word to begin.
fn bare(directory: &Path, bytes: usize, rest: Duration, seconds: f64) -> Result<()> {
    const SEGMENT_BYTES: u64 = 64 << 20;
    ensure!((bytes as u64) < SEGMENT_BYTES, "a write fits into a segment");
    let mut files = Directory::create(directory)?;
    let name = |number: u64| format!("bare-{number}");
    files.create(&name(0), SEGMENT_BYTES)?;
    files.create(&name(1), SEGMENT_BYTES)?;
    // Zeros might be less work for the disk.
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
