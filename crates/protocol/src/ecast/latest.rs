//! Injections of the latest state: reads that see every acknowledged write, without a place in the log.
//!
//! **Promise.** If a router confirms an injection ([`Message::Latest`]), the injection's stamp covers every
//! message that any process knew to be stable when the injection's sender asked. It also covers the stamp of
//! every earlier confirmed injection. So reads that wait for the confirmation are linearizable.
//!
//! **Source.** 003 §VI.A, X-Paxos: a majority confirms a read, and the read takes no slot. 002 §6.7 has
//! injections; a router gives them a stamp without asking anybody.
//!
//! ```text
//!   member          lead router          routers         destination
//!     │ InjectLatest     │                  │                 │
//!     ├─────────────────▶│ Deliver (stamp 43) ────────────────▶│
//!     │                  ├── Confirm round ▶│                 │ reads as of 43
//!     │                  │◀── Confirmed ────┤                 │
//!     │◀──── Latest ─────┤                                    │
//!     │◀──────────────────────── answer ──────────────────────┤
//! ```
//!
//! The member may use the answer once it has both. The round and the read take place at the same time.
//!
//! **Why this is right.** The stamp is the last position that the lead router had learned when the injection
//! arrived. Let a message be known to be stable at that time.
//! - *A router learned it while it led.* If it was this router, the stamp covers the message. If it was an
//!   earlier leader, the message was chosen, so it is in the log with which this reign began. This router
//!   learned that log before the reign was settled, and it refuses injections before.
//! - *A later leader learned it.* That leader had the promises of a majority, and then chose the message. A
//!   majority confirms this reign in a round that began after the injection arrived, and therefore has not
//!   promised a higher ballot before. The two majorities have a member in common, so the message was not
//!   chosen when the injection arrived.
//!
//! The same argument with the stamp of an earlier confirmed injection in place of the message shows that
//! stamps never go back.
//!
//! **Attacks considered.** *A leader confirms without asking.* The stamp may then be too low. A destination
//! that has delivered later messages refuses an injection with such a stamp. So the read is wrong only if its
//! destination is also cut off from the new leader, and was removed there. *A round from before the
//! injection confirms it*, *a leader answers before its reign is settled*: unit tests show that the router
//! does neither.
//!
//! **Disk.** A router learns a message when a majority has it on disk, so nothing that an injection shows can
//! be lost by a power cut. The confirmation waits for no disk.
//!
//! **Refusals.** The router refuses an injection if it does not lead, if its reign is not settled, if a
//! destination cannot take it, or if 65,536 injections (`OPEN_MAX`) wait for a round. It refuses all open
//! injections when its reign ends. The member asks again.

use bytes::Bytes;

use super::{Message, Router, Routing};
use crate::{
    id::ProcessId,
    paxos::Ballot,
    seam::{Context, Input, Sink},
};

impl<R: Routing> Router<R> {
    /// Delivers an injection of the latest state, and remembers to confirm it. Returns `false` if it cannot
    /// be delivered now.
    pub(super) fn inject_latest(&mut self, from: ProcessId, token: u64, body: &Bytes) -> bool {
        let Some(dispatch) = self.dispatch.as_mut().filter(|_| self.unconfirmed.is_ready()) else {
            return false;
        };
        let injected = dispatch.inject(&self.order, from, token, body);
        if injected {
            self.unconfirmed.push(from, token);
        }
        injected
    }

    /// Asks the other routers whether this router still leads, once for all injections of a batch of inputs.
    pub(super) fn ask_latest(&mut self, cx: &mut Context<'_>, out: &mut dyn Sink<Self>) {
        if let Some(question) = self.unconfirmed.question() {
            self.drive(cx, Input::Command(question), out);
        }
    }

    /// Confirms the injections up to this number to their senders, because the reign of `ballot` stood after
    /// they had arrived.
    pub(super) fn confirm_latest(&mut self, ballot: Ballot, through: u64, out: &mut dyn Sink<Self>) {
        for (member, tokens) in self.unconfirmed.confirm(ballot, through) {
            self.send_to_member(member, Message::Latest { tokens }, out);
        }
    }

    /// Refuses the open injections, because the reign of this router has ended.
    pub(super) fn end_latest(&mut self, out: &mut dyn Sink<Self>) {
        for (member, token) in self.unconfirmed.end() {
            self.send_to_member(member, Message::InjectRefused { token }, out);
        }
    }
}

#[cfg(test)]
mod tests;
