//! The checker against hand-made cases, against exhaustive search, and against a checker that others wrote.

mod cases;
mod evidence;
mod exhaustive;
mod formats;
mod porcupine;
mod search;
mod stream;
mod twins;
