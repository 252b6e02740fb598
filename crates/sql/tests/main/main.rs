//! Tests statements as a session executes them, with tables in this process and without a socket.

mod answers;
mod behind;
mod precedence;
mod references;
mod refusals;
mod sequences;
mod statements;
mod transactions;
mod types;
mod unique;
