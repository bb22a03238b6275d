//! The checksum tree: digests of data sectors, packed into items that run on where sectors do.
//!
//! ```text
//! key (EXTENT_CSUM, address of the first sector)    | digest | digest | ...
//! ```
//!
//! Laws:
//!
//! 1. Items never overlap in what is committed. A range that gets sums has none before: they went
//!    when its extent was freed.
//! 2. An item holds at most [`item_bytes_max`]; a longer run goes on in the next.
//! 3. The tree changes only while a transaction is being committed, by its commit alone. Who reads
//!    it meanwhile finds the digest of every sector that has one: parts of an item that stay are
//!    there before it goes, so for a moment two items have the same ones.
//!
//! Left to others: what waits for the commit (`delayed_sums`).

use crate::commit::Step;
use crate::cursor::Cursor;
use crate::delayed_sums::Run;
use crate::error::TreeError;
use crate::live::change::Change;
use crate::transaction::TreeEdit;
use butternut_format::checksum::EXTENT_CSUM_OBJECTID;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Logical, SECTOR_BYTES, TreeId, length};
use std::ops::Range;

/// What fills about a quarter of a leaf of 16 KiB: long enough to be dense, short enough that
/// neither an insertion nor a removal in its middle moves much.
const ITEM_BYTES_MAX: usize = 4096;

/// Digests that go into the tree together.
const BATCH_BYTES: usize = 64 << 10;
/// Ranges whose items are changed together.
const RANGES_PER_BATCH: usize = 1024;

fn key(at: u64) -> Key {
    Key::new(EXTENT_CSUM_OBJECTID, ItemType::EXTENT_CSUM, at)
}

/// How long an item may become in leaves with room for `leaf` bytes in one.
fn item_bytes_max(leaf: usize, digest: usize) -> usize {
    let most = ITEM_BYTES_MAX.min(leaf / 2);
    most.saturating_sub(most.checked_rem(digest).unwrap_or(0))
}

/// Sectors that an item's bytes are the digests of, in bytes.
fn covered(bytes: usize, digest: usize) -> u64 {
    length(bytes.checked_div(digest).unwrap_or(0)).saturating_mul(SECTOR_BYTES)
}

impl Step<'_> {
    /// Puts the digests of what this transaction brought into their tree. Nobody brings more: the
    /// gate is closed.
    pub(crate) fn write_sums(&self) -> Result<(), TreeError> {
        let waiting = || self.running.sums();
        if waiting().is_empty() {
            return Ok(());
        }
        let tree = self.edit(TreeId::CHECKSUM)?;
        let mut from = Logical(0);
        loop {
            let runs = waiting().runs(from, BATCH_BYTES);
            let Some((start, digests)) = runs.last() else { break };
            from = waiting().end(*start, digests);
            tree.put_sums(&runs)?;
        }
        waiting().clear();
        Ok(())
    }
}

impl TreeEdit<'_> {
    /// Puts runs of digests in (law 1), in ascending order, each behind the end of the one before.
    pub(crate) fn put_sums(&self, runs: &[Run]) -> Result<(), TreeError> {
        let digest = self.running().facts.csum.bytes();
        let bytes_max = item_bytes_max(self.running().facts.item_bytes_max(), digest);
        let mut items = self.tree().cursor();
        let mut changes = Vec::with_capacity(runs.len());
        for (start, digests) in runs {
            let (mut at, mut rest) = (start.0, &digests[..]);
            if let Some((key, mut data)) = item_ending_at(&mut items, at, digest)? {
                let room = bytes_max.saturating_sub(data.len()).min(rest.len());
                if room > 0 {
                    let (now, later) = rest.split_at(room);
                    data.extend_from_slice(now);
                    changes.push(Change { key, to: Some(data) });
                    at = at.saturating_add(covered(room, digest));
                    rest = later;
                }
            }
            for piece in rest.chunks(bytes_max.max(digest)) {
                changes.push(Change { key: key(at), to: Some(piece.to_vec()) });
                at = at.saturating_add(covered(piece.len(), digest));
            }
        }
        self.merge(&changes)
    }

    /// Takes the digests of some ranges out, whatever items they are in. The ranges rise, and do
    /// not overlap.
    pub(crate) fn remove_sums(&self, ranges: &[Range<u64>]) -> Result<(), TreeError> {
        for batch in ranges.chunks(RANGES_PER_BATCH) {
            let cuts = self.cut_items(batch)?;
            // Law 3.
            self.merge(&cuts.pieces)?;
            self.merge(&cuts.items)?;
        }
        Ok(())
    }

    /// What becomes of the items that have digests of some ranges.
    fn cut_items(&self, ranges: &[Range<u64>]) -> Result<Cuts, TreeError> {
        let digest = self.running().facts.csum.bytes();
        let mut items = self.tree().cursor();
        let mut cuts = Cuts::default();
        let mut item: Option<Cut> = None;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                if item.as_ref().is_none_or(|item| item.end <= at) {
                    cuts.add(item.take(), digest);
                    item = first_overlap(&mut items, at, digest)?;
                }
                let Some(item) = item.as_mut().filter(|item| item.key.offset < range.end) else {
                    break;
                };
                item.cut(at..range.end);
                at = item.end;
            }
        }
        cuts.add(item, digest);
        Ok(cuts)
    }
}

/// Items that change, and the parts of them that get items of their own.
#[derive(Default)]
struct Cuts {
    items: Vec<Change>,
    pieces: Vec<Change>,
}

/// An item that loses digests.
struct Cut {
    key: Key,
    data: Vec<u8>,
    end: u64,
    /// What stays, up to `gone_to`.
    kept: Vec<Range<u64>>,
    gone_to: u64,
}

impl Cut {
    /// Everything cut lies behind everything that was cut before.
    fn cut(&mut self, range: Range<u64>) {
        if self.gone_to < range.start {
            self.kept.push(self.gone_to..range.start);
        }
        self.gone_to = range.end.clamp(self.gone_to, self.end);
    }

    fn part(&self, range: &Range<u64>, digest: usize) -> Vec<u8> {
        let index = |at: u64| {
            let sectors = at.saturating_sub(self.key.offset) / SECTOR_BYTES;
            usize::try_from(sectors).unwrap_or(usize::MAX).saturating_mul(digest)
        };
        self.data.get(index(range.start)..index(range.end)).unwrap_or_default().to_vec()
    }
}

impl Cuts {
    fn add(&mut self, cut: Option<Cut>, digest: usize) {
        let Some(mut cut) = cut.filter(|cut| cut.gone_to > cut.key.offset) else { return };
        let end = cut.end;
        cut.cut(end..end);
        let mut first = None;
        for kept in &cut.kept {
            let to = Some(cut.part(kept, digest));
            if kept.start == cut.key.offset {
                first = to;
            } else {
                self.pieces.push(Change { key: key(kept.start), to });
            }
        }
        self.items.push(Change { key: cut.key, to: first });
    }
}

/// The digests that a cursor stands at.
fn sums_at(items: &Cursor) -> Option<(Key, &[u8])> {
    items.item_parts().filter(|(key, _)| {
        key.objectid == EXTENT_CSUM_OBJECTID && key.item_type == ItemType::EXTENT_CSUM
    })
}

/// The item whose last sector ends where `at` begins.
fn item_ending_at(
    items: &mut Cursor,
    at: u64,
    digest: usize,
) -> Result<Option<(Key, Vec<u8>)>, TreeError> {
    items.seek_last(&key(at))?;
    let found = sums_at(items);
    let found =
        found.filter(|(key, data)| key.offset.saturating_add(covered(data.len(), digest)) == at);
    Ok(found.map(|(key, data)| (key, data.to_vec())))
}

/// The first item that covers `at` or begins behind it.
fn first_overlap(items: &mut Cursor, at: u64, digest: usize) -> Result<Option<Cut>, TreeError> {
    let end = |(key, data): (Key, &[u8])| key.offset.saturating_add(covered(data.len(), digest));
    items.seek_last(&key(at))?;
    if sums_at(items).is_none_or(|item| end(item) <= at) {
        items.seek(&key(at))?;
    }
    Ok(sums_at(items).map(|item| Cut {
        key: item.0,
        data: item.1.to_vec(),
        end: end(item),
        kept: Vec::new(),
        gone_to: item.0.offset,
    }))
}
