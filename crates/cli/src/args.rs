//! The command line as typed: one clap definition, from which help texts, man pages and shell
//! completions are generated.
//!
//! Nothing here opens a volume or reads a file; `volume` and `commands` interpret the arguments.

mod admin;
pub(crate) mod as_typed;
mod check;
mod dedupe;
mod defragment;
mod import;
mod inspect;
mod lab;
mod mkfs;
mod modify;
mod mount;
pub(crate) mod of_btrfs;
mod partitions;
mod quota;
mod read;
mod receive;
mod send;
mod subvolume;
mod verity;
mod volume;

pub(crate) use admin::{LabelArgs, MkswapfileArgs, ResizeArgs, SyncArgs, TrimArgs};
pub(crate) use check::CheckArgs;
pub(crate) use dedupe::DedupeArgs;
pub(crate) use defragment::DefragmentArgs;
pub(crate) use import::{ImportArgs, ImportOptions};
pub(crate) use inspect::{
    DumpSuperArgs, DumpTreeArgs, InodeResolveArgs, InspectCommand, LogicalResolveArgs, RootidArgs,
    TreeStatsArgs,
};
pub(crate) use lab::{LabArgs, TopArgs};
pub(crate) use mkfs::MkfsArgs;
pub(crate) use modify::{
    ChmodArgs, ChownArgs, CpArgs, Encoding, GetfattrArgs, LnArgs, MkdirArgs, MvArgs, Reflink,
    RmArgs, SetfattrArgs, TouchArgs, TruncateArgs, WriteArgs,
};
pub(crate) use mount::{CtlArgs, MountArgs, StatsArgs, UmountArgs};
pub(crate) use partitions::PartitionsArgs;
pub(crate) use quota::{
    QgroupCommand, QgroupLimitArgs, QgroupShowArgs, QgroupSort, QgroupSortField, QuotaCommand,
};
pub(crate) use read::{
    CatArgs, DuArgs, ExportArgs, FilesystemCommand, FindArgs, ListSort, LsArgs, StatArgs,
    SubvolumeListArgs, SubvolumeShowArgs, UnitArgs, UsageArgs, UsageTableArgs, VolumesArgs,
};
pub(crate) use receive::ReceiveArgs;
pub(crate) use send::SendArgs;
pub(crate) use subvolume::{
    PropertyCommand, PropertyGetArgs, PropertySetArgs, SubvolumeCommand, SubvolumeCreateArgs,
    SubvolumeDeleteArgs, SubvolumeSetDefaultArgs, SubvolumeSnapshotArgs, SubvolumeSyncArgs,
};
pub(crate) use verity::{
    MetadataName, VerityCommand, VerityEnableArgs, VerityMeasureArgs, VerityMetadataArgs,
};
pub(crate) use volume::VolumeArgs;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::failure::Failure;
use crate::output::size;

/// Describes VOLUME, PATH and the exit status; every command without notes of its own shows it.
const VOLUME_HELP: &str = "\
VOLUME is the path of a block device or an image file. A volume on several devices is named by all
of them, separated by commas: a.img,b.img. These suffixes are accepted:
  @SUBVOL      use another subvolume or snapshot as the root, named by its path from the top level
               or by its id (disk.img@snap1); symlinks in this path are not followed
  ?offset=N    the volume starts N bytes into the image; suffixes K, M, G, T are powers of 1024, and
               s is sectors of 512 bytes
  ?partition=N the volume is partition N of a disk with a GPT or MBR partition table, and ends with
               it; `butternut partitions` lists them
If a file exists whose name contains these characters, the argument names that file.

Commands that read, and mount, also accept files with send streams in the place of the devices: a
full stream and its increments, in order (full,next). They show the subvolumes that `receive` would
make. Nothing is kept; meanwhile the contents of the streams use space in TMPDIR [/var/tmp], in a
file without a name, and as much memory as a mounted volume does. The subvolumes must have different
names. Streams of btrfs send --no-data are refused.

ls, cat, stat, find and three commands of inspect also accept a directory of a mounted volume, of
Butternut or of the kernel's btrfs, in the place of the devices. Its files are read as any program
reads them, and PATH begins in it: `ls /mnt /etc`. Without PATH, VOLUME is what is shown, for cat
and stat also a file, and the paths that are printed begin with it: `cat /mnt/etc/fstab`. What a
mount does not tell the user is shown as `-`, and as null in JSON. A subvolume is named by its path.

PATH is a path in the volume, relative to its root. Names are byte strings: unprintable characters
are escaped on a terminal and printed unchanged elsewhere. In JSON output, a name that is not valid
UTF-8 is followed by its exact bytes in hexadecimal, under the same key with `_bytes` appended.

Exit status: 0 on success, 1 if an operation failed (reported on stderr), 2 for a usage error.";

/// Describes what may follow `mount -o`.
pub(crate) const MOUNT_HELP: &str = "\
Options for -o:
  ro                    mount read-only; without it, a volume that cannot be written is not mounted
  commit=SECONDS        commit interval: the age in seconds at which changes are committed [30]
  sync                  do all I/O synchronously, as in mount(8)
  subvol=PATH           mount the subvolume at PATH, relative to the top level (as @PATH); symlinks
                        are not followed
  subvolid=N            mount the subvolume with this id (as @N)
  compress[=ALGO[:N]]   compress file data that compresses well, with zlib (levels 1 to 9 [3]), lzo
                        or zstd (-15 to 15 [3]); no or none: do not compress (default)
  compress-force[=...]  as compress, but ignore the file flags and the sample of the data that would
                        prevent compression
  degraded              allow missing devices, if all data can still be read; allow writing to
                        devices that missed commits, if the other devices hold all data
  allow_other           allow access by other users; permissions and ACLs are then always checked
  default_permissions   check permissions and ACLs for the mounting user, too
  user_subvol_rm_allowed
                        let users delete subvolumes that belong to them, where they may write to
                        the directory; without it, only root deletes subvolumes
  offset=N              byte offset of the volume in the image (as ?offset=N; for a partition, put
                        ?partition=N behind the image)
  cache=N               maximum size of the cache of tree blocks, in bytes [64M]
  page_cache=N          maximum size of the page cache, clean and dirty, in bytes [256M]
  pending=N             bytes of file data that may be on the devices and in no tree yet; overwrites
                        of such data cost nothing there. Takes up to a twentieth of it of memory
                        [1536M]
  threads=N             as --threads
  all_wait              let all threads wait for requests, instead of one thread on the CPU of the
                        caller
  blkdev                mount the block device itself (type fuseblk): sync(2) and syncfs(2) commit,
                        and umount(2) returns when all changes are committed; only for root. See
                        below
  fsname=NAME           the source that mount tables show, instead of the volume; with blkdev, a
                        path of the device
  uncached              cache no file data, neither here nor in the kernel
  writeback             let the kernel cache writes and send them later: small writes are faster,
                        but a full volume is reported only by close(2) or fsync(2), and direct
                        writes (O_DIRECT) to one file do not run in parallel. A snapshot has the
                        data of open files, and may have the times of before the last writes
  parallel_direct       the opposite of writeback (default)
  dev, suid, exec       interpret device files, honor set-user-ID and set-group-ID bits, permit the
                        execution of programs [nodev, nosuid, exec; for root through mount(8): dev,
                        suid, exec, as for every filesystem]
  nologreplay           with ro: show the last commit, without the log tree of a volume that was not
                        unmounted cleanly. By default it is replayed, for ro in memory
  nosec=..., simple_read=..., dio_stable=..., latency=..., uncached_flush=..., log_tree=...,
  full_fsync_on_release=...
                        tunables, see butternut-ctl(1)
  remount               change the options of a mount in use: ro, rw, sync, async, dev, suid, exec,
                        their opposites, and the tunables. Options that are not named keep their
                        values; any other option is refused if its value differs from that of the
                        volume. ro, sync and async apply to every mount point of the volume. rw
                        makes the volume and the named mount point writable, and leaves other
                        read-only mount points unchanged. dev, suid and exec apply to one mount
                        point. Only root may remount
Options for access times are accepted and ignored: reads never update access times.

Without allow_other and default_permissions, permissions are not checked: the mounting user can read
and change every file, since that user has access to all bytes of the image anyway.

A mount has one device number (st_dev) for all subvolumes, and inode numbers are unique in the
volume: the root directory of a subvolume does not have number 256. A script that root runs
recognizes one by `butternut subvolume show DIRECTORY`, which fails for any other directory; a
program of any user, by the ioctl BTRFS_IOC_SUBVOL_GETFLAGS. A mount serves the ioctls of btrfs that
butternut's commands use, and FS_INFO (which returns all fields, whatever its flags), DEV_INFO,
GET_SUBVOL_ROOTREF and INO_LOOKUP_USER, but not START_SYNC and WAIT_SYNC: call syncfs(2).

Files opened with O_DIRECT bypass all caches; any alignment is accepted. Reads, writes and mmap(2)
see each other's data, whether cached or direct. Before Linux 6.6, a file opened with O_DIRECT
cannot be mapped with MAP_SHARED, unless writeback is given.

fsync(2) returns when the changes of its file or directory are on stable storage. Without -o blkdev,
sync(2) does not reach the process of the mount; `butternut umount` does: it returns when all
changes are committed and the volume is released. umount(8) does the same if umount.fuse.butternut
is installed and the volume or the type (fuse.butternut) is named; given only a directory, it does
not call the helper and returns earlier.

With -o blkdev, sync(2) and syncfs(2) commit all changes (Linux 6.18), and umount(8) returns when
all changes are committed, also if it does not call its helper. The process of the mount ends
shortly afterwards. Commands of butternut wait for that, for at most 10 seconds; before Linux 6.16
they refuse the volume as busy instead. In these cases umount(8) returns before the commit:
  umount -f     if the helper is not called. If the mount is busy, or the connection is aborted in
                /sys/fs/fuse/connections, the process detaches the mount and commits, and the kernel
                holds the device until the last open file is closed. Otherwise the kernel releases
                the device at once, and the process commits only if no other program has claimed or
                changed the device by then; if one has, the changes are lost
  umount -l     while files are open, until the last one is closed
  any form      while the volume has another mount point, here or in another mount namespace
umount(8) does not know whether the commit succeeds: if the last commit fails, or the process of the
mount is killed, its exit status is 0 all the same, and an error is only in syslog.
`butternut umount` reports errors. So does `sync -f MOUNTPOINT` before umount(8), but not reliably:
lost data is reported once, and a sync(2) of another program, which any user can call, may take that
report.

With -o blkdev, the kernel holds the device exclusively, as for its own filesystems. A volume that
is mounted read-only can be mounted again without blkdev only. The first device of the volume must
be a block device with logical blocks of at most 4096 bytes: attach an image file to a loop device
with losetup(8). This requires Linux 6.15, and CAP_SYS_ADMIN in the initial user namespace. A kernel
that permits no writes to mounted devices (CONFIG_BLK_DEV_WRITE_MOUNTED is off) needs the boot
parameter bdev_allow_write_mounted=1.

SIGTERM, SIGINT or SIGHUP to the process of a mount unmounts the volume from all its mount points in
the mount namespace of that process, including moved and bind-mounted ones, and unmounts no other
filesystem. A mount point that another filesystem is mounted on stays mounted. A mount in use is
detached and committed, and its process reports on stderr and to syslog what still uses it:
processes, remaining mount points, mounts in other mount namespaces. A second signal commits later
changes and ends the process; open files and remaining mount points fail from then on. A third
signal ends the process without that commit, and aborts the connection of the mount in the kernel.
SIGKILL (kill -9) does not abort it: while a thread of the process waits in the kernel for data of
an open file, the process stays, and programs that use the mount wait for it, until root writes 1
to the file `abort` of the connection in /sys/fs/fuse/connections. While the volume is still being
opened, SIGTERM, SIGINT or SIGHUP to the command or its process ends both, and nothing is mounted.
While the mount is being made, which may wait for another filesystem, a second signal does, and it
ends fusermount3, too. SIGHUP and SIGINT stay ignored where they are from the start: under nohup(1),
and in the background jobs of a script.

Users other than root mount through fusermount3 (package fuse3), and need read and write access to
/dev/fuse and to the mount point.

Set the mode of image files to 0600. Any user who can read an image can lock it, and the volume
cannot be mounted for writing while the lock is held; the error message names the process that holds
the lock. To give other users read access, give them access to a mount instead.

A volume that root has mounted for writing can be mounted at more mount points, with other
subvolumes, too. One process serves all of them. Each mount point has its own ro, dev, suid and
exec; all other options and the tunables belong to the volume, and a mount that names another value
is refused. This requires Linux 6.15. The volume is released with its last mount point.

mount(8) and fstab(5) need the helpers mount.fuse.butternut and umount.fuse.butternut: symlinks to
the program in /sbin, which `make install` and the Debian package make. Paths in fstab must be
absolute:

    /srv/disk.img@snap1      /mnt  fuse.butternut  ro,allow_other,nofail  0 0
    /srv/vm.raw?partition=2  /vm   fuse.butternut  rw,compress=zstd       0 0

With nofail, mount(8) does not fail if the image or the device does not exist. For -o blkdev,
mount(8) has the same symlinks under the names mount.fuseblk.butternut and umount.fuseblk.butternut.
In fstab, the type fuseblk.butternut is the option blkdev:

    /dev/sdb1  /data  fuseblk.butternut  allow_other  0 0";

const UMOUNT_HELP: &str = "\
When the command returns, all changes are committed and, without --lazy, the volume is released. A
commit waits for a device that does not respond. If the volume is also mounted elsewhere, here or in
another mount namespace (for more than 2 s), it is not released: the command unmounts this mount
point only, reports on stderr where the volume is still mounted, and exits with 0. The key
`released` in the --json output tells which.

If changes could not be committed, the mount is unmounted all the same, and the exit status is 1.
After `umount -f` or an abort, the process of the mount commits by itself: the command waits for its
end, and an error is only in syslog.
Root has no access to a mount of another user without allow_other, and lets its process commit over
the control socket. Without that socket, nothing is committed before the unmount, and the exit
status is 1.";

const STATS_HELP: &str = "\
Counters start at zero when the volume is mounted. A latency is the time that an operation takes in
the process of the mount, including operations that fail; quantiles are exact to within 3 %. An
fsync is counted with its whole duration, and the commit inside it is counted again as a commit.
Lookups and reads of attributes are not timed.

Groups: lanes (code paths that direct I/O took), pages (contents and activity of the page cache,
causes of writeback), syncs (fsyncs, and the log), memory (changes that are not on the devices yet),
trees, rescues (reads that another copy answered), the devices, the latencies, and the tunables (key
`tunables`).

Keys of --json and metric names of --prometheus are stable across releases. Only the owner of the
mount and root have access.

    butternut stats /mnt
    butternut stats /mnt --json | jq .latency.fsync.p99_ns
    butternut stats /mnt --prometheus > /var/lib/node_exporter/butternut.prom";

const CTL_HELP: &str = "\
Each tunable turns one mechanism of the I/O path off, or back to its simpler predecessor, at run
time, so that its effect can be measured:
  nosec=on|off          direct writes to files without privileges to strip share the inode lock;
                        off: every direct write locks the inode exclusively
  simple_read=on|off    direct reads of one block with a cached mapping take a short path; off: all
                        direct reads take the general path
  dio_stable=bounce|trust|buffered
                        how the data of a direct write is kept from changing before it is written:
                        bounce: copy it; trust: do not (for measurements: data that changes gets a
                        wrong checksum); buffered: write it through the page cache
  latency=on|off        measure the latency of operations
  uncached_flush=device|inode|inline
                        which thread writes back the pages dirtied by uncached writes: device: the
                        flusher, oldest files first; inode: the flusher, only that file; inline: the
                        writing thread
  log_tree=on|off       fsync writes what changed of a file to the log tree; off: it commits the
                        transaction. The log is replayed when the volume is opened after a crash
  full_fsync_on_release=off|on
                        fsync logs all of a file whose pages were evicted from the page cache, as
                        older kernels do (for measurements)
The first value is the default. `butternut mount -o` accepts the same settings. Only the owner of
the mount and root have access.

    butternut ctl /mnt                  show all tunables
    butternut ctl /mnt nosec            show one
    butternut ctl /mnt nosec=off        set one";

/// Describes the transaction of every command that changes a volume.
const CHANGE_HELP: &str = "\
The volume must not be mounted or open in another process. All changes are made in one transaction:
if the command fails, the volume is unchanged. There are two exceptions: a command that changes more
than 256 MiB of metadata commits in between, and rm and truncate commit in between on a volume
without free space, where removing data needs it.

Symlinks in PATH are followed inside the volume. The last component is not followed by commands that
remove, move or link it. New files and directories belong to the user who runs the command.";

const IMPORT_HELP: &str = "\
The import copies data, holes, modes, owners, access and modification times, extended attributes,
ACLs, capabilities, hard links, symlinks, device files, FIFOs and sockets. Nothing in the volume is
overwritten: the import fails if a file exists.

The volume must not be mounted or open in another process. The import is one transaction: if it
fails, the volume is unchanged. There is one exception: an import of more than 256 MiB of metadata
(some hundred thousand files) commits in between.

With --tar, SRC is an archive. Names with .. and names behind a symlink are refused, and a / in
front of a name is dropped: nothing is created outside PATH. An archive may contain directories that
exist in the volume, and they get its attributes. Of members with the same name the last one counts.

    butternut import disk.img ./site /srv        creates /srv/site, if /srv exists
    butternut import disk.img ./site/. /srv      copies the contents of ./site into /srv
    butternut import --tar disk.img rootfs.tar.zst /
    xz -dc rootfs.tar.xz | butternut import --tar disk.img - /";

const MKFS_HELP: &str = "\
A device that contains a filesystem, swap space or a partition table is not overwritten without
--force. With ?offset=N, the volume may be a partition, or the front of one; it is refused where it
overlaps anything else of the file or device: a filesystem at its start, at 32256 bytes or at one of
the first 8 multiples of 1 MiB, another partition, the table itself. With ?partition=N, it is that
partition, and has its size unless --size makes it smaller. A device in use is refused even with
--force.

If the environment variable SOURCE_DATE_EPOCH is set (seconds since 1970) and --uuid is given, the
same command line creates the same bytes. This includes --rootdir with the same directory tree: no
time in the volume is later than SOURCE_DATE_EPOCH, and access times equal modification times.

    butternut mkfs --size 1G disk.img            creates the file
    butternut mkfs -L backup -O bgt /dev/sdx1
    butternut mkfs --size 1G -O squota disk.img
    butternut mkfs --size 512M disk.img?offset=1M
    butternut mkfs disk.img?partition=2
    butternut mkfs --rootdir ./site --shrink site.img";

const CHECK_HELP: &str = "\
The check reads every tree and compares all redundant metadata: extents with their references, block
groups with chunks, device extents and devices, free space with allocated extents, checksums with
files, directory entries with inodes. It writes nothing. Each finding is printed as
  error: KIND: WHERE: FIELD: have X, want Y
Warnings are inconsistencies that affect neither reading nor writing. The free space cache (v1) is
not checked.

The usage of quota groups is counted from all extents, and compared with the stored one unless that
is marked as inconsistent. --qgroup-report prints both in the form of `btrfs check --qgroup-report`:
what is counted as `our`, what is stored as `disk`.

With --online, VOLUME is a directory of a mounted volume, and the owner of the mount checks its last
commit while it goes on. The process of the mount makes a commit first, and keeps what that refers
to on the devices until the end of the check: what is freed meanwhile is not free space. The
superblocks and the log tree, which change, are not compared. On a mount of the kernel's btrfs,
`btrfs scrub` does a part of this.

Exit status: 0 if no damage was found, 4 if damage was found, 8 if the check could not be completed,
16 for a usage error.";

/// btrfs in user space: read, create and change volumes without root and without a kernel driver
#[derive(Debug, Parser)]
#[command(name = "butternut", version, propagate_version = true, after_help = VOLUME_HELP)]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Clone, Args)]
pub(crate) struct GlobalArgs {
    /// Print more to stderr: what was changed, and how much was read
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Print only errors to stderr: no progress bar, no notes
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print JSON to stdout
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Open the volume with missing devices, if all data can still be read
    #[arg(long, global = true)]
    pub(crate) degraded: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List directory contents
    Ls(LsArgs),
    /// Print the contents of files
    ///
    /// If the reader of the output ends before its end, the exit status is 141.
    Cat(CatArgs),
    /// Show the attributes of files, as stat(1), and their btrfs metadata
    Stat(StatArgs),
    /// Search for files in a directory tree
    #[command(after_help = read::FIND_HELP)]
    Find(FindArgs),
    /// Copy a file or directory tree out of a volume, with its metadata
    Export(ExportArgs),
    /// Copy a file or directory tree into a volume, with its metadata
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
    /// Write stdin to a file
    #[command(after_help = CHANGE_HELP)]
    Write(WriteArgs),
    /// Create directories
    #[command(after_help = CHANGE_HELP)]
    Mkdir(MkdirArgs),
    /// Remove files and directory trees
    #[command(after_help = CHANGE_HELP)]
    Rm(RmArgs),
    /// Copy files inside a volume; the copies share their data
    #[command(after_help = CHANGE_HELP)]
    Cp(CpArgs),
    /// Move and rename files and subvolumes
    #[command(after_help = CHANGE_HELP)]
    Mv(MvArgs),
    /// Create hard and symbolic links
    #[command(after_help = CHANGE_HELP)]
    Ln(LnArgs),
    /// Change file modes
    #[command(after_help = CHANGE_HELP)]
    Chmod(ChmodArgs),
    /// Change file owners and groups
    #[command(after_help = CHANGE_HELP)]
    Chown(ChownArgs),
    /// Change access and modification times, or create empty files
    #[command(after_help = CHANGE_HELP)]
    Touch(TouchArgs),
    /// Shrink or extend files to a size
    #[command(after_help = CHANGE_HELP)]
    Truncate(TruncateArgs),
    /// Set and remove extended attributes
    #[command(after_help = CHANGE_HELP)]
    Setfattr(SetfattrArgs),
    /// Print extended attributes
    Getfattr(GetfattrArgs),
    /// Discard free space (TRIM)
    Trim(TrimArgs),
    /// Let files with equal data share it
    #[command(after_help = dedupe::DEDUPE_HELP)]
    Dedupe(DedupeArgs),
    /// Show, create and delete subvolumes and snapshots
    #[command(subcommand, visible_alias = "sub")]
    Subvolume(SubvolumeCommand),
    /// Make the subvolumes of a send stream
    #[command(after_help = receive::RECEIVE_HELP)]
    Receive(ReceiveArgs),
    /// Write a subvolume, or its difference to another one, as a stream for `btrfs receive`
    #[command(after_help = send::SEND_HELP)]
    Send(SendArgs),
    /// Get and set properties of subvolumes
    #[command(subcommand)]
    Property(PropertyCommand),
    /// Seal files by fs-verity, and print their digests
    #[command(subcommand)]
    Verity(VerityCommand),
    /// Enable and disable quotas, and compute their numbers again
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Show and change quota groups
    #[command(subcommand)]
    Qgroup(QgroupCommand),
    /// Show and change a volume as a whole: label, devices, space, extents
    ///
    /// The commands df, du, usage, resize and defragment may be given without `filesystem`. As in
    /// btrfs(8), unique beginnings are accepted: `fi us`, `subv snap`.
    #[command(subcommand, visible_alias = "fi")]
    Filesystem(FilesystemCommand),
    /// Print on-disk structures
    #[command(subcommand, alias = "inspect-internal")]
    Inspect(InspectCommand),
    /// Check a volume for damage, without changing it
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Create a volume, empty or filled from a directory
    #[command(after_help = MKFS_HELP)]
    Mkfs(MkfsArgs),
    /// List the partitions of a disk or image, and what they contain
    #[command(after_help = partitions::PARTITIONS_HELP)]
    Partitions(PartitionsArgs),
    /// Mount a volume through FUSE
    #[command(after_help = MOUNT_HELP)]
    Mount(MountArgs),
    /// Unmount a volume, and wait until it is released
    #[command(after_help = UMOUNT_HELP)]
    Umount(UmountArgs),
    /// Show the I/O statistics of a mounted volume
    #[command(after_help = STATS_HELP)]
    Stats(StatsArgs),
    /// Show the operations, latencies, memory and devices of a mounted volume, live
    #[command(after_help = lab::TOP_HELP)]
    Top(TopArgs),
    /// Show and set the tunables of a mounted volume
    #[command(after_help = CTL_HELP)]
    Ctl(CtlArgs),
    /// Run benchmarks
    #[command(after_help = lab::LAB_HELP)]
    Lab(LabArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Write the man pages to a directory
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The directory; it is created if it does not exist
    pub(crate) directory: PathBuf,
}

/// Parses a number of bytes that was given for `option`: decimal or 0x, with an optional suffix.
///
/// # Errors
/// Fails with a message that names `option` if `typed` is not a number of bytes.
pub(crate) fn parse_bytes(option: &str, typed: &str) -> Result<u64, Failure> {
    size::parse(typed).ok_or_else(|| {
        Failure::usage(option, format!("{typed:?} is not a number of bytes"))
            .hint("examples: 4096, 64K, 1M, 2G")
    })
}
