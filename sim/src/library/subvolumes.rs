//! Operations on subvolumes, and those that share extents or write them again.

use super::{Answer, IntoAnswer, LibrarySubject, Opening};
use crate::bytes::Bytes;
use crate::errno;
use crate::operation::{File, Operation, Outcome};
use butternut::{
    Dedupe, DefragmentOptions, FileId, NewInode, SharedExtents, SnapshotAccess, TOP_LEVEL,
};

impl LibrarySubject {
    pub(super) fn subvolume_operation(&self, operation: &Operation) -> Option<Answer<Outcome>> {
        Some(match operation {
            Operation::Subvolume { at } => self
                .make(at, |filesystem, dir, name| {
                    let new = NewInode::new(0o777);
                    filesystem.create_subvolume(dir, name, &new).into_answer().map(drop)
                })
                .map(|()| Outcome::Done),
            Operation::Snapshot { source, at, is_read_only } => {
                self.snapshot(source, at, *is_read_only).map(|()| Outcome::Done)
            }
            Operation::DeleteSubvolume { at } => self
                .make(at, |filesystem, dir, name| {
                    filesystem.delete_subvolume(dir, name).into_answer().map(drop)
                })
                .map(|()| Outcome::Done),
            Operation::Clone { from, from_offset, to, to_offset, bytes } => {
                self.with_pair(from, to, |from, to| {
                    let cloned = to.clone_range(*to_offset, from, *from_offset, *bytes);
                    cloned.into_answer().map(|()| Outcome::Done)
                })
            }
            Operation::Dedupe { from, from_offset, to, to_offset, bytes } => {
                self.with_pair(from, to, |from, to| {
                    let deduped = to.dedupe_range(*to_offset, from, *from_offset, *bytes);
                    Ok(match deduped.into_answer()? {
                        Dedupe::Shared(_) => Outcome::Done,
                        Dedupe::Differs => Outcome::Differs,
                    })
                })
            }
            Operation::Defragment { file, is_compressing, breaks_sharing } => {
                let compressor = "zlib".parse().expect("an algorithm");
                let shared =
                    if *breaks_sharing { SharedExtents::Break } else { SharedExtents::Keep };
                let options = DefragmentOptions::default()
                    .compressor(is_compressing.then_some(compressor))
                    .shared(shared);
                self.with_file(file, Opening::Write, |file| {
                    file.defragment(&options).into_answer().map(|_| Outcome::Done)
                })
            }
            _ => return None,
        })
    }

    /// Makes the VFS's check of a change in a read-only snapshot.
    pub(super) fn may_change_subvolume(&self, id: FileId) -> Answer<()> {
        if id.subvolume == TOP_LEVEL {
            return Ok(());
        }
        let info = self.filesystem().subvolume(id.subvolume).into_answer()?;
        if info.read_only { Err(errno::READ_ONLY) } else { Ok(()) }
    }

    fn snapshot(&self, source: &Bytes, at: &Bytes, is_read_only: bool) -> Answer<()> {
        let source = self.lookup(source)?;
        self.parent(at)?;
        if !source.is_subvolume_root() {
            return Err(errno::INVALID);
        }
        let access =
            if is_read_only { SnapshotAccess::ReadOnly } else { SnapshotAccess::ReadWrite };
        self.make(at, |filesystem, dir, name| {
            filesystem.snapshot(source.subvolume, dir, name, access).into_answer().map(drop)
        })
    }

    fn with_pair(
        &self,
        from: &File,
        to: &File,
        run: impl FnOnce(&butternut::File, &butternut::File) -> Answer<Outcome>,
    ) -> Answer<Outcome> {
        self.with_file(from, Opening::Read, |from| {
            self.with_file(to, Opening::Write, |to| run(from, to))
        })
    }
}
