//! Arguments of the commands for subvolumes, snapshots and their properties.

use std::ffi::OsString;

use clap::{ArgAction, Args, Subcommand};

use super::VolumeArgs;
use super::read::{SubvolumeListArgs, SubvolumeShowArgs, VolumesArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum SubvolumeCommand {
    /// Create empty subvolumes
    #[command(after_help = CREATE_HELP)]
    Create(SubvolumeCreateArgs),
    /// Create a snapshot of a subvolume
    #[command(after_help = SNAPSHOT_HELP)]
    Snapshot(SubvolumeSnapshotArgs),
    /// Delete subvolumes with everything in them
    #[command(after_help = DELETE_HELP)]
    Delete(SubvolumeDeleteArgs),
    /// Wait until the space of deleted subvolumes is freed
    #[command(after_help = SYNC_HELP)]
    Sync(SubvolumeSyncArgs),
    /// List subvolumes and snapshots
    #[command(after_help = LIST_HELP)]
    List(SubvolumeListArgs),
    /// Show information about a subvolume
    #[command(after_help = SHOW_HELP)]
    Show(SubvolumeShowArgs),
    /// Show the subvolume that a mount without options shows
    #[command(after_help = GET_DEFAULT_HELP)]
    GetDefault(VolumesArgs),
    /// Set the subvolume that a mount without options shows
    #[command(after_help = SET_DEFAULT_HELP)]
    SetDefault(SubvolumeSetDefaultArgs),
}

const SET_DEFAULT_HELP: &str = "\
The change is durable when the command ends.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

The subvolume of a mounted volume is named by its path alone, or by a path in the volume and its id.
A directory that is not the root of a subvolume is refused. This needs root:
  butternut subvolume set-default MOUNT/PATH
  butternut subvolume set-default MOUNT ID";

const GET_DEFAULT_HELP: &str = "\
The subvolume of a mounted volume is named by any directory in the volume. This needs root:
  butternut subvolume get-default MOUNT";

const LIST_HELP: &str = "\
Paths begin at the top level. Of a mounted volume, any directory names the volume; its subvolume is
that of the options -a and -o. This needs root, or the user that mounted where the mount checks no
permissions:
  butternut subvolume list MOUNT

`btrfs subvolume list` and the other commands of btrfs-progs refuse a FUSE mount.";

const SHOW_HELP: &str = "\
The numbers of the quota group are those of the last commit.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

The subvolume of a mounted volume is named by its path alone. This needs root, or the user that
mounted where the mount checks no permissions; the quota group is shown if `butternut mount` serves
the volume:
  butternut subvolume show MOUNT/PATH";

const SYNC_HELP: &str = "\
The command frees the space of all deleted subvolumes of a volume that is not mounted. In a mounted
volume, the space is freed in the background: the command waits until that of the subvolumes with
the given ids is free, or of all that are deleted when it begins. Space is not freed while a program
has a file of the subvolume open, or its working directory in it.

  butternut subvolume sync MOUNT [ID...]";

const PROPERTY_HELP: &str = "\
The only property is ro: true for a read-only subvolume. On a mount it is not set while files in the
subvolume are open for writing.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

The subvolume of a mounted volume is named by its path alone:
  butternut property get MOUNT/PATH [ro]
  butternut property set MOUNT/PATH ro true";

const CREATE_HELP: &str = "\
Each subvolume is durable as soon as it is created: if the command fails, those before it stay. They
belong to the user who runs the command.

With -i, quota groups of a level above 0 include the new subvolumes from the beginning; `qgroup
create` makes the groups. Where quotas are disabled, -i does nothing.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

Subvolumes of a mounted volume are named by their paths alone:
  butternut subvolume create MOUNT/PATH...";

const SNAPSHOT_HELP: &str = "\
A snapshot shares all data with its source until one of the two changes. It does not contain the
subvolumes inside its source: they appear as empty directories. With --recursive, it contains
snapshots of them, at any depth: all are of one instant, and read-only with -r. The command makes
all of them or none. They are durable when it ends. Before a subvolume inside a read-only one can be
deleted, `property set ... ro false` makes the one around it writable.

With -i, quota groups of a level above 0 include the snapshot from the beginning, with -R each of
the snapshots, and their numbers are exact: no rescan is needed, as it is after `btrfs subvolume
snapshot -i`.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

In a mounted volume, both are named by their paths alone. Data that was written before is in the
snapshot:
  butternut subvolume snapshot [-r] [-R] [-i QGROUP]... MOUNT/SOURCE MOUNT/DESTINATION

Where the mount checks permissions, all subvolumes must belong to the user who runs the command. The
kernel's btrfs makes no recursive snapshots.";

const DELETE_HELP: &str = "\
All subvolumes are looked up first, except by id on a mount. Then each deletion is durable at once:
if the command fails, those before it stay deleted; -v and --json report them. The space is freed
before the command ends. If the command is interrupted, or with --keep-space, the next mount for
writing frees the rest.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

Subvolumes of a mounted volume are named by their paths alone, or by an id and a path in the volume;
their space is freed in the background. This needs root, or for paths the mount option
user_subvol_rm_allowed. Only root can list the subvolumes inside others, so -R of another user
deletes only a subvolume with none inside. A mount point is refused, and so are the default
subvolume, one that a send or a receive reads, and one inside a read-only subvolume until `property
set PATH ro false` has made that writable:
  butternut subvolume delete [-R] MOUNT/PATH...
  butternut subvolume delete -i ID MOUNT";

#[derive(Debug, Args)]
pub(crate) struct SubvolumeCreateArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Paths of the new subvolumes
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Add the subvolumes to this quota group, LEVEL/NUMBER; may be repeated
    #[arg(short = 'i', long = "qgroup", value_name = "QGROUP", action = ArgAction::Append)]
    pub(crate) qgroups: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SubvolumeSnapshotArgs {
    /// Make a read-only snapshot
    #[arg(short, long)]
    pub(crate) read_only: bool,
    /// Also make snapshots of the subvolumes inside the source, at their places in the snapshot
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Add the snapshot to this quota group, LEVEL/NUMBER; may be repeated
    #[arg(short = 'i', long = "qgroup", value_name = "QGROUP", action = ArgAction::Append)]
    pub(crate) qgroups: Vec<String>,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Path of the subvolume; / is the root of VOLUME
    pub(crate) source: OsString,
    /// Path of the snapshot, or an existing directory for it
    pub(crate) destination: Option<OsString>,
}

#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
pub(crate) struct SubvolumeDeleteArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Paths of the subvolumes
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Delete the subvolume with this id; may be repeated
    #[arg(short = 'i', long = "subvolid", value_name = "ID", action = ArgAction::Append)]
    pub(crate) ids: Vec<u64>,
    /// Also delete the subvolumes inside them
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Commit after each deletion (always done; accepted for compatibility)
    #[arg(short = 'C', long, hide = true)]
    pub(crate) commit_each: bool,
    /// Commit at the end (always done; accepted for compatibility)
    #[arg(short = 'c', long, hide = true)]
    pub(crate) commit_after: bool,
    /// Leave the space to the next mount for writing
    #[arg(long)]
    pub(crate) keep_space: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SubvolumeSyncArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Ids of deleted subvolumes [default: all]
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct SubvolumeSetDefaultArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Id or path of the subvolume; 5 is the top level
    pub(crate) subvolume: Option<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PropertyCommand {
    /// Print the properties of a subvolume
    #[command(after_help = PROPERTY_HELP)]
    Get(PropertyGetArgs),
    /// Set a property of a subvolume
    #[command(after_help = PROPERTY_HELP)]
    Set(PropertySetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PropertyGetArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Path of the subvolume
    pub(crate) path: Option<OsString>,
    /// The property, which is ro; all are printed without it
    pub(crate) name: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct PropertySetArgs {
    /// Make a received subvolume writable, which ends its use as a parent of streams
    #[arg(short, long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Path of the subvolume, the property, which is ro, and its value: true or false
    #[arg(value_name = "PATH ro VALUE", num_args = 2..=3, required = true)]
    pub(crate) typed: Vec<OsString>,
}
