//! A service behind the HTTP door, independent of the types of its requests and replies.

use std::{future::Future, io, pin::Pin};

use axum::body::Bytes;
use serde::de::DeserializeOwned;

use crate::{
    error::Error,
    service::{CallId, Service, Stub, Transaction, fate_context::decode_reply},
};

use super::fault::Fault;

/// A service of any types. Requests come as JSON, and replies leave as JSON.
pub(super) trait ServiceAccess: Send + Sync {
    /// Calls the service. The request is decoded before this method returns. The reply has the service's own
    /// encoding.
    fn call(&self, request: &[u8], key: Option<&str>) -> Later<'static, Bytes>;
    fn begin(&self) -> Box<dyn OpenTransaction>;
    fn committed(&self, commit: CallId) -> Later<'static, ()>;
    /// Encodes a reply as JSON, or returns `None` if the JSON is longer than `limit` bytes.
    fn encode(&self, reply: &[u8], limit: usize) -> Result<Option<Vec<u8>>, Fault>;
}

/// A transaction of a service.
pub(super) trait OpenTransaction: Send {
    fn call(&mut self, request: &[u8]) -> Later<'_, Bytes>;
    fn commit(self: Box<Self>) -> Later<'static, ()>;
}

/// The outcome of a call, as a future.
pub(super) type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'a>>;

impl<S: Service> ServiceAccess for Stub<S> {
    fn call(&self, request: &[u8], key: Option<&str>) -> Later<'static, Bytes> {
        match decoded::<S::Request>(request) {
            Ok(request) => {
                let reply = self.call_for_bytes(key, &request);
                Box::pin(async move { Ok(reply.await?) })
            }
            Err(fault) => Box::pin(async { Err(fault) }),
        }
    }

    fn begin(&self) -> Box<dyn OpenTransaction> {
        Box::new(Stub::begin(self))
    }

    fn committed(&self, commit: CallId) -> Later<'static, ()> {
        let committed = Stub::committed(self, commit);
        Box::pin(async move { Ok(committed.await?) })
    }

    fn encode(&self, reply: &[u8], limit: usize) -> Result<Option<Vec<u8>>, Fault> {
        let reply: S::Reply = decode_reply(reply)?;
        let mut json = Capped { bytes: Vec::new(), limit };
        match serde_json::to_writer(&mut json, &reply) {
            Ok(()) => Ok(Some(json.bytes)),
            Err(error) if error.is_io() => Ok(None),
            Err(error) => Err(Fault::Call(Error::mismatch("the reply", error))),
        }
    }
}

impl<S: Service> OpenTransaction for Transaction<S> {
    fn call(&mut self, request: &[u8]) -> Later<'_, Bytes> {
        match decoded::<S::Request>(request) {
            Ok(request) => {
                let reply = self.call_for_bytes(&request);
                Box::pin(async move { Ok(reply.await?) })
            }
            Err(fault) => Box::pin(async { Err(fault) }),
        }
    }

    fn commit(self: Box<Self>) -> Later<'static, ()> {
        Box::pin(async move { Ok(Transaction::commit(*self).await?) })
    }
}

pub(super) fn decoded<T: DeserializeOwned>(json: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(json).map_err(|error| Fault::Malformed(error.to_string()))
}

/// A buffer with an upper bound. Writing beyond the bound fails.
pub(super) struct Capped {
    pub(super) bytes: Vec<u8>,
    pub(super) limit: usize,
}

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
