//! The simulator: virtual network, clock and faults, and the checkers that watch them.
