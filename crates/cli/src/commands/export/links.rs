//! Hard links: the first name of a file is copied, the others are linked to it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use butternut::{FileId, Stat};
use rustix::fs::{AtFlags, linkat};

use super::super::walk::Found;
use super::folder::{Folder, below};
use super::report::{Lost, Report};

/// Files of which more names are expected.
#[derive(Default)]
pub(super) struct Links {
    top: Option<OwnedFd>,
    top_path: Vec<u8>,
    seen: HashMap<FileId, First>,
}

/// Where a file's first name was made, from the top.
struct First {
    folders: Vec<Vec<u8>>,
    name: Vec<u8>,
    names_left: u32,
}

impl Links {
    /// `top` is the directory in which the walk starts, at `path`.
    pub(super) fn start(&mut self, top: &Folder, path: &[u8]) -> io::Result<()> {
        self.top = Some(top.as_fd().try_clone_to_owned()?);
        self.top_path = path.to_vec();
        Ok(())
    }

    /// Links `name` to the file's first name. False where this is the first, which the caller
    /// copies, or where the link cannot be made, which is said and then copied too.
    pub(super) fn link(
        &mut self,
        folder: &Folder,
        name: &[u8],
        found: &Found,
        stat: &Stat,
        report: &Report,
    ) -> bool {
        let Some(top) = &self.top else { return false };
        let Some(first) = self.seen.get_mut(&found.id) else {
            let inside = found.path.strip_prefix(self.top_path.as_slice()).unwrap_or_default();
            let mut folders: Vec<Vec<u8>> = inside
                .split(|byte| *byte == b'/')
                .filter(|part| !part.is_empty())
                .map(<[u8]>::to_vec)
                .collect();
            folders.pop();
            let first = First { folders, name: name.to_vec(), names_left: stat.nlink - 1 };
            self.seen.insert(found.id, first);
            return false;
        };
        let linked = below(top.as_fd(), &first.folders).and_then(|from| {
            Ok(linkat(&from, first.name.as_slice(), folder, name, AtFlags::empty())?)
        });
        first.names_left = first.names_left.saturating_sub(1);
        if first.names_left == 0 {
            self.seen.remove(&found.id);
        }
        match &linked {
            Ok(()) => report.link(),
            // The copy that follows finds the same, and says it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => report.lost(Lost::Link, &found.path, error),
        }
        linked.is_ok()
    }
}
