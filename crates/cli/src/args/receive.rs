//! Arguments of `receive`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

pub(super) const RECEIVE_HELP: &str = "\
Each subvolume of the stream is created in the directory PATH of the volume. It becomes read-only
when it is complete, and is durable then. If the stream is damaged or cannot be applied, the
subvolume that is not complete is deleted, and those before it stay; -v and --json report them. The
same happens after SIGTERM, SIGINT (Ctrl-C) or SIGHUP; a second signal ends the command at once.
A second signal, SIGKILL or a power cut may leave a writable subvolume under the name that the
complete one would have: delete it, and receive the stream again.

Streams of `btrfs send` of versions 1 and 2 are accepted, also with --compressed-data; compressed
data is decompressed, and needs that much space. For an incremental stream (btrfs send -p), the
volume must have the parent: a read-only subvolume that was received from the parent of the stream,
or is that parent itself. The sources of clones (btrfs send -c) are found in the same way; whole
blocks share their data with them, and the rest is copied. Streams of btrfs send --no-data are
refused. File flags (chattr) are not set.

With --resume, an interrupted receive goes on when the command is repeated with the same stream,
from its beginning: subvolumes that are complete stay, and commands whose effects were kept are read
and compared, but not applied again. They are kept in PATH, in a snapshot `.butternut-receive...`,
until the subvolume is complete: all of them if the stream is damaged or ends early, and all but the
last 64 MiB of the stream after a power cut, SIGKILL or another error. To give up, delete the
snapshot. One that was made writable, or that no receive has made, is not used and not deleted, and
a note names it: the receive begins anew. A writable snapshot of it that has the name of the
subvolume counts as what a crash has left of that, and is replaced.

With --to-directory, the stream is applied to a plain directory of any filesystem: DIR gets a new
directory for each subvolume, which only its owner can enter before it is complete, and which stays
as it is if the stream fails. Holes of cloned ranges stay holes. Properties of btrfs (compression)
and labels of SELinux are left out, with a note, where the filesystem has none; for other users than
root, also labels that they may not set. Only root can set owners,
set-user-ID and set-group-ID bits, capabilities and trusted attributes, make devices, and change
what its owner may not change: for other users a stream with devices, capabilities, or read-only
directories and files that change later fails. Incremental streams are refused. Nothing outside of
the new directories is read or changed, whatever the stream contains.

VOLUME may be a directory of a mounted volume, in which the subvolumes are created: the process of
the mount applies the stream, for root and the owner of the mount, if they can write to the
directory. A subvolume has no name on the mount before it is complete. It is deleted if the command
is interrupted; if the mount ends then, it stays, writable. Meanwhile the mount cannot be remounted
read-only (Linux 6.2). With --resume, its snapshot `.butternut-receive...` has a name on the mount
after an interruption, and is read-only. The receive goes on there, or when the volume is not
mounted.

    btrfs send /srv/snap1 | butternut receive disk.img
    butternut receive -f full.stream disk.img /backups
    butternut receive -f full.stream /mnt/backups
    butternut receive -f full.stream --resume /mnt/backups
    ssh host btrfs send /srv/snap1 | butternut receive --resume disk.img
    butternut receive -f full.stream --to-directory /tmp/tree
    butternut receive -f full.stream --dump";

#[expect(clippy::struct_excessive_bools, reason = "command-line options")]
#[derive(Debug, Args)]
pub(crate) struct ReceiveArgs {
    /// Read the stream from FILE instead of stdin
    #[arg(short = 'f', value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Stop after the first end command of the stream, not at the end of the input
    #[arg(short = 'e')]
    pub(crate) end_command: bool,
    /// Reach nothing outside of the directory (always so; accepted for compatibility)
    #[arg(short = 'C', long, hide = true)]
    pub(crate) chroot: bool,
    /// Decompress compressed data (always done; accepted for compatibility)
    #[arg(long, hide = true)]
    pub(crate) force_decompress: bool,
    /// Print the commands of the stream, one a line or with --json one an object, and apply nothing
    #[arg(long, conflicts_with = "volume")]
    pub(crate) dump: bool,
    /// Keep what is applied if the receive is interrupted, and go on with one that was
    #[arg(long, conflicts_with_all = ["dump", "to_directory"])]
    pub(crate) resume: bool,
    /// Apply the stream to new directories in DIR instead of a volume
    #[arg(long, value_name = "DIR", conflicts_with_all = ["volume", "dump"])]
    pub(crate) to_directory: Option<PathBuf>,
    #[arg(
        value_name = "VOLUME",
        required_unless_present_any = ["dump", "to_directory"],
        help = "Block device or image file: \
        PATH[,PATH...][@SUBVOL][?offset=N|?partition=N], or a directory of a mounted volume"
    )]
    pub(crate) volume: Option<OsString>,
    /// Directory in which the subvolumes are created [default: /]
    pub(crate) path: Option<OsString>,
}
