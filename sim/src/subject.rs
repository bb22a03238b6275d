//! [`Subject`]: a filesystem that is held to the model.

use crate::model::Rules;
use crate::operation::{Operation, Outcome};
use crate::tree::Tree;
use anyhow::Result;

/// An error of these calls is a failure of the machinery (a mount that does not mount), not an
/// answer: answers are outcomes.
pub trait Subject {
    fn apply(&mut self, operation: &Operation) -> Result<Outcome>;

    /// Where it differs from Linux, and is right.
    fn rules(&self) -> Rules {
        Rules::default()
    }

    /// Everything that can be seen, of the tree and of the open files.
    fn tree(&mut self) -> Result<Tree>;
}
