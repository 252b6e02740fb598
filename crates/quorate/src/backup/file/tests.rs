use std::io::Cursor;

use bytes::Bytes;
use quorate_table::{
    expr::Expr,
    numeric::Numeric,
    schema::{Column, Partition},
    value::{Row, Type, Value},
};

use super::*;

fn column(name: &str, ty: Type) -> Column {
    Column { name: name.to_owned(), ty, modifier: None, not_null: false, default: None }
}

fn table(name: &str) -> Schema {
    let columns = vec![column("id", Type::Int4), column("text", Type::Text)];
    Schema {
        name: name.to_owned(),
        columns,
        primary_key: vec![0],
        partition: Partition::Hash { column: 0 },
        constraints: Vec::new(),
    }
}

const TYPES: [Type; 10] = [
    Type::Bool,
    Type::Int2,
    Type::Int4,
    Type::Int8,
    Type::Float8,
    Type::Numeric,
    Type::Text,
    Type::Date,
    Type::Timestamp,
    Type::Timestamptz,
];

/// Returns a schema with one column of each type. The first column has a default.
fn kinds() -> Schema {
    let mut columns: Vec<Column> = TYPES.iter().map(|&ty| column(ty.name(), ty)).collect();
    columns[0].default = Some(Expr::Constant(Value::Bool(true), Type::Bool));
    columns[0].not_null = true;
    let partition = Partition::Range { column: 2, low: Some(Value::Int4(0)), high: Some(Value::Int4(9)) };
    Schema {
        name: String::from("kinds"),
        columns,
        primary_key: vec![2, 3],
        partition,
        constraints: Vec::new(),
    }
}

/// Returns two rows of `kinds`: a row with a value in every column, and a row with as few values as allowed.
fn values() -> Vec<Row> {
    let numeric = Value::Numeric(Numeric::parse("-12.340").unwrap());
    let all =
        [Value::Bool(false), Value::Int2(-2), Value::Int4(4), Value::Int8(i64::MIN), Value::Float8(-0.0)];
    let more = [
        numeric,
        Value::text_of("Zürich"),
        Value::Date(-1),
        Value::Timestamp(1),
        Value::Timestamptz(i64::MAX),
    ];
    let mut few = vec![Value::Null; TYPES.len()];
    (few[0], few[2], few[3]) = (Value::Bool(true), Value::Int4(5), Value::Int8(0));
    vec![[all, more].concat(), few]
}

fn contents() -> Contents {
    let tables = vec![table("first"), table("second"), kinds()];
    Contents { domain: 7, made_at: 1_800_000_000, tables }
}

fn row(id: i32, text: &str) -> Row {
    vec![Value::Int4(id), Value::text_of(text)]
}

/// Returns four sections of rows. The last two sections belong to the other tables.
fn sections() -> Vec<(usize, Vec<Row>)> {
    let long = "long ".repeat(1000);
    vec![
        (0, vec![row(1, "one"), row(2, &long)]),
        (0, vec![row(3, "")]),
        (1, vec![row(1, "uno")]),
        (2, values()),
    ]
}

fn written(sections: &[Section]) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &contents()).unwrap();
    for section in sections {
        writer.rows(&Bytes::from(postcard::to_stdvec(section).unwrap())).unwrap();
    }
    let (file, end, bytes) = writer.end(42).unwrap();
    assert_eq!((file.len() as u64, end.position), (bytes, 42));
    file
}

/// The index of a table in the contents, and some of its rows.
type Section = (usize, Vec<Row>);

fn read(file: &[u8]) -> Result<(Vec<Section>, End), Unreadable> {
    let mut reader = Reader::open(Cursor::new(file))?;
    let mut sections = Vec::new();
    loop {
        match reader.next()? {
            Next::Rows { table, rows } => sections.push((table, rows)),
            Next::End(end) => return Ok((sections, end)),
        }
    }
}

/// Returns the offset at which each section begins, and the offset at which the last section ends.
fn starts(file: &[u8]) -> Vec<usize> {
    let mut starts = vec![MAGIC.len() + 4];
    while let at = *starts.last().unwrap()
        && at < file.len()
    {
        let stored = u32::from_le_bytes(file[at + 1..at + 5].try_into().unwrap());
        starts.push(at + HEAD_BYTES + stored as usize);
    }
    starts
}

#[test]
fn what_is_written_is_read_back() {
    let file = written(&sections());
    assert_eq!(read(&file).unwrap(), (sections(), End { position: 42, rows: vec![3, 1, 2] }));
    let reader = Reader::open(Cursor::new(&file)).unwrap();
    assert_eq!(*reader.contents(), contents());
    assert!(file.len() < 1000, "texts that repeat are compressed: {} bytes", file.len());
}

#[test]
fn every_damaged_byte_is_noticed() {
    let file = written(&sections());
    for at in 0..file.len() {
        for bit in [0, 3, 7] {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            let error = read(&damaged).expect_err("a bit is another");
            if at < MAGIC.len() {
                assert!(matches!(error, Unreadable::Foreign), "{error}");
            }
        }
    }
}

#[test]
fn every_file_that_ends_early_is_noticed() {
    let file = written(&sections());
    for length in 0..file.len() {
        let error = read(&file[..length]).expect_err("something is missing");
        let is_detected = matches!(error, Unreadable::Torn { .. } | Unreadable::Foreign);
        assert!(is_detected, "{length} of {} bytes: {error}", file.len());
    }
    let longer = [&file[..], b"x"].concat();
    assert!(read(&longer).unwrap_err().to_string().contains("follows the closing section"));
}

#[test]
fn sections_are_neither_moved_nor_doubled_nor_left_out_nor_of_another_file() {
    let file = written(&sections());
    let starts = starts(&file);
    let section = |index: usize| &file[starts[index]..starts[index + 1]];
    let put = |order: &[usize]| {
        let sections: Vec<&[u8]> = order.iter().map(|&index| section(index)).collect();
        [&file[..starts[0]], &sections.concat()].concat()
    };
    assert!(read(&put(&[0, 1, 2, 3, 4, 5])).is_ok());
    for wrong in [
        vec![0, 2, 1, 3, 4, 5],
        vec![0, 1, 1, 2, 3, 4, 5],
        vec![0, 1, 3, 4, 5],
        vec![0, 5],
        vec![1, 2, 3, 4, 5],
    ] {
        assert!(matches!(read(&put(&wrong)), Err(Unreadable::Damaged { .. })), "{wrong:?}");
    }

    let mut other = Writer::begin(Vec::new(), &Contents { domain: 8, ..contents() }).unwrap();
    other.rows(&Bytes::from(postcard::to_stdvec(&sections()[0]).unwrap())).unwrap();
    let (other, ..) = other.end(42).unwrap();
    let from = self::starts(&other);
    let mixed = [&file[..starts[1]], &other[from[1]..from[2]], &file[starts[2]..]].concat();
    assert!(matches!(read(&mixed), Err(Unreadable::Damaged { .. })));
}

#[test]
fn rows_that_the_table_does_not_take_are_refused() {
    let wrong =
        [vec![Value::Int4(1)], vec![Value::text_of("one"), Value::Null], vec![Value::Null, Value::Null]];
    for wrong in wrong {
        let error = read(&written(&[(1, vec![wrong.clone()])])).unwrap_err();
        assert!(matches!(error, Unreadable::Damaged { .. }), "{wrong:?}: {error}");
    }
}

#[test]
fn impossible_lengths_are_refused() {
    let file = written(&sections());
    let start = starts(&file)[1];
    for at in [start + 1, start + 5] {
        let mut huge = file.clone();
        huge[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(read(&huge).unwrap_err().to_string().contains("longer than the maximum"));
    }
}

#[test]
fn other_backup_versions_are_reported() {
    let mut file = written(&[]);
    file[16] = 2;
    assert!(matches!(read(&file), Err(Unreadable::Newer(2))));
    assert!(matches!(read(b"PGDMP and more than sixteen bytes"), Err(Unreadable::Foreign)));
    assert!(matches!(read(b""), Err(Unreadable::Foreign)));
}

/// A backup that the first release of the format wrote is still read.
#[test]
fn the_first_version_is_read() {
    let golden = include_bytes!("version-1.backup");
    assert_eq!(read(golden).unwrap(), (sections(), End { position: 42, rows: vec![3, 1, 2] }));
    assert_eq!(*Reader::open(Cursor::new(golden)).unwrap().contents(), contents());
}
