//! The roles of processes, without input and output of their own: production and the simulator run the same
//! values.
//!
//! | module | promise |
//! |---|---|
//! | [`services`] | finds a service's set, and carries out the orders of its replica on the user's object |
//! | [`tables`] | is a router, a storage process, a super or a gateway, wired to the scan engine by the feature `engine` |

pub mod services;
pub mod tables;
