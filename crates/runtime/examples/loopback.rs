//! Measures how fast two processes exchange messages of 100 bytes over loopback, with only the reactor
//! between them.
//!
//! ```text
//! cargo run --release -p quorate-runtime --example loopback [seconds]
//! ```
//!
//! *ping-pong*: one message under way at a time; *flood*: a window of messages under way, of which the
//! receiver acknowledges every thousandth. *Busy* is the time per message that the protocol thread was awake.

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader, Read as _},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender, unbounded};
use quorate_protocol::{
    Context, Destination, DomainId, Incarnation, Input, ProcessId, Protocol, Sink, Time,
    wire::{self, Wire, WireError},
};
use quorate_runtime::{Config, Handle, Host, Reactor, chance, clock};

/// The messages of the two processes.
enum Message {
    /// Return this as a pong.
    Ping(u64, Bytes),
    Pong(u64, Bytes),
    /// Count this message. Its number counts from 0.
    Load(u64, Bytes),
    /// All loads below this number are counted.
    Counted(u64),
}

impl Wire for Message {
    fn encode(&self, out: &mut BytesMut) {
        let (tag, number, payload) = match self {
            Message::Ping(number, payload) => (0, number, &payload[..]),
            Message::Pong(number, payload) => (1, number, &payload[..]),
            Message::Load(number, payload) => (2, number, &payload[..]),
            Message::Counted(number) => (3, number, &[][..]),
        };
        out.put_u8(tag);
        out.put_u64_le(*number);
        wire::put_bytes(out, payload);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        let tag = wire::take_u8(input)?;
        let number = wire::take_u64(input)?;
        let payload = wire::take_bytes(input)?;
        Ok(match tag {
            0 => Message::Ping(number, payload),
            1 => Message::Pong(number, payload),
            2 => Message::Load(number, payload),
            3 => Message::Counted(number),
            other => return Err(WireError::Tag(other)),
        })
    }
}

enum Order {
    Reach(ProcessId, String),
    /// Exchange pings until the next order.
    Ping,
    /// Send load with this many messages under way until the next order.
    Flood(u64),
    Rest,
}

enum Report {
    Linked,
    /// The time of one round trip.
    Round(Duration),
    /// The number of messages that the peer has counted.
    Counted(u64),
}

struct Probe {
    peer: Option<ProcessId>,
    order: Order,
    payload: Bytes,
    pinged: Time,
    sent: u64,
    counted: u64,
    received: u64,
}

const PAYLOAD_BYTES: usize = 100;
const ACKNOWLEDGED: u64 = 1000;

impl Probe {
    fn new() -> Self {
        Probe {
            peer: None,
            order: Order::Rest,
            payload: Bytes::from(vec![b'x'; PAYLOAD_BYTES]),
            pinged: Time::ZERO,
            sent: 0,
            counted: 0,
            received: 0,
        }
    }

    fn go_on(&mut self, now: Time, out: &mut dyn Sink<Self>) {
        let Some(peer) = self.peer else { return };
        match self.order {
            Order::Ping => {
                self.pinged = now;
                out.send(Destination::One(peer), Message::Ping(0, self.payload.clone()), None);
            }
            Order::Flood(window) => {
                while self.sent < self.counted + window {
                    out.send(Destination::One(peer), Message::Load(self.sent, self.payload.clone()), None);
                    self.sent += 1;
                }
            }
            Order::Reach(..) | Order::Rest => {}
        }
    }
}

impl Protocol for Probe {
    type Message = Message;
    type Record = ();
    type Command = Order;
    type Event = Report;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Receive { from, message } => match message {
                Message::Ping(number, payload) => {
                    out.send(Destination::One(from), Message::Pong(number, payload), None);
                }
                Message::Pong(..) => {
                    out.emit(Report::Round(clock::now().since(self.pinged)));
                    self.go_on(clock::now(), out);
                }
                Message::Load(number, _) => {
                    assert_eq!(number, self.received, "in order, without a gap");
                    self.received += 1;
                    if self.received.is_multiple_of(ACKNOWLEDGED) {
                        out.send(Destination::One(from), Message::Counted(self.received), None);
                    }
                }
                Message::Counted(number) => self.counted = number,
            },
            Input::Command(Order::Reach(peer, address)) => out.reach(peer, &address),
            Input::Command(order) => {
                self.order = order;
                self.go_on(cx.now, out);
            }
            Input::Linked { peer, .. } => {
                self.peer = Some(peer);
                out.emit(Report::Linked);
            }
            Input::Drained if matches!(self.order, Order::Flood(_)) => {
                out.emit(Report::Counted(self.counted));
                self.go_on(cx.now, out);
            }
            Input::Drained
            | Input::Deadline
            | Input::Persisted(_)
            | Input::Cast { .. }
            | Input::Progress { .. }
            | Input::Unlinked { .. } => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

struct Reporter(Sender<Report>);

impl Host<Probe> for Reporter {
    fn event(&mut self, event: Report, _: Time) {
        let _ = self.0.send(event);
    }
}

struct Running {
    me: ProcessId,
    handle: Handle<Probe>,
    reports: Receiver<Report>,
}

fn start() -> Result<Running, Box<dyn Error>> {
    let me = ProcessId { node: u64::from(std::process::id()), incarnation: chance::incarnation() };
    let (sender, reports) = unbounded();
    let config = Config::new(DomainId(1), me, vec!["127.0.0.1:0".parse()?]);
    Ok(Running { me, handle: Reactor::start(Probe::new(), Reporter(sender), config)?, reports })
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = env::args().nth(1);
    if argument.as_deref() == Some("peer") {
        return peer();
    }
    let span = Duration::from_secs_f64(argument.map_or(Ok(3.0), |seconds| seconds.parse())?);

    let probe = start()?;
    let mut child =
        Command::new(env::current_exe()?).arg("peer").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let result = measure(&probe, &mut child, span);
    // The peer ends when its input closes.
    drop(child.stdin.take());
    child.wait()?;
    result
}

/// Runs the other process: prints its id and address, and lives until its input closes.
fn peer() -> Result<(), Box<dyn Error>> {
    let Running { me, handle, reports: _reports } = start()?;
    println!("{} {} {}", me.node, me.incarnation.0, handle.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let counters = handle.counters();
    eprintln!(
        "peer: {} turns, {} frames, {} messages in, busy {:.1} s",
        counters.turns.get(),
        counters.frames_received.get(),
        counters.messages_received.get(),
        counters.busy_nanoseconds.get() as f64 / 1e9
    );
    Ok(())
}

fn measure(
    Running { handle, reports, .. }: &Running,
    child: &mut Child,
    span: Duration,
) -> Result<(), Box<dyn Error>> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line)?;
    let [node, incarnation, address] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err("the peer did not start".into());
    };
    let peer = ProcessId { node: node.parse()?, incarnation: Incarnation(incarnation.parse()?) };
    handle.command(Order::Reach(peer, address.to_owned())).map_err(|_| "stopped")?;
    while !matches!(reports.recv()?, Report::Linked) {}

    handle.command(Order::Ping).map_err(|_| "stopped")?;
    thread::sleep(span);
    handle.command(Order::Rest).map_err(|_| "stopped")?;
    thread::sleep(Duration::from_millis(50));
    let mut rounds: Vec<Duration> = reports
        .try_iter()
        .filter_map(|report| if let Report::Round(span) = report { Some(span) } else { None })
        .collect();
    rounds.sort();
    let percentile = |share: f64| rounds[((rounds.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "ping-pong: {} round trips, p50 {:.1} µs, p99 {:.1} µs",
        rounds.len(),
        percentile(0.5),
        percentile(0.99)
    );

    let mut total = 0;
    for window in [1_000, 10_000, 100_000] {
        let counters = handle.counters();
        let before = (counters.busy_nanoseconds.get(), counters.turns.get(), counters.frames_sent.get());
        let started = clock::now();
        handle.command(Order::Flood(window)).map_err(|_| "stopped")?;
        thread::sleep(span);
        let elapsed = clock::now().since(started);
        let counted = reports
            .try_iter()
            .filter_map(|report| if let Report::Counted(count) = report { Some(count) } else { None })
            .max()
            .map_or(0, |count| count - std::mem::replace(&mut total, count));
        let after = (counters.busy_nanoseconds.get(), counters.turns.get(), counters.frames_sent.get());
        println!(
            "flood, window {window}: {:.2} M messages/s; sender busy {:.0} ns a message, {:.0} messages a turn, {:.0} a frame",
            counted as f64 / elapsed.as_secs_f64() / 1e6,
            (after.0 - before.0) as f64 / counted as f64,
            counted as f64 / (after.1 - before.1) as f64,
            counted as f64 / (after.2 - before.2) as f64,
        );
        handle.command(Order::Rest).map_err(|_| "stopped")?;
    }
    Ok(())
}
