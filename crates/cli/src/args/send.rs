//! Arguments of `send`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::VolumeArgs;

pub(crate) const SEND_HELP: &str = "\
The stream is written to stdout, unless it is a terminal, or to FILE. `btrfs receive` applies it and
makes a read-only subvolume with the same files. With -p, the stream contains only what differs from
the parent, which the receiver must have received before. With -c and without -p, the parent is
chosen among the clone sources: the subvolume that SUBVOLUME is a snapshot of, or else the snapshot
of that one which is nearest in time.

FILE is replaced when the stream is complete and durable, and stays as it was if the stream fails.
A new FILE has mode 600, since the stream contains files that other users may not read. It must not
be a device of the volume. If stdout is closed before the end of the stream, the exit
status is 1. Damage of the extent tree does not prevent a stream, but data that the receiver has may
then be sent again.

SUBVOLUME, the parent and the clone sources must be read-only. Not sent are the flags of files
(chattr), preallocated space, subvolumes inside SUBVOLUME, and the seals of fs-verity, which only
streams of version 3 have: such a file arrives with its data, and can be written.

    butternut send disk.img /snap1 | btrfs receive /mnt
    butternut send -p /snap1 -f update.stream disk.img /snap2

A subvolume of a mounted volume is named by its path alone, as are the parent and the clone sources.
The process of the mount makes the stream, for its owner and for root. Until the stream ends, its
subvolumes cannot be deleted or become writable, and the volume cannot be unmounted; it can be
written to. At most 8 streams of a volume are sent at the same time.

    butternut send [-p MOUNT/PARENT] MOUNT/SNAPSHOT";

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// Send only what differs from this subvolume
    #[arg(short, long, value_name = "PATH")]
    pub(crate) parent: Option<OsString>,
    /// A subvolume that the receiver has: data that it shares is not sent; may be repeated
    #[arg(short, long = "clone-source", value_name = "PATH", action = ArgAction::Append)]
    pub(crate) clone_sources: Vec<OsString>,
    /// Write the stream to a file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Version of the stream: 2 has holes and creation times, and needs a receiver that knows it;
    /// 0 is the newest one [default: 1, and 2 with --compressed-data]
    #[arg(long, value_name = "N", value_parser = ["0", "1", "2"])]
    pub(crate) proto: Option<String>,
    /// Name the changed ranges of files without their data; such a stream cannot be received
    #[arg(long)]
    pub(crate) no_data: bool,
    /// Send compressed data as it is stored
    #[arg(long)]
    pub(crate) compressed_data: bool,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Path of the subvolume; / is the root of VOLUME
    pub(crate) subvolume: Option<OsString>,
}
