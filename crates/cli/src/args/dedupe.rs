//! Arguments of `dedupe`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

pub(super) const DEDUPE_HELP: &str = "\
The first form deduplicates a volume that is not mounted: an image file or a device, as a whole with
all subvolumes, or the files and directories named by PATH in it. The volume must not be mounted or
open in another process. All changes are in one transaction, unless they change more than 256 MiB of
metadata. The second form deduplicates directories of a mounted filesystem that has the call
FIDEDUPERANGE: a mount of this program, the kernel's btrfs, xfs. A first argument that is a
directory selects it; so do two or more regular files of which the first holds no volume. A PATH
whose filesystem has no such call is refused, and the run goes on with the others.

Files are read, and the BLAKE3 hashes of their blocks are compared. Equal files share their data as
a whole, others by equal blocks at multiples of the block size. A hash only nominates: the
filesystem compares the bytes before it shares them, while both files are locked. Contents, sizes
and times of files do not change.

Left alone are holes, preallocated space, blocks of zeros, data that is shared already, data that is
stored inline, symlinks, and in a mounted volume what is mounted below PATH. Files in read-only
subvolumes, and files that the user may not change, give their data to other files, but do not
change. A user other than root deduplicates files that belong to the user or that the user may
write to. Files that are changed or removed meanwhile are skipped. A file with several names counts
once.

With --index, hashes are kept in FILE between runs, and files whose inode, size and times have not
changed are not read again. Use one FILE for one set of paths and one block size. It is replaced
when all files have been read, in a dry run as well; a FILE that is no index, or is damaged, is
refused and left as it is, and so is a file that was given the name during the run.

Memory: at most 192 MiB for each TiB of data in blocks of 128 KiB, twice that with --index, and
about 400 bytes for each file. Larger blocks need less and find less.

The summary counts data in whole sectors of 4096 bytes. Data that several files had shared before is
counted for each of them when they share it with another file.

    butternut dedupe disk.img
    butternut dedupe disk.img@5 /home /srv
    butternut dedupe --index /var/lib/dedupe.index /mnt/home";

#[derive(Debug, Args)]
pub(crate) struct DedupeArgs {
    /// Size of the blocks that are compared: a power of two from 4K to 16M
    #[arg(long, value_name = "SIZE", default_value = "128K")]
    pub(crate) block: String,
    /// Leave files alone that are smaller than SIZE bytes
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub(crate) min_size: String,
    /// Keep hashes in FILE, and do not read files again that have not changed
    #[arg(long, value_name = "FILE")]
    pub(crate) index: Option<PathBuf>,
    /// Find equal data, and print what would be deduplicated
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Volume that is not mounted, and paths in it; or files and directories of mounted filesystems
    #[arg(required = true, value_name = "VOLUME [PATH...] | PATH")]
    pub(crate) paths: Vec<OsString>,
}
