//! A router or a member of the bench.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
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
    group::{Answer, Corrupt, Member, Origin, Place, Replica, Share, Snapshot, Want},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};
use smallvec::SmallVec;

use super::{Alone, Measure, Summary, many, series, source, stack, state, views};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum MemberPart {
    /// A router; the first one founds the domain.
    Router,
    Sender,
    Listener,
    /// A member of this number of groups.
    Many {
        groups: usize,
    },
    /// Members of one group, the first of which sends `rate` updates a second.
    Views {
        members: usize,
        rate: u64,
    },
    /// Members of one group; the first member of the first process sends.
    Stack {
        members: usize,
    },
    /// Members of one group; the first member of the first process repeats the source's measurements.
    Source {
        members: usize,
    },
    /// A member with a state of `bytes` bytes, and `rate` updates a second.
    State {
        bytes: usize,
        rate: u64,
    },
    /// The first member sends series, one kind and length after another.
    Series,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Spec {
    pub(super) part: MemberPart,
    /// The number of the process among those of its part, from 1.
    pub(super) number: u64,
    pub(super) routers: Vec<String>,
    /// The wanted number of routers.
    pub(super) wanted: usize,
    pub(super) what: Measure,
    pub(super) bytes: usize,
    pub(super) in_flight: usize,
    /// Whether the process listens at its own address.
    pub(super) apart: bool,
    /// Maximum number of updates that travel together, if bounded.
    pub(super) pack: Option<u32>,
    /// Maximum size of a datagram in bytes, if not the default.
    pub(super) datagram_bytes: Option<usize>,
}

/// Maximum number of members with their own addresses.
pub(super) const APART_MAX: usize = 250;

pub(super) fn run(spec: Spec) -> Result<()> {
    match spec.part {
        MemberPart::Router => route(&spec),
        MemberPart::Sender | MemberPart::Listener => take_part(&spec),
        MemberPart::Many { groups } => many::take_part(&spec, groups),
        MemberPart::Views { members, rate } => views::take_part(&spec, members, rate),
        MemberPart::Stack { members } => stack::take_part(&spec, members),
        MemberPart::Source { members } => source::take_part(&spec, members),
        MemberPart::State { bytes, rate } => state::take_part(&spec, bytes, rate),
        MemberPart::Series => series::take_part(&spec),
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
    // Waits until the bench closes the pipe, or has died.
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    Ok(())
}

/// Returns the time of a clock that all processes of the machine share, in nanoseconds.
pub(super) fn nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// An update: its sender, its number, its time, and bytes that follow from the number.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MemberUpdate {
    sender: u64,
    number: u64,
    /// The time of the send on [the machine's clock](nanos), for one update in [`TIMED`] and each that was
    /// sent alone; otherwise 0.
    at: u64,
    /// Whether the update was sent after a pause.
    alone: bool,
    padding: Padding,
}

/// Bytes that need no separate allocation if they are few.
#[derive(Clone, Debug)]
struct Padding(SmallVec<[u8; 64]>);

impl Serialize for Padding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Padding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taken;
        impl Visitor<'_> for Taken {
            type Value = Padding;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Padding, E> {
                Ok(Padding(SmallVec::from_slice(bytes)))
            }
        }
        deserializer.deserialize_bytes(Taken)
    }
}

/// Number of updates of which one is timed.
const TIMED: u64 = 16;

/// Maximum length of sender, number, time, mark, and the padding's length, in bytes.
pub(super) const BYTES_MIN: usize = 25;

impl MemberUpdate {
    pub(super) fn new(sender: u64, number: u64, bytes: usize) -> MemberUpdate {
        let letter = b'a' + (number % 26) as u8;
        let at = if number.is_multiple_of(TIMED) { nanos() } else { 0 };
        let padding = Padding(SmallVec::from_elem(letter, bytes - BYTES_MIN));
        MemberUpdate { sender, number, at, alone: false, padding }
    }

    /// Returns the same update, marked as sent now and alone.
    fn alone(self) -> MemberUpdate {
        MemberUpdate { at: nanos(), alone: true, ..self }
    }

    fn is_whole(&self) -> bool {
        let letter = b'a' + (self.number % 26) as u8;
        // The loop looks at all bytes, several at a time.
        self.padding.0.iter().fold(0, |differing, byte| differing | (byte ^ letter)) == 0
    }
}

/// The count and print of a member's updates; the updates are not kept.
pub(super) struct Applied {
    count: Arc<AtomicU64>,
    last: BTreeMap<u64, u64>,
    faults: u64,
    print: u64,
    elsewhere: Histogram<u64>,
    /// Latencies of the updates that were sent alone.
    elsewhere_alone: Histogram<u64>,
}

impl Applied {
    pub(super) fn new() -> Applied {
        let [elsewhere, elsewhere_alone] =
            [(); 2].map(|()| Histogram::new(3).expect("a histogram may have three significant figures"));
        Applied {
            count: Arc::default(),
            last: BTreeMap::new(),
            faults: 0,
            print: 0,
            elsewhere,
            elsewhere_alone,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn faults(&self) -> u64 {
        self.faults
    }
}

impl Replica for Applied {
    const NAME: &'static str = "bench/1";
    type Update = MemberUpdate;
    type Query = ();
    type Reply = ();

    fn apply(&mut self, update: MemberUpdate, origin: &Origin) {
        let last = self.last.entry(update.sender).or_default();
        if update.number != *last + 1 || !update.is_whole() {
            self.faults += 1;
        }
        *last = update.number;
        if update.at > 0 && !origin.own {
            let elsewhere = if update.alone { &mut self.elsewhere_alone } else { &mut self.elsewhere };
            elsewhere.record(nanos() - update.at).expect("the histogram grows as needed");
        }
        self.print =
            self.print.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(update.sender << 48 | update.number);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Now(())
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::of(&())
    }

    fn restore(_: &Snapshot) -> Result<Self, Corrupt> {
        // All members join before any sends.
        Ok(Applied::new())
    }
}

fn take_part(spec: &Spec) -> Result<()> {
    let mut node = Node::builder().routers(&spec.routers);
    if spec.apart {
        node = node.listen(format!("127.0.0.{}:0", spec.number + 1));
    }
    if let Some(updates) = spec.pack {
        node = node.pack(updates);
    }
    if let Some(bytes) = spec.datagram_bytes {
        node = node.datagram_bytes(bytes);
    }
    let node = node.start().wait()?;
    let member = node.group("bench").join(Applied::new()).wait()?;
    say("joined")?;
    let count = member.read(|applied| applied.count.clone())?;
    let stop = Arc::new(AtomicBool::new(false));
    let (mut sending, mut figures) = (None, None);
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("begin", _) => {
                if spec.part == MemberPart::Sender {
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
                        let (sent, latency, alone) = sending
                            .join()
                            .map_err(|_| anyhow!("the sending thread of a member panicked"))??;
                        figures = Some((latency, alone));
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
                    latency_us: figures.as_ref().map(|(latency, _)| middle_and_tail(latency)),
                    elsewhere_us: Some(&applied.elsewhere).filter(|it| !it.is_empty()).map(middle_and_tail),
                    elsewhere_alone_us: Some(&applied.elsewhere_alone)
                        .filter(|it| !it.is_empty())
                        .map(middle_and_tail),
                    alone: figures.as_ref().and_then(|(_, alone)| *alone),
                })?;
                say(serde_json::to_string(&summary)?)?;
            }
            _ => bail!("a process of the bench received the unknown command {line:?}"),
        }
    }
    Ok(())
}

/// Returns the median and the 99th percentile, in microseconds.
fn middle_and_tail(nanos: &Histogram<u64>) -> [f64; 2] {
    [0.5, 0.99].map(|share| nanos.value_at_quantile(share) as f64 / 1000.0)
}

/// Sends until `stop`. Returns the number of sends, their latencies, and the times of single calls if one
/// update is in flight.
fn send(
    member: &Member<Applied>,
    sender: u64,
    what: Measure,
    bytes: usize,
    in_flight: usize,
    stop: &AtomicBool,
) -> Result<(u64, Histogram<u64>, Option<Alone>)> {
    let mut latency = Histogram::new(3)?;
    let mut under_way: VecDeque<(Option<Instant>, quorate::Pending<'static, Place>)> = VecDeque::new();
    let mut sent = 0;
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        if stopping || under_way.len() >= in_flight {
            let Some((began, oldest)) = under_way.pop_front() else { break };
            oldest.wait().context("a send of a member failed")?;
            if let Some(began) = began {
                latency.record(u64::try_from(began.elapsed().as_nanos())?)?;
            }
            continue;
        }
        sent += 1;
        let update = MemberUpdate::new(sender, sent, bytes);
        let sending = match what {
            Measure::Soft => member.send(update),
            Measure::Ordered => member.ordered_send(update),
            Measure::Safe => member.safe_send(update),
            Measure::Groups | Measure::View | Measure::Stack | Measure::State | Measure::Series => {
                bail!("this measurement does not use the common sender")
            }
        };
        let timed = in_flight == 1 || sent.is_multiple_of(TIMED);
        under_way.push_back((timed.then(Instant::now), sending));
    }
    let alone = if in_flight == 1 { Some(alone(member, sender, bytes, &mut sent)?) } else { None };
    Ok((sent, latency, alone))
}

/// Times calls one at a time. Other senders may still be sending.
fn alone(member: &Member<Applied>, sender: u64, bytes: usize, sent: &mut u64) -> Result<Alone> {
    const ROUNDS: usize = 1000;
    let mut next = || {
        *sent += 1;
        MemberUpdate::new(sender, *sent, bytes)
    };
    let mut times: [Histogram<u64>; 6] =
        [(); 6].map(|()| Histogram::new(3).expect("a histogram may have three significant figures"));
    let [stream, idle, flush, query, read, read_idle] = &mut times;
    let took = |of: &mut Histogram<u64>, began: Instant| {
        of.record(began.elapsed().as_nanos() as u64).expect("the histogram grows as needed")
    };
    for _ in 0..ROUNDS {
        let update = next();
        let began = Instant::now();
        let sending = member.send(update);
        took(stream, began);
        sending.wait()?;
    }
    for _ in 0..ROUNDS {
        let began = Instant::now();
        member.read(|applied| applied.faults)?;
        took(read, began);
    }
    for _ in 0..ROUNDS {
        thread::sleep(Duration::from_millis(1));
        let update = next().alone();
        let began = Instant::now();
        let sending = member.send(update);
        took(idle, began);
        sending.wait()?;
        let began = Instant::now();
        member.flush().wait()?;
        took(flush, began);
        let began = Instant::now();
        member.query((), Want::All).wait()?;
        took(query, began);
        let began = Instant::now();
        member.read(|applied| applied.faults)?;
        took(read_idle, began);
    }
    let [stream, idle, flush, query, read, read_idle] = times.map(|of| of.value_at_quantile(0.5) as f64);
    Ok(Alone {
        send_ns_p50: stream,
        send_idle_ns_p50: idle,
        flush_us_p50: flush / 1e3,
        query_all_us_p50: query / 1e3,
        read_ns_p50: read,
        read_idle_ns_p50: read_idle,
    })
}
