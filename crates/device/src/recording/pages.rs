//! [`Pages`]: the pages written over a base; clones share them until they change.

use crate::device::Device;
use crate::error::DeviceError;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

pub(super) const PAGE_BYTES: usize = 4096;

/// The byte that discarded pages read as: neither zero nor the old contents.
pub(super) const DISCARDED: u8 = 0xd5;

/// Bytes at each end of a discarded range that are overwritten; the middle stays unchanged. Both
/// are allowed, because the contents of a discarded range are undefined.
const DISCARD_EDGE_BYTES: u64 = 1 << 20;

pub(super) type Page = [u8; PAGE_BYTES];

/// Pages by page number. Cloning copies the map, not the pages.
#[derive(Clone, Default)]
pub(super) struct Pages(BTreeMap<u64, Arc<Page>>);

/// What is beneath a set of pages.
pub(super) trait Lower {
    /// Fills `memory`, one page or a part of the last one, with the contents of page number `page`.
    fn page(&self, page: u64, memory: &mut [u8]) -> Result<(), DeviceError>;
}

impl Lower for Arc<dyn Device> {
    fn page(&self, page: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        let offset = page * PAGE_BYTES as u64;
        let rest = self.bytes().saturating_sub(offset);
        let bytes = usize::try_from(rest).unwrap_or(usize::MAX).min(memory.len());
        let (inside, beyond) = memory.split_at_mut(bytes);
        beyond.fill(0);
        if inside.is_empty() { Ok(()) } else { self.read_at(offset, inside) }
    }
}

/// Pages over a lower layer.
pub(super) struct Layered<'a, U>(pub(super) &'a Pages, pub(super) &'a U);

impl<U: Lower> Lower for Layered<'_, U> {
    fn page(&self, page: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        match self.0.0.get(&page) {
            Some(bytes) => {
                memory.copy_from_slice(&bytes[..memory.len()]);
                Ok(())
            }
            None => self.1.page(page, memory),
        }
    }
}

impl Pages {
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        self.0.iter().map(|(page, bytes)| (*page, bytes))
    }

    pub(super) fn read(
        &self,
        lower: &impl Lower,
        offset: u64,
        memory: &mut [u8],
    ) -> Result<(), DeviceError> {
        let mut scratch = [0; PAGE_BYTES];
        for (page, inside, outside) in split_into_pages(offset, memory.len()) {
            if let Some(bytes) = self.0.get(&page) {
                memory[outside].copy_from_slice(&bytes[inside]);
            } else if inside.start == 0 {
                lower.page(page, &mut memory[outside])?;
            } else {
                lower.page(page, &mut scratch)?;
                memory[outside].copy_from_slice(&scratch[inside]);
            }
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        lower: &impl Lower,
        offset: u64,
        memory: &[u8],
    ) -> Result<(), DeviceError> {
        for (page, inside, outside) in split_into_pages(offset, memory.len()) {
            if inside.len() == PAGE_BYTES {
                let whole = memory[outside].try_into().expect("a whole page");
                self.0.insert(page, Arc::new(whole));
                continue;
            }
            let bytes = match self.0.entry(page) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(absent) => {
                    let mut old = [0; PAGE_BYTES];
                    lower.page(page, &mut old)?;
                    absent.insert(Arc::new(old))
                }
            };
            Arc::make_mut(bytes)[inside].copy_from_slice(&memory[outside]);
        }
        Ok(())
    }

    /// Fills the edges of a range with [`DISCARDED`].
    pub(super) fn discard(
        &mut self,
        lower: &impl Lower,
        offset: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let end = offset + bytes;
        let head = offset..end.min(offset + DISCARD_EDGE_BYTES);
        let tail = head.end.max(end.saturating_sub(DISCARD_EDGE_BYTES))..end;
        let junk = [DISCARDED; PAGE_BYTES];
        for edge in [head, tail] {
            let mut at = edge.start;
            while at < edge.end {
                let step = (PAGE_BYTES as u64).min(edge.end - at);
                let len = usize::try_from(step).expect("at most a page");
                self.write(lower, at, &junk[..len])?;
                at += step;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pages", self.0.len())
    }
}

/// Returns the pages that a range touches: page number, range inside the page, range inside the
/// caller's memory.
fn split_into_pages(
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let start = usize::try_from(at % PAGE_BYTES as u64).expect("below a page");
        let bytes = (PAGE_BYTES - start).min(len - done);
        let outside = done..done + bytes;
        done += bytes;
        Some((at / PAGE_BYTES as u64, start..start + bytes, outside))
    })
}
