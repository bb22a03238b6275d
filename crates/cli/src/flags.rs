//! The command line as typed: one clap tree, from which help, man pages and completions come.
//!
//! Nothing here opens a volume or looks at a file; what the words mean is decided in `options`.

mod changing;
mod checking;
mod importing;
mod inspect;
mod listing;
mod making;
mod mounting;
mod upkeep;

pub(crate) use changing::{
    ChmodArgs, ChownArgs, Encoding, GetfattrArgs, LnArgs, MkdirArgs, MvArgs, RmArgs, SetfattrArgs,
    TouchArgs, TruncateArgs, WriteArgs,
};
pub(crate) use checking::CheckArgs;
pub(crate) use importing::{ImportArgs, ImportHow};
pub(crate) use inspect::{
    DumpSuperArgs, DumpTreeArgs, InodeResolveArgs, InspectVerb, LogicalResolveArgs, RootidArgs,
    TreeStatsArgs,
};
pub(crate) use listing::{
    CatArgs, DuArgs, ExportArgs, FilesystemVerb, FindArgs, ListSort, LsArgs, StatArgs,
    SubvolumeListArgs, SubvolumeShowArgs, SubvolumeVerb, UnitArgs, UsageArgs, UsageTableArgs,
    VolumesArgs,
};
pub(crate) use making::MkfsArgs;
pub(crate) use mounting::{CtlArgs, MountArgs, StatsArgs, UmountArgs};
pub(crate) use upkeep::{LabelArgs, ResizeArgs, SyncArgs, TrimArgs};

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What a volume argument may be; the same text stands in every man page.
const VOLUME_HELP: &str = "\
A VOLUME is the path of a device or image file. A volume on several devices is all of them,
joined with commas: a.img,b.img. To it may be added:
  @SUBVOL      another root: the path of a subvolume or snapshot, or its id (disk.img@snap1);
               no symlink on that path is followed
  ?offset=N    where in a bigger image the volume starts, in bytes or with K, M, G, T (1024)
A file whose own name holds one of these characters wins over what they would mean.

PATH is a path in the volume, from its root. Names are bytes: on a terminal, those that are not
printable are shown escaped, elsewhere as they are. In JSON, a name that is not UTF-8 has its exact
bytes beside it, in hex, under the same key with `_bytes` added.

Exit status: 0 when all went well, 1 when something failed (said on stderr), 2 for a wrong command
line.";

/// What may stand after `mount -o`.
pub(crate) const MOUNT_HELP: &str = "\
Options after -o:
  ro                    only look; without it, what cannot be written is not mounted
  commit=SECONDS        how old a change becomes before it is brought down, unasked [30]
  sync                  bring every write down before it returns
  subvol=PATH           another subvolume, by its path from the top level (as @PATH); no symlink
                        is followed
  subvolid=N            another subvolume, by id (as @N)
  compress[=ALGO[:N]]   pack what is written, where that pays: with zlib (levels 1 to 9 [3]), lzo
                        or zstd (-15 to 15 [3]); no or none: not, the default
  compress-force[=...]  the same, whatever a sample of the data, or flags, say
  degraded              go on without missing devices, if everything can still be read; write to
                        devices that missed commits, if the others have everything
  allow_other           let other users in; permissions and ACLs are then always checked
  default_permissions   check permissions and ACLs for the one who mounts, too
  offset=N              where in the image the volume starts (as ?offset=N)
  cache=N               bytes of tree blocks to keep in memory [64M]
  page_cache=N          bytes of file data to keep in memory, clean and dirty [256M]
  threads=N             as --threads
  all_wait              all threads wait for requests, rather than one near who asks
  uncached              keep nothing of what is read and written, in the kernel neither
  writeback             let the kernel collect what is written, and send it later: small writes are
                        faster, and a full volume is reported by close(2) or fsync(2) only; files
                        opened with O_DIRECT are written by one program at a time
  parallel_direct       the opposite of writeback: the default
  dev, suid, exec       device nodes, set-user-id bits, programs work [nodev, nosuid, exec; where
                        root mounts with mount(8): dev, suid, exec, as for every filesystem]
  nologreplay           say nothing of a log tree that is not shown
  nosec=..., simple_read=..., dio_stable=..., latency=..., uncached_flush=...
                        the switches of `butternut ctl`
  remount               change a mount that serves: ro, rw, sync, async, dev, suid, exec, their
                        opposites, and the switches. What is not named stays as it is; another
                        option is refused if its value differs from that of the volume. ro, sync
                        and async change every place where the volume is mounted; rw makes the
                        volume writable and the place that is named, and leaves ro places as they
                        are; dev, suid and exec change one place. Only root may remount
Options about access times are taken and change nothing: access times stay as they are.

Without allow_other and default_permissions, the one who mounts sees and changes everything in the
volume, whatever its modes say: its bytes are his anyway.

What is opened with O_DIRECT passes every cache, any alignment. What goes one way is seen every
other way, mmap(2) included. Before Linux 6.6 files that are opened so cannot be mapped with
MAP_SHARED, unless writeback is given.

fsync(2) returns when all changes are on the medium. sync(2) does not reach the mount's process;
`butternut umount` does, and returns when the last change is down and the volume released. umount(8)
does the same where umount.fuse.butternut is installed and the volume or the type (fuse.butternut)
is named; of a directory alone it knows no type that has a helper, and returns before.

SIGTERM, SIGINT or SIGHUP to the process of a mount unmounts the volume at every place of the mount
namespace of that process, also where a place was moved or bound to, and nothing else. A place that
another filesystem is mounted on stays. A mount that is in use is detached and committed, and its
process writes to stderr and to the system's log what still uses it: processes, places that stay,
mounts in other mount namespaces. A second signal commits what was written since and ends it, and
open files and other places fail from then on; a third ends it without that commit.

A user other than root mounts through fusermount3 (of fuse3), with read and write access to
/dev/fuse and to the mount point.

Keep image files at mode 0600. Any user who can read one can hold a lock on it, and meanwhile the
volume is not mounted for writing; the refusal names the process that holds the lock. Give those who
may look at a volume a mount of it instead.

A volume that root has mounted for writing can be mounted at further places, other subvolumes too.
One process serves them all; ro, dev, suid and exec are those of each place. The other options, and
the switches, are those that the volume has: a further mount that names another value is refused.
This takes Linux 6.15. The volume is released with the last place.

mount(8) and fstab need the helpers mount.fuse.butternut and umount.fuse.butternut: links to the
program, in /sbin. Paths in fstab are absolute:

    ln -s \"$(command -v butternut)\" /sbin/mount.fuse.butternut
    ln -s \"$(command -v butternut)\" /sbin/umount.fuse.butternut

    /srv/disk.img@snap1  /mnt  fuse.butternut  ro,allow_other  0 0";

/// What `umount` waits for.
const UMOUNT_HELP: &str = "\
All changes are on the devices, and the volume is released, when the command returns. A volume that
is mounted at another place too, here or in another mount namespace, is not released: then the
command unmounts the one place, says on stderr where the volume is still mounted, and returns 0.
With --json, the key `released` tells.";

/// What `stats` counts.
const STATS_HELP: &str = "\
Counts begin with the mount. Latencies are from the call in the mount's process to its end, of
operations that failed too; quantiles are exact to within 3 %. A fsync is counted whole, and the
commit in it once more as a commit. Reads of names and attributes are not measured.

The groups are: lanes, which way direct requests went; pages, what the page cache holds and did, and
why it wrote back; memory, what is not on the devices yet; trees; rescues, what another copy gave;
then each device, the latencies, and the switches.

Keys of --json and names of --prometheus are kept from release to release. Only the owner of a mount
and root may ask it.

    butternut stats /mnt
    butternut stats /mnt --json | jq .latency.fsync.p99_ns
    butternut stats /mnt --prometheus > /var/lib/node_exporter/butternut.prom";

/// What the switches do.
const CTL_HELP: &str = "\
Each switch turns a mechanism of the I/O path back to what it replaced, at once and without an
unmount, so that its worth can be measured:
  nosec=on|off          direct writes share a file that has no privileges to strip; off: each has
                        the file alone
  simple_read=on|off    direct reads of one block, whose place is known, take the short way; off:
                        all go through the mapper of every read
  dio_stable=bounce|trust|buffered
                        what keeps the memory of a direct write from changing before it is down: a
                        copy; nothing (for measurements: what changes meanwhile gets a bad
                        checksum); the page cache
  latency=on|off        how long operations take is measured
  uncached_flush=device|inode|inline
                        who brings down what uncached writes made dirty: the flusher, oldest files
                        first; the flusher, that file alone; the writer
The first value is the default. `butternut mount -o` takes the same words. Only the owner of a mount
and root may ask it.

    butternut ctl /mnt                  all switches
    butternut ctl /mnt nosec            one
    butternut ctl /mnt nosec=off        set it";

/// What every command that changes a volume keeps to.
const CHANGE_HELP: &str = "\
The volume must not be mounted, nor open anywhere else. What is changed is changed in one
transaction: if anything fails, the volume is as it was. (Two exceptions: what changes so much that
256 MiB of metadata wait in memory is committed up to there; so is what rm and truncate did on a
volume so full that there is no other way.)

Symlinks in a path are followed inside the volume only; the last part of what is removed, moved or
linked is never followed. What is made belongs to whoever runs the command.";

/// The same, of `import`.
const IMPORT_HELP: &str = "\
Copied are bytes, holes, modes, owners, access and modification times, extended attributes, ACLs,
capabilities, hard links, symlinks, device nodes, pipes and sockets. Nothing in the volume is
overwritten: what is there already makes the import fail.

The volume must not be mounted, nor open anywhere else. The import is one transaction: if anything
fails, the volume is as it was. (One exception: an import of so many files, some hundred thousand,
that 256 MiB of metadata wait in memory, is committed up to there.)

    butternut import disk.img ./site /srv        makes /srv/site, if /srv is there
    butternut import disk.img ./site/. /srv      copies what is in ./site into /srv";

/// What `filesystem resize` does with image files.
const RESIZE_HELP: &str = "\
An image file is made longer when its volume grows, and cut when its volume shrinks, if the volume
reached to its end. A volume shrinks only to where no group that is in use lies.";

/// What `mkfs` does that its flags do not say.
const MKFS_HELP: &str = "\
What lies on the device is looked at first: a filesystem, swap or a partition table is not
overwritten without --force. A device in use is refused, with --force too.

With the variable SOURCE_DATE_EPOCH set (seconds since 1970) and --uuid given, the same command
line makes the same bytes. With --rootdir too, from the same tree: no time in the volume is later
then, and access times are those of modification.

    butternut mkfs --size 1G disk.img            makes the file
    butternut mkfs -L backup -O bgt /dev/sdx1
    butternut mkfs --size 512M disk.img?offset=1M
    butternut mkfs --rootdir ./site --shrink site.img";

/// What the exit status of `check` means.
const CHECK_HELP: &str = "\
Every tree is read, and what is kept twice is compared: extents with who uses them, block groups
with chunks, device extents and devices, free space with what is allocated, checksums with files,
names with inodes. Nothing is written. What is wrong is said as
  error: KIND: WHERE: FIELD: have X, want Y
Warnings are of things that no reader and no writer goes wrong by. What quota groups count is not
checked, nor the space cache of old.

Exit status: 0 when nothing is damaged, 4 when something is, 8 when that cannot be said, 16 for a
wrong command line.";

/// btrfs in user space: reads, makes and changes volumes, without root, without a kernel driver.
#[derive(Debug, Parser)]
#[command(name = "butternut", version, propagate_version = true, after_help = VOLUME_HELP)]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct LowArgs {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) noun: Noun,
}

/// Flags that every command takes.
#[expect(clippy::struct_excessive_bools, reason = "flags, as typed")]
#[derive(Debug, Clone, Args)]
pub(crate) struct GlobalArgs {
    /// Say more on stderr: what the volume's owner should know, and what was read
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Say nothing on stderr but errors: no progress bar, no notices
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Open the volume although devices are missing, if everything can still be read
    #[arg(long, global = true)]
    pub(crate) degraded: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Noun {
    /// List a directory
    Ls(LsArgs),
    /// Print files
    Cat(CatArgs),
    /// Show everything about files, as stat(1), and what btrfs keeps of them
    Stat(StatArgs),
    /// Walk a tree and print what matches
    Find(FindArgs),
    /// Copy a file or tree out, with everything that belongs to it
    Export(ExportArgs),
    /// Copy a file or tree in, with everything that belongs to it
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
    /// Write what comes on stdin to a file
    #[command(after_help = CHANGE_HELP)]
    Write(WriteArgs),
    /// Make directories
    #[command(after_help = CHANGE_HELP)]
    Mkdir(MkdirArgs),
    /// Remove files and trees
    #[command(after_help = CHANGE_HELP)]
    Rm(RmArgs),
    /// Move and rename
    #[command(after_help = CHANGE_HELP)]
    Mv(MvArgs),
    /// Make hard and symbolic links
    #[command(after_help = CHANGE_HELP)]
    Ln(LnArgs),
    /// Change permissions
    #[command(after_help = CHANGE_HELP)]
    Chmod(ChmodArgs),
    /// Change owners and groups
    #[command(after_help = CHANGE_HELP)]
    Chown(ChownArgs),
    /// Change access and modification times
    #[command(after_help = CHANGE_HELP)]
    Touch(TouchArgs),
    /// Change the size of files
    #[command(after_help = CHANGE_HELP)]
    Truncate(TruncateArgs),
    /// Set and remove extended attributes
    #[command(after_help = CHANGE_HELP)]
    Setfattr(SetfattrArgs),
    /// Print extended attributes
    Getfattr(GetfattrArgs),
    /// Tell the devices which of their space is free
    Trim(TrimArgs),
    /// Subvolumes and snapshots
    #[command(subcommand, visible_alias = "sub")]
    Subvolume(SubvolumeVerb),
    /// The volume: devices and space
    #[command(subcommand, visible_alias = "fi")]
    Filesystem(FilesystemVerb),
    /// The structures on disk
    #[command(subcommand)]
    Inspect(InspectVerb),
    /// Compare everything on a volume with everything else, and say what is wrong
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Make a volume, empty or from a directory
    #[command(after_help = MKFS_HELP)]
    Mkfs(MkfsArgs),
    /// Mount a volume, through FUSE
    #[command(after_help = MOUNT_HELP)]
    Mount(MountArgs),
    /// Unmount, and wait until the volume is released
    #[command(after_help = UMOUNT_HELP)]
    Umount(UmountArgs),
    /// Show what a mount has done: which way requests went, how long they took, what is in memory
    #[command(after_help = STATS_HELP)]
    Stats(StatsArgs),
    /// Show and set the switches of a mount
    #[command(after_help = CTL_HELP)]
    Ctl(CtlArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the man pages into a folder
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder; it is made where missing
    pub(crate) folder: PathBuf,
}

/// The volume of a command that also takes a path: one argument.
#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    /// Device or image: PATH[,PATH...][@SUBVOL][?offset=N]
    #[arg(value_name = "VOLUME")]
    pub(crate) volume: OsString,
}
