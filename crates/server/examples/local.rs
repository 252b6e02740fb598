//! The SQL door over tables in this process. Run `cargo run -p quorate-server --example local --
//! 127.0.0.1:5466`, then `psql -h 127.0.0.1 -p 5466 -U me`.

use std::sync::Arc;

use quorate_server::pg;
use quorate_sql::local::LocalBackend;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:5466".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    let interrupted = async {
        drop(tokio::signal::ctrl_c().await);
    };
    pg::Server::new(Arc::new(LocalBackend::new())).serve(listener, interrupted).await;
    Ok(())
}
