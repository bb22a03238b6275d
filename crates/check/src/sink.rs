//! [`Sink`]: collects findings, notes and counts, from any thread.
//!
//! 1. At most [`CheckOptions::findings_max`] findings are kept; the rest are counted.
//! 2. While the sink is muted it keeps and counts nothing, so that a second pass over the same
//!    trees reports nothing twice.
//! 3. The subtree of a block that cannot be read is unknown. [`Lost`] records which side of the
//!    comparison lacks it, so that the absence is not reported as further damage.

use crate::finding::{Finding, Kind};
use crate::options::CheckOptions;
use crate::report::{Counts, Report, SealedFile};
use crate::spans::Spans;
use butternut_format::key::Key;
use butternut_format::node::Expected;
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;
use butternut_sys::lock::{Mutex, MutexGuard, rank};
use std::fmt::Display;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of tree blocks between two calls of the progress callback.
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
    /// Parts of the extent tree: some allocated extents are unknown.
    pub(crate) extents: AtomicBool,
    /// Parts of another tree: some references to extents are unknown.
    pub(crate) users: AtomicBool,
    /// Parts of the checksum tree: whether data at these addresses has checksums is unknown.
    checksums: Mutex<Vec<Range<u64>>, rank::CheckLost>,
}

impl Lost {
    /// Records the loss of the subtree of a block, whose keys are below `end`.
    pub(crate) fn add(&self, expected: &Expected, end: Option<Key>) {
        let side = if expected.tree == TreeId::EXTENT { &self.extents } else { &self.users };
        side.store(true, Ordering::Relaxed);
        if expected.tree == TreeId::CHECKSUM {
            let start = expected.first_key.map_or(0, |key| key.offset);
            let end = end.map_or(u64::MAX, |key| key.offset);
            self.lock().push(start..end);
        }
    }

    /// Returns the addresses whose checksums are unknown.
    pub(crate) fn checksums(&self) -> Spans {
        let mut lost = self.lock().clone();
        lost.sort_by_key(|range| range.start);
        let mut spans = Spans::default();
        for range in lost {
            // An overlap is merged.
            spans.push(range.start, range.end, true).unwrap_or_default();
        }
        spans
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.checksums.lock()
    }
}

pub(crate) struct Sink<'a> {
    options: &'a CheckOptions<'a>,
    kept: Mutex<Kept, rank::CheckFindings>,
    is_mute: AtomicBool,
    pub(crate) counters: Counters,
    pub(crate) lost: Lost,
}

#[derive(Default)]
struct Kept {
    findings: Vec<Finding>,
    left_out: u64,
    notes: Vec<String>,
    /// Sealed files whose items are whole.
    sealed: Vec<SealedFile>,
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

    /// Adds a finding.
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
        let mut kept = self.kept.lock();
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

    /// Adds a finding from an error of the `format` crate.
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
            self.kept.lock().notes.push(note.into());
        }
    }

    /// Adds a sealed file whose items are whole.
    pub(crate) fn add_sealed(&self, file: SealedFile) {
        if !self.is_mute() {
            self.kept.lock().sealed.push(file);
        }
    }

    /// Returns the sealed files that were added, in order.
    pub(crate) fn take_sealed(&self) -> Vec<SealedFile> {
        let mut sealed = std::mem::take(&mut self.kept.lock().sealed);
        sealed.sort_unstable();
        sealed
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

    /// Counts a tree block and calls the progress callback at intervals.
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

    /// Returns all findings, sorted and without duplicates.
    pub(crate) fn into_report(self) -> Report {
        let counts = self.counts();
        let kept = self.kept.into_inner();
        let mut findings = kept.findings;
        findings.sort();
        findings.dedup();
        let mut notes = kept.notes;
        notes.dedup();
        Report { findings, findings_left_out: kept.left_out, notes, counts, ..Report::default() }
    }
}
