//! Arguments of `inspect`. The options are those of btrfs-inspect-internal(8).

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::read::{PathArgs, VolumesArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum InspectCommand {
    /// Print superblocks
    DumpSuper(DumpSuperArgs),
    /// Print trees
    DumpTree(DumpTreeArgs),
    /// Print statistics of trees
    TreeStats(TreeStatsArgs),
    /// Print the paths of an inode
    ///
    /// VOLUME may be a directory of a mounted volume: the inode is one of the subvolume that
    /// contains it. This needs root.
    InodeResolve(InodeResolveArgs),
    /// Print the files that contain a logical address
    ///
    /// VOLUME may be a directory of a mounted volume of Butternut. Data that has not been written
    /// back yet has no address there.
    LogicalResolve(LogicalResolveArgs),
    /// Print the id of the subvolume that contains a path
    ///
    /// VOLUME may be a directory of a mounted volume, and without a path also a file there.
    Rootid(RootidArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DumpSuperArgs {
    /// Block devices or image files
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<OsString>,
    /// Also print the system chunk array and the backup roots
    #[arg(short, long)]
    pub(crate) full: bool,
    /// Print all copies
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print this copy: 0, 1 or 2
    #[arg(short = 's', long = "super", value_name = "N", conflicts_with = "all")]
    pub(crate) copy: Option<u32>,
    /// Print it even if the magic number is wrong
    #[arg(short = 'F', long)]
    pub(crate) force: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "the options of btrfs dump-tree")]
#[derive(Debug, Args)]
pub(crate) struct DumpTreeArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Print only extent and device trees
    #[arg(short, long)]
    pub(crate) extents: bool,
    /// Print only the root, chunk and device trees
    #[arg(short, long)]
    pub(crate) device: bool,
    /// Print only the root nodes, in short form
    #[arg(short, long)]
    pub(crate) roots: bool,
    /// As --roots, and print the backup roots
    #[arg(short = 'R', long)]
    pub(crate) backups: bool,
    /// Print only the UUID tree
    #[arg(short, long)]
    pub(crate) uuid: bool,
    /// Print only the block at this logical address; may be given more than once
    #[arg(short, long, value_name = "LOGICAL")]
    pub(crate) block: Vec<u64>,
    /// With --block: also print its child blocks
    #[arg(long)]
    pub(crate) follow: bool,
    /// Print only this tree, by id or name (5, fs, extent, csum, ...)
    #[arg(short, long, value_name = "TREE")]
    pub(crate) tree: Option<String>,
    /// Breadth-first traversal (default)
    #[arg(long, conflicts_with = "dfs")]
    pub(crate) bfs: bool,
    /// Depth-first traversal
    #[arg(long)]
    pub(crate) dfs: bool,
    /// Print names as HIDDEN
    #[arg(long)]
    pub(crate) hide_names: bool,
    /// Print checksums in block headers
    #[arg(long)]
    pub(crate) csum_headers: bool,
    /// Print checksums in checksum items
    #[arg(long)]
    pub(crate) csum_items: bool,
    /// Do not scan for other devices (accepted for compatibility; Butternut never scans)
    #[arg(long)]
    pub(crate) noscan: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TreeStatsArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Print raw numbers in bytes
    #[arg(short = 'b')]
    pub(crate) raw: bool,
    /// Print only this tree, by id
    #[arg(short, value_name = "TREE")]
    pub(crate) tree: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct InodeResolveArgs {
    /// Inode number in the root subvolume of the volume (use @SUBVOL for another)
    pub(crate) ino: u64,
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LogicalResolveArgs {
    /// Logical address of a byte of file data
    pub(crate) logical: u64,
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Print inode numbers instead of paths
    #[arg(short = 'P')]
    pub(crate) no_paths: bool,
    /// Also print files that refer to another part of the same extent
    #[arg(short = 'o')]
    pub(crate) any_offset: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RootidArgs {
    #[command(flatten)]
    pub(crate) at: PathArgs,
}
