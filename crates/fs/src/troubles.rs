//! Failures that the volume survived, as messages with the paths of the files concerned.
//!
//! Laws:
//!
//! 1. A watch does not keep the filesystem open.
//! 2. Each device is reported at most once a minute for each kind of failure (the volume sees to
//!    that), so finding the path may cost reads. A file whose path cannot be found is reported by
//!    its logical address.

use crate::held::LeftOrphans;
use crate::mount::Shared;
use crate::{FileId, Filesystem, Notice};
use butternut_format::units::Logical;
use butternut_volume::{Trouble, TroubleKind, chain};
use std::mem::take;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Where failures that the volume survived can be asked for.
#[derive(Clone, Debug)]
pub struct TroubleWatch {
    shared: Weak<Shared>,
}

impl Filesystem {
    /// Returns a watch on failures that the volume survives: copies that could not be written and
    /// bad copies that were replaced by good ones. The program that serves the volume should take
    /// them every few seconds and report them.
    pub fn watch_troubles(&self) -> TroubleWatch {
        TroubleWatch { shared: Arc::downgrade(&self.shared) }
    }

    fn trouble_notice(&self, trouble: &Trouble) -> Notice {
        let Trouble { devid, device, count, error, .. } = trouble;
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        let text = match (trouble.kind, trouble.logical) {
            (TroubleKind::Write, _) => format!(
                "device {devid} ({device}) failed writes ({times}): {error}; the other copies were \
                 written, but redundancy is lost until the device is scrubbed or replaced"
            ),
            (TroubleKind::Flush, _) => format!(
                "device {devid} ({device}) failed flushes ({times}): {error}; the other devices \
                 have everything, but redundancy is lost until the device is scrubbed or replaced"
            ),
            (TroubleKind::Data, at) => {
                let place = at.map_or_else(String::new, |at| self.file_at(at));
                format!(
                    "device {devid} ({device}) has bad file data ({times}), first {place}: \
                     {error}; another copy was good"
                )
            }
            (TroubleKind::Block, at) => {
                let at = at.unwrap_or_default();
                format!(
                    "device {devid} ({device}) has bad tree blocks ({times}), first at logical \
                     {at}: {error}; another copy was good"
                )
            }
        };
        Notice(text)
    }

    /// A file that holds the byte at a logical address, and the address.
    fn file_at(&self, at: Logical) -> String {
        let owner = self.first_owner_of_logical(at.0).ok().flatten();
        let Some(owner) = owner else { return format!("at logical {at}") };
        let (subvolume, ino) = (owner.subvolume, owner.ino);
        let path = self.path_of(FileId::new(subvolume, ino)).unwrap_or_default();
        let path = path
            .map_or_else(|| format!("inode {ino}"), |path| format!("\"{}\"", path.escape_ascii()));
        format!("in {path} of subvolume {subvolume} (logical {at})")
    }
}

/// Says what of a subvolume could not be deleted.
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

impl TroubleWatch {
    /// Takes what is due to be reported. `None`: the filesystem is closed.
    pub fn take(&self) -> Option<Vec<Notice>> {
        let shared = self.shared.upgrade()?;
        let filesystem = Filesystem { shared, life: None };
        let due = filesystem.volume().take_troubles(Instant::now());
        let orphans =
            filesystem.shared.writer.as_ref().map(|writer| take(&mut *writer.left_orphans()));
        let orphans = orphans.unwrap_or_default();
        let due = due.iter().map(|trouble| filesystem.trouble_notice(trouble));
        Some(orphans.iter().map(orphan_notice).chain(due).collect())
    }
}
