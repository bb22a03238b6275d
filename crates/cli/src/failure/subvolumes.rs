//! Failures of commands about subvolumes, offline and on mounts.

use super::Failure;
use crate::output::text;

/// The failure of a command that needs a subvolume at a path.
pub(crate) fn not_a_subvolume(path: &[u8]) -> Failure {
    Failure::new(text::escaped(path), "not a subvolume")
        .hint("`butternut subvolume list` shows what there is")
}

/// The failure of making a received subvolume writable without --force.
pub(crate) fn received(path: &[u8]) -> Failure {
    Failure::new(text::escaped(path), "the subvolume was received")
        .hint("it cannot be the parent of later streams once it is writable; -f does it")
}
