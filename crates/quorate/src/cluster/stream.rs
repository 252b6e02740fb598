//! A long read's pieces, taken over only as fast as the user consumes them.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
};

use quorate_protocol::{ProcessId, relay::Relay, rubberband::ClientCommand};
use quorate_runtime::{Port, Untaken};
use quorate_sql::backend::{Fault, Piece, Pieces};
use quorate_tables::{Command, Process};
use tokio::sync::mpsc;

use super::requests::{Arrival, Requests};

/// A replica's part of a long read. What has been taken of it is told to the replica, which sends no more than a window
/// ahead; dropped before its end, it ends the request.
pub(super) struct Coming {
    handle: Port<Relay<Process>>,
    requests: Arc<Requests>,
    token: u64,
    from: ProcessId,
    pieces: mpsc::UnboundedReceiver<Arrival>,
    /// Bytes of all pieces handed out, and how much of that the replica knows.
    taken: u64,
    told: u64,
    ended: bool,
}

impl Coming {
    pub(super) fn new(
        handle: Port<Relay<Process>>,
        requests: Arc<Requests>,
        token: u64,
        from: ProcessId,
        pieces: mpsc::UnboundedReceiver<Arrival>,
    ) -> Self {
        Coming { handle, requests, token, from, pieces, taken: 0, told: 0, ended: false }
    }

    /// Whether there is room for a command; a process that is ending needs none any more.
    fn tell(&self, command: ClientCommand) -> bool {
        !matches!(self.handle.try_command(Command::Client(command)), Err(Untaken::Full(_)))
    }
}

impl Pieces for Coming {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, Fault>>> {
        if self.taken > self.told {
            let (token, from, bytes) = (self.token, self.from, self.taken);
            if self.tell(ClientCommand::Consumed { token, from, bytes }) {
                self.told = bytes;
            } else {
                // Untold, nothing more would come.
                cx.waker().wake_by_ref();
            }
        }
        let piece = ready!(self.pieces.poll_recv(cx));
        match &piece {
            Some(Ok(content)) => self.taken += content.len() as u64,
            Some(Err(_)) | None => self.ended = true,
        }
        let requests = &self.requests;
        Poll::Ready(piece.map(|piece| piece.map(Piece::Encoded).map_err(|error| requests.fault(error))))
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        if !self.ended {
            self.tell(ClientCommand::Cancel { token: self.token });
        }
    }
}

impl fmt::Debug for Coming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coming").field("token", &self.token).field("from", &self.from).finish_non_exhaustive()
    }
}
