//! The threads and the time limit of a check, which the history crate leaves to its callers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use quorate_history::{GLANCE_STEPS, History, KeyCheck, Options, Report, Verdict, fewest_operations};

/// Number of search steps between two looks at the clock.
const STEPS_BETWEEN_LOOKS: u64 = 20_000;

/// Checks all keys on `threads` threads. Searches that are unfinished at the deadline, or when another key
/// has settled the verdict, answer "unknown".
pub fn judge(history: &History, options: &Options, threads: usize, deadline: Option<Instant>) -> Report {
    let report = Mutex::new(Report::new());
    let open = Mutex::new(Vec::new());
    let settled = AtomicBool::new(false);

    let keys = history.keys();
    let next = AtomicUsize::new(0);
    on_threads(threads.min(keys.len()), || {
        let mut found = Vec::new();
        while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut check = KeyCheck::new(key, options);
            match check.advance(GLANCE_STEPS) {
                Some(report) => found.push(report),
                None => open.lock().expect("no checking thread panics").push(check),
            }
        }
        let mut report = report.lock().expect("no checking thread panics");
        found.into_iter().for_each(|key| report.add(key));
        settled.store(report.verdict == Verdict::NotAtomic, Ordering::Relaxed);
    });

    let open_keys = open.lock().expect("no checking thread panics").len();
    on_threads(threads.min(open_keys), || {
        while let Some(mut check) = take(&open) {
            let found = loop {
                let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                if late || settled.load(Ordering::Relaxed) {
                    break check.give_up();
                }
                if let Some(found) = check.advance(STEPS_BETWEEN_LOOKS) {
                    break found;
                }
            };
            settled.fetch_or(found.verdict == Verdict::NotAtomic, Ordering::Relaxed);
            report.lock().expect("no checking thread panics").add(found);
        }
    });
    let mut report = report.into_inner().expect("no checking thread panics");
    report.rank();
    report
}

/// Returns the smallest number of single operations without which the history is atomic. `None` if the search
/// would take long.
pub fn fewest(history: &History, report: &Report) -> Option<u64> {
    const OPERATIONS_MAX: usize = 200;
    const STEPS: u64 = 2_000;
    if report.verdict != Verdict::NotAtomic || report.suspects.len() > 100 {
        return None;
    }
    let fewest = report.suspects.iter().map(|suspect| {
        let key = history.keys().iter().find(|key| *key.key() == *suspect.key)?;
        let is_small = key.has_distinct_writes() && key.len() <= OPERATIONS_MAX;
        is_small.then(|| fewest_operations(key, STEPS))?
    });
    fewest.sum()
}

fn take<T>(queue: &Mutex<Vec<T>>) -> Option<T> {
    queue.lock().expect("no checking thread panics").pop()
}

fn on_threads(threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(&work);
        }
        work();
    });
}
