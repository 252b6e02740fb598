//! Costs of the ways to find rows on this machine. The unit is the time to compare one value in a comparison
//! of a whole column.
//!
//! The costs are measured once, with a clock that the caller passes in. They only decide between plans, so
//! answers never depend on them.

use std::{hint::black_box, time::Duration};

use crate::scan::{
    block::BLOCK_ROWS,
    code::{kernel, packed::Packed},
};

/// The costs of the ways to find rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The cost to hash a row for a group of queries and look it up in the group's filter.
    pub group: f64,
    /// The cost to test a row separately.
    pub row: f64,
}

impl Default for Costs {
    /// Returns the costs on a processor with AVX-512: 1.3 ns and 1 ns, against 0.06 ns per compared value.
    fn default() -> Costs {
        Costs { group: 24.0, row: 16.0 }
    }
}

/// The number of columns that a group usually hashes.
const COLUMNS: usize = 3;
/// The size of a usual filter, in words.
const FILTER_WORDS: usize = 1 << 11;
/// The number of chunks of 8 KiB to measure. Together the chunks exceed the first-level cache.
const CHUNKS: usize = 192;
/// The number of rows of each chunk to test one by one.
const ROWS: usize = 128;
/// The number of rounds of each measurement, of which the shortest counts.
const ROUNDS: usize = 8;
/// The least and (`MOST`) the greatest cost that a measurement may yield. They limit the error of a disturbed
/// measurement.
const LEAST: f64 = 4.0;
const MOST: f64 = 200.0;

impl Costs {
    /// Measures the costs, within some milliseconds.
    pub fn measured(mut now: impl FnMut() -> Duration) -> Costs {
        let chunk = |chunk: usize| {
            let spread = |row: usize| ((row + chunk) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50;
            Packed::pack(&(0..BLOCK_ROWS).map(spread).collect::<Vec<_>>())
        };
        let chunks: Vec<Packed> = (0..CHUNKS).map(chunk).collect();
        let mut shortest = |look: &mut dyn FnMut()| {
            let round = |_| {
                let begin = now();
                look();
                now().saturating_sub(begin)
            };
            (0..ROUNDS).map(round).min().unwrap_or_default().as_secs_f64()
        };
        let mut bits = [0; BLOCK_ROWS / 64];
        let scan = shortest(&mut || {
            chunks.iter().for_each(|chunk| {
                black_box(kernel::within(chunk, 100, 200, black_box(&mut bits)));
            });
        });
        let (mut hashes, mut rows) = (vec![0; BLOCK_ROWS], vec![0; BLOCK_ROWS + 16]);
        let filter = vec![1; FILTER_WORDS];
        let group = shortest(&mut || {
            for columns in chunks.chunks(COLUMNS) {
                hashes.fill(0);
                for (factor, column) in columns.iter().enumerate() {
                    kernel::mix(column, 1 << 14, 0, 2 * factor as u32 + 1, &mut hashes);
                }
                black_box(kernel::probe(&mut hashes, &filter, &mut rows));
            }
        });
        let row = shortest(&mut || {
            let of_chunk =
                |chunk: &Packed| (0..ROWS).filter(|row| chunk.number(row * 67 % BLOCK_ROWS) < 100).count();
            black_box(chunks.iter().map(of_chunk).sum::<usize>());
        });
        // The times are for one row of one column.
        let scan = scan / (CHUNKS * BLOCK_ROWS) as f64;
        let part = |time: f64| (time / scan).clamp(LEAST, MOST);
        match scan > 0.0 {
            true => Costs {
                group: part(group / (CHUNKS / COLUMNS * BLOCK_ROWS) as f64),
                row: part(row / (CHUNKS * ROWS) as f64),
            },
            false => Costs::default(),
        }
    }
}
