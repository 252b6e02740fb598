//! Writes over HTTP: persistent connections, each with one call in flight.
//!
//! The service is the ready-made store of keys and values, because its requests are text. Each connection has
//! its own key, and each answer contains the value that the connection put before. So the answers show that
//! each write took effect once, and in its order.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::LocalSet,
};

use super::{
    report::{Calls, read_line, say},
    spec::{ClientSpec, WARM_UP},
};

pub(super) const NAME: &str = "key-value";

/// Runs a client with one connection to a door per call in flight.
pub(super) fn client(spec: &ClientSpec) -> Result<()> {
    let door = spec.hosts.first().context("the client was given no HTTP address of a host")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = LocalSet::new();
    let mut connections = Vec::new();
    for number in 0..spec.in_flight {
        let mut connection =
            runtime.block_on(HttpConnection::open(door, spec.first + number as u64, spec.bytes))?;
        runtime.block_on(connection.put())?;
        connections.push(connection);
    }
    say("ready")?;
    ensure!(read_line()?.as_deref() == Some("go"), "the bench ended before it started this client");
    let begun = Instant::now() + WARM_UP;
    let end = begun + Duration::from_secs_f64(spec.seconds);
    let working: Vec<_> =
        connections.into_iter().map(|connection| tasks.spawn_local(connection.measure(begun, end))).collect();
    let (mut measured, mut answered, mut spans) = (0, spec.in_flight as u64, Histogram::<u64>::new(3)?);
    for work in working {
        let (own, all) = tasks.block_on(&runtime, work)??;
        measured += own.len();
        answered += all;
        spans.add(own)?;
    }
    let microseconds = |quantile| spans.value_at_quantile(quantile) as f64 / 1e3;
    let calls = Calls {
        measured,
        seconds: spec.seconds,
        p50_us: microseconds(0.5),
        p99_us: microseconds(0.99),
        answered,
    };
    say(&serde_json::to_string(&calls)?)
}

struct HttpConnection {
    stream: TcpStream,
    key: u64,
    bytes: usize,
    /// Number of writes so far.
    count: u64,
    answer: Vec<u8>,
}

impl HttpConnection {
    async fn open(door: &str, key: u64, bytes: usize) -> Result<HttpConnection> {
        let stream = TcpStream::connect(door).await?;
        stream.set_nodelay(true)?;
        Ok(HttpConnection { stream, key, bytes, count: 0, answer: Vec::new() })
    }

    fn value(&self, number: u64) -> String {
        format!("{number:0>width$}", width = self.bytes)
    }

    /// Writes the next value, and checks the answer to the preceding write.
    async fn put(&mut self) -> Result<()> {
        self.count += 1;
        let body = format!(r#"{{"put":["{}","{}"]}}"#, self.key, self.value(self.count));
        let request = format!(
            "POST /services/{NAME}/call HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        let reply = self.reply().await?;
        let before = match self.count {
            1 => String::from("null"),
            count => format!("\"{}\"", self.value(count - 1)),
        };
        ensure!(
            reply == before,
            "a write over HTTP was answered with {reply} instead of the former value {before}"
        );
        Ok(())
    }

    /// Returns the body of the next answer.
    async fn reply(&mut self) -> Result<String> {
        self.answer.clear();
        loop {
            ensure!(self.stream.read_buf(&mut self.answer).await? > 0, "the host closed the HTTP connection");
            let text = std::str::from_utf8(&self.answer)?;
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize =
                length.context("an HTTP answer of the host has no content-length")?.parse()?;
            if body.len() < length {
                continue;
            }
            match head.starts_with("HTTP/1.1 200 ") {
                true => return Ok(body.to_owned()),
                false => bail!("{text}"),
            }
        }
    }

    /// Writes until the end. Returns the times of the writes that ended in the measured time, and the number
    /// of all writes.
    async fn measure(mut self, begun: Instant, end: Instant) -> Result<(Histogram<u64>, u64)> {
        let (mut spans, first) = (Histogram::new(3)?, self.count);
        loop {
            let asked = Instant::now();
            if asked >= end {
                return Ok((spans, self.count - first));
            }
            self.put().await?;
            let now = Instant::now();
            if now >= begun && now < end {
                spans.record((now - asked).as_nanos() as u64)?;
            }
        }
    }
}
