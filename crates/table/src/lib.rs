//! The shared-scan table engine: typed rows, predicates, and one pass for many operations.
//!
//! Source: 002 §3 (Crescando). One engine holds, for every table, the rows of the ring ranges that its storage
//! process replicates. Operations come as a batch in the total order; each carries its [`Epoch`](engine::Epoch), the
//! position in that order, and sees exactly the writes before it. The crate is pure: no threads, clocks or sockets;
//! whoever hosts an engine calls it from a thread of its own.
//!
//! | where | what |
//! |---|---|
//! | `value`, `numeric`, `calendar`, `text` | types and values, their order, their keys, their text |
//! | `schema`, `partition` | tables, and where rows lie on the ring |
//! | `expr`, `eval`, `cast`, `function`, `fields`, `pattern` | bound expressions and what they mean |
//! | `operation`, `engine`, `host` | what travels in the total order, what executes it, and what that is lent |
//! | `versions` | what every engine does alike: statements whole or not at all, holds, pins, migration |
//! | `saved` | versions as bytes for a disk, and only what has changed of them |
//! | `plain` | the engine that is obviously right: rows whole, one read at a time |
//! | `scan` | the engine that is fast: columns of codes, one pass for all reads that wait |
//! | `aggregate`, `merge` | partial states, and the gateway's half of a read |
//!
//! Meaning is PostgreSQL 15's, errors included: tests ask a live one. What is refused instead is said where it is
//! refused ([`numeric`], [`calendar`], [`function`]).
//!
//! ```
//! use quorate_table::{
//!     engine::{Answer, Engine, Epoch, Job, Written},
//!     operation::Operation,
//!     plain::PlainEngine,
//!     schema::{Column, KeyRange, Partition, Schema, TableId},
//!     value::{Type, Value},
//! };
//!
//! let table = TableId(1);
//! let column = Column { name: "tail".into(), ty: Type::Text, modifier: None, not_null: true, default: None };
//! let partition = Partition::Hash { column: 0 };
//! let schema = Schema { name: "planes".into(), columns: vec![column], primary_key: vec![0], partition };
//! let rows = vec![vec![Value::text_of("N14228")], vec![Value::text_of("N24211")]];
//! let job = |epoch, operation| Job { epoch: Epoch(epoch), ranges: vec![KeyRange::ALL], operation, held: false };
//!
//! let mut engine = PlainEngine::default();
//! let answers = engine.apply(&[
//!     job(1, Operation::CreateTable { table, schema }),
//!     job(2, Operation::Insert { table, rows: rows.clone(), returning: vec![] }),
//!     job(3, Operation::Insert { table, rows, returning: vec![] }),
//! ]);
//! assert_eq!(answers[1], Answer::Written(vec![Written { rows: 2, returning: vec![] }]));
//! let Answer::Failed(failure) = &answers[2] else { panic!("duplicates are refused") };
//! assert_eq!(failure.detail.as_deref(), Some("Key (tail)=(N14228) already exists."));
//! ```

pub mod aggregate;
pub mod calendar;
pub mod cast;
pub mod engine;
pub mod eval;
pub mod explain;
pub mod expr;
pub mod failure;
pub mod fields;
pub mod function;
pub mod host;
pub mod interval;
pub mod list;
pub mod merge;
pub mod modifier;
pub mod numeric;
pub mod operation;
pub mod partition;
pub mod pattern;
pub mod plain;
mod saved;
pub mod scan;
pub mod schema;
mod spread;
mod template;
pub mod text;
pub mod value;
mod versions;
