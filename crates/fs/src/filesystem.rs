//! [`Filesystem`]: a handle on a mounted filesystem, and the state that all handles share.
//!
//! The other files of this crate add the operations. A part of the state is in the file of its
//! subject, and no such file imports this one.
//!
//! Left to others: opening and closing (`mount`).

use crate::background::outstanding::OutstandingIo;
use crate::file::allocation_runs::AllocationRuns;
use crate::inode::cache::InodeCache;
use crate::notice::Notice;
use crate::stats::lane_counters::LaneCounters;
use crate::stats::latency::{Latencies, Mark, Operation, Timed};
use crate::stats::sync_counters::SyncCounters;
use crate::subvolume::exchanges::Exchanges;
use crate::subvolume::roots::Roots;
use crate::tunables::{SharedTunables, Tunables};
use crate::write_state::WriteState;
use crate::{Error, FileId, Result, TOP_LEVEL};
use butternut_file::{ErrorCursor, Source};
use butternut_format::root::RootFlags;
use butternut_format::super_block::SuperBlock;
use butternut_tree::{Forest, Tree};
use butternut_volume::Volume;
use std::fmt::Debug;
use std::sync::Arc;

/// A handle on a mounted filesystem. Clones are handles on the same filesystem; all methods may be
/// called from many threads at once.
///
/// A filesystem that is open for writing commits at an interval, and once more when the last handle
/// on it, its files and its listings is dropped. Call [`Filesystem::close`] or [`Filesystem::sync`]
/// to get errors.
#[derive(Clone, Debug)]
pub struct Filesystem {
    pub(crate) shared: Arc<Shared>,
    /// `None` for the filesystem's own threads, which do not keep it open.
    view: Option<Arc<View>>,
}

/// State that handles with the same root share.
#[derive(Debug)]
struct View {
    /// The subvolume whose root directory is the root of the handles.
    root: u64,
    keeps_open: Arc<dyn KeepsOpen>,
}

/// What the handles keep that are returned to callers. It is dropped with the last of them, and
/// closes the filesystem then.
pub(crate) trait KeepsOpen: Debug + Send + Sync {}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) forest: Arc<Forest>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) roots: Roots,
    pub(crate) exchanges: Exchanges,
    pub(crate) inodes: InodeCache,
    pub(crate) source: Source,
    /// Which losses of file data [`Filesystem::sync`] has returned.
    pub(crate) errors: ErrorCursor,
    /// Which losses of file data
    /// [`FilesystemExt::syncfs`](crate::server::FilesystemExt::syncfs) has returned.
    pub(crate) syncfs_errors: ErrorCursor,
    pub(crate) outstanding_io: Arc<OutstandingIo>,
    pub(crate) allocation_runs: Arc<AllocationRuns>,
    pub(crate) tunables: SharedTunables,
    pub(crate) counters: LaneCounters,
    pub(crate) syncs: SyncCounters,
    pub(crate) latencies: Latencies,
    /// The generation at the open: commits are counted from it.
    pub(crate) first_generation: u64,
    /// `None` on a volume that is open for reading only.
    pub(crate) write_state: Option<Arc<WriteState>>,
}

impl Shared {
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        self.forest.volume()
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark::now(&self.tunables)
    }

    /// As [`Filesystem::fail_after_panic`].
    pub(crate) fn fail_after_panic(&self) {
        self.forest.fail_after_panic();
    }
}

impl Filesystem {
    /// Returns a handle for one of the filesystem's own threads, which does not keep it open.
    pub(crate) fn for_thread(shared: Arc<Shared>) -> Self {
        Self { shared, view: None }
    }

    /// Returns a handle that keeps the filesystem open, with the root of a subvolume as its root.
    pub(crate) fn opened(shared: Arc<Shared>, root: u64, keeps_open: Arc<dyn KeepsOpen>) -> Self {
        Self { shared, view: Some(Arc::new(View { root, keeps_open })) }
    }

    /// Returns the directory at which paths begin: the root of the chosen subvolume, or of the one
    /// of [`with_subvolume`](Filesystem::with_subvolume).
    pub fn root(&self) -> FileId {
        FileId::root_of(self.view.as_ref().map_or(TOP_LEVEL, |view| view.root))
    }

    /// Returns a handle on the same filesystem whose [`root`](Filesystem::root) is the root of
    /// another subvolume, which may lie above this handle's: the caller decides whether that is
    /// permitted.
    #[must_use]
    pub fn with_subvolume(&self, id: u64) -> Self {
        let of = |view: &Arc<View>| {
            Arc::new(View { root: id, keeps_open: Arc::clone(&view.keeps_open) })
        };
        Self { shared: Arc::clone(&self.shared), view: self.view.as_ref().map(of) }
    }

    /// Returns the messages for the administrator that were found at the open.
    pub fn notices(&self) -> &[Notice] {
        &self.shared.notices
    }

    /// Returns the newest superblock of the volume.
    pub fn super_block(&self) -> &SuperBlock {
        self.volume().super_block()
    }

    pub(crate) fn forest(&self) -> &Arc<Forest> {
        &self.shared.forest
    }

    pub(crate) fn volume(&self) -> &Arc<Volume> {
        self.shared.volume()
    }

    /// Discards everything that is not committed yet: when the last handle is dropped, nothing more
    /// is written. If there is no committer ([`MountOptions::commit_seconds`] is 0), that is
    /// everything since the last [`Filesystem::sync`].
    ///
    /// [`MountOptions::commit_seconds`]: crate::MountOptions::commit_seconds
    pub fn abandon(&self) {
        if let Some(write_state) = &self.shared.write_state {
            write_state.abandon();
        }
    }

    /// Returns whether the volume is open for writing and has not become read-only.
    pub fn is_writable(&self) -> bool {
        self.shared.write_state.is_some() && self.write_error().is_none()
    }

    /// Returns why the volume has become read-only, if it has: a commit failed, or a change stopped
    /// half-way. Reads continue.
    pub fn write_error(&self) -> Option<Error> {
        self.forest().write_error().map(Error::Tree)
    }

    /// As [`FilesystemExt::fail_after_panic`](crate::server::FilesystemExt::fail_after_panic).
    pub(crate) fn fail_after_panic(&self) {
        self.shared.fail_after_panic();
    }

    pub(crate) fn write_state(&self) -> Result<&Arc<WriteState>> {
        self.shared.write_state.as_ref().ok_or(Error::ReadOnly { what: "the filesystem" })
    }

    /// Returns the current tunables.
    pub fn tunables(&self) -> Tunables {
        self.shared.tunables.now()
    }

    /// Sets all tunables, from the next request on.
    pub fn set_tunables(&self, tunables: Tunables) {
        self.shared.tunables.set(tunables);
    }

    /// Measures an operation, until the result is dropped.
    pub(crate) fn timed(&self, operation: Operation) -> Timed<'_> {
        let Shared { latencies, tunables, forest, .. } = &*self.shared;
        Timed::begin(latencies, tunables, forest.watch_panics(), operation)
    }

    /// Returns the tree of a subvolume that exists and is not being deleted.
    pub(crate) fn subvolume_tree(&self, subvolume: u64) -> Result<Tree> {
        let (tree, read) = self.shared.roots.tree(&self.shared.forest, subvolume)?;
        // Where no operation writes, no operation deletes the orphans that a crash has left.
        if let (Some(flags), Some(write_state)) = (read, &self.shared.write_state)
            && flags.contains(RootFlags::READ_ONLY)
        {
            write_state.cleaner.request_orphans(subvolume);
        }
        Ok(tree)
    }

    /// Returns the tree of an inode's subvolume; [`Error::Stale`] if that does not exist.
    pub(crate) fn tree_of(&self, id: FileId) -> Result<Tree> {
        match self.subvolume_tree(id.subvolume) {
            Err(Error::NoSubvolume { .. }) => Err(Error::Stale { id }),
            tree => tree,
        }
    }

    /// As [`Self::tree_of`], for a call that needs the tree only while it runs.
    pub(crate) fn in_tree_of<R>(&self, id: FileId, call: impl Fn(&Tree) -> Result<R>) -> Result<R> {
        match self.shared.roots.with(id.subvolume, &call) {
            Some(result) => result,
            None => call(&self.tree_of(id)?),
        }
    }
}
