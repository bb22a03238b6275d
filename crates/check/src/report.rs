//! [`Report`]: the result of a check.

use crate::finding::{Finding, Severity};
use butternut_tree::QgroupCount;

/// Numbers of objects that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub trees: u64,
    pub tree_blocks: u64,
    pub items: u64,
    pub extents: u64,
    pub subvolumes: u64,
    pub inodes: u64,
    /// Data sectors that were verified, counted on every mirror.
    pub data_sectors: u64,
    /// Bytes of data that were read, on all mirrors.
    pub data_bytes_read: u64,
}

/// A file that fs-verity has sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SealedFile {
    /// The tree of its subvolume, or of one of the snapshots that share it.
    pub tree: u64,
    pub ino: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Errors first, then warnings; each sorted by kind and place.
    pub findings: Vec<Finding>,
    /// Number of findings that were counted and not kept.
    pub findings_left_out: u64,
    /// Remarks that are not damage, such as a log tree or parity that is not checked.
    pub notes: Vec<String>,
    pub counts: Counts,
    /// The usage of all quota groups, by rising id, in bytes. Empty if quotas are off, or their
    /// usage was not counted; a note says why.
    pub qgroups: Vec<QgroupCount>,
    /// The files that fs-verity has sealed whose items are whole, in order. A file that snapshots
    /// share is here once, unless its items are next to those that they do not share.
    pub sealed_files: Vec<SealedFile>,
    pub generation: u64,
    pub fsid: [u8; 16],
}

impl Report {
    /// Returns whether there are no errors. There may be warnings.
    pub fn is_clean(&self) -> bool {
        self.errors().next().is_none()
    }

    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error)
    }

    pub fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Warning)
    }
}
