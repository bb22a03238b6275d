//! [`Crashes`]: enumerates the ways in which a power cut can end a recording.
//!
//! For every gap between two flushes (the end of the log ends the last gap):
//!
//! 1. all writes of the gap survive: the state at the flush;
//! 2. none survives;
//! 3. for each *pivotal* write (selected by the caller; superblocks): all but it survive, only it
//!    survives, and it is torn among all others, once in sectors and once in blocks if it has
//!    several;
//! 4. a number of seeded crashes: a random position in the gap; each write before it is kept, lost
//!    or torn, in order or shuffled.
//!
//! At most one pivotal write of a seeded crash is torn: two copies of a superblock exist so that
//! one of them survives a torn write.
//!
//! A gap with a single write of at most one sector has only the first two. The sequence is a
//! function of the recording and the options alone.

use super::image::CrashImage;
use super::pages::{Layered, PAGE_BYTES, Pages};
use super::{Record, Recording};
use crate::error::DeviceError;
use std::ops::Range;
use std::sync::Arc;

const SECTOR_BYTES: usize = 512;

/// Returns whether the write with this offset and length is pivotal.
pub type Pivotal = fn(u64, u64) -> bool;

/// Which crashes to enumerate.
#[derive(Clone, Copy, Debug)]
pub struct CrashOptions {
    pub seed: u64,
    /// Number of seeded crashes in each gap.
    pub seeded_per_gap: u32,
    pub pivotal: Pivotal,
}

/// The outcome of the writes after the last flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    All,
    None,
    /// All but this write survive.
    Lost(usize),
    /// Only this write survives.
    Alone(usize),
    /// All survive, but this write is torn in units of so many bytes.
    Torn {
        write: usize,
        unit_bytes: usize,
    },
    /// Determined by this seed.
    Seeded(u64),
}

/// One crash.
#[derive(Clone, Debug)]
pub struct Crash {
    /// Its number in the sequence.
    pub number: u64,
    /// Everything before this position of the log was issued, nothing after it.
    pub position: usize,
    pub fate: Fate,
    /// The position in the log where the unflushed part begins.
    gap_start: usize,
    durable: Arc<Pages>,
    pivotal: Pivotal,
}

/// Crashes of one recording, in the order of their gaps.
#[derive(Debug)]
pub struct Crashes {
    recording: Recording,
    options: CrashOptions,
    number: u64,
    /// The current gap.
    gap: Range<usize>,
    durable: Arc<Pages>,
    fates: std::vec::IntoIter<(usize, Fate)>,
    is_done: bool,
}

impl Crashes {
    pub fn new(recording: Recording, options: CrashOptions) -> Crashes {
        let durable = Arc::default();
        let fates = Vec::new().into_iter();
        let mut crashes =
            Crashes { recording, options, number: 0, gap: 0..0, durable, fates, is_done: false };
        crashes.enter(0);
        crashes
    }

    fn enter(&mut self, start: usize) {
        let log = self.recording.log();
        let rest = log.get(start..).unwrap_or_default();
        let len = rest.iter().position(|record| *record == Record::Flush).unwrap_or(rest.len());
        self.gap = start..start + len;
        self.fates = self.fates_of_gap().into_iter();
    }

    fn fates_of_gap(&self) -> Vec<(usize, Fate)> {
        let Range { start, end } = self.gap.clone();
        let gap = self.recording.log().get(start..end).unwrap_or_default();
        let mut fates = vec![(end, Fate::All)];
        if gap.is_empty() {
            return fates;
        }
        fates.push((end, Fate::None));
        for (at, record) in (start..).zip(gap) {
            let Record::Write { offset, bytes } = record else { continue };
            if !(self.options.pivotal)(*offset, bytes.len() as u64) {
                continue;
            }
            if gap.len() > 1 {
                fates.extend([(end, Fate::Lost(at)), (end, Fate::Alone(at))]);
            }
            let units = [SECTOR_BYTES, PAGE_BYTES].into_iter().filter(|p| bytes.len() > *p);
            fates.extend(units.map(|unit_bytes| (end, Fate::Torn { write: at, unit_bytes })));
        }
        let is_atom = |record: &Record| match record {
            Record::Write { bytes, .. } => bytes.len() <= SECTOR_BYTES,
            Record::Discard { .. } | Record::Flush => true,
        };
        if gap.len() > 1 || !gap.iter().all(is_atom) {
            for salt in 0..u64::from(self.options.seeded_per_gap) {
                let mut random = Random(mix(self.options.seed ^ mix(start as u64 + 1) ^ salt));
                // Half of them at the flush, where the most writes are unflushed.
                let back = if random.one_in(2) { 0 } else { random.below(gap.len()) };
                fates.push((end - back, Fate::Seeded(random.next())));
            }
        }
        fates
    }
}

impl Iterator for Crashes {
    type Item = Result<Crash, DeviceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.is_done {
                return None;
            }
            if let Some((position, fate)) = self.fates.next() {
                let (number, gap_start) = (self.number, self.gap.start);
                self.number += 1;
                let durable = Arc::clone(&self.durable);
                let pivotal = self.options.pivotal;
                let crash = Crash { number, position, fate, gap_start, durable, pivotal };
                return Some(Ok(crash));
            }
            if self.gap.end >= self.recording.log().len() {
                self.is_done = true;
                continue;
            }
            let mut durable = Pages::clone(&self.durable);
            for record in &self.recording.log()[self.gap.clone()] {
                if let Err(error) = record.apply(&mut durable, &self.recording.base) {
                    self.is_done = true;
                    return Some(Err(error));
                }
            }
            self.durable = Arc::new(durable);
            self.enter(self.gap.end + 1);
        }
    }
}

impl Crash {
    /// Returns the contents of the medium after the crash. The cost depends only on the unflushed
    /// writes.
    pub fn image(&self, recording: &Recording) -> Result<CrashImage, DeviceError> {
        let mut own = Pages::default();
        let lower = Layered(&self.durable, &recording.base);
        let gap = recording.log.get(self.gap_start..self.position).unwrap_or_default();
        let numbered = (self.gap_start..).zip(gap);
        match &self.fate {
            Fate::None => {}
            Fate::All => {
                for (_, record) in numbered {
                    record.apply(&mut own, &lower)?;
                }
            }
            Fate::Lost(lost) => {
                for (_, record) in numbered.filter(|(at, _)| at != lost) {
                    record.apply(&mut own, &lower)?;
                }
            }
            Fate::Alone(kept) => {
                for (_, record) in numbered.filter(|(at, _)| at == kept) {
                    record.apply(&mut own, &lower)?;
                }
            }
            Fate::Torn { write, unit_bytes } => {
                for (at, record) in numbered {
                    if at == *write {
                        let mut random = Random(mix(self.number + 1));
                        tear(record, *unit_bytes, &mut random, &mut own, &lower)?;
                    } else {
                        record.apply(&mut own, &lower)?;
                    }
                }
            }
            Fate::Seeded(seed) => {
                let is_pivotal = |record: &Record| match record {
                    Record::Write { offset, bytes } => (self.pivotal)(*offset, bytes.len() as u64),
                    Record::Discard { .. } | Record::Flush => false,
                };
                seeded(gap, *seed, &is_pivotal, &mut own, &lower)?;
            }
        }
        Ok(CrashImage::new(Arc::clone(&recording.base), Arc::clone(&self.durable), own))
    }
}

fn seeded(
    gap: &[Record],
    seed: u64,
    is_pivotal: &dyn Fn(&Record) -> bool,
    own: &mut Pages,
    lower: &impl super::pages::Lower,
) -> Result<(), DeviceError> {
    let mut random = Random(seed);
    let mut has_torn_pivotal = false;
    let mut order: Vec<&Record> = gap.iter().collect();
    if random.one_in(3) {
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
    }
    // Varies from nearly no write kept to nearly every one.
    let kept_of_8 = 1 + random.below(7);
    let torn_one_in = 2 + random.below(14);
    for record in order {
        let is_kept = random.below(8) < kept_of_8;
        let is_torn = random.one_in(torn_one_in);
        let is_pivotal = is_pivotal(record);
        let is_spared = is_pivotal && has_torn_pivotal;
        has_torn_pivotal |= is_pivotal && is_torn;
        if is_torn && !is_spared {
            let unit = if random.one_in(2) { SECTOR_BYTES } else { PAGE_BYTES };
            tear(record, unit, &mut random, own, lower)?;
        } else if is_kept {
            record.apply(own, lower)?;
        }
    }
    Ok(())
}

/// Keeps some units of a write: a prefix, a suffix, or any subset.
fn tear(
    record: &Record,
    unit_bytes: usize,
    random: &mut Random,
    own: &mut Pages,
    lower: &impl super::pages::Lower,
) -> Result<(), DeviceError> {
    let Record::Write { offset, bytes } = record else { return record.apply(own, lower) };
    // Units are aligned on the device, not within the write.
    let skew = usize::try_from(*offset % unit_bytes as u64).expect("less than a unit");
    let count = (skew + bytes.len()).div_ceil(unit_bytes);
    let (kind, cut) = (random.below(3), random.below(count + 1));
    for unit in 0..count {
        let is_kept = match kind {
            0 => unit < cut,
            1 => unit >= cut,
            _ => random.one_in(2),
        };
        let start = (unit * unit_bytes).saturating_sub(skew);
        let end = ((unit + 1) * unit_bytes - skew).min(bytes.len());
        if is_kept {
            own.write(lower, offset + start as u64, &bytes[start..end])?;
        }
    }
    Ok(())
}

/// A seeded random number generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, bound: usize) -> usize {
        let number = self.next() % bound.max(1) as u64;
        usize::try_from(number).expect("less than a usize")
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}
