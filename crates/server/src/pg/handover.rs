//! Hands connections over to another process.
//!
//! A gateway that restarts gives its sockets to its successor, together with the state from which the
//! successor rebuilds each session. A connection is handed over only between two statements and outside of a
//! block. Bytes that the client sent and the gateway has not read stay in the socket. Bytes that the gateway
//! has read and that are no whole message are handed over with the state. So clients notice nothing but a
//! pause.

use std::{io, net, time::Duration};

use quorate_sql::{
    error::{SqlError, code},
    session::{
        Session,
        handover::{self, StatementState},
    },
};
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use super::{connection::Connection, frame::Frames, output::OutputBuffer, server::Server};

/// A door that is handed over: its listening socket and its open connections.
pub struct Door {
    /// The listening socket, which is non-blocking.
    pub listener: net::TcpListener,
    /// The open connections.
    pub connections: Vec<HandedClient>,
}

/// A connection that is handed over.
pub struct HandedClient {
    /// The connection's socket.
    pub stream: net::TcpStream,
    /// The state from which the successor rebuilds the connection.
    pub client_state: ClientState,
}

/// The state from which a connection is rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientState {
    session: handover::SessionState,
    secret: i32,
    statements: Vec<(String, StatementState)>,
    /// Bytes that were read and are no whole message yet. `skip` is the number of bytes of a refused message
    /// that are still to be skipped.
    unread: Vec<u8>,
    skip: usize,
}

/// The way in which a door closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Every connection ends after its current statement.
    Drain,
    /// Connections are handed over. A connection that is still busy after this time ends as under
    /// [`Closing::Drain`].
    HandOver(Duration),
}

impl Connection<'_> {
    /// Whether the connection is between two statements and outside of a block, so that it can be handed
    /// over.
    pub(super) fn is_between(&self) -> bool {
        !self.skipping
            && self.applied == 0
            && self.running.is_none()
            && self.portals.is_empty()
            && self.session.is_between()
    }

    /// Hands the connection over. The caller must have flushed the output, and the connection must be between
    /// two statements.
    pub(super) fn hand_over(self, secret: i32) -> io::Result<HandedClient> {
        let session =
            self.session.handover_state().expect("a connection is handed over only between two statements");
        let mut statements: Vec<(String, StatementState)> = (self.statements.iter())
            .map(|(name, statement)| (name.clone(), StatementState::of(&statement.prepared)))
            .collect();
        statements.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let (read, unread, skip) = self.frames.into_parts();
        let stream = read.reunite(self.output.stream).map_err(io::Error::other)?.into_std()?;
        let client_state = ClientState { session, secret, statements, unread: unread.to_vec(), skip };
        Ok(HandedClient { stream, client_state })
    }
}

/// Continues a connection that was handed over, as soon as the gateway knows the tables.
pub(super) async fn resume(server: &Server, handed: HandedClient) -> io::Result<Option<HandedClient>> {
    let HandedClient { stream, client_state } = handed;
    let ClientState { session, secret, statements, unread, skip } = client_state;
    let (read, write) = TcpStream::from_std(stream)?.into_split();
    let mut output = OutputBuffer::new(write, &server.metrics);
    let permit = server.connections.try_acquire();
    if !server.becomes_ready().await || permit.is_err() {
        let error = SqlError::new(
            code::ADMIN_SHUTDOWN,
            "the gateway was restarted and cannot continue this connection: connect again",
        );
        output.fatal(&error);
        output.flush().await?;
        return Ok(None);
    }
    let registration = server.sessions.register_again(session.pid, secret);
    let session = Session::resume(server.backend.clone(), server.cache.clone(), session);
    let frames = Frames::resumed(read, &unread, skip);
    let mut connection = Connection::new(frames, output, session, &registration.cancel);
    for (name, statement) in statements {
        let kept = statement.prepare(&connection.session);
        if let Err(error) = kept.and_then(|prepared| connection.keep(name.clone(), prepared)) {
            tracing::debug!(name, %error, "the restarted gateway could not restore a prepared statement of a client");
        }
    }
    connection.run().await?;
    if connection.handed_over { connection.hand_over(secret).map(Some) } else { Ok(None) }
}

impl Server {
    /// Waits up to [`READY_WITHIN`] until the gateway knows the tables. Returns whether it knows them.
    pub(super) async fn becomes_ready(&self) -> bool {
        let until = Instant::now() + READY_WITHIN;
        while !self.backend.is_ready() && Instant::now() < until {
            sleep(LOOK_EVERY).await;
        }
        self.backend.is_ready()
    }
}

/// Longest time for which clients that were handed over wait for the cluster.
const READY_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);
