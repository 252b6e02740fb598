//! The source of chance: the operating system's, and a fast generator seeded from it.

use quorate_protocol::{DomainId, Incarnation};
use rand::{Rng as _, TryRng as _, rngs::SysRng};
use rand_pcg::Pcg64Mcg;

/// A fresh incarnation: drawn once when a process starts.
pub fn incarnation() -> Incarnation {
    Incarnation(system_u128())
}

/// A fresh domain id: drawn once, by whoever founds the domain (rule S1).
pub fn domain() -> DomainId {
    DomainId(system_u128())
}

/// A fresh mark of a start: drawn once when a process starts from its directory.
pub(crate) fn mark() -> u64 {
    system_u128() as u64
}

/// Fast and uniform, for protocols and for jitter. Predictable to who sees enough of it: never for secrets.
#[derive(Debug)]
pub struct Chance(Pcg64Mcg);

impl Chance {
    /// A generator seeded by the operating system.
    pub fn new() -> Self {
        Chance(rand::make_rng())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }
}

impl Default for Chance {
    fn default() -> Self {
        Self::new()
    }
}

/// 256 bits that nobody guesses, from the operating system.
pub fn secret() -> [u8; 32] {
    let mut bytes = [0; 32];
    SysRng.try_fill_bytes(&mut bytes).expect("the operating system's random source works");
    bytes
}

/// 128 bits that no other process draws. An operating system without a random source cannot host us.
fn system_u128() -> u128 {
    let mut bytes = [0; 16];
    SysRng.try_fill_bytes(&mut bytes).expect("the operating system's random source works");
    u128::from_le_bytes(bytes)
}
