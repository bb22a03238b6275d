//! [`ReceiveServing`]: what a server needs of a receive. It hides the name of a subvolume that is
//! not complete, because the caches in front of it would keep what the stream changes, and it ends
//! a command that takes long when the mount or the client ends.

use crate::{Error, Result};
use std::any::Any;
use std::fmt;
use std::io;

/// The number of the error of a receive that is not wanted any more.
const ECANCELED: i32 = 125;

/// The calls of a server that receives for programs which see the directory meanwhile.
#[derive(Clone, Copy)]
pub struct ReceiveServing<'a> {
    /// Hides a name in the directory. The name is shown when the result is dropped.
    pub hide: &'a dyn Fn(&[u8]) -> Box<dyn Any>,
    /// Returns whether the receive is to go on. It is called while a command copies or seals data,
    /// which may take hours, after each mebibyte at most.
    pub goes_on: &'a dyn Fn() -> bool,
}

/// A hidden name. It is shown when this is dropped.
pub(super) struct HiddenName(#[expect(dead_code, reason = "only dropped")] Box<dyn Any>);

impl ReceiveServing<'_> {
    pub(super) fn hide_name(&self, name: &[u8]) -> HiddenName {
        HiddenName((self.hide)(name))
    }
}

/// Called after each step of a command that takes long.
///
/// # Errors
/// [`Error::StreamInput`] with `ECANCELED`: the receive is not to go on.
pub(super) fn check(goes_on: &dyn Fn() -> bool) -> Result<()> {
    if goes_on() {
        return Ok(());
    }
    Err(Error::StreamInput(io::Error::from_raw_os_error(ECANCELED)))
}

impl fmt::Debug for ReceiveServing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveServing").finish_non_exhaustive()
    }
}

impl fmt::Debug for HiddenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HiddenName").finish_non_exhaustive()
    }
}
