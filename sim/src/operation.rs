//! [`Operation`]: one operation on a filesystem. [`Outcome`]: its result.
//!
//! Paths are relative to the root, without `.` and `..`. No operation follows a symlink in the last
//! component of a path; in the middle it is followed, and no symlink's target exists. Operations on
//! a file's data open it ([`File::At`]) or use one of a few open files ([`File::Open`]), which stay
//! open when their names are removed.

use crate::acl::Acl;
use crate::bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The maximum number of open files.
pub const SLOTS: u8 = 6;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Create {
        at: Bytes,
        mode: u32,
    },
    Mkdir {
        at: Bytes,
        mode: u32,
    },
    Mknod {
        at: Bytes,
        kind: Special,
        mode: u32,
        major: u32,
        minor: u32,
    },
    Symlink {
        at: Bytes,
        target: Bytes,
    },
    Link {
        from: Bytes,
        to: Bytes,
    },
    Unlink {
        at: Bytes,
    },
    Rmdir {
        at: Bytes,
    },
    Rename {
        from: Bytes,
        to: Bytes,
        how: Renaming,
    },
    /// Creates a file without a name and opens it.
    Tmpfile {
        dir: Bytes,
        mode: u32,
        slot: u8,
    },
    /// Links an open file.
    LinkOpen {
        slot: u8,
        to: Bytes,
    },
    /// Opens a file for reading and writing; the file that was open in the slot is closed first.
    Open {
        at: Bytes,
        slot: u8,
    },
    Close {
        slot: u8,
    },
    /// Writes [`crate::content::pattern`] of the seed.
    Write {
        file: File,
        offset: u64,
        bytes: u64,
        seed: u64,
        #[serde(default, skip_serializing_if = "Lane::is_cached")]
        lane: Lane,
    },
    Append {
        at: Bytes,
        bytes: u64,
        seed: u64,
    },
    Truncate {
        file: File,
        size: u64,
    },
    Fallocate {
        file: File,
        how: Allocating,
        offset: u64,
        bytes: u64,
    },
    Read {
        file: File,
        offset: u64,
        bytes: u64,
        #[serde(default, skip_serializing_if = "Lane::is_cached")]
        lane: Lane,
    },
    /// Requests that are submitted one after another and then reaped. No two of them touch the same
    /// block, and only the last may move the end of a file, so the result does not depend on the
    /// order in which they complete.
    Batch {
        requests: Vec<Request>,
    },
    Seek {
        file: File,
        what: Seeking,
        offset: u64,
    },
    Copy {
        from: File,
        from_offset: u64,
        to: File,
        to_offset: u64,
        bytes: u64,
    },
    Chmod {
        at: Bytes,
        mode: u32,
    },
    Chown {
        at: Bytes,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Times {
        at: Bytes,
        atime: Option<Moment>,
        mtime: Option<Moment>,
    },
    SetXattr {
        at: Bytes,
        name: Bytes,
        bytes: u64,
        seed: u64,
        how: Setting,
    },
    RemoveXattr {
        at: Bytes,
        name: Bytes,
    },
    SetAcl {
        at: Bytes,
        is_default: bool,
        acl: Option<Acl>,
    },
    /// Sets all attribute flags, as `chattr` does: see [`flags`].
    SetFlags {
        at: Bytes,
        flags: u32,
    },
    Fsync {
        file: File,
    },
    Sync,
    /// Closes everything that is open, closes the filesystem, and opens it again.
    Reopen,
    /// Creates an empty subvolume.
    Subvolume {
        at: Bytes,
    },
    /// Creates a snapshot of the subvolume at `source`.
    Snapshot {
        source: Bytes,
        at: Bytes,
        is_read_only: bool,
    },
    DeleteSubvolume {
        at: Bytes,
    },
    /// Shares the extents of a range (`FICLONERANGE`); 0 bytes stand for the rest of the source.
    Clone {
        from: File,
        from_offset: u64,
        to: File,
        to_offset: u64,
        bytes: u64,
    },
    /// Shares the extents of two ranges with the same bytes (`FIDEDUPERANGE`).
    Dedupe {
        from: File,
        from_offset: u64,
        to: File,
        to_offset: u64,
        bytes: u64,
    },
    Defragment {
        file: File,
        /// Whether the extents are compressed, with zlib.
        is_compressing: bool,
        /// Whether shared extents are written again, where the subject can leave them alone.
        breaks_sharing: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum File {
    At(Bytes),
    Open(u8),
}

/// The path between a file's data and its medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    #[default]
    Cached,
    /// Bypasses all caches.
    Direct,
    /// Goes through the page cache and leaves no pages there.
    Uncached,
}

/// One request of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub file: File,
    pub what: RequestKind,
    #[serde(default, skip_serializing_if = "Lane::is_cached")]
    pub lane: Lane,
    /// Whether the request uses a borrowed buffer, whose memory the caller may change at any time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_lent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    Read {
        offset: u64,
        bytes: u64,
    },
    Write {
        offset: u64,
        bytes: u64,
        seed: u64,
        /// Whether the write is durable when it completes.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_durable: bool,
    },
    Append {
        bytes: u64,
        seed: u64,
    },
    /// Makes everything before the batch durable.
    Sync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Special {
    Fifo,
    Character,
    Block,
    Socket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Renaming {
    Plain,
    NoReplace,
    Exchange,
    Whiteout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocating {
    Allocate,
    KeepSize,
    PunchHole,
    ZeroRange,
    ZeroRangeKeepSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seeking {
    Data,
    Hole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    Any,
    Create,
    Replace,
}

/// Seconds since 1970, and nanoseconds that count upward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    pub secs: i64,
    pub nanos: u32,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.secs, self.nanos)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// An error number.
    Failed(i32),
    /// The number of bytes that a read returned, and their digest.
    Read {
        bytes: u64,
        digest: u64,
    },
    Copied(u64),
    /// The ranges of a deduplication hold different bytes.
    Differs,
    /// The offset that a seek returned.
    Found(u64),
    /// The outcome of each request, in the order of the batch.
    Batch(Vec<Outcome>),
}

/// Attribute flags of `FS_IOC_SETFLAGS`.
pub mod flags {
    pub const COMPRESS: u32 = 0x4;
    pub const SYNC: u32 = 0x8;
    pub const IMMUTABLE: u32 = 0x10;
    pub const APPEND: u32 = 0x20;
    pub const NO_DUMP: u32 = 0x40;
    pub const NO_ATIME: u32 = 0x80;
    pub const NO_COMPRESS: u32 = 0x400;
    pub const DIR_SYNC: u32 = 0x1_0000;
    pub const NO_COW: u32 = 0x80_0000;
    pub const ALL: u32 =
        COMPRESS | SYNC | IMMUTABLE | APPEND | NO_DUMP | NO_ATIME | NO_COMPRESS | DIR_SYNC | NO_COW;
}

impl Lane {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_cached(&self) -> bool {
        *self == Lane::Cached
    }
}

impl Outcome {
    /// Returns whether the outcome, or that of a request of a batch, is one of these errors.
    pub fn has_failed_with(&self, errnos: &[i32]) -> bool {
        match self {
            Outcome::Failed(errno) => errnos.contains(errno),
            Outcome::Batch(all) => all.iter().any(|one| one.has_failed_with(errnos)),
            _ => false,
        }
    }
}

impl Operation {
    /// Returns whether the operation makes something durable when it returns.
    pub fn makes_durable(&self) -> bool {
        let makes_durable = |request: &Request| match request.what {
            RequestKind::Sync => true,
            RequestKind::Write { is_durable, .. } => is_durable,
            RequestKind::Read { .. } | RequestKind::Append { .. } => false,
        };
        match self {
            Operation::Fsync { .. } => true,
            Operation::Batch { requests } => requests.iter().any(makes_durable),
            _ => self.is_sync(),
        }
    }

    /// Returns whether everything before the operation is durable when it returns.
    pub fn is_sync(&self) -> bool {
        matches!(self, Operation::Sync | Operation::Reopen)
    }
}
