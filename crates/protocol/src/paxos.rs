//! Multi-Paxos: one log that all routers agree on.
