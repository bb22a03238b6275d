//! Device events: tolerated failures, kept until the program that serves the volume reports them.
//!
//! Laws:
//! 1. Memory is bounded: each device has one entry for each [`DeviceEventKind`], with the first
//!    failure since the last report and the number of failures.
//! 2. The first failure is due at once, later ones at most once for each device, kind and
//!    [`REPORT_EVERY`].
//! 3. Recording allocates memory only for the first failure since a report, and never waits for a
//!    report to be printed.

use butternut_format::units::{DevId, Logical};
use butternut_sys::lock::{Mutex, rank};
use std::time::{Duration, Instant};

/// Minimum time between two reports of one kind for one device.
const REPORT_EVERY: Duration = Duration::from_mins(1);

/// A kind of failure that the volume tolerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEventKind {
    /// A mirror could not be written; another was.
    Write,
    /// A flush failed; the volume is complete without the device.
    Flush,
    /// A mirror of data could not be read or had a wrong checksum; another mirror or parity was
    /// good.
    Data,
    /// A mirror of a tree block could not be read or was wrong; another mirror or parity was good.
    Block,
}

const KINDS: [DeviceEventKind; 4] =
    [DeviceEventKind::Write, DeviceEventKind::Flush, DeviceEventKind::Data, DeviceEventKind::Block];

/// Failures of one kind on one device since the last report.
#[derive(Clone, Debug)]
pub struct DeviceEvent {
    pub devid: DevId,
    /// The name that the device was opened with.
    pub device: String,
    pub kind: DeviceEventKind,
    /// Number of failures.
    pub count: u64,
    /// The logical address of the first failure, if it had one.
    pub logical: Option<Logical>,
    /// The error of the first failure.
    pub error: String,
}

/// The events of one device.
#[derive(Debug, Default)]
pub(crate) struct DeviceEvents {
    entries: Mutex<[Entry; KINDS.len()], rank::DeviceEvents>,
}

#[derive(Debug, Default)]
struct Entry {
    count: u64,
    logical: Option<Logical>,
    error: String,
    reported_at: Option<Instant>,
}

impl DeviceEvents {
    pub(crate) fn note(
        &self,
        kind: DeviceEventKind,
        logical: Option<Logical>,
        error: impl FnOnce() -> String,
    ) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(place(kind)) else { return };
        if entry.count == 0 {
            entry.logical = logical;
            entry.error = error();
        }
        entry.count = entry.count.saturating_add(1);
    }

    /// Takes the events of device `devid`, named `device`, that are due at `now` (law 2).
    pub(crate) fn take(&self, devid: DevId, device: &str, now: Instant) -> Vec<DeviceEvent> {
        let due = KINDS.into_iter().filter_map(|kind| Some((kind, self.take_due(kind, now)?)));
        due.map(|(kind, entry)| DeviceEvent {
            devid,
            device: device.to_owned(),
            kind,
            count: entry.count,
            logical: entry.logical,
            error: entry.error,
        })
        .collect()
    }

    fn take_due(&self, kind: DeviceEventKind, now: Instant) -> Option<Entry> {
        let mut entries = self.entries.lock();
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

fn place(kind: DeviceEventKind) -> usize {
    match kind {
        DeviceEventKind::Write => 0,
        DeviceEventKind::Flush => 1,
        DeviceEventKind::Data => 2,
        DeviceEventKind::Block => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_due_immediately_and_then_once_a_minute() {
        let events = DeviceEvents::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let note = |logical| {
            events.note(DeviceEventKind::Data, Some(Logical(logical)), || format!("at {logical}"));
        };
        assert!(events.take_due(DeviceEventKind::Data, at(0)).is_none());
        note(1);
        note(2);
        let first = events.take_due(DeviceEventKind::Data, at(1)).unwrap();
        assert_eq!(
            (first.count, first.logical, first.error.as_str()),
            (2, Some(Logical(1)), "at 1")
        );
        note(3);
        assert!(events.take_due(DeviceEventKind::Data, at(30)).is_none());
        note(4);
        let second = events.take_due(DeviceEventKind::Data, at(61)).unwrap();
        assert_eq!((second.count, second.logical), (2, Some(Logical(3))));
        assert!(events.take_due(DeviceEventKind::Data, at(200)).is_none(), "nothing happened");
        assert!(events.take_due(DeviceEventKind::Write, at(200)).is_none());
    }
}
