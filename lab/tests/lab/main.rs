//! Tests of `butternut-lab run`: small runs on real devices. They look at what is measured, recorded,
//! refused and left behind, never at how fast it was.
//!
//! A missing tool is a failure. With `BUTTERNUT_NO_KERNEL`, tests that need root are left out.

mod bad_input;
mod interrupts;
mod refusals;
mod runs;
mod setting;
