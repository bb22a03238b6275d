//! Where findings, notes and counts go, from any thread.
//!
//! 1. At most [`CheckOptions::findings_max`] findings are kept; the rest is counted.
//! 2. While muted nothing is kept or counted: a second look at the same trees must not say
//!    everything twice.
//! 3. What lies below a block that cannot be read is not known. [`Lost`] remembers which side was
//!    affected, so that its absence elsewhere is not called damage as well.

use crate::finding::{Finding, Kind};
use crate::options::CheckOptions;
use crate::report::{Counts, Report};
use butternut_format::refused::Refused;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Tree blocks between two words of progress.
const PROGRESS_BLOCKS: u64 = 512;

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) trees: AtomicU64,
    pub(crate) tree_blocks: AtomicU64,
    pub(crate) items: AtomicU64,
    pub(crate) extents: AtomicU64,
    pub(crate) subvolumes: AtomicU64,
    pub(crate) inodes: AtomicU64,
    pub(crate) data_sectors: AtomicU64,
    pub(crate) data_bytes_read: AtomicU64,
}

/// Which parts of the volume could not be read.
#[derive(Default)]
pub(crate) struct Lost {
    /// Of the extent tree: what is allocated is not known.
    pub(crate) extents: AtomicBool,
    /// Of any other tree: who uses it is not known.
    pub(crate) users: AtomicBool,
}

pub(crate) struct Sink<'a> {
    options: &'a CheckOptions<'a>,
    kept: Mutex<Kept>,
    is_mute: AtomicBool,
    pub(crate) counters: Counters,
    pub(crate) lost: Lost,
}

#[derive(Default)]
struct Kept {
    findings: Vec<Finding>,
    left_out: u64,
    notes: Vec<String>,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(options: &'a CheckOptions<'a>) -> Self {
        Self {
            options,
            kept: Mutex::default(),
            is_mute: AtomicBool::new(false),
            counters: Counters::default(),
            lost: Lost::default(),
        }
    }

    pub(crate) fn options(&self) -> &'a CheckOptions<'a> {
        self.options
    }

    /// Keeps one finding.
    pub(crate) fn add(
        &self,
        kind: Kind,
        place: impl Display,
        field: impl Display,
        have: impl Display,
        want: impl Display,
    ) {
        if self.is_mute() {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.findings.len() >= self.options.findings_max {
            kept.left_out += 1;
            return;
        }
        kept.findings.push(Finding {
            severity: kind.severity(),
            kind,
            place: place.to_string(),
            field: field.to_string(),
            have: have.to_string(),
            want: want.to_string(),
        });
    }

    /// Keeps what a check of the format said.
    pub(crate) fn refused(&self, kind: Kind, place: impl Display, refused: &Refused) {
        let inner = refused.place();
        let place = match (place.to_string(), inner) {
            (outer, "") => outer,
            (outer, inner) if outer.is_empty() => inner.to_owned(),
            (outer, inner) => format!("{outer}: {inner}"),
        };
        self.add(kind, place, refused.field(), refused.have(), refused.want());
    }

    pub(crate) fn note(&self, note: impl Into<String>) {
        if !self.is_mute() {
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).notes.push(note.into());
        }
    }

    pub(crate) fn mute(&self, is_mute: bool) {
        self.is_mute.store(is_mute, Ordering::Relaxed);
    }

    pub(crate) fn is_mute(&self) -> bool {
        self.is_mute.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, counter: &AtomicU64, by: u64) {
        if !self.is_mute() {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Counts a tree block, and says so now and then.
    pub(crate) fn count_block(&self, items: u64) {
        if self.is_mute() {
            return;
        }
        let before = self.counters.tree_blocks.fetch_add(1, Ordering::Relaxed);
        self.counters.items.fetch_add(items, Ordering::Relaxed);
        if before.is_multiple_of(PROGRESS_BLOCKS)
            && let Some(progress) = self.options.progress
        {
            progress(&self.counts());
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let counters = &self.counters;
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            trees: now(&counters.trees),
            tree_blocks: now(&counters.tree_blocks),
            items: now(&counters.items),
            extents: now(&counters.extents),
            subvolumes: now(&counters.subvolumes),
            inodes: now(&counters.inodes),
            data_sectors: now(&counters.data_sectors),
            data_bytes_read: now(&counters.data_bytes_read),
        }
    }

    /// Everything that was kept, in order and once.
    pub(crate) fn into_report(self) -> Report {
        let counts = self.counts();
        let kept = self.kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut findings = kept.findings;
        findings.sort();
        findings.dedup();
        let mut notes = kept.notes;
        notes.dedup();
        Report { findings, findings_left_out: kept.left_out, notes, counts, ..Report::default() }
    }
}
