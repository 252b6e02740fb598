//! Saved versions, and engines that are restored from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use quorate_table::{
    engine::{Engine, Epoch, Holder, Job, Records, SaveTarget, SavedPart},
    expr::{Binary, Expr},
    numeric::Numeric,
    operation::{LoadId, Operation},
    plain::PlainEngine,
    scan::ScanEngine,
    schema::{Column, KeyRange, Partition, Schema, TableId},
    value::{Row, Type, Value},
};

use crate::twin::Maker;

const TABLE: TableId = TableId(1);
const LOAD: LoadId = LoadId(7, 1);

/// A process with an engine, which writes, and saves from time to time.
struct SavingEngine<E> {
    engine: E,
    epoch: u64,
    records: Records,
    /// The outline of the last saved version.
    outline: Vec<Vec<u8>>,
    named: BTreeMap<u64, u32>,
    next: u64,
}

impl<E: Engine + Default> SavingEngine<E> {
    fn new() -> SavingEngine<E> {
        let mut saving = SavingEngine {
            engine: E::default(),
            epoch: 0,
            records: Records::new(),
            outline: Vec::new(),
            named: BTreeMap::new(),
            next: 1,
        };
        saving.write(Operation::CreateTable { table: TABLE, schema: schema() });
        saving
    }

    fn write(&mut self, operation: Operation) {
        self.epoch += 1;
        let (epoch, ranges) = (Epoch(self.epoch), vec![KeyRange::ALL]);
        self.engine.apply(&[Job { epoch, ranges, operation, held: false }]);
    }

    /// Saves the present version, and calls `meanwhile` between the parts. Returns the number of written
    /// fragments.
    fn save(&mut self, carried: &[u64], mut meanwhile: impl FnMut(&mut Self)) -> u32 {
        let at = Epoch(self.epoch);
        self.engine.pin(at, Holder::Migration);
        let carried: Arc<BTreeSet<u64>> = Arc::new(carried.iter().copied().collect());
        (self.outline, self.named) = Default::default();
        let (mut cursor, mut written) = (None, 0);
        loop {
            let saving = SaveTarget { record: self.next, since: 1, carried: carried.clone() };
            let saved = self.engine.save(at, &saving, cursor).unwrap();
            let SavedPart { fragments, count, outline, named, next } = saved;
            assert_eq!(fragments.is_empty(), count == 0);
            if count > 0 {
                self.records.insert(self.next, fragments.into());
                self.next += 1;
            }
            written += count;
            self.outline.push(outline);
            named
                .into_iter()
                .for_each(|(record, fragments)| *self.named.entry(record).or_default() += fragments);
            cursor = next;
            if cursor.is_none() {
                break;
            }
            meanwhile(self);
        }
        self.engine.release(at, Holder::Migration);
        written
    }

    /// Restores an engine from the named records only, and checks that it holds the saved data.
    fn restored(&self, digest: u64) -> E {
        let mut engine = E::default();
        let named = self.records.iter().filter(|(number, _)| self.named.contains_key(number));
        let records: Records = named.map(|(number, record)| (*number, record.clone())).collect();
        self.outline.iter().for_each(|piece| engine.restore(piece, &records).unwrap());
        assert_eq!(engine.digest(None, &[KeyRange::ALL]).unwrap(), digest);
        engine
    }

    fn digest(&mut self) -> u64 {
        self.engine.digest(None, &[KeyRange::ALL]).unwrap()
    }
}

fn schema() -> Schema {
    let column = |name: &str, ty, not_null| Column {
        name: name.to_owned(),
        ty,
        modifier: None,
        not_null,
        default: None,
    };
    Schema {
        name: String::from("t"),
        columns: vec![
            column("k", Type::Int8, true),
            column("few", Type::Text, false),
            column("many", Type::Text, false),
            column("n", Type::Numeric, false),
            column("b", Type::Bool, false),
        ],
        primary_key: vec![0],
        partition: Partition::Hash { column: 0 },
        constraints: Vec::new(),
    }
}

fn row(key: i64, maker: &mut Maker) -> Row {
    let some = |value: Value, maker: &mut Maker| if maker.below(9) == 0 { Value::Null } else { value };
    let few = Value::text_of(format!("few {}", maker.below(30)));
    let many = Value::text_of(format!("{key} of many {}", maker.below(1 << 20)));
    let number = Numeric::parse(&format!("{}.{:02}", maker.below(5000), maker.below(100))).unwrap();
    let values = [few, many, Value::Numeric(number), Value::Bool(maker.below(2) == 0)];
    let mut row = vec![Value::Int8(key)];
    row.extend(values.map(|value| some(value, maker)));
    row
}

fn insert(keys: std::ops::Range<i64>, maker: &mut Maker) -> Operation {
    let rows = keys.map(|key| row(key, maker)).collect();
    Operation::Insert { table: TABLE, rows, returning: Vec::new() }
}

fn below(key: i64) -> Option<Expr> {
    let bound = Expr::constant(Value::Int8(key), Type::Int8);
    Some(Expr::binary(Binary::Less, Expr::Column(0, Type::Int8), bound))
}

fn update(below_key: i64, column: usize, ty: Type, value: Value) -> Operation {
    let assignments = vec![(column, Expr::constant(value, ty))];
    Operation::Update { table: TABLE, assignments, filter: below(below_key), returning: Vec::new() }
}

/// Versions that are saved while writes go on can be restored, whatever happens between the saves.
fn check<E: Engine + Default>(seed: u8) {
    let mut maker = Maker::seeded(seed);
    let mut saving = SavingEngine::<E>::new();
    let mut key = 0;
    for _ in 0..12 {
        for _ in 0..maker.below(5) {
            let operation = match maker.below(8) {
                0..3 => {
                    let count = [1, 20, 3000][maker.below(3)];
                    key += count;
                    insert(key - count..key, &mut maker)
                }
                3 => {
                    let text = Value::text_of(format!("new {}", maker.below(1000)));
                    update(maker.below(key as usize + 1) as i64, 2, Type::Text, text)
                }
                4 => update(maker.below(50) as i64, 4, Type::Bool, Value::Null),
                5 => Operation::Delete {
                    table: TABLE,
                    filter: below(maker.below(key as usize / 4 + 1) as i64),
                    returning: Vec::new(),
                },
                6 => {
                    let rows = (0..200).map(|number| row(1_000_000 + key + number, &mut maker)).collect();
                    key += 200;
                    Operation::Stage { table: TABLE, load: LOAD, rows }
                }
                _ => Operation::Publish { table: TABLE, load: LOAD, rows: 0 },
            };
            saving.write(operation);
        }
        let digest = saving.digest();
        let carried: Vec<u64> = saving.named.keys().copied().filter(|_| maker.below(4) == 0).collect();
        saving.save(&carried, |saving| {
            let below_key = maker.below(key as usize + 1) as i64;
            saving.write(match maker.below(3) {
                0 => update(below_key, 1, Type::Text, Value::text_of("meanwhile")),
                1 => Operation::Delete {
                    table: TABLE,
                    filter: below(below_key.min(100)),
                    returning: Vec::new(),
                },
                _ => {
                    key += 30;
                    insert(key - 30..key, &mut maker)
                }
            });
        });
        let all: BTreeSet<u64> = saving.named.keys().copied().collect();
        assert!(carried.iter().all(|number| !all.contains(number)), "what is carried is needed no more");
        let restored = saving.restored(digest);
        // A restarted process goes on from the saved version, and receives the later writes again.
        if maker.below(2) == 0 {
            saving.engine = restored;
        }
    }
}

#[test]
fn a_saved_version_is_restored() {
    for seed in 0..6 {
        check::<ScanEngine>(seed);
        check::<PlainEngine>(seed);
    }
}

/// Checks that a save in parts holds the version at which it began, although rows arrive between its parts.
/// The texts of one column have `text_bytes` bytes and more.
fn check_between_parts<E: Engine + Default>(rows: i64, text_bytes: usize) {
    let mut maker = Maker::new();
    let mut insert = |keys: std::ops::Range<i64>| {
        let rows = keys.map(|key| {
            let mut row = row(key, &mut maker);
            row[2] = Value::text_of(format!("{key} {}", "x".repeat(text_bytes)));
            row
        });
        Operation::Insert { table: TABLE, rows: rows.collect(), returning: Vec::new() }
    };
    let mut saving = SavingEngine::<E>::new();
    saving.write(insert(0..rows));
    let (digest, mut key) = (saving.digest(), rows);
    saving.save(&[], |saving| {
        saving.write(insert(key..key + 20));
        key += 20;
    });
    assert!(key > rows + 20, "the save has three parts or more");
    saving.restored(digest);
}

/// A new row splits a full block, and brings a code that no saved dictionary has. Later parts of the save see
/// neither.
#[test]
fn rows_that_arrive_between_the_parts_of_a_save_do_not_enter_it() {
    check_between_parts::<ScanEngine>(40, 300 << 10);
    check_between_parts::<ScanEngine>(60_000, 10);
    check_between_parts::<PlainEngine>(20_000, 100);
}

/// A save writes the fragments of a changed column, and no others.
#[test]
fn a_save_writes_only_changed_fragments() {
    let mut maker = Maker::new();
    let mut saving = SavingEngine::<ScanEngine>::new();
    for first in 0..10 {
        saving.write(insert(first * 4000..(first + 1) * 4000, &mut maker));
    }
    let whole = saving.save(&[], |_| {});
    let blocks = 10;
    assert!(whole > blocks * 6, "{whole} fragments");
    assert_eq!(saving.save(&[], |_| {}), 0, "nothing has changed");
    saving.write(update(i64::MAX, 4, Type::Bool, Value::Bool(true)));
    let one_column = saving.save(&[], |_| {});
    assert!((blocks..whole / 4).contains(&one_column), "{one_column} of {whole} fragments");
    let digest = saving.digest();
    let mut again = SavingEngine { engine: saving.restored(digest), ..saving };
    assert_eq!(again.save(&[], |_| {}), 0, "who comes back knows what is on disk");
    let all: Vec<u64> = again.named.keys().copied().collect();
    let carried = again.save(&all, |_| {});
    assert!(carried >= whole, "{carried} of {whole} fragments");
}

/// Bytes that no engine saved are refused.
#[test]
fn bytes_that_are_no_saved_version_are_refused() {
    let mut maker = Maker::new();
    let mut saving = SavingEngine::<ScanEngine>::new();
    saving.write(insert(0..500, &mut maker));
    saving.save(&[], |_| {});
    let outline = saving.outline.concat();
    assert!(ScanEngine::default().restore(&outline, &saving.records).is_ok());
    assert!(ScanEngine::default().restore(&outline, &Records::new()).is_err(), "no records");
    assert!(PlainEngine::default().restore(&outline, &saving.records).is_err(), "of another engine");
    for end in 0..outline.len() {
        // The outline may end between two lines; the lines up to there are restored.
        let _ = ScanEngine::default().restore(&outline[..end], &saving.records);
    }
    let (number, record) = saving.records.first_key_value().unwrap();
    for end in (0..record.len()).step_by(37) {
        let short = Records::from([(*number, record.slice(..end))]);
        assert!(ScanEngine::default().restore(&outline, &short).is_err(), "cut off at {end}");
    }
}
