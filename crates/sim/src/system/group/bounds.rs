//! The bounds of a group's members, which the simulator derives from the seed.

use std::time::Duration;

use quorate_protocol::group;

use super::Settings;

impl Settings {
    /// Returns the settings of a process. Each seed makes other bounds small.
    pub(super) fn group(&self, seed: u64) -> group::Settings {
        let mut settings = group::Settings {
            // In every other seed, views count as large.
            receipts_at_once: if seed.is_multiple_of(2) { 2 } else { 8 },
            window_bytes: 4 << 10,
            rate_interval: Duration::from_millis(250),
            // In a third of the seeds members send no casts, in another third few.
            cast_window_bytes: [4 << 10, 1 << 10, 0][(seed % 3) as usize],
            ahead_bytes: 512,
            piece_bytes: 300,
            // In every fourth seed, states come piece by piece, with time between the pieces.
            state_bytes_per_second: if seed.is_multiple_of(4) { 20_000 } else { 96 << 20 },
            ..Default::default()
        };
        if !self.small_bounds {
            return settings;
        }
        let one_of = |values: [usize; 3], by: u64| values[(seed / by % 3) as usize];
        settings.window_bytes = one_of([4 << 10, 1 << 10, 16 << 10], 2);
        settings.ahead_bytes = one_of([2 << 10, 8 << 10, 512], 3);
        // In every third seed, a host takes long for each step, so it gets several events in one step.
        settings.hand_over_bytes = one_of([4 << 10, 1, 64 << 10], 1);
        settings.queue_bytes_max = if seed % 5 < 2 { 2 << 10 } else { 64 << 10 };
        settings.behind_bytes_max = if seed.is_multiple_of(3) { 48 << 10 } else { 1 << 20 };
        settings
    }

    /// Returns the bytes that a member's host may have received and not applied, before the member quits.
    pub(super) fn inbox_bytes_max(&self, seed: u64) -> usize {
        if self.small_bounds && seed % 4 == 1 { 24 << 10 } else { usize::MAX }
    }

    /// Returns the maximum number of padding bytes in a message.
    pub(super) fn padding(&self) -> usize {
        if self.small_bounds { PADDING_BYTES_MAX } else { 0 }
    }
}

/// Maximum padding of messages in seeds with small bounds, in bytes.
const PADDING_BYTES_MAX: usize = 400;
