//! Floor 9: the lab's judge, apart from what runs the benchmarks.
//!
//! ```text
//! record     the lines of a run                       <- `run` appends them
//! ```
//!
//! It needs no crate of the engine, so it compiles alone.

pub mod record;
