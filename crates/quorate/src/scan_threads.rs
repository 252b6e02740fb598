//! The threads that scan a table together, the caller's own among them.
//!
//! The threads live as long as [`ScanThreads`], and sleep between passes. Waking a thread takes some ten
//! microseconds, which the engine weighs against the work ([`Host::looks_min`]). A panic in a thread reaches
//! the caller as soon as all other threads are done. The threads are bound to cores only on request: several
//! processes may share a machine, and a bound thread waits behind another one while a core is idle.

use std::io;

use quorate_table::host::Host;
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::warn;

/// The number of threads that work at once, and their cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanThreadOptions {
    /// Number of threads, the caller's own included; at least 1.
    pub threads: usize,
    /// The cores to which the threads are bound, one core for each thread and the first core for the caller;
    /// empty if the threads may run on any core.
    pub cores: Vec<usize>,
}

impl Default for ScanThreadOptions {
    /// Returns options with which the caller scans alone, on any core.
    fn default() -> ScanThreadOptions {
        ScanThreadOptions { threads: 1, cores: Vec::new() }
    }
}

/// Threads that work at once.
#[derive(Debug)]
pub struct ScanThreads {
    scan_thread_options: ScanThreadOptions,
    /// All threads except the caller's.
    others: Option<ThreadPool>,
}

impl ScanThreads {
    /// Starts the threads. Fails if this process may not run on a named core, or if the system gives no
    /// threads.
    pub fn start(scan_thread_options: ScanThreadOptions) -> io::Result<ScanThreads> {
        let allowed = sched_getaffinity(None)?;
        let mut cores = scan_thread_options.cores.iter();
        if let Some(core) = cores.find(|core| **core >= CpuSet::MAX_CPU || !allowed.is_set(**core)) {
            let error = format!("this process cannot run on core {core}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let mut others = None;
        if scan_thread_options.threads > 1 {
            let (cores, number_of) = (scan_thread_options.cores.clone(), |other| other + 1);
            let builder = ThreadPoolBuilder::new()
                .num_threads(scan_thread_options.threads - 1)
                .thread_name(move |other| format!("scan {}", number_of(other)))
                .start_handler(move |other| bind(&cores, number_of(other)));
            others = Some(builder.build().map_err(io::Error::other)?);
        }
        Ok(ScanThreads { scan_thread_options, others })
    }

    /// Binds the calling thread to the first core. The caller is the thread that will call [`Host::each`].
    pub fn join(&self) {
        bind(&self.scan_thread_options.cores, 0);
    }
}

/// Binds this thread to the core with index `number` in `cores`.
fn bind(cores: &[usize], number: usize) {
    if let Some(&core) = cores.get(number) {
        let mut set = CpuSet::new();
        set.set(core);
        if let Err(error) = sched_setaffinity(None, &set) {
            warn!(core, %error, "a scanning thread could not be bound to its core");
        }
    }
}

impl Host for ScanThreads {
    fn threads(&self) -> usize {
        self.scan_thread_options.threads
    }

    fn each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        match &self.others {
            Some(others) if count > 1 => others.in_place_scope(|scope| {
                (1..count).for_each(|number| scope.spawn(move |_| work(number)));
                work(0);
            }),
            _ => (0..count).for_each(work),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{
            Barrier, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
    };

    use super::*;

    fn scan_threads(threads: usize) -> ScanThreads {
        ScanThreads::start(ScanThreadOptions { threads, ..ScanThreadOptions::default() }).unwrap()
    }

    #[test]
    fn each_part_is_done_once() {
        for threads in [1, 2, 7] {
            let scan_threads = scan_threads(threads);
            for count in [0, 1, 5, 100] {
                let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                scan_threads.each(count, &|number| {
                    done[number].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn parts_are_done_at_once() {
        let (scan_threads, all) = (scan_threads(3), Barrier::new(3));
        for _ in 0..10 {
            scan_threads.each(3, &|_| {
                all.wait();
            });
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_caller_and_the_threads_survive() {
        let scan_threads = scan_threads(3);
        for culprit in 0..5 {
            let done = AtomicUsize::new(0);
            let work = |number| {
                assert_ne!(number, culprit, "as the test wants");
                done.fetch_add(1, Ordering::Relaxed);
            };
            assert!(catch_unwind(AssertUnwindSafe(|| scan_threads.each(5, &work))).is_err());
            // `each` has waited for all other parts.
            assert_eq!(done.load(Ordering::Relaxed), 4);
        }
    }

    #[test]
    fn threads_are_bound_to_the_cores_that_are_named() {
        let allowed = sched_getaffinity(None).unwrap();
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).take(2).collect();
        let threads = cores.len();
        let scan_thread_options = ScanThreadOptions { threads, cores: cores.clone() };
        // The test binds a thread of its own, because binding also affects the calling thread.
        let bound = thread::spawn(move || {
            let (scan_threads, all) =
                (ScanThreads::start(scan_thread_options).unwrap(), Barrier::new(threads));
            scan_threads.join();
            let bound = Mutex::new(BTreeSet::new());
            scan_threads.each(threads, &|_| {
                all.wait();
                let here = sched_getaffinity(None).unwrap();
                assert_eq!(here.count(), 1);
                bound.lock().unwrap().extend((0..CpuSet::MAX_CPU).find(|core| here.is_set(*core)));
            });
            bound.into_inner().unwrap()
        });
        assert_eq!(bound.join().unwrap(), cores.into_iter().collect());
        let nowhere = ScanThreadOptions { threads: 1, cores: vec![CpuSet::MAX_CPU] };
        assert_eq!(ScanThreads::start(nowhere).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
