//! The cache against a model: two files, a disk, and every step that there is, in any order.

use crate::{TAG, cache, key};
use butternut_pages::{
    FilePages, Finding, Landing, PageCache, Patched, Reason, Stay, Tags, Writeback,
};
use proptest::prelude::*;
use std::ops::Range;

const PAGES: u64 = 40;
const BYTES: usize = 40 * 4096;

#[derive(Clone, Debug)]
enum Step {
    Read { at: usize, bytes: usize, stay: Stay },
    Write { at: usize, bytes: usize, mark: u8, stay: Stay },
    Send { pages: Range<u64>, most: usize },
    Land { which: usize, landing: Landing, count: usize },
    Invalidate { pages: Range<u64> },
    Claim { pages: Range<u64> },
    Complete { which: usize },
    DropBehind { pages: Range<u64> },
    Shrink { pages: usize },
}

fn stay() -> impl Strategy<Value = Stay> {
    prop_oneof![Just(Stay::Cached), Just(Stay::Uncached)]
}

fn pages() -> impl Strategy<Value = Range<u64>> {
    (0..PAGES, 1..20u64).prop_map(|(first, count)| first..(first + count).min(PAGES))
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || (0..BYTES - 1, 1..20_000usize).prop_map(|(at, n)| (at, n.min(BYTES - at)));
    let landing = prop_oneof![
        4 => Just(Landing::Written),
        1 => Just(Landing::Lost),
        1 => Just(Landing::Again),
    ];
    prop_oneof![
        4 => (bytes(), stay()).prop_map(|((at, bytes), stay)| Step::Read { at, bytes, stay }),
        4 => (bytes(), any::<u8>(), stay())
            .prop_map(|((at, bytes), mark, stay)| Step::Write { at, bytes, mark, stay }),
        3 => (pages(), 1..30usize).prop_map(|(pages, most)| Step::Send { pages, most }),
        4 => (0..9usize, landing, 0..9usize)
            .prop_map(|(which, landing, count)| Step::Land { which, landing, count }),
        1 => pages().prop_map(|pages| Step::Invalidate { pages }),
        2 => pages().prop_map(|pages| Step::Claim { pages }),
        2 => (0..9usize).prop_map(|which| Step::Complete { which }),
        1 => pages().prop_map(|pages| Step::DropBehind { pages }),
        1 => (1..20usize).prop_map(|pages| Step::Shrink { pages }),
    ]
}

/// A claim, and what the disk held when it was made.
type Claimed = (butternut_pages::Fill, Vec<u8>);

struct World {
    cache: PageCache,
    file: FilePages,
    disk: Vec<u8>,
    /// What a reader is to see.
    truth: Vec<u8>,
    sent: Vec<Writeback>,
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
        let (truth, sent, claimed) = (disk.clone(), Vec::new(), Vec::new());
        Self { cache, file, disk, truth, sent, claimed }
    }

    /// Brings a page, if nobody is about to; says whether it is there.
    fn bring(&mut self, page: u64, stay: Stay) -> bool {
        if let Some(claimed) = self.file.claim(&(page..page + 1)) {
            let Some(mut frame) = self.cache.frame() else { return false };
            let bytes = bytes_of(&(page..page + 1));
            frame.bytes_mut().unwrap().copy_from_slice(&self.disk[bytes]);
            claimed.complete([frame], stay);
        }
        self.file.missing(page..page + 1).is_none()
    }

    fn read(&mut self, at: usize, bytes: usize, stay: Stay) {
        let how = if stay == Stay::Cached { Finding::CACHED } else { Finding::UNCACHED };
        let mut buf = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            let from = at + done;
            done += self.file.read(u64::try_from(from).unwrap(), &mut buf[done..], how);
            if done < bytes && !self.bring(u64::try_from((at + done) / 4096).unwrap(), stay) {
                // Somebody is reading it, or there is no memory: from the disk, past the cache.
                let end = ((at + done) / 4096 * 4096 + 4096).min(at + bytes);
                buf[done..end - at].copy_from_slice(&self.disk[at + done..end]);
                done = end - at;
            }
        }
        assert_eq!(buf, self.truth[at..at + bytes], "read of {bytes} at {at}");
    }

    fn write(&mut self, at: usize, bytes: usize, mark: u8, stay: Stay) {
        let mut from = at;
        while from < at + bytes {
            let end = (from / 4096 * 4096 + 4096).min(at + bytes);
            let page = u64::try_from(from / 4096).unwrap();
            let Some(mut frame) = self.cache.frame() else { return };
            if end - from == 4096 {
                frame.bytes_mut().unwrap().fill(mark);
                self.file.change().put(page, frame, TAG, stay);
            } else {
                if !self.bring(page, stay) {
                    return;
                }
                let data = vec![mark; end - from];
                let mut spare = Some(frame);
                let patched =
                    self.file.change().patch(page, from % 4096, &data, &mut spare, (TAG, stay));
                assert_eq!(patched, Patched::Done);
            }
            self.truth[from..end].fill(mark);
            from = end;
        }
    }

    fn land(&mut self, which: usize, landing: Landing, count: usize) {
        if self.sent.is_empty() {
            return;
        }
        let which = which % self.sent.len();
        let rest = self.sent[which].split_off(count);
        let run = std::mem::replace(&mut self.sent[which], rest);
        let (pages, frames) = (run.pages(), run.frames().to_vec());
        for (page, frame) in pages.clone().zip(&frames) {
            if landing == Landing::Written {
                self.disk[bytes_of(&(page..page + 1))].copy_from_slice(frame);
            }
        }
        drop(frames);
        run.end(landing);
        for page in pages.filter(|page| self.file.missing(*page..page + 1).is_some()) {
            // Lost, or nobody wants it: the disk is the truth.
            let bytes = bytes_of(&(page..page + 1));
            assert!(
                landing != Landing::Written
                    || self.disk[bytes.clone()] == self.truth[bytes.clone()]
            );
            self.truth[bytes.clone()].copy_from_slice(&self.disk[bytes]);
        }
        self.sent.retain(|run| !run.pages().is_empty());
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Read { at, bytes, stay } => self.read(at, bytes, stay),
            Step::Write { at, bytes, mark, stay } => self.write(at, bytes, mark, stay),
            Step::Send { pages, most } => {
                self.sent.extend(self.file.begin_writeback(&pages, most, Tags::ALL, Reason::Sync));
            }
            Step::Land { which, landing, count } => self.land(which, landing, count),
            Step::Invalidate { pages } => {
                if self.file.next_newer(&pages).is_some() && !self.sent.is_empty() {
                    return;
                }
                self.file.invalidate(&pages);
                let bytes = bytes_of(&pages);
                self.truth[bytes.clone()].copy_from_slice(&self.disk[bytes]);
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
                    claimed.complete(frames, Stay::Cached);
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
        let written: usize = self.sent.iter().map(|run| run.frames().len()).sum();
        assert_eq!(counters.written_pages, written);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn readers_see_what_was_written_last_whatever_the_cache_does(
        pages in 4..64usize,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(pages);
        for step in steps {
            world.run(step);
        }
        world.claimed.clear();
        while !world.sent.is_empty() {
            world.land(0, Landing::Written, usize::MAX);
        }
        world.read(0, BYTES, Stay::Cached);
    }
}
