//! Bringing what files have in memory into the trees, many files at a time.

use crate::data::stamp;
use crate::inode_table::{Bodies, Body, InodeEntry};
use crate::writer::Writer;
use crate::{Error, FileId, Filesystem, Result};
use butternut_file::{FileState, Merging};
use butternut_format::inode::Inode;
use butternut_format::units::Ino;
use butternut_pages::Reason;
use butternut_tree::Need;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockWriteGuard};

/// Files that share a batch, their locks held meanwhile.
const FILES_PER_BATCH: usize = 128;

/// How much of files is brought into the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowFar {
    Whole,
    /// Some of what is down.
    Part,
}

/// What a file's item is to say, and what it says in the end.
struct Stamping {
    facts: Inode,
    item: Option<Inode>,
}

impl Filesystem {
    /// Writes the data of all files that have some in memory only, and brings their items up to
    /// date. The first failure is returned; the rest is written all the same.
    pub(crate) fn write_back(&self, writer: &Writer) -> Result<()> {
        let mut result = Ok(());
        let mut from = FileId::new(0, 0);
        loop {
            let batch = writer.dirty_from(from, FILES_PER_BATCH);
            let Some(last) = batch.last() else { return result };
            from = FileId::new(last.id.subvolume, last.id.ino.saturating_add(1));
            let written = self.write_back_batch(writer, &batch, HowFar::Whole);
            result = result.and(written);
        }
    }

    pub(crate) fn write_back_one(&self, writer: &Writer, entry: &Arc<InodeEntry>) -> Result<()> {
        self.write_back_batch(writer, std::slice::from_ref(entry), HowFar::Whole)
    }

    /// Brings what is down of a file into the trees, until no more than `pending_max` writes are
    /// in none. Others may have the file between one part and the next.
    pub(crate) fn merge_down_to(
        &self,
        writer: &Writer,
        entry: &Arc<InodeEntry>,
        pending_max: u64,
    ) -> Result<()> {
        let pending = || entry.body().file.as_deref().map_or(0, FileState::pending_writes);
        while pending() > pending_max {
            if !merge_shared(entry)? {
                self.write_back_batch(writer, std::slice::from_ref(entry), HowFar::Part)?;
            }
        }
        Ok(())
    }

    /// Writes back files in ascending order of their ids. Their data goes down before they are
    /// locked, but for what is written to them meanwhile.
    fn write_back_batch(
        &self,
        writer: &Writer,
        batch: &[Arc<InodeEntry>],
        how_far: HowFar,
    ) -> Result<()> {
        if how_far == HowFar::Whole && self.shared.source.has_flusher() {
            self.flush_files(batch, Reason::Sync);
        }
        self.merge_files(writer, batch, how_far)
    }

    /// Brings files in ascending order of their ids into the trees.
    pub(crate) fn merge_files(
        &self,
        writer: &Writer,
        batch: &[Arc<InodeEntry>],
        how_far: HowFar,
    ) -> Result<()> {
        let entries: Vec<&InodeEntry> = batch.iter().map(|entry| &**entry).collect();
        let mut bodies = Bodies::lock(&entries);
        let mut files: Vec<(&InodeEntry, &mut FileState, Stamping)> = Vec::new();
        let mut dues: Vec<&mut bool> = Vec::new();
        for (entry, body) in entries.iter().zip(bodies.iter_mut()) {
            let Body { file, is_stamp_due, .. } = body;
            if let (Some(file), Some(facts)) = (file, entry.known()) {
                files.push((entry, &mut **file, Stamping { facts, item: None }));
                dues.push(is_stamp_due.get_mut());
            } else {
                writer.mark_clean(entry);
            }
        }
        let mut result = merge(&mut files, how_far);
        for ((entry, file, stamping), is_due) in files.iter_mut().zip(dues) {
            let Stamping { mut facts, item } = *stamping;
            if let Some(Inode { flags, transid, .. }) = item {
                facts = Inode { flags, transid, ..facts };
                *is_due = false;
            }
            (facts.size, facts.bytes_used) = (file.size(), file.bytes_used());
            entry.set(facts);
            if *is_due {
                let stamped = self.stamp_alone(writer, entry, &mut facts);
                *is_due = stamped.is_err();
                result = result.and(stamped);
            }
            if !*is_due && file.is_clean() {
                writer.mark_clean(entry);
            }
        }
        drop(files);
        drop(bodies);
        for entry in batch.iter().filter(|entry| !entry.is_listed() && !entry.is_held()) {
            writer.idle.note(entry);
        }
        result
    }

    /// Writes an inode's item whose data is in the trees already.
    fn stamp_alone(&self, writer: &Writer, entry: &InodeEntry, facts: &mut Inode) -> Result<()> {
        let subvolume = self.writable_subvolume(writer, entry.id)?;
        self.change(writer, &subvolume, Need::items(1), |change| {
            facts.transid = change.moment.generation;
            change.put(Ino(entry.id.ino), facts)
        })?;
        entry.set(*facts);
        Ok(())
    }
}

/// Brings a part of what is down of a file into the trees, while others read it and write
/// direct. Says whether there was such a part: else the file is needed alone.
fn merge_shared(entry: &InodeEntry) -> Result<bool> {
    let mut body = entry.body_mut();
    let Some(facts) = entry.known() else { return Ok(false) };
    let Some(part) = body.file.as_deref_mut().and_then(FileState::start_part) else {
        return Ok(false);
    };
    // Who changes the facts from now on says so again.
    *body.is_stamp_due.get_mut() = false;
    let body = RwLockWriteGuard::downgrade(body);
    let Some(file) = &body.file else { return Ok(false) };
    let mut item = facts;
    let merged = file.merge_shared(&part, &mut |inode| item = stamp(inode, &facts));
    match &merged {
        Ok(_) => entry.update(|inode| {
            (inode.flags, inode.transid) = (item.flags, item.transid);
            inode.bytes_used = file.bytes_used();
        }),
        Err(_) => body.is_stamp_due.store(true, Ordering::Release),
    }
    merged?;
    Ok(true)
}

fn merge(files: &mut [(&InodeEntry, &mut FileState, Stamping)], how_far: HowFar) -> Result<()> {
    let mut stamps: Vec<_> = Vec::with_capacity(files.len());
    let mut states: Vec<&mut FileState> = Vec::with_capacity(files.len());
    for (_, file, Stamping { facts, item }) in files {
        states.push(file);
        let facts = *facts;
        stamps.push(move |inode: &mut Inode| *item = Some(stamp(inode, &facts)));
    }
    if how_far == HowFar::Part {
        let mut parts = states.into_iter().zip(&mut stamps);
        return Ok(parts.try_for_each(|(file, stamp)| file.merge_part(stamp).map(drop))?);
    }
    let mut merging: Vec<Merging<'_>> =
        states.into_iter().zip(&mut stamps).map(|(file, stamp)| Merging { file, stamp }).collect();
    FileState::merge_many(&mut merging).map(drop).map_err(Error::from)
}
