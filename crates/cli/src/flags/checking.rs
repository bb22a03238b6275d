//! As typed: the command that checks a volume.

use clap::Args;

use super::listing::VolumesArgs;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Also read all data that has checksums, on every copy, and verify it
    #[arg(long)]
    pub(crate) check_data_csum: bool,
    /// Look although somebody may be changing the volume; what is found may be of that
    #[arg(long)]
    pub(crate) force: bool,
    /// Threads to work with [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
}
