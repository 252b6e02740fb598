//! The PostgreSQL protocol, version 3: connections, cancellation, and the closing of the door.
//!
//! The types of messages are pgwire's. The conversation ([`connection`]) is our own, because blocks,
//! pipelines, portals and COPY form one state machine here. A connection is one task: it reads a message,
//! acts, and writes. While a result streams, the task waits for the socket, and the ranges wait for the task.

mod bulk;
pub mod connection;
mod extended;
pub mod frame;
mod gap;
mod handover;
mod limit;
mod openings;
mod output;
mod portals;
mod repeat;
mod script;
mod server;
mod sessions;
mod simple;
mod startup;
mod together;

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{net::TcpListener, sync::watch, task::JoinSet};

pub use self::{
    handover::{ClientState, Closing, Door, HandedClient},
    openings::OPENINGS_MAX,
    server::{CONNECTIONS_MAX, Server},
};

impl Server {
    /// Serves connections until `shutdown` is ready, then lets every running statement finish.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let closing = async {
            shutdown.await;
            Closing::Drain
        };
        self.serve_at(listener, None, closing).await;
    }

    /// Serves new connections and the connections in `handed`, until `closing` is ready. `handed` is `None`
    /// if no earlier process handed connections over. Returns the door if `closing` asks to hand it over to
    /// another process.
    pub async fn serve_at(
        self: Arc<Self>,
        listener: TcpListener,
        handed: Option<Vec<HandedClient>>,
        closing: impl Future<Output = Closing>,
    ) -> Option<Door> {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        self.is_successor.store(handed.is_some(), Ordering::Release);
        for handed in handed.into_iter().flatten() {
            let server = self.clone();
            tasks.spawn(async move { server.counted(handover::resume(&server, handed)).await });
        }
        tokio::pin!(closing);
        let closing = loop {
            tokio::select! {
                closing = &mut closing => break closing,
                Some(_) = tasks.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (server, stopped) = (self.clone(), stopped.clone());
                        tasks.spawn(async move {
                            server.metrics.connections.inc();
                            server.counted(startup::serve(&server, stream, stopped)).await
                        });
                    }
                    Err(error) => {
                        // The usual cause is that the process has run out of descriptors. The pause gives
                        // connections time to close.
                        tracing::warn!(%error, "the SQL door could not accept a connection; it tries again in 50 ms");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        };
        let mut handed = Vec::new();
        if let Closing::HandOver(within) = closing {
            stop.send_replace(true);
            self.sessions.hand_over();
            if tokio::time::timeout(within, join_all(&mut tasks, &mut handed)).await.is_err() {
                self.sessions.stop();
                // A connection that is still open after this timeout ends with the process.
                let _ = tokio::time::timeout(FAREWELL_TIMEOUT, join_all(&mut tasks, &mut handed)).await;
            }
            return match listener.into_std() {
                Ok(listener) => Some(Door { listener, connections: handed }),
                Err(error) => {
                    tracing::warn!(%error, "the SQL door cannot be handed over to the next process, so all clients must connect again");
                    None
                }
            };
        }
        drop(listener);
        stop.send_replace(true);
        self.sessions.stop();
        join_all(&mut tasks, &mut handed).await;
        None
    }

    /// Serves a connection until it ends, and counts it as an open session for this time.
    async fn counted(
        &self,
        talk: impl Future<Output = io::Result<Option<HandedClient>>>,
    ) -> Option<HandedClient> {
        self.metrics.sessions.inc();
        let ended = talk.await;
        self.metrics.sessions.dec();
        match ended {
            Ok(handed) => handed,
            Err(error) => {
                if !matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) {
                    tracing::debug!(%error, "a client's connection to the SQL door ended with an error");
                }
                None
            }
        }
    }
}

/// Longest time for sending the last message to clients whose connections end.
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(500);

/// Waits until all connections have ended, and collects the connections that are handed over.
async fn join_all(tasks: &mut JoinSet<Option<HandedClient>>, handed: &mut Vec<HandedClient>) {
    while let Some(ended) = tasks.join_next().await {
        handed.extend(ended.ok().flatten());
    }
}
