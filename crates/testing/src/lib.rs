//! Helpers of the live tests in several crates: free ports, waiting for a condition, and stopping threads.

use std::{
    array,
    net::TcpListener,
    process,
    sync::atomic::{AtomicBool, AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Returns different ports of 127.0.0.1 at which nobody listens.
///
/// A test gives such a port to a process that listens at the port a moment later, or again after a restart. A
/// port that the system chose is not safe: until the process listens, the system may use this port for
/// another connection. So the ports of this function lie below the range that Linux uses for connections.
/// Within one test program no port is returned twice.
///
/// # Panics
///
/// If no port is free.
#[must_use]
pub fn free_ports<const N: usize>() -> [u16; N] {
    array::from_fn(|_| {
        let mut candidates = (0..PORTS).map(|_| next_port());
        candidates.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port is free")
    })
}

fn next_port() -> u16 {
    /// Number of ports that were tried in this test program.
    static TRIED: AtomicU16 = AtomicU16::new(0);
    // Test programs that run at the same time begin at different ports.
    let begin = process::id().wrapping_mul(SPREAD) % u32::from(PORTS);
    let tried = u32::from(TRIED.fetch_add(1, Ordering::Relaxed));
    let at = (begin + tried) % u32::from(PORTS);
    FIRST_PORT + u16::try_from(at).expect("the remainder is below the number of ports")
}

/// First of the ports that [`free_ports`] returns.
const FIRST_PORT: u16 = 12_000;

/// Number of ports that [`free_ports`] chooses from. They end below 32,768.
const PORTS: u16 = 20_000;

/// Distance between the first ports of two test programs with consecutive process ids.
const SPREAD: u32 = 397;

/// Waits until a condition holds.
///
/// # Panics
///
/// If the condition does not hold within a minute. The message names the condition.
#[track_caller]
pub fn wait_for(condition: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "the condition did not hold within a minute: {condition}");
        thread::sleep(PAUSE);
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Sets a flag when dropped. If a test fails in [`thread::scope`], the threads that watch the flag end.
/// Without this, the test would wait for them for ever.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
