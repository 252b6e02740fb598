//! Tests the doors as clients use them: over a socket, with tables or cells in this process.

mod copying;
mod http;
mod raw;
mod redis;
mod refused;
mod retries;
mod robust;
mod sequences;
mod together;
mod wire;

use std::{net::SocketAddr, sync::Arc};

use quorate_server::pg;
use quorate_sql::{backend::Backend, local::LocalBackend};
use tokio::{net::TcpListener, sync::oneshot};

/// A gateway of one test. Dropping the value stops the gateway.
struct Gateway {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
}

impl Gateway {
    async fn start() -> Gateway {
        Gateway::on(Arc::new(LocalBackend::new())).await
    }

    async fn on(backend: Arc<dyn Backend>) -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let server = pg::Server::new(backend);
        tokio::spawn(server.serve(listener, async {
            // The wait ends when the signal arrives, or when the sender of the signal is gone.
            let _ = stopped.await;
        }));
        Gateway { address, stop: Some(stop) }
    }

    async fn connect(&self) -> tokio_postgres::Client {
        connect(&format!("host={} port={} user=test dbname=test", self.address.ip(), self.address.port()))
            .await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            _ = stop.send(());
        }
    }
}

async fn connect(config: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(config, tokio_postgres::NoTls).await.expect("it answers");
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("a connection ended: {error}");
        }
    });
    client
}
