//! The peak memory of this process.

use std::fs;

/// Returns the peak memory of this process since [`forget_peak`]; known on Linux only.
pub(super) fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1024)
}

/// Resets the peak of this process's memory to its present use.
pub(super) fn forget_peak() {
    // If the reset fails, the peak is the peak of the process since its start, which is no smaller.
    let _ = fs::write("/proc/self/clear_refs", "5");
}
