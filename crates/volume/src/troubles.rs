//! Failures that the volume survived: kept until the program that serves it reports them.
//!
//! Laws:
//! 1. Memory is bounded: each device keeps one entry for each [`TroubleKind`], with the first
//!    failure since the last report and the number of failures.
//! 2. An entry is due at once the first time, then at most once per device, kind and
//!    [`REPORT_EVERY`].
//! 3. Recording allocates only for the first failure since a report, and never waits for a report
//!    to be printed.

use crate::volume::Volume;
use butternut_format::units::{DevId, Logical};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Reports of one kind and device are this far apart.
const REPORT_EVERY: Duration = Duration::from_mins(1);

/// What a device failed at, with the volume none the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// A copy could not be written; another was.
    Write,
    /// A flush failed; the volume is whole without the device.
    Flush,
    /// A copy of data could not be read or had a wrong checksum; another copy or parity was good.
    Data,
    /// The same of a tree block.
    Block,
}

const KINDS: usize = 4;

/// Failures of one kind on one device since the last report.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub devid: DevId,
    /// What the device was opened as.
    pub device: String,
    pub kind: TroubleKind,
    /// How many.
    pub count: u64,
    /// Where the first of them was, if it was at an address.
    pub logical: Option<Logical>,
    /// What went wrong the first time.
    pub error: String,
}

/// What one device has to report.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    entries: Mutex<[Entry; KINDS]>,
}

#[derive(Debug, Default)]
struct Entry {
    count: u64,
    logical: Option<Logical>,
    error: String,
    reported_at: Option<Instant>,
}

impl Troubles {
    pub(crate) fn note(
        &self,
        kind: TroubleKind,
        logical: Option<Logical>,
        error: impl FnOnce() -> String,
    ) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get_mut(place(kind)) else { return };
        if entry.count == 0 {
            entry.logical = logical;
            entry.error = error();
        }
        entry.count = entry.count.saturating_add(1);
    }

    fn take_due(&self, kind: TroubleKind, now: Instant) -> Option<Entry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get_mut(place(kind))?;
        let is_recent = |at: Instant| now.saturating_duration_since(at) < REPORT_EVERY;
        if entry.count == 0 || entry.reported_at.is_some_and(is_recent) {
            return None;
        }
        let due = std::mem::take(entry);
        entry.reported_at = Some(now);
        Some(due)
    }
}

fn place(kind: TroubleKind) -> usize {
    match kind {
        TroubleKind::Write => 0,
        TroubleKind::Flush => 1,
        TroubleKind::Data => 2,
        TroubleKind::Block => 3,
    }
}

impl Volume {
    /// Takes what is due to be reported at `now` (law 2).
    pub fn take_troubles(&self, now: Instant) -> Vec<Trouble> {
        let kinds = [TroubleKind::Write, TroubleKind::Flush, TroubleKind::Data, TroubleKind::Block];
        let mut taken = Vec::new();
        for member in &self.members {
            for kind in kinds {
                let Some(entry) = member.troubles.take_due(kind, now) else { continue };
                taken.push(Trouble {
                    devid: member.item().devid,
                    device: member.device.name().to_owned(),
                    kind,
                    count: entry.count,
                    logical: entry.logical,
                    error: entry.error,
                });
            }
        }
        taken
    }

    pub(crate) fn note_trouble(
        &self,
        slot: Option<usize>,
        kind: TroubleKind,
        logical: Option<Logical>,
        error: impl FnOnce() -> String,
    ) {
        if let Some(member) = slot.and_then(|slot| self.members.get(slot)) {
            member.troubles.note(kind, logical, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_reported_at_once_and_then_once_a_minute() {
        let troubles = Troubles::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let note = |logical| {
            troubles.note(TroubleKind::Data, Some(Logical(logical)), || format!("at {logical}"));
        };
        assert!(troubles.take_due(TroubleKind::Data, at(0)).is_none());
        note(1);
        note(2);
        let first = troubles.take_due(TroubleKind::Data, at(1)).unwrap();
        assert_eq!(
            (first.count, first.logical, first.error.as_str()),
            (2, Some(Logical(1)), "at 1")
        );
        note(3);
        assert!(troubles.take_due(TroubleKind::Data, at(30)).is_none());
        note(4);
        let second = troubles.take_due(TroubleKind::Data, at(61)).unwrap();
        assert_eq!((second.count, second.logical), (2, Some(Logical(3))));
        assert!(troubles.take_due(TroubleKind::Data, at(200)).is_none(), "nothing happened");
        assert!(troubles.take_due(TroubleKind::Write, at(200)).is_none());
    }
}
