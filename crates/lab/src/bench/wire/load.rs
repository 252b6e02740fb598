//! The load: connections to one server, each of which sends its next question as soon as it has the rows of
//! the last question.
//!
//! All connections share one thread, so that the load uses as little as possible of the processors on which
//! it measures. The load prints `measuring` when its warm-up ends, and then its results as one line of JSON.

use std::{
    cell::RefCell,
    io::Write,
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, BytesMut};
use futures_util::TryStreamExt;
use hdrhistogram::Histogram;
use quorate_table::value::Value;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use tokio::task::LocalSet;
use tokio_postgres::{
    Client, Statement,
    types::{IsNull, ToSql, Type, to_sql_checked},
};

use super::queries::{self, Question};
use crate::sql;

/// The task of the load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadSpec {
    pub(super) address: String,
    /// The statement with which each connection begins.
    pub(super) begin: Option<String>,
    pub(super) clients: usize,
    pub(super) warm_up: f64,
    pub(super) seconds: f64,
    pub(super) questions: PathBuf,
    pub(super) seed: u64,
    /// Seconds between two draws of questions; `None` asks all questions evenly.
    pub(super) redraw: Option<f64>,
}

/// The results of the measurement.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadRun {
    pub(super) executions: u64,
    pub(super) rows: u64,
    pub(super) seconds: f64,
    /// Number of answers with a wrong number of rows.
    pub(super) wrong: u64,
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// Number of executions, and median latency in milliseconds, of each template.
    pub(super) templates: Vec<(u64, f64)>,
    /// The results of every half second.
    pub(super) slots: Vec<LoadSlot>,
}

/// The results of half a second.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadSlot {
    /// The start of the slot, in seconds since the start of the first slot.
    pub(super) at: f64,
    /// The number of the draw.
    pub(super) draw: u64,
    pub(super) executions: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

const SLOT: Duration = Duration::from_millis(500);
/// Number of questions in a draw.
const DRAWN: usize = 256;

/// Loads a server; `quorate bench wire` starts it.
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// The task, as JSON.
    spec: String,
}

pub(crate) fn run_load(args: &LoadArgs) -> Result<()> {
    let spec: LoadSpec = serde_json::from_str(&args.spec)?;
    let questions = queries::read_questions(&spec.questions)?;
    ensure!(!questions.is_empty(), "the file of questions is empty");
    let run = LocalSet::new().block_on(&sql::runtime()?, load(spec, questions))?;
    say(&serde_json::to_string(&run)?)
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

async fn load(spec: LoadSpec, questions: Vec<Question>) -> Result<LoadRun> {
    let mut connections = Vec::with_capacity(spec.clients);
    for _ in 0..spec.clients {
        connections.push(connect(&spec).await?);
    }
    let shared = Rc::new(RefCell::new(LoadShared::new(&spec, questions)));
    let clients: Vec<_> = connections
        .into_iter()
        .map(|(client, statements)| tokio::task::spawn_local(ask(client, statements, shared.clone())))
        .collect();
    tokio::time::sleep(Duration::from_secs_f64(spec.warm_up)).await;
    shared.borrow_mut().measure();
    say("measuring")?;
    let mut left = Duration::from_secs_f64(spec.seconds);
    let redraw = spec.redraw.map_or(left, Duration::from_secs_f64);
    while !left.is_zero() {
        let pause = left.min(redraw);
        tokio::time::sleep(pause).await;
        left -= pause;
        if spec.redraw.is_some() {
            shared.borrow_mut().draw();
        }
    }
    let run = shared.borrow_mut().end();
    for client in clients {
        client.await?;
    }
    Ok(run)
}

async fn connect(spec: &LoadSpec) -> Result<(Client, Vec<Statement>)> {
    let client = sql::connect(&spec.address).await?;
    if let Some(begin) = &spec.begin {
        client.batch_execute(begin).await.with_context(|| begin.clone())?;
    }
    let mut statements = Vec::new();
    for statement in queries::statements() {
        statements.push(client.prepare(&statement).await.with_context(|| statement.clone())?);
    }
    Ok((client, statements))
}

/// The shared state of the clients.
struct LoadShared {
    questions: Vec<Rc<Question>>,
    /// The indexes of the questions of each template.
    by_template: Vec<Vec<usize>>,
    random: Pcg64,
    /// The indexes of the questions that are asked at present.
    drawn: Vec<usize>,
    draw: u64,
    redraws: bool,
    over: bool,
    since: Option<Instant>,
    all: Histogram<u64>,
    templates: Vec<Histogram<u64>>,
    slot: Histogram<u64>,
    slots: Vec<LoadSlot>,
    rows: u64,
    wrong: u64,
    failed: u64,
    failure: Option<String>,
}

impl LoadShared {
    fn new(spec: &LoadSpec, questions: Vec<Question>) -> LoadShared {
        let histogram =
            || Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds of the histogram are valid");
        let mut by_template = vec![Vec::new(); 8];
        for (number, question) in questions.iter().enumerate() {
            by_template[question.template].push(number);
        }
        let mut shared = LoadShared {
            by_template,
            drawn: (0..questions.len()).collect(),
            questions: questions.into_iter().map(Rc::new).collect(),
            random: Pcg64::seed_from_u64(spec.seed),
            draw: 0,
            redraws: spec.redraw.is_some(),
            over: false,
            since: None,
            all: histogram(),
            templates: (0..8).map(|_| histogram()).collect(),
            slot: histogram(),
            slots: Vec::new(),
            rows: 0,
            wrong: 0,
            failed: 0,
            failure: None,
        };
        if shared.redraws {
            shared.draw();
        }
        shared
    }

    /// Draws a new random mixture of templates, and new constants.
    fn draw(&mut self) {
        let mut sum = 0.0;
        let weighted = self.by_template.iter().filter(|questions| !questions.is_empty()).map(|questions| {
            sum -= self.random.random::<f64>().max(1e-9).ln();
            (sum, questions)
        });
        let sums: Vec<(f64, &Vec<usize>)> = weighted.collect();
        self.drawn.clear();
        for _ in 0..DRAWN {
            let point = self.random.random::<f64>() * sum;
            let template = sums.partition_point(|(sum, _)| *sum < point).min(sums.len() - 1);
            let questions = sums[template].1;
            self.drawn.push(questions[self.random.random_range(0..questions.len())]);
        }
        self.draw += 1;
    }

    fn next(&mut self) -> Option<Rc<Question>> {
        let number = self.drawn[self.random.random_range(0..self.drawn.len())];
        (!self.over).then(|| self.questions[number].clone())
    }

    fn measure(&mut self) {
        self.since = Some(Instant::now());
    }

    fn answered(&mut self, question: &Question, began: Instant, rows: u64) {
        let Some(since) = self.since.filter(|_| !self.over) else { return };
        let now = Instant::now();
        while now - since >= SLOT * (self.slots.len() as u32 + 1) {
            self.close_slot();
        }
        let micros = (now - began).as_micros() as u64;
        self.all.saturating_record(micros);
        self.templates[question.template].saturating_record(micros);
        self.slot.saturating_record(micros);
        self.rows += rows;
        self.wrong += u64::from(rows != question.rows);
    }

    fn close_slot(&mut self) {
        self.slots.push(LoadSlot {
            at: (SLOT * self.slots.len() as u32).as_secs_f64(),
            draw: self.draw,
            executions: self.slot.len(),
            p50_ms: milliseconds(self.slot.value_at_quantile(0.5)),
            p99_ms: milliseconds(self.slot.value_at_quantile(0.99)),
        });
        self.slot.reset();
    }

    fn end(&mut self) -> LoadRun {
        self.over = true;
        LoadRun {
            executions: self.all.len(),
            rows: self.rows,
            seconds: self.since.map_or(0.0, |since| since.elapsed().as_secs_f64()),
            wrong: self.wrong,
            failed: self.failed,
            failure: self.failure.take(),
            p50_ms: milliseconds(self.all.value_at_quantile(0.5)),
            p99_ms: milliseconds(self.all.value_at_quantile(0.99)),
            max_ms: milliseconds(self.all.max()),
            templates: self
                .templates
                .iter()
                .map(|one| (one.len(), milliseconds(one.value_at_quantile(0.5))))
                .collect(),
            slots: std::mem::take(&mut self.slots),
        }
    }
}

fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

/// Runs one client.
async fn ask(client: Client, statements: Vec<Statement>, shared: Rc<RefCell<LoadShared>>) {
    loop {
        let Some(question) = shared.borrow_mut().next() else { return };
        let began = Instant::now();
        match count(&client, &statements[question.template], &question.parameters).await {
            Ok(rows) => shared.borrow_mut().answered(&question, began, rows),
            Err(error) => {
                let mut shared = shared.borrow_mut();
                shared.failed += 1;
                shared.failure.get_or_insert_with(|| format!("{error:?}"));
                if client.is_closed() {
                    return;
                }
            }
        }
    }
}

async fn count(
    client: &Client,
    statement: &Statement,
    parameters: &[Value],
) -> Result<u64, tokio_postgres::Error> {
    let rows = client.query_raw(statement, parameters.iter().map(Parameter)).await?;
    let mut rows = std::pin::pin!(rows);
    let mut count = 0;
    while rows.try_next().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// A value that is sent to a server in binary.
#[derive(Debug)]
struct Parameter<'a>(&'a Value);

impl ToSql for Parameter<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self.0 {
            Value::Text(text) => out.put_slice(text.as_bytes()),
            Value::Int4(number) | Value::Date(number) => out.put_i32(*number),
            Value::Int8(number) => out.put_i64(*number),
            other => {
                return Err(format!(
                    "the parameter of a query has a type that no template of the bench has: {other:?}"
                )
                .into());
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
