//! The user's side of a service, as the executor sees it.

use bytes::Bytes;

/// The user's code and state. All methods report a failure of the user's code as an error.
pub trait Object {
    /// The data that reverts a change.
    type Undo;

    /// Executes a request on the current state, and applies its change. A request that was sent as a read
    /// must not change the state.
    fn execute(&mut self, request: &Bytes, read: bool) -> Result<Execution<Self::Undo>, Refused>;

    /// Applies a change that another replica executed.
    fn apply(&mut self, change: &Bytes) -> Result<(), String>;

    /// Reverts a change. All later changes that were not reverted concern other data.
    fn revert(&mut self, undo: Self::Undo) -> Result<(), String>;

    /// Returns the state.
    fn state(&mut self) -> Result<Bytes, String>;

    /// Replaces the state.
    fn restore(&mut self, state: &[u8]) -> Result<(), String>;

    /// Returns the latest time that the object has seen, in nanoseconds since 1970.
    fn clock(&self) -> u64;

    /// Advances the clock to the time of another replica's clock.
    fn advance(&mut self, to: u64);
}

/// The result of a request that was executed.
#[derive(Debug)]
pub struct Execution<U> {
    /// The reply.
    pub reply: Bytes,
    /// The applied change, and the data that reverts it. The bytes of the change begin with the object's
    /// clock. They are empty if the log carries whole states, because the executor then proposes the state
    /// itself.
    pub change: Option<(Bytes, U)>,
}

/// The reason why a request is refused.
#[derive(Debug)]
pub enum Refused {
    /// The request was refused for this reason, and the state is unchanged.
    Whole(String),
    /// The request failed for this reason in the middle of a change, and the state is unknown.
    Torn(String),
}

impl From<String> for Refused {
    fn from(reason: String) -> Refused {
        Refused::Whole(reason)
    }
}

/// Upper bound of a request, a reply or a change, in bytes.
pub const ITEM_BYTES_MAX: usize = 4 << 20;
