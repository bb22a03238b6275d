//! [`Sharing`]: takes the files in their order, and lets each share its data with an earlier one.
//!
//! 1. A file whose every block is equal to an earlier file's is shared with that one. Any other is
//!    shared block by block; neighbouring blocks that are neighbours in the source, too, are one
//!    range.
//! 2. Of several sources, one that the target shares the block with already is taken, for as many
//!    blocks as are shared: then nothing is to be done. Otherwise the one with the longest run of
//!    equal blocks is taken.
//! 3. Every step of a file moves on by at least one block or gives up a source for good, and looks
//!    at no more than [`LOOKED_AT_MAX`] sources, so a run ends whatever the files and the answers
//!    are.
//! 4. Of a file that may not be changed, what it could share is found out, and counted as skipped.
//! 5. A file is opened again, and left alone if its identity is another one by then.
//! 6. A source whose data is refused for a target is none for that target any more, and one that
//!    cannot be read is none for any. The next source is taken then.

use std::collections::BTreeMap;

use crate::place::{Answer, Place, Problem, Skip};
use crate::ranges::{compare, extents_of, in_sectors};
use crate::search::{Block, Found, Search};

/// Bytes that are read at once to find out which file cannot be read.
const READ_BYTES: usize = 256 << 10;
/// Maximum number of sources of a block that are compared, and of those that are looked at.
const SOURCES_MAX: usize = 8;
const LOOKED_AT_MAX: usize = 64;
/// Maximum number of sources that are kept open.
const OPEN_MAX: usize = 16;

/// What a run has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Files that were found, each once.
    pub files: u64,
    /// Files that were read: those that the index did not have.
    pub files_read: u64,
    /// Bytes that were read and hashed.
    pub read_bytes: u64,
    /// Bytes of equal data that was shared before, in whole sectors.
    pub shared_bytes: u64,
    /// Bytes of equal data that is shared since the run, in whole sectors. In a dry run: that
    /// would be. Data that several targets had shared before is counted for each of them.
    pub deduped_bytes: u64,
    /// Files that were left alone, by reason.
    pub skipped: BTreeMap<Skip, u64>,
}

impl Report {
    pub(crate) fn skip(&mut self, skip: Skip) {
        *self.skipped.entry(skip).or_default() += 1;
    }
}

/// What happened to a file.
#[derive(Debug)]
pub enum Event<'a, N, E> {
    /// So many of its bytes are shared since the run.
    Deduped { name: &'a N, bytes: u64 },
    /// It is left alone.
    Skipped { name: &'a N, skip: Skip },
    /// An operation on it failed.
    Failed { name: &'a N, error: E },
}

/// Is called with what happens to files.
pub type Tell<'a, P> = dyn FnMut(Event<'_, <P as Place>::Name, <P as Place>::Error>) + 'a;

/// What a step of a target left to do.
enum Step {
    /// Go on so many blocks further.
    On(usize),
    /// Go on so many blocks further, maybe none, with one source less.
    Without(usize),
    /// The target is left alone.
    Leave,
}

/// Why a target got no data of equal blocks.
#[derive(Clone, Copy, Default)]
struct Missed {
    has_other_checksums: bool,
    is_refused: bool,
}

/// The second part of a run, after all files are found.
pub struct Sharing<'a, P: Place> {
    place: &'a P,
    search: Search<P::Name>,
    is_dry: bool,
    /// Numbers of blocks, by hash, among equal hashes by the group of the file, and then by its
    /// rank.
    by_hash: Vec<u32>,
    /// Numbers of files with blocks, by the hash of the whole, by group and by rank.
    by_whole: Vec<u32>,
    /// Files that are no sources: they were changed, or cannot be opened.
    unusable: Vec<bool>,
    /// Files that the filesystem refused as sources of the current target.
    refused: Vec<u32>,
    open: Vec<(u32, P::File)>,
}

impl<'a, P: Place> Sharing<'a, P> {
    /// Sorts what a search has found. With `is_dry`, nothing is changed.
    pub fn new(place: &'a P, mut search: Search<P::Name>, is_dry: bool) -> Self {
        search.end();
        let rank = |file: u32| {
            let found = &search.files[file as usize];
            (found.group(), found.facts.is_target, file)
        };
        let of_block = |block: u32| {
            let found: Block = search.blocks[block as usize];
            (found.hash, rank(found.file), block)
        };
        let of_whole = |file: u32| (search.files[file as usize].whole, rank(file));
        // No search has more blocks or files than 2^32.
        let count = u32::try_from(search.blocks.len()).unwrap_or(u32::MAX);
        let mut by_hash: Vec<u32> = (0..count).collect();
        by_hash.sort_unstable_by_key(|block| of_block(*block));
        let files = u32::try_from(search.files.len()).unwrap_or(u32::MAX);
        let has_blocks = |file: &u32| search.files[*file as usize].count > 0;
        let mut by_whole: Vec<u32> = (0..files).filter(has_blocks).collect();
        by_whole.sort_unstable_by_key(|file| of_whole(*file));
        let unusable = vec![false; search.files.len()];
        let (refused, open) = (Vec::new(), Vec::new());
        Self { place, search, is_dry, by_hash, by_whole, unusable, refused, open }
    }

    /// Shares the data of all targets. `tell` is called with what happens. Returns what was done,
    /// also if the run ended early.
    ///
    /// # Errors
    /// The error of [`Problem::Ends`].
    pub fn run(mut self, tell: &mut Tell<'_, P>) -> (Report, Result<(), P::Error>) {
        let files = u32::try_from(self.search.files.len()).unwrap_or(u32::MAX);
        let mut ended = Ok(());
        let is_dry = self.is_dry;
        for file in 0..files {
            let is_target = self.found(file).facts.is_target;
            self.is_dry = is_dry || !is_target;
            let before = self.search.report.deduped_bytes;
            let mut done = self.share(file, tell);
            let bytes = self.search.report.deduped_bytes - before;
            if !is_target {
                // Its data has copies, which stay.
                self.search.report.deduped_bytes = before;
                if bytes > 0 && done.is_ok() {
                    done = Err(Problem::Skip(Skip::NotPermitted));
                }
            } else if bytes > 0 {
                tell(Event::Deduped { name: &self.found(file).name, bytes });
            }
            if let Err(problem) = done {
                ended = self.leave(file, problem, tell);
            }
            if ended.is_err() {
                break;
            }
        }
        (self.search.report, ended)
    }

    fn found(&self, file: u32) -> &Found<P::Name> {
        &self.search.files[file as usize]
    }

    /// Leaves a file alone from now on.
    fn leave(
        &mut self,
        file: u32,
        problem: Problem<P::Error>,
        tell: &mut Tell<'_, P>,
    ) -> Result<(), P::Error> {
        let name = &self.search.files[file as usize].name;
        match problem {
            Problem::Skip(skip) => {
                self.search.report.skip(skip);
                tell(Event::Skipped { name, skip });
                self.unusable[file as usize] |= skip == Skip::Changed;
            }
            Problem::Failed(error) => tell(Event::Failed { name, error }),
            Problem::Ends(error) => return Err(error),
        }
        Ok(())
    }

    /// Shares the data of one target.
    fn share(&mut self, target: u32, tell: &mut Tell<'_, P>) -> Result<(), Problem<P::Error>> {
        let blocks = self.found(target).blocks();
        let mut at = blocks.start;
        let mut opened: Option<P::File> = None;
        let mut missed = Missed::default();
        self.refused.clear();
        let mut twins = self.twins(target);
        while at < blocks.end {
            // A twin that was changed or refused meanwhile is none.
            twins.retain(|twin| self.is_source(*twin));
            let sources = if twins.is_empty() {
                self.sources(at, &mut missed)
            } else {
                let at_same = |twin: &u32| self.found(*twin).blocks().start + at - blocks.start;
                twins.iter().map(at_same).collect()
            };
            if sources.is_empty() {
                at += 1;
                continue;
            }
            let file = match opened.take() {
                Some(file) => file,
                None => self.open_again(target)?,
            };
            let step = self.share_block(&file, at, &sources, tell)?;
            opened = Some(file);
            match step {
                Step::On(blocks) => at += blocks.max(1),
                Step::Without(blocks) if self.refused.len() < LOOKED_AT_MAX => at += blocks,
                Step::Without(_) => return Err(Problem::Skip(Skip::Refused)),
                Step::Leave => return Err(Problem::Skip(Skip::Changed)),
            }
        }
        if missed.is_refused {
            return Err(Problem::Skip(Skip::Refused));
        }
        if missed.has_other_checksums && opened.is_none() {
            return Err(Problem::Skip(Skip::Checksums));
        }
        Ok(())
    }

    fn open_again(&self, file: u32) -> Result<P::File, Problem<P::Error>> {
        let found = self.found(file);
        let (opened, facts) = self.place.open(&found.name)?;
        if facts.identity == found.facts.identity {
            return Ok(opened);
        }
        Err(Problem::Skip(Skip::Changed))
    }

    /// Whether data of a file may be shared with the current target, if they are in one group.
    fn is_source(&self, file: u32) -> bool {
        !self.unusable[file as usize] && !self.refused.contains(&file)
    }

    /// Returns the files before the target with the same blocks and size.
    fn twins(&self, target: u32) -> Vec<u32> {
        let found = self.found(target);
        if found.count == 0 {
            return Vec::new();
        }
        let want = (found.whole, found.group());
        let key = |file: u32| (self.found(file).whole, self.found(file).group());
        let start = self.by_whole.partition_point(|file| key(*file) < want);
        let same = self.by_whole[start..].iter().copied();
        let same = same.take_while(|file| *file != target && key(*file) == want);
        let has_same_shape = |file: &u32| {
            let other = self.found(*file);
            (other.count, other.facts.size) == (found.count, found.facts.size)
        };
        let fitting = same.take(LOOKED_AT_MAX).filter(has_same_shape);
        fitting.filter(|file| self.is_source(*file)).take(SOURCES_MAX).collect()
    }

    /// Returns the blocks with the hash of a block in files of a group, in the order of ranks.
    fn same_blocks(&self, hash: u64, group: (u64, bool)) -> impl Iterator<Item = usize> + '_ {
        let key = move |block: u32| {
            let found = self.search.blocks[block as usize];
            (found.hash, self.found(found.file).group())
        };
        let start = self.by_hash.partition_point(|block| key(*block) < (hash, group));
        let same = self.by_hash[start..].iter().copied();
        same.take_while(move |block| key(*block) == (hash, group)).map(|block| block as usize)
    }

    /// Returns earlier blocks with the hash of a block.
    fn sources(&self, block: usize, missed: &mut Missed) -> Vec<usize> {
        let Block { hash, file, .. } = self.search.blocks[block];
        let (filesystem, has_checksums) = self.found(file).group();
        let file_of = |block: usize| self.search.blocks[block].file;
        let rank = |file: u32| (self.found(file).facts.is_target, file);
        let other = self.same_blocks(hash, (filesystem, !has_checksums)).map(file_of);
        let mut other = other.take_while(|other| rank(*other) < rank(file)).take(LOOKED_AT_MAX);
        missed.has_other_checksums |= other.any(|other| !self.unusable[other as usize]);
        let same = self.same_blocks(hash, (filesystem, has_checksums));
        let same = same.take_while(|other| *other != block).take(LOOKED_AT_MAX);
        let mut is_refused = false;
        let fitting = same.filter(|other| {
            is_refused |= self.refused.contains(&file_of(*other));
            self.is_source(file_of(*other))
        });
        let sources: Vec<usize> = fitting.take(SOURCES_MAX).collect();
        missed.is_refused |= is_refused && sources.is_empty();
        sources
    }

    /// Shares the run of equal blocks that begins at a block with one of the sources.
    fn share_block(
        &mut self,
        file: &P::File,
        target: usize,
        sources: &[usize],
        tell: &mut Tell<'_, P>,
    ) -> Result<Step, Problem<P::Error>> {
        let mut best: Option<(usize, usize)> = None;
        for source in sources {
            let of = self.search.blocks[*source].file;
            if let Err(problem) = self.open_source(of) {
                self.unusable[of as usize] = true;
                self.leave(of, problem, tell).map_err(Problem::Ends)?;
                continue;
            }
            let run = self.run_of(*source, target);
            if sources.len() > 1 {
                match self.shared_blocks(file, *source, target, run) {
                    Ok(0) => {}
                    Ok(shared) => {
                        best = Some((*source, shared));
                        break;
                    }
                    Err(problem) => {
                        return self.after_problem(
                            file,
                            (*source, target, run),
                            (0, problem),
                            tell,
                        );
                    }
                }
            }
            if best.is_none_or(|(_, longest)| run > longest) {
                best = Some((*source, run));
            }
        }
        let Some((source, run)) = best else { return Ok(Step::On(1)) };
        match self.share_run(file, source, target, run) {
            Ok(()) => Ok(Step::On(run)),
            Err(failed) => self.after_problem(file, (source, target, run), failed, tell),
        }
    }

    /// Goes on after a run of blocks was not shared, or only its first bytes were (law 6).
    fn after_problem(
        &mut self,
        file: &P::File,
        (source, target, run): (usize, usize, usize),
        (done, problem): (u64, Problem<P::Error>),
        tell: &mut Tell<'_, P>,
    ) -> Result<Step, Problem<P::Error>> {
        let of = self.search.blocks[source].file;
        let blocks = usize::try_from(done / self.search.size.bytes()).unwrap_or(run).min(run);
        match problem {
            Problem::Skip(Skip::Changed) => self.after_difference(source, target, run, tell),
            Problem::Skip(Skip::Refused) => {
                self.refused.push(of);
                Ok(Step::Without(blocks))
            }
            Problem::Failed(error) => {
                let (from, to, bytes) = self.range_of(source, target, run);
                if let Err(problem) = self.read_all(self.source_file(source)?, from, bytes) {
                    self.unusable[of as usize] = true;
                    self.leave(of, problem, tell).map_err(Problem::Ends)?;
                    return Ok(Step::Without(blocks));
                }
                if let Err(problem) = self.read_all(file, to, bytes) {
                    self.unusable[self.search.blocks[target].file as usize] = true;
                    return Err(problem);
                }
                Err(Problem::Failed(error))
            }
            problem @ (Problem::Skip(_) | Problem::Ends(_)) => Err(problem),
        }
    }

    /// Reads a range of a file, up to its end.
    fn read_all(&self, file: &P::File, from: u64, bytes: u64) -> Result<(), Problem<P::Error>> {
        let mut buf = vec![0; READ_BYTES];
        let (mut at, end) = (from, from.saturating_add(bytes));
        while at < end {
            match self.place.read(file, at, &mut buf)? {
                0 => break,
                read => at += read as u64,
            }
        }
        Ok(())
    }

    /// Finds out which file has changed, after blocks with one hash were not equal.
    fn after_difference(
        &mut self,
        source: usize,
        target: usize,
        run: usize,
        tell: &mut Tell<'_, P>,
    ) -> Result<Step, Problem<P::Error>> {
        let [source, target] = [source, target].map(|block| self.search.blocks[block].file);
        if source != target && self.open_again(source).is_err() {
            self.open.retain(|(file, _)| *file != source);
            self.leave(source, Problem::Skip(Skip::Changed), tell).map_err(Problem::Ends)?;
            return Ok(Step::On(run));
        }
        // Otherwise two hashes have collided.
        Ok(if self.open_again(target).is_err() { Step::Leave } else { Step::On(run) })
    }

    /// Opens a source, unless it is open. It is the last one to be closed then, so the sources of
    /// one block stay open together.
    fn open_source(&mut self, file: u32) -> Result<(), Problem<P::Error>> {
        const { assert!(SOURCES_MAX <= OPEN_MAX) };
        if let Some(at) = self.open.iter().position(|(open, _)| *open == file) {
            let open = self.open.remove(at);
            self.open.push(open);
            return Ok(());
        }
        let opened = self.open_again(file)?;
        if self.open.len() >= OPEN_MAX {
            self.open.remove(0);
        }
        self.open.push((file, opened));
        Ok(())
    }

    /// Returns the number of blocks from `target` on that are equal to those from `source` on, by
    /// their hashes, as far as one request reaches.
    fn run_of(&self, source: usize, target: usize) -> usize {
        let blocks = &self.search.blocks;
        let (first_source, first_target) = (blocks[source], blocks[target]);
        let is_same = first_source.file == first_target.file;
        let continues = |first: Block, at: Option<&Block>, nth: u32| {
            let at = at.filter(|block| block.file == first.file)?;
            (first.number.checked_add(nth) == Some(at.number)).then_some(at.hash)
        };
        let blocks_max = P::SHARE_BYTES_MAX / self.search.size.bytes();
        let mut run = 1;
        loop {
            let Ok(nth) = u32::try_from(run) else { return run };
            if u64::from(nth) >= blocks_max {
                return run;
            }
            if is_same && first_source.number.saturating_add(nth) >= first_target.number {
                return run;
            }
            let hash = continues(first_source, blocks.get(source + run), nth);
            if hash.is_none() || hash != continues(first_target, blocks.get(target + run), nth) {
                return run;
            }
            run += 1;
        }
    }

    /// Returns the offsets and the length of the ranges of a run of blocks.
    fn range_of(&self, source: usize, target: usize, run: usize) -> (u64, u64, u64) {
        let size = self.search.size.bytes();
        let of = |block: usize| {
            let Block { file, number, .. } = self.search.blocks[block];
            let offset = u64::from(number) * size;
            (offset, self.found(file).facts.size.saturating_sub(offset))
        };
        let ((from, source_rest), (to, target_rest)) = (of(source), of(target));
        let bytes = (run as u64).saturating_mul(size).min(source_rest).min(target_rest);
        let is_to_ends = bytes == source_rest && bytes == target_rest;
        // Only after a collision of hashes are the last blocks of different lengths.
        let bytes = if is_to_ends { bytes } else { bytes - bytes % crate::SECTOR_BYTES };
        (from, to, bytes)
    }

    fn source_file(&self, block: usize) -> Result<&P::File, Problem<P::Error>> {
        let file = self.search.blocks[block].file;
        let open = self.open.iter().find(|(open, _)| *open == file);
        open.map(|(_, opened)| opened).ok_or(Problem::Skip(Skip::Changed))
    }

    /// Returns the number of blocks at the beginning of a run that share all they can.
    fn shared_blocks(
        &self,
        file: &P::File,
        source: usize,
        target: usize,
        run: usize,
    ) -> Result<usize, Problem<P::Error>> {
        let (from, to, bytes) = self.range_of(source, target, run);
        let size = self.search.size.bytes();
        let bytes = bytes.min(P::SHARE_BYTES_MAX);
        let source = extents_of(self.place, self.source_file(source)?, from..from + bytes)?;
        let target = extents_of(self.place, file, to..to + bytes)?;
        let parts = compare(&source, from, &target, to, bytes);
        let blocks = match parts.unshared.first() {
            Some(part) => part.start / size,
            None if parts.shared_bytes > 0 => bytes.div_ceil(size),
            None => 0,
        };
        Ok(usize::try_from(blocks).unwrap_or(run).min(run))
    }

    /// Shares what a run of blocks does not share yet. A failure tells how many bytes of the run
    /// are done.
    fn share_run(
        &mut self,
        file: &P::File,
        source: usize,
        target: usize,
        run: usize,
    ) -> Result<(), (u64, Problem<P::Error>)> {
        let (from, to, bytes) = self.range_of(source, target, run);
        let source_file = self.source_file(source).map_err(|problem| (0, problem))?;
        let (mut shared, mut deduped, mut done) = (0, 0, 0);
        let mut result = Ok(());
        while done < bytes && result.is_ok() {
            let step = P::SHARE_BYTES_MAX.min(bytes - done);
            let at = (from + done, to + done);
            let mut reached = 0;
            result = (|| {
                let source = extents_of(self.place, source_file, at.0..at.0 + step)?;
                let target = extents_of(self.place, file, at.1..at.1 + step)?;
                let parts = compare(&source, at.0, &target, at.1, step);
                for part in parts.unshared {
                    let bytes = part.end - part.start;
                    reached = part.start;
                    if self.is_dry {
                        deduped += in_sectors(bytes);
                        continue;
                    }
                    let from = (source_file, at.0 + part.start);
                    let to = (file, at.1 + part.start);
                    let (some, part_shared) = share_part(self.place, from, to, bytes);
                    reached += some;
                    deduped += in_sectors(some);
                    part_shared?;
                }
                shared += parts.shared_bytes;
                Ok(())
            })()
            .map_err(|problem| (done + reached, problem));
            done += step;
        }
        self.search.report.shared_bytes += shared;
        self.search.report.deduped_bytes += deduped;
        result
    }
}

/// Shares one range, in as many requests as the filesystem needs. Returns how many bytes are done.
fn share_part<P: Place>(
    place: &P,
    (source, from): (&P::File, u64),
    (target, to): (&P::File, u64),
    bytes: u64,
) -> (u64, Result<(), Problem<P::Error>>) {
    let mut done = 0;
    while done < bytes {
        match place.dedupe((source, from + done), (target, to + done), bytes - done) {
            Ok(Answer::Shared(0) | Answer::Differs) => {
                return (done, Err(Problem::Skip(Skip::Changed)));
            }
            Ok(Answer::Shared(some)) => done += some.min(bytes - done),
            Err(problem) => return (done, Err(problem)),
        }
    }
    (done, Ok(()))
}
