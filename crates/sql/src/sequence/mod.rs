//! Sequences: numbers that are given at most once, for `serial`, identity columns and `nextval`.
//!
//! **Promise.** `nextval` never returns a number twice, not to another session, another gateway, or after a
//! crash, unless `setval` sets the sequence back. Numbers may be missing. The numbers of one gateway rise (or
//! fall, if the increment is negative); those of two gateways interleave in blocks.
//!
//! **Definition.** A sequence is a table of one row, whose key is a column that no statement can create
//! ([`SequenceDefinition::schema`]). The defaults of its columns hold the definition: start, increment,
//! bounds, owner. So the definition is in the catalog of every gateway, and nothing else has to know
//! sequences: the total order, replicas, moves and backups treat the table as any other. The row holds the
//! last number that was drawn. The first draw adds the row.
//!
//! A column takes its numbers from a sequence if its default is [`nextval`]: a parameter whose number is a
//! hash of the sequence's name. Replicas never evaluate a default, so they need not know this one.
//!
//! **Numbers.** A gateway draws a block of numbers with one ordered write ([`Numbers`]) and gives them to its
//! sessions. The write adds to the row's last number and returns the block. A session draws the numbers of
//! all rows of a statement before it sends the statement. In the message the numbers are constants, so a
//! retry, a trial of a transaction and every replica see the same numbers.
//!
//! **Loss.** Numbers are lost, and never given again, if
//! - the gateway ends while it holds a part of a block,
//! - the answer to a draw is lost,
//! - the statement that took them fails, is cancelled or rolled back, or finds a conflict.
//!
//! **`setval`** is a write of the row, after which this gateway discards its block. Other gateways first give
//! the rest of their blocks, as sessions of PostgreSQL do with `CACHE`. A draw and a `setval` of one gateway
//! exclude each other, so a block from before a `setval` is not kept after it.
//!
//! **Repetition.** A statement that is sent again under its id draws new numbers, but its print covers only
//! its text and parameters. So the replicas recognise it, and answer the rows that the first attempt stored.
//!
//! **Definitions.** CREATE TABLE makes a table and the sequences of its columns at one position, and DROP
//! TABLE drops them at one position. In a domain of an earlier version of routing, the gateway sends one
//! message for the table and one for each sequence. If the gateway ends between two messages, a sequence can
//! stay, and the next CREATE TABLE of that name takes it over.
//!
//! *Rejected:* a draw for each row, which doubles the price of an INSERT; numbers from a counter of the
//! routers, which would have to keep data; the definition in a new kind of default, which older builds could
//! not read.

mod call;
mod definition;
mod numbers;

pub use call::{SequenceCall, SequenceName};
pub use definition::{
    Identity, KEY, Sequence, SequenceDefinition, SequenceOwner, find, greatest, is_sequence, named, nextval,
    of_column, of_default, takes_numbers,
};
pub use numbers::Numbers;
