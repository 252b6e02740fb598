//! A cell, and the adapter that tampers with it.

use std::sync::Arc;

use quorate_protocol::{
    Context, Input, Lift, Policy, Protocol, Sink, Time,
    partial::{
        Record, Resident,
        resident::{Command, Event, Message},
    },
    relay::Wrapper,
};

use super::tamper::Tamper;

/// A cell, with the adapter that tampers with it in some runs.
pub(crate) struct TamperedCell {
    pub(super) resident: Resident,
    tamper: Option<Tamper>,
}

impl TamperedCell {
    pub(super) fn new(resident: Resident, tamper: Option<Tamper>) -> Self {
        TamperedCell { resident, tamper }
    }

    fn give(&mut self, cx: &mut Context<'_>, input: Input<Resident>, out: &mut dyn Sink<Self>) {
        let TamperedCell { resident, tamper } = self;
        let mut lift = Lift::<TamperedCell, _, _>::new::<Resident>(
            out,
            |_, _, message| match tamper {
                Some(tamper) => Some(tamper.sent(message)),
                None => Some(message),
            },
            |out, event| out.emit(event),
        );
        resident.handle(cx, input, &mut lift);
        if let Some(tamper) = tamper {
            tamper.turned(resident);
        }
    }
}

impl Wrapper for TamperedCell {
    type Inner = Resident;

    fn inner(&self) -> &Resident {
        &self.resident
    }

    fn inner_mut(&mut self) -> &mut Resident {
        &mut self.resident
    }
}

impl Protocol for TamperedCell {
    type Message = Message;
    type Record = Record;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match (input.map(std::convert::identity, std::convert::identity), &mut self.tamper) {
            (Input::Receive { from, message }, Some(tamper)) => {
                for (from, message) in tamper.received(cx, (from, message), &self.resident, out) {
                    self.give(cx, Input::Receive { from, message }, out);
                }
            }
            (input, _) => self.give(cx, input, out),
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.resident.deadline()
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.resident.policy()
    }
}
