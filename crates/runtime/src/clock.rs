//! The present instant.

use quorate_protocol::Time;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of the boot-time clock. Unlike the monotonic clock, this clock goes on while the machine
/// is suspended, so a process that slept longer than its lease notices that when it wakes (rule S11). A call
/// takes about 25 ns, and makes no system call.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    // The kernel never returns a negative boot time, and 2^64 nanoseconds are 584 years.
    Time(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Returns the wall clock minus the boot-time clock, in nanoseconds. The result changes when the wall clock
/// is set or slewed.
pub fn wall_offset() -> i64 {
    let wall = clock_gettime(ClockId::Realtime);
    let wall = wall.tv_sec * 1_000_000_000 + wall.tv_nsec;
    wall - now().0 as i64
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    #[test]
    fn runs_forward_at_the_pace_of_the_monotonic_clock() {
        let (boot, mono) = (super::now(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (boot, mono) = (super::now().since(boot), mono.elapsed());
        assert!(boot >= Duration::from_millis(20), "{boot:?}");
        assert!(boot <= mono + Duration::from_millis(1), "{boot:?} against {mono:?}");
    }

    #[test]
    fn the_offset_leads_to_the_wall_clock() {
        let wall =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
        let computed = super::now().0 as i64 + super::wall_offset();
        assert!((computed - wall).abs() < 1_000_000_000, "{computed} against {wall}");
    }
}
