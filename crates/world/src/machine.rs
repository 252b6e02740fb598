//! A machine: its clock, its processor, its inbox, and the process on it.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use quorate_protocol::{
    Destination, MulticastAddress, Policy, ProcessId, Protocol, Sink, Ticket, Time, journal::Hearsay,
    wire::Wire,
};
use serde::{Deserialize, Serialize};

use crate::{
    disk::Disk,
    network::{Frame, Life},
    random::{Chance, Delay},
};

/// What machines are like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MachineSettings {
    /// What an input costs.
    pub input_micros: f64,
    /// What a thousand bytes cost, in and out.
    pub kilobyte_micros: f64,
    /// How long inputs gather before a batch is handed over.
    pub gather_micros: f64,
    /// How late timers fire.
    pub timer_lateness: Delay,
    /// Clocks run fast or slow by up to this fraction.
    pub drift_max: f64,
    /// Processors are up to this many times slower than the fastest.
    pub slowness_max: f64,
}

impl Default for MachineSettings {
    fn default() -> Self {
        MachineSettings {
            input_micros: 1.0,
            kilobyte_micros: 0.5,
            gather_micros: 5.0,
            timer_lateness: Delay::Exponential { least_micros: 1.0, mean_micros: 80.0 },
            drift_max: 2e-4,
            slowness_max: 2.0,
        }
    }
}

pub(crate) struct Machine<P: Protocol> {
    /// Where its processes listen.
    pub(crate) address: String,
    pub(crate) process: Option<P>,
    pub(crate) life: Life,
    pub(crate) inbox: VecDeque<Arrival<P>>,
    /// Starts with which the present process has a link, or wants one.
    pub(crate) neighbours: BTreeSet<Life>,
    pub(crate) chance: Chance,
    pub(crate) clock: Clock,
    pub(crate) slowness: f64,
    pub(crate) busy_until: Time,
    pub(crate) paused_until: Time,
    /// Whose doing that is.
    pub(crate) paused_by: &'static str,
    pub(crate) work_at: Option<Time>,
    pub(crate) wake_at: Option<Time>,
    pub(crate) tickets: u64,
    /// In a world with disks.
    pub(crate) disk: Option<Disk>,
    /// What others have told the present process of their disks.
    pub(crate) hearsay: Hearsay,
}

/// A machine's boot-time clock.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) base: u64,
    /// Nanoseconds that it counts in a real second.
    pub(crate) rate: u64,
}

impl Clock {
    /// A clock that shows `base` at the beginning and runs fast by the fraction `drift`.
    pub(crate) fn new(base: u64, drift: f64) -> Self {
        Clock { base, rate: (NANOS as f64 * (1.0 + drift)) as u64 }
    }

    pub(crate) fn local(self, real: Time) -> Time {
        Time(self.base + (u128::from(real.0) * u128::from(self.rate) / NANOS) as u64)
    }

    /// The first real instant at which the clock shows `local` or more.
    pub(crate) fn real(self, local: Time) -> Time {
        let past = u128::from(local.0.saturating_sub(self.base));
        Time(u64::try_from((past * NANOS).div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX))
    }
}

pub(crate) enum Arrival<P: Protocol> {
    Frame { from: Life, frame: Frame },
    Cast { from: Life, message: Bytes },
    Linked { peer: Life, session: u64 },
    Unlinked { peer: ProcessId },
    Command(P::Command),
    Deadline,
    Persisted(Ticket),
}

/// What one batch puts out.
pub(crate) struct Outbox<P: Protocol> {
    pub(crate) sends: Vec<Outgoing>,
    pub(crate) casts: Vec<(ProcessId, Bytes)>,
    pub(crate) multicasts: Vec<(MulticastAddress, Bytes)>,
    /// Addresses that are listened to from now on, or no more.
    pub(crate) listens: Vec<(MulticastAddress, bool)>,
    pub(crate) wishes: Vec<(ProcessId, Wish)>,
    pub(crate) events: Vec<P::Event>,
    /// The policies that the process has adopted, and how many events came before each.
    pub(crate) adopted: Vec<(usize, Arc<dyn Policy>)>,
    pub(crate) scratch: BytesMut,
    pub(crate) bytes: usize,
    /// The bytes of the longest message, and of the longest cast.
    pub(crate) longest: usize,
    pub(crate) longest_cast: usize,
    pub(crate) tickets: u64,
    /// Records, if there is a disk.
    pub(crate) records: Option<Vec<Bytes>>,
    /// Records before this one are needed no more.
    pub(crate) collected: Option<(Ticket, Vec<Ticket>)>,
}

/// The queue that a message leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// In order behind earlier messages to the same peer, and not before this record is durable.
    Ordered(Option<Ticket>),
    /// At once.
    Aside,
}

pub(crate) enum Outgoing {
    Message(Destination, Bytes, Lane),
    /// The process was told that its session with this peer began or ended: what it sent before is not of the next one.
    Barrier(ProcessId),
}

pub(crate) enum Wish {
    Reach(String),
    Forget,
}

impl<P: Protocol> Outbox<P> {
    pub(crate) fn new(tickets: u64, disk: bool) -> Self {
        Outbox {
            sends: Vec::new(),
            casts: Vec::new(),
            multicasts: Vec::new(),
            listens: Vec::new(),
            wishes: Vec::new(),
            events: Vec::new(),
            adopted: Vec::new(),
            scratch: BytesMut::new(),
            bytes: 0,
            longest: 0,
            longest_cast: 0,
            tickets,
            records: disk.then(Vec::new),
            collected: None,
        }
    }

    fn put(&mut self, to: Destination, message: &P::Message, lane: Lane)
    where
        P::Message: Wire,
    {
        let bytes = self.encode(message);
        self.longest = self.longest.max(bytes.len());
        self.sends.push(Outgoing::Message(to, bytes, lane));
    }

    fn encode(&mut self, message: &P::Message) -> Bytes
    where
        P::Message: Wire,
    {
        message.encode(&mut self.scratch);
        let bytes = self.scratch.split().freeze();
        self.bytes += bytes.len();
        bytes
    }

    /// The process is told that its session with this peer begins or ends: what it sent before is not of the next one.
    pub(crate) fn turn_over(&mut self, peer: ProcessId) {
        self.sends.push(Outgoing::Barrier(peer));
        self.casts.retain(|(to, _)| *to != peer);
    }
}

impl<P: Protocol> Sink<P> for Outbox<P>
where
    P::Message: Wire,
{
    fn send(&mut self, to: Destination, message: P::Message, after: Option<Ticket>) {
        assert!(
            after.is_none_or(|after| after.0 <= self.tickets),
            "it waits for a record that is not written"
        );
        self.put(to, &message, Lane::Ordered(after));
    }

    fn send_aside(&mut self, to: Destination, message: P::Message) {
        self.put(to, &message, Lane::Aside);
    }

    fn cast(&mut self, to: Destination, message: P::Message) {
        let bytes = self.encode(&message);
        self.longest_cast = self.longest_cast.max(bytes.len());
        match to {
            Destination::One(to) => self.casts.push((to, bytes)),
            Destination::Many(all) => self.casts.extend(all.into_iter().map(|to| (to, bytes.clone()))),
        }
    }

    fn multicast(&mut self, address: MulticastAddress, _: Vec<ProcessId>, message: P::Message) {
        let bytes = self.encode(&message);
        self.longest_cast = self.longest_cast.max(bytes.len());
        self.multicasts.push((address, bytes));
    }

    fn listen(&mut self, address: MulticastAddress) {
        self.listens.push((address, true));
    }

    fn ignore(&mut self, address: MulticastAddress) {
        self.listens.push((address, false));
    }

    fn persist(&mut self, record: P::Record) -> Ticket {
        if let Some(records) = &mut self.records {
            record.encode(&mut self.scratch);
            records.push(self.scratch.split().freeze());
        }
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn collect(&mut self, before: Ticket, kept: &[Ticket]) {
        self.collected = Some((before, kept.to_vec()));
    }

    fn emit(&mut self, event: P::Event) {
        self.events.push(event);
    }

    fn reach(&mut self, peer: ProcessId, address: &str) {
        self.wishes.push((peer, Wish::Reach(address.to_owned())));
    }

    fn forget(&mut self, peer: ProcessId) {
        self.wishes.push((peer, Wish::Forget));
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.adopted.push((self.events.len(), policy));
    }
}

const NANOS: u128 = 1_000_000_000;
