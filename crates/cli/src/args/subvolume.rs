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
    /// List subvolumes and snapshots
    List(SubvolumeListArgs),
    /// Show information about a subvolume
    Show(SubvolumeShowArgs),
    /// Show the subvolume that a mount without options shows
    GetDefault(VolumesArgs),
    /// Set the subvolume that a mount without options shows
    #[command(after_help = SET_DEFAULT_HELP)]
    SetDefault(SubvolumeSetDefaultArgs),
}

const SET_DEFAULT_HELP: &str = "\
The change is durable when the command ends.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

The subvolume of a mounted volume is named by its path alone, or by a path in the volume and its id.
This needs root:
  butternut subvolume set-default MOUNT/PATH
  butternut subvolume set-default MOUNT ID";

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

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

Subvolumes of a mounted volume are named by their paths alone:
  butternut subvolume create MOUNT/PATH...";

const SNAPSHOT_HELP: &str = "\
A snapshot shares all data with its source until one of the two changes. It does not contain the
subvolumes inside its source: they appear as empty directories. The snapshot is durable when the
command ends.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

In a mounted volume, both are named by their paths alone. Data that was written before is in the
snapshot:
  butternut subvolume snapshot [-r] MOUNT/SOURCE MOUNT/DESTINATION";

const DELETE_HELP: &str = "\
All subvolumes are looked up first, except by id on a mount. Then each deletion is durable at once:
if the command fails, those before it stay deleted; -v and --json report them. The space is freed
before the command ends. If the command is interrupted, or with --keep-space, the next mount for
writing frees the rest.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.

Subvolumes of a mounted volume are named by their paths alone, or by an id and a path in the volume;
their space is freed in the background. This needs root, or the mount option user_subvol_rm_allowed:
  butternut subvolume delete MOUNT/PATH...
  butternut subvolume delete -i ID MOUNT";

#[derive(Debug, Args)]
pub(crate) struct SubvolumeCreateArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Paths of the new subvolumes
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct SubvolumeSnapshotArgs {
    /// Make a read-only snapshot
    #[arg(short, long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Path of the subvolume; / is the root of VOLUME
    pub(crate) source: OsString,
    /// Path of the snapshot, or an existing directory for it
    pub(crate) destination: Option<OsString>,
}

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
    /// Leave the space to the next mount for writing
    #[arg(long)]
    pub(crate) keep_space: bool,
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
