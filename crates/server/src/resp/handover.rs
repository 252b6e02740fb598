//! Hands clients over to another process.
//!
//! A cell that restarts in place leaves its clients to its successor. Its [`RedisClients`] takes no more
//! requests, and hands each client over once all its answers are written. Bytes that a client sent and the
//! door has not read stay in the socket. Bytes that it read and that are no whole request go along, and so do
//! the settings of the connection. The successor serves these clients once its cell can answer. So clients
//! notice a pause, and nothing else.
//!
//! A client whose operations have not ended within the patience is cut off without an answer, as if the cell
//! had died.

use std::{
    net::TcpStream,
    sync::mpsc::{self, Receiver, Sender},
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::Time;
use quorate_runtime::{
    clock,
    door::{ClientId, Clients, DetachedClient},
};
use serde::{Deserialize, Serialize};

use super::{
    connection::{ClientSession, Replies},
    dial::Dial,
    redis_clients::RedisClients,
    reply::Version,
};

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
    version: Version,
    map: String,
    dial: Dial,
    next: Option<Dial>,
    name: Vec<u8>,
    #[serde(default)]
    in_transaction: bool,
    #[serde(default)]
    astray: bool,
    #[serde(default)]
    replies: Replies,
    /// Bytes that were read and are no whole request yet.
    unread: Vec<u8>,
    /// Bytes of answers that the client has not received.
    unwritten: Vec<u8>,
}

impl HandedClient {
    fn new(session: ClientSession, left: DetachedClient) -> HandedClient {
        let ClientSession { number: _, version, map, dial, next, name, in_transaction, astray, replies } =
            session;
        let DetachedClient { stream, input, output } = left;
        let (name, unread, unwritten) = (name.to_vec(), input.to_vec(), output.to_vec());
        let client_state = ClientState {
            version,
            map,
            dial,
            next,
            name,
            in_transaction,
            astray,
            replies,
            unread,
            unwritten,
        };
        HandedClient { stream, client_state }
    }
}

/// A handle with which another thread opens and closes a door. The protocol thread obeys within a turn.
#[derive(Clone)]
pub struct HandoverHandle(Sender<HandoverOrder>);

enum HandoverOrder {
    Open,
    Close { until: Time, to: Sender<Vec<HandedClient>> },
}

impl HandoverHandle {
    /// Lets the door serve its clients: those that were handed over, and those that connected meanwhile.
    pub fn open(&self) {
        // A door that is gone has no clients.
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
        // The wait has a limit, because the protocol thread may have ended.
        handed.recv_timeout(patience + GRACE).unwrap_or_default()
    }
}

/// Longest time until the next turn of the protocol thread.
const GRACE: Duration = Duration::from_secs(1);

/// Whether the door serves its clients.
pub(super) struct HandoverGate {
    orders: (Sender<HandoverOrder>, Receiver<HandoverOrder>),
    state: State,
}

enum State {
    Open,
    /// The door does not serve yet. These clients came from the earlier process.
    Waiting(Vec<HandedClient>),
    /// The door has stopped serving. These clients can be handed over.
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

impl RedisClients {
    /// Returns a handle with which another thread opens and closes this door.
    pub fn handover_handle(&self) -> HandoverHandle {
        HandoverHandle(self.gate.orders.0.clone())
    }

    /// Takes over the clients of an earlier process. They and new clients wait until the door is
    /// [opened](HandoverHandle::open).
    pub fn resume(&mut self, handed: Vec<HandedClient>) {
        self.gate.state = State::Waiting(handed);
    }

    /// Obeys the orders of the handle, at the end of a turn.
    pub(super) fn process_handover_orders(&mut self, clients: &mut Clients) {
        if let State::Waiting(handed) = &mut self.gate.state {
            std::mem::take(handed).into_iter().for_each(|handed| self.adopt(handed, clients));
        }
        match self.gate.orders.1.try_recv() {
            Ok(HandoverOrder::Open) => {
                self.gate.state = State::Open;
                self.go_on(clients);
            }
            Ok(HandoverOrder::Close { until, to }) => {
                clients.shut();
                self.gate.state = State::Closing { handed: Vec::new(), until, to };
            }
            Err(_) => {}
        }
        if matches!(self.gate.state, State::Closing { .. }) {
            self.hand_over(clients);
        }
    }

    fn adopt(&mut self, handed: HandedClient, clients: &mut Clients) {
        let HandedClient { stream, client_state } = handed;
        let ClientState {
            version,
            map,
            dial,
            next,
            name,
            in_transaction,
            astray,
            replies,
            unread,
            unwritten,
        } = client_state;
        let left = DetachedClient { stream, input: unread.into(), output: unwritten.into() };
        if let Some(id) = clients.adopt(left) {
            let (number, name) = (id.number(), Bytes::from(name));
            let session =
                ClientSession { number, version, map, dial, next, name, in_transaction, astray, replies };
            self.add(id, session, true);
        }
    }

    /// Collects the clients that have all their answers. Sends the collection once no other client is left,
    /// or when the patience is over.
    fn hand_over(&mut self, clients: &mut Clients) {
        let State::Closing { until, .. } = self.gate.state else { return };
        let is_over = until <= clock::now();
        let is_settled = |id: &ClientId| is_over || !clients.has_unwritten(*id);
        let settled: Vec<ClientId> = self.settled().filter(is_settled).collect();
        let left = settled.into_iter().filter_map(|id| {
            let session = self.remove(id)?;
            Some(HandedClient::new(session, clients.leave(id)?))
        });
        let left: Vec<HandedClient> = left.collect();
        let is_all = is_over || self.count() == 0;
        let State::Closing { handed, to, .. } = &mut self.gate.state else { return };
        handed.extend(left);
        if is_all {
            // The thread that ordered it may have stopped waiting.
            let _ = to.send(std::mem::take(handed));
            self.gate.state = State::Closed;
        }
    }
}
