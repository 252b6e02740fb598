//! A map as a table of the cells' own cluster. The table has the map's name, and each command is one
//! statement.
//!
//! **Promise.** All commands take effect in the total order of the cluster: all of them, reads included, are
//! linearizable, and a command on several keys sees and changes them at one position. A write is executed
//! once, however often it has to be sent.
//!
//! **Source.** 002 §6, whose prototype puts the total order on top of Memcached: a replicated table of keys
//! and values, partitioned by the key.
//!
//! **The table.** `key text primary key, value text not null, expires timestamptz`. The cell makes the table
//! if there is no table of the map's name. The table stays when the map is dropped, and SQL can read and drop
//! it. If a table of the map's name has another shape, a user made it for something else. In that case the
//! map refuses all commands with an error that names the table, and touches no row. The cell checks the shape
//! before the first command and before each removal of expired rows, because SQL may alter the table, or drop
//! it and make another one.
//!
//! **Limits.** Values are text. Hashes, `SCAN`, and writes that return the former string are refused with an
//! error that names them. A statement uses the clock of the cell that the client asked.

use std::{future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use quorate_protocol::partial;
use quorate_table::value::Value;
use tokio::sync::watch;
use tracing::warn;

use super::outcome::{OutcomeFuture, wall};
use super::{
    RequestError,
    keyspace::{KeyspaceAnswer, Life, Only, Refusal, Request, When},
};
use crate::{
    db::{Db, Rows},
    error::{Error, Name, RequestName},
    node::Node,
    timer,
};

/// The table, as the cell found it at its last check.
#[derive(Clone)]
enum Found {
    /// The cluster or its catalogue is not in reach yet.
    Nothing,
    /// The map's table.
    Table(Db),
    /// A table of another shape.
    OtherTable,
}

/// A cell's part in a map that a table keeps.
pub(super) struct OrderedMap {
    name: String,
    table: String,
    found: watch::Receiver<Found>,
    /// A sender without messages. Dropping it ends the future that maintains the table.
    _stays: watch::Sender<()>,
}

/// Pause before the next attempt to reach the cluster.
const PAUSE: Duration = Duration::from_secs(1);

/// Interval at which expired rows are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Pause before a table of another shape is checked again.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Time that a command waits for the cluster, and then for the fate of a write.
const PATIENCE: Duration = Duration::from_secs(5);

/// The epoch of SQL's times, 2000-01-01, in nanoseconds since 1970. SQL counts in microseconds.
const EPOCH: u64 = 946_684_800_000_000_000;

impl OrderedMap {
    /// Begins to look for the cluster and the table, in the returned future. The future ends when the map is
    /// dropped.
    pub(super) fn begin(node: Node, name: &str) -> (OrderedMap, Pin<Box<dyn Future<Output = ()> + Send>>) {
        let table = quoted(name);
        let (found_sender, found) = watch::channel(Found::Nothing);
        let (stays, mut stay) = watch::channel(());
        let serve = {
            let table = table.clone();
            let shape = shape_of(name);
            async move {
                let make = format!("create table if not exists {table} ({OWN})");
                let sweep = format!("delete from {table} where expires <= $1");
                let mut known = None;
                // The check fails once the map is dropped.
                while stay.has_changed().is_ok() {
                    let look = async {
                        let db = match known.take() {
                            Some(db) => db,
                            None => node.db().await?,
                        };
                        db.execute(&make).await?;
                        let is_own = is_own(&db, &shape).await?;
                        if is_own {
                            // `is_own` has checked that the table has the columns of a map.
                            db.execute(&sweep).bind(time(wall())).await?;
                        }
                        Ok::<_, Error>((db, is_own))
                    };
                    let looked = look.await;
                    let pause = match looked {
                        Ok((db, true)) => {
                            known = Some(db.clone());
                            found_sender.send_replace(Found::Table(db));
                            SWEEP_EVERY
                        }
                        Ok((db, false)) => {
                            if !matches!(*found_sender.borrow(), Found::OtherTable) {
                                warn!(
                                    table,
                                    "the table with an ordered map's name has other columns than the \
                                         map: rename the table, or drop the map"
                                );
                            }
                            known = Some(db);
                            found_sender.send_replace(Found::OtherTable);
                            LOOK_EVERY
                        }
                        Err(error) => {
                            warn!(
                                %error, table,
                                "the table of an ordered map cannot be reached, so expired rows stay for now"
                            );
                            PAUSE
                        }
                    };
                    let gone = timer::timeout(pause, stay.changed()).await;
                    if gone.is_some_and(|changed| changed.is_err()) {
                        return;
                    }
                }
            }
        };
        (OrderedMap { name: name.to_owned(), table, found, _stays: stays }, Box::pin(serve))
    }

    /// Whether the table was found.
    pub(super) fn is_reached(&self) -> bool {
        matches!(*self.found.borrow(), Found::Table(_))
    }

    pub(super) fn ask(&self, request: &Request) -> OutcomeFuture {
        let plan = StatementPlan::of(&self.table, request, wall());
        let (name, mut found) = (self.name.clone(), self.found.clone());
        Box::pin(async move {
            let plan = plan?;
            let is_known = |found: &Found| !matches!(found, Found::Nothing);
            let ready = timer::timeout(PATIENCE, async {
                found.wait_for(is_known).await.ok().map(|found| found.clone())
            });
            match ready.await {
                Some(Some(Found::Table(db))) => plan.carry_out(&db).await,
                Some(Some(Found::OtherTable)) => Err(RequestError::NotDone(format!(
                    "the table {name:?} has other columns than the map of this name: rename the table, or \
                     drop the map"
                ))),
                _ => Err(RequestError::NotDone(String::from("the tables of the cluster cannot be reached"))),
            }
        })
    }
}

/// The columns of a map's table.
const OWN: &str = "key text primary key, value text not null, expires timestamptz";

/// Quotes a name for SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns the statements that list the columns of the tables of this name, and their keys.
fn shape_of(name: &str) -> [String; 2] {
    let name = name.replace('\'', "''");
    let of = |what: &str| format!("select {what} where table_schema = 'public' and table_name = '{name}'");
    [
        of(
            "column_name::text as a, data_type::text as b, is_nullable::text as c from information_schema.columns",
        ),
        of("column_name::text as a from information_schema.key_column_usage"),
    ]
}

/// Whether the table has the shape of a map's table.
async fn is_own(db: &Db, [columns, keys]: &[String; 2]) -> Result<bool, Error> {
    let mut present = Vec::new();
    for row in db.query(columns).await? {
        let text = |what| row.get::<String>(what);
        present.push((text("a")?, text("b")?, text("c")?));
    }
    let keys: Result<Vec<String>, Error> = db.query(keys).await?.map(|row| row.get("a")).collect();
    Ok(is_shape(present, &keys?))
}

/// Whether the columns and the key are those of a map's table. A column of the key is never null, whatever
/// its definition says.
fn is_shape(mut columns: Vec<(String, String, String)>, keys: &[String]) -> bool {
    columns.sort();
    let present: Vec<[&str; 3]> = columns
        .iter()
        .map(|(name, ty, nullable)| {
            [&name[..], &ty[..], if keys.contains(name) { "NO" } else { &nullable[..] }]
        })
        .collect();
    let own =
        [["expires", "timestamp with time zone", "YES"], ["key", "text", "NO"], ["value", "text", "NO"]];
    keys == ["key"] && present == own
}

/// Converts a time in nanoseconds since 1970 for SQL.
fn time(nanos: u64) -> Value {
    Value::Timestamptz(
        (i64::try_from(nanos / 1_000).unwrap_or(i64::MAX)).saturating_sub((EPOCH / 1_000) as i64),
    )
}

/// Converts a time of SQL to nanoseconds since 1970. Returns `None` for a time without limit.
fn nanos(value: &Value) -> Option<u64> {
    match value {
        Value::Timestamptz(micros) => {
            let since_1970 = i128::from(*micros) * 1_000 + i128::from(EPOCH);
            Some(u64::try_from(since_1970.max(0)).unwrap_or(u64::MAX))
        }
        _ => None,
    }
}

/// One statement, and the meaning of its outcome.
#[derive(Debug, PartialEq)]
struct StatementPlan {
    text: String,
    params: Vec<Value>,
    shape: AnswerShape,
}

#[derive(Debug, PartialEq)]
enum AnswerShape {
    /// The values of these keys.
    Found(Vec<Bytes>),
    /// The answer has the count 1, whatever number of rows the statement changed.
    Done,
    /// The count is the number of rows that the statement changed.
    Changed,
    /// The count is the number in the value.
    Number,
    /// The count is the length of the value, in bytes.
    Length,
    /// The answer is the value of the row that the statement changed.
    Returned,
}

/// The values of a statement's parameters, in the order `$1`, `$2` and so on.
#[derive(Default)]
struct Params(Vec<Value>);

impl Params {
    /// Adds a parameter with this value, and returns the parameter's name.
    fn put(&mut self, value: Value) -> String {
        self.0.push(value);
        format!("${}", self.0.len())
    }

    fn text(&mut self, bytes: &Bytes) -> Result<String, RequestError> {
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Ok(self.put(Value::text_of(text))),
            _ => Err(unsupported("a key or value of an ordered map that is not UTF-8, or has zero bytes")),
        }
    }

    fn texts(&mut self, all: &[Bytes]) -> Result<String, RequestError> {
        let names: Result<Vec<String>, RequestError> = all.iter().map(|it| self.text(it)).collect();
        Ok(names?.join(", "))
    }

    /// Returns an SQL expression for the end of a life that begins now.
    fn end(&mut self, life: Life, now: u64) -> String {
        match life {
            Life::Unlimited | Life::Kept => String::from("null"),
            Life::For(span) => {
                let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
                self.put(time(now.saturating_add(span)))
            }
            Life::Until(end) => self.put(time(end)),
        }
    }
}

fn unsupported(what: &str) -> RequestError {
    RequestError::Unsupported(what.to_owned())
}

impl StatementPlan {
    /// Returns the statement for a request.
    fn of(table: &str, request: &Request, now: u64) -> Result<StatementPlan, RequestError> {
        let mut params = Params::default();
        // SQL refuses a parameter that the statement does not name.
        let looks_at_clock =
            !matches!(request, Request::Put { when: When::Always, life, .. } if *life != Life::Kept);
        let clock = if looks_at_clock { params.put(time(now)) } else { String::new() };
        let live = format!("(expires is null or expires > {clock})");
        // In an upsert the present row has the table's name.
        let is_live = format!("({table}.expires is null or {table}.expires > {clock})");
        let (text, shape) = match request {
            Request::Read(keys) => {
                let names = params.texts(keys)?;
                let text =
                    format!("select key, value, expires from {table} where key in ({names}) and {live}");
                (text, AnswerShape::Found(keys.clone()))
            }
            Request::Put { return_old: true, .. } => {
                return Err(unsupported("a write that returns the former string, in an ordered map"));
            }
            Request::Put { pairs, life, when, .. } => {
                // If a key occurs twice, its last value counts.
                let last = |index: usize| pairs[index + 1..].iter().all(|(key, _)| *key != pairs[index].0);
                let counts = (0..pairs.len()).filter(|index| last(*index));
                let mut rows = Vec::new();
                for (key, value) in counts.map(|index| &pairs[index]) {
                    let (key, value) = (params.text(key)?, params.text(value)?);
                    rows.push((key, value, params.end(*life, now)));
                }
                let values: Vec<String> = rows
                    .iter()
                    .map(|(key, value, end)| format!("({key}, {value}, {end}::timestamptz)"))
                    .collect();
                let values = values.join(", ");
                let insert = format!("insert into {table} (key, value, expires) values {values}");
                let kept = format!("case when {is_live} then {table}.expires end");
                let expires = if *life == Life::Kept { &kept } else { "excluded.expires" };
                let upsert = format!(
                    "{insert} on conflict (key) do update set value = excluded.value, expires = {expires}"
                );
                match (when, &rows[..]) {
                    (When::Always, _) => (upsert, AnswerShape::Done),
                    (When::Absent, [_]) => (format!("{upsert} where not {is_live}"), AnswerShape::Changed),
                    (When::Present, [(key, value, end)]) => {
                        let expires = if *life == Life::Kept {
                            String::from("expires")
                        } else {
                            format!("{end}::timestamptz")
                        };
                        let text = format!(
                            "update {table} set value = {value}, expires = {expires} where key = {key} and {live}"
                        );
                        (text, AnswerShape::Changed)
                    }
                    _ => return Err(unsupported("a condition on several keys, in an ordered map")),
                }
            }
            Request::Delete { keys, return_old } => {
                let names = params.texts(keys)?;
                let text = format!("delete from {table} where key in ({names}) and {live}");
                if *return_old {
                    (format!("{text} returning value"), AnswerShape::Returned)
                } else {
                    (text, AnswerShape::Changed)
                }
            }
            Request::Live { key, life, only, return_old } => {
                let key = params.text(key)?;
                let end = params.end(*life, now);
                let end = if *life == Life::Kept { "expires" } else { &format!("{end}::timestamptz") };
                let holds = match only {
                    // A life that already has no limit is not changed.
                    Only::Always if *life == Life::Unlimited && !return_old => " and expires is not null",
                    Only::Always => "",
                    Only::Unlimited => " and expires is null",
                    Only::Limited => " and expires is not null",
                    Only::Longer => &format!(" and expires < {end}"),
                    Only::Shorter => &format!(" and (expires is null or expires > {end})"),
                    Only::LimitedShorter => &format!(" and expires > {end}"),
                };
                let text = format!("update {table} set expires = {end} where key = {key} and {live}{holds}");
                if *return_old {
                    (format!("{text} returning value"), AnswerShape::Returned)
                } else {
                    (text, AnswerShape::Changed)
                }
            }
            Request::Add { key, added } => {
                let (key, added) = (params.text(key)?, params.put(Value::Int8(*added)));
                let text = format!(
                    "insert into {table} (key, value) values ({key}, ({added}::bigint)::text) on conflict (key) do update set \
                     value = case when {is_live} then ({table}.value::bigint + {added}::bigint)::text else excluded.value end, \
                     expires = case when {is_live} then {table}.expires end returning value"
                );
                (text, AnswerShape::Number)
            }
            Request::Append { key, tail } => {
                let (key, tail) = (params.text(key)?, params.text(tail)?);
                let text = format!(
                    "insert into {table} (key, value) values ({key}, {tail}) on conflict (key) do update set \
                     value = case when {is_live} then {table}.value || excluded.value else excluded.value end, \
                     expires = case when {is_live} then {table}.expires end returning value"
                );
                (text, AnswerShape::Length)
            }
            Request::PutFields { .. } | Request::DeleteFields { .. } | Request::AddField { .. } => {
                return Err(unsupported("a hash in an ordered map, whose values are strings"));
            }
            Request::Once { .. } => {
                return Err(unsupported(
                    "QUORATE ID in an ordered map, whose primary key tells whether a write took effect",
                ));
            }
            Request::Scan { .. } => {
                return Err(unsupported("SCAN in an ordered map, whose keys SQL can list"));
            }
            Request::Size => {
                (format!("select count(*)::text as value from {table} where {live}"), AnswerShape::Number)
            }
        };
        Ok(StatementPlan { text, params: params.0, shape })
    }

    async fn carry_out(self, db: &Db) -> Result<KeyspaceAnswer, RequestError> {
        let mut name = None;
        let result = timer::timeout(PATIENCE, async {
            loop {
                match self.attempt(db, name).await {
                    // The statement is sent again under the same name, so that it takes effect only once.
                    Err(Error::MaybeApplied { id: Some(Name::Statement(same)), .. }) => name = Some(same),
                    result => return result,
                }
            }
        });
        let result = result.await.unwrap_or_else(|| {
            let why = format!("the outcome of the statement was not known within {} s", PATIENCE.as_secs());
            Err(Error::MaybeApplied { id: None, why })
        });
        result.or_else(concluded)
    }

    async fn attempt(&self, db: &Db, name: Option<RequestName>) -> Result<KeyspaceAnswer, Error> {
        let done = |count| KeyspaceAnswer::Done { count, before: partial::Value::Nothing };
        if let AnswerShape::Done | AnswerShape::Changed = self.shape {
            let mut execute = db.execute(&self.text);
            for param in &self.params {
                execute = execute.bind(param.clone());
            }
            let changed = match name {
                Some(name) => execute.request(name).await?,
                None => execute.await?,
            };
            return Ok(done(if self.shape == AnswerShape::Done { 1 } else { changed as i64 }));
        }
        let mut query = db.query(&self.text);
        for param in &self.params {
            query = query.bind(param.clone());
        }
        let rows: Rows = match name {
            Some(name) => query.request(name).await?,
            None => query.await?,
        };
        if let AnswerShape::Found(keys) = &self.shape {
            return found(keys, rows);
        }
        let value = rows.last().map(|row| row.get::<String>("value")).transpose()?;
        Ok(match (&self.shape, value) {
            (AnswerShape::Number, Some(digits)) => done(digits.parse().unwrap_or_default()),
            (AnswerShape::Length, Some(value)) => done(value.len() as i64),
            (_, Some(value)) => {
                KeyspaceAnswer::Done { count: 1, before: partial::Value::String(Bytes::from(value)) }
            }
            (_, None) => done(0),
        })
    }
}

/// Converts the error of a statement to an answer.
fn concluded(error: Error) -> Result<KeyspaceAnswer, RequestError> {
    let Error::Rejected(rejection) = error else { return Err(RequestError::of(error)) };
    match rejection.sqlstate.as_deref() {
        Some("22P02") => Ok(KeyspaceAnswer::Refused(Refusal::NoNumber)),
        Some("22003") => Ok(KeyspaceAnswer::Refused(Refusal::Overflow)),
        // An earlier attempt with the same name took effect, or may have, and the storage processes no longer
        // know its answer.
        Some("55000" | "40003") => Err(RequestError::MaybeApplied(rejection.to_string())),
        _ => Err(RequestError::NotDone(rejection.to_string())),
    }
}

/// Returns the values of keys, in the order of the request.
fn found(keys: &[Bytes], rows: Rows) -> Result<KeyspaceAnswer, Error> {
    let mut values = std::collections::HashMap::new();
    for row in rows {
        let (key, value): (String, String) = (row.get("key")?, row.get("value")?);
        let expires = nanos(row.get::<&Value>("expires")?);
        values.insert(Bytes::from(key), (partial::Value::String(Bytes::from(value)), expires));
    }
    let of = |key| values.get(key).cloned().unwrap_or((partial::Value::Nothing, None));
    Ok(KeyspaceAnswer::Found(keys.iter().map(of).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(request: &Request) -> Result<StatementPlan, RequestError> {
        StatementPlan::of("\"m\"", request, EPOCH + 7_000)
    }

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn a_command_is_one_statement() {
        let keys = vec![bytes("a"), bytes("b")];
        let read = plan(&Request::Read(keys)).unwrap();
        assert_eq!(
            read.text,
            "select key, value, expires from \"m\" where key in ($2, $3) and (expires is null or expires > $1)"
        );
        assert_eq!(read.params, [Value::Timestamptz(7), Value::text_of("a"), Value::text_of("b")]);
        let pairs =
            [("a", "1"), ("b", "2"), ("a", "3")].map(|(key, value)| (bytes(key), bytes(value))).into();
        let put = Request::Put { pairs, life: Life::Unlimited, when: When::Always, return_old: false };
        let put = plan(&put).unwrap();
        assert!(
            put.text.contains("values ($1, $2, null::timestamptz), ($3, $4, null::timestamptz) on"),
            "{put:?}"
        );
        assert_eq!(put.params, ["b", "2", "a", "3"].map(Value::text_of));
    }

    #[test]
    fn requests_that_a_table_cannot_serve_are_refused() {
        let pairs = |count: usize| vec![(bytes("a"), bytes("1")); count];
        for request in [
            Request::Put { pairs: pairs(1), life: Life::Unlimited, when: When::Always, return_old: true },
            Request::Put {
                pairs: vec![(bytes("a"), bytes("1")), (bytes("b"), bytes("1"))],
                life: Life::Unlimited,
                when: When::Absent,
                return_old: false,
            },
            Request::Read(vec![Bytes::from_static(b"\xff")]),
            Request::Read(vec![Bytes::from_static(b"a\0")]),
            Request::Scan { behind: None, limit: 1 },
            Request::DeleteFields { key: bytes("a"), names: vec![bytes("f")] },
        ] {
            assert!(matches!(plan(&request), Err(RequestError::Unsupported(_))), "{request:?}");
        }
    }

    /// A user made a table for something else, with a column of the same name. The map does not take that
    /// table for its own.
    #[test]
    fn a_table_of_another_shape_is_not_the_maps() {
        let own =
            [("key", "text", "NO"), ("value", "text", "NO"), ("expires", "timestamp with time zone", "YES")];
        let columns = |columns: &[(&str, &str, &str)]| -> Vec<_> {
            let owned = |it: &(&str, &str, &str)| (it.0.to_owned(), it.1.to_owned(), it.2.to_owned());
            columns.iter().map(owned).collect()
        };
        let key = [String::from("key")];
        assert!(is_shape(columns(&own), &key));
        for column in 0..3 {
            let mut other = own;
            other[column].1 = "integer";
            assert!(!is_shape(columns(&other), &key), "{other:?}");
            let mut other = own;
            other[column].2 = if other[column].2 == "NO" { "YES" } else { "NO" };
            assert_eq!(is_shape(columns(&other), &key), own[column].0 == "key", "{other:?}");
            let fewer: Vec<_> = own.into_iter().filter(|it| *it != own[column]).collect();
            assert!(!is_shape(columns(&fewer), &key), "{fewer:?}");
        }
        let more: Vec<_> = own.into_iter().chain([("who", "text", "YES")]).collect();
        assert!(!is_shape(columns(&more), &key));
        for keys in [&[][..], &["value"], &["key", "value"]] {
            let keys: Vec<String> = keys.iter().map(|it| String::from(*it)).collect();
            assert!(!is_shape(columns(&own), &keys), "{keys:?}");
        }
        assert!(!is_shape(Vec::new(), &[]));
        assert!(shape_of("o'map")[0].ends_with("table_name = 'o''map'"));
    }

    /// The cluster's own catalogue answers the statements, whatever the table is called.
    #[test]
    fn the_catalogue_shows_the_columns_of_a_table() {
        use crate::Wait as _;
        let cluster = crate::Local::start().wait().unwrap();
        let db = crate::connect(cluster.addresses()).wait().unwrap();
        let long = "m".repeat(200);
        for (name, columns, wanted) in [
            ("m", OWN, true),
            ("o'Map \"it\"", OWN, true),
            (&long, OWN, true),
            ("u1", "id int primary key, expires timestamptz", false),
            ("u2", "key text primary key, value text not null, expires timestamptz, who text", false),
            ("u3", "key text primary key, value text, expires timestamptz", false),
            ("u4", "key text, value text, expires timestamptz, primary key (key, value)", false),
            ("u5", "key text primary key, value text not null, expires timestamp", false),
        ] {
            let table = quoted(name);
            db.execute(&format!("create table {table} ({columns})")).wait().unwrap();
            assert_eq!(is_own(&db, &shape_of(name)).wait().unwrap(), wanted, "{name}: {columns}");
        }
    }

    /// A write was repeated under its name, and the storage processes no longer know the answer. The write is
    /// reported as maybe applied.
    #[test]
    fn a_write_that_was_applied_is_not_said_to_have_come_to_nothing() {
        let rejected = |sqlstate: &str| {
            let (message, sqlstate) = (String::from("said"), Some(sqlstate.to_owned()));
            concluded(Error::Rejected(Box::new(crate::Rejection {
                sqlstate,
                message,
                detail: None,
                hint: None,
            })))
        };
        assert!(matches!(rejected("55000"), Err(RequestError::MaybeApplied(_))));
        assert!(matches!(rejected("40003"), Err(RequestError::MaybeApplied(_))));
        assert!(matches!(rejected("42703"), Err(RequestError::NotDone(_))));
        assert_eq!(rejected("22003"), Ok(KeyspaceAnswer::Refused(Refusal::Overflow)));
    }

    #[test]
    fn times_survive_conversion_both_ways() {
        for at in [EPOCH, EPOCH + 1_000, 1_795_000_000_123_456_000] {
            assert_eq!(nanos(&time(at)), Some(at));
        }
        assert_eq!(nanos(&Value::Null), None);
    }
}
