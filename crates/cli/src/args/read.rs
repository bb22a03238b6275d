//! Arguments of the commands that list, print and copy out files, subvolumes and space.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand, ValueEnum};

use super::VolumeArgs;
use super::admin::{
    DU_HELP, LABEL_HELP, LabelArgs, MKSWAPFILE_HELP, MOUNTED_HELP, MkswapfileArgs, RESIZE_HELP,
    ResizeArgs, SYNC_HELP, SyncArgs,
};
use super::defragment::{DEFRAGMENT_HELP, DefragmentArgs};

#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Directories whose entries are listed, and files [default: /]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Print mode, links, owner, group, size and modification time
    #[arg(short, long)]
    pub(crate) long: bool,
    /// As --long; owners and groups are always numeric
    #[arg(short = 'n', long)]
    pub(crate) numeric_uid_gid: bool,
    /// Do not ignore names that start with a dot, including `.` and `..`
    #[arg(short, long)]
    pub(crate) all: bool,
    /// As --all, without `.` and `..`
    #[arg(short = 'A', long)]
    pub(crate) almost_all: bool,
    /// List directories themselves, not their contents
    #[arg(short, long)]
    pub(crate) directory: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Print the inode number of each file
    #[arg(short, long)]
    pub(crate) inode: bool,
    /// Print human-readable sizes: 1.5K, 20M
    #[arg(short = 'h', short_alias = 'H', long, alias = "human-readable")]
    pub(crate) human: bool,
    /// Sort by modification time, newest first
    #[arg(short = 't', group = "order")]
    pub(crate) by_time: bool,
    /// Sort by size, largest first
    #[arg(short = 'S', group = "order")]
    pub(crate) by_size: bool,
    /// Reverse the order
    #[arg(short, long)]
    pub(crate) reverse: bool,
    /// List one name a line (always done; accepted for compatibility)
    #[arg(short = '1')]
    pub(crate) one: bool,
    /// Do not sort; list entries in directory order
    #[arg(short = 'U', long, group = "order")]
    pub(crate) unsorted: bool,
    /// End each line with a zero byte, and do not escape names
    #[arg(short = '0', long)]
    pub(crate) null: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub(crate) help: Option<bool>,
}

#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files; a file of a mounted volume may be named alone, as MOUNT/PATH
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Offset of the first byte printed of each file, with suffix K, M, G or T
    #[arg(long, default_value = "0", value_name = "N")]
    pub(crate) offset: String,
    /// Maximum number of bytes printed of each file
    #[arg(long, value_name = "N")]
    pub(crate) length: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files [default: /]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Follow symlinks
    #[arg(short = 'L', long)]
    pub(crate) dereference: bool,
    /// Also print the extents of each file
    #[arg(short, long)]
    pub(crate) extents: bool,
    /// Also print extended attributes
    #[arg(short, long)]
    pub(crate) xattrs: bool,
}

pub(super) const FIND_HELP: &str = "\
A file is printed if it passes all tests. These tests and actions of find(1) may have its form, with
one dash: -name, -iname, -path, -type, -mtime, -maxdepth, -mindepth, -xdev, -mount, -print, -print0
and -ls. So may -size, and has its meaning there: +N is more than N, -N is less, N is exact, in
blocks of 512 bytes, or in the units c (bytes), w (2 bytes), k, M or G; a size is rounded up to
whole units. Other tests, actions and operators of find(1) do not exist.

VOLUME may be a directory of a mounted volume. Paths begin in it; without a starting point, the
search begins at VOLUME, and the paths that are printed do, too. What is mounted below is not
searched.

    butternut find disk.img /srv -name '*.log' -size +10M -mtime -7 -ls";

#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
pub(crate) struct FindArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Starting point of the search [default: /]
    pub(crate) start: Option<OsString>,
    /// Match file names against a pattern: `*`, `?`, `[a-z]`, `[!a-z]`, `\` before a literal
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub(crate) name: Option<OsString>,
    /// As --name, but ignore case
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub(crate) iname: Option<OsString>,
    /// Match paths as they are printed against a pattern, in which `*` and `?` also match slashes
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub(crate) path: Option<OsString>,
    /// Match file types, separated by commas: f, d, l, b, c, p, s as in find(1); v is a subvolume
    #[arg(short, long = "type", value_name = "KINDS")]
    pub(crate) kinds: Option<String>,
    /// Match sizes of at least (+N), at most (-N) or exactly N bytes, with suffix K, M, G or T
    #[arg(short, long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub(crate) size: Option<String>,
    /// `-size` of find(1)
    #[arg(long, value_name = "[+-]N[cwbkMG]", allow_hyphen_values = true, hide = true)]
    pub(crate) size_in_units: Option<String>,
    /// Match files that were modified more than (+N), less than (-N) or exactly N days ago, in
    /// whole days, as in find(1)
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub(crate) mtime: Option<String>,
    /// Descend at most N levels; 0 is the starting point itself
    #[arg(short = 'd', long, value_name = "N")]
    pub(crate) max_depth: Option<usize>,
    /// Do not print files above level N
    #[arg(long, value_name = "N")]
    pub(crate) min_depth: Option<usize>,
    /// Do not descend into other subvolumes
    #[arg(short = 'x', long)]
    pub(crate) one_subvolume: bool,
    /// Print inode number, blocks of 1024 bytes, mode, links, owner, group, size and modification
    /// time of each file, too
    #[arg(short, long)]
    pub(crate) ls: bool,
    /// End each path with a zero byte, and do not escape it
    #[arg(short = '0', long, alias = "print0")]
    pub(crate) null: bool,
    /// Print each path (always done; accepted for compatibility)
    #[arg(long, hide = true)]
    pub(crate) print: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// File or directory to copy
    pub(crate) path: OsString,
    /// Destination: a new name, or an existing directory in which the copy gets the name of PATH;
    /// an existing directory keeps its owner and mode. With --tar, - for stdout
    pub(crate) dest: PathBuf,
    /// Write an archive in the pax format of tar to stdout, with owners, extended attributes, ACLs,
    /// hard links and holes; sockets are skipped and reported
    #[arg(long)]
    pub(crate) tar: bool,
    /// Copy only files that match one of these patterns (*, ?, [a-z]); a pattern with a slash is
    /// for the path below PATH, others for the name. Directories are copied; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) include: Vec<OsString>,
    /// Leave out files that match, and directories with all that is in them; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<OsString>,
    /// Copy only files that were modified after a time (2026-11-21, "2026-11-21 14:30", @SECONDS),
    /// or after a file of this machine. Directories are copied
    #[arg(long, value_name = "TIME|FILE")]
    pub(crate) newer: Option<OsString>,
    /// Do not set owners and groups (only root can); set-user-ID and set-group-ID bits of files,
    /// security.* and trusted.* attributes and devices are then not copied. An archive of the root
    /// directory has no member ./ then, so extracting it leaves the mode of the target directory
    #[arg(long, conflicts_with = "devices")]
    pub(crate) no_owner: bool,
    /// Create block and character devices (root only); without it they are skipped and reported
    #[arg(long)]
    pub(crate) devices: bool,
    /// Do not copy extended attributes, ACLs and capabilities
    #[arg(long)]
    pub(crate) no_xattrs: bool,
    /// Do not descend into other subvolumes
    #[arg(short = 'x', long)]
    pub(crate) one_subvolume: bool,
    /// Number of threads that copy files [default: one per core, at least 2]
    #[arg(short, long, value_name = "N", conflicts_with = "tar")]
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

/// A volume of a command that takes no path: its devices may be separate arguments.
#[derive(Debug, Args)]
pub(crate) struct VolumesArgs {
    /// Block devices or image files of the volume
    #[arg(required = true, value_name = "VOLUME")]
    pub(crate) volume: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum, PartialEq, Eq)]
pub(crate) enum ListSort {
    Rootid,
    Gen,
    Ogen,
    Path,
}

#[expect(clippy::struct_excessive_bools, reason = "the options of btrfs subvolume list")]
#[derive(Debug, Args)]
pub(crate) struct SubvolumeListArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Print the parent id
    #[arg(short)]
    pub(crate) parent: bool,
    /// Mark paths that are not directly below the root subvolume with `<FS_TREE>`
    #[arg(short)]
    pub(crate) all: bool,
    /// Print the generation at creation
    #[arg(short = 'c')]
    pub(crate) created: bool,
    /// Print the generation (always printed; accepted for compatibility)
    #[arg(short)]
    pub(crate) generation: bool,
    /// List only subvolumes directly below the root subvolume
    #[arg(short = 'o')]
    pub(crate) only_below: bool,
    /// Print the UUID
    #[arg(short)]
    pub(crate) uuid: bool,
    /// Print the UUID of the subvolume that it is a snapshot of; also -q (here not --quiet)
    #[arg(short = 'Q', long)]
    pub(crate) parent_uuid: bool,
    /// Print the received UUID
    #[arg(short = 'R')]
    pub(crate) received_uuid: bool,
    /// Print a table
    #[arg(short)]
    pub(crate) table: bool,
    /// List only snapshots
    #[arg(short)]
    pub(crate) snapshots: bool,
    /// List only read-only subvolumes
    #[arg(short)]
    pub(crate) read_only: bool,
    /// List only deleted subvolumes that are not cleaned up yet
    #[arg(short)]
    pub(crate) deleted: bool,
    /// Sort by these keys: rootid, gen, ogen, path; `-` before a key reverses it (--sort=-gen,path)
    #[arg(long, value_name = "[-]KEY,...", allow_hyphen_values = true, value_parser = parse_sort)]
    #[arg(value_delimiter = ',')]
    pub(crate) sort: Vec<(bool, ListSort)>,
}

fn parse_sort(word: &str) -> Result<(bool, ListSort), String> {
    let (reversed, name) = match word.strip_prefix('-') {
        Some(name) => (true, name),
        None => (false, word.strip_prefix('+').unwrap_or(word)),
    };
    ListSort::from_str(name, false)
        .map(|key| (reversed, key))
        .map_err(|_| "want rootid, gen, ogen or path".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct SubvolumeShowArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Path of the subvolume [default: the root of VOLUME]
    pub(crate) path: Option<OsString>,
    #[command(flatten)]
    pub(crate) units: UnitArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FilesystemCommand {
    /// Show label, UUID and devices
    #[command(after_help = MOUNTED_HELP)]
    Show(UsageArgs),
    /// Show space usage by block group type
    #[command(after_help = MOUNTED_HELP)]
    Df(UsageArgs),
    /// Show detailed space usage by block group type and device
    #[command(after_help = MOUNTED_HELP)]
    Usage(UsageTableArgs),
    /// Show the disk usage of files, and how much of it is shared
    #[command(after_help = DU_HELP)]
    Du(DuArgs),
    /// Get or set the label
    #[command(after_help = LABEL_HELP)]
    Label(LabelArgs),
    /// Commit all changes to the devices
    #[command(after_help = SYNC_HELP)]
    Sync(SyncArgs),
    /// Resize a volume
    #[command(after_help = RESIZE_HELP)]
    Resize(ResizeArgs),
    /// Write short extents of files again, as fewer and longer ones
    #[command(after_help = DEFRAGMENT_HELP)]
    Defragment(DefragmentArgs),
    /// Make a swap file
    #[command(after_help = MKSWAPFILE_HELP)]
    Mkswapfile(MkswapfileArgs),
}

/// The units in which sizes are printed, as in btrfs-progs.
#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
pub(crate) struct UnitArgs {
    /// Print raw numbers in bytes
    #[arg(short = 'b', long, group = "units")]
    pub(crate) raw: bool,
    /// Print human-readable numbers in powers of 1024 (KiB, MiB); the default
    #[arg(long, group = "units")]
    pub(crate) human_readable: bool,
    /// Print numbers in powers of 1024; the default
    #[arg(long, group = "base")]
    pub(crate) iec: bool,
    /// Print numbers in powers of 1000 (kB, MB)
    #[arg(short = 'H', long, group = "base")]
    pub(crate) si: bool,
    /// Print sizes in KiB; in kB with --si
    #[arg(short = 'k', long, group = "units")]
    pub(crate) kbytes: bool,
    /// Print sizes in MiB; in MB with --si
    #[arg(short = 'm', long, group = "units")]
    pub(crate) mbytes: bool,
    /// Print sizes in GiB; in GB with --si
    #[arg(short = 'g', long, group = "units")]
    pub(crate) gbytes: bool,
    /// Print sizes in TiB; in TB with --si
    #[arg(short = 't', long, group = "units")]
    pub(crate) tbytes: bool,
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
    /// Print a table
    #[arg(short = 'T')]
    pub(crate) table: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DuArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files or directories [default: /]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Print only the total of each PATH
    #[arg(short, long)]
    pub(crate) summarize: bool,
    #[command(flatten)]
    pub(crate) units: UnitArgs,
}
