//! Runs the target that `BUTTERNUT_FUZZ_TARGET` names under libFuzzer.

#![no_main]

use butternut_fuzz::{Target, target};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("BUTTERNUT_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        panic!("BUTTERNUT_FUZZ_TARGET='{name}' is no target; make fuzz lists them")
    })
});

fuzz_target!(|input: &[u8]| (TARGET.run)(input));
