//! Tests of the command as a user runs it, with real processes and real kills.

mod backup;
mod by_hand;
mod cells;
mod cluster;
mod command;
mod door;
mod golden;
mod group;
mod kept;
mod kept_cells;
mod killing;
mod large;
mod manners;
mod one_cluster;
mod operate;
mod power;
mod reads;
mod records;
mod remembering;
mod restart;
mod retries;
mod service;
mod strategies;
mod streaming;
mod together;
mod watch;
