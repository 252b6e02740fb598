//! The service programs in `examples`: each runs on three hosts, and the test kills one of them during calls.

use std::{
    env,
    io::{BufRead, BufReader, Lines},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
};

/// An example program, run with the command lines in its first comment. Dropping this value kills the
/// program.
struct Program {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(example: &str, words: &[&str]) -> Program {
        let mut child = Command::new(binary(example)).args(words).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Program { child, lines }
    }

    /// Reads output lines up to a line that contains `what`. Returns the rest of that line.
    fn says(&mut self, what: &str) -> String {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("it says no `{what}`")).unwrap();
            if let Some((_, rest)) = line.split_once(what) {
                return rest.to_owned();
            }
        }
    }

    /// Waits for a successful end, and returns the last line of output.
    fn ends(mut self) -> String {
        let last = self.lines.by_ref().map(Result::unwrap).last();
        assert!(self.child.wait().unwrap().success(), "it ends well");
        last.expect("it prints something")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of an example's binary. `cargo test` builds it together with the tests.
fn binary(example: &str) -> PathBuf {
    let tests = env::current_exe().unwrap();
    let binary = tests.parent().unwrap().parent().unwrap().join("examples").join(example);
    assert!(binary.exists(), "`cargo test` builds {}", binary.display());
    binary
}

/// Starts three hosts of an example, the first of which leads. Returns them with their addresses.
fn hosts(example: &str) -> (Vec<Program>, String) {
    let mut first = Program::start(example, &["--listen", "127.0.0.1:0", "--found"]);
    let seed = first.says("listens at ");
    let (mut hosts, mut addresses) = (vec![first], vec![seed.clone()]);
    for _ in 0..2 {
        let mut host = Program::start(example, &["--listen", "127.0.0.1:0", "--join", &seed]);
        addresses.push(host.says("listens at "));
        hosts.push(host);
    }
    hosts[0].says("3 replicas, led from here");
    (hosts, addresses.join(","))
}

/// Calls an example, kills the leader when the caller prints `kill_at`, and returns the caller's last line.
fn play(example: &str, words: &[&str], kill_at: &str) -> (String, String, Vec<Program>) {
    let (mut hosts, addresses) = hosts(example);
    let mut caller = Program::start(example, &[&["--call", &addresses][..], words].concat());
    caller.says(kill_at);
    drop(hosts.remove(0));
    (caller.ends(), addresses, hosts)
}

/// Calls an example, and returns its last line of output.
fn call(example: &str, addresses: &str, words: &[&str]) -> String {
    Program::start(example, &[&["--call", addresses][..], words].concat()).ends()
}

#[test]
fn a_counter_counts_each_call_once() {
    let (last, addresses, _hosts) = play("counter", &["add", "1000"], "300");
    assert_eq!(last, "1000");
    assert_eq!(call("counter", &addresses, &["read"]), "1000");
}

#[test]
fn a_lottery_draws_each_number_once() {
    let (last, _, _hosts) = play("lottery", &["500"], "draws: 100,");
    assert!(last.starts_with("last: LotteryReply { draws: 500,"), "{last}");
}

#[test]
fn a_key_value_store_returns_stored_values() {
    let (last, addresses, _hosts) = play("key_value", &["fill", "500"], "100 keys");
    assert_eq!(last, "500 keys");
    assert_eq!(call("key_value", &addresses, &["get", "key 77"]), "77");
    assert_eq!(call("key_value", &addresses, &["put", "key 77", "blue"]), "77");
    assert_eq!(call("key_value", &addresses, &["delete", "key 77"]), "blue");
    assert_eq!(call("key_value", &addresses, &["get", "key 77"]), "nothing");
}

#[test]
fn a_scheduler_gives_each_job_out_once_and_the_urgent_ones_first() {
    let (last, addresses, _hosts) = play("scheduler", &["play", "500"], "100 jobs are taken");
    assert_eq!(last, "500 jobs, each taken once");
    for [job, priority] in [["a", "1"], ["b", "5"], ["c", "5"]] {
        assert_eq!(call("scheduler", &addresses, &["submit", job, priority]), "submitted");
    }
    for job in ["b", "c", "a"] {
        let taken = call("scheduler", &addresses, &["work", "w"]);
        assert!(taken.contains(&format!("job: \"{job}\", worker: \"w\"")), "{taken}");
    }
    assert_eq!(call("scheduler", &addresses, &["work", "w"]), "no job");
}

#[test]
fn a_matchmaker_gives_each_machine_away_once() {
    let (last, addresses, _hosts) = play("matchmaker", &["play", "400"], "was given 25 machines");
    assert_eq!(last, "400 jobs on 400 machines, each given away once");
    assert_eq!(call("matchmaker", &addresses, &["advertise", "small", "1000", "4", "100"]), "it is known");
    assert_eq!(call("matchmaker", &addresses, &["advertise", "large", "3000", "16", "500"]), "it is known");
    let given = call("matchmaker", &addresses, &["submit", "job", "2000", "4", "100", "1"]);
    assert!(given.contains("address: \"large\""), "{given}");
    let none = call("matchmaker", &addresses, &["submit", "job", "2000", "4", "100", "1"]);
    assert_eq!(none, "no free machine is good enough");
}
