//! Synthetic rows of the ticket table of 002 §2: one row for each person on a plane, 47 columns, 350 bytes at
//! fixed width.
//!
//! Names, flights and offices follow Zipf's law, people book in groups of about 2.3, and dates are spread
//! over 480 days. Queries are made by example: an existing row yields two or three predicates of one of eight
//! templates, none of them on a key.

use std::sync::Arc;

use quorate_table::{
    expr::{Binary, Expr},
    operation::{Operation, Output, Select},
    schema::{Column, Partition, Schema, TableId},
    value::{Row, Type, Value},
};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::zipf::Zipf;

pub(super) const TABLE: TableId = TableId(1);
/// Size of a row at fixed width, in bytes.
pub(super) const FIXED_BYTES: f64 = 350.0;

/// Name and type of every column.
const COLUMNS: [(&str, Type); 47] = [
    ("rloc", Type::Text),
    ("creation_date", Type::Date),
    ("pax_tattoo", Type::Int2),
    ("seg_tattoo", Type::Int2),
    ("last_name", Type::Text),
    ("first_name", Type::Text),
    ("title", Type::Text),
    ("gender", Type::Text),
    ("birth_date", Type::Date),
    ("pax_type", Type::Text),
    ("nationality", Type::Text),
    ("doc_type", Type::Text),
    ("doc_number", Type::Text),
    ("ff_airline", Type::Text),
    ("ff_number", Type::Text),
    ("ff_tier", Type::Int2),
    ("email", Type::Text),
    ("phone", Type::Text),
    ("airline", Type::Text),
    ("flight_no", Type::Int4),
    ("flight_suffix", Type::Text),
    ("board_point", Type::Text),
    ("off_point", Type::Text),
    ("dep_date", Type::Date),
    ("dep_time", Type::Int4),
    ("arr_date", Type::Date),
    ("arr_time", Type::Int4),
    ("cabin", Type::Text),
    ("booking_class", Type::Text),
    ("fare_basis", Type::Text),
    ("status", Type::Text),
    ("seat", Type::Text),
    ("bag_count", Type::Int2),
    ("bag_weight", Type::Int4),
    ("meal", Type::Text),
    ("ticket_no", Type::Int8),
    ("ticket_status", Type::Text),
    ("coupon", Type::Int2),
    ("fare_cents", Type::Int8),
    ("currency", Type::Text),
    ("office_id", Type::Text),
    ("agent_sign", Type::Text),
    ("iata_no", Type::Int4),
    ("is_group", Type::Bool),
    ("is_checked_in", Type::Bool),
    ("remarks", Type::Text),
    ("last_update", Type::Timestamp),
];

/// The first day of travel, in days since 2000.
const FIRST_DAY: i32 = 7_043;
const DAYS: i32 = 480;

/// Returns the column of this name, as an expression.
pub(super) fn column(name: &str) -> Expr {
    let index = index(name);
    Expr::Column(index, COLUMNS[index].1)
}

fn index(name: &str) -> usize {
    COLUMNS
        .iter()
        .position(|(column, _)| *column == name)
        .expect("the ticket table has a column of this name")
}

/// Returns the schema of the table. The table is partitioned by the hash of the record locator or, if
/// `clustered`, by the range of the departure date.
pub(super) fn schema(clustered: bool) -> Schema {
    let columns = COLUMNS
        .iter()
        .map(|(name, ty)| Column {
            name: (*name).to_owned(),
            ty: *ty,
            modifier: None,
            not_null: true,
            default: None,
        })
        .collect();
    let partition = match clustered {
        false => Partition::Hash { column: index("rloc") },
        true => Partition::Range {
            column: index("dep_date"),
            low: Some(Value::Date(FIRST_DAY)),
            high: Some(Value::Date(FIRST_DAY + DAYS)),
        },
    };
    Schema {
        name: "tickets".to_owned(),
        columns,
        primary_key: Vec::new(),
        partition,
        constraints: Vec::new(),
    }
}

/// Values to draw from, each with its weight.
struct Weighted(Vec<(Value, f64)>);

impl Weighted {
    fn new(values: &[(&str, f64)]) -> Weighted {
        let mut sum = 0.0;
        let sums = values.iter().map(|(value, weight)| {
            sum += weight;
            (Value::text_of(value), sum)
        });
        Weighted(sums.collect())
    }

    fn draw(&self, random: &mut Pcg64) -> Value {
        let point = random.random::<f64>();
        let last = self.0.len() - 1;
        self.0[self.0.partition_point(|(_, sum)| *sum < point).min(last)].0.clone()
    }
}

struct Flight {
    airline: Value,
    number: i32,
    board: Value,
    off: Value,
    departure: i32,
    minutes: i32,
}

/// Generates rows, and keeps a sample of them as examples for queries.
pub(super) struct Tickets {
    random: Pcg64,
    flights: Vec<Flight>,
    last_names: Vec<Arc<str>>,
    first_names: Vec<Arc<str>>,
    airlines: Vec<Value>,
    offices: Vec<Value>,
    agents: Vec<Value>,
    fares: Vec<Value>,
    remarks: Vec<Value>,
    letters: Vec<Value>,
    by_flight: Zipf,
    by_last_name: Zipf,
    by_first_name: Zipf,
    by_office: Zipf,
    by_nationality: Zipf,
    by_airline: Zipf,
    by_class: Zipf,
    by_fare: Zipf,
    by_agent: Zipf,
    choices: Vec<Weighted>,
    /// The remaining rows of the present booking.
    booking: Vec<Row>,
    made: usize,
    samples: Vec<Row>,
    samples_max: usize,
}

const UPPER: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const MIXED: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const SYLLABLES: [&str; 30] = [
    "AN", "BER", "CO", "DA", "EL", "FER", "GAR", "HO", "IN", "JO", "KA", "LOP", "MAR", "NO", "OR", "PER",
    "QUI", "RO", "SMI", "TAN", "UL", "VAS", "WIL", "XU", "YA", "ZIM", "SON", "TH", "EZ", "ER",
];
const WORDS: [&str; 18] = [
    "SSR", "WCHR", "VGML", "OSI", "CTC", "PAX", "DOCS", "TKNE", "HK1", "RQST", "SEAT", "EXST", "UMNR",
    "PETC", "BLND", "LANG", "EN", "DE",
];

fn string(random: &mut Pcg64, length: usize, alphabet: &[u8]) -> String {
    (0..length).map(|_| char::from(alphabet[random.random_range(0..alphabet.len())])).collect()
}

fn distinct(random: &mut Pcg64, count: usize, mut make: impl FnMut(&mut Pcg64) -> String) -> Vec<String> {
    let (mut seen, mut made) = (std::collections::BTreeSet::new(), Vec::new());
    while made.len() < count {
        let next = make(random);
        if seen.insert(next.clone()) {
            made.push(next);
        }
    }
    made
}

fn values(strings: Vec<String>) -> Vec<Value> {
    strings.into_iter().map(Value::text_of).collect()
}

impl Tickets {
    pub(super) fn new(seed: u64, samples_max: usize) -> Tickets {
        let mut random = Pcg64::seed_from_u64(seed);
        let random = &mut random;
        let name = |random: &mut Pcg64, low: usize, high: usize| {
            let count = random.random_range(low..=high);
            (0..count).map(|_| SYLLABLES[random.random_range(0..SYLLABLES.len())]).collect::<String>()
        };
        let last_names = distinct(random, 20_000, |random| name(random, 2, 4));
        let first_names = distinct(random, 2_000, |random| name(random, 1, 3));
        let airlines = values(distinct(random, 120, |random| string(random, 2, UPPER)));
        let airports = values(distinct(random, 400, |random| string(random, 3, UPPER)));
        let offices = values(distinct(random, 1_500, |random| string(random, 5, MIXED) + "1A0X"));
        let (by_airport, by_other) = (Zipf::new(400, 0.9), Zipf::new(399, 0.9));
        let carriers = Zipf::new(120, 0.8);
        let flights = (0..6_000)
            .map(|_| {
                let board = by_airport.draw(random);
                let off = (board + 1 + by_other.draw(random)) % 400;
                Flight {
                    airline: airlines[carriers.draw(random)].clone(),
                    number: random.random_range(1..9_999),
                    board: airports[board].clone(),
                    off: airports[off].clone(),
                    departure: random.random_range(0..288) * 5,
                    minutes: random.random_range(45..780),
                }
            })
            .collect();
        let agents = values(distinct(random, 4_000, |random| string(random, 6, MIXED)));
        let fares = values(distinct(random, 900, |random| string(random, 3, UPPER) + "OW3NR"));
        let remark = |random: &mut Pcg64| {
            let words: Vec<&str> = (0..14).map(|_| WORDS[random.random_range(0..WORDS.len())]).collect();
            words.join(" ")[..].chars().take(94).collect()
        };
        let remarks = values(distinct(random, 5_000, remark));
        let shared = |strings: Vec<String>| strings.into_iter().map(Arc::from).collect();
        let even = |values: &[&'static str]| {
            values.iter().map(|value| (*value, 1.0 / values.len() as f64)).collect::<Vec<_>>()
        };
        let choices = [
            even(&["MR", "MRS", "MS", "DR", ""]),
            vec![("M", 0.49), ("F", 0.49), ("U", 0.02)],
            vec![("ADT", 0.86), ("CHD", 0.09), ("INF", 0.03), ("YTH", 0.02)],
            vec![("PP", 0.7), ("ID", 0.25), ("VI", 0.05)],
            vec![("", 0.97), ("A", 0.02), ("B", 0.01)],
            vec![("Y", 0.82), ("W", 0.08), ("C", 0.08), ("F", 0.02)],
            vec![("HK", 0.84), ("XX", 0.09), ("HL", 0.03), ("TK", 0.03), ("NO", 0.01)],
            vec![("", 0.9), ("VGML", 0.05), ("KSML", 0.01), ("MOML", 0.02), ("CHML", 0.02)],
            vec![("O", 0.6), ("U", 0.3), ("E", 0.02), ("F", 0.05), ("R", 0.03)],
            vec![("EUR", 0.45), ("USD", 0.35), ("GBP", 0.1), ("CHF", 0.06), ("JPY", 0.04)],
        ];
        Tickets {
            flights,
            last_names: shared(last_names),
            first_names: shared(first_names),
            airlines,
            offices,
            agents,
            fares,
            remarks,
            letters: UPPER.iter().map(|letter| Value::text_of(char::from(*letter).to_string())).collect(),
            by_flight: Zipf::new(6_000, 0.7),
            by_last_name: Zipf::new(20_000, 0.9),
            by_first_name: Zipf::new(2_000, 0.8),
            by_office: Zipf::new(1_500, 0.8),
            by_nationality: Zipf::new(120, 1.1),
            by_airline: Zipf::new(120, 1.0),
            by_class: Zipf::new(26, 0.7),
            by_fare: Zipf::new(900, 0.8),
            by_agent: Zipf::new(4_000, 0.6),
            choices: choices.iter().map(|choice| Weighted::new(choice)).collect(),
            booking: Vec::new(),
            made: 0,
            samples: Vec::new(),
            samples_max,
            random: random.clone(),
        }
    }

    /// Returns the next row.
    pub(super) fn row(&mut self) -> Row {
        while self.booking.is_empty() {
            self.book();
        }
        let row = self.booking.pop().expect("not empty");
        // Keeps a sample of all rows so far, each equally likely.
        self.made += 1;
        if self.samples.len() < self.samples_max {
            self.samples.push(row.clone());
        } else {
            let place = self.random.random_range(0..self.made);
            if let Some(sample) = self.samples.get_mut(place) {
                *sample = row.clone();
            }
        }
        row
    }

    /// Generates a booking. Its size follows a Poisson distribution with a mean of 2.3, so it may be empty.
    fn book(&mut self) {
        let (mut size, mut product) = (0, self.random.random::<f64>());
        while product > (-2.3f64).exp() {
            product *= self.random.random::<f64>();
            size += 1;
        }
        let random = &mut self.random;
        let rloc = Value::text_of(string(random, 6, MIXED));
        let last_name = self.last_names[self.by_last_name.draw(random)].clone();
        let office = self.offices[self.by_office.draw(random)].clone();
        let created = FIRST_DAY - 200 + random.random_range(0..600);
        let group = random.random_bool(0.03);
        for person in 0..size {
            let person = Person {
                number: person,
                rloc: &rloc,
                last_name: &last_name,
                office: &office,
                created,
                group,
            };
            let row = self.person(&person);
            self.booking.push(row);
        }
    }

    fn person(&mut self, person: &Person<'_>) -> Row {
        let random = &mut self.random;
        let first_name = self.first_names[self.by_first_name.draw(random)].clone();
        let flight = &self.flights[self.by_flight.draw(random)];
        let departs = FIRST_DAY + random.random_range(0..DAYS);
        let arrives = flight.departure + flight.minutes;
        let member = random.random_bool(0.35);
        let choice = |number: usize, random: &mut Pcg64| self.choices[number].draw(random);
        let (email_first, email_last) = (first_name.to_lowercase(), person.last_name.to_lowercase());
        let fare = {
            // The method of Box and Muller makes a normally distributed number from two uniform numbers.
            let (a, b) = (random.random::<f64>().max(f64::MIN_POSITIVE), random.random::<f64>());
            let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
            (10.2 + 0.8 * normal).exp() as i64
        };
        let number = |number: i32| Value::Int2(number as i16);
        let luck = random.random::<f64>();
        let bags = [0.4, 0.85, 0.97].partition_point(|sum| *sum < luck);
        let none = Value::text_of("");
        vec![
            person.rloc.clone(),
            Value::Date(person.created),
            number(1 + person.number % 9),
            number(1 + person.number / 9 % 9),
            Value::Text(person.last_name.clone()),
            Value::Text(first_name),
            choice(0, random),
            choice(1, random),
            Value::Date(random.random_range(-22_957..6_043)),
            choice(2, random),
            self.airlines[self.by_nationality.draw(random)].clone(),
            choice(3, random),
            Value::text_of(format!("X{:010}", random.random_range(0..10_000_000_000u64))),
            if member { self.airlines[self.by_airline.draw(random)].clone() } else { none.clone() },
            if member {
                Value::text_of(format!("{:012}", random.random_range(0..1_000_000_000)))
            } else {
                none
            },
            number(if member { random.random_range(1..5) } else { 0 }),
            Value::text_of(format!("{email_first}.{email_last}{}@x.com", random.random_range(0..999))),
            Value::text_of(format!("+{:011}", random.random_range(1_000_000_000..100_000_000_000u64))),
            flight.airline.clone(),
            Value::Int4(flight.number),
            choice(4, random),
            flight.board.clone(),
            flight.off.clone(),
            Value::Date(departs),
            Value::Int4(flight.departure),
            Value::Date(departs + arrives / 1440),
            Value::Int4(arrives % 1440),
            choice(5, random),
            self.letters[self.by_class.draw(random)].clone(),
            self.fares[self.by_fare.draw(random)].clone(),
            choice(6, random),
            seat(random),
            number(bags as i32),
            Value::Int4(random.random_range(0..46)),
            choice(7, random),
            Value::Int8(random.random_range(1_000_000_000_000..10_000_000_000_000)),
            choice(8, random),
            number(1 + person.number % 4),
            Value::Int8(fare),
            choice(9, random),
            person.office.clone(),
            self.agents[self.by_agent.draw(random)].clone(),
            Value::Int4(random.random_range(10_000_000..10_008_000)),
            Value::Bool(person.group),
            Value::Bool(random.random_bool(0.2)),
            self.remarks[random.random_range(0..5_000)].clone(),
            Value::Timestamp((i64::from(departs) * 86_400 - random.random_range(0..86_400 * 60)) * 1_000_000),
        ]
    }

    /// Returns a query by the example of a row: the index of its template, and the filter.
    pub(super) fn filter(&mut self) -> (usize, Expr) {
        let random = &mut self.random;
        let row = &self.samples[random.random_range(0..self.samples.len())];
        let day = |days: i32| Expr::constant(Value::Date(days), Type::Date);
        let date = |name: &str| match row[index(name)] {
            Value::Date(days) => days,
            _ => unreachable!("a date"),
        };
        let same = |name: &str| compared(Binary::Equal, name, row[index(name)].clone());
        let between = |name: &str, low: i32, high: i32| {
            [
                Expr::binary(Binary::GreaterEqual, column(name), day(low)),
                Expr::binary(Binary::LessEqual, column(name), day(high)),
            ]
        };
        let departs = date("dep_date");
        let weights = [0.35, 0.53, 0.68, 0.78, 0.86, 0.90, 0.95];
        let point = random.random::<f64>();
        let template = weights.partition_point(|sum| *sum < point);
        let terms = match template {
            0 => vec![same("airline"), same("flight_no"), same("dep_date")],
            1 => {
                let around = random.random_range(2..15);
                let mut terms = vec![same("last_name")];
                terms.extend(between("dep_date", departs - around, departs + around));
                terms
            }
            2 => vec![same("board_point"), same("off_point"), same("dep_date")],
            3 => {
                let created = date("creation_date");
                let mut terms = vec![same("office_id"), same("status")];
                terms.extend(between("creation_date", created, created + random.random_range(1..8)));
                terms
            }
            4 => {
                let Value::Text(name) = &row[index("last_name")] else { unreachable!("a text") };
                let prefix: String = name.chars().take(random.random_range(5..8)).collect();
                let pattern = Box::new(Expr::constant(Value::text_of(prefix + "%"), Type::Text));
                let text = Box::new(column("last_name"));
                vec![
                    Expr::Like { text, pattern, escape: Some('\\'), case_insensitive: false },
                    same("first_name"),
                ]
            }
            5 => {
                let mut airlines = vec![row[index("airline")].clone()];
                for _ in 0..2 {
                    airlines.push(
                        self.samples[random.random_range(0..self.samples.len())][index("airline")].clone(),
                    );
                }
                let airlines =
                    airlines.into_iter().map(|airline| Expr::constant(airline, Type::Text)).collect();
                let mut terms = vec![
                    Expr::In(Box::new(column("airline")), airlines),
                    compared(Binary::Equal, "meal", Value::text_of("KSML")),
                ];
                terms.extend(between("dep_date", departs, departs + 2));
                terms
            }
            6 => vec![
                same("dep_date"),
                same("cabin"),
                compared(Binary::GreaterEqual, "fare_cents", row[index("fare_cents")].clone()),
            ],
            _ => vec![same("agent_sign"), same("booking_class")],
        };
        (template, Expr::all(terms))
    }

    /// Returns a query of one booking, by the partition column.
    pub(super) fn booking(&mut self) -> Expr {
        let sample = self.random.random_range(0..self.samples.len());
        compared(Binary::Equal, "rloc", self.samples[sample][index("rloc")].clone())
    }

    /// Returns an update by example: a passenger checks in, or a flight is moved.
    pub(super) fn update(&mut self) -> Operation {
        let random = &mut self.random;
        let row = &self.samples[random.random_range(0..self.samples.len())];
        let same = |name: &str| compared(Binary::Equal, name, row[index(name)].clone());
        let text = |value: &str| Expr::constant(Value::text_of(value), Type::Text);
        let (assignments, terms) = if random.random_bool(0.5) {
            let assignments = vec![
                (index("status"), text("TK")),
                (index("seat"), Expr::constant(seat(random), Type::Text)),
                (index("is_checked_in"), Expr::constant(Value::Bool(true), Type::Bool)),
            ];
            (assignments, vec![same("rloc"), same("pax_tattoo")])
        } else {
            let time = Expr::constant(Value::Int4(random.random_range(0..1440)), Type::Int4);
            let terms = vec![same("airline"), same("flight_no"), same("dep_date")];
            (vec![(index("dep_time"), time)], terms)
        };
        Operation::Update { table: TABLE, assignments, filter: Some(Expr::all(terms)), returning: Vec::new() }
    }
}

struct Person<'a> {
    number: i32,
    rloc: &'a Value,
    last_name: &'a Arc<str>,
    office: &'a Value,
    created: i32,
    group: bool,
}

fn seat(random: &mut Pcg64) -> Value {
    let letter = char::from(b"ABCDEFHJK"[random.random_range(0..9)]);
    Value::text_of(format!("{:02}{letter}", random.random_range(1..60)))
}

fn compared(operator: Binary, name: &str, value: Value) -> Expr {
    let ty = COLUMNS[index(name)].1;
    Expr::binary(operator, column(name), Expr::constant(value, ty))
}

/// Returns a read of the rows that satisfy a filter.
pub(super) fn select(filter: Expr, all_columns: bool) -> Select {
    let columns = match all_columns {
        true => COLUMNS.iter().map(|(name, _)| column(name)).collect(),
        false => ["rloc", "last_name", "first_name", "seat"].map(column).to_vec(),
    };
    let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
    Select { table: TABLE, filter: Some(filter), output }
}
