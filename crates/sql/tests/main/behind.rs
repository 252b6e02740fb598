//! A gateway that is behind: it shows earlier tables, until the cluster refuses one of its statements
//! because a table has ended.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use quorate_sql::{
    backend::{
        Analyzed, AnswerStream, Attempt, Backend, Catalog, Definition, OperationError, RequestId, Strength,
        WriteName,
    },
    local::LocalBackend,
};
use quorate_table::{
    engine::Answer,
    failure::Failure,
    operation::{Operation, Select, TableTransaction, Trial},
};

pub(crate) struct Behind {
    tables: Arc<LocalBackend>,
    /// The tables that the gateway shows. `None` once it has heard of all definitions.
    shown: Mutex<Option<Arc<Catalog>>>,
}

impl Behind {
    pub(crate) fn new(tables: Arc<LocalBackend>) -> Behind {
        let shown = Mutex::new(Some(tables.catalog()));
        Behind { tables, shown }
    }

    /// Lets the gateway hear of all definitions if the cluster refused a statement of an ended table.
    fn heard<T>(&self, answered: Result<T, OperationError>) -> Result<T, OperationError> {
        if matches!(&answered, Err(OperationError::Failed(failure)) if *failure == Failure::table_ended()) {
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        answered
    }
}

#[async_trait]
impl Backend for Behind {
    fn catalog(&self) -> Arc<Catalog> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        shown.unwrap_or_else(|| self.tables.catalog())
    }

    fn request_id(&self) -> RequestId {
        self.tables.request_id()
    }

    fn may_have_issued(&self, id: RequestId) -> bool {
        self.tables.may_have_issued(id)
    }

    async fn define(&self, id: RequestId, definitions: Vec<Definition>) -> Result<(), OperationError> {
        let defined = self.heard(self.tables.define(id, definitions).await);
        if defined.is_ok() {
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        defined
    }

    async fn write(&self, name: WriteName, operation: Operation) -> Result<Vec<Answer>, OperationError> {
        self.heard(self.tables.write(name, operation).await)
    }

    async fn transact(
        &self,
        name: WriteName,
        transaction: TableTransaction,
    ) -> Result<Vec<Answer>, OperationError> {
        self.heard(self.tables.transact(name, transaction).await)
    }

    async fn attempt(&self, strength: Strength, trial: Trial) -> Result<Attempt, OperationError> {
        self.heard(self.tables.attempt(strength, trial).await)
    }

    async fn read(&self, strength: Strength, select: &Select) -> Result<AnswerStream, OperationError> {
        self.heard(self.tables.read(strength, select).await)
    }

    async fn analyze(&self, strength: Strength, select: &Select) -> Result<Vec<Analyzed>, OperationError> {
        self.tables.analyze(strength, select).await
    }

    fn explain(&self, operation: &Operation) -> Vec<String> {
        self.tables.explain(operation)
    }
}
