//! As typed: the commands that list, print and copy.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::upkeep::{LabelArgs, ResizeArgs, SyncArgs};
use super::{RESIZE_HELP, VolumeArgs};

#[expect(clippy::struct_excessive_bools, reason = "flags, as typed")]
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// What to list: a directory's entries, or the file itself
    #[arg(default_value = "/")]
    pub(crate) path: OsString,
    /// Mode, links, owner, group, size and time of each
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Also `.` and `..`, and names that start with a dot
    #[arg(short, long)]
    pub(crate) all: bool,
    /// The directory itself, not what is in it
    #[arg(short, long)]
    pub(crate) directory: bool,
    /// Directories in it too, to the bottom
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// The inode number in front
    #[arg(short, long)]
    pub(crate) inode: bool,
    /// Sizes for people: 1.5K, 20M
    #[arg(short = 'H', long)]
    pub(crate) human: bool,
    /// In the order of the directory, not of the names
    #[arg(short = 'U', long)]
    pub(crate) unsorted: bool,
    /// End each line with a zero byte, names unescaped
    #[arg(short = '0', long)]
    pub(crate) null: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Where to start in each file: bytes, or with K, M, G, T
    #[arg(long, default_value = "0", value_name = "N")]
    pub(crate) offset: String,
    /// How many bytes of each file at most
    #[arg(long, value_name = "N")]
    pub(crate) length: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The files
    #[arg(default_value = "/", value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// What a symlink points at, not the symlink
    #[arg(short = 'L', long)]
    pub(crate) dereference: bool,
    /// Also where each part of a file lies
    #[arg(short, long)]
    pub(crate) extents: bool,
    /// Also the names and values of extended attributes
    #[arg(short, long)]
    pub(crate) xattrs: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FindArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Where to start
    #[arg(default_value = "/")]
    pub(crate) path: OsString,
    /// Names that match the pattern: `*`, `?`, `[a-z]`, `[!a-z]`, `\` before a literal
    #[arg(long, value_name = "GLOB")]
    pub(crate) name: Option<OsString>,
    /// Kinds, by letter as in find(1): f d l b c p s, joined with commas; v is a subvolume
    #[arg(short, long = "type", value_name = "KINDS")]
    pub(crate) kinds: Option<String>,
    /// At least (+N), at most (-N) or exactly N bytes, with K, M, G, T
    #[arg(short, long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub(crate) size: Option<String>,
    /// How deep: 0 is the start itself
    #[arg(short = 'd', long, value_name = "N")]
    pub(crate) max_depth: Option<usize>,
    /// How deep at least
    #[arg(long, value_name = "N")]
    pub(crate) min_depth: Option<usize>,
    /// Do not go into other subvolumes
    #[arg(short = 'x', long)]
    pub(crate) one_subvolume: bool,
    /// End each path with a zero byte, unescaped
    #[arg(short = '0', long)]
    pub(crate) null: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "flags, as typed")]
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// What to copy
    pub(crate) path: OsString,
    /// Where to: made under this name, or, if it is a directory already, in it under PATH's name; a
    /// directory that exists keeps its owner and mode
    pub(crate) dest: PathBuf,
    /// Do not set owners and groups (users other than root never do); what would lend rights is
    /// then left out: set-user-id bits of files, security.* and trusted.* attributes, devices
    #[arg(long, conflicts_with = "devices")]
    pub(crate) no_owner: bool,
    /// Make block and character devices (as root); without it they are left out and reported
    #[arg(long)]
    pub(crate) devices: bool,
    /// Do not set extended attributes, ACLs and capabilities
    #[arg(long)]
    pub(crate) no_xattrs: bool,
    /// Do not go into other subvolumes
    #[arg(short = 'x', long)]
    pub(crate) one_subvolume: bool,
    /// Files copied at once [default: one per core, at least 2]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// A volume and a path in it.
#[derive(Debug, Args)]
pub(crate) struct PathArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// A path in the volume
    #[arg(default_value = "/")]
    pub(crate) path: OsString,
}

/// A volume alone: its devices may be separate arguments.
#[derive(Debug, Args)]
pub(crate) struct VolumesArgs {
    /// Devices or images of the volume
    #[arg(required = true, value_name = "VOLUME")]
    pub(crate) volume: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SubvolumeVerb {
    /// List subvolumes and snapshots
    List(SubvolumeListArgs),
    /// Show one subvolume
    Show(SubvolumeShowArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum, PartialEq, Eq)]
pub(crate) enum ListSort {
    Rootid,
    Gen,
    Ogen,
    Path,
}

#[expect(clippy::struct_excessive_bools, reason = "the flags of btrfs subvolume list, as typed")]
#[derive(Debug, Args)]
pub(crate) struct SubvolumeListArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Parent id
    #[arg(short)]
    pub(crate) parent: bool,
    /// Mark paths that are not directly in the volume's root
    #[arg(short)]
    pub(crate) all: bool,
    /// Generation at creation
    #[arg(short = 'c')]
    pub(crate) created: bool,
    /// Generation (always shown; taken for compatibility)
    #[arg(short)]
    pub(crate) generation: bool,
    /// Only those directly below the volume's root
    #[arg(short = 'o')]
    pub(crate) only_below: bool,
    /// UUID
    #[arg(short)]
    pub(crate) uuid: bool,
    /// Parent UUID: of which it is a snapshot. (--quiet is spelled out here)
    #[arg(short = 'Q', long)]
    pub(crate) parent_uuid: bool,
    /// Received UUID
    #[arg(short = 'R')]
    pub(crate) received_uuid: bool,
    /// As a table
    #[arg(short)]
    pub(crate) table: bool,
    /// Only snapshots
    #[arg(short)]
    pub(crate) snapshots: bool,
    /// Only read-only ones
    #[arg(short)]
    pub(crate) read_only: bool,
    /// Only deleted ones that are not cleaned up yet
    #[arg(short)]
    pub(crate) deleted: bool,
    /// Order; with `-` in front, the other way round (--sort=-gen)
    #[arg(long, value_name = "[-]KEY", allow_hyphen_values = true, value_parser = parse_sort)]
    pub(crate) sort: Option<(bool, ListSort)>,
}

fn parse_sort(word: &str) -> Result<(bool, ListSort), String> {
    let (backwards, name) = match word.strip_prefix('-') {
        Some(name) => (true, name),
        None => (false, word.strip_prefix('+').unwrap_or(word)),
    };
    ListSort::from_str(name, false)
        .map(|key| (backwards, key))
        .map_err(|_| "want rootid, gen, ogen or path".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct SubvolumeShowArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The subvolume's path in the volume [default: the volume's root, so @SUBVOL works too]
    #[arg(default_value = "/")]
    pub(crate) path: OsString,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FilesystemVerb {
    /// Label, UUID and devices
    Show(UsageArgs),
    /// Space by kind of block group
    Df(UsageArgs),
    /// Space by kind and device, with totals
    Usage(UsageTableArgs),
    /// Space of files, and how much of it is shared
    Du(DuArgs),
    /// Print or change the volume's name
    Label(LabelArgs),
    /// Bring everything down on the devices
    Sync(SyncArgs),
    /// Make the volume larger or smaller
    #[command(after_help = RESIZE_HELP)]
    Resize(ResizeArgs),
}

/// How sizes are printed, as in btrfs-progs.
#[expect(clippy::struct_excessive_bools, reason = "flags, as typed")]
#[derive(Debug, Args)]
pub(crate) struct UnitArgs {
    /// Bytes
    #[arg(short = 'b', long, group = "units")]
    pub(crate) raw: bool,
    /// Powers of 1000 (kB, MB)
    #[arg(short = 'H', long, group = "units")]
    pub(crate) si: bool,
    /// KiB
    #[arg(short = 'k', long, group = "units")]
    pub(crate) kbytes: bool,
    /// MiB
    #[arg(short = 'm', long, group = "units")]
    pub(crate) mbytes: bool,
    /// GiB
    #[arg(short = 'g', long, group = "units")]
    pub(crate) gbytes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    #[command(flatten)]
    pub(crate) units: UnitArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UsageTableArgs {
    #[command(flatten)]
    pub(crate) usage: UsageArgs,
    /// As a table
    #[arg(short = 'T')]
    pub(crate) table: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DuArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files or directories
    #[arg(default_value = "/", value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Only a total for each PATH
    #[arg(short, long)]
    pub(crate) summarize: bool,
    #[command(flatten)]
    pub(crate) units: UnitArgs,
}
