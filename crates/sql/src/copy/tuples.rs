//! The rows of binary COPY: reads data that comes in pieces, and writes rows, header and trailer.
//!
//! The data begins with a signature, flags, and an extension that is skipped. Each row that follows has its
//! number of fields and then the fields, encoded as in the protocol's binary rows. A number of fields of -1
//! ends the data.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_table::value::Value;

use crate::{
    encode::{self, Format},
    error::{Result, SqlError, code},
    statement::Field,
};

/// The beginning of the data: the signature, no flags, no extension.
pub const HEADER: &[u8; 19] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// The end of the data.
pub const TRAILER: [u8; 2] = (-1i16).to_be_bytes();

const SIGNATURE: &[u8] = HEADER.split_at(11).0;

/// The flags that a reader must not ignore.
const CRITICAL: i32 = !0xffff;

/// Longest row that is accepted, in bytes.
const ROW_BYTES_MAX: usize = 64 << 20;

/// Cuts data into rows.
#[derive(Default)]
pub struct Tuples {
    buffer: BytesMut,
    stage: TupleStage,
    number: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum TupleStage {
    #[default]
    Header,
    /// Bytes of the extension that are still to be skipped.
    Extension(usize),
    Rows,
    Ended,
}

/// A row, cut into its fields.
#[derive(Debug, PartialEq, Eq)]
pub struct Tuple {
    /// The fields; `None` is NULL.
    pub fields: Vec<Option<Bytes>>,
    /// Length of the row in the data, in bytes.
    pub bytes: usize,
}

impl Tuples {
    /// Returns the number of the last row returned, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Adds data.
    pub fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// Returns the next complete row. With `last`, the data has ended, which it may do after a row but not
    /// within a row.
    pub fn next(&mut self, last: bool) -> Result<Option<Tuple>> {
        if self.stage == TupleStage::Header && !self.header(last)? {
            return Ok(None);
        }
        if let TupleStage::Extension(left) = self.stage {
            let passed = left.min(self.buffer.len());
            self.buffer.advance(passed);
            self.stage = if passed == left { TupleStage::Rows } else { TupleStage::Extension(left - passed) };
        }
        if self.stage == TupleStage::Rows {
            match measure(&self.buffer)? {
                TupleMeasure::Row(bytes) => return Ok(Some(self.take(bytes))),
                TupleMeasure::End => {
                    self.buffer.advance(TRAILER.len());
                    self.stage = TupleStage::Ended;
                }
                // As in PostgreSQL, data that ends inside the two bytes of a row's field count passes for
                // complete data.
                TupleMeasure::Short if last && self.buffer.len() >= TRAILER.len() => {
                    return Err(malformed("unexpected EOF in COPY data"));
                }
                TupleMeasure::Short => {}
            }
        }
        match self.stage {
            TupleStage::Ended if !self.buffer.is_empty() => {
                Err(malformed("received copy data after EOF marker"))
            }
            TupleStage::Extension(_) if last => Err(malformed("invalid COPY file header (wrong length)")),
            _ => Ok(None),
        }
    }

    /// Reads the header. Returns whether the header was complete.
    fn header(&mut self, last: bool) -> Result<bool> {
        let known = self.buffer.len().min(SIGNATURE.len());
        if self.buffer[..known] != SIGNATURE[..known] || last && known < SIGNATURE.len() {
            return Err(malformed("COPY file signature not recognized"));
        }
        if self.buffer.len() < HEADER.len() {
            return if last {
                Err(malformed("invalid COPY file header (missing length)"))
            } else {
                Ok(false)
            };
        }
        self.buffer.advance(SIGNATURE.len());
        if self.buffer.get_i32() & CRITICAL != 0 {
            return Err(malformed("unrecognized critical flags in COPY file header"));
        }
        let extension = usize::try_from(self.buffer.get_i32())
            .map_err(|_| malformed("invalid COPY file header (missing length)"))?;
        self.stage = TupleStage::Extension(extension);
        Ok(true)
    }

    /// Removes a complete row of this length from the buffer.
    fn take(&mut self, bytes: usize) -> Tuple {
        let mut row = self.buffer.split_to(bytes).freeze();
        let fields = (0..row.get_i16())
            .map(|_| usize::try_from(row.get_i32()).ok().map(|length| row.split_to(length)))
            .collect();
        self.number += 1;
        Tuple { fields, bytes }
    }
}

/// The next element of the data.
enum TupleMeasure {
    /// A row of this length, in bytes.
    Row(usize),
    /// The end of the data.
    End,
    /// An incomplete row.
    Short,
}

fn measure(mut data: &[u8]) -> Result<TupleMeasure> {
    let whole = data.len();
    let Some((count, rest)) = data.split_first_chunk::<2>() else { return Ok(TupleMeasure::Short) };
    data = rest;
    let count = match i16::from_be_bytes(*count) {
        -1 => return Ok(TupleMeasure::End),
        count @ 0.. => count,
        count => return Err(malformed(&format!("row field count is {count}"))),
    };
    for _ in 0..count {
        let Some((length, rest)) = data.split_first_chunk::<4>() else { return Ok(TupleMeasure::Short) };
        data = rest;
        let length = match i32::from_be_bytes(*length) {
            -1 => 0,
            length => usize::try_from(length).map_err(|_| malformed("invalid field size"))?,
        };
        if whole - data.len() + length > ROW_BYTES_MAX {
            let what = format!("a COPY row is longer than {ROW_BYTES_MAX} bytes");
            return Err(SqlError::new(code::PROGRAM_LIMIT_EXCEEDED, what));
        }
        let Some(rest) = data.get(length..) else { return Ok(TupleMeasure::Short) };
        data = rest;
    }
    Ok(TupleMeasure::Row(whole - data.len()))
}

/// Writes a row.
pub fn write(row: &[Value], fields: &[Field], data: &mut Vec<u8>) {
    let mut buffer = BytesMut::new();
    buffer.put_i16(row.len() as i16);
    for (value, field) in row.iter().zip(fields) {
        encode::field(value, field.ty, Format::Binary, &mut buffer);
    }
    data.extend_from_slice(&buffer);
}

fn malformed(what: &str) -> SqlError {
    SqlError::new(code::BAD_COPY_FILE_FORMAT, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the data whole and cut at every place. The results must be equal.
    fn check(data: &[u8]) -> Result<Vec<Vec<Option<Vec<u8>>>>> {
        let read = |cut: usize| {
            let (mut tuples, mut found) = (Tuples::default(), Vec::new());
            for (piece, last) in [(&data[..cut], false), (&data[cut..], true)] {
                tuples.push(piece);
                while let Some(tuple) = tuples.next(last)? {
                    found.push(
                        tuple.fields.iter().map(|field| field.as_ref().map(|it| it.to_vec())).collect(),
                    );
                }
            }
            Ok(found)
        };
        let whole: Result<Vec<_>> = read(0);
        for cut in 1..=data.len() {
            match (read(cut), &whole) {
                (Ok(found), Ok(whole)) => assert_eq!(&found, whole, "cut at {cut}"),
                (Err(error), Err(whole)) => assert_eq!(error.message, whole.message, "cut at {cut}"),
                (found, whole) => panic!("cut at {cut}: {found:?}, not {whole:?}"),
            }
        }
        whole
    }

    fn rows() -> Vec<u8> {
        [&HEADER[..], b"\0\x02\0\0\0\x03abc\xff\xff\xff\xff", b"\0\0", b"\0\x01\0\0\0\0"].concat()
    }

    #[test]
    fn binary_rows_are_read_with_and_without_trailer() {
        let expected = vec![vec![Some(b"abc".to_vec()), None], vec![], vec![Some(Vec::new())]];
        assert_eq!(check(&rows()).unwrap(), expected, "the trailer may be missing");
        assert_eq!(check(&[&rows()[..], &TRAILER].concat()).unwrap(), expected);
        let mut extended = rows();
        extended[18] = 2;
        extended.splice(19..19, *b"xy");
        assert_eq!(check(&extended).unwrap(), expected);
    }

    #[test]
    fn damaged_binary_data_is_refused() {
        let refused = |data: &[u8]| check(data).unwrap_err().message.clone();
        assert_eq!(refused(b""), "COPY file signature not recognized");
        assert_eq!(refused(b"1\tone\n"), "COPY file signature not recognized");
        assert_eq!(refused(&rows()[..17]), "invalid COPY file header (missing length)");
        assert_eq!(refused(&rows()[..24]), "unexpected EOF in COPY data");
        assert_eq!(refused(&[&rows()[..], &TRAILER, b"x"].concat()), "received copy data after EOF marker");
        let mut flagged = rows();
        flagged[12] = 1;
        assert_eq!(refused(&flagged), "unrecognized critical flags in COPY file header");
        let mut negative = rows();
        negative.splice(21..25, (-2i32).to_be_bytes());
        assert_eq!(refused(&negative), "invalid field size");
        let mut huge = rows();
        huge.splice(21..25, i32::MAX.to_be_bytes());
        assert!(refused(&huge).contains("longer than"), "nothing is gathered that is too long");
    }
}
