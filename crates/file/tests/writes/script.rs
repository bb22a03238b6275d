//! Random changes of one file, applied to a state of it and to a vector of bytes.

use butternut_file::{
    FallocateSize, FileState, Mappings, ReadAt, Source, Stream, seek_data, seek_hole,
};

/// A small generator; the same seed gives the same numbers.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A random offset in a file, most likely near an edge of something.
    fn place(&mut self, size: u64, reach: u64) -> u64 {
        match self.below(6) {
            0 => self.below(reach),
            1 => self.below(reach / 4096 + 1) * 4096,
            2 => size.saturating_sub(self.below(3)),
            3 => (size + self.below(9000)).min(reach),
            4 => self.below(size + 1),
            _ => self.below(size / 4096 + 1) * 4096,
        }
    }

    /// Noise, or compressible bytes, or some of each.
    fn content(&mut self, bytes: usize) -> Vec<u8> {
        let kind = self.below(4);
        let mut data = Vec::with_capacity(bytes);
        while data.len() < bytes {
            match if kind < 3 { kind } else { self.below(3) } {
                0 => data.extend((0..3000).flat_map(|_| self.next().to_le_bytes())),
                1 => data.resize(data.len() + 20_000, self.next() as u8),
                _ => data.extend((0..9000).map(|_| b"butternut squash"[self.below(16) as usize])),
            }
        }
        data.truncate(bytes);
        data
    }

    fn bytes(&mut self) -> u64 {
        let bound = [3, 100, 4097, 20_000, 300_000, 900_000][self.below(6) as usize];
        let bytes = 1 + self.below(bound);
        if self.below(3) == 0 { bytes.next_multiple_of(4096) } else { bytes }
    }
}

/// The steps that were done, to analyse a failure.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write { at: u64, bytes: u64 },
    Truncate { size: u64 },
    Punch { at: u64, bytes: u64 },
    Zero { at: u64, bytes: u64, end: FallocateSize },
    Allocate { at: u64, bytes: u64, end: FallocateSize },
    Flush,
    Merge,
    Commit,
}

pub(crate) struct Script {
    pub(crate) dice: Dice,
    /// Maximum size of the file in bytes.
    pub(crate) reach: u64,
    pub(crate) log: Vec<Step>,
    /// Steps that are skipped.
    pub(crate) is_skipped: fn(&Step) -> bool,
}

impl Script {
    pub(crate) fn new(seed: u64, reach: u64) -> Self {
        Self { dice: Dice::new(seed), reach, log: Vec::new(), is_skipped: |_| false }
    }

    fn step(&mut self, size: u64) -> Step {
        let (reach, dice) = (self.reach, &mut self.dice);
        let at = dice.place(size, reach);
        let bytes = dice.bytes().min(reach.saturating_sub(at)).max(1);
        let end = if dice.below(2) == 0 { FallocateSize::Extend } else { FallocateSize::Keep };
        match dice.below(24) {
            0..=11 => Step::Write { at, bytes },
            12..=13 => Step::Truncate { size: at },
            14..=15 => Step::Punch { at, bytes },
            16 => Step::Zero { at, bytes, end },
            17..=18 => Step::Allocate { at, bytes, end },
            19..=20 => Step::Flush,
            21..=22 => Step::Merge,
            _ => Step::Commit,
        }
    }

    /// Applies one random step to both.
    pub(crate) fn run(&mut self, source: &Source, file: &mut FileState, model: &mut Vec<u8>) {
        let mut step = self.step(model.len() as u64);
        while (self.is_skipped)(&step) {
            step = self.step(model.len() as u64);
        }
        self.log.push(step.clone());
        let stamp = &mut |_: &mut _| {};
        match step {
            Step::Write { at, bytes } => {
                let mut dice = Dice::new(self.dice.next());
                let data = dice.content(bytes as usize);
                let written = file.write_at(at, &data).unwrap();
                assert_eq!(written, data.len());
                put(model, at as usize, &data);
            }
            Step::Truncate { size } => {
                file.truncate(size, stamp).unwrap();
                model.resize(size as usize, 0);
            }
            Step::Punch { at, bytes } => {
                file.punch_hole(at..at + bytes, stamp).unwrap();
                zero(model, at, bytes);
            }
            Step::Zero { at, bytes, end } => {
                file.zero_range(at..at + bytes, end, stamp).unwrap();
                grow(model, at + bytes, end);
                zero(model, at, bytes);
            }
            Step::Allocate { at, bytes, end } => {
                file.allocate(at..at + bytes, end, stamp).unwrap();
                grow(model, at + bytes, end);
            }
            Step::Flush => file.write_back().unwrap(),
            Step::Merge => {
                file.merge(stamp).unwrap();
                assert!(file.is_clean());
            }
            Step::Commit => {
                file.merge(stamp).unwrap();
                source.forest().commit().unwrap();
            }
        }
        assert_eq!(file.size(), model.len() as u64);
    }

    /// Compares a random read of the file with the model.
    pub(crate) fn look(&mut self, source: &Source, file: &FileState, model: &[u8]) {
        let dice = &mut self.dice;
        let size = model.len() as u64;
        match dice.below(8) {
            0 => compare(source, file, model),
            1..=4 => {
                let at = dice.place(size, self.reach);
                let mut buf = vec![0xEE; dice.bytes() as usize];
                let read = source.read_at(file.view(), at, &mut buf).unwrap();
                let want = &model[model.len().min(at as usize)..];
                assert_eq!(read, want.len().min(buf.len()));
                same(&buf[..read], &want[..read], at);
            }
            5 => {
                let places: Vec<u64> = (0..20).map(|_| dice.place(size, self.reach)).collect();
                let mut bufs = vec![vec![0xEE; 5000]; 20];
                let mut reads: Vec<ReadAt<'_>> =
                    places.iter().zip(&mut bufs).map(|(at, buf)| ReadAt::new(*at, buf)).collect();
                source.read_many(file.view(), &mut reads);
                for read in &reads {
                    let filled = *read.result.as_ref().unwrap();
                    let want = &model[model.len().min(read.offset as usize)..];
                    assert_eq!(filled, want.len().min(5000));
                    same(&read.buf[..filled], &want[..filled], read.offset);
                }
            }
            _ => seeks(file, dice.place(size, self.reach), model),
        }
    }
}

/// The results of `lseek` must agree with the bytes, however they are stored.
fn seeks(file: &FileState, at: u64, model: &[u8]) {
    let size = model.len() as u64;
    let is_zero = |from: u64, to: u64| {
        model[from as usize..to.min(size) as usize].iter().all(|byte| *byte == 0)
    };
    match seek_data(file.view(), at).unwrap() {
        Some(data) => assert!(data >= at && data < size && is_zero(at, data)),
        None => assert!(at >= size || is_zero(at, size)),
    }
    match seek_hole(file.view(), at).unwrap() {
        Some(hole) => {
            assert!(hole >= at && hole <= size && at < size);
            if hole < size {
                assert!(is_zero(hole, (hole + 1).next_multiple_of(4096)));
            }
        }
        None => assert!(at >= size),
    }
}

pub(crate) fn compare(source: &Source, file: &FileState, model: &[u8]) {
    let mut buf = vec![0xEE; model.len().max(100_000) + 4096];
    let read = source.read_at(file.view(), 0, &mut buf).unwrap();
    assert_eq!(read, model.len());
    same(&buf[..read], model, 0);
    let stream = Stream::new(source.clone(), file.view().clone());
    let mut at = 0;
    while at < model.len() {
        let read = stream.read_at(at as u64, &mut buf[..100_000]).unwrap();
        same(&buf[..read], &model[at..at + read], at as u64);
        at += read;
        assert!(read > 0);
    }
    let mut end = 0;
    for mapping in Mappings::of(file.view(), 0..u64::MAX) {
        let mapping = mapping.unwrap();
        assert_eq!(mapping.offset, end, "without gaps");
        end = mapping.end();
    }
    assert!(end >= model.len() as u64, "{end} {}", model.len());
}

#[track_caller]
pub(crate) fn same(have: &[u8], want: &[u8], at: u64) {
    if have != want {
        let first = have.iter().zip(want).position(|(have, want)| have != want);
        panic!("the file differs at byte {}", at as usize + first.unwrap_or(0));
    }
}

fn put(model: &mut Vec<u8>, at: usize, data: &[u8]) {
    model.resize(model.len().max(at + data.len()), 0);
    model[at..at + data.len()].copy_from_slice(data);
}

fn zero(model: &mut [u8], at: u64, bytes: u64) {
    let end = model.len().min((at + bytes) as usize);
    model[end.min(at as usize)..end].fill(0);
}

fn grow(model: &mut Vec<u8>, size: u64, end: FallocateSize) {
    if end == FallocateSize::Extend {
        model.resize(model.len().max(size as usize), 0);
    }
}
