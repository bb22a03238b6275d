//! The structures of the FUSE protocol, version 7.45, as they cross /dev/fuse.
//!
//! ```text
//! request    | InHeader 40  | fixed part of the operation | names, or data |
//! reply      | OutHeader 16 | fixed part of the operation | names, or data |
//! ```
//!
//! Numbers are in host byte order. Names of structures and fields are those of `linux/fuse.h`.
//!
//! Left to others: what an operation does (`door`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 45;
/// The protocol version of the oldest supported kernel, 4.20, with batched and large requests.
pub(crate) const MINOR_MIN: u32 = 28;

/// Opcodes.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Feature flags of INIT.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// The fields that a SETATTR sets.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    /// The request has a file handle.
    pub(crate) const HANDLE: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Reads and writes bypass the kernel's page cache.
pub(crate) const FOPEN_DIRECT_IO: u32 = 1;
/// The kernel keeps the cached pages of earlier opens.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// The kernel may have several writes that bypass its cache in flight for one file.
pub(crate) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// The READ has a lock owner, which means that it bypasses the page cache.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
/// The WRITE comes from the page cache. It was permitted when the program made it.
pub(crate) const WRITE_CACHE: u32 = 1;
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// The caller sets an access ACL and is not in the group of the file.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident $bytes:literal { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $kind,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

wire! {
    InHeader 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64,
        uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    OutHeader 16 { len: u32, error: i32, unique: u64, }
    InitIn 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    InitOut 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    Attr 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32,
        uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    SetattrIn 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn 8 { mode: u32, umask: u32, }
    RenameIn 8 { newdir: u64, }
    Rename2In 16 { newdir: u64, flags: u32, padding: u32, }
    LinkIn 8 { oldnodeid: u64, }
    OpenIn 8 { flags: u32, open_flags: u32, }
    CreateIn 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut 16 { fh: u64, open_flags: u32, backing_id: i32, }
    ReleaseIn 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// READ, READDIR, READDIRPLUS, and WRITE with its data behind the structure.
    TransferIn 40 {
        fh: u64, offset: u64, size: u32, transfer_flags: u32, lock_owner: u64,
        flags: u32, padding: u32,
    }
    WriteOut 8 { size: u32, padding: u32, }
    StatfsOut 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    FsyncIn 16 { fh: u64, fsync_flags: u32, padding: u32, }
    SetxattrIn 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// The SETXATTR of kernels before 5.13.
    SetxattrShortIn 8 { size: u32, flags: u32, }
    GetxattrIn 8 { size: u32, padding: u32, }
    GetxattrOut 8 { size: u32, padding: u32, }
    ForgetIn 8 { nlookup: u64, }
    BatchForgetIn 8 { count: u32, dummy: u32, }
    ForgetOne 16 { nodeid: u64, nlookup: u64, }
    FallocateIn 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut 8 { offset: u64, }
    CopyFileRangeIn 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64,
        len: u64, flags: u64,
    }
    CopyFileRangeOut 8 { bytes_copied: u64, }
    IoctlIn 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    IoctlOut 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    /// `struct fsxattr`.
    FsXattr 28 {
        xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, pad: [u8; 8],
    }
    /// `struct fstrim_range`.
    FsTrimRange 24 { start: u64, len: u64, minlen: u64, }
    /// `struct btrfs_ioctl_search_key`.
    SearchKey 104 {
        tree_id: u64, min_objectid: u64, max_objectid: u64, min_offset: u64, max_offset: u64,
        min_transid: u64, max_transid: u64, min_type: u32, max_type: u32, nr_items: u32,
        unused: u32, reserved: [u64; 4],
    }
    /// `struct btrfs_ioctl_search_header`.
    SearchHeader 32 { transid: u64, objectid: u64, offset: u64, kind: u32, len: u32, }
    /// `struct btrfs_ioctl_subvol_wait`.
    SubvolumeWait 16 { id: u64, mode: u32, count: u32, }
    /// `struct fiemap`.
    Fiemap 32 {
        start: u64, length: u64, flags: u32, mapped: u32, count: u32, reserved: u32,
    }
    /// `struct fiemap_extent`.
    FiemapExtent 56 {
        logical: u64, physical: u64, length: u64, reserved64: [u64; 2], flags: u32,
        reserved: [u32; 3],
    }
    /// `struct file_dedupe_range` with one `struct file_dedupe_range_info`.
    DedupeRange 56 {
        src_offset: u64, src_length: u64, dest_count: u16, reserved1: u16, reserved2: u32,
        dest_fd: i64, dest_offset: u64, bytes_deduped: u64, status: i32, reserved: u32,
    }
    /// `struct btrfs_ioctl_defrag_range_args`.
    DefragmentRange 48 {
        start: u64, len: u64, flags: u64, extent_thresh: u32, compress_type: u32, unused: [u32; 4],
    }
    /// `struct fsverity_enable_arg`; the salt and the signature are behind it.
    EnableVerity 128 {
        version: u32, hash_algorithm: u32, block_size: u32, salt_size: u32, salt_ptr: u64,
        sig_size: u32, reserved1: u32, sig_ptr: u64, reserved2: [u64; 11],
    }
    /// `struct fsverity_digest`; the digest is behind it.
    VerityDigest 4 { digest_algorithm: u16, digest_size: u16, }
    /// `struct fsverity_read_metadata_arg`; what was read is behind it in a sized call.
    VerityRead 40 { metadata_type: u64, offset: u64, length: u64, buf_ptr: u64, reserved: u64, }
    /// What was done, behind the range in a sized call.
    DefragmentDone 40 {
        rewritten_bytes: u64, extents_before: u64, extents_after: u64, shared_bytes_left: u64,
        unshared_bytes: u64,
    }
    Dirent 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
    StatxIn 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    StatxTime 16 { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    Statx 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32,
        mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: StatxTime, btime: StatxTime, ctime: StatxTime, mtime: StatxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut 288 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }
    /// The name of a directory entry to invalidate follows.
    InvalidEntryOut 16 { parent: u64, namelen: u32, flags: u32, }
    /// The inode whose attributes to invalidate, and its pages from `off` on unless `off` is below
    /// 0. The kernel writes dirty pages back first.
    InvalidInodeOut 24 { ino: u64, off: i64, len: i64, }
}

impl TransferIn {
    /// Returns the byte range of the transfer.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset.saturating_add(u64::from(self.size))
    }
}

/// The code of an [`InvalidInodeOut`] notification, in the header's error field.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
/// The code of an [`InvalidEntryOut`] notification.
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
