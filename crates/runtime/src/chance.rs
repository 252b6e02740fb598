//! Random bits: from the operating system, and from a fast generator seeded by it.

use quorate_protocol::{DomainId, Incarnation};
use rand::{Rng as _, TryRng as _, rngs::SysRng};
use rand_pcg::Pcg64Mcg;

/// Draws a fresh incarnation, for a new process.
pub fn incarnation() -> Incarnation {
    Incarnation(system_u128())
}

/// Draws a fresh domain id. Only the founder of a domain calls this, once (rule S1).
pub fn domain() -> DomainId {
    DomainId(system_u128())
}

/// Draws a random mark for one start of a process from a directory. The mark distinguishes this start from
/// other starts with the same number.
pub(crate) fn mark() -> u64 {
    system_u128() as u64
}

/// A fast, uniform generator, for protocols and for jitter. It must not make secrets, because a person who
/// sees enough of its output can predict the rest.
#[derive(Debug)]
pub struct Chance(Pcg64Mcg);

impl Chance {
    /// Makes a generator seeded by the operating system.
    pub fn new() -> Self {
        Chance(rand::make_rng())
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }
}

impl Default for Chance {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns 256 unpredictable bits from the operating system.
pub fn secret() -> [u8; 32] {
    let mut bytes = [0; 32];
    SysRng.try_fill_bytes(&mut bytes).expect("the operating system's random source works");
    bytes
}

/// Returns 128 random bits, which no other process will draw. Panics if the operating system's random source
/// fails, because a process cannot run without it.
fn system_u128() -> u128 {
    let mut bytes = [0; 16];
    SysRng.try_fill_bytes(&mut bytes).expect("the operating system's random source works");
    u128::from_le_bytes(bytes)
}
