//! The command line as typed: one clap tree, from which help, man pages and completions come.
//!
//! Nothing here opens a volume or looks at a file; what the words mean is decided in `options`.

mod checking;
mod inspect;
mod listing;
mod making;
mod mounting;

pub(crate) use checking::CheckArgs;
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
pub(crate) use mounting::{MountArgs, UmountArgs};

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What a volume argument may be; the same text stands in every man page.
const VOLUME_HELP: &str = "\
A VOLUME is the path of a device or image file. A volume on several devices is all of them,
joined with commas: a.img,b.img. To it may be added:
  @SUBVOL      another root: the path of a subvolume or snapshot, or its id (disk.img@snap1)
  ?offset=N    where in a bigger image the volume starts, in bytes or with K, M, G, T (1024)
A file whose own name holds one of these characters wins over what they would mean.

PATH is a path in the volume, from its root. Names are bytes: on a terminal, those that are not
printable are shown escaped, elsewhere as they are. In JSON, a name that is not UTF-8 has its exact
bytes beside it, in hex, under the same key with `_bytes` added.

Exit status: 0 when all went well, 1 when something failed (said on stderr), 2 for a wrong command
line.";

/// What may stand after `mount -o`.
const MOUNT_HELP: &str = "\
Options after -o:
  ro                    only look; without it, what cannot be written is not mounted
  commit=SECONDS        how old a change becomes before it is brought down, unasked [30]
  sync                  bring every write down before it returns
  subvol=PATH           another root, by path from the top level (as @PATH)
  subvolid=N            another root, by id (as @N)
  degraded              go on without missing devices, if everything can still be read
  allow_other           let other users in; permissions and ACLs are then always checked
  default_permissions   check permissions and ACLs for the one who mounts, too
  offset=N              where in the image the volume starts (as ?offset=N)
  cache=N               bytes of tree blocks to keep in memory [64M]
  threads=N             as --threads
  dev, suid, exec       device nodes, set-user-id bits, programs work [nodev, nosuid, exec]
  nologreplay           say nothing of a log tree that is not shown
Options about access times are taken and change nothing: access times stay as they are.

Without allow_other and default_permissions, the one who mounts sees and changes everything in the
volume, whatever its modes say: its bytes are his anyway.

fsync(2) returns when all changes are on the medium. sync(2) does not reach the mount's process;
`butternut umount` does, and returns when the last change is down and the volume released. umount(8)
does the same where umount.fuse.butternut is installed, and else returns before.

In fstab: disk.img@snap1  /mnt  fuse.butternut  ro,allow_other  0 0";

/// What `mkfs` does that its flags do not say.
const MKFS_HELP: &str = "\
What lies on the device is looked at first: a filesystem, swap or a partition table is not
overwritten without --force. A device in use is refused, with --force too.

With the variable SOURCE_DATE_EPOCH set (seconds since 1970) and --uuid given, the same command
line makes the same bytes.

    butternut mkfs --size 1G disk.img            makes the file
    butternut mkfs -L backup -O bgt /dev/sdx1
    butternut mkfs --size 512M disk.img?offset=1M";

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

/// btrfs in user space: reads any btrfs volume, without root, without a kernel driver.
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
    /// Make an empty volume
    #[command(after_help = MKFS_HELP)]
    Mkfs(MkfsArgs),
    /// Mount a volume read-only, through FUSE
    #[command(after_help = MOUNT_HELP)]
    Mount(MountArgs),
    /// Unmount, and wait until the volume is released
    Umount(UmountArgs),
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
