//! All short sequences of operations and syncs on a few names, and the rules for what a crash
//! leaves of them.
//!
//! | file | what it is |
//! |---|---|
//! | [`step`] | the operations, the initial states, and the printed form of a sequence |
//! | [`model`] | the expected names and inodes |
//! | [`rules`] | what a crash must and may leave |
//! | [`enumerate`] | all sequences of up to two operations, samples of longer ones |
//! | [`library`] | runs a sequence through the library, and reads a volume |
//!
//! A sequence begins in a committed state. The rules say what must be there after its syncs, and
//! what may be there, whether a sync wrote a log or committed.

pub mod enumerate;
pub mod library;
pub mod model;
pub mod rules;
pub mod step;

pub use enumerate::{ALL, SAMPLED, Shape};
pub use library::Prepared;
pub use model::World;
pub use rules::{History, Observed};
pub use step::{INITIALS, Initial, Sequence, Step, Verb};

#[cfg(test)]
mod tests;
