//! As typed: the commands that show what lies on disk. Flags are those of btrfs-progs.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use super::listing::{PathArgs, VolumesArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum InspectVerb {
    /// Print superblocks
    DumpSuper(DumpSuperArgs),
    /// Print trees
    DumpTree(DumpTreeArgs),
    /// Shape and spread of trees
    TreeStats(TreeStatsArgs),
    /// Paths of an inode
    InodeResolve(InodeResolveArgs),
    /// Files that hold a logical address
    LogicalResolve(LogicalResolveArgs),
    /// The id of the subvolume that a path is in
    Rootid(RootidArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DumpSuperArgs {
    /// Devices or images
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<OsString>,
    /// Also the system chunk array and the backup roots
    #[arg(short, long)]
    pub(crate) full: bool,
    /// All copies
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only this copy: 0, 1 or 2
    #[arg(short = 's', long = "super", value_name = "N", conflicts_with = "all")]
    pub(crate) copy: Option<u32>,
    /// Print it even if the magic number is wrong
    #[arg(short = 'F', long)]
    pub(crate) force: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "the flags of btrfs dump-tree, as typed")]
#[derive(Debug, Args)]
pub(crate) struct DumpTreeArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Only extent trees, and device trees
    #[arg(short, long)]
    pub(crate) extents: bool,
    /// Only the root, chunk and device trees
    #[arg(short, long)]
    pub(crate) device: bool,
    /// Only short root node information
    #[arg(short, long)]
    pub(crate) roots: bool,
    /// As --roots, and the backup roots
    #[arg(short = 'R', long)]
    pub(crate) backups: bool,
    /// Only the UUID tree
    #[arg(short, long)]
    pub(crate) uuid: bool,
    /// Only this block, by logical address; may be given more than once
    #[arg(short, long, value_name = "LOGICAL")]
    pub(crate) block: Vec<u64>,
    /// With --block: what is below it too
    #[arg(long)]
    pub(crate) follow: bool,
    /// Only this tree, by id or name (5, fs, extent, csum, ...)
    #[arg(short, long, value_name = "TREE")]
    pub(crate) tree: Option<String>,
    /// Level by level (the default)
    #[arg(long, conflicts_with = "dfs")]
    pub(crate) bfs: bool,
    /// Depth first
    #[arg(long)]
    pub(crate) dfs: bool,
    /// Names as HIDDEN
    #[arg(long)]
    pub(crate) hide_names: bool,
    /// Checksums in block headers
    #[arg(long)]
    pub(crate) csum_headers: bool,
    /// Checksums in checksum items
    #[arg(long)]
    pub(crate) csum_items: bool,
    /// Do not look for other devices (never done here; taken for compatibility)
    #[arg(long)]
    pub(crate) noscan: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TreeStatsArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Bytes, not units
    #[arg(short = 'b')]
    pub(crate) raw: bool,
    /// Only this tree, by id
    #[arg(short, value_name = "TREE")]
    pub(crate) tree: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct InodeResolveArgs {
    /// Inode number, in the volume's root subvolume (@SUBVOL for another)
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
    /// Numbers, not paths
    #[arg(short = 'P')]
    pub(crate) no_paths: bool,
    /// Also files that hold another part of the same extent
    #[arg(short = 'o')]
    pub(crate) any_offset: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RootidArgs {
    #[command(flatten)]
    pub(crate) at: PathArgs,
}
