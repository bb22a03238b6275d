//! [`Subject`]: a filesystem that is compared with the model.

use crate::model::Rules;
use crate::operation::{Operation, Outcome};
use crate::tree::Tree;
use anyhow::Result;

/// An `Err` of these calls is a failure of the test setup (a mount that fails, say). What the
/// filesystem answers is an outcome.
pub trait Subject {
    fn apply(&mut self, operation: &Operation) -> Result<Outcome>;

    /// Returns how the subject may differ from Linux.
    fn rules(&self) -> Rules {
        Rules::default()
    }

    /// Returns everything that is visible of the tree and of the open files.
    fn tree(&mut self) -> Result<Tree>;
}
