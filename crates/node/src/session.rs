//! Sessions: the connection of two endpoints of one channel, over the link of their processes.
//!
//! **Promise.** To an endpoint a session is the link of the [seam](quorate_protocol::seam): lossless and FIFO
//! from [`Input::Linked`](quorate_protocol::Input::Linked) to `Unlinked`. Both ends use the same name for a
//! session, and no two sessions share a name. A session ends alone: neither the link of the processes nor
//! other sessions on it break.
//!
//! **Source.** The opening handshake of TCP (RFC 9293 §3.5). The link below is lossless and FIFO, so no
//! message is sent twice. Difference: if both ends ask at once, one of them gives way. In TCP the two
//! requests become one session, but then the name of a session could not distinguish late answers from fresh
//! answers.
//!
//! ```text
//!   opener                    other end
//!     │ Open(a) ────────────────▶│ draws b; the session (a, b) is open here
//!     │◀──────── Open(b, for a) ─│
//!     │ open here too            │
//!     │ messages in both directions
//!     │ Bye(a) ─────────────────▶│ ended      (or Bye(b) the other way)
//! ```
//!
//! **Rules.** A node draws each number once. 1. A session opens only by an answer. An endpoint that receives
//! a request (an `Open` that answers no other `Open`) draws a number and answers with it; from then on the
//! session is open at this end. At the opener the session opens when the answer to the opener's latest
//! request arrives. 2. An endpoint refuses an answer to a request that it has given up, so that the answerer
//! ends the refused session at its side. The endpoint also ends its present session with this peer: the
//! answerer has already left the present session, and its next messages belong to the refused session. 3. If
//! two requests cross, the process with the smaller id keeps its own and ignores the other's. The process
//! with the larger id gives its own up and answers. 4. A message without a session is dropped.
//!
//! **Why messages need not carry the number of their session.** Messages of the answerer in (a, b) arrive
//! after its `Open(b, for a)` and before its next signal. The opener accepts these messages only if `a` is
//! still its latest request; otherwise the opener ignores everything up to the next signal. Messages of the
//! opener in (a, b) arrive after `Open(a)` and before its next signal. The answerer has drawn `b` only for
//! `a`, and drops these messages if (a, b) has ended at its side. So a message is accepted in the session in
//! which it was sent, or not at all. And a header without a number is the same for all receivers.
//!
//! **Attacks considered.**
//! - *Requests cross, and the process with the smaller id gives up meanwhile.* That process sends `Bye(a)`
//!   after `Open(a)`. When it reads `Open(b)` of the other process, it answers with a fresh `a'`. The other
//!   process has given `b` up and has answered with `Open(b', for a)`. Its messages belong to (a, b') until
//!   it reads the goodbye. None of these messages is accepted in (a', b): `Open(b', for a)` comes first,
//!   and ends that session (rule 2).
//! - *An endpoint ends, and a new endpoint takes its channel.* The sessions of the former endpoint have ended
//!   with `Bye` by then, and the new endpoint draws its own numbers.
//! - *Lanes.* A message of `Sink::send_aside` may overtake the answer that opens its session; then the
//!   message is dropped (rule 4). It is never accepted in an older session, because the opener left that
//!   session before it sent its request.

use bytes::Bytes;
use quorate_protocol::{ProcessId, Session, Time};

use crate::channel::Signal;

/// The state of one end of a session that is open or wanted.
#[derive(Debug, Default)]
pub(crate) struct SessionState {
    /// Whether the endpoint reaches for the peer.
    pub(crate) wanted: bool,
    /// Whether the endpoint has been notified that there is no session.
    pub(crate) down_reported: bool,
    /// The time at which the endpoint asks for the session again.
    pub(crate) retry_at: Option<Time>,
    /// Number of failed requests in a row.
    pub(crate) failures: u32,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Requested {
        mine: u32,
    },
    Open {
        mine: u32,
        theirs: u32,
        pass: Bytes,
    },
}

/// An action that follows from a signal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionStep {
    /// Send this signal to the other end.
    Say(Signal),
    /// Report to the endpoint that the session is open.
    Linked(Session),
    /// Report to the endpoint that the session has ended.
    Unlinked,
    /// The request for a session failed. If the endpoint still wants a session, ask again later.
    Failed,
}

/// A received [`Signal::Open`], with this end's judgement of it.
pub(crate) struct ReceivedOpen {
    pub(crate) number: u32,
    pub(crate) answers: u32,
    pub(crate) pass: Bytes,
    /// Whether this end's policy admits the pass in the signal.
    pub(crate) admitted: bool,
    /// Whether this end's process has the smaller id.
    pub(crate) smaller: bool,
}

impl SessionState {
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Returns the pass that the other end showed, if the session is open.
    pub(crate) fn pass(&self) -> Option<&Bytes> {
        if let State::Open { pass, .. } = &self.state { Some(pass) } else { None }
    }

    /// Asks for a session. This end gives the session the number `mine`.
    pub(crate) fn request(&mut self, mine: u32) {
        assert!(self.is_idle(), "a session is requested only while it is idle");
        self.state = State::Requested { mine };
        self.retry_at = None;
    }

    /// Gives up the session, or the request for a session. Returns the number that the goodbye has to name.
    pub(crate) fn leave(&mut self) -> Option<u32> {
        match std::mem::take(&mut self.state) {
            State::Idle => None,
            State::Requested { mine } | State::Open { mine, .. } => Some(mine),
        }
    }

    /// Handles the peer's request for a session, or its answer to this end's request. `fresh` draws a new
    /// session number, `answer` makes the reply with that number, `name` makes the session's name from both
    /// numbers, and `refusal` is the reply if this end refuses.
    pub(crate) fn receive_open(
        &mut self,
        open: ReceivedOpen,
        name: impl FnOnce(u32, u32) -> Session,
        fresh: impl FnOnce() -> u32,
        answer: impl FnOnce(u32) -> Signal,
        refusal: Signal,
    ) -> Vec<SessionStep> {
        match self.state {
            State::Requested { mine } if open.answers == mine && open.admitted => {
                self.state = State::Open { mine, theirs: open.number, pass: open.pass };
                vec![SessionStep::Linked(name(mine, open.number))]
            }
            State::Requested { mine } if open.answers == mine => {
                self.state = State::Idle;
                vec![SessionStep::Say(Signal::Bye { number: mine }), SessionStep::Failed]
            }
            State::Open { .. } if open.answers != 0 => {
                self.state = State::Idle;
                vec![SessionStep::Unlinked, SessionStep::Say(refusal), SessionStep::Failed]
            }
            _ if open.answers != 0 => vec![SessionStep::Say(refusal)],
            State::Requested { .. } if open.smaller => Vec::new(),
            _ => {
                let mut steps = Vec::new();
                if self.is_open() {
                    steps.push(SessionStep::Unlinked);
                }
                if open.admitted {
                    let mine = fresh();
                    self.state = State::Open { mine, theirs: open.number, pass: open.pass };
                    steps.extend([
                        SessionStep::Say(answer(mine)),
                        SessionStep::Linked(name(mine, open.number)),
                    ]);
                } else {
                    self.state = State::Idle;
                    steps.extend([SessionStep::Say(refusal), SessionStep::Failed]);
                }
                steps
            }
        }
    }

    /// Handles the peer's goodbye to the session that the peer numbered `number`.
    pub(crate) fn left(&mut self, number: u32) -> Vec<SessionStep> {
        match self.state {
            State::Open { theirs, .. } if theirs == number => {
                self.state = State::Idle;
                vec![SessionStep::Unlinked, SessionStep::Failed]
            }
            _ => Vec::new(),
        }
    }

    /// Handles the refusal of the request that this end numbered `number`.
    pub(crate) fn refused(&mut self, number: u32) -> Vec<SessionStep> {
        match self.state {
            State::Requested { mine } if mine == number => {
                self.state = State::Idle;
                vec![SessionStep::Failed]
            }
            State::Open { mine, .. } if mine == number => {
                self.state = State::Idle;
                vec![SessionStep::Unlinked, SessionStep::Failed]
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the name of a session: the numbers of both ends, in the order of their ids.
pub(crate) fn name(me: ProcessId, peer: ProcessId, mine: u32, theirs: u32) -> Session {
    let (low, high) = if me < peer { (mine, theirs) } else { (theirs, mine) };
    Session(u64::from(low) << 32 | u64::from(high))
}
