//! The ranks of all locks, in the order in which a thread may take them: the outermost first.
//!
//! A lock names its rank in its type: `Mutex<State, rank::Gate>`. The place of a rank in the table
//! below is its number; a new lock gets a line after every lock that a thread may hold when taking
//! it, and before every lock that a thread may take while it holds the new one.

use std::fmt;

/// The place of a lock in the order, and its name.
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    number: u16,
    name: &'static str,
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.number.partial_cmp(&other.number)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A type that stands for a rank.
pub trait Ranked {
    const RANK: Rank;
}

macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident)*) => {
        #[repr(u16)]
        enum Place { $($name),* }

        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub enum $name {}

            impl Ranked for $name {
                const RANK: Rank =
                    Rank { number: Place::$name as u16, name: stringify!($name) };
            }
        )*
    };
}

ranks! {
    // Doors and commands.
    /// The volumes that fio's jobs have open, also while the last job closes one.
    FioVolumes
    /// The attempt to mount an open volume, while a signal ends the process.
    CommandSignals
    /// The temporary name of a stream, while a signal ends the process.
    TemporaryName
    /// Whether a FUSE mount is made, while a signal ends the process.
    MountAttempt
    /// The receiver of the jobs of an export or an import, while a thread waits for one.
    CommandJobs
    /// The mounts of a volume that is mounted at several places.
    DetachedMount
    /// The threads of a FUSE mount that wait to become the leader.
    Followers
    /// The number of FUSE threads in each class of requests.
    ThreadLimits
    /// The deferred calls of users that run, and those that wait.
    UserCalls
    /// The parts of files that wait to be hashed for the seals of users.
    SealParts
    /// The number of writes that the kernel has lost in each subvolume.
    LostWrites
    /// The names that programs do not see yet.
    HiddenNames
    /// The names that the kernel is to forget.
    NameInvalidations
    /// The threads that send deferred replies.
    DeferredThreads
    /// The FUSE requests that wait and may be interrupted.
    Interrupts
    /// The directory listings that the kernel reads in parts.
    Listings
    /// The open files of a FUSE mount.
    Handles
    /// The files of each subvolume that are open for writing on a FUSE mount.
    WriteGates
    /// The fills of the kernel's page cache in progress.
    KernelFills
    /// The files that stay open for the next open.
    OpenCache
    /// The node ids that the kernel knows.
    Nodes

    // The check of a volume. Its locks are leaves; several threads walk the trees.
    /// The results of shared leaves.
    CheckShared
    /// The tree blocks that were checked.
    CheckSeen
    /// The tree blocks that were found before the chunks were known.
    CheckEarly
    /// The reads of one batch that were verified.
    CheckBatch
    /// The queues that no thread uses.
    CheckQueues
    /// The references that have been found, for extents that do not add up.
    CheckLedger
    /// The ranges whose checksums are lost.
    CheckLost
    /// What the check reports.
    CheckFindings
    /// The numbers of an export.
    CommandReport

    // Inodes: `fs`.
    /// Freeing deleted subvolumes, by one thread at a time.
    Cleaning
    /// Operations that write, and a snapshot, which excludes them.
    Snapshots
    /// Moves of directories between directories: one at a time.
    Renames
    /// The thread that waits to exclude merges, or excludes them.
    MergesTurn
    /// Merges of files into the trees, and a deletion of a subvolume, which excludes them.
    Merges
    /// Finding the next inode number of a subvolume, once.
    SubvolumeOpening
    /// The inode lock. Several by rising id; that of a new inode after its directory.
    Inode
    /// The free space that one queue writes to.
    QueueAllocationRun
    /// A handle of the running transaction: no lock, but a commit waits for it.
    Handle
    /// The inode item of one inode, also while it is read.
    Attributes
    /// The view of one inode's file that new handles get.
    FileView
    /// The subvolumes that were written to.
    Subvolumes
    /// The orphans that could not be deleted.
    LeftOrphans
    /// Why the end of writing failed.
    EndError
    /// The subvolumes that streams are made of.
    SubvolumesSent
    /// The subvolumes that resumable receives make.
    ReceivesInProgress
    /// The list of dirty inodes.
    DirtyInodes
    /// The files that keep their state while no handle refers to them.
    IdleFiles
    /// A shard of the inodes in use.
    InodeTable
    /// A shard of the inode items in memory.
    InodeCache
    /// The next inode number of a subvolume.
    NextIno
    /// The next subvolume id.
    NextSubvolume
    /// The requests of one queue.
    QueueCore
    /// The free space that blocking direct writes write to.
    AllocationRuns
    /// Whether the cleaner thread has something to do.
    Cleaner
    /// What the committer thread is to do.
    Committer
    /// The number of writeback batches in flight.
    FlushesRunning

    // Data of files: `file`.
    /// The pattern and the queued jobs of one stream of reads.
    ReadPattern
    /// A job of readahead, until a thread takes it.
    ReadaheadJob
    /// The number of readahead jobs that run.
    ReadaheadRunning
    /// Readahead into the page cache, excluded while the contents change.
    Readahead
    /// The items of a file in the tree, shared by readers and merges.
    FileItems
    /// The reservation for the items of a file.
    MetadataReservation
    /// The data of a file that is in no tree yet.
    Overlay
    /// Write targets of a file that were looked up.
    WriteTargets
    /// The queues with requests in flight.
    RequestOwners
    /// The writes in flight on a file.
    WritesInFlight
    /// Bytes that a file no longer shows and a reader may still read.
    DeferredFrees
    /// The errors that were not reported to any caller yet.
    VolumeErrors
    /// The write error of a file that was not reported yet.
    FileErrors
    /// A shard of a cache of extents or checksums.
    BoundedCache
    /// Memory for merges.
    Workspaces
    /// Buffers for reads.
    SpareBuffers

    // The page cache: `pages`.
    /// The files that the page cache knows.
    PageFiles
    /// The pages of one file.
    PageIndex
    /// The order in which clean pages are evicted.
    PageReplacement
    /// The files with dirty pages.
    DirtyFiles
    /// Empty groups of pages, for reuse.
    IdlePageGroups
    /// The pages that uncached writes queued for writeback.
    UncachedBacklog
    /// Whether the flushers are to end.
    Flushers
    /// The number of events of the pages of one file.
    PageEvents
    /// The measured rate of the devices.
    Throttle

    // Trees: `tree`.
    /// The commit: one at a time.
    Commit
    /// Writes of superblocks: a commit or a batch of the log.
    LogWrite
    /// The items of the log of the running transaction.
    LogEntries
    /// One tree; under the tree of a subvolume also the extent tree, to look references up.
    Tree
    /// The trees that the running transaction uses.
    Trees
    /// The global reserve, while it is computed again.
    GlobalReserve
    /// The changes of references that the commit writes.
    DelayedReferences
    /// The usage of quota groups.
    Quota
    /// The checksums that the commit writes.
    PendingChecksums
    /// The changes of free space that the commit writes.
    FreeSpaceChanges
    /// The chunks that the commit writes.
    NewChunks
    /// The superblock that the commit writes.
    NextSuperBlock
    /// The readers of trees in an epoch.
    ReadEpochs
    /// The number of threads that discard freed space.
    Discards
    /// The resizes of devices that are in progress.
    Resizes
    /// A shard of the tree blocks that are being read.
    PendingReads
    /// Whether one tree block was read.
    PendingRead
    /// A set of the node cache.
    NodeCache
    /// The members of the running transaction, and why the volume is read-only.
    Gate

    // Space and volume.
    /// The free space, and what is reserved of it.
    Space
    /// A flush of the devices, until its result is recorded.
    DeviceFlush
    /// The next chunk map, before readers see it.
    ChunkMap
    /// The claim on the devices, while it is made.
    DeviceClaim
    /// The device items as they were read.
    DeviceItems
    /// The superblock that was last written to a device.
    LastSuper
    /// The length of a device that is too short.
    ShrunkTo
    /// The device error counters in the device tree.
    RecordedErrors
    /// The ranges that a device missed.
    StaleRanges
    /// The failures of a device that were not reported yet.
    DeviceEvents
    /// The queue pairs that no thread uses.
    QueuePool

    // Devices.
    /// A change of the faults that a test injects into a device.
    FaultChange
    /// These faults.
    FaultRules
    /// The writes that a test records.
    RecordingDevice
    /// What was written to a crash image.
    CrashImage
    /// One part of a device in memory.
    MemoryDevice
    /// Unaligned writes to a file: one at a time.
    BouncedWrites
    /// Buffers for unaligned requests.
    BounceBuffers
    /// Completed calls that were not collected yet.
    DeviceCompletions

    // Leaves that a thread may take while it holds any other lock.
    /// The jobs of a pool of workers.
    WorkerQueue
    /// The items of a batch that are not done.
    WorkerBatch
    /// The lines that are to be printed or logged.
    Reporter
    /// Free buffers of tree blocks and of data in flight.
    Slabs
    /// Free frames of the page cache.
    Frames
    /// Free slots of an arena.
    Arena
    /// Memory that a test lends to the kernel.
    Scribble
}
