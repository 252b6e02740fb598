//! The common part of HTTP doors: the names by which requests may address them, and bounds of their
//! connections.
//!
//! **Names.** A door on a loopback address has no password, and browsers reach it. An attacker may make the
//! name of a web page resolve to 127.0.0.1 (DNS rebinding). Then the page and the door have the same origin,
//! and the browser lets the page read answers and send JSON. But the browser still sends the page's name as
//! the host. So a door answers only requests whose `Host` is an IP address, a name that nobody can register,
//! or a name in the door's settings ([`is_own_host`]).
//!
//! **Connections.** [`Connections`] accepts for [`axum::serve()`], with these bounds:
//!
//! - At most [`Limits::connections_max`] are open. When one more comes, the connection that has waited
//!   longest for a request is closed. If requests are in progress on all connections, the new connection is
//!   closed.
//! - A door disconnects a client that sends or takes nothing for [`Limits::patience`], or whose rate is below
//!   [`Limits::rate_min`]. After an answer the client may be silent for [`Limits::idle`].
//!
//! So half-open connections, and clients that read one byte a second, occupy a bounded amount of memory for a
//! bounded time. A handler announces its work with [`Connection::answering`], because a client may wait
//! silently for an answer.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    extract::connect_info::Connected,
    http::{HeaderMap, Uri, header},
    serve::{IncomingStream, Listener},
};
use futures_util::task::AtomicWaker;
use quorate_runtime::host_name;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Instant, Sleep},
};

/// Whether a request addresses this door: each host that the request names must be the door's own
/// ([`host_name::is_own`]). A request without a host is accepted, because it does not come from a browser.
pub fn is_own_host(uri: &Uri, headers: &HeaderMap, names: &[String]) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    hosts.all(|host| host.to_str().is_ok_and(|host| host_name::is_own(host, names)))
        && uri.authority().is_none_or(|host| host_name::is_own(host.as_str(), names))
}

/// Returns the host of `host:port`; an IPv6 address keeps its brackets.
pub fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        _ => address,
    }
}

/// Size of the system's buffer for bytes that a client has not taken, in bytes. With a larger buffer, a
/// client that takes [`Limits::rate_min`] would seem to take nothing for minutes.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// Bounds of a door's connections.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Upper bound of the open connections.
    pub connections_max: usize,
    /// Time within which a client must send or take the next bytes.
    pub patience: Duration,
    /// Time for which a client may be silent after an answer.
    pub idle: Duration,
    /// Least rate at which a client must send or take after its [patience](Limits::patience), in bytes a
    /// second.
    pub rate_min: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 256,
            patience: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            rate_min: 16 << 10,
        }
    }
}

/// A listener whose connections are bounded.
#[derive(Debug)]
pub struct Connections {
    listener: TcpListener,
    shared: Arc<HttpShared>,
    last: u64,
}

#[derive(Debug)]
struct HttpShared {
    limits: Limits,
    began: Instant,
    open: Mutex<BTreeMap<u64, Arc<State>>>,
    refused: AtomicU64,
}

/// A connection, as its handlers see it.
#[derive(Clone, Debug)]
pub struct Connection(Arc<State>);

#[derive(Debug)]
struct State {
    /// Number of requests in progress: 0 or 1 over HTTP/1.
    answers: AtomicU64,
    /// Time at which the connection began to wait for a request, in milliseconds since the listener's start.
    waits_since: AtomicU64,
    /// Whether the client is taking an answer.
    takes: AtomicBool,
    /// Whether the door is closing the connection.
    closed: AtomicBool,
    waker: AtomicWaker,
}

/// A request in progress. Dropping this value makes the connection wait for the next request.
#[derive(Debug)]
pub struct Answering(Arc<State>);

impl Connection {
    /// Notes that a whole request has arrived, so its client may be silent until the answer.
    pub fn answering(&self) -> Answering {
        self.0.answers.fetch_add(1, Ordering::Relaxed);
        Answering(self.0.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    fn is_answering(&self) -> bool {
        self.answers.load(Ordering::Relaxed) > 0 || self.takes.load(Ordering::Relaxed)
    }
}

impl HttpShared {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<State>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Makes room for one more connection. If there are too many, closes the connection that has waited
    /// longest for a request. Returns whether there is room.
    fn make_room(&self) -> bool {
        let mut open = self.open();
        if open.len() < self.limits.connections_max {
            return true;
        }
        let waiting = open.iter().filter(|(_, state)| !state.is_answering());
        let longest = waiting.min_by_key(|(_, state)| state.waits_since.load(Ordering::Relaxed));
        let Some((&number, _)) = longest else { return false };
        let state = open.remove(&number).expect("it was found there");
        state.closed.store(true, Ordering::Relaxed);
        state.waker.wake();
        true
    }
}

impl Connections {
    /// Makes a bounded listener.
    pub fn new(listener: TcpListener, limits: Limits) -> Connections {
        let (open, refused) = (Mutex::default(), AtomicU64::new(0));
        Connections {
            listener,
            shared: Arc::new(HttpShared { limits, began: Instant::now(), open, refused }),
            last: 0,
        }
    }
}

impl Listener for Connections {
    type Io = Bounded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Bounded, SocketAddr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            if !self.shared.make_room() {
                let refused = self.shared.refused.fetch_add(1, Ordering::Relaxed) + 1;
                if refused.is_power_of_two() {
                    tracing::warn!(
                        refused,
                        "HTTP connections were refused, because all allowed connections are being answered"
                    );
                }
                continue;
            }
            if let Err(error) = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES) {
                tracing::debug!(%error, "the send buffer of an HTTP connection could not be changed");
            }
            self.last += 1;
            let state = Arc::new(State {
                answers: AtomicU64::new(0),
                waits_since: AtomicU64::new(self.shared.now()),
                takes: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                waker: AtomicWaker::new(),
            });
            self.shared.open().insert(self.last, state.clone());
            return (Bounded::new(stream, self.last, state, self.shared.clone()), address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected<IncomingStream<'_, Connections>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Connection {
        Connection(stream.io().state.clone())
    }
}

/// A connection's stream of bytes, with the door's bounds.
#[derive(Debug)]
pub struct Bounded {
    stream: TcpStream,
    number: u64,
    state: Arc<State>,
    shared: Arc<HttpShared>,
    reading: Meter,
    /// The meter of the present answer; `None` while the client has taken all written bytes.
    writing: Option<Meter>,
    /// Whether an answer was written.
    has_answered: bool,
    alarm: Pin<Box<Sleep>>,
}

/// A count of bytes that have passed, and the times of their passing.
#[derive(Clone, Copy, Debug)]
struct Meter {
    since: Instant,
    /// Time at which bytes last passed.
    last: Instant,
    bytes: u64,
}

impl Meter {
    fn start() -> Meter {
        let now = Instant::now();
        Meter { since: now, last: now, bytes: 0 }
    }

    fn count(&mut self, bytes: usize) {
        self.last = Instant::now();
        self.bytes += bytes as u64;
    }
}

impl Bounded {
    fn new(stream: TcpStream, number: u64, state: Arc<State>, shared: Arc<HttpShared>) -> Bounded {
        let alarm = Box::pin(tokio::time::sleep(shared.limits.patience));
        let (reading, writing) = (Meter::start(), None);
        Bounded { stream, number, state, shared, reading, writing, has_answered: false, alarm }
    }

    /// Returns an error once the client has been too slow. Until then, sets the alarm for that time.
    fn hurry(&mut self, cx: &mut Context<'_>, meter: Meter, patience: Duration) -> Poll<io::Error> {
        let earned = Duration::from_millis(1000 * meter.bytes / self.shared.limits.rate_min.max(1));
        let end = (meter.since + earned).min(meter.last) + patience;
        if self.alarm.deadline() != end {
            self.alarm.as_mut().reset(end);
        }
        ready!(self.alarm.as_mut().poll(cx));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client is too slow"))
    }

    fn writes(&mut self) -> &mut Meter {
        self.state.takes.store(true, Ordering::Relaxed);
        self.writing.get_or_insert_with(Meter::start)
    }

    /// Handles a client that takes no more bytes at present.
    fn stalls<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let meter = *self.writes();
        let patience = self.shared.limits.patience;
        self.hurry(cx, meter, patience).map(Err)
    }
}

impl AsyncRead for Bounded {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.state.waker.register(cx.waker());
        if this.state.closed.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, buffer) {
            if this.reading.bytes == 0 {
                this.reading = Meter::start();
            }
            this.reading.count(buffer.filled().len() - before);
            return Poll::Ready(read);
        }
        // The client need not send during an answer.
        if this.state.is_answering() {
            return Poll::Pending;
        }
        let Limits { patience, idle, .. } = this.shared.limits;
        let patience = if this.has_answered && this.reading.bytes == 0 { idle } else { patience };
        this.hurry(cx, this.reading, patience).map(Err)
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Poll::Ready(written) = Pin::new(&mut this.stream).poll_write(cx, bytes) else {
            return this.stalls(cx);
        };
        this.writes().count(*written.as_ref().unwrap_or(&0));
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Poll::Ready(written) = Pin::new(&mut this.stream).poll_write_vectored(cx, parts) else {
            return this.stalls(cx);
        };
        this.writes().count(*written.as_ref().unwrap_or(&0));
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes the stream. Afterwards the system has all written bytes, and the connection waits for the next
    /// request.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        if this.writing.take().is_some() {
            (this.reading, this.has_answered) = (Meter::start(), true);
            this.state.waits_since.store(this.shared.now(), Ordering::Relaxed);
            this.state.takes.store(false, Ordering::Relaxed);
            // Sets the alarm. If the client stays silent, nothing else wakes the connection.
            let _ = this.hurry(cx, this.reading, this.shared.limits.idle);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        self.shared.open().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        thread,
    };

    use axum::{Router, extract::ConnectInfo, routing::get};

    use super::*;

    /// Starts a door on a thread of its own, which answers each request with `bytes` bytes. At `/late` it
    /// answers after three times its patience.
    fn door(limits: Limits, bytes: usize) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let pause = 3 * limits.patience;
        let late = move |ConnectInfo(connection): ConnectInfo<Connection>| async move {
            let _answering = connection.answering();
            tokio::time::sleep(pause).await;
            "late"
        };
        let routes =
            Router::new().route("/", get(move || async move { vec![0; bytes] })).route("/late", get(late));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = Connections::new(TcpListener::from_std(listener).unwrap(), limits);
                axum::serve(listener, routes.into_make_service_with_connect_info::<Connection>())
                    .await
                    .unwrap();
            });
        });
        address
    }

    fn connect(door: SocketAddr, words: &str) -> std::net::TcpStream {
        let mut stream = std::net::TcpStream::connect(door).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(words.as_bytes()).unwrap();
        stream
    }

    /// Returns all bytes that come before the door closes the connection.
    fn rest(mut stream: std::net::TcpStream) -> Vec<u8> {
        let mut all = Vec::new();
        if let Err(error) = stream.read_to_end(&mut all) {
            assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "the door has not hung up");
        }
        all
    }

    fn limits() -> Limits {
        let patience = Duration::from_millis(400);
        Limits { connections_max: 3, patience, idle: patience, rate_min: 1 << 20 }
    }

    const ASK: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    #[test]
    fn half_open_connections_exclude_no_client_and_end() {
        let door = door(limits(), 5);
        let half: Vec<_> = (0..20).map(|_| connect(door, "GET / HT")).collect();
        for _ in 0..10 {
            assert!(rest(connect(door, ASK)).starts_with(b"HTTP/1.1 200"));
        }
        for stream in half {
            let answer = rest(stream);
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
        }
    }

    #[test]
    fn a_client_that_takes_no_bytes_is_disconnected() {
        let bytes = 64 << 20;
        let door = door(limits(), bytes);
        let stream = connect(door, ASK);
        thread::sleep(Duration::from_secs(2));
        assert!(rest(stream).len() < bytes);
        assert!(rest(connect(door, ASK)).len() > bytes, "one that takes them has all");
    }

    #[test]
    fn a_client_may_be_silent_during_its_answer_and_not_for_ever_after() {
        let door = door(limits(), 5);
        let stream = connect(door, "GET /late HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let answer = rest(stream);
        assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"late"), "{answer:?}");
    }

    #[test]
    fn only_addresses_and_own_names_are_a_doors_hosts() {
        let names = vec![String::from("node1")];
        let asks = |uri: &str, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            is_own_host(&uri.parse().unwrap(), &headers, &names)
        };
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "10.1.2.3:8080",
            "[::1]",
            "[::1]:80",
            "localhost:80",
            "LocalHost",
            "NODE1:8080",
        ] {
            assert!(asks("/", &[host]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[::1].a",
            "",
        ] {
            assert!(!asks("/", &[host]), "{host}");
        }
        assert!(asks("/", &[]), "HTTP/1.0");
        assert!(!asks("/", &["localhost", "evil.example"]));
        assert!(!asks("http://evil.example/", &["localhost"]));
        assert!(asks("http://localhost:80/", &["localhost:80"]));
    }
}
