//! All processes of the bench share one clock, that of the machine.

/// Returns the time of a clock that all processes of the machine share, in nanoseconds.
pub(super) fn nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
