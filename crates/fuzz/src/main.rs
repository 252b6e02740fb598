//! The search for inputs that make a target fail, by libFuzzer. `QUORATE_FUZZ_TARGET` names the target.

#![no_main]

use std::{env, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use quorate_fuzz::{TARGETS, Target, target};

static CHOSEN: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = env::var("QUORATE_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        panic!("QUORATE_FUZZ_TARGET is {name:?}, and must be one of {}", names.join(", "))
    })
});

fuzz_target!(|input: &[u8]| (CHOSEN.run)(input));
