//! Operations on subvolumes, and those that share extents or write them again, as ioctls.
//! Linux passes `FICLONERANGE` to no FUSE mount: clones need the kernel's btrfs.

use super::{Answer, PosixSubject};
use crate::bytes::Bytes;
use crate::operation::{File, Operation, Outcome};
use butternut_sys::extent_calls::{self, Deduped};
use butternut_sys::{defragment_calls, subvolume_calls};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The number of zlib in a request to defragment.
const ZLIB: u8 = 1;

impl PosixSubject<'_> {
    pub(super) fn subvolume_operation(&self, operation: &Operation) -> Option<Answer<Outcome>> {
        Some(match operation {
            Operation::Subvolume { at } => self.in_parent(at, |dir, name| {
                subvolume_calls::create(dir.as_fd(), name).map(|()| Outcome::Done)
            }),
            Operation::Snapshot { source, at, is_read_only } => {
                self.directory(source).and_then(|source| {
                    self.in_parent(at, |dir, name| {
                        let (dir, source) = (dir.as_fd(), source.as_fd());
                        let made = subvolume_calls::snapshot(dir, name, source, *is_read_only);
                        made.map(|()| Outcome::Done)
                    })
                })
            }
            Operation::DeleteSubvolume { at } => self.in_parent(at, |dir, name| {
                subvolume_calls::delete(dir.as_fd(), name).map(|()| Outcome::Done)
            }),
            Operation::Clone { from, from_offset, to, to_offset, bytes } => {
                self.with_pair(from, to, |from, to| {
                    let (from, to) = ((from.as_fd(), *from_offset), (to.as_fd(), *to_offset));
                    extent_calls::clone_range(from, to, *bytes).map(|()| Outcome::Done)
                })
            }
            Operation::Dedupe { from, from_offset, to, to_offset, bytes } => {
                self.with_pair(from, to, |from, to| {
                    let (from, to) = ((from.as_fd(), *from_offset), (to.as_fd(), *to_offset));
                    Ok(match extent_calls::dedupe(from, to, *bytes)? {
                        // The kernel's btrfs returns the length of the request.
                        Deduped::Bytes(_) => Outcome::Done,
                        Deduped::Differs => Outcome::Differs,
                    })
                })
            }
            Operation::Defragment { file, is_compressing, .. } => {
                let compress = is_compressing.then_some((ZLIB, 0));
                let range =
                    defragment_calls::Range { bytes: u64::MAX, compress, ..Default::default() };
                self.with_file(file, OFlags::RDWR, |file| {
                    let done = defragment_calls::defragment_in_kernel(file.as_fd(), &range);
                    done.map(|()| Outcome::Done).map_err(|error| errno(&error))
                })
            }
            _ => return None,
        })
    }

    fn directory(&self, at: &Bytes) -> Answer<OwnedFd> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(self.path(at), how, Mode::empty())
    }

    /// Runs a call on the directory of a path and the last component.
    fn in_parent(
        &self,
        at: &Bytes,
        run: impl FnOnce(&OwnedFd, &[u8]) -> io::Result<Outcome>,
    ) -> Answer<Outcome> {
        let mut components = at.components();
        let name = components.next_back().ok_or(Errno::INVAL)?;
        let parent = components.fold(Bytes::default(), |path, name| path.join(name));
        run(&self.directory(&parent)?, name).map_err(|error| errno(&error))
    }

    fn with_pair(
        &self,
        from: &File,
        to: &File,
        run: impl FnOnce(&OwnedFd, &OwnedFd) -> io::Result<Outcome>,
    ) -> Answer<Outcome> {
        self.with_file(from, OFlags::RDONLY, |from| {
            self.with_file(to, OFlags::RDWR, |to| run(from, to).map_err(|error| errno(&error)))
        })
    }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
