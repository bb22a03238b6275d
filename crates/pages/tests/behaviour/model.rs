//! The cache against a model: two files, a disk, and all operations in any order.

use crate::{TAG, cache, key};
use butternut_pages::{
    CacheMode, FilePages, PageCache, PageWrite, ReadOptions, Tags, WritebackPages, WritebackReason,
    WritebackResult,
};
use proptest::prelude::*;
use std::ops::Range;

const PAGES: u64 = 40;
const BYTES: usize = 40 * 4096;

#[derive(Clone, Debug)]
enum Step {
    Read { at: usize, bytes: usize, mode: CacheMode },
    Write { at: usize, bytes: usize, mark: u8, mode: CacheMode },
    Begin { pages: Range<u64>, pages_max: usize },
    End { which: usize, result: WritebackResult, count: usize },
    Invalidate { pages: Range<u64> },
    Claim { pages: Range<u64> },
    Complete { which: usize },
    DropBehind { pages: Range<u64> },
    Shrink { pages: usize },
}

fn mode() -> impl Strategy<Value = CacheMode> {
    prop_oneof![Just(CacheMode::Cached), Just(CacheMode::Uncached)]
}

fn pages() -> impl Strategy<Value = Range<u64>> {
    (0..PAGES, 1..20u64).prop_map(|(first, count)| first..(first + count).min(PAGES))
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || (0..BYTES - 1, 1..20_000usize).prop_map(|(at, n)| (at, n.min(BYTES - at)));
    let result = prop_oneof![
        4 => Just(WritebackResult::Written),
        1 => Just(WritebackResult::Lost),
        1 => Just(WritebackResult::Redirty),
    ];
    prop_oneof![
        4 => (bytes(), mode()).prop_map(|((at, bytes), mode)| Step::Read { at, bytes, mode }),
        4 => (bytes(), any::<u8>(), mode())
            .prop_map(|((at, bytes), mark, mode)| Step::Write { at, bytes, mark, mode }),
        3 => (pages(), 1..30usize).prop_map(|(pages, pages_max)| Step::Begin { pages, pages_max }),
        4 => (0..9usize, result, 0..9usize)
            .prop_map(|(which, result, count)| Step::End { which, result, count }),
        1 => pages().prop_map(|pages| Step::Invalidate { pages }),
        2 => pages().prop_map(|pages| Step::Claim { pages }),
        2 => (0..9usize).prop_map(|which| Step::Complete { which }),
        1 => pages().prop_map(|pages| Step::DropBehind { pages }),
        1 => (1..20usize).prop_map(|pages| Step::Shrink { pages }),
    ]
}

/// A fill, and the bytes of the disk when it was claimed.
type Claimed = (butternut_pages::Fill, Vec<u8>);

struct World {
    cache: PageCache,
    file: FilePages,
    disk: Vec<u8>,
    /// What a reader must see.
    expected: Vec<u8>,
    runs: Vec<WritebackPages>,
    claimed: Vec<Claimed>,
}

fn bytes_of(pages: &Range<u64>) -> Range<usize> {
    let at = |page: u64| usize::try_from(page).unwrap() * 4096;
    at(pages.start)..at(pages.end)
}

impl World {
    fn new(pages: usize) -> Self {
        let cache = cache(pages);
        let file = cache.file(key(1));
        let disk: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at / 4096).unwrap()).collect();
        let (expected, runs, claimed) = (disk.clone(), Vec::new(), Vec::new());
        Self { cache, file, disk, expected, runs, claimed }
    }

    /// Reads a page into the cache, unless another fill has it. Returns whether it is present.
    fn fill(&mut self, page: u64, mode: CacheMode) -> bool {
        if let Some(claimed) = self.file.claim(&(page..page + 1)) {
            let Some(mut frame) = self.cache.frame() else { return false };
            let bytes = bytes_of(&(page..page + 1));
            frame.bytes_mut().unwrap().copy_from_slice(&self.disk[bytes]);
            claimed.complete([frame], mode);
        }
        self.file.missing(page..page + 1).is_none()
    }

    fn read(&mut self, at: usize, bytes: usize, mode: CacheMode) {
        let options =
            if mode == CacheMode::Cached { ReadOptions::CACHED } else { ReadOptions::UNCACHED };
        let mut buf = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            let from = at + done;
            done += self.file.read(u64::try_from(from).unwrap(), &mut buf[done..], options);
            if done < bytes && !self.fill(u64::try_from((at + done) / 4096).unwrap(), mode) {
                // The page is in a fill, or no frame is free: read the disk, past the cache.
                let end = ((at + done) / 4096 * 4096 + 4096).min(at + bytes);
                buf[done..end - at].copy_from_slice(&self.disk[at + done..end]);
                done = end - at;
            }
        }
        assert_eq!(buf, self.expected[at..at + bytes], "read of {bytes} at {at}");
    }

    fn write(&mut self, at: usize, bytes: usize, mark: u8, mode: CacheMode) {
        let mut from = at;
        while from < at + bytes {
            let end = (from / 4096 * 4096 + 4096).min(at + bytes);
            let page = u64::try_from(from / 4096).unwrap();
            let Some(mut frame) = self.cache.frame() else { return };
            if end - from == 4096 {
                frame.bytes_mut().unwrap().fill(mark);
                self.file.change().write_page(page, frame, TAG, mode);
            } else {
                if !self.fill(page, mode) {
                    return;
                }
                let data = vec![mark; end - from];
                let mut spare = Some(frame);
                let written = self.file.change().write_bytes(
                    page,
                    from % 4096,
                    &data,
                    &mut spare,
                    (TAG, mode),
                );
                assert_eq!(written, PageWrite::Done);
            }
            self.expected[from..end].fill(mark);
            from = end;
        }
    }

    fn end_writeback(&mut self, which: usize, result: WritebackResult, count: usize) {
        if self.runs.is_empty() {
            return;
        }
        let which = which % self.runs.len();
        let rest = self.runs[which].split_off(count);
        let run = std::mem::replace(&mut self.runs[which], rest);
        let (pages, frames) = (run.pages(), run.frames().to_vec());
        for (page, frame) in pages.clone().zip(&frames) {
            if result == WritebackResult::Written {
                self.disk[bytes_of(&(page..page + 1))].copy_from_slice(frame);
            }
        }
        drop(frames);
        run.end(result);
        for page in pages.filter(|page| self.file.missing(*page..page + 1).is_some()) {
            // The page was lost, or dropped behind: the disk has the expected bytes.
            let bytes = bytes_of(&(page..page + 1));
            assert!(
                result != WritebackResult::Written
                    || self.disk[bytes.clone()] == self.expected[bytes.clone()]
            );
            self.expected[bytes.clone()].copy_from_slice(&self.disk[bytes]);
        }
        self.runs.retain(|run| !run.pages().is_empty());
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Read { at, bytes, mode } => self.read(at, bytes, mode),
            Step::Write { at, bytes, mark, mode } => self.write(at, bytes, mark, mode),
            Step::Begin { pages, pages_max } => {
                self.runs.extend(self.file.begin_writeback(
                    &pages,
                    pages_max,
                    Tags::ALL,
                    WritebackReason::Sync,
                ));
            }
            Step::End { which, result, count } => self.end_writeback(which, result, count),
            Step::Invalidate { pages } => {
                if self.file.next_newer(&pages).is_some() && !self.runs.is_empty() {
                    return;
                }
                self.file.invalidate(&pages);
                let bytes = bytes_of(&pages);
                self.expected[bytes.clone()].copy_from_slice(&self.disk[bytes]);
            }
            Step::Claim { pages } => {
                if let Some(claimed) = self.file.claim(&pages) {
                    let bytes = self.disk[bytes_of(&claimed.pages())].to_vec();
                    self.claimed.push((claimed, bytes));
                }
            }
            Step::Complete { which } => {
                if !self.claimed.is_empty() {
                    let (claimed, bytes) = self.claimed.swap_remove(which % self.claimed.len());
                    let frames: Vec<_> = bytes
                        .chunks(4096)
                        .map_while(|bytes| {
                            let mut frame = self.cache.frame()?;
                            frame.bytes_mut()?.copy_from_slice(bytes);
                            Some(frame)
                        })
                        .collect();
                    claimed.complete(frames, CacheMode::Cached);
                }
            }
            Step::DropBehind { pages } => {
                self.file.drop_behind(&pages);
            }
            Step::Shrink { pages } => {
                self.cache.shrink(pages);
            }
        }
        self.file.change().check();
        let counters = self.cache.counters();
        assert_eq!(counters.dirty_pages, self.file.dirty_pages());
        assert_eq!(counters.cached_pages, self.file.pages());
        let written: usize = self.runs.iter().map(|run| run.frames().len()).sum();
        assert_eq!(counters.in_writeback_pages, written);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn readers_see_the_last_write_in_any_order_of_operations(
        pages in 4..64usize,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(pages);
        for step in steps {
            world.run(step);
        }
        world.claimed.clear();
        while !world.runs.is_empty() {
            world.end_writeback(0, WritebackResult::Written, usize::MAX);
        }
        world.read(0, BYTES, CacheMode::Cached);
    }
}
