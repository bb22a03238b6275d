//! Arguments of `check`.

use clap::Args;

use super::read::VolumesArgs;

#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Also verify the checksums of all file data, on every mirror, and sealed files (fs-verity)
    #[arg(long)]
    pub(crate) check_data_csum: bool,
    /// Print the usage of all quota groups, too: as counted, and as stored
    #[arg(short = 'Q', long)]
    pub(crate) qgroup_report: bool,
    /// Check the last commit of a mounted volume, which goes on: VOLUME is a directory of it
    #[arg(long, conflicts_with = "force")]
    pub(crate) online: bool,
    /// Check a volume in use; concurrent changes may be reported as damage
    #[arg(long)]
    pub(crate) force: bool,
    /// Number of threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
}
