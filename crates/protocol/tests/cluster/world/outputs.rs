//! What a process puts out during one call, kept until its world takes care of it.

use std::sync::Arc;

use quorate_protocol::{Destination, Policy, ProcessId, Protocol, Sink, Ticket};

pub(crate) struct Outputs<P: Protocol> {
    pub(crate) sent: Vec<(Destination, P::Message)>,
    pub(crate) events: Vec<P::Event>,
    pub(crate) reached: Vec<ProcessId>,
    pub(crate) forgotten: Vec<ProcessId>,
    pub(crate) adopted: Option<Arc<dyn Policy>>,
    /// The last record's.
    pub(crate) ticket: Ticket,
    /// Whether any record is new.
    pub(crate) persisted: bool,
    pub(crate) records: Vec<P::Record>,
}

impl<P: Protocol> Outputs<P> {
    /// None yet, behind this record.
    pub(crate) fn behind(ticket: Ticket) -> Self {
        Outputs {
            sent: Vec::new(),
            events: Vec::new(),
            reached: Vec::new(),
            forgotten: Vec::new(),
            adopted: None,
            ticket,
            persisted: false,
            records: Vec::new(),
        }
    }
}

impl<P: Protocol> Sink<P> for Outputs<P> {
    fn send(&mut self, to: Destination, message: P::Message, after: Option<Ticket>) {
        assert!(after.is_none_or(|after| after.0 <= self.ticket.0), "waits for a record that is not written");
        self.sent.push((to, message));
    }

    fn persist(&mut self, record: P::Record) -> Ticket {
        self.records.push(record);
        self.ticket.0 += 1;
        self.persisted = true;
        self.ticket
    }

    fn emit(&mut self, event: P::Event) {
        self.events.push(event);
    }

    fn reach(&mut self, peer: ProcessId, _address: &str) {
        self.reached.push(peer);
    }

    fn forget(&mut self, peer: ProcessId) {
        self.forgotten.push(peer);
    }

    fn adopt(&mut self, policy: Arc<dyn Policy>) {
        self.adopted = Some(policy);
    }
}
