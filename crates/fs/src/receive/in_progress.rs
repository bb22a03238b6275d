//! [`ReceivesInProgress`]: the subvolumes that resumable receives make.
//!
//! 1. One receive at a time makes the subvolume of a source in a directory, and uses and deletes
//!    its checkpoints. What another one would take for the remains of an interrupted receive may be
//!    complete by the time that it is deleted. Where only one program has the volume open, and
//!    receives one stream, this is never refused; the process of a mount receives several.

use crate::{Error, FileId, Result};
use butternut_format::uuid::Uuid;
use butternut_sys::lock::{Mutex, rank};

/// The directories, and the UUIDs of the sources.
#[derive(Debug, Default)]
pub(crate) struct ReceivesInProgress {
    all: Mutex<Vec<(FileId, Uuid)>, rank::ReceivesInProgress>,
}

/// A receive in progress, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct ReceiveInProgress<'a> {
    all: &'a ReceivesInProgress,
    own: (FileId, Uuid),
}

impl Drop for ReceiveInProgress<'_> {
    fn drop(&mut self) {
        self.all.all.lock().retain(|other| *other != self.own);
    }
}

impl<'a> ReceiveInProgress<'a> {
    /// Begins to receive a source in a directory.
    ///
    /// # Errors
    /// Another thread does.
    pub(super) fn begin(all: &'a ReceivesInProgress, own: (FileId, Uuid)) -> Result<Self> {
        let mut others = all.all.lock();
        if others.contains(&own) {
            return Err(Error::NotPermitted {
                what: "another receive of the same subvolume goes on in the directory",
            });
        }
        others.push(own);
        drop(others);
        Ok(Self { all, own })
    }
}
