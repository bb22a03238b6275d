//! What is fuzzed: every decoder on its own, and whole volumes, opened and walked.
//!
//! A target takes any bytes and returns; it panics where a law is broken. libFuzzer drives the
//! targets by `make fuzz`; the tests of this crate run them over the inputs that once found
//! something (`fuzz/kept`) and over seeded random ones.
//!
//! 1. No input makes a decoder panic, loop, or take memory that the input did not bring.
//! 2. A volume whose bytes rotted yields what it held before, or an error; never other bytes. Data
//!    without checksums is excepted.
//! 3. A check of a crafted volume ends, and reads no more than the volume has.
//! 4. A crafted volume that is opened for writing and changed stays as clean as it was.

mod block;
mod changing;
mod decoders;
pub mod seed;
mod volume;
mod walk;

pub use changing::{Changed, changed};
pub use volume::{Ending, crafted_ending};

/// One thing to be fuzzed.
#[derive(Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// Every target.
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
    Target { name: "volume_crafted", run: volume::crafted },
    Target { name: "volume_checked", run: volume::checked },
    Target { name: "volume_rotten", run: volume::rotten },
    Target { name: "volume_changed", run: changing::changing },
];

pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
