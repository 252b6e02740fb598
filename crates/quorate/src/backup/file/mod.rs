//! The file of a backup: sections, each with a checksum. A reader detects a section that is missing,
//! repeated, moved, or from another file.
//!
//! ```text
//! file      = magic (16 bytes), version (u32), sections
//! section   = kind (u8), stored (u32), whole (u32), check (u64), bytes (as many as `stored`)
//! kinds     = contents, then rows (any number), then end
//! ```
//!
//! Numbers are little-endian. A section's bytes are compressed (LZ4, one block); `whole` is their length
//! uncompressed. Their content is in postcard's form:
//!
//! | kind | content |
//! |---|---|
//! | 1 contents | the domain, the time of the beginning (s of Unix time), and each table's definition |
//! | 2 rows | a table, by its index in the contents, and some of its rows |
//! | 3 end | the position in the total order of all rows, and the number of rows of each table |
//!
//! `check` is XXH3 of the section's number in the file, its head and its bytes, seeded with the `check` of
//! the contents (whose own seed is 0). Nothing follows the end. Values and definitions have the form of the
//! wire. If the form of the wire ever changes, the version of the file changes, too, and older versions stay
//! readable.
//!
//! The checksums reveal damage, but no forgery: anybody who can write the file can compute them.

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

/// Upper bound of a section, compressed or not, in bytes. It equals the bound of a message with rows.
const SECTION_BYTES_MAX: usize = quorate_protocol::wire::FRAME_BYTES_MAX;

const CONTENTS: u8 = 1;
const ROWS: u8 = 2;
const END: u8 = 3;

/// The domain and the tables of a backup: its first section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Contents {
    pub(super) domain: u128,
    /// Time of the backup's beginning, in seconds of Unix time.
    pub(super) made_at: u64,
    pub(super) tables: Vec<Schema>,
}

/// The last section of a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    /// The position in the total order at which the tables had these rows.
    pub(super) position: u64,
    /// Number of rows of each table, in the order of the contents.
    pub(super) rows: Vec<u64>,
}

/// The head of a section, before its bytes.
#[derive(Clone, Copy)]
struct BackupHead {
    kind: u8,
    stored: u32,
    whole: u32,
}

const HEAD_BYTES: usize = 1 + 4 + 4 + 8;

impl BackupHead {
    /// Returns the checksum of a section with this head.
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

/// The reason why a file is not a usable backup.
#[derive(Debug, Error)]
pub(super) enum Unreadable {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("this file is not a Quorate backup")]
    Foreign,
    #[error(
        "this backup has format version {0}, and this program reads versions up to {VERSION}: use a newer program"
    )]
    Newer(u32),
    #[error("this backup is incomplete: the file ends at byte {at}, before the closing section")]
    Torn { at: u64 },
    #[error("this backup is damaged in the section at byte {at}: {what}")]
    Damaged { at: u64, what: String },
}

#[cfg(test)]
mod tests;
