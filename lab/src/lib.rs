//! Floor 9: the lab's judge, apart from what runs the benchmarks.
//!
//! ```text
//! record     the lines of a run              <- `run` appends them
//! history    a directory of records          -> runs and cells over time, through an index
//! judge      cells of runs                   -> verdicts, change points, error rates
//! findings   what gates found                -> open until fixed or waived
//! bisect     commits                         -> the first one that measures worse
//! reports    verdicts and figures            -> text, Markdown, CSV, a page of HTML
//! commands   the command line of all this
//! holes      image files                     -> allocated ones, for what runs the benchmarks
//! ```
//!
//! It needs no crate of the engine, so it compiles alone.

pub mod bisect;
pub mod commands;
pub mod findings;
pub mod history;
pub mod holes;
pub mod judge;
#[cfg(test)]
mod made;
pub mod record;
pub mod reports;
