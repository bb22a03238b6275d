//! Nowait writes (`RWF_NOWAIT`): the limits that they respect, and how a refusal is undone.
//!
//! Laws:
//!
//! 1. A write that would need a device, a tree, a transaction or a lock that another thread holds
//!    for long is refused, and has changed nothing visible.
//! 2. It is done as a whole or not at all: it is one step of [`FileState::write_at`], in which
//!    everything that a step needs is found before its first byte is copied.
//! 3. A refused write keeps nothing reserved: neither data space nor metadata space.
//!
//! There is no other path for them. The functions of a write pass `Wait` on, and each refuses where
//! it would block: [`FileState::write_targets`], for example, for files that may be written in
//! place, because their write targets are in the trees.

use crate::error::FileError;
use crate::state::FileState;
use crate::state::backing::Backing;
use crate::write::DIRECT_BYTES_MIN;
use butternut_format::units::{SECTOR_BYTES, length};
use butternut_sys::wait::Wait;

/// What a write finds, for the case that it is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeforeWrite {
    /// Bytes of the data reservation, and how many of them dirty blocks need.
    data_bytes: u64,
    bytes_reserved: u64,
    metadata_bytes: u64,
    /// Where the first block will be written, if it is dirty.
    first: Option<Backing>,
}

impl FileState {
    /// Refuses a write of `bytes` bytes after which [`FileState::write_at`] would write back or
    /// merge, or its caller would be throttled.
    pub(crate) fn check_limits(&self, bytes: usize, wait: Wait) -> Result<(), FileError> {
        if wait == Wait::Block {
            return Ok(());
        }
        let (pages, more) = (self.source.pages(), length(bytes));
        let is_below_limits = pages.dirty_bytes() + more <= pages.limits().dirty.free_run_bytes();
        let starts_writeback = !self.source.has_flusher()
            && (bytes >= DIRECT_BYTES_MIN
                || self.source.should_write_back(self.dirty_bytes() + more));
        let starts_merge = self.has_many_extents();
        let is_fit = is_below_limits && !starts_writeback && !starts_merge;
        is_fit.then_some(()).ok_or(FileError::WouldBlock)
    }

    pub(crate) fn before_write(&self) -> BeforeWrite {
        BeforeWrite {
            data_bytes: self.data_reservation.bytes(),
            bytes_reserved: self.bytes_reserved,
            metadata_bytes: self.metadata_bytes_reserved(),
            first: self.dirty_backing(0),
        }
    }

    /// Restores what a refused write has found (law 3). The space may be missing elsewhere.
    pub(crate) fn undo_refused_write(&mut self, before: BeforeWrite) {
        if let Some(first) = before.first {
            // The first block may have been about to leave the tree.
            self.set_backing(0, first);
        }
        self.bytes_reserved = before.bytes_reserved;
        let surplus = self.data_reservation.truncate(before.data_bytes);
        self.release(surplus);
        self.shrink_metadata(before.metadata_bytes);
        debug_assert!(self.bytes_reserved <= self.data_reservation.bytes(), "law 1 of `dirty`");
        debug_assert!(self.bytes_reserved.is_multiple_of(SECTOR_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_volume::{file, open_on};
    use butternut_device::{Fault, FaultyDevice, MemoryDevice, Rule};
    use butternut_pages::{CacheMode, WritebackReason};
    use butternut_tree::{EnospcInjector, ForestOptions};
    use std::sync::Arc;

    const BYTES: usize = 8 * 4096;

    #[test]
    fn a_block_whose_page_is_dropped_after_it_was_found_is_not_read() {
        for (at, bytes) in [(100, 50), (4000, 200), (4096 + 5, 3 * 4096)] {
            let memory = Arc::new(MemoryDevice::new("memory", 256 << 20));
            let device = Arc::new(FaultyDevice::new(memory, 1));
            let source = open_on(device.clone(), ForestOptions::default());
            source.set_flusher(true);
            let mut file = file(&source);
            file.write_at(0, &vec![1; BYTES]).expect("space");
            file.merge(&mut |_| {}).expect("space");
            source.pages().shrink(1000);
            let uncached = CacheMode::Uncached;
            file.write(0, &vec![2; BYTES], uncached, Wait::Block).expect("space");
            let (batch, planned) = file.start_writeback(u64::MAX, WritebackReason::Uncached);
            planned.expect("a plan");
            let mut rule = None;
            let written = file.write_buffered_around(at, &vec![3; bytes], Wait::NoWait, || {
                batch.expect("dirty blocks").write_and_complete().expect("a write");
                rule = Some(device.add(Rule::everywhere(Fault::ReadError)));
            });
            written.expect("everything was found");
            assert_eq!(device.fault_counts().read_errors, 0, "no device is read");
            device.remove(rule.expect("it was added"));
            let mut want = vec![2; BYTES];
            want[usize::try_from(at).expect("small")..][..bytes].fill(3);
            let mut have = vec![0; BYTES];
            assert_eq!(source.read_at(file.view(), 0, &mut have).expect("a read"), BYTES);
            assert!(have == want, "{bytes} bytes at {at}");
        }
    }

    #[test]
    fn a_refused_write_keeps_an_inline_file_inline_and_nothing_reserved() {
        let injector = EnospcInjector::default();
        let options =
            ForestOptions { enospc_injector: Some(injector.clone()), ..Default::default() };
        let source = open_on(Arc::new(MemoryDevice::new("memory", 256 << 20)), options);
        source.set_flusher(true);
        let mut file = file(&source);
        file.write_at(0, &[1; 100]).expect("space");
        assert!(file.has_dirty_inline());
        let found = |file: &FileState| {
            let data = (file.data_reservation.bytes(), file.bytes_reserved);
            (data, file.metadata_bytes_reserved(), file.dirty_bytes(), file.size())
        };
        let before = found(&file);
        // The reservations of a write: its metadata, the first block, all other blocks.
        let mut refused = 0;
        for nth in 1..=3 {
            injector.fail_every(nth);
            let written = file.write(50, &[2; 3 * 4096], CacheMode::Cached, Wait::NoWait);
            injector.fail_none();
            refused += usize::from(written.is_err_and(|error| error.is_would_block()));
            assert_eq!(found(&file), before, "reservation {nth}");
            assert!(file.has_dirty_inline(), "reservation {nth}");
        }
        assert_eq!(refused, 3, "a write makes three reservations");
        let written = file.write(50, &[2; 3 * 4096], CacheMode::Cached, Wait::NoWait);
        assert_eq!(written.expect("space"), 3 * 4096);
    }
}
