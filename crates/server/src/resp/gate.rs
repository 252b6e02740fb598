//! The gate of a cell's door for clients: whether it is open, and the clients that are handed over while it
//! is closed.

use std::{
    net::TcpStream,
    sync::mpsc::{self, Receiver, Sender},
    time::Duration,
};

use quorate_protocol::Time;
use quorate_runtime::{clock, door::DetachedClient};
use serde::{Deserialize, Serialize};

use super::connection::ClientSession;

/// A client that is handed over.
pub struct HandedClient {
    /// The client's socket.
    pub stream: TcpStream,
    /// The state from which the successor rebuilds the client.
    pub client_state: ClientState,
}

/// The state from which a client is rebuilt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientState {
    #[serde(flatten)]
    pub(super) session: ClientSession,
    /// Bytes that were read and are no whole request yet.
    pub(super) unread: Vec<u8>,
    /// Bytes of answers that the client has not received.
    pub(super) unwritten: Vec<u8>,
}

impl HandedClient {
    pub(super) fn new(session: ClientSession, left: DetachedClient) -> HandedClient {
        let DetachedClient { stream, input, output } = left;
        let client_state = ClientState { session, unread: input.to_vec(), unwritten: output.to_vec() };
        HandedClient { stream, client_state }
    }
}

/// A handle with which another thread opens and closes a door. The protocol thread carries out each order
/// of the handle at its next turn.
#[derive(Clone)]
pub struct HandoverHandle(pub(super) Sender<HandoverOrder>);

pub(super) enum HandoverOrder {
    Open,
    Close { until: Time, to: Sender<Vec<HandedClient>> },
}

impl HandoverHandle {
    /// Lets the door serve its clients: the clients that were handed over, and the clients that connected
    /// before the door opened.
    pub fn open(&self) {
        // If the door no longer exists, it has no clients.
        let _ = self.0.send(HandoverOrder::Open);
    }

    /// Stops the door from taking clients and requests. Returns the clients that could be handed over within
    /// `patience`.
    pub fn close(&self, patience: Duration) -> Vec<HandedClient> {
        let (to, handed) = mpsc::channel();
        let order = HandoverOrder::Close { until: clock::now() + patience, to };
        if self.0.send(order).is_err() {
            return Vec::new();
        }
        // The wait has a limit, because the protocol thread may have ended without an answer.
        handed.recv_timeout(patience + GRACE).unwrap_or_default()
    }
}

/// Longest time that the protocol thread may take for its next turn.
const GRACE: Duration = Duration::from_secs(1);

/// Whether the door serves its clients.
pub(super) struct HandoverGate {
    pub(super) orders: (Sender<HandoverOrder>, Receiver<HandoverOrder>),
    pub(super) state: State,
}

pub(super) enum State {
    Open,
    /// The door does not serve yet. It holds the clients that an earlier process handed over.
    Waiting(Vec<HandedClient>),
    /// The door has stopped serving. It collects the clients that can be handed over.
    Closing {
        handed: Vec<HandedClient>,
        until: Time,
        to: Sender<Vec<HandedClient>>,
    },
    Closed,
}

impl Default for HandoverGate {
    fn default() -> HandoverGate {
        HandoverGate { orders: mpsc::channel(), state: State::Open }
    }
}

impl HandoverGate {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }
}
