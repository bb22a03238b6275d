//! Directories, listed from a cookie on: the index that the volume itself keeps.

use butternut::DirEntry;

use crate::door::Door;
use crate::refusal::Answer;
use crate::reply::Reply;
use crate::request::Request;
use crate::shown;
use crate::wire::{Dirent, EntryOut, TransferIn, op};

impl Door {
    /// Adds entries until the kernel's memory is full.
    pub(super) fn list(&self, request: &mut Request<'_>, reply: &mut Reply) -> Answer<()> {
        let read: TransferIn = request.take()?;
        let room = usize::try_from(read.size).unwrap_or(usize::MAX);
        let is_plus = request.header.opcode == op::READDIRPLUS;
        for entry in self.filesystem.read_dir(self.node(request)?, read.offset)? {
            let entry = entry?;
            let added = if is_plus {
                self.add_plus(reply, room, &entry)
            } else {
                reply.entry(room, None, &dirent(&entry, entry.id.as_u64()), &entry.name)
            };
            if !added {
                break;
            }
        }
        Ok(())
    }

    fn add_plus(&self, reply: &mut Reply, room: usize, entry: &DirEntry) -> bool {
        let is_dots = entry.name == b"." || entry.name == b"..";
        // Without attributes the name is still shown; whoever asks for the file gets its error.
        // Dots are not counted as told.
        let stat = if is_dots { None } else { self.filesystem.stat(entry.id).ok() };
        let Some(stat) = stat else {
            let dirent = dirent(entry, entry.id.as_u64());
            return reply.entry(room, Some(&EntryOut::default()), &dirent, &entry.name);
        };
        let number = self.nodes.tell(&self.filesystem, &stat);
        let plus = shown::entry(&stat, number);
        let added = reply.entry(room, Some(&plus), &dirent(entry, number), &entry.name);
        if !added {
            self.nodes.forget(number, 1);
        }
        added
    }
}

fn dirent(entry: &DirEntry, ino: u64) -> Dirent {
    Dirent {
        ino,
        off: entry.cookie,
        namelen: u32::try_from(entry.name.len()).unwrap_or(0),
        kind: shown::entry_kind(entry.kind),
    }
}
