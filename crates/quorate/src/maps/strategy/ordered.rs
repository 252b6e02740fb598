//! A map as a table of a cluster of tables: the map's name is the table's, and each command is one statement.
//!
//! **Promise.** All commands take effect in the total order of the cluster: they are linearizable, reads too, and one command on several keys
//! is one cut. A write is executed once, however often it has to be sent.
//!
//! **Source.** 002 §6, whose prototype lays the order over Memcached: a replicated table of keys and values, partitioned by the key.
//!
//! **The table.** `key text primary key, value text not null, expires timestamptz`. It is made if there is none of the map's name, and stays
//! when the map is dropped: SQL reads it, and drops it.
//!
//! **What it cannot do.** Values are text. Hashes, `SCAN`, and what tells the string that it replaces are refused by name. A statement's clock is
//! that of the cell that was asked.

use std::{future::Future, pin::Pin, time::Duration};

use bytes::Bytes;
use quorate_protocol::partial;
use quorate_table::value::Value;
use tokio::sync::watch;
use tracing::warn;

use super::{
    Asked, Undone,
    keyspace::{Answer, Life, Only, Refusal, Request, When},
    wall,
};
use crate::{
    db::{Db, Rows},
    error::{Error, Name, RequestName},
    node::Node,
    timer,
};

/// This cell's part in a map that a table keeps.
pub(super) struct OrderedMap {
    table: String,
    db: watch::Receiver<Option<Db>>,
    /// Looks after the table while this is there.
    _stays: watch::Sender<()>,
}

/// A pause before the cluster is looked for again.
const PAUSE: Duration = Duration::from_secs(1);

/// Rows whose life is over are removed so often.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// A command waits so long for the cluster, and so long for the fate of a write.
const PATIENCE: Duration = Duration::from_secs(5);

/// 2000-01-01, in nanoseconds since 1970: from there SQL counts, in microseconds.
const EPOCH: u64 = 946_684_800_000_000_000;

impl OrderedMap {
    /// Begins to look for the cluster and the table, on the future that is returned. It ends once the map is gone.
    pub(super) fn begin(node: Node, name: &str) -> (OrderedMap, Pin<Box<dyn Future<Output = ()> + Send>>) {
        let table = format!("\"{}\"", name.replace('"', "\"\""));
        let (told, db) = watch::channel(None);
        let (stays, mut stay) = watch::channel(());
        let serve = {
            let table = table.clone();
            async move {
                let make = format!(
                    "create table if not exists {table} (key text primary key, value text not null, expires timestamptz)"
                );
                let found = loop {
                    // An error says that the map is gone.
                    if stay.has_changed().is_err() {
                        return;
                    }
                    let found = async {
                        let db = node.db().await?;
                        db.execute(&make).await?;
                        Ok::<_, Error>(db)
                    };
                    match found.await {
                        Ok(db) => break db,
                        Err(error) => warn!(%error, table, "the map's table is not in reach yet"),
                    }
                    timer::sleep(PAUSE).await;
                };
                told.send_replace(Some(found.clone()));
                let sweep = format!("delete from {table} where expires <= $1");
                while timer::timeout(SWEEP_EVERY, stay.changed()).await.is_none_or(|changed| changed.is_ok())
                {
                    if let Err(error) = found.execute(&sweep).bind(time(wall())).await {
                        warn!(%error, table, "rows whose life is over stay for now");
                    }
                }
            }
        };
        (OrderedMap { table, db, _stays: stays }, Box::pin(serve))
    }

    /// True once the table was found.
    pub(super) fn is_reached(&self) -> bool {
        self.db.borrow().is_some()
    }

    pub(super) fn ask(&self, request: &Request) -> Asked {
        let plan = Plan::of(&self.table, request, wall());
        let mut db = self.db.clone();
        Box::pin(async move {
            let plan = plan?;
            let ready = timer::timeout(PATIENCE, async {
                db.wait_for(Option::is_some).await.ok().and_then(|db| db.clone())
            });
            let Some(Some(db)) = ready.await else {
                return Err(Undone::NotDone(String::from("the cluster of tables is not in reach")));
            };
            plan.carry_out(&db).await
        })
    }
}

/// A time, as SQL has it.
fn time(nanos: u64) -> Value {
    Value::Timestamptz(
        (i64::try_from(nanos / 1_000).unwrap_or(i64::MAX)).saturating_sub((EPOCH / 1_000) as i64),
    )
}

/// The same back, in nanoseconds since 1970; none: it has no limit.
fn nanos(value: &Value) -> Option<u64> {
    match value {
        Value::Timestamptz(micros) => {
            let since_1970 = i128::from(*micros) * 1_000 + i128::from(EPOCH);
            Some(u64::try_from(since_1970.max(0)).unwrap_or(u64::MAX))
        }
        _ => None,
    }
}

/// One statement, and what its outcome means.
#[derive(Debug, PartialEq)]
struct Plan {
    text: String,
    params: Vec<Value>,
    shape: Shape,
}

#[derive(Debug, PartialEq)]
enum Shape {
    /// The values under these keys.
    Found(Vec<Bytes>),
    /// It is done, whatever it changed.
    Done,
    /// Counts the rows that it changed.
    Changed,
    /// Counts what the value says.
    Number,
    /// Counts the value's bytes.
    Length,
    /// Tells the value of the row that it changed.
    Told,
}

/// Parameters in the order in which a statement names them.
#[derive(Default)]
struct Params(Vec<Value>);

impl Params {
    /// The name of a parameter of this value.
    fn put(&mut self, value: Value) -> String {
        self.0.push(value);
        format!("${}", self.0.len())
    }

    fn text(&mut self, bytes: &Bytes) -> Result<String, Undone> {
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Ok(self.put(Value::text_of(text))),
            _ => Err(unsupported(
                "bytes that are no text: keys and values of an ordered map are UTF-8 without zero bytes",
            )),
        }
    }

    fn texts(&mut self, all: &[Bytes]) -> Result<String, Undone> {
        let names: Result<Vec<String>, Undone> = all.iter().map(|it| self.text(it)).collect();
        Ok(names?.join(", "))
    }

    /// The end of a life that begins now.
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

fn unsupported(what: &str) -> Undone {
    Undone::Unsupported(what.to_owned())
}

impl Plan {
    /// The statement for a request.
    fn of(table: &str, request: &Request, now: u64) -> Result<Plan, Undone> {
        let mut params = Params::default();
        // A parameter that a statement does not name is refused.
        let looks_at_clock =
            !matches!(request, Request::Put { when: When::Always, life, .. } if *life != Life::Kept);
        let clock = if looks_at_clock { params.put(time(now)) } else { String::new() };
        let live = format!("(expires is null or expires > {clock})");
        // In an upsert the row that is there has the table's name.
        let is_live = format!("({table}.expires is null or {table}.expires > {clock})");
        let (text, shape) = match request {
            Request::Read(keys) => {
                let names = params.texts(keys)?;
                let text =
                    format!("select key, value, expires from {table} where key in ({names}) and {live}");
                (text, Shape::Found(keys.clone()))
            }
            Request::Put { tell: true, .. } => {
                return Err(unsupported("a write that tells the string before it, in an ordered map"));
            }
            Request::Put { pairs, life, when, .. } => {
                // Of a key that is there twice the last one counts.
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
                    (When::Always, _) => (upsert, Shape::Done),
                    (When::Absent, [_]) => (format!("{upsert} where not {is_live}"), Shape::Changed),
                    (When::Present, [(key, value, end)]) => {
                        let expires = if *life == Life::Kept {
                            String::from("expires")
                        } else {
                            format!("{end}::timestamptz")
                        };
                        let text = format!(
                            "update {table} set value = {value}, expires = {expires} where key = {key} and {live}"
                        );
                        (text, Shape::Changed)
                    }
                    _ => return Err(unsupported("a condition on several keys, in an ordered map")),
                }
            }
            Request::Delete { keys, tell } => {
                let names = params.texts(keys)?;
                let text = format!("delete from {table} where key in ({names}) and {live}");
                if *tell { (format!("{text} returning value"), Shape::Told) } else { (text, Shape::Changed) }
            }
            Request::Live { key, life, only, tell } => {
                let key = params.text(key)?;
                let end = params.end(*life, now);
                let end = if *life == Life::Kept { "expires" } else { &format!("{end}::timestamptz") };
                let holds = match only {
                    // A life without limit is given none.
                    Only::Always if *life == Life::Unlimited && !tell => " and expires is not null",
                    Only::Always => "",
                    Only::Unlimited => " and expires is null",
                    Only::Limited => " and expires is not null",
                    Only::Longer => &format!(" and expires < {end}"),
                    Only::Shorter => &format!(" and (expires is null or expires > {end})"),
                };
                let text = format!("update {table} set expires = {end} where key = {key} and {live}{holds}");
                if *tell { (format!("{text} returning value"), Shape::Told) } else { (text, Shape::Changed) }
            }
            Request::Add { key, added } => {
                let (key, added) = (params.text(key)?, params.put(Value::Int8(*added)));
                let text = format!(
                    "insert into {table} (key, value) values ({key}, ({added}::bigint)::text) on conflict (key) do update set \
                     value = case when {is_live} then ({table}.value::bigint + {added}::bigint)::text else excluded.value end, \
                     expires = case when {is_live} then {table}.expires end returning value"
                );
                (text, Shape::Number)
            }
            Request::Append { key, tail } => {
                let (key, tail) = (params.text(key)?, params.text(tail)?);
                let text = format!(
                    "insert into {table} (key, value) values ({key}, {tail}) on conflict (key) do update set \
                     value = case when {is_live} then {table}.value || excluded.value else excluded.value end, \
                     expires = case when {is_live} then {table}.expires end returning value"
                );
                (text, Shape::Length)
            }
            Request::PutFields { .. } | Request::DeleteFields { .. } | Request::AddField { .. } => {
                return Err(unsupported("a hash, in an ordered map: its values are strings"));
            }
            Request::Scan { .. } => {
                return Err(unsupported("SCAN, in an ordered map: SQL tells the keys of its table"));
            }
            Request::Size => {
                (format!("select count(*)::text as value from {table} where {live}"), Shape::Number)
            }
        };
        Ok(Plan { text, params: params.0, shape })
    }

    async fn carry_out(self, db: &Db) -> Result<Answer, Undone> {
        let mut name = None;
        let told = timer::timeout(PATIENCE, async {
            loop {
                match self.attempt(db, name).await {
                    // Under its name it takes effect once in all.
                    Err(Error::MaybeApplied { id: Some(Name::Statement(same)), .. }) => name = Some(same),
                    told => return told,
                }
            }
        });
        let told = told.await.unwrap_or_else(|| {
            let why = format!("its fate was not known within {} s", PATIENCE.as_secs());
            Err(Error::MaybeApplied { id: None, why })
        });
        match told {
            Err(Error::Rejected(rejection)) => match rejection.sqlstate.as_deref() {
                Some("22P02") => Ok(Answer::Refused(Refusal::NoNumber)),
                Some("22003") => Ok(Answer::Refused(Refusal::Overflow)),
                _ => Err(Undone::NotDone(rejection.to_string())),
            },
            told => told.map_err(Undone::of),
        }
    }

    async fn attempt(&self, db: &Db, name: Option<RequestName>) -> Result<Answer, Error> {
        let done = |count| Answer::Done { count, before: partial::Value::Nothing };
        if let Shape::Done | Shape::Changed = self.shape {
            let mut execute = db.execute(&self.text);
            for param in &self.params {
                execute = execute.bind(param.clone());
            }
            let changed = match name {
                Some(name) => execute.request(name).await?,
                None => execute.await?,
            };
            return Ok(done(if self.shape == Shape::Done { 1 } else { changed as i64 }));
        }
        let mut query = db.query(&self.text);
        for param in &self.params {
            query = query.bind(param.clone());
        }
        let rows: Rows = match name {
            Some(name) => query.request(name).await?,
            None => query.await?,
        };
        if let Shape::Found(keys) = &self.shape {
            return found(keys, rows);
        }
        let value = rows.last().map(|row| row.get::<String>("value")).transpose()?;
        Ok(match (&self.shape, value) {
            (Shape::Number, Some(digits)) => done(digits.parse().unwrap_or_default()),
            (Shape::Length, Some(value)) => done(value.len() as i64),
            (_, Some(value)) => Answer::Done { count: 1, before: partial::Value::String(Bytes::from(value)) },
            (_, None) => done(0),
        })
    }
}

/// The values under keys, in the order in which they were asked for.
fn found(keys: &[Bytes], rows: Rows) -> Result<Answer, Error> {
    let mut values = std::collections::HashMap::new();
    for row in rows {
        let (key, value): (String, String) = (row.get("key")?, row.get("value")?);
        let expires = nanos(row.get::<&Value>("expires")?);
        values.insert(Bytes::from(key), (partial::Value::String(Bytes::from(value)), expires));
    }
    let of = |key| values.get(key).cloned().unwrap_or((partial::Value::Nothing, None));
    Ok(Answer::Found(keys.iter().map(of).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(request: &Request) -> Result<Plan, Undone> {
        Plan::of("\"m\"", request, EPOCH + 7_000)
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
        let put = Request::Put { pairs, life: Life::Unlimited, when: When::Always, tell: false };
        let put = plan(&put).unwrap();
        assert!(
            put.text.contains("values ($1, $2, null::timestamptz), ($3, $4, null::timestamptz) on"),
            "{put:?}"
        );
        assert_eq!(put.params, ["b", "2", "a", "3"].map(Value::text_of));
    }

    #[test]
    fn what_a_table_cannot_do_is_refused() {
        let pairs = |count: usize| vec![(bytes("a"), bytes("1")); count];
        for request in [
            Request::Put { pairs: pairs(1), life: Life::Unlimited, when: When::Always, tell: true },
            Request::Put {
                pairs: vec![(bytes("a"), bytes("1")), (bytes("b"), bytes("1"))],
                life: Life::Unlimited,
                when: When::Absent,
                tell: false,
            },
            Request::Read(vec![Bytes::from_static(b"\xff")]),
            Request::Read(vec![Bytes::from_static(b"a\0")]),
            Request::Scan { behind: None, limit: 1 },
            Request::DeleteFields { key: bytes("a"), names: vec![bytes("f")] },
        ] {
            assert!(matches!(plan(&request), Err(Undone::Unsupported(_))), "{request:?}");
        }
    }

    #[test]
    fn times_go_there_and_back() {
        for at in [EPOCH, EPOCH + 1_000, 1_795_000_000_123_456_000] {
            assert_eq!(nanos(&time(at)), Some(at));
        }
        assert_eq!(nanos(&Value::Null), None);
    }
}
