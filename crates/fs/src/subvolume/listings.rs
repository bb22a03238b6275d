//! [`ListedSubvolumes`]: the subvolumes whose directories are being listed.
//!
//! A listing ([`ReadDir`](crate::ReadDir)) reads the tree of its directory at each step. So the
//! blocks of a deleted subvolume are not freed while it is listed (`subvolume::clean`). A listing
//! is counted before it looks the tree up. A listing that the cleaner did not see finds no tree.

use crate::write_state::WriteState;
use butternut_sys::lock::{Mutex, rank};
use std::collections::HashMap;
use std::sync::Arc;

/// The number of listings of each subvolume that is being listed.
#[derive(Debug, Default)]
pub(crate) struct ListedSubvolumes(Mutex<HashMap<u64, u64>, rank::Subvolumes>);

/// Keeps the tree of a subvolume readable for a listing, also if the subvolume is deleted.
#[derive(Debug)]
pub(crate) struct Listing {
    write_state: Arc<WriteState>,
    subvolume: u64,
}

impl ListedSubvolumes {
    /// Returns whether a subvolume is being listed.
    pub(crate) fn contains(&self, subvolume: u64) -> bool {
        self.0.lock().contains_key(&subvolume)
    }
}

impl Listing {
    pub(crate) fn begin(write_state: &Arc<WriteState>, subvolume: u64) -> Self {
        *write_state.listings.0.lock().entry(subvolume).or_default() += 1;
        Self { write_state: Arc::clone(write_state), subvolume }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let mut listings = self.write_state.listings.0.lock();
        if let Some(count) = listings.get_mut(&self.subvolume) {
            *count -= 1;
            if *count == 0 {
                listings.remove(&self.subvolume);
            }
        }
        drop(listings);
        self.write_state.cleaner.is_unpinned(self.subvolume);
    }
}
