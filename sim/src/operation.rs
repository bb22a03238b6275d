//! [`Operation`]: one thing that is asked of a filesystem; [`Outcome`]: the answer.
//!
//! Paths are relative to the root, without `.` and `..`. No operation follows a symlink, except
//! that one in the middle of a path is followed; all symlinks lead nowhere. Operations on a file's
//! bytes open it for themselves ([`File::At`]) or use one of a few open files ([`File::Open`]),
//! which outlive their names.

use crate::acl::Acl;
use crate::bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many files can be open.
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
    /// A file without a name, opened.
    Tmpfile {
        dir: Bytes,
        mode: u32,
        slot: u8,
    },
    /// Gives an open file a name.
    LinkOpen {
        slot: u8,
        to: Bytes,
    },
    /// For reading and writing; what was open in the slot is closed first.
    Open {
        at: Bytes,
        slot: u8,
    },
    Close {
        slot: u8,
    },
    /// What is written is [`crate::content::pattern`] of the seed.
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
    /// Requests that are queued one after another and then waited for. No two touch the same block,
    /// and the last alone may move the end of a file: so it does not matter which is done first.
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
    /// Attribute flags as `chattr` sets them, all at once: see [`flags`].
    SetFlags {
        at: Bytes,
        flags: u32,
    },
    Fsync {
        file: File,
    },
    Sync,
    /// Down and up again; everything open is closed before.
    Reopen,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum File {
    At(Bytes),
    Open(u8),
}

/// The way between a file's bytes and its medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    #[default]
    Cached,
    /// Past all caches.
    Direct,
    /// Through the page cache, leaving nothing there.
    Uncached,
}

/// One request of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub file: File,
    pub what: Asked,
    #[serde(default, skip_serializing_if = "Lane::is_cached")]
    pub lane: Lane,
    /// The memory is the caller's, who may change it at any time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_lent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    Read {
        offset: u64,
        bytes: u64,
    },
    Write {
        offset: u64,
        bytes: u64,
        seed: u64,
        /// It is on the medium when it is done.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_durable: bool,
    },
    Append {
        bytes: u64,
        seed: u64,
    },
    /// What was done before the batch is on the medium then.
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

/// Seconds since 1970 and nanoseconds, which count upward.
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
    /// The error number.
    Failed(i32),
    /// How many bytes a read gave, and their digest.
    Read {
        bytes: u64,
        digest: u64,
    },
    Copied(u64),
    /// Where a seek ended.
    Found(u64),
    /// Of each request, in the order of the batch.
    Batch(Vec<Outcome>),
}

/// Attribute flags, as `FS_IOC_SETFLAGS` has them.
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
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it skips so")]
    fn is_cached(&self) -> bool {
        *self == Lane::Cached
    }
}

impl Outcome {
    /// Whether it, or that of a request of a batch, is one of these errors.
    pub fn has_failed_with(&self, errnos: &[i32]) -> bool {
        match self {
            Outcome::Failed(errno) => errnos.contains(errno),
            Outcome::Batch(all) => all.iter().any(|one| one.has_failed_with(errnos)),
            _ => false,
        }
    }
}

impl Operation {
    /// Whether something is promised to be on the medium when it has returned.
    pub fn promises(&self) -> bool {
        let is_promise = |request: &Request| match request.what {
            Asked::Sync => true,
            Asked::Write { is_durable, .. } => is_durable,
            Asked::Read { .. } | Asked::Append { .. } => false,
        };
        match self {
            Operation::Fsync { .. } => true,
            Operation::Batch { requests } => requests.iter().any(is_promise),
            _ => self.is_sync(),
        }
    }

    /// Whether everything done before it is on the medium when it has returned.
    pub fn is_sync(&self) -> bool {
        matches!(self, Operation::Sync | Operation::Reopen)
    }
}
