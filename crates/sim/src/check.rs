//! Checkers: the promises of each system, judged from outside, without a line of the code that is judged.

pub(crate) mod counters;
pub mod credits;
pub mod ghost;
pub mod holders;
pub(crate) mod locks;
pub(crate) mod log;
pub(crate) mod order;
pub(crate) mod outcome;
pub(crate) mod quorum;
pub mod routing;
pub(crate) mod serial;
pub(crate) mod service;
pub(crate) mod submissions;
pub(crate) mod suspicion;
pub(crate) mod views;

pub use credits::CreditCheck;
pub use ghost::GhostLog;
pub use holders::HoldersCheck;
pub(crate) use log::LogCheck;
pub(crate) use outcome::outcome;
pub use routing::RoutingCheck;
pub(crate) use submissions::SubmissionsCheck;
pub(crate) use suspicion::suspicion;
