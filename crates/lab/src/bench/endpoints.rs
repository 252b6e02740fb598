//! `quorate bench endpoints`: the cost of idle endpoints, to the process and to a busy endpoint.
//!
//! Two nodes on real sockets have the same number of endpoints, all dynamic: their messages travel as bytes.
//! Each endpoint has a session with its twin over the one link. All endpoints idle for a while. Then one
//! endpoint exchanges words with its twin repeatedly, alternately with a pair of nodes that have no other
//! endpoint.

use std::{thread, time::Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use crossbeam_channel::{Receiver, Sender, unbounded};
use quorate_node::{Channel, Command, Dynamic, EndpointId, Event, NewEndpoint, Node, Opaque};
use quorate_protocol::{
    Context, Destination, DomainId, Duration, Input, Peer, ProcessId, Protocol, Sink, Time,
    wire::{self, Wire, WireError},
};
use quorate_runtime::{Config, Handle, Host, Reactor, chance};
use serde_json::json;

use super::processor;

/// Measures the cost of idle endpoints.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Endpoints of each of two nodes.
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// Seconds of idling.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Number of turns. Each turn measures the two pairs of nodes one after the other.
    #[arg(long, default_value_t = 200)]
    turns: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Round trips in one turn.
const ROUND_TRIPS: u32 = 1_000;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.count > 0 && args.turns > 0, "--count and --turns must be at least 1");
    let alone = Pair::start(1)?;
    let before = processor::memory(std::process::id())?;
    let many = Pair::start(args.count)?;
    let each = processor::memory(std::process::id())?.saturating_sub(before) / (2 * args.count);
    let idle = idle(args.seconds)?;
    let (mut one, mut one_of_many) = (Vec::new(), Vec::new());
    for turn in 0..args.turns as u64 {
        one.push(alone.round_trip(0)?);
        // Each turn uses a different endpoint, far from the endpoint of the last turn.
        one_of_many.push(many.round_trip(turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % args.count)?);
    }
    let (one, one_of_many) = (median(one), median(one_of_many));
    let ratio = one_of_many / one;
    if args.json {
        let figures = json!({
            "bench": "endpoints", "count": args.count, "seconds": args.seconds, "idle_cores": idle,
            "bytes_each": each, "round_trip_us": one_of_many, "round_trip_alone_us": one, "ratio": ratio,
            "turns": args.turns, "round_trips": ROUND_TRIPS,
        });
        println!("{figures}");
    } else {
        println!("2 × {} endpoints, each with a session: {each} bytes each", args.count);
        println!("the process was idle for {} s and used {:.3} % of a core", args.seconds, idle * 100.0);
        println!(
            "a round trip between two of these endpoints takes {one_of_many:.2} µs, between two endpoints \
             without others {one:.2} µs: ratio {ratio:.3}"
        );
    }
    Ok(())
}

/// Returns the share of a core that this process uses while idle.
fn idle(seconds: f64) -> Result<f64> {
    let me = std::process::id();
    // During this second the process ends the work that the setup left behind.
    thread::sleep(std::time::Duration::from_secs(1));
    let (begun, before) = (Instant::now(), processor::time(me)?);
    thread::sleep(std::time::Duration::from_secs_f64(seconds));
    let used = processor::time(me)?.saturating_sub(before);
    Ok(used.as_secs_f64() / begun.elapsed().as_secs_f64())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Two nodes with the same endpoints.
struct Pair {
    one: Handle<Node>,
    events: Receiver<EchoEvent>,
    domain: DomainId,
    _other: Handle<Node>,
}

impl Pair {
    fn start(count: u64) -> Result<Pair> {
        let domain = chance::domain();
        let (sender, events) = unbounded();
        let (one, _) = node(1, domain, count, sender.clone())?;
        let (other, peer) = node(2, domain, count, sender)?;
        for endpoint in 0..count {
            let reach =
                Command::Dynamic(channel(domain, endpoint), Box::new(EchoCommand::Reach(peer.clone())));
            one.command(reach).ok().context("the protocol thread of a process of the bench has ended")?;
        }
        // Each end of each session emits one event.
        for _ in 0..2 * count {
            ensure!(
                matches!(events.recv_timeout(PATIENCE), Ok(EchoEvent::Linked)),
                "the endpoints of the two nodes did not all get their sessions in time"
            );
        }
        Ok(Pair { one, events, domain, _other: other })
    }

    /// Returns the mean time of a round trip between an endpoint and its twin, in microseconds. Round trips
    /// follow each other.
    fn round_trip(&self, endpoint: u64) -> Result<f64> {
        let ask = Command::Dynamic(channel(self.domain, endpoint), Box::new(EchoCommand::Ping(ROUND_TRIPS)));
        self.one.command(ask).ok().context("the protocol thread of a process of the bench has ended")?;
        match self.events.recv_timeout(PATIENCE) {
            Ok(EchoEvent::Pinged(span)) => Ok(span.as_secs_f64() * 1e6 / f64::from(ROUND_TRIPS)),
            _ => anyhow::bail!("an endpoint did not answer in time"),
        }
    }
}

fn channel(domain: DomainId, endpoint: u64) -> Channel {
    Channel { domain, endpoint: EndpointId(1000 + endpoint) }
}

fn node(
    number: u64,
    domain: DomainId,
    count: u64,
    sender: Sender<EchoEvent>,
) -> Result<(Handle<Node>, Peer)> {
    let id = ProcessId { node: number, incarnation: chance::incarnation() };
    let mut node = Node::new();
    for endpoint in 0..count {
        let new_endpoint = NewEndpoint::dynamic(channel(domain, endpoint), Dynamic(Echo::default()));
        ensure!(
            node.add(new_endpoint).is_ok(),
            "a node refused an endpoint, because it has one with the same name"
        );
    }
    let handle =
        Reactor::start(node, EventHandler(sender), Config::new(domain, id, vec!["127.0.0.1:0".parse()?]))?;
    let address = handle.addresses()[0].to_string();
    Ok((handle, Peer { id, address }))
}

/// An endpoint that sends words, which its twin returns.
#[derive(Default)]
struct Echo {
    twin: Option<ProcessId>,
    begun: Time,
    /// Number of remaining round trips.
    left: u32,
}

enum EchoCommand {
    Reach(Peer),
    Ping(u32),
}

enum EchoEvent {
    Linked,
    Pinged(Duration),
}

/// A message between two twin endpoints. `back` says whether the receiver has already returned the message.
struct EchoMessage {
    back: bool,
}

impl Wire for EchoMessage {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.back));
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        wire::take_u8(input).map(|back| EchoMessage { back: back == 1 })
    }
}

impl Protocol for Echo {
    type Message = EchoMessage;
    type Record = ();
    type Command = EchoCommand;
    type Event = EchoEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Command(EchoCommand::Reach(peer)) => out.reach(peer.id, &peer.address),
            Input::Command(EchoCommand::Ping(count)) => {
                (self.begun, self.left) = (cx.now, count);
                self.ping(out);
            }
            Input::Receive { from, message: EchoMessage { back: false } } => {
                out.send(Destination::One(from), EchoMessage { back: true }, None);
            }
            Input::Receive { message: EchoMessage { back: true }, .. } => {
                self.left -= 1;
                match self.left {
                    0 => out.emit(EchoEvent::Pinged(cx.now.since(self.begun))),
                    _ => self.ping(out),
                }
            }
            Input::Linked { peer, .. } => {
                self.twin = Some(peer);
                out.emit(EchoEvent::Linked);
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

impl Echo {
    fn ping(&self, out: &mut dyn Sink<Self>) {
        let twin = self.twin.expect("an endpoint has a session with its twin before the round trips begin");
        out.send(Destination::One(twin), EchoMessage { back: false }, None);
    }
}

struct EventHandler(Sender<EchoEvent>);

impl Host<Node> for EventHandler {
    fn event(&mut self, event: Event<Opaque>, _: Time) {
        if let Event::Dynamic(_, event) = event
            && let Ok(event) = event.downcast::<EchoEvent>()
        {
            // Sending fails only when the bench is over.
            let _ = self.0.send(*event);
        }
    }
}
