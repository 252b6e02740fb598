//! The time of the inner loops of a pass for a block of 4,096 rows: `cargo bench -p quorate-table --bench
//! kernels`.
//!
//! The measured functions are not inlined, so that `valgrind` can count the instructions of one call
//! (docs/performance.md describes how).

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use quorate_table::scan::kernel::{self, Packed};

const ROWS: usize = 4096;
/// The sizes of the numbers in bits; their codes take one, two, four and eight bytes.
const WIDTHS: [u32; 4] = [8, 16, 32, 64];
/// The distance between gathered rows, in rows.
const STEP: usize = 7;
/// The size of a filter for some hundreds of queries, in words, and the number of bits that are set in each
/// word.
const FILTER_WORDS: usize = 1 << 11;
const FILTER_BITS: u32 = 1;

/// Returns numbers of `bits` bits that are spread over their whole range.
fn numbers(bits: u32) -> Packed {
    let spread = |row: u64| row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits);
    Packed::pack(&(0..ROWS as u64).map(spread).collect::<Vec<_>>())
}

#[inline(never)]
fn within(numbers: &Packed, (low, high): (u64, u64), bits: &mut [u64]) {
    kernel::within(numbers, low, high, bits);
}

#[inline(never)]
fn narrow(numbers: &Packed, (low, high): (u64, u64), rows: &mut Vec<u32>) {
    numbers.retain_within(low, high, rows, 0);
}

#[inline(never)]
fn mix(numbers: &Packed, high: u64, hashes: &mut [u32]) {
    kernel::mix(numbers, high, 0, 0x85EB_CA6B, hashes);
}

#[inline(never)]
fn probe(sums: &mut [u32], filter: &[u32], rows: &mut [u32]) -> usize {
    kernel::probe(sums, filter, rows)
}

#[inline(never)]
fn gather(numbers: &Packed, rows: &[u32], slots: &mut [u64]) {
    numbers.gather(rows, slots.iter_mut());
}

fn kernels(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("kernel");
    group.throughput(Throughput::Elements(ROWS as u64));
    for width in WIDTHS {
        let numbers = numbers(width);
        // The range holds a sixteenth of all numbers.
        let most = u64::MAX >> (64 - width);
        let range = (most / 2, most / 2 + most / 16);
        let mut bits = vec![0; ROWS / 64];
        group.bench_function(format!("within/{width}"), |bencher| {
            bencher.iter(|| within(black_box(&numbers), black_box(range), black_box(&mut bits)));
        });
        let (all, mut rows) = ((0..ROWS as u32).collect::<Vec<_>>(), Vec::new());
        group.bench_function(format!("narrow/{width}"), |bencher| {
            bencher.iter(|| {
                rows.clone_from(&all);
                narrow(black_box(&numbers), black_box(range), black_box(&mut rows));
            });
        });
        let mut hashes = vec![0; ROWS];
        group.bench_function(format!("mix/{width}"), |bencher| {
            bencher.iter(|| mix(black_box(&numbers), most, black_box(&mut hashes)));
        });
    }
    let spread = |row: u32| row.wrapping_mul(0x9E37_79B1);
    let filter: Vec<u32> = (0..FILTER_WORDS as u32).map(|word| FILTER_BITS << (spread(word) >> 27)).collect();
    let sums: Vec<u32> = (0..ROWS as u32).map(spread).collect();
    let (mut hashes, mut rows) = (sums.clone(), vec![0; ROWS + 16]);
    group.bench_function("probe", |bencher| {
        bencher.iter(|| {
            hashes.copy_from_slice(&sums);
            probe(black_box(&mut hashes), black_box(&filter), black_box(&mut rows))
        });
    });
    let rows: Vec<u32> = (0..ROWS as u32).step_by(STEP).collect();
    group.throughput(Throughput::Elements(rows.len() as u64));
    let mut slots = vec![0; rows.len()];
    for width in WIDTHS {
        let numbers = numbers(width);
        group.bench_function(format!("gather/{width}"), |bencher| {
            bencher.iter(|| gather(black_box(&numbers), black_box(&rows), black_box(&mut slots)));
        });
    }
    group.finish();
}

criterion_group!(benches, kernels);
criterion_main!(benches);
