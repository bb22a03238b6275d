//! Tests of `butternut-lab run`: small runs on real devices. They look at what is measured,
//! recorded, refused and left behind, never at how fast it was.
//!
//! A missing tool is a failure. With `BUTTERNUT_NO_KERNEL`, tests that need root are left out.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "the setting of tests panics as tests do, and says what is left out"
)]

mod bad_input;
mod budgets;
mod interrupts;
mod refused;
mod runs;
mod setting;
mod top;
