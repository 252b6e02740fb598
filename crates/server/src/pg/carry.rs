//! Connections that go on in another process.
//!
//! A gateway that is restarted hands its sockets to the process that follows it, with all that their sessions are made again from. A
//! connection is handed over between two statements and outside of blocks. What its client has sent by then and nobody has
//! read stays in the socket, what was read and not understood yet goes along. So clients notice a pause, and nothing else.

use std::{collections::HashMap, io, net, time::Duration};

use bytes::BytesMut;
use quorate_sql::{
    error::{SqlError, code},
    session::{
        Session,
        carry::{self, CarriedStatement},
    },
};
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use super::{Server, connection::Connection, extended::Portals, frame::Frames, limit::Limit, output::Output};

/// A door as it is handed over: where clients come in, and those that are in already.
pub struct Door {
    /// The socket that listens, which does not block.
    pub listener: net::TcpListener,
    /// The connections.
    pub connections: Vec<Handed>,
}

/// A connection that is handed over.
pub struct Handed {
    /// Its socket.
    pub stream: net::TcpStream,
    /// All else.
    pub carried: Carried,
}

/// What a connection is made again from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    session: carry::Carried,
    secret: i32,
    statements: Vec<(String, CarriedStatement)>,
    /// What was read and is no whole message yet, and how much of what comes is to be skipped.
    unread: Vec<u8>,
    skip: usize,
}

/// How a door is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Every connection ends behind the statement that it executes.
    Drain,
    /// Connections are handed over; those that are in the midst of something after so long end as at [`Closing::Drain`].
    HandOver(Duration),
}

impl Connection<'_> {
    /// Whether it is between two statements, so that it can be handed over.
    pub(super) fn is_between(&self) -> bool {
        !self.skipping
            && self.applied == 0
            && self.running.is_none()
            && self.portals.is_empty()
            && self.session.is_between()
    }

    /// Hands it over; it was flushed, and is between two statements.
    pub(super) fn hand_over(self, secret: i32) -> io::Result<Handed> {
        let session = self.session.carry().expect("it is between two statements");
        let mut statements: Vec<(String, CarriedStatement)> = (self.statements.iter())
            .map(|(name, prepared)| (name.clone(), CarriedStatement::of(prepared)))
            .collect();
        statements.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let (read, unread, skip) = self.frames.into_parts();
        let stream = read.reunite(self.output.stream).map_err(io::Error::other)?.into_std()?;
        let carried = Carried { session, secret, statements, unread: unread.to_vec(), skip };
        Ok(Handed { stream, carried })
    }
}

/// Goes on with a connection, once the gateway knows the tables.
pub(super) async fn resume(server: &Server, handed: Handed) -> io::Result<Option<Handed>> {
    let Handed { stream, carried } = handed;
    let Carried { session, secret, statements, unread, skip } = carried;
    let (read, write) = TcpStream::from_std(stream)?.into_split();
    let mut output = Output { stream: write, buffer: BytesMut::new(), metrics: &server.metrics };
    let permit = server.connections.try_acquire();
    if !server.becomes_ready().await || permit.is_err() {
        let error =
            SqlError::new(code::ADMIN_SHUTDOWN, "the gateway was restarted, and has not come back yet");
        output.fatal(&error);
        output.flush().await?;
        return Ok(None);
    }
    let registration = server.sessions.register_again(session.pid, secret);
    let session = Session::resume(server.backend.clone(), server.cache.clone(), session);
    let prepared = statements.into_iter().filter_map(|(name, statement)| match statement.prepare(&session) {
        Ok(prepared) => Some((name, prepared)),
        Err(error) => {
            tracing::debug!(name, %error, "a prepared statement is gone");
            None
        }
    });
    let statements = prepared.collect::<HashMap<_, _>>();
    let mut connection = Connection {
        frames: Frames::resumed(read, &unread, skip),
        output,
        session,
        limit: Limit::new(&registration.cancel, None),
        cancel: registration.cancel.clone(),
        statements,
        portals: Portals::default(),
        skipping: false,
        applied: 0,
        running: None,
        parting: false,
    };
    connection.run().await?;
    if connection.parting { connection.hand_over(secret).map(Some) } else { Ok(None) }
}

impl Server {
    /// Waits until the gateway has heard from the cluster, for a moment.
    pub(super) async fn becomes_ready(&self) -> bool {
        let until = Instant::now() + READY_WITHIN;
        while !self.backend.is_ready() && Instant::now() < until {
            sleep(LOOK_EVERY).await;
        }
        self.backend.is_ready()
    }
}

/// How long clients of the process before are kept waiting for the cluster.
const READY_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);
