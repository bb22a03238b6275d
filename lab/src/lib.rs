//! Floor 9: the lab's judge, apart from what runs the benchmarks.
//!
//! ```text
//! record     the lines of a run              <- `run` appends them
//! history    a directory of records          -> runs and cells over time, through an index
//! judge      cells of runs                   -> verdicts, change points, error rates
//! ```
//!
//! It needs no crate of the engine, so it compiles alone.

pub mod history;
pub mod judge;
#[cfg(test)]
mod made;
pub mod record;
