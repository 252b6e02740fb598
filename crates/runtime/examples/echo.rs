//! An endpoint that sends back the words it receives, over loopback: `cargo run -p quorate-runtime --example
//! echo -- WORDS…`

use std::{collections::BTreeMap, env, error::Error, time::Duration};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};
use quorate_node::{Channel, Command, Dynamic, EndpointId, Event, NewEndpoint, Node, Opaque};
use quorate_protocol::{
    Context, Destination, DomainId, Input, Peer, ProcessId, Protocol, Sink, Time, wire::Wire,
};
use quorate_runtime::{Config, Handle, Host, Reactor, chance};

const ECHO: Channel = Channel { domain: DomainId(0xec0), endpoint: EndpointId(1000) };
type Started = (Handle<Node>, Peer, Receiver<Bytes>);

#[derive(Wire)]
enum Word {
    #[wire(tag = 0)]
    There(Bytes),
    #[wire(tag = 1)]
    Back(Bytes),
}

/// Words that wait for a link, by peer.
struct Echo(BTreeMap<ProcessId, Vec<String>>);

impl Protocol for Echo {
    type Message = Word;
    type Record = ();
    type Command = (Peer, Vec<String>);
    type Event = Bytes;

    fn handle(&mut self, _: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Command((peer, words)) => {
                self.0.insert(peer.id, words);
                out.reach(peer.id, &peer.address);
            }
            Input::Linked { peer, .. } => {
                let words = self.0.remove(&peer).into_iter().flatten();
                words.for_each(|it| out.send(Destination::One(peer), Word::There(it.into()), None));
            }
            Input::Receive { from, message: Word::There(text) } => {
                out.send(Destination::One(from), Word::Back(text), None);
            }
            Input::Receive { message: Word::Back(text), .. } => out.emit(text),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

struct EventHandler(Sender<Bytes>);

impl Host<Node> for EventHandler {
    fn event(&mut self, event: Event<Opaque>, _: Time) {
        if let Event::Dynamic(ECHO, text) = event {
            // The receiver may be gone, so an error is ignored.
            let _ = self.0.send(*text.downcast::<Bytes>().expect("an endpoint tells its own events"));
        }
    }
}

fn start(number: u64) -> Result<Started, Box<dyn Error>> {
    let id = ProcessId { node: number, incarnation: chance::incarnation() };
    let (mut node, (sender, events)) = (Node::new(), unbounded());
    node.add(NewEndpoint::dynamic(ECHO, Dynamic(Echo(BTreeMap::new()))))
        .map_err(|_| "the channel is taken")?;
    let handle = Reactor::start(
        node,
        EventHandler(sender),
        Config::new(ECHO.domain, id, vec!["127.0.0.1:0".parse()?]),
    )?;
    let address = handle.addresses()[0].to_string();
    Ok((handle, Peer { id, address }, events))
}

pub(crate) fn echoed(words: &[String]) -> Result<Vec<Bytes>, Box<dyn Error>> {
    let ((one, _, events), (_other, peer, _)) = (start(1)?, start(2)?);
    one.command(Command::Dynamic(ECHO, Box::new((peer, words.to_vec()))))
        .map_err(|_| "the node has ended")?;
    words.iter().map(|_| Ok(events.recv_timeout(Duration::from_secs(20))?)).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    echoed(&words)?.iter().for_each(|text| println!("{}", String::from_utf8_lossy(text)));
    Ok(())
}
