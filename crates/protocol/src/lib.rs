//! The protocols of Quorate as pure state machines, and the words they share.
//!
//! A protocol here is a value that takes inputs and writes outputs into a sink ([`Protocol`], [`Input`],
//! [`Sink`]). It has no socket, thread, clock, or source of chance of its own: those are passed in, so the
//! simulator and the real runtime drive the very same code.
//!
//! | module | promise |
//! |---|---|
//! | [`seam`] | the interface of protocols to the world and to each other |
//! | [`id`] | identities: processes, incarnations, domains |
//! | [`admission`] | the conditions for admission to a domain |
//! | [`role`] | the roles of processes in a cluster, and their states |
//! | [`strength`] | the promise of a read |
//! | [`fate`] | the possible effects of a request that failed |
//! | [`time`] | instants and spans as plain numbers |
//! | [`wire`] | bytes from a peer become messages, or an error; never a panic, never an unchecked length |
//! | [`journal`] | records as bytes in segments, and their recovery after a crash |
//! | [`quorum`] | counting majorities of a set of processes |
//! | [`detector`] | processes that seem to have failed |
//! | [`suspicion`] | from one process's guess to a removal: a bench of witnesses |
//! | [`paxos`] | one log on which all routers agree |
//! | [`ecast`] | ordered multicast as stateful routing |
//! | [`service`] | replicated services that need not be deterministic |
//! | [`domain`] | one domain of several parts: the routing of a cluster's routers |
//! | [`group`] | process groups: views, soft, ordered and safe sends, flush |
//! | [`rubberband`] | elastic, replicated tables on E-Cast |
//! | [`partial`] | maps whose every read and write says how many replicas it waits for |
//! | [`relay`] | two processes that cannot talk directly talk through a router |

// The code that the derive of `Wire` writes names this crate.
extern crate self as quorate_protocol;

pub mod admission;
pub mod detector;
pub mod domain;
pub mod ecast;
pub mod fate;
pub mod group;
pub mod id;
pub mod journal;
pub mod partial;
pub mod paxos;
mod policy;
pub mod quorum;
pub mod relay;
pub mod role;
pub mod rubberband;
pub mod seam;
pub mod service;
pub mod strength;
pub mod suspicion;
pub mod time;
pub mod wire;

pub use admission::{NotAdmitted, Terms};
pub use fate::Fate;
pub use id::{DomainId, Generation, Incarnation, Peer, ProcessId, RequestId};
pub use role::Role;
pub use seam::{
    Anyone, CommandId, Context, Destination, Input, Lift, MulticastAddress, Policy, Protocol, Session, Sink,
    Ticket,
};
pub use strength::Strength;
pub use time::{Duration, Time};
