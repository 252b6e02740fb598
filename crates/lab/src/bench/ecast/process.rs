//! One process of the bench: a router, a receiver, or the load.

use std::{
    collections::VecDeque,
    convert::identity,
    io::{BufRead, Write},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use crossbeam_channel::{Receiver as Channel, Sender, unbounded};
use hdrhistogram::Histogram;
use quorate_node::EndpointId;
use quorate_protocol::{
    Context, DomainId, Input, Lift, Peer, Policy, ProcessId, Protocol, Sink, Ticket, Time,
    ecast::{
        Class, Member, MemberCommand, MemberEvent, MemberSettings, Message, Outcome, Router, RouterCommand,
        RouterSettings,
    },
    journal,
    paxos::{self, Paxos},
};
use quorate_runtime::{Config, Disk, Host, Port, chance, clock, discover::discover, disk, disk::DiskError};
use serde::{Deserialize, Serialize};

use super::{
    report::{EcastRun, Received},
    routing::{self, Join, Ring, following, number_of},
};

/// The role of a process in the bench, and its settings.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct EcastProcessSpec {
    pub(super) domain: u128,
    pub(super) node: u64,
    pub(super) routers: Vec<String>,
    pub(super) wanted: usize,
    pub(super) receivers: usize,
    pub(super) copies: usize,
    pub(super) bytes: usize,
    pub(super) window: usize,
    pub(super) seconds: f64,
    /// The directory of a router's journal, if it has one.
    pub(super) disk: Option<PathBuf>,
    pub(super) part: ProcessPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum ProcessPart {
    Founder,
    Router,
    Receiver,
    Load,
}

/// Size of a journal's segment. It is small, so that segments are overwritten and checkpoints are written as
/// often as in a long run.
const SEGMENT_BYTES: u64 = 16 << 20;
const WARM_UP: Duration = Duration::from_secs(1);
const SUBMISSIONS: u64 = 1 << 63;

pub(super) fn run(domain: DomainId, spec: EcastProcessSpec) -> Result<()> {
    let open = |place: &PathBuf| {
        let place = place.join(format!("router-{}", spec.node));
        let segments = journal::Settings { segment_bytes: SEGMENT_BYTES, ..journal::Settings::default() };
        let settings = disk::Settings { journal: segments, ..disk::Settings::default() };
        Disk::open(&place, domain, spec.node, settings)
    };
    let disk = spec.disk.as_ref().map(open).transpose()?.map(|opened| opened.disk);
    let fresh = ProcessId { node: spec.node, incarnation: chance::incarnation() };
    let me = disk.as_ref().map_or(fresh, Disk::process);
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let listen = listener.local_addr()?;
    let peer = Peer { id: me, address: listen.to_string() };
    let reactor = Config { listening: vec![Arc::new(listener)], ..Config::new(domain, me, Vec::new()) };
    match spec.part {
        ProcessPart::Founder | ProcessPart::Router => {
            let checkpoint_bytes = disk.as_ref().map(|_| SEGMENT_BYTES as usize);
            let chosen_after = paxos::Settings::CHOSEN_AFTER;
            let log = paxos::Settings {
                wanted: spec.wanted,
                checkpoint_bytes,
                chosen_after,
                ..paxos::Settings::default()
            };
            let settings = RouterSettings { paxos: log.clone(), ..RouterSettings::default() };
            let paxos = match spec.part {
                ProcessPart::Founder => Paxos::found(peer, log, clock::now()),
                _ => Paxos::join(peer, Vec::new(), log, clock::now()),
            };
            let config = routing::Config { copies: spec.copies, ..routing::Config::default() };
            let router: Router<Ring> = Router::new(paxos, config, settings);
            let disk = disk.map(|disk| (disk, Ticket(1)));
            let port = Port::alone_with(EndpointId::TABLES, router, Silent, reactor, disk, None)?;
            println!("{listen}");
            seek(&spec, domain, &port, RouterCommand::Seeds);
            park()
        }
        ProcessPart::Receiver => {
            let (sender, events) = unbounded();
            let receiver = Receiver::new(me, spec.bytes);
            let port = Port::alone(EndpointId::TABLES, receiver, EventSender(sender), reactor)?;
            println!("{listen}");
            seek(&spec, domain, &port, ReceiverCommand::Seeds);
            let mut word = String::new();
            std::io::stdin().lock().read_line(&mut word)?;
            port.command(ReceiverCommand::Report)
                .ok()
                .context("the protocol thread of a process of the bench has ended")?;
            say(&serde_json::to_string(&events.recv()?)?)
        }
        ProcessPart::Load => {
            let (sender, events) = unbounded();
            let load = EcastLoad::new(me, spec.clone());
            let port = Port::alone(EndpointId::TABLES, load, EventSender(sender), reactor)?;
            println!("{listen}");
            seek(&spec, domain, &port, |seeds| seeds);
            report(&events)
        }
    }
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Prints the load's events as they come, until the end of its run.
fn report(events: &Channel<LoadEvent>) -> Result<()> {
    loop {
        match events.recv()? {
            LoadEvent::Measuring => say("measuring")?,
            LoadEvent::Done(run) => say(&serde_json::to_string(&run)?)?,
        }
    }
}

fn park() -> Result<()> {
    // The bench holds our standard input and kills this process at its end. If the bench dies first, the pipe
    // closes.
    let mut rest = String::new();
    std::io::stdin().lock().read_line(&mut rest)?;
    Ok(())
}

fn seek<P>(
    spec: &EcastProcessSpec,
    domain: DomainId,
    port: &Port<P>,
    command: impl Fn(Vec<Peer>) -> P::Command,
) where
    P: Protocol<Message = Message> + Send + 'static,
    P::Command: Send,
{
    for address in &spec.routers {
        while let Ok(met) = discover(address, domain, Duration::from_secs(1)) {
            if port.try_command(command(vec![Peer { id: met.process, address: address.clone() }])).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

struct Silent;

impl Host<Router<Ring>> for Silent {
    fn event(&mut self, _event: <Router<Ring> as Protocol>::Event, _now: Time) {}

    fn disk_failed(&mut self, error: &DiskError) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

struct EventSender<E>(Sender<E>);

impl Host<Receiver> for EventSender<Received> {
    fn event(&mut self, event: Received, _now: Time) {
        let _ = self.0.send(event);
    }
}

impl Host<EcastLoad> for EventSender<LoadEvent> {
    fn event(&mut self, event: LoadEvent, _now: Time) {
        let _ = self.0.send(event);
    }
}

/// Passes an input to the member inside a process, and appends the member's events to `events`.
fn drive<P>(
    member: &mut Member,
    events: &mut Vec<MemberEvent>,
    cx: &mut Context<'_>,
    input: Input<Member>,
    out: &mut dyn Sink<P>,
) where
    P: Protocol<Message = Message, Record = paxos::Record>,
{
    let mut lift =
        Lift::<P, _, _>::new::<Member>(out, |_, _, message| Some(message), |_, event| events.push(event));
    member.handle(cx, input, &mut lift);
}

/// A receiver, which delivers and checks messages.
struct Receiver {
    member: Member,
    events: Vec<MemberEvent>,
    bytes: usize,
    received: Received,
    last: u64,
}

enum ReceiverCommand {
    Seeds(Vec<Peer>),
    Report,
}

impl Receiver {
    fn new(me: ProcessId, bytes: usize) -> Self {
        let mut member = Member::new(me, MemberSettings::default());
        member.submit(SUBMISSIONS, Class::Control, Join::Receiver.encode());
        let received = Received { delivered: 0, faults: 0 };
        Receiver { member, events: Vec::new(), bytes, received, last: 0 }
    }
}

impl Protocol for Receiver {
    type Message = Message;
    type Record = paxos::Record;
    type Command = ReceiverCommand;
    type Event = Received;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        if let Input::Command(ReceiverCommand::Report) = input {
            return out.emit(self.received.clone());
        }
        let input = input.map(identity, |command| match command {
            ReceiverCommand::Seeds(seeds) => MemberCommand::Seeds(seeds),
            ReceiverCommand::Report => unreachable!("a request for the report is answered before"),
        });
        drive(&mut self.member, &mut self.events, cx, input, out);
        for event in self.events.drain(..) {
            if let MemberEvent::Deliver { class: Class::Data, body, .. } = event {
                self.received.delivered += 1;
                match number_of(&body, self.bytes) {
                    Some(number) if number > self.last => self.last = number,
                    _ => self.received.faults += 1,
                }
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.member.deadline()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.member.policy()
    }
}

/// The load, which keeps a window full and measures.
struct EcastLoad {
    spec: EcastProcessSpec,
    member: Member,
    events: Vec<MemberEvent>,
    /// Messages from `oldest` on: the time of submission, and whether the outcome has arrived.
    submitted: VecDeque<(Time, bool)>,
    oldest: u64,
    number: u64,
    outstanding: usize,
    key: u64,
    latency: Histogram<u64>,
    phase: LoadPhase,
    measured: u64,
    destined: Vec<u64>,
    others: u64,
}

enum LoadPhase {
    /// The load waits for the receivers to join.
    Joining,
    WarmUp {
        until: Time,
    },
    Measuring {
        since: Time,
        until: Time,
    },
    Draining(Box<EcastRun>),
    Done,
}

enum LoadEvent {
    Measuring,
    Done(EcastRun),
}

impl EcastLoad {
    fn new(me: ProcessId, spec: EcastProcessSpec) -> Self {
        let mut member = Member::new(me, MemberSettings::default());
        member.submit(SUBMISSIONS, Class::Control, Join::Load.encode());
        let destined = vec![0; spec.receivers];
        EcastLoad {
            spec,
            member,
            events: Vec::new(),
            submitted: VecDeque::new(),
            oldest: 1,
            number: 0,
            outstanding: 0,
            key: 0,
            latency: Histogram::new_with_bounds(1, 60_000_000_000, 3)
                .expect("the bounds of the histogram are valid"),
            phase: LoadPhase::Joining,
            measured: 0,
            destined,
            others: 0,
        }
    }

    fn drive(&mut self, cx: &mut Context<'_>, input: Input<Member>, out: &mut dyn Sink<Self>) {
        let mut events = std::mem::take(&mut self.events);
        drive(&mut self.member, &mut events, cx, input, out);
        for event in events.drain(..) {
            self.on_event(cx.now, event);
        }
        self.events = events;
    }

    fn on_event(&mut self, now: Time, event: MemberEvent) {
        match event {
            MemberEvent::Outcome { token, outcome, .. } if token < SUBMISSIONS => {
                self.others += u64::from(outcome != Outcome::Stable);
                self.outstanding -= 1;
                let (since, done) = &mut self.submitted[(token - self.oldest) as usize];
                *done = true;
                if let LoadPhase::Measuring { .. } = self.phase {
                    self.measured += 1;
                    self.latency.saturating_record(now.since(*since).as_nanos() as u64);
                }
                while self.submitted.front().is_some_and(|(_, done)| *done) {
                    self.submitted.pop_front();
                    self.oldest += 1;
                }
            }
            MemberEvent::Deliver { class: Class::Control, attachment: Some(receivers), .. } => {
                let all = receivers[..] == (self.spec.receivers as u64).to_le_bytes();
                if all && matches!(self.phase, LoadPhase::Joining) {
                    self.phase = LoadPhase::WarmUp { until: now + WARM_UP };
                }
            }
            _ => {}
        }
    }

    fn submit(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        let running = matches!(self.phase, LoadPhase::WarmUp { .. } | LoadPhase::Measuring { .. });
        while running && self.outstanding < self.spec.window {
            self.number += 1;
            self.outstanding += 1;
            self.key = self.key.wrapping_add(0x9e37_79b9_7f4a_7c15);
            for receiver in following(self.key, self.spec.receivers, self.spec.copies) {
                self.destined[receiver] += 1;
            }
            self.submitted.push_back((cx.now, false));
            let body = routing::body(self.key, self.number, self.spec.bytes);
            let submit = MemberCommand::Submit { token: self.number, class: Class::Data, body };
            self.drive(cx, Input::Command(submit), out);
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        match &self.phase {
            LoadPhase::WarmUp { until } if *until <= cx.now => {
                let until = cx.now + Duration::from_secs_f64(self.spec.seconds);
                self.phase = LoadPhase::Measuring { since: cx.now, until };
                out.emit(LoadEvent::Measuring);
            }
            LoadPhase::Measuring { since, until } if *until <= cx.now => {
                let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
                self.phase = LoadPhase::Draining(Box::new(EcastRun {
                    messages: self.measured,
                    seconds: cx.now.since(*since).as_secs_f64(),
                    latency_p50_us: microseconds(self.latency.value_at_quantile(0.5)),
                    latency_p99_us: microseconds(self.latency.value_at_quantile(0.99)),
                    latency_max_us: microseconds(self.latency.max()),
                    destined: Vec::new(),
                    outcomes_other: 0,
                    resends: self.member.resends(),
                }));
                self.advance(cx, out);
            }
            LoadPhase::Draining(_) if self.outstanding == 0 => {
                if let LoadPhase::Draining(mut run) = std::mem::replace(&mut self.phase, LoadPhase::Done) {
                    run.destined = self.destined.clone();
                    run.outcomes_other = self.others;
                    out.emit(LoadEvent::Done(*run));
                }
            }
            _ => {}
        }
    }
}

impl Protocol for EcastLoad {
    type Message = Message;
    type Record = paxos::Record;
    type Command = Vec<Peer>;
    type Event = LoadEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        let drained = matches!(input, Input::Drained);
        if drained {
            self.advance(cx, out);
            self.submit(cx, out);
        }
        self.drive(cx, input.map(identity, MemberCommand::Seeds), out);
    }

    fn deadline(&self) -> Option<Time> {
        let phase = match &self.phase {
            LoadPhase::WarmUp { until } | LoadPhase::Measuring { until, .. } => Some(*until),
            _ => None,
        };
        [phase, self.member.deadline()].into_iter().flatten().min()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.member.policy()
    }
}
