//! The shared-scan table engine: typed rows, predicates, and one pass for many operations.
//!
//! Source: 002 §3 (Crescando). One engine holds, for every table, the rows of the ring ranges that its
//! storage process replicates. Operations arrive as batches in the total order. Each carries its
//! [`Epoch`](engine::Epoch), the position in that order, and sees exactly the writes before it. The crate is
//! pure: it has no threads, clocks or sockets, and its host calls an engine from a thread of the host's own.
//!
//! | where | what |
//! |---|---|
//! | `types`, `value`, `numeric`, `calendar`, `text` | types and values, their order, keys and text |
//! | `schema`, `partition` | tables, and the places of rows on the ring |
//! | `expr`, `eval`, `operator`, `cast`, `function`, `fields`, `pattern` | expressions and their evaluation |
//! | `operation`, `engine`, `host` | operations, the engines that run them, and the host of an engine |
//! | `versions` | the common part of all engines: atomic statements, holds, pins, migration |
//! | `saved` | versions as bytes for a disk, saved incrementally |
//! | `plain` | the engine that is obviously right: whole rows, one read at a time |
//! | `scan` | the fast engine: columns of codes, one pass for all reads that wait |
//! | `aggregate`, `group`, `merge` | partial states, and the gateway's half of a read |
//!
//! Semantics and errors are those of PostgreSQL 15; tests compare them with a running server. Each module
//! names the PostgreSQL features that it refuses ([`numeric`], [`calendar`], [`function`]).
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
//! let name = "tail".to_owned();
//! let column = Column { name, ty: Type::Text, modifier: None, not_null: true, default: None };
//! let partition = Partition::Hash { column: 0 };
//! let (name, columns, constraints) = ("planes".into(), vec![column], vec![]);
//! let schema = Schema { name, columns, primary_key: vec![0], partition, constraints };
//! let rows = vec![vec![Value::text_of("N14228")], vec![Value::text_of("N24211")]];
//! let ranges = vec![KeyRange::ALL];
//! let job = |epoch, operation| Job { epoch: Epoch(epoch), ranges: ranges.clone(), operation, held: false };
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
pub mod alter;
pub mod bytea;
pub mod calendar;
pub mod cast;
pub mod constraint;
pub mod engine;
pub mod eval;
pub mod explain;
pub mod expr;
pub mod failure;
pub mod fields;
pub mod fingerprint;
mod first_form;
pub mod function;
mod group;
pub mod host;
pub mod interval;
pub mod json;
mod length;
pub mod list;
pub mod merge;
pub mod modifier;
pub mod numeric;
pub mod operation;
mod operator;
pub mod partition;
pub mod pattern;
pub mod plain;
mod position;
mod saved;
pub mod scan;
pub mod schema;
mod spread;
mod template;
pub mod text;
mod total;
pub mod types;
pub mod uuid;
pub mod value;
mod versions;
