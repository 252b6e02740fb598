//! Sessions: what two endpoints of one channel have, over the link of their processes.
//!
//! **Promise.** To an endpoint a session is the link of the [seam](quorate_protocol::seam): lossless and FIFO from
//! [`Input::Linked`](quorate_protocol::Input::Linked) to `Unlinked`. Both ends name it alike, and no two bear one name. It
//! ends for itself: neither the link of the processes nor other sessions on it break.
//!
//! **Source.** The opening handshake of TCP (RFC 9293 §3.5) on a lower link that is lossless and FIFO, so nothing is ever
//! sent twice. Differs: if both ends ask at once, one of them gives way. In TCP their sessions become one, and then a name
//! cannot be used to tell late answers from fresh ones.
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
//! 1. A session comes about only by an answer. Whoever gets a hail that answers nothing draws a number, answers with it, and
//!    the session stands there; the opener's stands when the answer to its latest hail arrives.
//! 2. An answer to a hail that was given up is refused, so that the answerer ends what stands at its side. It also ends what
//!    stands here: the answerer has left that, and what follows on the link is of the session that is refused.
//! 3. If two hails cross, the process with the smaller id keeps its own and passes over the other's; the larger id gives its
//!    own up and answers.
//! 4. A message without a session is dropped.
//!
//! **Why messages need no number of their session.** What the answerer sends in (a, b) lies behind its `Hail(b, for a)` and
//! before its next signal. The opener takes it only if `a` is still its latest hail; else it passes over everything up to
//! the next signal. What the opener sends in (a, b) lies behind `Hail(a)` and before its next signal; the answerer has drawn
//! `b` for `a` alone, and drops it if (a, b) has ended there. So a message is taken in the session it was sent in, or not at
//! all. A header without a number is the same for all receivers.
//!
//! **Attacks considered.**
//! - *Hails cross, and the smaller id gives up meanwhile.* It sends `Bye(a)` behind `Hail(a)`, and answers `Hail(b)` of the
//!   other when it reads that. The other has given `b` up for `Hail(b', for a)` and speaks in (a, b') until it reads the
//!   goodbye. None of that is taken in (a', b): `Hail(b', for a)` comes first, and ends it (rule 2).
//! - *An endpoint ends and another comes to its channel.* Its sessions end with `Bye` first, and the newcomer draws numbers of
//!   its own.
//! - *Lanes.* What an endpoint sends aside may overtake the answer that its session stands on: it is dropped then (rule 4).
//!   It is never taken in an older session, because the opener left that one before it hailed.

use bytes::Bytes;
use quorate_protocol::{ProcessId, Session, Time};

use crate::channel::Signal;

/// One end's state of a session that it has or wants.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// The endpoint has reached for the peer.
    pub(crate) wanted: bool,
    /// The endpoint knows that there is no session.
    pub(crate) told: bool,
    /// When to hail again.
    pub(crate) again: Option<Time>,
    /// Hails in a row that came to nothing.
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

/// Consequences of a signal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To the other end.
    Say(Signal),
    /// To the endpoint: a session stands.
    Linked(Session),
    /// To the endpoint: there is none.
    Unlinked,
    /// The hail came to nothing.
    Failed,
}

/// A hail as it arrived, and what this end says of it.
pub(crate) struct Hail {
    pub(crate) number: u32,
    pub(crate) answers: u32,
    pub(crate) pass: Bytes,
    /// Whether the policy admits its pass.
    pub(crate) admitted: bool,
    /// This end's id is the smaller one.
    pub(crate) smaller: bool,
}

impl Line {
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn stands(&self) -> bool {
        matches!(self.state, State::Standing { .. })
    }

    /// The pass of the other end.
    pub(crate) fn pass(&self) -> Option<&Bytes> {
        if let State::Standing { pass, .. } = &self.state { Some(pass) } else { None }
    }

    /// This end asks under `mine`.
    pub(crate) fn hail(&mut self, mine: u32) {
        assert!(self.is_idle(), "one hail at a time");
        self.state = State::Hailing { mine };
        self.again = None;
    }

    /// This end gives up what it has. The number to say goodbye with.
    pub(crate) fn leave(&mut self) -> Option<u32> {
        match std::mem::take(&mut self.state) {
            State::Idle => None,
            State::Hailing { mine } | State::Standing { mine, .. } => Some(mine),
        }
    }

    /// The peer hails. `fresh` draws a number; `hail` makes an answer with it.
    pub(crate) fn hailed(
        &mut self,
        it: Hail,
        name: impl FnOnce(u32, u32) -> Session,
        fresh: impl FnOnce() -> u32,
        answer: impl FnOnce(u32) -> Signal,
        refusal: Signal,
    ) -> Vec<Step> {
        match self.state {
            State::Hailing { mine } if it.answers == mine && it.admitted => {
                self.state = State::Standing { mine, theirs: it.number, pass: it.pass };
                vec![Step::Linked(name(mine, it.number))]
            }
            State::Hailing { mine } if it.answers == mine => {
                self.state = State::Idle;
                vec![Step::Say(Signal::Bye { number: mine }), Step::Failed]
            }
            State::Standing { .. } if it.answers != 0 => {
                self.state = State::Idle;
                vec![Step::Unlinked, Step::Say(refusal), Step::Failed]
            }
            _ if it.answers != 0 => vec![Step::Say(refusal)],
            State::Hailing { .. } if it.smaller => Vec::new(),
            _ => {
                let mut steps = Vec::new();
                if self.stands() {
                    steps.push(Step::Unlinked);
                }
                if it.admitted {
                    let mine = fresh();
                    self.state = State::Standing { mine, theirs: it.number, pass: it.pass };
                    steps.extend([Step::Say(answer(mine)), Step::Linked(name(mine, it.number))]);
                } else {
                    self.state = State::Idle;
                    steps.extend([Step::Say(refusal), Step::Failed]);
                }
                steps
            }
        }
    }

    /// The peer ended its session `number`.
    pub(crate) fn left(&mut self, number: u32) -> Vec<Step> {
        match self.state {
            State::Standing { theirs, .. } if theirs == number => {
                self.state = State::Idle;
                vec![Step::Unlinked, Step::Failed]
            }
            _ => Vec::new(),
        }
    }

    /// The peer does not agree to this end's `number`.
    pub(crate) fn refused(&mut self, number: u32) -> Vec<Step> {
        match self.state {
            State::Hailing { mine } if mine == number => {
                self.state = State::Idle;
                vec![Step::Failed]
            }
            State::Standing { mine, .. } if mine == number => {
                self.state = State::Idle;
                vec![Step::Unlinked, Step::Failed]
            }
            _ => Vec::new(),
        }
    }
}

/// The name of a session: the numbers of both ends in the order of their ids.
pub(crate) fn name(me: ProcessId, peer: ProcessId, mine: u32, theirs: u32) -> Session {
    let (low, high) = if me < peer { (mine, theirs) } else { (theirs, mine) };
    Session(u64::from(low) << 32 | u64::from(high))
}
