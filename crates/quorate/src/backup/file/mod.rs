//! The file of a backup: sections, each with a checksum, of which none can be missing, doubled, moved, or another file's.
//!
//! ```text
//! file      = magic (16 bytes), version (u32), sections
//! section   = kind (u8), stored (u32), whole (u32), check (u64), bytes (as many as `stored`)
//! kinds     = contents, then rows (any number), then end
//! ```
//!
//! Numbers are little-endian. A section's bytes are compressed (LZ4, one block), `whole` long when they are not. What they say is
//! in postcard's form:
//!
//! | kind | says |
//! |---|---|
//! | 1 contents | the domain, when the backup was begun (seconds of Unix time), and the definition of each table |
//! | 2 rows | a table, by its place among the contents, and some of its rows |
//! | 3 end | the position in the total order that all rows are of, and how many rows each table has |
//!
//! `check` is XXH3 of the section's number in the file, its head and its bytes, seeded with the `check` of the contents (whose own
//! seed is 0). Behind the end there is nothing. The form of values and definitions is that of the wire; if that ever changes, the
//! version does, and older ones are still read.
//!
//! The checksums tell damage. They tell no forgery: whoever can write the file can write it anew.

mod read;
mod write;

use std::io;

use quorate_table::schema::Schema;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::Xxh3;

pub(super) use self::{
    read::{Next, Reader},
    write::Writer,
};

const MAGIC: &[u8; 16] = b"Quorate backup\r\n";
const VERSION: u32 = 1;

/// No section is longer, compressed or not: no message that brings rows is.
const SECTION_BYTES_MAX: usize = quorate_protocol::wire::FRAME_BYTES_MAX;

const CONTENTS: u8 = 1;
const ROWS: u8 = 2;
const END: u8 = 3;

/// What a backup is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Contents {
    pub(super) domain: u128,
    /// When it was begun, in seconds of Unix time.
    pub(super) made_at: u64,
    pub(super) tables: Vec<Schema>,
}

/// What ends a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    /// The position that all rows are of.
    pub(super) position: u64,
    /// How many rows each table has.
    pub(super) rows: Vec<u64>,
}

/// What stands before a section's bytes.
#[derive(Clone, Copy)]
struct Head {
    kind: u8,
    stored: u32,
    whole: u32,
}

const HEAD_BYTES: usize = 1 + 4 + 4 + 8;

impl Head {
    /// The checksum of a section with this head.
    fn check(self, seed: u64, number: u64, bytes: &[u8]) -> u64 {
        let mut hash = Xxh3::with_seed(seed);
        hash.update(&number.to_le_bytes());
        hash.update(&[self.kind]);
        hash.update(&self.stored.to_le_bytes());
        hash.update(&self.whole.to_le_bytes());
        hash.update(bytes);
        hash.digest()
    }
}

/// Why a file is no backup that can be used.
#[derive(Debug, Error)]
pub(super) enum Unreadable {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is no backup")]
    Foreign,
    #[error("it is a backup of version {0}, and this program reads versions up to {VERSION}")]
    Newer(u32),
    #[error("it ends at byte {at}, before its end was written")]
    Torn { at: u64 },
    #[error("it is damaged in the section at byte {at}: {what}")]
    Damaged { at: u64, what: String },
}

#[cfg(test)]
mod tests;
