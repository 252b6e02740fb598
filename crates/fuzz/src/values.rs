//! Values of clients: parameters of statements and rows of COPY, in text and in binary.

use bytes::{Buf, BytesMut};
use quorate_sql::{
    copy::{lines::LineReader, tuples::Tuples},
    encode::{self, Format},
    statement::copy,
    types::{PgType, TYPES},
};
use quorate_table::value::{Type, Value};

/// Decodes the input as a parameter or as data of COPY; the first byte selects which.
pub(crate) fn run(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 4 {
        0 => lines(rest, false),
        1 => lines(rest, true),
        2 => tuples(rest),
        _ => parameter(rest),
    }
}

/// Decodes a parameter. The first byte chooses the type, and the second byte the format.
fn parameter(input: &[u8]) {
    let [ty, format, bytes @ ..] = input else { return };
    let ty = TYPES[usize::from(*ty) % TYPES.len()].ty;
    let format = if format % 2 == 0 { Format::Text } else { Format::Binary };
    let Ok(value) = encode::parameter(Some(bytes), ty, format, 0) else { return };
    if matches!(ty, PgType::Plain(_)) {
        the_text_means_the_same(&value, ty);
    }
}

/// Checks that the text form of a value is read back as the same value. A value that one client sent in
/// binary may go to another client as text.
fn the_text_means_the_same(value: &Value, ty: PgType) {
    let text = text_of(value, ty);
    let again = encode::parameter(Some(&text), ty, Format::Text, 0).unwrap_or_else(|error| {
        panic!(
            "{value:?} is written as {:?}, which cannot be read: {error:?}",
            String::from_utf8_lossy(&text)
        )
    });
    assert_eq!(text_of(&again, ty), text, "{value:?} is read back as another value");
    if !matches!(ty, PgType::Plain(Type::Float4 | Type::Float8)) {
        assert_eq!(again, *value);
    }
}

fn text_of(value: &Value, ty: PgType) -> Vec<u8> {
    let mut field = BytesMut::new();
    encode::field(value, ty, Format::Text, &mut field);
    field.advance(4);
    field.to_vec()
}

/// Checks that the decoder finds the same records however the data is cut.
fn lines(data: &[u8], csv: bool) {
    let (delimiter, null) = if csv { (b',', String::new()) } else { (b'\t', String::from("\\N")) };
    let format = copy::Format {
        csv,
        header: false,
        delimiter,
        null,
        quote: b'"',
        escape: b'"',
        force_not_null: Vec::new(),
        force_quote: Vec::new(),
    };
    let read = |piece_bytes: usize| {
        let (mut lines, mut records) = (LineReader::new(format.clone()), Vec::new());
        for piece in data.chunks(piece_bytes) {
            lines.push(piece);
            loop {
                match lines.next(false) {
                    Ok(Some(record)) => records.push(Ok(owned(&record.fields))),
                    Ok(None) => break,
                    Err(error) => return (records, Some(error.code.clone())),
                }
            }
        }
        loop {
            match lines.next(true) {
                Ok(Some(record)) => records.push(Ok::<_, ()>(owned(&record.fields))),
                Ok(None) => return (records, None),
                Err(error) => return (records, Some(error.code.clone())),
            }
        }
    };
    assert_eq!(read(data.len().max(1)), read(3), "the records depend on where the data is cut");
}

fn owned(fields: &[Option<std::borrow::Cow<'_, str>>]) -> Vec<Option<String>> {
    fields.iter().map(|field| field.as_deref().map(str::to_owned)).collect()
}

fn tuples(data: &[u8]) {
    let mut tuples = Tuples::default();
    for piece in data.chunks(7) {
        tuples.push(piece);
        while let Ok(Some(_)) = tuples.next(false) {}
    }
    while let Ok(Some(_)) = tuples.next(true) {}
}
