//! A crew: the threads that look at a table together, the caller's own among them.
//!
//! They are there as long as the crew is, and sleep between passes; waking one takes some ten microseconds, which the
//! engine weighs against the work ([`Host::looks_min`]). A panic in one of them is the caller's as soon as the others
//! are done. They are bound to cores if somebody says to which: several processes may share a machine, and a thread that is
//! bound waits behind another's while a core is idle.

use std::io;

use quorate_table::host::Host;
use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::warn;

/// How many threads work at once, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Muster {
    /// The caller's own included; at least 1.
    pub threads: usize,
    /// The cores that they are bound to, one each, the caller to the first; none if they may be anywhere.
    pub cores: Vec<usize>,
}

impl Default for Muster {
    /// The caller alone, anywhere.
    fn default() -> Muster {
        Muster { threads: 1, cores: Vec::new() }
    }
}

/// Threads that work at once.
#[derive(Debug)]
pub struct Crew {
    muster: Muster,
    /// All but the caller's.
    others: Option<ThreadPool>,
}

impl Crew {
    /// Starts the threads. An error if this process must not run on a core that is named, or the system gives no threads.
    pub fn start(muster: Muster) -> io::Result<Crew> {
        let allowed = sched_getaffinity(None)?;
        let mut cores = muster.cores.iter();
        if let Some(core) = cores.find(|core| **core >= CpuSet::MAX_CPU || !allowed.is_set(**core)) {
            let error = format!("this process cannot run on core {core}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let mut others = None;
        if muster.threads > 1 {
            let (cores, number_of) = (muster.cores.clone(), |other| other + 1);
            let builder = ThreadPoolBuilder::new()
                .num_threads(muster.threads - 1)
                .thread_name(move |other| format!("scan {}", number_of(other)))
                .start_handler(move |other| bind(&cores, number_of(other)));
            others = Some(builder.build().map_err(io::Error::other)?);
        }
        Ok(Crew { muster, others })
    }

    /// Binds the calling thread, the one that [`Host::each`] will be called from.
    pub fn join(&self) {
        bind(&self.muster.cores, 0);
    }
}

/// Binds this thread to the core with a number among these.
fn bind(cores: &[usize], number: usize) {
    if let Some(&core) = cores.get(number) {
        let mut set = CpuSet::new();
        set.set(core);
        if let Err(error) = sched_setaffinity(None, &set) {
            warn!(core, %error, "a scanning thread could not be bound to its core");
        }
    }
}

impl Host for Crew {
    fn threads(&self) -> usize {
        self.muster.threads
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

    fn crew(threads: usize) -> Crew {
        Crew::start(Muster { threads, ..Muster::default() }).unwrap()
    }

    #[test]
    fn each_part_is_done_once() {
        for threads in [1, 2, 7] {
            let crew = crew(threads);
            for count in [0, 1, 5, 100] {
                let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                crew.each(count, &|number| {
                    done[number].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn parts_are_done_at_once() {
        let (crew, all) = (crew(3), Barrier::new(3));
        for _ in 0..10 {
            crew.each(3, &|_| {
                all.wait();
            });
        }
    }

    #[test]
    fn a_panic_in_any_part_is_the_callers_and_the_crew_goes_on() {
        let crew = crew(3);
        for culprit in 0..5 {
            let done = AtomicUsize::new(0);
            let work = |number| {
                assert_ne!(number, culprit, "as the test wants");
                done.fetch_add(1, Ordering::Relaxed);
            };
            assert!(catch_unwind(AssertUnwindSafe(|| crew.each(5, &work))).is_err());
            // All others have been waited for.
            assert_eq!(done.load(Ordering::Relaxed), 4);
        }
    }

    #[test]
    fn threads_are_bound_to_the_cores_that_are_named() {
        let allowed = sched_getaffinity(None).unwrap();
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).take(2).collect();
        let threads = cores.len();
        let muster = Muster { threads, cores: cores.clone() };
        // The caller is bound, too: one that nobody else needs.
        let bound = thread::spawn(move || {
            let (crew, all) = (Crew::start(muster).unwrap(), Barrier::new(threads));
            crew.join();
            let bound = Mutex::new(BTreeSet::new());
            crew.each(threads, &|_| {
                all.wait();
                let here = sched_getaffinity(None).unwrap();
                assert_eq!(here.count(), 1);
                bound.lock().unwrap().extend((0..CpuSet::MAX_CPU).find(|core| here.is_set(*core)));
            });
            bound.into_inner().unwrap()
        });
        assert_eq!(bound.join().unwrap(), cores.into_iter().collect());
        let nowhere = Muster { threads: 1, cores: vec![CpuSet::MAX_CPU] };
        assert_eq!(Crew::start(nowhere).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
