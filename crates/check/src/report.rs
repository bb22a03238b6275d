//! What a check came to.

use crate::finding::{Finding, Severity};

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub trees: u64,
    pub tree_blocks: u64,
    pub items: u64,
    pub extents: u64,
    pub subvolumes: u64,
    pub inodes: u64,
    /// Sectors of data verified, and bytes read for it, over all copies.
    pub data_sectors: u64,
    pub data_bytes_read: u64,
}

/// What a check came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Errors first, then warnings; each in the order of the trees.
    pub findings: Vec<Finding>,
    /// Findings that were counted, and not kept.
    pub findings_left_out: u64,
    /// What a reader of the report must know and is no fault: a log tree, quotas not checked.
    pub notes: Vec<String>,
    pub counts: Counts,
    pub generation: u64,
    pub fsid: [u8; 16],
}

impl Report {
    /// Whether there is no damage. Warnings are none.
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
