//! [`Generator`]: seeded operations that often meet limits and each other.
//!
//! 1. The same seed and the same model give the same operations.
//! 2. The names are few: short ones, pairs whose hashes collide, bytes that are not UTF-8, the
//!    longest possible name, and one that is too long. So operations often meet the same names.
//! 3. Offsets and lengths gather at the edges of sectors, blocks, inline extents and readahead
//!    windows.
//! 4. A tree stays small ([`Limits`]), so that it is cheap to compare: what has grown large is
//!    truncated or removed.

mod attributes;
mod lanes;
mod numbers;
mod subvolumes;

use crate::bytes::Bytes;
use crate::model::Model;
use crate::operation::{Allocating, File, Operation, Renaming, SLOTS, Seeking, Special};
use crate::random::Random;
use crate::tree::Kind;

/// The size of a tree at which the generator begins to remove files.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub names: usize,
    pub bytes: u64,
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { names: 48, bytes: 4 << 20, depth: 4 }
    }
}

/// Features that a subject lacks, and that are not generated.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent feature")]
pub struct Without {
    pub compression: bool,
    pub reopen: bool,
    /// The immutable and append-only flags.
    pub guard_flags: bool,
    pub batches: bool,
    /// `FICLONERANGE`.
    pub clones: bool,
    /// Defragmentation with compression: the kernel's btrfs then sets the flag of files that are
    /// not compressed, where it saves nothing.
    pub compressing_defragment: bool,
    /// Changes and clones of files that are open in a deleted subvolume.
    pub files_of_deleted: bool,
}

#[derive(Clone, Debug)]
pub struct Generator {
    random: Random,
    limits: Limits,
    without: Without,
    /// One operation in so many is a sync; 0 for the usual mix.
    sync_one_in: u64,
    /// One operation in so many is a batch; 0 for the usual mix.
    batch_one_in: u64,
    /// One operation in so many is one of subvolumes or shared extents; 0 for none.
    subvolume_one_in: u64,
    names: Vec<Vec<u8>>,
    /// The names of the model, as of the last call.
    places: Vec<(Bytes, Kind)>,
    directories: Vec<Bytes>,
    files: Vec<Bytes>,
    open: Vec<u8>,
}

/// Pairs of names of one length whose crc32c collides after any common prefix.
pub(crate) const COLLIDING: [[&str; 2]; 4] = [
    ["2e9lnn0", "e1ucs9q"],
    ["0pwueqi", "lc8yzsl"],
    ["2rx9t2i", "ci337p5"],
    ["ka3xnrx", "1trvivi"],
];

impl Generator {
    pub fn new(seed: u64) -> Generator {
        let mut random = Random::new(seed);
        let names = names(&mut random);
        Generator {
            random,
            limits: Limits::default(),
            without: Without::default(),
            sync_one_in: 0,
            batch_one_in: 0,
            subvolume_one_in: 0,
            names,
            places: Vec::new(),
            directories: Vec::new(),
            files: Vec::new(),
            open: Vec::new(),
        }
    }

    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Generator {
        self.limits = limits;
        self
    }

    #[must_use]
    pub fn without(mut self, without: Without) -> Generator {
        self.without = without;
        self
    }

    /// Generates syncs more often: one operation in `one_in`.
    #[must_use]
    pub fn with_syncs(mut self, one_in: u64) -> Generator {
        self.sync_one_in = one_in;
        self
    }

    /// Generates batches more often: one operation in `one_in`, or the usual mix for 0.
    #[must_use]
    pub fn with_batches(mut self, one_in: u64) -> Generator {
        self.batch_one_in = one_in;
        self
    }

    /// Returns the next operation for a filesystem in the model's state.
    pub fn next(&mut self, model: &Model) -> Operation {
        self.update_places(model);
        loop {
            let operation = self.any(model);
            if self.allows(&operation, model) {
                return operation;
            }
        }
    }

    /// Returns whether the model knows the outcome of an operation, which a shorter script may have
    /// in another place.
    pub fn allows(&self, operation: &Operation, model: &Model) -> bool {
        self.subvolume_one_in == 0 || subvolumes::is_modelled(operation, model, self.without)
    }

    fn any(&mut self, model: &Model) -> Operation {
        if self.subvolume_one_in > 0 && self.random.one_in(self.subvolume_one_in) {
            return self.subvolume_operation(model);
        }
        if self.sync_one_in > 0 && self.random.one_in(self.sync_one_in) {
            return Operation::Sync;
        }
        if self.batch_one_in > 0 && self.random.one_in(self.batch_one_in) {
            return self.batch(model);
        }
        if self.places.len() > self.limits.names && self.random.one_in(2) {
            return self.removal();
        }
        if model.stored_bytes() > self.limits.bytes && self.random.one_in(2) {
            return Operation::Truncate { file: self.file(), size: self.random.below(5000) };
        }
        match self.random.below(1000) {
            0..=279 => self.name_operation(),
            280..=699 => self.data_operation(model),
            700..=929 => self.attribute_operation(),
            930..=959 => self.opening(),
            960..=984 => Operation::Fsync { file: self.file() },
            985..=997 => Operation::Sync,
            _ if self.without.reopen => Operation::Sync,
            _ => Operation::Reopen,
        }
    }

    fn update_places(&mut self, model: &Model) {
        self.places = model.places();
        self.open = model.open_slots();
        let of = |kind: Kind| {
            let places = self.places.iter().filter(move |place| place.1 == kind);
            places.map(|(path, _)| path.clone())
        };
        let files: Vec<Bytes> = of(Kind::File).collect();
        let directories = std::iter::once(Bytes::default()).chain(of(Kind::Directory)).collect();
        (self.files, self.directories) = (files, directories);
    }

    fn name_operation(&mut self) -> Operation {
        let mode = self.mode();
        match self.random.below(28) {
            0..=5 => Operation::Create { at: self.vacancy(), mode },
            6..=8 => Operation::Mkdir { at: self.vacancy(), mode },
            9 => self.mknod(mode),
            10..=11 => Operation::Symlink { at: self.vacancy(), target: self.target() },
            12..=14 => Operation::Link { from: self.place(), to: self.vacancy() },
            15..=16 => self.removal(),
            17..=24 => self.rename(),
            25 => Operation::Tmpfile { dir: self.directory(), mode, slot: self.slot() },
            _ => Operation::LinkOpen { slot: self.slot(), to: self.vacancy() },
        }
    }

    fn mknod(&mut self, mode: u32) -> Operation {
        let kinds = [Special::Fifo, Special::Character, Special::Block, Special::Socket];
        let kind = *self.random.pick(&kinds);
        let major = *self.random.pick(&[0, 1, 8, 255, 256, 4095]);
        let minor = *self.random.pick(&[0, 1, 255, 256, 0xf_ffff]);
        Operation::Mknod { at: self.vacancy(), kind, mode, major, minor }
    }

    fn removal(&mut self) -> Operation {
        let at = self.place();
        let kind = self.places.iter().find(|place| place.0 == at).map(|place| place.1);
        match kind {
            Some(Kind::Directory) if !self.random.one_in(16) => Operation::Rmdir { at },
            Some(_) if self.random.one_in(16) => Operation::Rmdir { at },
            _ => Operation::Unlink { at },
        }
    }

    fn rename(&mut self) -> Operation {
        let from = self.place();
        let to = if self.random.one_in(2) { self.place() } else { self.vacancy() };
        let how = match self.random.below(8) {
            0..=3 => Renaming::Plain,
            4 => Renaming::NoReplace,
            5..=6 => Renaming::Exchange,
            _ => Renaming::Whiteout,
        };
        Operation::Rename { from, to, how }
    }

    fn opening(&mut self) -> Operation {
        let slot = self.slot();
        if self.random.one_in(4) {
            Operation::Close { slot }
        } else {
            Operation::Open { at: self.file_place(), slot }
        }
    }

    fn data_operation(&mut self, model: &Model) -> Operation {
        let file = self.file();
        let size = match &file {
            File::At(at) => model.size_at(at),
            File::Open(slot) => model.size_open(*slot),
        };
        let size = size.unwrap_or(0);
        let (offset, bytes) = (self.offset(size), self.length());
        let seed = if self.random.one_in(8) { 0 } else { self.random.below(1 << 30) };
        match self.random.below(42) {
            0..=10 => {
                let lane = self.lane();
                let (offset, bytes) = self.for_lane(lane, offset, bytes);
                Operation::Write { file, offset, bytes, seed, lane }
            }
            11..=13 => self.batch(model),
            14..=16 => Operation::Append { at: self.file_place(), bytes, seed },
            17..=20 => Operation::Truncate { file, size: self.new_size(size) },
            21..=26 => Operation::Fallocate { file, how: self.allocating(), offset, bytes },
            27..=34 => {
                let lane = self.lane();
                let (offset, bytes) = self.for_lane(lane, offset, bytes);
                Operation::Read { file, offset, bytes, lane }
            }
            35..=37 => {
                let what = *self.random.pick(&[Seeking::Data, Seeking::Hole]);
                Operation::Seek { file, what, offset }
            }
            _ => {
                let to = if self.random.one_in(3) { file.clone() } else { self.file() };
                let to_offset = self.offset(size);
                let (offset, to_offset, bytes) = self.for_copy(size, offset, to_offset, bytes);
                Operation::Copy { from: file, from_offset: offset, to, to_offset, bytes }
            }
        }
    }

    fn allocating(&mut self) -> Allocating {
        *self.random.pick(&[
            Allocating::Allocate,
            Allocating::KeepSize,
            Allocating::PunchHole,
            Allocating::PunchHole,
            Allocating::ZeroRange,
            Allocating::ZeroRangeKeepSize,
        ])
    }

    fn slot(&mut self) -> u8 {
        let any = u8::try_from(self.random.below(u64::from(SLOTS))).expect("few slots");
        if self.open.is_empty() || self.random.one_in(8) {
            any
        } else {
            *self.random.pick(&self.open)
        }
    }

    /// Returns mostly a file, by its name or open.
    fn file(&mut self) -> File {
        if !self.open.is_empty() && self.random.one_in(4) {
            return File::Open(self.slot());
        }
        File::At(self.file_place())
    }

    fn file_place(&mut self) -> Bytes {
        if self.files.is_empty() || self.random.one_in(20) {
            return self.place();
        }
        self.random.pick(&self.files).clone()
    }

    fn directory(&mut self) -> Bytes {
        if self.random.one_in(24) {
            self.place()
        } else {
            self.random.pick(&self.directories).clone()
        }
    }

    /// Returns mostly the path of an existing inode.
    fn place(&mut self) -> Bytes {
        if self.places.is_empty() || self.random.one_in(16) {
            return self.vacancy();
        }
        self.random.pick(&self.places).0.clone()
    }

    /// Returns mostly a free name in an existing directory.
    fn vacancy(&mut self) -> Bytes {
        let mut dir = self.random.pick(&self.directories).clone();
        if dir.components().count() >= self.limits.depth {
            dir = Bytes::default();
        }
        if self.random.one_in(40)
            && let Some((path, _)) = self.places.first()
        {
            // The parent is often not a directory.
            dir = path.clone();
        }
        let name = if self.random.one_in(200) {
            vec![b'l'; 256]
        } else {
            self.random.pick(&self.names).clone()
        };
        dir.join(&name)
    }

    /// Returns a symlink's target, which does not exist.
    fn target(&mut self) -> Bytes {
        let bytes = *self.random.pick(&[9, 40, 255, 2000, 4095]);
        let mut target = b"/nowhere/".to_vec();
        target.resize(bytes, b'\xee');
        Bytes(target)
    }
}

/// Returns the names of law 2.
fn names(random: &mut Random) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = ["a", "b", "c", "dd", "eee", "f.txt", "-", " "]
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let pair = random.pick(&COLLIDING);
    names.extend(pair.iter().map(|name| name.as_bytes().to_vec()));
    names.push(vec![0xff, 0xfe, b'\n', 0x80, b'\\']);
    names.push(vec![b'x'; 255]);
    let mut other = vec![b'x'; 255];
    *other.last_mut().expect("255 bytes") = b'y';
    names.push(other);
    for _ in 0..3 {
        let len = 1 + random.index(20);
        let byte = |_| u8::try_from(1 + random.below(255)).expect("a byte");
        let name: Vec<u8> = (0..len).map(byte).map(|b| if b == b'/' { b'_' } else { b }).collect();
        let is_special = name == b"." || name == b"..";
        names.push(if is_special { b"...".to_vec() } else { name });
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// An operation that is never generated, or never succeeds, would not be tested.
    #[test]
    fn every_operation_is_generated_and_succeeds_often() {
        let mut generator = Generator::new(1);
        let mut model = Model::default();
        let mut done: BTreeMap<String, [u32; 2]> = BTreeMap::new();
        for _ in 0..40_000 {
            let operation = generator.next(&model);
            let name = format!("{operation:?}");
            let name = name.split([' ', '{']).next().unwrap().to_owned();
            assert!(model.is_fair(&operation), "{operation:?}");
            let outcome = model.apply(&operation);
            let is_refused = matches!(outcome, crate::operation::Outcome::Failed(_));
            done.entry(name).or_default()[usize::from(is_refused)] += 1;
        }
        assert_eq!(done.len(), 30, "{done:?}");
        for (name, [succeeded, failed]) in &done {
            assert!(*succeeded >= 40 && succeeded * 12 > *failed, "{name}: {done:?}");
        }
        assert!(model.stored_bytes() < 64 << 20);
    }

    #[test]
    fn every_operation_on_subvolumes_succeeds_often() {
        let mut generator = Generator::new(1).with_subvolumes(5);
        let mut model = Model::default();
        let mut done: BTreeMap<String, [u32; 3]> = BTreeMap::new();
        for _ in 0..4000 {
            let operation = generator.next(&model);
            let name = format!("{operation:?}");
            let name = name.split([' ', '{']).next().unwrap().to_owned();
            let outcome = match model.apply(&operation) {
                crate::operation::Outcome::Failed(_) => 1,
                crate::operation::Outcome::Differs => 2,
                _ => 0,
            };
            done.entry(name).or_default()[outcome] += 1;
        }
        assert_eq!(done.len(), 36, "{done:?}");
        for name in ["Subvolume", "Snapshot", "DeleteSubvolume", "Clone", "Dedupe", "Defragment"] {
            let [succeeded, failed, _] = done[name];
            assert!(succeeded >= 20 && succeeded * 12 > failed, "{name}: {done:?}");
        }
        assert!(done["Dedupe"][2] >= 4, "{done:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_operations() {
        let run = |seed| {
            let (mut generator, mut model) = (Generator::new(seed), Model::default());
            let mut operations = Vec::new();
            for _ in 0..2000 {
                let operation = generator.next(&model);
                model.apply(&operation);
                operations.push(operation);
            }
            operations
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }
}
