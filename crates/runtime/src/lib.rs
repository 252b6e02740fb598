//! Sockets, clocks, threads and disks that carry a node.
//!
//! Protocols are pure (see `quorate_protocol`); this crate connects them to sockets, clocks, threads and
//! disks. A [`Reactor`] runs a protocol on a thread of its own and links it with its peers over TCP. Nothing
//! here is async: the protocol thread waits for its sockets and its command queue and for nothing else.
//!
//! | module | promise |
//! |---|---|
//! | [`reactor`] | one protocol thread: inputs drained into batches, outputs written together |
//! | [`door`] | byte streams of clients on the protocol thread, bounded |
//! | [`disk`] | the journal of a process on real files |
//! | `link` | one connection for each pair of processes, reconnected when it breaks |
//! | `hello` | the handshake: both ends introduce themselves, or one end refuses with a reason |
//! | `datagram` | casts of protocols, over UDP next to the links |
//! | `frame` | streams cut into frames, payloads shared, writes gathered |
//! | [`inherit`] | descriptors passed on to the program that replaces this one in its process |
//! | [`worker`] | threads for work that would block the protocol thread |
//! | [`discover`] | a question to an address: which process listens there? |
//! | [`config`] | identity, addresses and limits of a process |
//! | [`metrics`], [`counters`] | counters and gauges, for Prometheus |
//! | [`host_name`] | names by which HTTP requests may address this process |
//! | [`clock`], [`chance`] | the present instant, and random bits |
//!
//! Two processes in one program greet each other:
//!
//! ```
//! use std::sync::mpsc;
//!
//! use bytes::{Bytes, BytesMut};
//! use quorate_protocol::{
//!     Context, Destination, Input, ProcessId, Protocol, Sink, Time,
//!     wire::{Wire, WireError, put_bytes, take_bytes},
//! };
//! use quorate_runtime::{Config, Host, Reactor, chance};
//!
//! struct Greeter;
//! struct Greeting(Bytes);
//!
//! impl Wire for Greeting {
//!     fn encode(&self, out: &mut BytesMut) {
//!         put_bytes(out, &self.0);
//!     }
//!     fn decode(input: &mut Bytes) -> Result<Self, WireError> {
//!         Ok(Greeting(take_bytes(input)?))
//!     }
//! }
//!
//! impl Protocol for Greeter {
//!     type Message = Greeting;
//!     type Record = ();
//!     type Command = (ProcessId, String);
//!     type Event = Bytes;
//!
//!     fn handle(&mut self, _: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
//!         match input {
//!             Input::Command((peer, address)) => out.reach(peer, &address),
//!             Input::Linked { peer, .. } => {
//!                 out.send(Destination::One(peer), Greeting(Bytes::from_static(b"hello")), None);
//!             }
//!             Input::Receive { message, .. } => out.emit(message.0),
//!             _ => {}
//!         }
//!     }
//!     fn deadline(&self) -> Option<Time> {
//!         None
//!     }
//! }
//!
//! struct EventHandler(mpsc::Sender<Bytes>);
//!
//! impl Host<Greeter> for EventHandler {
//!     fn event(&mut self, greeting: Bytes, _: Time) {
//!         self.0.send(greeting).expect("the receiver is open");
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let domain = chance::domain();
//! let (sender, heard) = mpsc::channel();
//! let start = |node| {
//!     let me = ProcessId { node, incarnation: chance::incarnation() };
//!     let config = Config::new(domain, me, vec!["127.0.0.1:0".parse()?]);
//!     let handle = Reactor::start(Greeter, EventHandler(sender.clone()), config)?;
//!     Ok::<_, Box<dyn std::error::Error>>((me, handle))
//! };
//! let (_, one) = start(1)?;
//! let (two, other) = start(2)?;
//! one.command((two, other.addresses()[0].to_string()))?;
//! assert_eq!([heard.recv()?, heard.recv()?], ["hello", "hello"]);
//! # Ok(())
//! # }
//! ```

pub mod chance;
pub mod clock;
pub mod config;
pub mod counters;
mod datagram;
pub mod discover;
pub mod disk;
pub mod door;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod hello;
pub mod host_name;
pub mod inherit;
mod link;
pub mod metrics;
mod node_metrics;
mod port;
pub mod reactor;
mod resolver;
pub mod worker;

pub use config::{Config, Limits, StartError};
pub use disk::Disk;
pub use door::Door;
pub use node_metrics::NodeMetrics;
pub use port::Port;
pub use reactor::{CommandError, Driven, Handle, Host, Reactor};
