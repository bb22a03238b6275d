//! How a server hides a subvolume that is not complete: the caches in front of it would keep what
//! the stream changes.

use std::any::Any;
use std::fmt;

/// Hides names of the directory in which subvolumes are made.
#[derive(Clone, Copy)]
pub(super) struct HideName<'a>(pub(super) &'a dyn Fn(&[u8]) -> Box<dyn Any>);

/// A hidden name. It is shown when this is dropped.
pub(super) struct HiddenName(#[expect(dead_code, reason = "only dropped")] Box<dyn Any>);

impl HideName<'_> {
    pub(super) fn hide(self, name: &[u8]) -> HiddenName {
        HiddenName((self.0)(name))
    }
}

impl fmt::Debug for HideName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HideName").finish_non_exhaustive()
    }
}

impl fmt::Debug for HiddenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HiddenName").finish_non_exhaustive()
    }
}
