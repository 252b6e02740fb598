//! The protocols of Quorate as pure state machines, and the words they share.
