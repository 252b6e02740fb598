//! A router or a member of the bench.

use std::{
    collections::VecDeque,
    io::{self, BufRead},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use hdrhistogram::Histogram;
use quorate::{
    Node, Role, Terms, Wait,
    group::{Member, Place, Want},
};

use super::{
    args::Measure,
    many,
    report::{Alone, Summary, say},
    series, source,
    spec::{GroupProcessSpec, MemberPart},
    stack, state,
    update::{Applied, MemberUpdate, TIMED},
    views,
};

/// Maximum number of members with their own addresses.
pub(super) const APART_MAX: usize = 250;

pub(super) fn run(spec: GroupProcessSpec) -> Result<()> {
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

fn route(spec: &GroupProcessSpec) -> Result<()> {
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

fn take_part(spec: &GroupProcessSpec) -> Result<()> {
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

/// Returns the median and the 99th percentile in microseconds; the histogram has nanoseconds.
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
                bail!("the common sending thread was started for a measurement that has its own senders")
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
