//! One process of the bench: a host of replicas, or a client.

use std::{
    future::poll_fn,
    io::{BufRead, Write},
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures_util::stream::{FuturesUnordered, Stream};
use hdrhistogram::Histogram;
use quorate::{
    Node, Wait,
    service::{Begin, Stub, ready::KeyValue},
};
use serde::{Deserialize, Serialize};

use super::{
    http,
    services::{Accounts, Ask, Echo, Measured, Store},
};

/// The part of a process of the bench.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Spec {
    /// Hosts a replica of each service.
    Host {
        domain: String,
        /// How many replicas there should be.
        replicas: u8,
        /// One write is executed when the one before is chosen (003 §VI.A.2).
        one_at_a_time: bool,
        /// Other hosts; the first has none, and founds.
        seeds: Vec<String>,
        /// With a disk.
        directory: Option<PathBuf>,
        /// With an HTTP door, and a service for it.
        http: bool,
    },
    Client(ClientSpec),
}

/// Calls of a client.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct ClientSpec {
    pub(super) domain: String,
    /// Where they listen, or their doors.
    pub(super) hosts: Vec<String>,
    pub(super) work: Work,
    /// The client's first number.
    pub(super) first: u64,
    pub(super) bytes: usize,
    pub(super) in_flight: usize,
    /// Calls made and told together.
    pub(super) together: usize,
    pub(super) seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Work {
    EchoWrites,
    /// The same until the bench says that it is enough: as many as they can, or after a second half as many.
    EchoWritesOn {
        at_half: bool,
    },
    /// Writes over HTTP.
    HttpWrites,
    StoreWrites,
    StoreReads,
    Transactions(Transact),
}

/// Transactions of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Transact {
    pub(super) requests: usize,
    /// How many of them write, unless all do.
    pub(super) writes: usize,
    pub(super) mode: Mode,
}

/// How transactions are coordinated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Mode {
    /// The commit alone is agreed on.
    Optimised,
    /// Each request for itself, and the commit as one more write.
    ReadWrite,
    /// The same, and all requests are writes.
    WriteOnly,
}

impl Transact {
    /// The requests of transaction `number`; outside of T-Paxos the commit is the last of them.
    fn asks(self, number: u64, bytes: usize) -> Vec<Ask> {
        let Transact { requests, writes, mode } = self;
        let total = requests + usize::from(mode != Mode::Optimised);
        let reads = if mode == Mode::WriteOnly { 0 } else { requests - writes };
        // Each transaction has keys of its own.
        let key = |place: usize| number.wrapping_mul(8).wrapping_add(place as u64);
        let ask = |place| match place < reads {
            true => Accounts::look(key(place)),
            false => Accounts::write(key(place), bytes),
        };
        (0..total).map(ask).collect()
    }

    /// Changes that a transaction comes to.
    pub(super) fn changes(self) -> u64 {
        let Transact { requests, writes, mode } = self;
        (match mode {
            Mode::Optimised => writes,
            Mode::ReadWrite => writes + 1,
            Mode::WriteOnly => requests + 1,
        }) as u64
    }
}

/// A client's figures, at its end.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Calls {
    /// Answered in the measured time.
    pub(super) measured: u64,
    pub(super) seconds: f64,
    /// From calling to the answer, of calls that are made together: of the last.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Answered in all.
    pub(super) answered: u64,
}

/// A host's word of itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Standing {
    /// Why a replica of this process ended last, if one did.
    pub(super) ended: Option<String>,
    pub(super) serving: bool,
    /// Whether it leads the echo.
    pub(super) leads: bool,
    pub(super) replicas: usize,
    /// Count and print of the changes of each service.
    pub(super) applied: [(u64, u64); 3],
}

pub(super) const WARM_UP: Duration = Duration::from_secs(1);

pub(super) fn run(spec: Spec) -> Result<()> {
    match spec {
        Spec::Host { domain, replicas, one_at_a_time, seeds, directory, http } => {
            host(domain, (replicas, one_at_a_time), seeds, (directory, http))
        }
        Spec::Client(spec) => match spec.work {
            Work::EchoWrites => client::<Echo>(&spec, Load::call),
            Work::EchoWritesOn { at_half } => endless(&spec, at_half),
            Work::HttpWrites => http::client(&spec),
            Work::StoreWrites | Work::StoreReads => client::<Store>(&spec, Load::call),
            Work::Transactions(transact) => client::<Accounts>(&spec, move |load| load.transact(transact)),
        },
    }
}

pub(super) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The next word of the bench; none once it has ended.
pub(super) fn hear() -> Result<Option<String>> {
    let mut word = String::new();
    let read = std::io::stdin().lock().read_line(&mut word)?;
    Ok((read > 0).then(|| word.trim().to_owned()))
}

fn host(
    domain: String,
    (replicas, one_at_a_time): (u8, bool),
    seeds: Vec<String>,
    (directory, http): (Option<PathBuf>, bool),
) -> Result<()> {
    let begin = if seeds.is_empty() { Begin::Found { replicas } } else { Begin::Join };
    let builder = Node::builder().services(domain).seeds(seeds);
    let builder = if one_at_a_time { builder.one_at_a_time() } else { builder };
    let builder = match directory {
        Some(directory) => builder.directory(directory).durable(),
        None => builder,
    };
    let builder = if http { builder.http("127.0.0.1:0") } else { builder };
    let host = builder.start().wait()?;
    host.serve(Echo::NAME, Echo::default(), begin).wait()?;
    host.serve(Store::NAME, Store::default(), begin).wait()?;
    host.serve(Accounts::NAME, Accounts::default(), begin).wait()?;
    if http {
        host.serve(http::NAME, KeyValue::default(), begin).wait()?;
    }
    say(&host.address().to_string())?;
    if let Some(door) = host.http_address() {
        say(&door.to_string())?;
    }
    while let Some(word) = hear()? {
        ensure!(word == "stand", "no such word: {word}");
        let of = |name| host.standing(name).context("it serves both");
        let all = [of(Echo::NAME)?, of(Store::NAME)?, of(Accounts::NAME)?];
        let standing = Standing {
            ended: all.iter().find_map(|one| one.last_end.clone()),
            serving: all.iter().all(|one| one.serving),
            leads: all[0].serving,
            replicas: all.iter().map(|one| one.replicas.len()).min().unwrap_or(0),
            applied: [Echo::shown().now(), Store::shown().now(), Accounts::shown().now()],
        };
        say(&serde_json::to_string(&standing)?)?;
    }
    Ok(())
}

fn client<S: Measured>(
    spec: &ClientSpec,
    call: impl Fn(&mut Load<S>) -> Pin<Box<dyn Future<Output = Ended>>>,
) -> Result<()> {
    let node = Node::builder().services(&spec.domain).seeds(&spec.hosts).start().wait()?;
    let mut load = Load::<S> {
        stub: node.service(S::NAME)?,
        spec: spec.clone(),
        number: spec.first,
        answered: 0,
        measured: 0,
        spans: Histogram::new(3)?,
    };
    // The service is found, and a session is open.
    load.answered += call(&mut load).wait()?.0;
    say("ready")?;
    ensure!(hear()?.as_deref() == Some("go"), "the bench has ended");
    load.measure_until(Instant::now() + WARM_UP, &call)?;
    (load.measured, load.spans) = (0, Histogram::new(3)?);
    let begun = Instant::now();
    load.measure_until(begun + Duration::from_secs_f64(spec.seconds), &call)?;
    let microseconds = |quantile| load.spans.value_at_quantile(quantile) as f64 / 1e3;
    let calls = Calls {
        measured: load.measured,
        seconds: spec.seconds,
        p50_us: microseconds(0.5),
        p99_us: microseconds(0.99),
        answered: load.answered,
    };
    say(&serde_json::to_string(&calls)?)
}

/// A client that writes until it is told to end, and is asked meanwhile for the longest time without an answer.
fn endless(spec: &ClientSpec, at_half: bool) -> Result<()> {
    let node = Node::builder().services(&spec.domain).seeds(&spec.hosts).start().wait()?;
    let stub = node.service(Echo::NAME)?;
    let (number, spans) = (spec.first, Histogram::new(3)?);
    let mut load = Load::<Echo> { stub, spec: spec.clone(), number, answered: 0, measured: 0, spans };
    load.answered += load.call().wait()?.0;
    say("ready")?;
    ensure!(hear()?.as_deref() == Some("go"), "the bench has ended");
    let silence = Arc::new(Silence::default());
    let heard = silence.clone();
    // It ends with the process.
    thread::spawn(move || heard.answer());
    let (begun, mut pace) = (Instant::now(), None);
    let mut flying = FuturesUnordered::new();
    for _ in 0..(spec.in_flight / spec.together).max(1) {
        flying.push(load.call());
    }
    while let Some(ended) = poll_fn(|cx| Pin::new(&mut flying).poll_next(cx)).wait() {
        load.answered += ended?.0;
        silence.broken();
        if at_half && begun.elapsed() > WARM_UP {
            let pace: &mut Pace = pace.get_or_insert_with(|| Pace::half_of(load.answered, begun.elapsed()));
            thread::sleep(pace.ahead(load.answered));
        }
        if !silence.over.load(Ordering::Relaxed) {
            flying.push(load.call());
        }
    }
    let (answered, seconds) = (load.answered, begun.elapsed().as_secs_f64());
    let calls = Calls { measured: answered, seconds, p50_us: 0.0, p99_us: 0.0, answered };
    say(&serde_json::to_string(&calls)?)
}

/// A rate that calls keep from an instant on.
#[derive(Clone, Copy)]
struct Pace {
    from: Instant,
    answered: u64,
    per_second: f64,
}

impl Pace {
    /// Half of the rate so far, from now on.
    fn half_of(answered: u64, took: Duration) -> Pace {
        Pace { from: Instant::now(), answered, per_second: answered as f64 / took.as_secs_f64() / 2.0 }
    }

    /// The time until the next call is due. Those that were late are not made up for.
    fn ahead(&mut self, answered: u64) -> Duration {
        let due = self.from + Duration::from_secs_f64((answered - self.answered) as f64 / self.per_second);
        let now = Instant::now();
        if due < now {
            (self.from, self.answered) = (now, answered);
        }
        due.saturating_duration_since(now)
    }
}

/// The time without an answer.
struct Silence {
    /// When the last answer came, and the longest time before one since the mark.
    last: Mutex<(Instant, Duration)>,
    over: AtomicBool,
}

impl Default for Silence {
    fn default() -> Silence {
        Silence { last: Mutex::new((Instant::now(), Duration::ZERO)), over: AtomicBool::new(false) }
    }
}

impl Silence {
    /// An answer came.
    fn broken(&self) {
        let mut last = self.last.lock().expect("nobody panics with it");
        let now = Instant::now();
        *last = (now, last.1.max(now - last.0));
    }

    /// Answers the bench until it says that it is enough.
    fn answer(&self) {
        while let Ok(Some(word)) = hear() {
            let mut last = self.last.lock().expect("nobody panics with it");
            let told = match word.as_str() {
                "mark" => {
                    last.1 = Duration::ZERO;
                    say("marked")
                }
                // One that lasts counts, too.
                "silence" => say(&format!("{:.1}", last.1.max(last.0.elapsed()).as_secs_f64() * 1e3)),
                _ => break,
            };
            if told.is_err() {
                break;
            }
        }
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Keeps calls in flight, and compares what they are answered.
struct Load<S: Measured> {
    stub: Stub<S>,
    spec: ClientSpec,
    number: u64,
    answered: u64,
    measured: u64,
    spans: Histogram<u64>,
}

/// Calls that were made together: how many, and when.
type Ended = Result<(u64, Instant)>;

impl<S: Measured> Load<S> {
    /// Some calls together.
    fn call(&mut self) -> Pin<Box<dyn Future<Output = Ended>>> {
        let numbers = self.number..self.number + self.spec.together as u64;
        self.number = numbers.end;
        let requests: Vec<S::Request> = match self.spec.work {
            Work::EchoWrites | Work::EchoWritesOn { .. } | Work::StoreWrites => {
                numbers.map(|number| S::write(number, self.spec.bytes)).collect()
            }
            Work::StoreReads => numbers.filter_map(S::read).collect(),
            Work::HttpWrites | Work::Transactions(_) => unreachable!("they are not made of calls of a stub"),
        };
        let (begun, calls) = (Instant::now(), self.stub.calls(&requests));
        Box::pin(async move {
            let outcomes = calls.await?;
            for (request, outcome) in requests.iter().zip(outcomes) {
                ensure!(S::answers(request, &outcome?), "a call was given the answer of another");
            }
            Ok((requests.len() as u64, begun))
        })
    }

    /// Keeps calls in flight until then, and waits for their ends.
    fn measure_until(
        &mut self,
        end: Instant,
        call: &impl Fn(&mut Self) -> Pin<Box<dyn Future<Output = Ended>>>,
    ) -> Result<()> {
        let mut flying = FuturesUnordered::new();
        for _ in 0..(self.spec.in_flight / self.spec.together).max(1) {
            flying.push(call(self));
        }
        while let Some(ended) = poll_fn(|cx| Pin::new(&mut flying).poll_next(cx)).wait() {
            let (calls, begun) = ended?;
            let now = Instant::now();
            self.answered += calls;
            if now < end {
                self.measured += calls;
                self.spans.record((now - begun).as_nanos() as u64)?;
                flying.push(call(self));
            }
        }
        Ok(())
    }
}

impl Load<Accounts> {
    /// A transaction.
    fn transact(&mut self, transact: Transact) -> Pin<Box<dyn Future<Output = Ended>>> {
        let asks = transact.asks(self.number, self.spec.bytes);
        self.number += 1;
        let (begun, stub) = (Instant::now(), self.stub.clone());
        Box::pin(async move {
            match transact.mode {
                Mode::Optimised => {
                    let mut transaction = stub.begin();
                    for ask in &asks {
                        let reply = transaction.call(ask).await?;
                        ensure!(Accounts::answers(ask, &reply), "a call was given the answer of another");
                    }
                    transaction.commit().await?;
                }
                Mode::ReadWrite | Mode::WriteOnly => {
                    for ask in &asks {
                        let reply = stub.call(ask).await?;
                        ensure!(Accounts::answers(ask, &reply), "a call was given the answer of another");
                    }
                }
            }
            Ok((1, begun))
        })
    }
}
