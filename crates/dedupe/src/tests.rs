//! Tests of whole runs over files in memory, whose place is a model of a filesystem with extents.
//!
//! The expected saving is counted by another rule: of each distinct block, all places that the
//! bytes are stored at but one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Answer, BlockSize, DataExtent, Event, Facts, Identity, Index, Location, Place, Problem, Report,
    SECTOR_BYTES, Search, Sharing, Skip,
};

const SECTOR: usize = 4096;
const BLOCK: usize = 4 * SECTOR;

/// A file: sectors by address, `None` for holes.
#[derive(Clone, Default)]
struct Model {
    sectors: Vec<Option<u64>>,
    bytes: usize,
    version: u64,
    is_read_only: bool,
    has_no_checksums: bool,
}

type Hook = Box<dyn Fn(&Memory)>;

/// Files in memory, and the sectors that they refer to.
#[derive(Default)]
struct Memory {
    files: RefCell<Vec<Model>>,
    sectors: RefCell<BTreeMap<u64, Vec<u8>>>,
    next: Cell<u64>,
    read: Cell<u64>,
    /// Called with the number of the request before each request.
    before_dedupe: RefCell<Option<Hook>>,
    /// Most bytes that one request shares.
    short: Cell<u64>,
    extents_max: Cell<usize>,
    /// A file that is refused as a source, or else cannot be read once a request has failed.
    bad_source: Cell<Option<(usize, bool)>>,
    is_damaged: Cell<bool>,
    /// Number of files that failed.
    failed: Cell<u64>,
}

impl Memory {
    fn new() -> Self {
        let memory = Self::default();
        memory.next.set(1);
        memory.short.set(u64::MAX);
        memory.extents_max.set(3);
        memory
    }

    /// Adds a file: each part is a hole, or data of new sectors.
    fn add(&self, contents: &[u8], holes: &[usize]) -> usize {
        let sectors = contents
            .chunks(SECTOR)
            .enumerate()
            .map(|(at, bytes)| (!holes.contains(&at)).then(|| self.store(bytes)));
        let file = Model { sectors: sectors.collect(), bytes: contents.len(), ..Model::default() };
        self.files.borrow_mut().push(file);
        self.files.borrow().len() - 1
    }

    fn clone_of(&self, file: usize) -> usize {
        let copy = self.files.borrow()[file].clone();
        self.files.borrow_mut().push(copy);
        self.files.borrow().len() - 1
    }

    fn store(&self, bytes: &[u8]) -> u64 {
        // Not contiguous after each file, so that extents end.
        let address = self.next.get() * SECTOR_BYTES;
        self.next.set(self.next.get() + 1);
        let mut sector = bytes.to_vec();
        sector.resize(SECTOR, 0);
        self.sectors.borrow_mut().insert(address, sector);
        address
    }

    fn contents(&self, file: usize) -> Vec<u8> {
        let files = self.files.borrow();
        let file = &files[file];
        let sectors = self.sectors.borrow();
        let of = |at: &Option<u64>| at.map_or(vec![0; SECTOR], |at| sectors[&at].clone());
        let mut bytes: Vec<u8> = file.sectors.iter().flat_map(of).collect();
        bytes.resize(file.bytes, 0);
        bytes
    }

    /// Bytes of all sectors that files refer to, each once.
    fn used(&self) -> u64 {
        let files = self.files.borrow();
        let used: BTreeSet<u64> =
            files.iter().flat_map(|file| file.sectors.iter().flatten().copied()).collect();
        used.len() as u64 * SECTOR_BYTES
    }

    /// Returns what [`Self::used`] is when every copy of a block is saved that can be: of each
    /// distinct block, those in files that may not be changed are left, or one. Zeros stay.
    fn used_at_best(&self) -> u64 {
        let mut kept: BTreeMap<Vec<u8>, BTreeSet<Vec<u64>>> = BTreeMap::new();
        let mut zeros = BTreeSet::new();
        for file in 0..self.files.borrow().len() {
            let contents = self.contents(file);
            let found = self.files.borrow()[file].clone();
            for (block, sectors) in contents.chunks(BLOCK).zip(found.sectors.chunks(BLOCK / SECTOR))
            {
                let sectors: Vec<u64> = sectors.iter().copied().flatten().collect();
                if block.iter().all(|byte| *byte == 0) {
                    zeros.extend(sectors);
                    continue;
                }
                let copies = kept.entry(block.to_vec()).or_default();
                if found.is_read_only {
                    copies.insert(sectors);
                }
            }
        }
        let of_block = |(block, copies): (&Vec<u8>, &BTreeSet<Vec<u64>>)| {
            let distinct: BTreeSet<u64> = copies.iter().flatten().copied().collect();
            (distinct.len() as u64 * SECTOR_BYTES)
                .max((block.len() as u64).next_multiple_of(SECTOR_BYTES))
        };
        kept.iter().map(of_block).sum::<u64>() + zeros.len() as u64 * SECTOR_BYTES
    }

    fn facts(&self, file: usize) -> Facts {
        let files = self.files.borrow();
        let found = &files[file];
        let identity = [file as u64, found.bytes as u64, found.version];
        let identity: Vec<u8> = identity.iter().flat_map(|part| part.to_le_bytes()).collect();
        Facts {
            identity: Identity::of(&identity),
            size: found.bytes as u64,
            filesystem: 1,
            has_checksums: !found.has_no_checksums,
            is_target: !found.is_read_only,
            is_settled: true,
        }
    }

    fn run(&self, index: Index, is_dry: bool) -> (Report, Vec<u8>) {
        let size = BlockSize::new(BLOCK as u64).expect("a valid size");
        let mut search = Search::new(size, index);
        for file in 0..self.files.borrow().len() {
            let facts = self.facts(file);
            match search.add(self, &file, file, facts).expect("few files") {
                Ok(()) | Err(Problem::Skip(_)) => {}
                Err(problem) => panic!("{problem:?}"),
            }
        }
        let mut kept = Vec::new();
        search.write_index(&mut kept).expect("memory takes it");
        let mut told = 0;
        let mut tell = |event: Event<'_, usize, String>| match event {
            Event::Deduped { bytes, .. } => told += bytes,
            Event::Failed { name, error } => {
                assert_eq!((*name, &error[..]), (0, "damaged"));
                self.failed.set(self.failed.get() + 1);
            }
            Event::Skipped { .. } => {}
        };
        let (report, ended) = Sharing::new(self, search, is_dry).run(&mut tell);
        ended.expect("the place stays");
        assert_eq!(told, report.deduped_bytes);
        (report, kept)
    }
}

impl Place for Memory {
    type Name = usize;
    type File = usize;
    type Error = String;

    fn open(&self, name: &usize) -> Result<(usize, Facts), Problem<String>> {
        Ok((*name, self.facts(*name)))
    }

    fn read(&self, file: &usize, at: u64, buf: &mut [u8]) -> Result<usize, Problem<String>> {
        if self.is_damaged.get() && self.bad_source.get().is_some_and(|(bad, _)| bad == *file) {
            return Err(Problem::Failed("damaged".into()));
        }
        let contents = self.contents(*file);
        let rest = contents.get(index(at)..).unwrap_or_default();
        // Reads are short, too.
        let bytes = rest.len().min(buf.len()).min(50_000);
        buf[..bytes].copy_from_slice(&rest[..bytes]);
        self.read.set(self.read.get() + bytes as u64);
        Ok(bytes)
    }

    fn extents(&self, file: &usize, from: u64) -> Result<Vec<DataExtent>, Problem<String>> {
        let files = self.files.borrow();
        let mut extents: Vec<DataExtent> = Vec::new();
        for (at, address) in files[*file].sectors.iter().enumerate() {
            let (offset, Some(address)) = (at as u64 * SECTOR_BYTES, *address) else { continue };
            match extents.last_mut() {
                Some(last)
                    if last.end() == offset
                        && last.location.plus(last.bytes) == (Location::Stored { address }) =>
                {
                    last.bytes += SECTOR_BYTES;
                }
                _ => extents.push(DataExtent {
                    offset,
                    bytes: SECTOR_BYTES,
                    location: Location::Stored { address },
                }),
            }
        }
        extents.retain(|extent| extent.end() > from);
        extents.truncate(self.extents_max.get());
        Ok(extents)
    }

    fn dedupe(
        &self,
        source: (&usize, u64),
        target: (&usize, u64),
        bytes: u64,
    ) -> Result<Answer, Problem<String>> {
        if let Some(hook) = self.before_dedupe.borrow_mut().take() {
            hook(self);
        }
        assert!(bytes <= Self::SHARE_BYTES_MAX);
        match self.bad_source.get() {
            Some((bad, true)) if bad == *source.0 => return Err(Problem::Skip(Skip::Refused)),
            Some((bad, false)) if bad == *source.0 => {
                self.is_damaged.set(true);
                return Err(Problem::Failed("of the target, as it seems".into()));
            }
            _ => {}
        }
        let bytes = bytes.min(self.short.get());
        let part = |(file, at): (&usize, u64)| {
            let contents = self.contents(*file);
            contents.get(index(at)..index(at + bytes)).map(<[u8]>::to_vec)
        };
        let Some(want) = part(source) else { return Ok(Answer::Differs) };
        if part(target) != Some(want) {
            return Ok(Answer::Differs);
        }
        let mut files = self.files.borrow_mut();
        assert!(!files[*target.0].is_read_only);
        let is_to_ends =
            [source, target].iter().all(|(file, at)| at + bytes == files[**file].bytes as u64);
        assert!(bytes.is_multiple_of(SECTOR_BYTES) || is_to_ends);
        for sector in 0..index(bytes.div_ceil(SECTOR_BYTES)) {
            let at = |offset: u64| index(offset) / SECTOR + sector;
            let address = files[*source.0].sectors[at(source.1)];
            assert!(address.is_some(), "no hole is shared");
            let to = &mut files[*target.0].sectors[at(target.1)];
            assert!(to.is_some(), "a hole stays a hole");
            *to = address;
        }
        Ok(Answer::Shared(bytes))
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("files in memory")
}

/// A generator of numbers (splitmix64).
struct Seed(u64);

impl Seed {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        index(self.next() % end as u64)
    }
}

/// The bytes of a block of a kind; kind 0 is zeros.
fn block(kind: u64) -> Vec<u8> {
    if kind == 0 {
        return vec![0; BLOCK];
    }
    let mut seed = Seed(kind);
    (0..BLOCK / 8).flat_map(|_| seed.next().to_le_bytes()).collect()
}

fn file_of(kinds: &[u64]) -> Vec<u8> {
    kinds.iter().flat_map(|kind| block(*kind)).collect()
}

#[test]
fn equal_files_and_blocks_are_shared_and_a_second_run_does_nothing() {
    let memory = Memory::new();
    memory.add(&file_of(&[1, 2, 3]), &[]);
    memory.add(&file_of(&[1, 2, 3]), &[]);
    memory.add(&file_of(&[9, 2, 3, 0, 9]), &[]);
    let before: Vec<_> = (0..3).map(|file| memory.contents(file)).collect();
    let (dry, _) = memory.run(Index::default(), true);
    let (report, index) = memory.run(Index::default(), false);
    assert_eq!(dry, report);
    assert_eq!(report.deduped_bytes, 6 * BLOCK as u64);
    assert_eq!(memory.used(), 5 * BLOCK as u64, "the block of zeros stays");
    assert_eq!(report.read_bytes, 11 * BLOCK as u64);
    let after: Vec<_> = (0..3).map(|file| memory.contents(file)).collect();
    assert_eq!(before, after);

    memory.read.set(0);
    let size = BlockSize::new(BLOCK as u64).expect("a valid size");
    let index = Index::read(&index[..], size).expect("an index");
    let (second, _) = memory.run(index, false);
    assert_eq!((second.deduped_bytes, second.shared_bytes), (0, 6 * BLOCK as u64));
    assert_eq!((second.read_bytes, second.files_read, memory.read.get()), (0, 0, 0));
}

/// Random files of few kinds of blocks, with holes, clones, short ends and files that cannot be
/// changed.
#[test]
fn every_copy_of_a_block_but_one_is_saved() {
    let seeds = if std::env::var_os("BUTTERNUT_LONG").is_some() { 2000 } else { 20 };
    for seed in 0..seeds {
        let mut random = Seed(seed);
        let memory = Memory::new();
        memory.extents_max.set(1 + random.below(5));
        if random.below(2) == 0 {
            memory.short.set(SECTOR_BYTES * (1 + random.below(6) as u64));
        }
        let has_clones = random.below(2) == 0;
        for _ in 0..2 + random.below(6) {
            let kinds: Vec<u64> = (0..random.below(9)).map(|_| random.next() % 5).collect();
            let mut contents = file_of(&kinds);
            let cut = contents.len().saturating_sub(random.below(3) * random.below(BLOCK));
            contents.truncate(cut);
            let file = memory.add(&contents, &[]);
            if has_clones && random.below(3) == 0 {
                memory.clone_of(file);
            }
        }
        let count = memory.files.borrow().len();
        for file in 0..count {
            memory.files.borrow_mut()[file].is_read_only = random.below(5) == 0;
        }
        let before: Vec<_> = (0..count).map(|file| memory.contents(file)).collect();
        let (used, want) = (memory.used(), memory.used_at_best());
        let (dry, _) = memory.run(Index::default(), true);
        assert_eq!(memory.used(), used, "seed {seed}");
        let (report, _) = memory.run(Index::default(), false);
        let after: Vec<_> = (0..count).map(|file| memory.contents(file)).collect();
        assert!(before == after, "seed {seed}");
        assert_eq!(memory.used(), want, "seed {seed}");
        // Clones that are moved to other extents together are counted one by one.
        assert!(report.deduped_bytes >= used - want, "seed {seed}");
        if !has_clones {
            assert_eq!(dry, report, "seed {seed}");
            assert_eq!(report.deduped_bytes, used - want, "seed {seed}");
        }
        assert!(report.skipped.keys().all(|skip| *skip == Skip::NotPermitted), "seed {seed}");
        let (second, _) = memory.run(Index::default(), false);
        assert_eq!(second.deduped_bytes, 0, "seed {seed}");
    }
}

#[test]
fn a_source_stays_open_while_others_of_its_block_are_opened() {
    const GROUPS: u64 = 16; // OPEN_MAX of `sharing`
    let memory = Memory::new();
    for _ in 0..3 {
        for kind in 1..=GROUPS {
            memory.add(&file_of(&[kind]), &[]);
        }
    }
    let want = memory.used_at_best();
    let (dry, _) = memory.run(Index::default(), true);
    let (report, _) = memory.run(Index::default(), false);
    assert_eq!(report.deduped_bytes, 2 * GROUPS * BLOCK as u64);
    assert_eq!(dry, report);
    assert_eq!(memory.used(), want);
}

#[test]
fn copies_that_cannot_be_shared_do_not_hide_those_that_can() {
    let memory = Memory::new();
    for file in 0..66 {
        memory.add(&file_of(&[1]), &[]);
        memory.files.borrow_mut()[file].has_no_checksums = file < 64;
    }
    let (report, _) = memory.run(Index::default(), false);
    assert_eq!(report.deduped_bytes, (63 + 1) * BLOCK as u64);
}

/// The first copy is refused as a source, or cannot be read; the others share the second one.
#[test]
fn a_source_that_is_refused_or_unreadable_is_given_up() {
    for is_refused in [true, false] {
        let memory = Memory::new();
        for kinds in [&[1, 2][..], &[1, 2], &[1, 2], &[2, 3, 1]] {
            memory.add(&file_of(kinds), &[]);
        }
        memory.bad_source.set(Some((0, is_refused)));
        let (report, _) = memory.run(Index::default(), false);
        assert_eq!(report.deduped_bytes, 4 * BLOCK as u64, "{is_refused}");
        let skips = u64::from(is_refused);
        assert_eq!(report.skipped.get(&Skip::Refused).copied().unwrap_or(0), skips);
        assert_eq!(memory.failed.get(), 1 - skips);
    }
}

#[test]
fn holes_stay_and_what_is_between_them_is_shared() {
    let memory = Memory::new();
    let mut contents = file_of(&[1, 2]);
    // Sector 1 is zeros: stored in the first file, a hole in the second. Sector 6 is a hole in
    // both.
    for sector in [1, 6] {
        contents[sector * SECTOR..][..SECTOR].fill(0);
    }
    memory.add(&contents, &[6]);
    memory.add(&contents, &[1, 6]);
    let (report, _) = memory.run(Index::default(), false);
    assert_eq!(report.deduped_bytes, 6 * SECTOR_BYTES);
    assert_eq!(memory.contents(1), contents);
    let files = memory.files.borrow();
    assert_eq!(files[1].sectors[1], None);
    assert!(files[0].sectors[1].is_some());
}

#[test]
fn a_sparse_file_of_any_size_is_searched_by_its_data() {
    let memory = Memory::new();
    memory.add(&file_of(&[1]), &[]);
    let sparse = memory.add(&file_of(&[1]), &[]);
    memory.files.borrow_mut()[sparse].bytes = 1 << 20;
    let (report, _) = memory.run(Index::default(), false);
    assert_eq!((report.deduped_bytes, report.read_bytes), (BLOCK as u64, 2 * BLOCK as u64));
}

#[test]
fn a_file_that_changes_during_the_run_is_left_alone() {
    for changed in [0, 1] {
        let memory = Memory::new();
        memory.add(&file_of(&[1, 2]), &[]);
        memory.add(&file_of(&[1, 2, 3]), &[]);
        memory.add(&file_of(&[1, 2]), &[]);
        // Of the first request: one of its files is truncated, and written to.
        *memory.before_dedupe.borrow_mut() = Some(Box::new(move |memory| {
            let sector = memory.store(&[7; SECTOR]);
            let mut files = memory.files.borrow_mut();
            let file = &mut files[changed];
            file.version += 1;
            file.bytes = BLOCK;
            file.sectors.truncate(BLOCK / SECTOR);
            file.sectors[0] = Some(sector);
        }));
        let (report, _) = memory.run(Index::default(), false);
        assert_eq!(report.skipped, BTreeMap::from([(Skip::Changed, 1)]), "{changed}");
        let (want, got) = (file_of(&[1, 2]), memory.contents(2));
        assert!(want == got);
    }
}

#[test]
fn copies_in_files_that_may_not_be_changed_are_counted() {
    let memory = Memory::new();
    for kinds in [[1, 2], [3, 2], [1, 4], [5, 6]] {
        memory.add(&file_of(&kinds), &[]);
    }
    memory.clone_of(1);
    memory.files.borrow_mut().iter_mut().for_each(|file| file.is_read_only = true);
    let used = memory.used();
    let (report, _) = memory.run(Index::default(), false);
    assert_eq!(report.skipped, BTreeMap::from([(Skip::NotPermitted, 2)]));
    assert_eq!((report.deduped_bytes, memory.used()), (0, used));
    assert_eq!(report.shared_bytes, 2 * BLOCK as u64);
}

#[test]
fn files_with_and_without_checksums_are_counted() {
    let memory = Memory::new();
    memory.add(&file_of(&[1]), &[]);
    memory.add(&file_of(&[1]), &[]);
    memory.files.borrow_mut()[1].has_no_checksums = true;
    let (report, _) = memory.run(Index::default(), false);
    assert_eq!(report.skipped, BTreeMap::from([(Skip::Checksums, 1)]));
    assert_eq!(report.deduped_bytes, 0);
}

/// A place whose extents never advance ends the file, not the process.
#[test]
fn extents_that_do_not_advance_are_refused() {
    struct Stuck;
    impl Place for Stuck {
        type Name = ();
        type File = ();
        type Error = String;
        fn open(&self, (): &()) -> Result<((), Facts), Problem<String>> {
            Err(Problem::Skip(Skip::Changed))
        }
        fn read(&self, (): &(), _: u64, buf: &mut [u8]) -> Result<usize, Problem<String>> {
            buf.fill(1);
            Ok(buf.len())
        }
        fn extents(&self, (): &(), _: u64) -> Result<Vec<DataExtent>, Problem<String>> {
            Ok(vec![DataExtent { offset: 0, bytes: SECTOR_BYTES, location: Location::Buffered }])
        }
        fn dedupe(&self, _: (&(), u64), _: (&(), u64), _: u64) -> Result<Answer, Problem<String>> {
            Ok(Answer::Shared(0))
        }
    }
    let size = BlockSize::new(SECTOR_BYTES).expect("a valid size");
    let mut search = Search::new(size, Index::default());
    let facts = Facts {
        identity: Identity([0; 16]),
        size: 1 << 30,
        filesystem: 0,
        has_checksums: true,
        is_target: true,
        is_settled: true,
    };
    let added = search.add(&Stuck, &(), (), facts).expect("one file");
    assert!(matches!(added, Err(Problem::Skip(Skip::Changed))));
}

/// The hashes that are compared would be billions, if each block looked as far as there are equal
/// ones; this test would take minutes.
#[test]
fn blocks_that_are_shared_by_turns_with_two_files_cost_the_same_each() {
    use crate::hashes::Hashed;
    const BLOCKS: u32 = 1 << 16;
    struct Turns;
    impl Place for Turns {
        type Name = u64;
        type File = u64;
        type Error = String;
        const SHARE_BYTES_MAX: u64 = 16 * SECTOR_BYTES;
        fn open(&self, name: &u64) -> Result<(u64, Facts), Problem<String>> {
            Ok((*name, facts(*name)))
        }
        fn read(&self, _: &u64, _: u64, _: &mut [u8]) -> Result<usize, Problem<String>> {
            Err(Problem::Ends("all files are in the index".into()))
        }
        fn extents(&self, file: &u64, from: u64) -> Result<Vec<DataExtent>, Problem<String>> {
            let first = from / SECTOR_BYTES;
            let extent = |at: u64| {
                let area = if *file == 2 { at % 2 } else { *file };
                let address = ((area + 1) << 40) + at * SECTOR_BYTES;
                let location = Location::Stored { address };
                DataExtent { offset: at * SECTOR_BYTES, bytes: SECTOR_BYTES, location }
            };
            Ok((first..u64::from(BLOCKS).min(first + 16)).map(extent).collect())
        }
        fn dedupe(
            &self,
            _: (&u64, u64),
            _: (&u64, u64),
            n: u64,
        ) -> Result<Answer, Problem<String>> {
            Ok(Answer::Shared(n))
        }
    }
    fn facts(file: u64) -> Facts {
        Facts {
            identity: Identity::of(&file.to_le_bytes()),
            size: u64::from(BLOCKS) * SECTOR_BYTES,
            filesystem: 1,
            has_checksums: true,
            is_target: true,
            is_settled: true,
        }
    }
    let size = BlockSize::new(SECTOR_BYTES).expect("a valid size");
    let blocks = || (0..BLOCKS).map(|number| Hashed { number, hash: u64::from(number) * 77 });
    let mut bytes = Vec::new();
    let files = (0..3).map(|file| (facts(file).identity, u64::from(BLOCKS), blocks()));
    crate::index::write(&mut bytes, size, files).expect("memory takes it");
    let mut search = Search::new(size, Index::read(&bytes[..], size).expect("an index"));
    for file in 0..3 {
        search.add(&Turns, &file, file, facts(file)).expect("few").expect("in the index");
    }
    let (_, ended) = Sharing::new(&Turns, search, true).run(&mut |_| {});
    ended.expect("the place stays");
}
