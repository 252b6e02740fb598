//! Hands clients over to another process.
//!
//! A cell that restarts in place leaves its clients to its successor. Its [`RedisClients`] takes no more
//! requests, and hands each client over once all its answers are written. Bytes that a client sent and the
//! door has not read stay in the socket. Bytes that the door has read and that are no whole request are
//! handed over, and so are the settings of the connection. The successor serves these clients once its cell
//! can answer. So clients notice nothing but a pause.
//!
//! A client whose operations do not end within the patience is cut off without an answer, as if the cell had
//! died.

use quorate_runtime::{
    clock,
    door::{ClientId, Clients, DetachedClient},
};

use super::{
    connection::ClientSession,
    gate::{ClientState, HandedClient, HandoverHandle, HandoverOrder, State},
    redis_clients::RedisClients,
};

impl RedisClients {
    /// Returns a handle with which another thread opens and closes this door.
    pub fn handover_handle(&self) -> HandoverHandle {
        HandoverHandle(self.gate.orders.0.clone())
    }

    /// Takes over the clients of an earlier process. These clients, and new clients, wait until the door is
    /// [opened](HandoverHandle::open).
    pub fn resume(&mut self, handed: Vec<HandedClient>) {
        self.gate.state = State::Waiting(handed);
    }

    /// Carries out the orders of the handle, at the end of a turn.
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
        let HandedClient { stream, client_state: ClientState { session, unread, unwritten } } = handed;
        let left = DetachedClient { stream, input: unread.into(), output: unwritten.into() };
        if let Some(id) = clients.adopt(left) {
            self.add(id, ClientSession { number: id.number(), ..session }, true);
        }
    }

    /// Collects the clients that have received all their answers. Sends the collection once no client is left
    /// to collect, or when the patience is over.
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
            // The thread that ordered the closing may have stopped waiting.
            let _ = to.send(std::mem::take(handed));
            self.gate.state = State::Closed;
        }
    }
}
