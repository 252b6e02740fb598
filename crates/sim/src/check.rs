//! Checkers: what a run must show, judged from outside and without a line of the code that is judged.

pub mod credits;
pub mod ghost;
pub mod routing;

pub use credits::CreditCheck;
pub use ghost::GhostLog;
pub use routing::RoutingCheck;
