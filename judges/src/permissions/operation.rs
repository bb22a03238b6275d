//! An operation of the table, and how it fails.

use rustix::io::Errno;
use std::path::Path;

/// The failed step of an operation, and its errno.
#[derive(Clone, Copy, Debug)]
pub struct Failed(pub &'static str, pub Errno);

/// An operation in the directory of a case.
pub type Operation = fn(&Path) -> Result<(), Failed>;

/// Adds the name of the step to an errno.
pub trait At<T> {
    fn at(self, step: &'static str) -> Result<T, Failed>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: &'static str) -> Result<T, Failed> {
        self.map_err(|errno| Failed(step, errno))
    }
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, step: &'static str) -> Result<T, Failed> {
        self.map_err(|error| {
            let number = error.raw_os_error().unwrap_or(0);
            Failed(step, Errno::from_raw_os_error(number))
        })
    }
}
