//! Sessions: the connection of two endpoints of one channel, over the link of their processes.
//!
//! **Promise.** To an endpoint a session is the link of the [seam](quorate_protocol::seam): lossless and FIFO
//! from [`Input::Linked`](quorate_protocol::Input::Linked) to `Unlinked`. Both ends use the same name for it,
//! and no two sessions share a name. A session ends alone: neither the link of the processes nor other
//! sessions on it break.
//!
//! **Source.** The opening handshake of TCP (RFC 9293 §3.5), on a lower link that is lossless and FIFO, so no
//! message is sent twice. Difference: if both ends ask at once, one of them gives way. In TCP the two
//! requests become one session, and then a name cannot tell late answers from fresh ones.
//!
//! ```text
//!   opener                    other end
//!     │ Hail(a) ────────────────▶│ draws b; the session (a, b) stands here
//!     │◀──────── Hail(b, for a) ─│
//!     │ stands here too          │
//!     │ messages in both directions
//!     │ Bye(a) ─────────────────▶│ ended      (or Bye(b) the other way)
//! ```
//!
//! **Rules.** A node draws each number once.
//! 1. A session comes about only by an answer. An endpoint that receives a hail which answers nothing draws a
//!    number and answers with it; the session stands there. The opener's side stands when the answer to its
//!    latest hail arrives.
//! 2. An endpoint refuses an answer to a hail that it has given up, so that the answerer ends the session at
//!    its side. The endpoint also ends the session that it has with this peer: the answerer has left that
//!    one, and its next messages belong to the refused session.
//! 3. If two hails cross, the process with the smaller id keeps its own and ignores the other's. The process
//!    with the larger id gives its own up and answers.
//! 4. A message without a session is dropped.
//!
//! **Why messages need not carry the number of their session.** Messages of the answerer in (a, b) arrive
//! after its `Hail(b, for a)` and before its next signal. The opener takes them only if `a` is still its
//! latest hail; otherwise it ignores everything up to the next signal. Messages of the opener in (a, b)
//! arrive after `Hail(a)` and before its next signal. The answerer has drawn `b` for `a` alone, and drops
//! them if (a, b) has ended there. So a message is taken in the session in which it was sent, or not at all.
//! And a header without a number is the same for all receivers.
//!
//! **Attacks considered.**
//! - *Hails cross, and the smaller id gives up meanwhile.* It sends `Bye(a)` after `Hail(a)`. When it reads
//!   `Hail(b)` of the other process, it answers with a fresh `a'`. The other process has given `b` up for
//!   `Hail(b', for a)`, and its messages belong to (a, b') until it reads the goodbye. None of them is taken
//!   in (a', b): `Hail(b', for a)` comes first, and ends that session (rule 2).
//! - *An endpoint ends and another one takes its channel.* The first one's sessions end with `Bye` before
//!   that, and the new endpoint draws its own numbers.
//! - *Lanes.* A message sent aside may overtake the answer that opens its session; then it is dropped (rule
//!   4). It is never taken in an older session, because the opener left that one before it hailed.

use bytes::Bytes;
use quorate_protocol::{ProcessId, Session, Time};

use crate::channel::Signal;

/// The state of one end of a session, present or wanted.
#[derive(Debug, Default)]
pub(crate) struct SessionState {
    /// Whether the endpoint reaches for the peer.
    pub(crate) wanted: bool,
    /// Whether the endpoint knows that there is no session.
    pub(crate) down_reported: bool,
    /// The time to hail again.
    pub(crate) retry_at: Option<Time>,
    /// Number of failed hails in a row.
    pub(crate) failures: u32,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Hailing {
        mine: u32,
    },
    Standing {
        mine: u32,
        theirs: u32,
        pass: Bytes,
    },
}

/// A consequence of a signal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionStep {
    /// Send this signal to the other end.
    Say(Signal),
    /// Report to the endpoint that the session stands.
    Linked(Session),
    /// Report to the endpoint that the session has ended.
    Unlinked,
    /// The hail failed; try again later if a session is wanted.
    Failed,
}

/// A received hail, with this end's judgement.
pub(crate) struct Hail {
    pub(crate) number: u32,
    pub(crate) answers: u32,
    pub(crate) pass: Bytes,
    /// Whether this end's policy admits the pass.
    pub(crate) admitted: bool,
    /// Whether this end's process has the smaller id.
    pub(crate) smaller: bool,
}

impl SessionState {
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn stands(&self) -> bool {
        matches!(self.state, State::Standing { .. })
    }

    /// Returns the pass of the other end, if the session stands.
    pub(crate) fn pass(&self) -> Option<&Bytes> {
        if let State::Standing { pass, .. } = &self.state { Some(pass) } else { None }
    }

    /// Asks for a session under the number `mine`.
    pub(crate) fn hail(&mut self, mine: u32) {
        assert!(self.is_idle(), "a session hails its peer only while it is idle");
        self.state = State::Hailing { mine };
        self.retry_at = None;
    }

    /// Gives up the session or hail. Returns the number for the goodbye.
    pub(crate) fn leave(&mut self) -> Option<u32> {
        match std::mem::take(&mut self.state) {
            State::Idle => None,
            State::Hailing { mine } | State::Standing { mine, .. } => Some(mine),
        }
    }

    /// Handles a hail of the peer. `fresh` draws a number, and `answer` makes the answer with it.
    pub(crate) fn hailed(
        &mut self,
        it: Hail,
        name: impl FnOnce(u32, u32) -> Session,
        fresh: impl FnOnce() -> u32,
        answer: impl FnOnce(u32) -> Signal,
        refusal: Signal,
    ) -> Vec<SessionStep> {
        match self.state {
            State::Hailing { mine } if it.answers == mine && it.admitted => {
                self.state = State::Standing { mine, theirs: it.number, pass: it.pass };
                vec![SessionStep::Linked(name(mine, it.number))]
            }
            State::Hailing { mine } if it.answers == mine => {
                self.state = State::Idle;
                vec![SessionStep::Say(Signal::Bye { number: mine }), SessionStep::Failed]
            }
            State::Standing { .. } if it.answers != 0 => {
                self.state = State::Idle;
                vec![SessionStep::Unlinked, SessionStep::Say(refusal), SessionStep::Failed]
            }
            _ if it.answers != 0 => vec![SessionStep::Say(refusal)],
            State::Hailing { .. } if it.smaller => Vec::new(),
            _ => {
                let mut steps = Vec::new();
                if self.stands() {
                    steps.push(SessionStep::Unlinked);
                }
                if it.admitted {
                    let mine = fresh();
                    self.state = State::Standing { mine, theirs: it.number, pass: it.pass };
                    steps
                        .extend([SessionStep::Say(answer(mine)), SessionStep::Linked(name(mine, it.number))]);
                } else {
                    self.state = State::Idle;
                    steps.extend([SessionStep::Say(refusal), SessionStep::Failed]);
                }
                steps
            }
        }
    }

    /// Handles the end of the peer's session `number`.
    pub(crate) fn left(&mut self, number: u32) -> Vec<SessionStep> {
        match self.state {
            State::Standing { theirs, .. } if theirs == number => {
                self.state = State::Idle;
                vec![SessionStep::Unlinked, SessionStep::Failed]
            }
            _ => Vec::new(),
        }
    }

    /// Handles a refusal of this end's `number`.
    pub(crate) fn refused(&mut self, number: u32) -> Vec<SessionStep> {
        match self.state {
            State::Hailing { mine } if mine == number => {
                self.state = State::Idle;
                vec![SessionStep::Failed]
            }
            State::Standing { mine, .. } if mine == number => {
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
