//! A large state on its way to a joining member, while others send: the effect on the sending members.
//!
//! Members send soft updates at a steady rate, and each update is timed until its application elsewhere. One
//! member flushes repeatedly. A flush ends once all have acknowledged the earlier updates, so the longest
//! flush bounds the pause of any member's receipts. After a while another process joins, and gets the state.
//! The figures cover two periods: before this process starts, and from then until it has joined.

use std::{
    io::{self, BufRead},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use quorate::{
    Node, Wait,
    group::{Answer, Corrupt, Member, Origin, Replica, Share, Snapshot},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    args::Args,
    clock::nanos,
    report::say,
    routers::routers,
    spec::{GroupProcessSpec, MemberPart, spec},
};
use crate::bench::child::Child;

/// Time in which the senders start, and may lag for a moment.
const SETTLING: Duration = Duration::from_secs(3);

/// Time within which the joiner must have joined.
const PATIENCE: Duration = Duration::from_secs(120);

/// The counters of a member over a period.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct UpdateCounters {
    applied: u64,
    elsewhere_us_p50: f64,
    elsewhere_us_p99: f64,
    /// Longest time between two applied updates.
    gap_ms_max: f64,
    /// Longest flush; 0 if this member did not flush.
    flush_ms_max: f64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    ensure!(args.members >= 2, "--members must be at least 2");
    let (_routers, addresses) = routers(args)?;
    let start = |number: usize| {
        let part = MemberPart::State { bytes: args.state_bytes, rate: args.rate / args.senders as u64 };
        Child::start(format!("member-{number}"), "group-process", &spec(args, part, number, &addresses))
    };
    let mut members = Vec::new();
    for number in 1..=args.members {
        let mut member = start(number)?;
        ensure!(member.line()? == "joined", "{} did not join its group", member.name);
        members.push(member);
    }
    for member in &mut members[..args.senders] {
        ensure!(member.ask("begin")? == "begun", "{} did not begin to send", member.name);
    }
    thread::sleep(SETTLING);
    seen(&mut members)?;
    thread::sleep(Duration::from_secs_f64(args.seconds));
    let before = seen(&mut members)?;
    let began = Instant::now();
    let mut joiner = start(args.members + 1)?;
    ensure!(joiner.line()? == "joined", "the joining member did not join the group");
    let joined = began.elapsed();
    let during = seen(&mut members)?;
    for member in &mut members[..args.senders] {
        ensure!(member.ask("stop")? == "stopped", "{} did not stop sending", member.name);
    }
    let most =
        |all: &[UpdateCounters], of: fn(&UpdateCounters) -> f64| all.iter().map(of).fold(0.0, f64::max);
    let p99 = |all: &[UpdateCounters]| most(all, |seen| seen.elsewhere_us_p99);
    let (flush, gap) = (most(&during, |seen| seen.flush_ms_max), most(&during, |seen| seen.gap_ms_max));
    let sent = |all: &[UpdateCounters], seconds: f64| all[0].applied as f64 / seconds;
    let rates = [sent(&before, args.seconds), sent(&during, joined.as_secs_f64())];
    if args.json {
        let result = json!({
            "bench": "group", "what": args.what, "members": args.members, "rate": args.rate, "state_bytes": args.state_bytes,
            "joined_s": joined.as_secs_f64(), "applied_per_second": rates, "elsewhere_us_p99_before": p99(&before),
            "elsewhere_us_p99_during": p99(&during), "flush_ms_max_before": most(&before, |seen| seen.flush_ms_max),
            "flush_ms_max_during": flush, "apply_gap_ms_max_during": gap,
        });
        println!("{result}");
        return Ok(());
    }
    println!(
        "a member with a state of {} MB joined in {:.1} s, with {:.0} updates/s before and {:.0} updates/s \
         during the join; updates were applied at other members after p99 {:.0} us before and {:.0} us \
         during the join ({:.1} times); the longest flush took {flush:.1} ms, the longest time without an \
         applied update was {gap:.1} ms",
        args.state_bytes / 1_000_000,
        joined.as_secs_f64(),
        rates[0],
        rates[1],
        p99(&before),
        p99(&during),
        p99(&during) / p99(&before)
    );
    Ok(())
}

/// Returns the members' counters since the last call.
fn seen(members: &mut [Child]) -> Result<Vec<UpdateCounters>> {
    members
        .iter_mut()
        .map(|member| {
            let said = member.ask("seen")?;
            serde_json::from_str(&said).with_context(|| format!("{}: {said}", member.name))
        })
        .collect()
}

/// The updates of a member since the last report.
struct UpdateWindow {
    applied: u64,
    elsewhere: Histogram<u64>,
    last: u64,
    gap: u64,
}

impl UpdateWindow {
    fn new() -> UpdateWindow {
        let elsewhere = Histogram::new(3).expect("a histogram may have three significant figures");
        UpdateWindow { applied: 0, elsewhere, last: nanos(), gap: 0 }
    }
}

/// A state that is cheap to copy.
struct Large {
    bytes: Bytes,
    window: Arc<Mutex<UpdateWindow>>,
}

impl Replica for Large {
    const NAME: &'static str = "state/1";
    /// The time of the send on the machine's clock, and padding.
    type Update = (u64, String);
    type Query = ();
    type Reply = ();

    fn apply(&mut self, (sent, _): (u64, String), origin: &Origin) {
        let (now, mut window) =
            (nanos(), self.window.lock().expect("no thread panics while it holds this lock"));
        window.applied += 1;
        // A report may have begun a new window after `now` was read, so `window.last` may be later than
        // `now`.
        window.gap = window.gap.max(now.saturating_sub(window.last));
        window.last = now;
        if !origin.own {
            window.elsewhere.record(now - sent).expect("the histogram grows as needed");
        }
    }

    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Declined
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::later(self.bytes.clone())
    }

    fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt> {
        Ok(Large { bytes: snapshot.read()?, window: Arc::new(Mutex::new(UpdateWindow::new())) })
    }
}

pub(super) fn take_part(spec: &GroupProcessSpec, bytes: usize, rate: u64) -> Result<()> {
    let node = Node::builder().routers(&spec.routers).patience(PATIENCE).start().wait()?;
    // The first member has the state from the start; all other members get it from a member.
    let bytes = if spec.number == 1 { vec![7; bytes] } else { Vec::new() };
    let large = Large { bytes: bytes.into(), window: Arc::new(Mutex::new(UpdateWindow::new())) };
    let member = node.group("state").join(large).wait().context("a member could not join its group")?;
    say("joined")?;
    let window = member.read(|large| large.window.clone())?;
    let (stop, flushed) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Duration::ZERO)));
    let mut threads = Vec::new();
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "begin" => {
                let (sender, stopped) = (member.clone(), stop.clone());
                let padding = "x".repeat(spec.bytes - 10);
                threads.push(thread::spawn(move || send(&sender, rate, &padding, &stopped)));
                let (flusher, stopped, longest) = (member.clone(), stop.clone(), flushed.clone());
                threads.push(thread::spawn(move || flush(&flusher, &longest, &stopped)));
                say("begun")?;
            }
            "seen" => {
                let window = std::mem::replace(
                    &mut *window.lock().expect("no thread panics while it holds this lock"),
                    UpdateWindow::new(),
                );
                let flush =
                    std::mem::take(&mut *flushed.lock().expect("no thread panics while it holds this lock"));
                let at = |quantile| window.elsewhere.value_at_quantile(quantile) as f64 / 1e3;
                let seen = UpdateCounters {
                    applied: window.applied,
                    elsewhere_us_p50: at(0.5),
                    elsewhere_us_p99: at(0.99),
                    gap_ms_max: window.gap as f64 / 1e6,
                    flush_ms_max: flush.as_secs_f64() * 1e3,
                };
                say(serde_json::to_string(&seen)?)?;
            }
            "stop" => {
                stop.store(true, Ordering::Relaxed);
                for thread in threads.drain(..) {
                    thread.join().map_err(|_| anyhow!("a sending thread of a member panicked"))??;
                }
                say("stopped")?;
            }
            word => bail!("a process of the bench received the unknown command {word:?}"),
        }
    }
    Ok(())
}

/// Sends soft updates at this rate per second, without waiting for earlier ones.
fn send(member: &Member<Large>, rate: u64, padding: &str, stop: &AtomicBool) -> Result<()> {
    let (began, mut sent) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        let sending = (sent..due).map(|_| member.send((nanos(), padding.to_owned())));
        let sending: Vec<_> = sending.collect();
        sent = due;
        thread::sleep(Duration::from_millis(1));
        for sent in sending {
            sent.wait()?;
        }
    }
    Ok(())
}

/// Flushes repeatedly, and keeps the longest time.
fn flush(member: &Member<Large>, longest: &Mutex<Duration>, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        member.flush().wait()?;
        let mut longest = longest.lock().expect("no thread panics while it holds this lock");
        *longest = longest.max(began.elapsed());
        drop(longest);
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
