//! Checkers: what a run must show, judged from outside and without a line of the code that is judged.

pub mod credits;
pub mod ghost;
pub mod holders;
pub mod routing;

pub use credits::CreditCheck;
pub use ghost::GhostLog;
pub use holders::HoldersCheck;
pub use routing::RoutingCheck;
