//! The processor time of a process or a thread, and the memory of a process.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// Returns the resident memory of a process, in bytes.
pub(super) fn memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("/proc/PID/status of a process has no line 'VmRSS'")?;
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes << 10)
}

/// Returns the number of bytes that the system has written to disks for a process.
pub(super) fn disk_bytes(pid: u32) -> Result<u64> {
    let io = fs::read_to_string(format!("/proc/{pid}/io"))?;
    let written = io
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes:"))
        .with_context(|| format!("/proc/{pid}/io has no line 'write_bytes'"))?;
    Ok(written.trim().parse()?)
}

/// Returns the user and system time of a process.
pub(super) fn time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat
        .rsplit_once(')')
        .context("/proc/PID/stat of a process does not have the expected form")?
        .1
        .split_whitespace();
    // utime and stime are the fields 14 and 15, in ticks of 10 ms; the first two fields were cut off.
    let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap_or(0)).sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// Returns the processor time of this thread, in seconds.
pub(super) fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the result of `work`, and the seconds of this thread that it took.
pub(super) fn processor_time<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let busy = processor_seconds();
    let result = work();
    (result, processor_seconds() - busy)
}
