//! Tests the HTTP door of a process over a socket.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use quorate::web::Limits;
use quorate_server::http::{self, AdminPage, AdminView, Settings};
use tokio::net::TcpListener;

struct TestView {
    recent: usize,
}

impl AdminView for TestView {
    fn name(&self) -> String {
        String::from("cell-1 <cell>")
    }
    fn health(&self) -> Result<(), String> {
        Ok(())
    }
    fn status(&self) -> String {
        String::from("{}")
    }
    fn metrics(&self) -> String {
        String::from("# EOF\n")
    }
    fn recent(&self) -> Option<String> {
        (self.recent > 0).then(|| "x".repeat(self.recent))
    }
    fn has(&self, view: AdminPage) -> bool {
        matches!(view, AdminPage::Health | AdminPage::Status | AdminPage::Metrics)
            || view == AdminPage::Recent && self.recent > 0
    }
    fn operate(&self, operation: &str) -> Result<String, String> {
        Ok(format!("did {operation}"))
    }
}

/// Starts a door with these settings, in a runtime that lives until the test ends.
fn door(settings: Settings, recent: usize) -> (tokio::runtime::Runtime, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let further: Vec<(&'static str, Arc<dyn AdminView>)> =
        vec![("gateway", Arc::new(TestView { recent: 0 }))];
    runtime.spawn(http::serve(
        listener,
        settings,
        Arc::new(TestView { recent }),
        further,
        std::future::pending(),
    ));
    (runtime, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends a request of these lines, and returns the whole answer as text.
fn ask(address: SocketAddr, lines: &[&str], body: &str) -> String {
    let mut stream = connect(address);
    let length = format!("Content-Length: {}", body.len());
    let lines = [lines, &["Connection: close", &length, "", ""]].concat().join("\r\n");
    stream.write_all((lines + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_first_page_links_all_pages_of_a_process() {
    let (_runtime, address) = door(Settings::default(), 5);
    let page = ask(address, &["GET / HTTP/1.1", "Host: localhost"], "");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("text/html"), "{page}");
    for there in [
        "cell-1 &lt;cell&gt;",
        "href=\"/health\"",
        "href=\"/metrics\"",
        "href=\"/recent\"",
        "href=\"/gateway\"",
    ] {
        assert!(page.contains(there), "no {there} in {page}");
    }
    assert!(!page.contains("href=\"/groups\""), "{page}");
    let nested = ask(address, &["GET /gateway HTTP/1.1", "Host: localhost"], "");
    assert!(nested.contains("href=\"/gateway/status\"") && !nested.contains("/recent"), "{nested}");
    assert!(ask(address, &["GET /gateway/status HTTP/1.1", "Host: x"], "").ends_with("\r\n\r\n{}"));
}

#[test]
fn a_browser_reads_metrics_and_prometheus_gets_openmetrics() {
    let (_runtime, address) = door(Settings::default(), 0);
    let kind = |accept: &str| {
        let answer = ask(address, &["GET /metrics HTTP/1.1", "Host: 127.0.0.1:1", accept], "").to_lowercase();
        answer.lines().find_map(|line| line.strip_prefix("content-type: ").map(str::to_owned)).unwrap()
    };
    let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let browser = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
    assert_eq!(kind(browser), "text/plain; charset=utf-8");
    let prometheus =
        "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    for accept in [prometheus, "Accept: */*", "X-None: 1"] {
        assert_eq!(kind(accept), open, "{accept}");
    }
}

#[test]
fn requests_with_a_foreign_host_or_from_a_foreign_page_are_refused() {
    let names = vec![String::from("metrics.example.org")];
    let settings = Settings { names, request_bytes_max: 64, ..Settings::default() };
    let (_runtime, address) = door(settings, 0);
    for (host, status) in [
        ("evil.example", "421"),
        ("evil.example:80", "421"),
        ("localhost.evil.example", "421"),
        ("metrics.example.org:80", "200"),
        ("127.0.0.1", "200"),
        ("[::1]:9", "200"),
        ("gateway-1", "200"),
    ] {
        for path in ["/", "/status", "/metrics", "/gateway/status"] {
            let answer = ask(address, &[&format!("GET {path} HTTP/1.1"), &format!("Host: {host}")], "");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host} {path}: {answer}");
        }
        let operate = [
            "POST /operate HTTP/1.1",
            "Content-Type: application/json; charset=utf-8",
            &format!("Host: {host}"),
        ];
        let answer = ask(address, &operate, "{}");
        assert_eq!(answer.contains("did {}"), status == "200", "{host}: {answer}");
    }
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"]
    {
        let operate = ["POST /operate HTTP/1.1", "Host: localhost", &format!("Content-Type: {kind}")];
        assert!(ask(address, &operate, "{}").starts_with("HTTP/1.1 415"), "{kind}");
    }
    let long = "x".repeat(100);
    let operate = ["POST /operate HTTP/1.1", "Host: localhost", "Content-Type: application/json"];
    assert!(ask(address, &operate, &long).starts_with("HTTP/1.1 413"));
}

/// Many connections send no request, or send one slowly. The door cuts the connections without a request, the
/// oldest first, and cuts slow senders when its patience ends.
#[test]
fn silent_and_slow_connections_are_closed() {
    let limits = Limits { connections_max: 4, patience: Duration::from_millis(400), ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let (_runtime, address) = door(settings, 0);
    let silent: Vec<TcpStream> = (0..40).map(|_| connect(address)).collect();
    for _ in 0..10 {
        assert!(ask(address, &["GET /status HTTP/1.1", "Host: localhost"], "").ends_with("{}"));
    }
    drop(silent);
    // A byte now and then does not extend the patience.
    let mut slow = connect(address);
    let began = Instant::now();
    let cut = std::iter::repeat_n(b'G', 1_000).any(|byte| {
        std::thread::sleep(Duration::from_millis(20));
        slow.write_all(&[byte]).is_err()
    });
    assert!(cut && began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Clients do not read their answers. The unread answers occupy bounded memory, and the door cuts the
/// connections when its patience ends.
#[test]
fn the_memory_of_unread_answers_is_bounded() {
    let limits = Limits { patience: Duration::from_secs(2), ..Limits::default() };
    let settings = Settings { answers_bytes_max: 20 << 20, limits, ..Settings::default() };
    let (_runtime, address) = door(settings, 12 << 20);
    let request = b"GET /recent HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut greedy = connect(address);
    greedy.write_all(request).unwrap();
    let mut head = [0; 12];
    greedy.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let refused = ask(address, &["GET /recent HTTP/1.1", "Host: localhost"], "");
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("ask again later"), "{refused}");
    assert!(ask(address, &["GET /status HTTP/1.1", "Host: localhost"], "").ends_with("{}"), "small ones go");
    let deadline = Instant::now() + Duration::from_secs(20);
    let freed = || ask(address, &["GET /recent HTTP/1.1", "Host: localhost"], "").starts_with("HTTP/1.1 200");
    while !freed() {
        assert!(Instant::now() < deadline, "the room never comes back");
        std::thread::sleep(Duration::from_millis(50));
    }
}
