//! The command as a user meets it: real processes, real kills.

mod check;
mod cluster;
mod command;
mod door;
mod killing;
mod manners;
mod operate;
mod streaming;
