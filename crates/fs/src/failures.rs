//! Failures that the volume survived, and orphans that could not be deleted, as messages for the
//! administrator, with the path of a file concerned.
//!
//! Laws:
//!
//! 1. A watch does not keep the filesystem open.
//! 2. Each device is reported at most once a minute for each kind of failure (the volume sees to
//!    that), so finding the path may cost reads. A file whose path cannot be found is reported by
//!    its logical address.

use crate::filesystem::Shared;
use crate::write_state::LeftOrphans;
use crate::{FileId, Filesystem, Notice};
use butternut_format::units::Logical;
use butternut_volume::{DeviceEvent, DeviceEventKind, chain};
use std::mem::take;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Returns the failures that the volume survived, and the orphans that were left, since they were
/// last taken.
#[derive(Clone, Debug)]
pub struct FailureWatch {
    shared: Weak<Shared>,
}

impl Filesystem {
    /// Returns a watch on failures that the volume survives: copies that could not be written, and
    /// bad copies in whose place good ones were read. The program that serves the volume should
    /// take them every few seconds and report them.
    pub fn watch_failures(&self) -> FailureWatch {
        FailureWatch { shared: Arc::downgrade(&self.shared) }
    }

    fn failure_notice(&self, trouble: &DeviceEvent) -> Notice {
        let DeviceEvent { devid, device, count, error, .. } = trouble;
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        let text = match (trouble.kind, trouble.logical) {
            (DeviceEventKind::Write, _) => format!(
                "device {devid} ({device}) failed writes ({times}): {error}; the other copies were \
                 written, but redundancy is lost until the device is scrubbed or replaced"
            ),
            (DeviceEventKind::Flush, _) => format!(
                "device {devid} ({device}) failed flushes ({times}): {error}; the other devices \
                 have everything, but redundancy is lost until the device is scrubbed or replaced"
            ),
            (DeviceEventKind::Data, at) => {
                let place = at.map_or_else(String::new, |at| self.file_at(at));
                format!(
                    "device {devid} ({device}) has bad file data ({times}), first {place}: \
                     {error}; another copy was good"
                )
            }
            (DeviceEventKind::Block, at) => {
                let at = at.unwrap_or_default();
                format!(
                    "device {devid} ({device}) has bad tree blocks ({times}), first at logical \
                     {at}: {error}; another copy was good"
                )
            }
        };
        Notice(text)
    }

    /// Describes a file that contains the byte at a logical address, and the address.
    fn file_at(&self, at: Logical) -> String {
        let owner = self.first_owner_of_logical(at.0).ok().flatten();
        let Some(owner) = owner else { return format!("at logical {at}") };
        let (subvolume, ino) = (owner.subvolume, owner.ino);
        let path = self.first_path(FileId::new(subvolume, ino)).unwrap_or_default();
        let path = path
            .map_or_else(|| format!("inode {ino}"), |path| format!("\"{}\"", path.escape_ascii()));
        format!("in {path} of subvolume {subvolume} (logical {at})")
    }
}

/// Describes the orphans of a subvolume that could not be deleted.
fn orphan_notice(left: &LeftOrphans) -> Notice {
    let LeftOrphans { subvolume, count, first, error } = left;
    let what = match first {
        Some(ino) if *count > 1 => format!("{count} deleted files, first inode {ino},"),
        Some(ino) => format!("a deleted file, inode {ino},"),
        None => "the list of deleted files".to_owned(),
    };
    let why = chain(error);
    Notice(format!(
        "subvolume {subvolume}: {what} cannot be removed, and keeps its space: {why}; \
         `butternut check` says what is damaged"
    ))
}

impl FailureWatch {
    /// Takes the messages that are due to be reported; `None` if the filesystem is closed.
    pub fn take(&self) -> Option<Vec<Notice>> {
        let shared = self.shared.upgrade()?;
        let filesystem = Filesystem::for_thread(shared);
        let due = filesystem.volume().take_device_events(Instant::now());
        let orphans = filesystem
            .shared
            .write_state
            .as_ref()
            .map(|write_state| take(&mut *write_state.left_orphans()));
        let orphans = orphans.unwrap_or_default();
        let due = due.iter().map(|trouble| filesystem.failure_notice(trouble));
        Some(orphans.iter().map(orphan_notice).chain(due).collect())
    }
}
