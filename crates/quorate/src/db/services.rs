//! A client's access to services.

use super::Db;
use crate::{
    error::Error,
    node::Node,
    service::{Service, Stub},
};

impl Db {
    pub(crate) fn of_services(node: Node) -> Db {
        Db::new(node, None)
    }

    /// Returns the stub of a service whose hosts are among the client's addresses. The first call finds out
    /// whether there is a service of this name.
    ///
    /// ```no_run
    /// # use quorate::service::Service;
    /// # async fn run<Lottery: Service<Request = ()>>() -> Result<(), quorate::Error> {
    /// let client = quorate::connect(["127.0.0.1:7101", "127.0.0.1:7102"]).await?;
    /// let lottery = client.service::<Lottery>("lottery")?;
    /// let draw = lottery.call(&()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn service<S: Service>(&self, name: &str) -> Result<Stub<S>, Error> {
        self.0.node.service(name)
    }
}
