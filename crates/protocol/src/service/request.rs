//! The requests of clients that a leader keeps, from their arrival until the instance that executed them is
//! chosen.

use super::{Call, CallId, SessionId, TransactionId};
use crate::id::ProcessId;

/// A client's request to the leader.
#[derive(Debug)]
pub(super) struct ClientRequest {
    pub(super) client: ProcessId,
    pub(super) wish: RequestBody,
}

#[derive(Debug)]
pub(super) enum RequestBody {
    Open { nonce: u64 },
    Call { session: SessionId, done: u64, call: Call },
}

impl RequestBody {
    pub(super) fn bytes(&self) -> usize {
        match self {
            RequestBody::Open { .. } => ASKED_BYTES,
            RequestBody::Call { call, .. } => ASKED_BYTES + call.request.len() + call.scope_bytes(),
        }
    }
}

/// A call that awaits execution, with its client and session.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) client: ProcessId,
    pub(super) session: SessionId,
    /// The number below which the client no longer needs the session's answers. For a call with a key, the
    /// hash of its request.
    pub(super) done: u64,
    pub(super) call: Call,
}

impl PendingCall {
    pub(super) fn id(&self) -> CallId {
        self.call.id(self.session)
    }

    /// Returns the call's memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        ASKED_BYTES + self.call.request.len() + self.call.scope_bytes()
    }
}

/// A request that the host is executing.
#[derive(Debug)]
pub(super) struct HostedCall {
    pub(super) number: u64,
    pub(super) client: ProcessId,
    pub(super) id: CallId,
    pub(super) done: u64,
    pub(super) access: Access,
    pub(super) bytes: usize,
}

/// The effects that a work may have. For a read, also the way in which the leader learns that it may answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    Write,
    /// A read that the question with this number covers.
    Asked(u64),
    /// A read that its client has announced to the replicas.
    Announced,
    /// A request of a transaction.
    Part(TransactionId),
    /// The commit of a transaction.
    Commit(TransactionId),
}

/// An executed instance that is not chosen yet.
#[derive(Debug)]
pub(super) struct ExecutedEntry {
    /// The client that gets the answer. `None` for the end of a session.
    pub(super) client: Option<ProcessId>,
    pub(super) of: EntryContent,
    pub(super) bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryContent {
    Open { nonce: u64 },
    Close,
    Call { id: CallId, work: u64 },
}

/// The approximate memory of a call in addition to its bytes, in bytes.
pub(super) const ASKED_BYTES: usize = 96;
