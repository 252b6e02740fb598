//! The pieces of a long read. The replica sends them only as fast as the user takes them.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
};

use quorate_protocol::{ProcessId, relay::Relay, rubberband::ClientCommand};
use quorate_roles::tables::{Command, Process};
use quorate_runtime::{CommandError, Port};
use quorate_sql::backend::{OperationError, Piece, PieceStream};
use tokio::sync::mpsc;

use super::requests::{Arrival, Requests};

/// A replica's part of a long read. The stream reports to the replica how many bytes the user took, and the
/// replica sends at most one window of bytes more. Dropping the stream before its end cancels the request.
pub(super) struct PartStream {
    handle: Port<Relay<Process>>,
    requests: Arc<Requests>,
    token: u64,
    from: ProcessId,
    pieces: mpsc::UnboundedReceiver<Arrival>,
    /// Bytes of all pieces that the user took.
    taken: u64,
    /// Bytes that the stream has reported to the replica as taken.
    reported: u64,
    ended: bool,
}

impl PartStream {
    pub(super) fn new(
        handle: Port<Relay<Process>>,
        requests: Arc<Requests>,
        token: u64,
        from: ProcessId,
        pieces: mpsc::UnboundedReceiver<Arrival>,
    ) -> Self {
        PartStream { handle, requests, token, from, pieces, taken: 0, reported: 0, ended: false }
    }

    /// Sends a command. Returns `false` only if the queue was full; a refusal by a process that is ending
    /// counts as success.
    fn send(&self, command: ClientCommand) -> bool {
        !matches!(self.handle.try_command(Command::Client(command)), Err(CommandError::Full(_)))
    }
}

impl PieceStream for PartStream {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, OperationError>>> {
        if self.taken > self.reported {
            let (token, from, bytes) = (self.token, self.from, self.taken);
            if self.send(ClientCommand::Consumed { token, from, bytes }) {
                self.reported = bytes;
            } else {
                // Without this command the replica would send nothing more. So the task is woken, to send the
                // command again.
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

impl Drop for PartStream {
    fn drop(&mut self) {
        if !self.ended {
            self.send(ClientCommand::Cancel { token: self.token });
        }
    }
}

impl fmt::Debug for PartStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartStream")
            .field("token", &self.token)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}
