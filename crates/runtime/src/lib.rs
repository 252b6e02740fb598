//! Sockets, clocks and threads that carry a node.
