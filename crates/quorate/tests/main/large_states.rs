//! Services whose log carries whole states. Their hosts run in processes of their own, and the tests stop the
//! backups for a while.

use std::{fs, thread, time::Duration};

use quorate::{
    Node, Wait,
    service::{Carries, Cx, Executed, Kind, Service, Stub},
};
use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::durable::{HOST, NAME, Process, host};

/// A state of a fixed length, which each call changes.
#[derive(Serialize, Deserialize)]
struct Image {
    changes: u64,
    contents: String,
}

impl Default for Image {
    fn default() -> Image {
        Image { changes: 0, contents: "i".repeat(size("QUORATE_STATE_BYTES", 256 << 10)) }
    }
}

#[derive(Serialize, Deserialize)]
enum ImageRequest {
    /// Changes the state, and returns the number of changes.
    Change,
    /// Returns the number of changes.
    Look,
}

impl Service for Image {
    type Request = ImageRequest;
    type Reply = u64;
    type Delta = ();
    type Undo = ();

    const CARRIES: Carries = Carries::State;

    fn execute(&self, request: &ImageRequest, _: &mut Cx<'_>) -> Executed<Self> {
        match request {
            ImageRequest::Change => Executed::Changed(self.changes + 1, ()),
            ImageRequest::Look => Executed::Unchanged(self.changes),
        }
    }

    fn apply(&mut self, (): &()) {
        self.changes += 1;
    }

    fn revert(&mut self, (): ()) {
        self.changes -= 1;
    }

    fn kind(request: &ImageRequest) -> Kind {
        match request {
            ImageRequest::Change => Kind::Write,
            ImageRequest::Look => Kind::Read,
        }
    }
}

/// Returns a size for the test: the value of the environment variable, or `usual`. The full size is
/// `QUORATE_STATE_BYTES=4194000 QUORATE_CALLS=2000`.
fn size(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |size| size.parse().expect("a size is a number"))
}

fn signal(process: &Process, signal: Signal) {
    let pid = i32::try_from(process.child.id()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Returns the largest amount of memory that a process has occupied so far, in bytes.
fn peak(process: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// More states wait for the backups than the log has room for. The leader waits, too, and each call takes
/// effect once.
#[test]
fn states_wait_for_backups_that_stand_still() {
    if let Some(words) = std::env::var_os(HOST) {
        return host::<Image>(words.to_str().unwrap());
    }
    let test = "large_states::states_wait_for_backups_that_stand_still";
    let place = tempfile::tempdir().unwrap();
    let mut processes: Vec<Process> = Vec::new();
    for number in 0..3 {
        let seed = processes.first().map_or(String::new(), |first| first.address.clone());
        let directory = place.path().join(number.to_string());
        processes.push(Process::start(test, &directory, "127.0.0.1:0", &seed));
    }
    let addresses: Vec<String> = processes.iter().map(|process| process.address.clone()).collect();
    let client =
        Node::builder().seeds(&addresses).call_wait(Duration::from_secs(600)).start().wait().unwrap();
    let image: Stub<Image> = client.service(NAME).unwrap();
    // A set whose backups have joined cannot answer while the backups stand still.
    let mut done = 0;
    wait_for("the backups have joined", || {
        processes[1..].iter().for_each(|process| signal(process, Signal::STOP));
        let call = image.call(&ImageRequest::Change);
        let call = thread::spawn(move || call.wait());
        // If the leader had no backups, it would have answered by now.
        thread::sleep(Duration::from_millis(100));
        let waits = !call.is_finished();
        processes[1..].iter().for_each(|process| signal(process, Signal::CONT));
        assert_eq!(call.join().unwrap(), Ok(done + 1));
        done += 1;
        waits
    });

    processes[1..].iter().for_each(|process| signal(process, Signal::STOP));
    let requests: Vec<ImageRequest> =
        (0..size("QUORATE_CALLS", 1_200)).map(|_| ImageRequest::Change).collect();
    let calls = image.calls(&requests);
    let calls = thread::spawn(move || calls.wait());
    // The backups stand still for half a second, while the leader executes the calls.
    thread::sleep(Duration::from_millis(500));
    processes[1..].iter().for_each(|process| signal(process, Signal::CONT));
    let replies = calls.join().unwrap().unwrap();
    let mut counts: Vec<u64> = replies.into_iter().map(Result::unwrap).collect();
    counts.sort_unstable();
    let all = done + requests.len() as u64;
    assert!(counts.iter().copied().eq(done + 1..=all), "each call took effect once");
    assert_eq!(image.call(&ImageRequest::Look).wait(), Ok(all));
    let peaks: Vec<u64> = processes.iter().map(|process| peak(process) >> 20).collect();
    println!("peak memory of the leader and the backups: {peaks:?} MiB");
    assert!(peaks.iter().all(|peak| *peak <= 512), "{peaks:?} MiB");
}
