//! The command as a user meets it: real processes, real kills.

mod command;
mod manners;
