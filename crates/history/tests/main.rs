//! Compares the checker with hand-made cases, with exhaustive search and with Porcupine, an independent
//! checker.

mod cases;
mod evidence;
mod exhaustive;
mod formats;
mod porcupine;
mod search;
mod stream;
mod transaction_twins;
mod transactions;
mod twins;
