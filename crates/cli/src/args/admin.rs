//! Arguments of the commands that change a volume as a whole.

use std::ffi::OsString;

use clap::Args;

use super::VolumeArgs;
use super::read::VolumesArgs;

pub(super) const SYNC_HELP: &str = "\
On a mount, this covers every write(2) that has returned. It covers stores to shared mappings where
the mount has the option writeback or uncached; elsewhere a program calls msync(2) first.";

pub(super) const RESIZE_HELP: &str = "\
An image file is extended when its volume grows. It is truncated when its volume shrinks, if the
volume reached the end of the file. A volume cannot shrink below the end of its last block group in
use. It does not grow over another partition or filesystem in the same file or device.

VOLUME may be a directory of a mounted volume, which is then resized in use, by root or the owner of
the mount. The image file of a mounted volume stays as it is: extend it with truncate(1) before its
volume grows.

    butternut filesystem resize disk.img +1G
    truncate -s +1G disk.img; butternut filesystem resize /mnt max";

pub(super) const MOUNTED_HELP: &str = "\
VOLUME may be a directory of a mounted volume: root and the owner of the mount get what its process
has, with changes that are not committed yet.";

pub(super) const LABEL_HELP: &str = "\
VOLUME may be a directory of a mounted volume. Every user may read its label; root and the owner of
the mount may set it.";

pub(super) const DU_HELP: &str = "\
VOLUME may be a directory of a mounted volume. It and each PATH behind it are ordinary paths then,
whose files the user must be able to read; what is mounted below them is left out. A mount of the
kernel's btrfs is read in the same way.

    butternut filesystem du disk.img /home
    butternut filesystem du -s /mnt/home /mnt/srv";

pub(super) const MKSWAPFILE_HELP: &str = "\
The file is made as by `btrfs filesystem mkswapfile`: without copy-on-write and checksums (chattr
+C), with all its space allocated, readable by its owner only, and with the header that mkswap(8)
writes, for pages of 4096 bytes. The volume must not be mounted or open in another process. If the
command fails, the volume is unchanged. The file must not exist; to replace a swap file, remove it
first.

The kernel uses the file with swapon(8) when it has the volume mounted, if the volume has one device
and the data profile single. While the file is in use, the kernel makes no snapshot of its
subvolume. Make a subvolume for it, which is left out of snapshots. A mount of this program, as
every FUSE mount, cannot be swapped to.

    butternut subvolume create disk.img /swap
    butternut filesystem mkswapfile --size 4G disk.img /swap/file
    swapon /mnt/swap/file";

#[derive(Debug, Args)]
pub(crate) struct LabelArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// New label, at most 255 bytes; an empty string removes it [default: print the label]
    pub(crate) label: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// Block devices or image files of a volume, or a directory on a mounted filesystem
    #[arg(required = true, value_name = "VOLUME")]
    pub(crate) volume: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ResizeArgs {
    // `resize -1G VOLUME`, the order of btrfs-progs, has a message of its own.
    #[arg(
        value_name = "VOLUME",
        allow_hyphen_values = true,
        help = "Block device or image file: PATH[,PATH...][@SUBVOL][?offset=N|?partition=N]"
    )]
    pub(crate) volume: OsString,
    /// New size in bytes, with suffix K, M, G or T; +N and -N are relative; max is the size of the
    /// device, min the end of the last block group in use. DEVID selects one of several devices
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    pub(crate) size: String,
    /// Do not truncate the image file of a volume that shrinks
    #[arg(long)]
    pub(crate) keep_file: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MkswapfileArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Path of the new file
    pub(crate) path: OsString,
    /// Size of the file in bytes, with suffix K, M, G or T, rounded down to whole pages
    #[arg(short, long, value_name = "SIZE", default_value = "2G")]
    pub(crate) size: String,
    /// UUID of the swap space, random, or clear for none
    #[arg(short = 'U', long, value_name = "UUID", default_value = "random")]
    pub(crate) uuid: String,
}

#[derive(Debug, Args)]
pub(crate) struct TrimArgs {
    #[command(flatten)]
    pub(crate) volume: VolumesArgs,
    /// Do not discard free ranges shorter than N bytes
    #[arg(short, long, value_name = "N", default_value = "4096")]
    pub(crate) minimum: String,
}
