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
    #[command(after_help = SET_HELP)]
    SetDefault(SubvolumeSetDefaultArgs),
}

const CREATE_HELP: &str = "\
Each subvolume is durable as soon as it is created: if the command fails, those before it stay. They
belong to the user who runs the command.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.
The volume must not be mounted.";

const SNAPSHOT_HELP: &str = "\
A snapshot shares all data with its source until one of the two changes. It does not contain the
subvolumes inside its source: they appear as empty directories. The snapshot is durable when the
command ends.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.
The volume must not be mounted.";

const DELETE_HELP: &str = "\
All subvolumes are looked up first. Then each deletion is durable at once: if the command fails,
those before it stay, and are reported. The space is freed before the command ends. If the command
is interrupted, or with --keep-space, the next mount for writing frees the rest.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.
The volume must not be mounted.";

const SET_HELP: &str = "\
The change is durable when the command ends.

Paths begin at the default subvolume, unless VOLUME names another: VOLUME@5 is the top level.
The volume must not be mounted.";

#[derive(Debug, Args)]
pub(crate) struct SubvolumeCreateArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Paths of the new subvolumes
    #[arg(required = true, value_name = "PATH")]
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
    pub(crate) destination: OsString,
}

#[derive(Debug, Args)]
pub(crate) struct SubvolumeDeleteArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Paths of the subvolumes
    #[arg(required_unless_present = "ids", value_name = "PATH")]
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
    pub(crate) subvolume: OsString,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PropertyCommand {
    /// Print the properties of a subvolume
    Get(PropertyGetArgs),
    /// Set a property of a subvolume
    #[command(after_help = SET_HELP)]
    Set(PropertySetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PropertyGetArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Path of the subvolume
    pub(crate) path: OsString,
    /// The property; all are printed without it
    #[arg(value_parser = ["ro"])]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PropertySetArgs {
    /// Make a received subvolume writable, which ends its use as a parent of streams
    #[arg(short, long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Path of the subvolume
    pub(crate) path: OsString,
    /// The property
    #[arg(value_parser = ["ro"])]
    pub(crate) name: String,
    /// true or false
    #[arg(action = ArgAction::Set)]
    pub(crate) value: bool,
}
