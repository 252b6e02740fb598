//! Kills all routers at once under load, repeatedly, and lets them recover from their disks.
//!
//! Their files pass bytes to the system only at a sync, and in pieces (`UnsyncedFiles`). So a kill loses
//! everything that was not durable and tears the record that was being written, like a power cut. The bench
//! outlives the routers and remembers the acknowledged values. At the end it changes one byte of one journal:
//! that router must notice it and come back as another process, which the others admit.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use quorate_protocol::DomainId;
use quorate_runtime::chance;
use serde_json::json;

use super::{
    process::{Begun, DiskSpec, PaxosProcessSpec, RouterLine, RouterSpec},
    replica::RouterReport,
    routers::{PATIENCE, ROUTERS, addresses, report, start, wait_until},
};
use crate::bench::child::Child;

const IN_FLIGHT: usize = 256;
/// Size of a journal's segment. It is small, so that segments end and checkpoints are written within each
/// life.
const SEGMENT_BYTES: u64 = 64 << 10;
const CHECKPOINT_BYTES: usize = 256 << 10;

/// The routers, and the acknowledged values.
struct RouterCluster<'a> {
    domain: DomainId,
    addresses: Vec<String>,
    place: &'a Path,
    routers: Vec<Child>,
    begun: Vec<Begun>,
    /// Number of acknowledged values of each author.
    acknowledged: BTreeMap<u64, u64>,
}

pub(super) fn run(kills: usize, place: &Path, json: bool) -> Result<()> {
    let mut cluster = RouterCluster {
        domain: chance::domain(),
        addresses: addresses()?,
        place,
        routers: Vec::new(),
        begun: Vec::new(),
        acknowledged: BTreeMap::new(),
    };
    cluster.start(true)?;
    cluster.settled()?;
    for kill in 0..kills {
        cluster.load(IN_FLIGHT)?;
        // In some rounds the routers are killed before they have done anything.
        if kill % 5 != 4 {
            cluster.acknowledges().with_context(|| format!("after {kill} kills"))?;
            cluster.check().with_context(|| format!("after {kill} kills"))?;
        }
        thread::sleep(Duration::from_millis(below(60)));
        cluster.kill()?;
        cluster.start(false)?;
        for begun in &cluster.begun {
            let Begun { process, recovered, damage, .. } = begun;
            ensure!(
                *recovered,
                "router {process} did not go on from its disk after kill {kill}; the damage of its journal \
                 is {damage:?}"
            );
        }
    }
    cluster.load(0)?;
    cluster.settled()?;
    cluster.check()?;

    // Changes a byte of one journal while all routers are dead.
    cluster.kill()?;
    let old = cluster.begun[2].process.clone();
    rot(&cluster.directory(ROUTERS))?;
    cluster.start(false)?;
    let found = cluster.begun[2].clone();
    let damage = found
        .damage
        .context("a router did not find the damage that the bench made in the router's journal")?;
    ensure!(
        found.process != old && !found.recovered,
        "the router with a damaged journal went on as process {old}, but must become another process"
    );
    ensure!(
        cluster.begun[..2].iter().all(|it| it.recovered),
        "the two routers without rot did not go on from their disks"
    );
    cluster.settled()?;
    cluster.load(IN_FLIGHT)?;
    cluster.acknowledges()?;
    cluster.load(0)?;
    cluster.settled()?;
    cluster.check()?;

    let acknowledged: u64 = cluster.acknowledged.values().sum();
    if json {
        let figures = json!({
            "bench": "paxos", "kills": kills, "routers": ROUTERS, "acknowledged": acknowledged, "lost": 0,
            "rot": damage,
        });
        println!("{figures}");
    } else {
        println!(
            "{kills} times all {ROUTERS} routers were killed at once, with {IN_FLIGHT} values of each under way"
        );
        println!("{acknowledged} values were acknowledged, and none of these values was lost");
        println!(
            "a router found rot in its journal ({damage}), came back as another process, and became a \
             member again"
        );
    }
    Ok(())
}

impl RouterCluster<'_> {
    fn directory(&self, node: u64) -> std::path::PathBuf {
        self.place.join(format!("router-{node}"))
    }

    fn start(&mut self, founds: bool) -> Result<()> {
        for node in 1..=ROUTERS {
            let spec = RouterSpec {
                domain: self.domain.0,
                node,
                address: self.addresses[node as usize - 1].clone(),
                routers: self.addresses.clone(),
                founds: founds && node == 1,
                disk: Some(DiskSpec {
                    directory: self.directory(node),
                    late: true,
                    segment_bytes: SEGMENT_BYTES,
                    checkpoint_bytes: CHECKPOINT_BYTES,
                }),
                value_bytes: 100,
                prints_acknowledged: true,
            };
            self.routers.push(start(format!("router {node}"), &PaxosProcessSpec::Router(spec))?);
        }
        self.begun = Vec::new();
        for router in &mut self.routers {
            let begun: Begun = serde_json::from_str(&router.line_within(PATIENCE)?)?;
            self.begun.push(begun);
        }
        Ok(())
    }

    fn load(&mut self, in_flight: usize) -> Result<()> {
        self.routers.iter_mut().try_for_each(|router| router.send_line(&format!("load {in_flight}")))
    }

    /// Kills all routers at once. Lines that the routers printed before the kill still count.
    fn kill(&mut self) -> Result<()> {
        self.routers.iter_mut().try_for_each(Child::kill)?;
        for (mut router, begun) in self.routers.drain(..).zip(&self.begun) {
            for line in router.rest()? {
                match serde_json::from_str(&line) {
                    Ok(RouterLine::Acknowledged(number)) => {
                        raise(&mut self.acknowledged, begun.author, number)
                    }
                    Ok(RouterLine::Report(..)) => {}
                    // The kill cut off this line.
                    Err(_) => break,
                }
            }
        }
        Ok(())
    }

    fn reports(&mut self) -> Result<Vec<RouterReport>> {
        let acknowledged = &mut self.acknowledged;
        let reports = self.routers.iter_mut().zip(&self.begun).map(|(router, begun)| {
            let (report, _) = report(router, |number| raise(acknowledged, begun.author, number))?;
            Ok(report)
        });
        reports.collect()
    }

    /// Waits until each router has an acknowledged value of this life: then the router has learned all
    /// earlier values.
    fn acknowledges(&mut self) -> Result<()> {
        let authors: Vec<u64> = self.begun.iter().map(|begun| begun.author).collect();
        wait_until("every router has an acknowledged value", || {
            self.reports()?;
            Ok(authors.iter().all(|author| self.acknowledged.contains_key(author)).then_some(()))
        })
    }

    /// Waits until all routers are members and have learned the same log, to its end.
    fn settled(&mut self) -> Result<()> {
        let mut last = Vec::new();
        let met = wait_until("all routers are members and have learned the same log", || {
            let reports = self.reports()?;
            let processes: BTreeSet<&str> = reports.iter().map(|report| &report.process[..]).collect();
            let met = reports.iter().all(|report| {
                let members: BTreeSet<&str> = report.members.iter().map(|member| &member[..]).collect();
                members == processes && report.slot == reports[0].slot && report.slot == report.last
            }) && reports.iter().any(|report| report.leads);
            if met && reports.iter().any(|report| report.values != reports[0].values) {
                bail!("routers have learned different values up to slot {}", reports[0].slot);
            }
            last = reports;
            Ok(met.then_some(()))
        });
        met.with_context(|| format!("{last:?}"))
    }

    /// Checks that the log of each router contains every acknowledged value.
    fn check(&mut self) -> Result<()> {
        // The acknowledged numbers are copied before the routers are asked, because a router may lack values
        // that other routers acknowledge meanwhile.
        let authors: Vec<u64> = self.begun.iter().map(|begun| begun.author).collect();
        let mut before = self.acknowledged.clone();
        before.retain(|author, _| !authors.contains(author));
        for report in self.reports()? {
            for (author, number) in &before {
                let there = report.values.get(author).copied().unwrap_or(0);
                ensure!(
                    there >= *number,
                    "acknowledged values are lost: {number} values of author {author} were acknowledged, \
                     but router {} has only {there}",
                    report.process
                );
            }
        }
        Ok(())
    }
}

fn raise(acknowledged: &mut BTreeMap<u64, u64>, author: u64, number: u64) {
    let known = acknowledged.entry(author).or_default();
    *known = number.max(*known);
}

/// Changes a byte of the first record in the oldest segment of a journal.
fn rot(directory: &Path) -> Result<()> {
    let mut segments: Vec<_> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "segment"));
    segments.sort();
    let oldest = segments.first().context("the directory of a router has no segment of a journal")?;
    let mut bytes = fs::read(oldest)?;
    // The byte lies after the segment's header of 80 bytes and the record's head.
    bytes[80 + 33] ^= 1;
    Ok(fs::write(oldest, bytes)?)
}

/// Returns a random number below `limit`.
fn below(limit: u64) -> u64 {
    chance::incarnation().0 as u64 % limit
}
