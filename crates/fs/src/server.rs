//! What a program needs that serves a volume to others, such as a FUSE server: pins for inodes that
//! its clients know, and handles for a page cache in front of this library.
//!
//! Programs that use files themselves do not need this module.

pub use crate::inode::pin::Pin;

#[cfg(doc)]
use crate::Error;
use crate::receive::{ReceiveReport, ReceiveServing, StreamEnd, StreamReader};
use crate::{Extent, File, FileId, Filesystem, Privileges, Result, StatFs};
use butternut_tree::ReadEpoch;
use std::io::Read;

/// Keeps what the last commit refers to on the devices until it is dropped, also while later ones
/// free it.
#[derive(Debug)]
pub struct HeldCommit<'a> {
    generation: u64,
    _epoch: ReadEpoch<'a>,
}

impl HeldCommit<'_> {
    /// Returns the generation of the commit. What later ones refer to is kept, too.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// Which losses of file data a sync returns, and to which other callers they are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReport {
    /// As [`FilesystemExt::sync_unreported`].
    Unreported,
    /// As [`FilesystemExt::sync_and_keep_errors`].
    Keep,
    /// As [`FilesystemExt::syncfs`].
    Syncfs,
}

/// Calls on a [`Filesystem`] for servers.
pub trait FilesystemExt {
    /// Pins an inode: it is not deleted while the pin exists, even if it loses its last name. An
    /// open [`File`] has a pin. Returns `None` for a placeholder, and on a filesystem
    /// that is open for reading only, where no inode is deleted.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such inode.
    fn pin(&self, id: FileId) -> Result<Option<Pin>>;

    /// Checks that the filesystem and the subvolume of an inode are open for writing.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Stale`] if there is no such subvolume.
    fn check_writable(&self, id: FileId) -> Result<()>;

    /// Returns the generation of the last commit.
    fn committed_generation(&self) -> u64;

    /// Returns the cookie after the last entry that the directory has now.
    fn end_of_listing(&self, dir: FileId) -> Result<u64>;

    /// Returns whether the next commit may free much more space than a result of
    /// [`Filesystem::statfs`] shows as available: more than an eighth. Deleted data is free after a
    /// commit.
    fn frees_much(&self, shown: &StatFs) -> bool;

    /// As [`Filesystem::sync`], and commits nothing if file data was lost, now or since the last
    /// sync of all files. For a caller that then abandons all its changes; it has excluded other
    /// commits.
    ///
    /// # Errors
    /// As [`Filesystem::sync`].
    fn sync_whole(&self) -> Result<()>;

    /// As [`Filesystem::sync`], for a caller that needs names to be durable: does not return a loss
    /// of file data, which is left for a sync of the file and for the next [`Filesystem::sync`].
    ///
    /// # Errors
    /// A commit or an end of writing that failed.
    fn sync_names(&self) -> Result<()>;

    /// As [`Filesystem::sync`], for a caller that is about to close the volume: of data that was
    /// lost, it returns only what no sync of the file or of all files has returned yet.
    ///
    /// # Errors
    /// As [`Filesystem::sync`].
    fn sync_unreported(&self) -> Result<()>;

    /// As [`sync_unreported`](Self::sync_unreported), for a caller that must not take errors from
    /// others: a loss of file data that it returns is left for them. Where writing has ended with
    /// an error, it fails, and the cause is left for them.
    ///
    /// # Errors
    /// As [`sync_unreported`](Self::sync_unreported).
    fn sync_and_keep_errors(&self) -> Result<()>;

    /// Writes everything back and commits, for several callers at once. Each of them then calls
    /// [`report_losses`](Self::report_losses), also where this has failed.
    ///
    /// # Errors
    /// Metadata that could not be read in writeback, data that could not be written, or a commit
    /// that failed.
    fn write_back_and_commit(&self) -> Result<()>;

    /// Returns the loss of file data, or the failed end of writing, that a sync of one caller
    /// returns in addition to the result of
    /// [`write_back_and_commit`](Self::write_back_and_commit).
    ///
    /// # Errors
    /// As the method that `report` names.
    fn report_losses(&self, report: LossReport) -> Result<()>;

    /// Commits, and keeps what the commit refers to on the devices: another program may read it
    /// from them. What is freed meanwhile is no free space until the result is dropped.
    ///
    /// # Errors
    /// A commit that failed. Lost file data is left for a sync that returns it.
    fn hold_last_commit(&self) -> Result<HeldCommit<'_>>;

    /// Applies a send stream as [`Filesystem::receive_with`] does, in front of a cache of names,
    /// attributes and data that would keep what the stream changes. [`ReceiveServing::hide`] is
    /// called with each name in `dir` before a subvolume is made under it. What it returns is
    /// dropped when the subvolume is complete, or deleted; until then the caller shows the name to
    /// no program.
    ///
    /// With `checkpoint_bytes`, as [`Filesystem::receive_resumable`]: `hide` is also called with
    /// the names of what an interrupted call has left, which programs may have seen.
    ///
    /// # Errors
    /// As [`Filesystem::receive_with`]; [`Error::Receive`] with `ECANCELED`
    /// after [`ReceiveServing::goes_on`] has returned false.
    fn receive_serving<R: Read>(
        &self,
        dir: FileId,
        stream: &mut StreamReader<R>,
        end: StreamEnd,
        checkpoint_bytes: Option<u64>,
        report: &mut ReceiveReport,
        serving: ReceiveServing<'_>,
    ) -> Result<()>;

    /// As [`Filesystem::sync`], for syncfs(2), and for sync(2), which drops the result. All callers
    /// together get each loss of file data once, whether or not a sync of its file has returned it,
    /// and it is left for the sync of its file and for the close of the volume. Where writing has
    /// ended with an error, it fails, and the cause is left for the close.
    ///
    /// # Errors
    /// As [`Filesystem::sync`].
    fn syncfs(&self) -> Result<()>;

    /// Writes everything back, commits, and ends writing: when this returns, nothing writes to the
    /// devices, and nothing will, so another program may use them. That holds also where something
    /// could not be written, file data too: the next [`Filesystem::sync`],
    /// [`sync_names`](Self::sync_names) or [`sync_unreported`](Self::sync_unreported), and so the
    /// close of the volume, returns the error. Later changes and syncs of files fail. The caller
    /// has no other calls in flight that write.
    fn end_writes(&self);

    /// Sets what tells whether the kernel's mount of a device of the volume still exists, for a
    /// filesystem that was opened with
    /// [`mounted_device`](crate::MountOptions::mounted_device). When it has ended without
    /// [`end_writes`](Self::end_writes), nothing is written unless the device can be claimed and
    /// is unchanged. `is_mounted` is called before each write, by any thread, and must not call the
    /// filesystem.
    fn set_mount_watch(&self, is_mounted: Box<dyn Fn() -> bool + Send + Sync>);

    /// As [`Filesystem::sync`], for a caller that does not depend on its success: errors are kept
    /// for the next sync. Does nothing once writing has ended.
    fn sync_best_effort(&self);

    /// Makes the volume read-only because a thread panicked in a call, which may have left half a
    /// change. Reads continue; [`Filesystem::write_error`] returns the cause. For callers that
    /// catch panics: a panic with an inode locked, or inside a transaction, has the same effect
    /// without this call.
    fn fail_after_panic(&self);
}

/// Calls on a [`File`] for servers.
pub trait FileExt: Sized {
    /// Returns the same handle, for a caller that checked the flags of the inode when it opened the
    /// file, as the kernel does: later changes of the flags do not affect it.
    #[must_use]
    fn checked_at_open(self) -> Self;

    /// Returns the same handle, for a caller that opened an append-only file to append to it: only
    /// writes at its end are allowed. Otherwise as [`FileExt::checked_at_open`].
    #[must_use]
    fn only_appending(self) -> Self;

    /// Compares `bytes` at `offset` with the file's content up to its end, and returns how many of
    /// them are below the end. A cache in front of this library writes back whole pages: those of
    /// an append-only file begin with bytes that must not differ.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] if they differ; any error of a read.
    fn unchanged_below_end(&self, offset: u64, bytes: &[u8]) -> Result<usize>;

    /// Returns the first extents from byte `from` on, without holes and at most `count`, and
    /// whether another inode refers to each. Includes those behind the end of the file. May commit.
    ///
    /// # Errors
    /// A tree cannot be read, or the commit failed.
    fn extents_with_sharing(&self, from: u64, count: usize) -> Result<Vec<(Extent, bool)>>;

    /// Returns the same handle, for a cache in front of this library that keeps the times of the
    /// file itself: a change through it leaves them as they are, until the cache sets them
    /// (`S_NOCMTIME`).
    #[must_use]
    fn without_time_updates(self) -> Self;

    /// As [`File::write_at`], for writeback from a cache in front of this library, such as the
    /// kernel's page cache. The write was allowed when the cache took it, so the flags of the inode
    /// are not checked again. 512 KiB or more go to the devices past the page cache, since that
    /// cache still has the bytes. Shorter writes become dirty pages, to form one extent with the
    /// writes that follow.
    fn write_from_cache(&self, offset: u64, bytes: &[u8]) -> Result<usize>;

    /// As [`File::write_as`], for a cache in front of this library that keeps the bytes itself. The
    /// pages are dropped here when they have been written back. Until then they wait to form one
    /// extent with the writes that follow.
    fn write_drop_behind(&self, offset: u64, bytes: &[u8], privileges: Privileges)
    -> Result<usize>;
}

impl FilesystemExt for Filesystem {
    fn pin(&self, id: FileId) -> Result<Option<Pin>> {
        Filesystem::pin(self, id)
    }

    fn check_writable(&self, id: FileId) -> Result<()> {
        Filesystem::check_writable(self, id)
    }

    fn end_of_listing(&self, dir: FileId) -> Result<u64> {
        Filesystem::end_of_listing(self, dir)
    }

    fn frees_much(&self, shown: &StatFs) -> bool {
        Filesystem::frees_much(self, shown)
    }

    fn sync_whole(&self) -> Result<()> {
        Filesystem::sync_whole(self)
    }

    fn sync_names(&self) -> Result<()> {
        Filesystem::sync_names(self)
    }

    fn sync_unreported(&self) -> Result<()> {
        Filesystem::sync_unreported(self)
    }

    fn sync_and_keep_errors(&self) -> Result<()> {
        Filesystem::sync_and_keep_errors(self)
    }

    fn write_back_and_commit(&self) -> Result<()> {
        Filesystem::write_back_and_commit(self)
    }

    fn report_losses(&self, report: LossReport) -> Result<()> {
        Filesystem::report_losses(self, report)
    }

    fn committed_generation(&self) -> u64 {
        self.forest().committed_generation().0
    }

    fn hold_last_commit(&self) -> Result<HeldCommit<'_>> {
        if self.is_writable() {
            self.sync_names()?;
        }
        let epoch = self.forest().enter_read_epoch();
        // A later commit than that of the epoch is kept as well.
        let generation = self.forest().committed_generation().0;
        Ok(HeldCommit { generation, _epoch: epoch })
    }

    fn receive_serving<R: Read>(
        &self,
        dir: FileId,
        stream: &mut StreamReader<R>,
        end: StreamEnd,
        checkpoint_bytes: Option<u64>,
        report: &mut ReceiveReport,
        serving: ReceiveServing<'_>,
    ) -> Result<()> {
        Filesystem::receive_serving(self, dir, stream, end, checkpoint_bytes, report, serving)
    }

    fn set_mount_watch(&self, is_mounted: Box<dyn Fn() -> bool + Send + Sync>) {
        self.volume().set_mount_watch(is_mounted);
    }

    fn syncfs(&self) -> Result<()> {
        Filesystem::syncfs(self)
    }

    fn end_writes(&self) {
        Filesystem::end_writes(self);
    }

    fn sync_best_effort(&self) {
        Filesystem::sync_best_effort(self);
    }

    fn fail_after_panic(&self) {
        Filesystem::fail_after_panic(self);
    }
}

impl FileExt for File {
    fn checked_at_open(self) -> Self {
        File::checked_at_open(self)
    }

    fn only_appending(self) -> Self {
        File::only_appending(self)
    }

    fn extents_with_sharing(&self, from: u64, count: usize) -> Result<Vec<(Extent, bool)>> {
        File::extents_with_sharing(self, from, count)
    }

    fn unchanged_below_end(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        File::unchanged_below_end(self, offset, bytes)
    }

    fn without_time_updates(self) -> Self {
        File::without_time_updates(self)
    }

    fn write_from_cache(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        File::write_from_cache(self, offset, bytes)
    }

    fn write_drop_behind(
        &self,
        offset: u64,
        bytes: &[u8],
        privileges: Privileges,
    ) -> Result<usize> {
        File::write_drop_behind(self, offset, bytes, privileges)
    }
}
