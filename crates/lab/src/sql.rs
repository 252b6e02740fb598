//! Clients of a cluster, over the PostgreSQL protocol.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio_postgres::{Client, NoTls};

/// Creates a single-threaded runtime for a client.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Connects to a gateway. An error of the connection is returned by the statements that use the connection.
pub(crate) async fn connect(address: &str) -> Result<Client> {
    let (client, connection) = open(address).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Connects to a gateway. The connection works while the caller runs the returned future.
pub(crate) async fn open(address: &str) -> Result<(Client, impl Future<Output = ()> + Send + use<>)> {
    let (host, port) = address
        .rsplit_once(':')
        .with_context(|| format!("the address '{address}' must be written as HOST:PORT"))?;
    let mut config = tokio_postgres::Config::new();
    config.host(host.trim_matches(['[', ']'])).port(port.parse().with_context(|| address.to_string())?);
    config.user("quorate").dbname("quorate").connect_timeout(Duration::from_secs(5));
    let (client, connection) =
        config.connect(NoTls).await.with_context(|| format!("cannot connect to a gateway at {address}"))?;
    Ok((client, async move { drop(connection.await) }))
}
