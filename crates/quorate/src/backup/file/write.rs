//! Writing a backup.

use std::io::{self, Write};

use bytes::Bytes;
use serde::Serialize;

use super::{BackupHead, CONTENTS, Contents, END, End, MAGIC, ROWS, SECTION_BYTES_MAX, VERSION};

/// Writes a backup, one section at a time.
pub(in super::super) struct Writer<W> {
    out: W,
    seed: u64,
    sections: u64,
    /// Number of rows of each table so far.
    rows: Vec<u64>,
    /// Bytes of the sections before compression.
    whole: u64,
    /// Bytes of the file so far.
    written: u64,
    compressed: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a backup with these contents.
    pub(in super::super) fn begin(mut out: W, contents: &Contents) -> io::Result<Writer<W>> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let mut writer = Writer {
            out,
            seed: 0,
            sections: 0,
            rows: vec![0; contents.tables.len()],
            whole: 0,
            written: (MAGIC.len() + size_of::<u32>()) as u64,
            compressed: Vec::new(),
        };
        writer.seed = writer.section(CONTENTS, &encode(contents))?;
        Ok(writer)
    }

    /// Writes a section of rows, encoded as the table's index in the contents and then the rows.
    pub(in super::super) fn rows(&mut self, section: &Bytes) -> io::Result<()> {
        let malformed = || {
            io::Error::new(io::ErrorKind::InvalidData, "a storage process sent rows that cannot be decoded")
        };
        let ((table, count), _): ((usize, u64), &[u8]) =
            postcard::take_from_bytes(section).map_err(|_| malformed())?;
        *self.rows.get_mut(table).ok_or_else(malformed)? += count;
        // A section without rows is left out.
        if count > 0 {
            self.section(ROWS, section)?;
        }
        Ok(())
    }

    /// Returns the number of rows written so far, over all tables, and their bytes before compression.
    pub(in super::super) fn so_far(&self) -> (u64, u64) {
        (self.rows.iter().sum(), self.whole)
    }

    /// Writes the end of the file, with the position at which the tables had the rows. Also returns the size
    /// of the file in bytes.
    pub(in super::super) fn end(mut self, position: u64) -> io::Result<(W, End, u64)> {
        let end = End { position, rows: std::mem::take(&mut self.rows) };
        self.section(END, &encode(&end))?;
        self.out.flush()?;
        Ok((self.out, end, self.written))
    }

    /// Writes a section of this kind. Returns its checksum.
    pub(in super::super) fn section(&mut self, kind: u8, bytes: &[u8]) -> io::Result<u64> {
        assert!(bytes.len() <= SECTION_BYTES_MAX, "a section has at most SECTION_BYTES_MAX bytes");
        let most = lz4_flex::block::get_maximum_output_size(bytes.len());
        if self.compressed.len() < most {
            self.compressed.resize(most, 0);
        }
        let stored = lz4_flex::block::compress_into(bytes, &mut self.compressed)
            .expect("the output buffer has room for the compressed section");
        let stored = &self.compressed[..stored];
        let head = BackupHead { kind, stored: stored.len() as u32, whole: bytes.len() as u32 };
        let check = head.check(self.seed, self.sections, stored);
        self.out.write_all(&[kind])?;
        self.out.write_all(&head.stored.to_le_bytes())?;
        self.out.write_all(&head.whole.to_le_bytes())?;
        self.out.write_all(&check.to_le_bytes())?;
        self.out.write_all(stored)?;
        self.sections += 1;
        self.whole += bytes.len() as u64;
        self.written += (super::HEAD_BYTES + stored.len()) as u64;
        Ok(check)
    }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("our own types always serialise")
}
