//! Arguments of `partitions`.

use std::ffi::OsString;

use clap::Args;

pub(super) const PARTITIONS_HELP: &str = "\
The table is a GPT or an MBR, with the logical partitions of extended ones. Partitions have the
numbers that Linux gives them: disk.img?partition=2 names the volume in the second one, wherever a
VOLUME is accepted. Nothing outside of the partition is read or written then.

START is in bytes. CONTENTS is found by magic numbers, and does not know every format. For a
partition that is not inside the disk, or that overlaps another one, it says so; such a partition
is not opened.

If the header of a GPT is damaged, the copy at the end of the disk is used, and a note says so. At
most 256 partitions are listed.";

#[derive(Debug, Args)]
pub(crate) struct PartitionsArgs {
    /// Disk or image file
    #[arg(value_name = "DEVICE")]
    pub(crate) device: OsString,
}
