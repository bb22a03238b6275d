//! Fuzz targets: every decoder, send streams, and whole volumes that are opened and walked.
//!
//! A target accepts any bytes and panics if a law is broken. `make fuzz` runs the targets under
//! libFuzzer. The tests of this crate run them on the inputs that have found a bug (`fuzz/kept`)
//! and on seeded random ones.
//!
//! 1. No input makes a decoder panic, loop, or allocate memory out of proportion to the input.
//! 2. A volume with corrupt bytes returns its original contents or an error, and never other bytes,
//!    except for data without checksums.
//! 3. A check of a crafted volume ends, after a bounded number of reads.
//! 4. A crafted volume that the checker finds clean stays clean when it is changed. One that is not
//!    clean becomes no worse unless a commit succeeds, and can still be opened after one.
//! 5. A crafted log is replayed or refused. Of a volume that is otherwise clean, a replay leaves
//!    the space and the trees consistent; only names and contents can be what the log says.
//! 6. A crafted send stream is received or refused, and the volume stays clean. A refused one
//!    leaves the complete subvolumes that came before, and nothing else.

mod block;
mod changing;
mod decoders;
mod edited;
mod logged;
pub mod seed;
mod streams;
mod volume;
mod walk;

pub use changing::{Changed, changed};
pub use edited::{Item, edited};
pub use logged::{Replayed, logged, logged_with};
pub use streams::{Received, received};
pub use volume::{Ending, crafted_ending};

/// A fuzz target.
#[derive(Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "super_block", run: block::super_block },
    Target { name: "tree_block", run: block::tree_block },
    Target { name: "leaf_items", run: block::leaf_items },
    Target { name: "dir_entries", run: decoders::dir_entries },
    Target { name: "inode_refs", run: decoders::inode_refs },
    Target { name: "file_extent", run: decoders::file_extent },
    Target { name: "inode", run: decoders::inode },
    Target { name: "chunk", run: decoders::chunk },
    Target { name: "extent_item", run: decoders::extent_item },
    Target { name: "free_space", run: decoders::free_space },
    Target { name: "root", run: decoders::root },
    Target { name: "small_items", run: decoders::small_items },
    Target { name: "zlib", run: decoders::zlib },
    Target { name: "lzo", run: decoders::lzo },
    Target { name: "zstd", run: decoders::zstd },
    Target { name: "stream_command", run: streams::command },
    Target { name: "volume_crafted", run: volume::crafted },
    Target { name: "volume_checked", run: volume::checked },
    Target { name: "volume_rotten", run: volume::rotten },
    Target { name: "volume_changed", run: changing::changing },
    Target { name: "volume_edited", run: edited::editing },
    Target { name: "volume_logged", run: logged::replaying },
    Target { name: "volume_received", run: streams::receiving },
];

pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
