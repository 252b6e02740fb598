//! A router or a member of the bench.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, BufRead, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use hdrhistogram::Histogram;
use quorate::{
    Node, Role, Terms, Wait,
    group::{Answer, Corrupt, Member, Origin, Place, Replica, Share, Snapshot},
};
use serde::{Deserialize, Serialize};

use super::{Summary, What, many};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Part {
    /// The first founds.
    Router,
    Sender,
    Listener,
    /// In so many groups.
    Many {
        groups: usize,
    },
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Spec {
    pub(super) part: Part,
    /// Which of them, from 1 on.
    pub(super) number: u64,
    pub(super) routers: Vec<String>,
    /// How many routers there are to be.
    pub(super) wanted: usize,
    pub(super) what: What,
    pub(super) bytes: usize,
    pub(super) in_flight: usize,
}

pub(super) fn run(spec: Spec) -> Result<()> {
    match spec.part {
        Part::Router => route(&spec),
        Part::Sender | Part::Listener => take_part(&spec),
        Part::Many { groups } => many::take_part(&spec, groups),
    }
}

pub(super) fn say(line: impl std::fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn route(spec: &Spec) -> Result<()> {
    let terms = Terms { wanted_routers: u32::try_from(spec.wanted)?, ..Terms::default() };
    let mut node = Node::builder().number(spec.number).terms(terms).role(Role::Router).routers(&spec.routers);
    if spec.routers.is_empty() {
        node = node.found();
    }
    let node = node.start().wait()?;
    say(node.address())?;
    // The bench ends it, or is gone itself.
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(())
}

/// An update: whose it is, which, and bytes that follow from it.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Update {
    sender: u64,
    number: u64,
    padding: String,
}

/// Sender and number, at their longest, and the length of the padding.
pub(super) const BYTES_MIN: usize = 16;

impl Update {
    fn new(sender: u64, number: u64, bytes: usize) -> Update {
        let letter = char::from(b'a' + (number % 26) as u8);
        Update { sender, number, padding: letter.to_string().repeat(bytes - BYTES_MIN) }
    }

    fn is_whole(&self) -> bool {
        let letter = b'a' + (self.number % 26) as u8;
        self.padding.bytes().all(|byte| byte == letter)
    }
}

/// The count and print of a member's updates; nothing else of them is kept.
#[derive(Default)]
struct Applied {
    count: Arc<AtomicU64>,
    last: BTreeMap<u64, u64>,
    faults: u64,
    print: u64,
}

impl Replica for Applied {
    const NAME: &'static str = "bench/1";
    type Update = Update;
    type Query = ();
    type Reply = ();

    fn apply(&mut self, update: Update, _: &Origin) {
        let last = self.last.entry(update.sender).or_default();
        if update.number != *last + 1 || !update.is_whole() {
            self.faults += 1;
        }
        *last = update.number;
        self.print =
            self.print.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(update.sender << 48 | update.number);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Declined
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::of(&())
    }

    fn restore(_: &Snapshot) -> Result<Self, Corrupt> {
        // All join before anybody sends.
        Ok(Applied::default())
    }
}

fn take_part(spec: &Spec) -> Result<()> {
    let node = Node::builder().routers(&spec.routers).start().wait()?;
    let member = node.group("bench").join(Applied::default()).wait()?;
    say("joined")?;
    let count = member.read(|applied| applied.count.clone())?;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut sending, mut latency) = (None, None);
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("begin", _) => {
                if spec.part == Part::Sender {
                    let (member, stop) = (member.clone(), stop.clone());
                    let (sender, bytes, what, in_flight) =
                        (spec.number, spec.bytes, spec.what, spec.in_flight);
                    sending =
                        Some(thread::spawn(move || send(&member, sender, what, bytes, in_flight, &stop)));
                }
                say("begun")?;
            }
            ("count", _) => say(count.load(Ordering::Relaxed))?,
            ("stop", _) => {
                stop.store(true, Ordering::Relaxed);
                let sent = match sending.take() {
                    None => 0,
                    Some(sending) => {
                        let (sent, figures) =
                            sending.join().map_err(|_| anyhow!("the sender panicked"))??;
                        latency = Some(figures);
                        sent
                    }
                };
                say(sent)?;
            }
            ("until", sent) => {
                let (sent, until): (u64, _) = (sent.parse()?, Instant::now() + Duration::from_secs(20));
                while count.load(Ordering::Relaxed) < sent && Instant::now() < until {
                    thread::sleep(Duration::from_millis(5));
                }
                let summary = member.read(|applied| Summary {
                    applied: applied.count.load(Ordering::Relaxed),
                    faults: applied.faults,
                    print: applied.print,
                    latency_us: latency.as_ref().map(|latency: &Histogram<u64>| {
                        [0.5, 0.99].map(|share| latency.value_at_quantile(share) as f64 / 1000.0)
                    }),
                })?;
                say(serde_json::to_string(&summary)?)?;
            }
            _ => bail!("what is {line:?}?"),
        }
    }
    Ok(())
}

/// Sends until it is told to stop. How many, and how long they took to be answered.
fn send(
    member: &Member<Applied>,
    sender: u64,
    what: What,
    bytes: usize,
    in_flight: usize,
    stop: &AtomicBool,
) -> Result<(u64, Histogram<u64>)> {
    let mut latency = Histogram::new(3)?;
    let mut under_way: VecDeque<(Instant, quorate::Pending<'static, Place>)> = VecDeque::new();
    let mut sent = 0;
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        if stopping || under_way.len() >= in_flight {
            let Some((began, oldest)) = under_way.pop_front() else { return Ok((sent, latency)) };
            oldest.wait().context("a send")?;
            latency.record(u64::try_from(began.elapsed().as_nanos())?)?;
            continue;
        }
        sent += 1;
        let update = Update::new(sender, sent, bytes);
        let sending = match what {
            What::Soft => member.send(update),
            What::Ordered => member.ordered_send(update),
            What::Safe => member.safe_send(update),
            What::Groups => bail!("nothing is sent in many groups"),
        };
        under_way.push_back((Instant::now(), sending));
    }
}
