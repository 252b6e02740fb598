//! Connections of clients to tables and services.

use crate::{db::Db, node::Node, pending::Pending};

/// Connects a client to the tables of a cluster, given addresses of some of its routers (`host:port`). Given
/// addresses of some hosts of services, connects a client to these services.
///
/// ```no_run
/// # async fn run() -> Result<(), quorate::Error> {
/// let db = quorate::connect(["127.0.0.1:7400", "127.0.0.1:7401"]).await?;
/// db.execute("create table t (id int primary key)").await?;
/// # Ok(())
/// # }
/// ```
///
/// The client of tables is a process of its own in the cluster, on threads of this program. It sends its
/// requests straight to the storage processes. The future is ready when the cluster has admitted the client,
/// and fails after 10 s. A client of service hosts has no tables, only [stubs](crate::Db::service).
/// [`Node::builder`] has more settings, and makes clients of both.
pub fn connect<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Pending<'static, Db> {
    let addresses: Vec<String> = addresses.into_iter().map(Into::into).collect();
    let builder = Node::builder().routers(addresses.clone());
    #[cfg(feature = "services")]
    let builder = builder.seeds(addresses);
    let starting = builder.start();
    Box::pin(async move { starting.await?.client().await })
}
