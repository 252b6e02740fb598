//! The roles of processes, still pure: production and the simulator carry the same values.
//!
//! | module | promise |
//! |---|---|
//! | [`services`] | finds a service's set, and carries out the orders of its replica on the user's object |

pub mod services;
