//! The roles of processes, without input and output of their own: production and the simulator run the same
//! values.
//!
//! | module | promise |
//! |---|---|
//! | [`services`] | finds a service's set, and carries out the orders of its replica on the user's object |

pub mod services;
