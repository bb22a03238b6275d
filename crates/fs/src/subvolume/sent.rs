//! [`SubvolumesSent`]: the subvolumes that streams are made of, and those that received streams
//! refer to, on a volume that is open for writing.
//!
//! Left to others: the laws, and the begin and the end of a stream (`send/in_progress`).

use crate::{Error, Result};
use butternut_sys::lock::{Mutex, rank};
use std::collections::BTreeMap;

/// The subvolumes that streams in progress read, and the number of streams of each.
#[derive(Debug, Default)]
pub(crate) struct SubvolumesSent {
    streams: Mutex<BTreeMap<u64, usize>, rank::SubvolumesSent>,
}

impl SubvolumesSent {
    /// Returns whether a stream reads a subvolume.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.streams.lock().contains_key(&id)
    }

    /// Fails if a stream reads a subvolume. The caller excludes operations that write.
    pub(crate) fn require_none(&self, id: u64) -> Result<()> {
        if self.has(id) {
            return Err(Error::NotPermitted { what: "a send or a receive reads it" });
        }
        Ok(())
    }

    pub(crate) fn add(&self, ids: &[u64]) {
        let mut streams = self.streams.lock();
        for id in ids {
            *streams.entry(*id).or_default() += 1;
        }
    }

    pub(crate) fn remove(&self, ids: &[u64]) {
        let mut streams = self.streams.lock();
        for id in ids {
            let count = streams.get(id).map_or(0, |count| count.saturating_sub(1));
            if count == 0 {
                streams.remove(id);
            } else {
                streams.insert(*id, count);
            }
        }
    }
}
