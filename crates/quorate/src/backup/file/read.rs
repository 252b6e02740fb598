//! Reading a backup. Any byte of the file may be wrong.

use std::io::{self, Read};

use quorate_table::value::Row;
use serde::de::DeserializeOwned;

use super::{
    BackupHead, CONTENTS, Contents, END, End, HEAD_BYTES, MAGIC, ROWS, SECTION_BYTES_MAX, Unreadable, VERSION,
};

/// Reads a backup, one section at a time.
pub(in super::super) struct Reader<R> {
    input: R,
    seed: u64,
    sections: u64,
    /// Offset of the next byte in the file.
    at: u64,
    contents: Contents,
    /// Number of rows of each table so far.
    rows: Vec<u64>,
    stored: Vec<u8>,
    whole: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Begins to read: checks the version, and reads the contents.
    pub(in super::super) fn open(input: R) -> Result<Reader<R>, Unreadable> {
        let contents = Contents { domain: 0, made_at: 0, tables: Vec::new() };
        let (rows, stored, whole) = (Vec::new(), Vec::new(), Vec::new());
        let mut reader = Reader { input, seed: 0, sections: 0, at: 0, contents, rows, stored, whole };
        let mut magic = [0; MAGIC.len()];
        reader.fill(&mut magic).map_err(|error| match error {
            Unreadable::Torn { .. } => Unreadable::Foreign,
            error => error,
        })?;
        if magic != *MAGIC {
            return Err(Unreadable::Foreign);
        }
        let mut version = [0; 4];
        reader.fill(&mut version)?;
        match u32::from_le_bytes(version) {
            VERSION => {}
            0 => return Err(Unreadable::Foreign),
            newer => return Err(Unreadable::Newer(newer)),
        }
        let begun = reader.at;
        let (kind, check) = reader.section()?;
        if kind != CONTENTS {
            return Err(damaged(begun, "the first section is not the list of tables"));
        }
        reader.seed = check;
        reader.contents = decode(&reader.whole, begun)?;
        for table in &reader.contents.tables {
            table.check().map_err(|failure| damaged(begun, failure))?;
        }
        reader.rows = vec![0; reader.contents.tables.len()];
        Ok(reader)
    }

    /// Returns the contents.
    pub(in super::super) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the number of bytes that have been read.
    pub(in super::super) fn bytes(&self) -> u64 {
        self.at
    }

    /// Returns the next rows, with the index of their table in the contents; or the last section, if its row
    /// counts match the rows that were read.
    pub(in super::super) fn next(&mut self) -> Result<Next, Unreadable> {
        let begun = self.at;
        let (kind, _) = self.section()?;
        match kind {
            ROWS => {
                let (table, rows): (usize, Vec<Row>) = decode(&self.whole, begun)?;
                let schema = self.contents.tables.get(table);
                let schema =
                    schema.ok_or_else(|| damaged(begun, "the rows belong to no table of the backup"))?;
                for row in &rows {
                    schema.check_row(row).map_err(|failure| damaged(begun, failure))?;
                }
                self.rows[table] += rows.len() as u64;
                Ok(Next::Rows { table, rows })
            }
            END => {
                let end: End = decode(&self.whole, begun)?;
                if end.rows != self.rows {
                    return Err(damaged(
                        begun,
                        "the number of rows differs from the number in the closing section",
                    ));
                }
                match self.input.read(&mut [0])? {
                    0 => Ok(Next::End(end)),
                    _ => Err(damaged(self.at, "data follows the closing section")),
                }
            }
            _ => Err(damaged(begun, "the kind of the section is unknown")),
        }
    }

    /// Reads a section into `whole`. Returns its kind and its checksum.
    fn section(&mut self) -> Result<(u8, u64), Unreadable> {
        let begun = self.at;
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head)?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let check = u64::from_le_bytes(head[9..].try_into().expect("eight bytes"));
        let head = BackupHead { kind: head[0], stored: number(1), whole: number(5) };
        let (stored, whole) = (head.stored as usize, head.whole as usize);
        if whole > SECTION_BYTES_MAX || stored > lz4_flex::block::get_maximum_output_size(whole) {
            return Err(damaged(begun, "the section is longer than the maximum"));
        }
        let mut bytes = std::mem::take(&mut self.stored);
        bytes.resize(stored, 0);
        let filled = self.fill(&mut bytes);
        self.stored = bytes;
        filled?;
        if head.check(self.seed, self.sections, &self.stored) != check {
            return Err(damaged(begun, "the checksum does not match"));
        }
        self.whole.resize(whole, 0);
        match lz4_flex::block::decompress_into(&self.stored, &mut self.whole) {
            Ok(length) if length == whole => {}
            _ => return Err(damaged(begun, "the data cannot be decompressed")),
        }
        self.sections += 1;
        Ok((head.kind, check))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Unreadable> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) => return Err(Unreadable::Torn { at: self.at }),
                Ok(read) => {
                    filled += read;
                    self.at += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The next part of a backup.
#[derive(Debug, PartialEq)]
pub(in super::super) enum Next {
    /// Rows of the table with this index in the contents.
    Rows { table: usize, rows: Vec<Row> },
    /// The last section.
    End(End),
}

fn decode<T: DeserializeOwned>(bytes: &[u8], at: u64) -> Result<T, Unreadable> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(damaged(at, "the data cannot be decoded")),
    }
}

fn damaged(at: u64, what: impl ToString) -> Unreadable {
    Unreadable::Damaged { at, what: what.to_string() }
}
