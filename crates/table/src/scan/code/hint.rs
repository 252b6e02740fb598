//! Hints to the processor, which never change results.

/// Prefetches a value's cache line.
#[inline(always)]
#[allow(unsafe_code)] // A hint to the processor.
pub(in crate::scan) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the hint neither reads nor writes, and every x86-64 processor has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
