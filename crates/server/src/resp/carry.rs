//! Clients that go on in another program.
//!
//! A cell that is restarted in its place leaves its clients to the program that follows. Its [`Front`] takes no more requests, and hands
//! each client over once all its answers are written. What a client has sent by then and nobody has read stays in the socket; what was
//! read and is no whole request yet goes along, and so does what its connection has set. The program that follows keeps them waiting
//! until its cell can answer. So clients notice a pause, and nothing else.
//!
//! A client whose operations have not ended within the patience is cut off, and told nothing, as if the cell had died.

use std::{
    net::TcpStream,
    sync::mpsc::{self, Receiver, Sender},
    time::Duration,
};

use bytes::Bytes;
use quorate_protocol::Time;
use quorate_runtime::{
    clock,
    door::{ClientId, Clients, Left},
};
use serde::{Deserialize, Serialize};

use super::{connection::Session, dial::Dial, front::Front, reply::Version};

/// A client that is handed over.
pub struct Handed {
    /// Its socket.
    pub stream: TcpStream,
    /// All else.
    pub carried: Carried,
}

/// All that a client is made again from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    version: Version,
    map: String,
    dial: Dial,
    next: Option<Dial>,
    name: Vec<u8>,
    /// Bytes that were read and are no whole request yet.
    unread: Vec<u8>,
    /// Answers that the client has not taken.
    unwritten: Vec<u8>,
}

impl Handed {
    fn new(session: Session, left: Left) -> Handed {
        let Session { version, map, dial, next, name, .. } = session;
        let Left { stream, input, output } = left;
        let (name, unread, unwritten) = (name.to_vec(), input.to_vec(), output.to_vec());
        Handed { stream, carried: Carried { version, map, dial, next, name, unread, unwritten } }
    }
}

/// A hold on a front from another thread. Orders are obeyed within a turn of the protocol thread.
#[derive(Clone)]
pub struct Latch(Sender<Order>);

enum Order {
    Open,
    Close { until: Time, to: Sender<Vec<Handed>> },
}

impl Latch {
    /// Has clients that were handed over go on, and whoever has connected meanwhile.
    pub fn open(&self) {
        // A front that is gone has no clients.
        let _ = self.0.send(Order::Open);
    }

    /// Has the front take no more clients and requests, and returns those that could be handed over within this time.
    pub fn close(&self, patience: Duration) -> Vec<Handed> {
        let (to, handed) = mpsc::channel();
        let order = Order::Close { until: clock::now() + patience, to };
        if self.0.send(order).is_err() {
            return Vec::new();
        }
        // The protocol thread may have ended.
        handed.recv_timeout(patience + GRACE).unwrap_or_default()
    }
}

/// A turn of the protocol thread comes so soon.
const GRACE: Duration = Duration::from_secs(1);

/// Whether clients are served.
pub(super) struct Gate {
    orders: (Sender<Order>, Receiver<Order>),
    state: State,
}

enum State {
    Open,
    /// Not yet. These were handed over by the program before.
    Waiting(Vec<Handed>),
    /// Not any more. These can be handed over.
    Closing {
        handed: Vec<Handed>,
        until: Time,
        to: Sender<Vec<Handed>>,
    },
    Closed,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate { orders: mpsc::channel(), state: State::Open }
    }
}

impl Gate {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }
}

impl Front {
    /// A hold on it.
    pub fn latch(&self) -> Latch {
        Latch(self.gate.orders.0.clone())
    }

    /// Goes on with clients that the program before has handed over, once it is [opened](Latch::open). Whoever connects waits until
    /// then, too.
    pub fn resume(&mut self, handed: Vec<Handed>) {
        self.gate.state = State::Waiting(handed);
    }

    /// Obeys what was ordered. The end of a turn.
    pub(super) fn look_at_gate(&mut self, clients: &mut Clients) {
        if let State::Waiting(handed) = &mut self.gate.state {
            std::mem::take(handed).into_iter().for_each(|handed| self.adopt(handed, clients));
        }
        match self.gate.orders.1.try_recv() {
            Ok(Order::Open) => {
                self.gate.state = State::Open;
                self.go_on(clients);
            }
            Ok(Order::Close { until, to }) => {
                clients.shut();
                self.gate.state = State::Closing { handed: Vec::new(), until, to };
            }
            Err(_) => {}
        }
        if matches!(self.gate.state, State::Closing { .. }) {
            self.hand_over(clients);
        }
    }

    fn adopt(&mut self, handed: Handed, clients: &mut Clients) {
        let Handed { stream, carried } = handed;
        let Carried { version, map, dial, next, name, unread, unwritten } = carried;
        let left = Left { stream, input: unread.into(), output: unwritten.into() };
        if let Some(id) = clients.adopt(left) {
            let session = Session { number: id.number(), version, map, dial, next, name: Bytes::from(name) };
            self.add(id, session, true);
        }
    }

    /// Hands over those that have all their answers. When nobody else is left, or it has taken too long, that is all.
    fn hand_over(&mut self, clients: &mut Clients) {
        let State::Closing { until, .. } = self.gate.state else { return };
        let is_over = until <= clock::now();
        let is_settled = |id: &ClientId| is_over || !clients.has_unwritten(*id);
        let settled: Vec<ClientId> = self.settled().filter(is_settled).collect();
        let left = settled.into_iter().filter_map(|id| {
            let session = self.remove(id)?;
            Some(Handed::new(session, clients.leave(id)?))
        });
        let left: Vec<Handed> = left.collect();
        let is_all = is_over || self.count() == 0;
        let State::Closing { handed, to, .. } = &mut self.gate.state else { return };
        handed.extend(left);
        if is_all {
            // The one who ordered it may have lost patience.
            let _ = to.send(std::mem::take(handed));
            self.gate.state = State::Closed;
        }
    }
}
