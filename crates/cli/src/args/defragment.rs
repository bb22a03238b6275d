//! Arguments of `filesystem defragment`.

use std::ffi::OsString;

use butternut::Compressor;
use clap::Args;

pub(super) const DEFRAGMENT_HELP: &str = "\
The first form defragments files of a volume that is not mounted, and the volume must not be open in
another process. The second form defragments files of a mounted volume; a first argument that is a
directory, or a file that holds no volume, selects it. A directory needs -r; other subvolumes and
what is mounted below it are left alone, and symbolic links are not followed. A file that fails is
reported, and the run goes on with the next one.

Short extents of a file are written again, as fewer and longer ones. As in the kernel's btrfs, an
extent is left alone if it is at least as long as the threshold, or if it cannot be joined with the
one before or behind it; so are holes, preallocated space, data that is stored inline, and extents
that would not become fewer. An extent of 16 MiB counts as long enough, whatever the threshold.
With --compress, every extent in the range is written again and compressed where that saves space,
except in files without checksums or copy-on-write (chattr +C), which are only joined.

As in btrfs(8), -cALGO is --compress=ALGO. After --compress, a word that is an algorithm and names
no file belongs to the option.

No byte, size or time of a file changes. After a crash, or a failure on a full volume, each file has
its old extents or its new ones, with the same bytes. A volume that is not mounted is committed
several times where extents may be shared, or where the space of old extents is needed.

Extents that are shared with other files or with snapshots are left alone by default, and the
summary says how many bytes these are. --break-sharing writes them again as well; the data then
takes space twice. The kernel's btrfs always breaks sharing: its files are refused without
--break-sharing, and it does not tell how much was written.

    butternut filesystem defragment -r disk.img /srv
    butternut filesystem defragment --compress=zstd:9 /mnt/log/messages
    butternut filesystem defragment -r --break-sharing /mnt/home";

/// Parses the algorithm. As in the kernel, a level outside of its range is refused; only mount
/// options clamp it.
fn compressor(typed: &str) -> Result<Compressor, String> {
    const KNOWN: &str = "is none of lzo, zlib[:1 to 9], zstd[:-15 to 15]";
    let found: Compressor = typed.parse().map_err(|_| KNOWN)?;
    let level = typed.split_once(':').map_or(0, |(_, level)| level.parse().unwrap_or(0));
    // 0 is the default level.
    if level == 0 || level == found.level() { Ok(found) } else { Err(KNOWN.to_owned()) }
}

#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
pub(crate) struct DefragmentArgs {
    /// Defragment the files below directories
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Write the data before the end (always done; accepted for compatibility)
    #[arg(short = 'f', hide = true)]
    pub(crate) flush: bool,
    /// Compress the data: zlib (levels 1 to 9), lzo or zstd (-15 to 15) [default ALGO: zlib]
    #[arg(
        long,
        value_name = "ALGO[:LEVEL]",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "zlib",
        value_parser = compressor
    )]
    pub(crate) compress: Option<Compressor>,
    /// Offset in each file at which to start, in bytes
    #[arg(short, long, value_name = "N", default_value = "0")]
    pub(crate) start: String,
    /// Number of bytes of each file to defragment [default: to its end]
    #[arg(short, long, value_name = "N")]
    pub(crate) len: Option<String>,
    /// Leave extents alone that have at least SIZE bytes
    #[arg(short = 't', long, value_name = "SIZE", default_value = "32M")]
    pub(crate) threshold: String,
    /// Write shared extents again, too, so that their data is no longer shared
    #[arg(long, conflicts_with = "keep_sharing")]
    pub(crate) break_sharing: bool,
    /// Leave shared extents alone (the default)
    #[arg(long)]
    pub(crate) keep_sharing: bool,
    /// Volume that is not mounted, and paths in it; or paths in mounted volumes
    #[arg(required = true, value_name = "VOLUME PATH... | PATH")]
    pub(crate) paths: Vec<OsString>,
}
