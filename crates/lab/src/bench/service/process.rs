//! One process of the bench: a host of replicas, or a client.

use std::{
    future::poll_fn,
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

use super::{
    http,
    report::{Calls, HostReport, read_line, say},
    services::{Accounts, Echo, Measured, Store, StoreRequest},
    spec::{ClientSpec, Mode, ServiceProcessSpec, ServiceWork, Transact, WARM_UP},
};

pub(super) fn run(spec: ServiceProcessSpec) -> Result<()> {
    match spec {
        ServiceProcessSpec::Host { domain, replicas, one_at_a_time, seeds, directory, http } => {
            host(domain, (replicas, one_at_a_time), seeds, (directory, http))
        }
        ServiceProcessSpec::Client(spec) => match spec.work {
            ServiceWork::EchoWrites => client::<Echo>(&spec, ServiceLoad::call),
            ServiceWork::EchoWritesOn { at_half } => endless(&spec, at_half),
            ServiceWork::HttpWrites => http::client(&spec),
            ServiceWork::StoreWrites | ServiceWork::StoreReads => client::<Store>(&spec, ServiceLoad::call),
            ServiceWork::Transactions(transact) => {
                client::<Accounts>(&spec, move |load| load.transact(transact))
            }
        },
    }
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
    while let Some(word) = read_line()? {
        ensure!(word == "stand", "a host of the bench received the unknown command {word}");
        let of = |name| {
            host.replica_status(name).context("a host of the bench does not serve one of its services")
        };
        let all = [of(Echo::NAME)?, of(Store::NAME)?, of(Accounts::NAME)?];
        let report = HostReport {
            ended: all.iter().find_map(|one| one.last_end.clone()),
            serving: all.iter().all(|one| one.serving),
            leads: all[0].serving,
            replicas: all.iter().map(|one| one.replicas.len()).min().unwrap_or(0),
            applied: [Echo::shown().now(), Store::shown().now(), Accounts::shown().now()],
        };
        say(&serde_json::to_string(&report)?)?;
    }
    Ok(())
}

fn client<S: Measured>(
    spec: &ClientSpec,
    call: impl Fn(&mut ServiceLoad<S>) -> Pin<Box<dyn Future<Output = Ended>>>,
) -> Result<()> {
    let node = Node::builder().services(&spec.domain).seeds(&spec.hosts).start().wait()?;
    let mut load = ServiceLoad::<S> {
        stub: node.service(S::NAME)?,
        spec: spec.clone(),
        number: spec.first,
        answered: 0,
        measured: 0,
        spans: Histogram::new(3)?,
    };
    // This call finds the service and opens a session.
    load.answered += call(&mut load).wait()?.0;
    say("ready")?;
    ensure!(read_line()?.as_deref() == Some("go"), "the bench ended before it started this client");
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

/// Runs a client that writes until the bench ends it, and that answers questions about the longest silence.
fn endless(spec: &ClientSpec, at_half: bool) -> Result<()> {
    let node = Node::builder().services(&spec.domain).seeds(&spec.hosts).start().wait()?;
    let stub = node.service(Echo::NAME)?;
    let (number, spans) = (spec.first, Histogram::new(3)?);
    let mut load = ServiceLoad::<Echo> { stub, spec: spec.clone(), number, answered: 0, measured: 0, spans };
    load.answered += load.call().wait()?.0;
    say("ready")?;
    ensure!(read_line()?.as_deref() == Some("go"), "the bench ended before it started this client");
    let silence = Arc::new(Silence::default());
    let heard = silence.clone();
    // The thread ends with the process.
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
            let pace: &mut CallPace =
                pace.get_or_insert_with(|| CallPace::half_of(load.answered, begun.elapsed()));
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
struct CallPace {
    from: Instant,
    answered: u64,
    per_second: f64,
}

impl CallPace {
    /// Starts a pace at half of the rate so far.
    fn half_of(answered: u64, took: Duration) -> CallPace {
        CallPace { from: Instant::now(), answered, per_second: answered as f64 / took.as_secs_f64() / 2.0 }
    }

    /// Returns the time until the next call is due. Late calls are not made up for.
    fn ahead(&mut self, answered: u64) -> Duration {
        let due = self.from + Duration::from_secs_f64((answered - self.answered) as f64 / self.per_second);
        let now = Instant::now();
        if due < now {
            (self.from, self.answered) = (now, answered);
        }
        due.saturating_duration_since(now)
    }
}

/// The measurement of times without an answer.
struct Silence {
    /// The time of the last answer, and the longest time without an answer since the bench last sent `mark`.
    last: Mutex<(Instant, Duration)>,
    over: AtomicBool,
}

impl Default for Silence {
    fn default() -> Silence {
        Silence { last: Mutex::new((Instant::now(), Duration::ZERO)), over: AtomicBool::new(false) }
    }
}

impl Silence {
    /// Notes that an answer has come, which ends the silence.
    fn broken(&self) {
        let mut last = self.last.lock().expect("no thread panics while it holds this lock");
        let now = Instant::now();
        *last = (now, last.1.max(now - last.0));
    }

    /// Answers the bench until it ends the client.
    fn answer(&self) {
        while let Ok(Some(word)) = read_line() {
            let mut last = self.last.lock().expect("no thread panics while it holds this lock");
            let result = match word.as_str() {
                "mark" => {
                    last.1 = Duration::ZERO;
                    say("marked")
                }
                // A silence that has not ended counts, too.
                "silence" => say(&format!("{:.1}", last.1.max(last.0.elapsed()).as_secs_f64() * 1e3)),
                _ => break,
            };
            if result.is_err() {
                break;
            }
        }
        self.over.store(true, Ordering::Relaxed);
    }
}

/// A client that keeps calls in flight, and checks the answers.
struct ServiceLoad<S: Measured> {
    stub: Stub<S>,
    spec: ClientSpec,
    number: u64,
    answered: u64,
    measured: u64,
    spans: Histogram<u64>,
}

/// The outcome of calls that were made together: the number of calls, and the time at which they began.
type Ended = Result<(u64, Instant)>;

impl<S: Measured> ServiceLoad<S> {
    /// Makes some calls together.
    fn call(&mut self) -> Pin<Box<dyn Future<Output = Ended>>> {
        let numbers = self.number..self.number + self.spec.together as u64;
        self.number = numbers.end;
        let requests: Vec<S::Request> = match self.spec.work {
            ServiceWork::EchoWrites | ServiceWork::EchoWritesOn { .. } | ServiceWork::StoreWrites => {
                numbers.map(|number| S::write(number, self.spec.bytes)).collect()
            }
            ServiceWork::StoreReads => numbers.filter_map(S::read).collect(),
            ServiceWork::HttpWrites | ServiceWork::Transactions(_) => {
                unreachable!("this kind of work does not use the calls of a stub")
            }
        };
        let (begun, calls) = (Instant::now(), self.stub.calls(&requests));
        Box::pin(async move {
            let outcomes = calls.await?;
            for (request, outcome) in requests.iter().zip(outcomes) {
                ensure!(S::answers(request, &outcome?), "a call received the answer to another call");
            }
            Ok((requests.len() as u64, begun))
        })
    }

    /// Keeps calls in flight until `end`, and waits for their ends.
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

impl Transact {
    /// Returns the requests of transaction `number`; without T-Paxos the last request stands for the commit.
    fn asks(self, number: u64, bytes: usize) -> Vec<StoreRequest> {
        let Transact { requests, writes, mode } = self;
        let total = requests + usize::from(mode != Mode::Optimised);
        let reads = if mode == Mode::WriteOnly { 0 } else { requests - writes };
        // Each transaction has its own keys.
        let key = |place: usize| number.wrapping_mul(8).wrapping_add(place as u64);
        let ask = |place| match place < reads {
            true => Accounts::look(key(place)),
            false => Accounts::write(key(place), bytes),
        };
        (0..total).map(ask).collect()
    }
}

impl ServiceLoad<Accounts> {
    /// Runs a transaction.
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
                        ensure!(Accounts::answers(ask, &reply), "a call received the answer to another call");
                    }
                    transaction.commit().await?;
                }
                Mode::ReadWrite | Mode::WriteOnly => {
                    for ask in &asks {
                        let reply = stub.call(ask).await?;
                        ensure!(Accounts::answers(ask, &reply), "a call received the answer to another call");
                    }
                }
            }
            Ok((1, begun))
        })
    }
}
