//! The simulator itself: does the world keep the promises of the seam, and does it replay?

mod world;
