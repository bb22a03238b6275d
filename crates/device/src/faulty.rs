//! [`FaultyDevice`]: a device that fails on purpose, as its rules and its seed say.
//!
//! # The faults
//!
//! | fault | the caller sees | the medium holds |
//! |---|---|---|
//! | `ReadError` | EIO | what it held |
//! | `WriteError` | EIO | what it held |
//! | `FlushError` | EIO | what it held; nothing is flushed |
//! | `Rot` | success, some bits flipped | what it held |
//! | `MisdirectedRead` | success, bytes from elsewhere | what it held |
//! | `MisdirectedWrite` | success | the bytes, elsewhere |
//! | `TornWrite` | success | only the first sectors of the write |
//! | `LostWrite` | success | what it held |
//! | `Delay` | success, later | as asked |
//! | `HeldRead` | what a read after the removal of the rule sees | as asked |
//!
//! # When a rule strikes
//!
//! The range is looked at in blocks of 4096 bytes, counted from the device's first byte. A rule
//! strikes a request if it strikes one of the blocks that lie both in the rule's range and in the
//! request. [`When::Always`] strikes each; [`When::OneIn`] strikes those that the seed picks, the
//! same ones every time, as bad sectors do; [`When::Times`] strikes the first requests only, as a
//! passing fault does; [`When::Nth`] strikes one request, so that a test can fail each one in turn.
//! [`When::From`] strikes it and all after it. These three count the requests that touch the range
//! and that the fault concerns. Which blocks, which bits and where a tear lies are functions of the
//! seed, the rule's number and the block: they depend on neither time, thread nor order.
//!
//! Rules may be added and removed while requests run. They are applied in the order they were
//! added; errors come before damage. Flush errors ignore the range.

use crate::counters::Counters;
use crate::device::Device;
use crate::error::{DeviceError, check_range, check_writable};
use butternut_sys::errno::Errno;
use butternut_sys::file::{Alignment, WriteCache};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// The unit in which rules strike.
const BLOCK_BYTES: u64 = 4096;

/// Where a write can tear.
const TEAR_BYTES: usize = 512;

#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    seed: u64,
    rules: RwLock<Rules>,
    counts: [AtomicU64; FAULTS],
    /// A rule was removed, or a read is held.
    change: (Mutex<()>, Condvar),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    ReadError,
    WriteError,
    FlushError,
    /// Flips this many bits in each block that is struck.
    Rot {
        bits: u32,
    },
    /// Blocks come from so many bytes further on, round the end of the device.
    MisdirectedRead {
        by: u64,
    },
    /// Blocks go so many bytes further on, round the end of the device.
    MisdirectedWrite {
        by: u64,
    },
    TornWrite,
    LostWrite,
    Delay(Duration),
    /// Reads begin when the rule is removed.
    HeldRead,
}

const FAULTS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    /// One block in so many.
    OneIn(u64),
    /// The first so many requests.
    Times(u64),
    /// This request and no other, counted from 0.
    Nth(u64),
    /// This request, counted from 0, and all after it: a device that dies.
    From(u64),
}

#[derive(Clone, Debug)]
pub struct Rule {
    pub range: Range<u64>,
    pub when: When,
    pub fault: Fault,
}

impl Rule {
    /// Strikes everywhere, always.
    pub fn everywhere(fault: Fault) -> Rule {
        Rule { range: 0..u64::MAX, when: When::Always, fault }
    }

    /// Strikes every request that touches the range.
    pub fn at(range: Range<u64>, fault: Fault) -> Rule {
        Rule { range, when: When::Always, fault }
    }
}

/// Names a rule of one device, for removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

/// How many requests were struck, by fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    pub read_errors: u64,
    pub write_errors: u64,
    pub flush_errors: u64,
    pub rotten_reads: u64,
    pub misdirected_reads: u64,
    pub misdirected_writes: u64,
    pub torn_writes: u64,
    pub lost_writes: u64,
    pub delays: u64,
    pub held_reads: u64,
}

#[derive(Debug, Default)]
struct Rules {
    next_id: u64,
    rules: Vec<Armed>,
}

/// A rule in force.
#[derive(Debug)]
struct Armed {
    id: u64,
    rule: Rule,
    /// Requests that it could have struck.
    seen: AtomicU64,
}

/// A rule that strikes the request at hand.
struct Strike {
    id: u64,
    fault: Fault,
    /// The first block of the request that it strikes.
    first: u64,
    blocks: Range<u64>,
    one_in: u64,
}

impl FaultyDevice {
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> FaultyDevice {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        FaultyDevice { inner, seed, rules: RwLock::default(), counts, change: Default::default() }
    }

    pub fn add(&self, rule: Rule) -> RuleId {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let id = rules.next_id;
        rules.next_id += 1;
        rules.rules.push(Armed { id, rule, seen: AtomicU64::new(0) });
        RuleId(id)
    }

    /// Whether there was such a rule.
    pub fn remove(&self, id: RuleId) -> bool {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let before = rules.rules.len();
        rules.rules.retain(|armed| armed.id != id.0);
        let was_there = rules.rules.len() != before;
        drop(rules);
        self.note_change();
        was_there
    }

    pub fn clear(&self) {
        self.rules.write().unwrap_or_else(PoisonError::into_inner).rules.clear();
        self.note_change();
    }

    /// Waits until so many reads have been held, since the device was made.
    pub fn wait_for_held_reads(&self, count: u64) {
        self.wait_until(|| self.fault_counts().held_reads >= count);
    }

    fn has_rule(&self, id: u64) -> bool {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.rules.iter().any(|armed| armed.id == id)
    }

    fn note_change(&self) {
        drop(self.change.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.change.1.notify_all();
    }

    fn wait_until(&self, is_so: impl Fn() -> bool) {
        let mut lock = self.change.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !is_so() {
            lock = self.change.1.wait(lock).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn fault_counts(&self) -> FaultCounts {
        let of = |fault| self.counts[index(fault)].load(Ordering::Relaxed);
        FaultCounts {
            read_errors: of(Fault::ReadError),
            write_errors: of(Fault::WriteError),
            flush_errors: of(Fault::FlushError),
            rotten_reads: of(Fault::Rot { bits: 0 }),
            misdirected_reads: of(Fault::MisdirectedRead { by: 0 }),
            misdirected_writes: of(Fault::MisdirectedWrite { by: 0 }),
            torn_writes: of(Fault::TornWrite),
            lost_writes: of(Fault::LostWrite),
            delays: of(Fault::Delay(Duration::ZERO)),
            held_reads: of(Fault::HeldRead),
        }
    }

    /// The rules that strike this request, in order. `concerns` picks the faults that can.
    fn strikes(&self, offset: u64, bytes: u64, concerns: impl Fn(Fault) -> bool) -> Vec<Strike> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let end = offset.saturating_add(bytes);
        let strike = |armed: &Armed| {
            let fault = armed.rule.fault;
            let is_flush = matches!(fault, Fault::FlushError);
            let (start, end) = if is_flush {
                (0, 1)
            } else {
                (armed.rule.range.start.max(offset), armed.rule.range.end.min(end))
            };
            if !concerns(fault) || start >= end {
                return None;
            }
            let blocks = start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
            let one_in = match armed.rule.when {
                When::OneIn(one_in) => one_in.max(1),
                When::Always | When::Times(_) | When::Nth(_) | When::From(_) => 1,
            };
            let first = blocks.clone().find(|block| self.picks(armed.id, *block, one_in))?;
            let number = armed.seen.fetch_add(1, Ordering::Relaxed);
            let is_due = match armed.rule.when {
                When::Always | When::OneIn(_) => true,
                When::Times(times) => number < times,
                When::Nth(nth) => number == nth,
                When::From(nth) => number >= nth,
            };
            is_due.then_some(Strike { id: armed.id, fault, first, blocks, one_in })
        };
        rules.rules.iter().filter_map(strike).collect()
    }

    fn picks(&self, id: u64, block: u64, one_in: u64) -> bool {
        one_in == 1 || mix(self.seed, id, block, 0).is_multiple_of(one_in)
    }

    fn count(&self, fault: Fault) {
        self.counts[index(fault)].fetch_add(1, Ordering::Relaxed);
    }

    /// Sleeps for the delays, waits where the request is held, and says whether an error strikes.
    fn delay_or_fail(&self, strikes: &[Strike]) -> Result<(), Errno> {
        for strike in strikes {
            if let Fault::Delay(time) = strike.fault {
                self.count(strike.fault);
                std::thread::sleep(time);
            } else if strike.fault == Fault::HeldRead {
                self.count(strike.fault);
                self.note_change();
                self.wait_until(|| !self.has_rule(strike.id));
            }
        }
        let is_error =
            |fault| matches!(fault, Fault::ReadError | Fault::WriteError | Fault::FlushError);
        match strikes.iter().find(|strike| is_error(strike.fault)) {
            Some(strike) => {
                self.count(strike.fault);
                Err(Errno::IO)
            }
            None => Ok(()),
        }
    }

    /// The parts of `memory` (which lies at `offset`) that the rule strikes.
    fn struck_parts<'a>(
        &'a self,
        strike: &'a Strike,
        offset: u64,
        len: usize,
    ) -> impl Iterator<Item = (u64, Range<usize>)> + 'a {
        let picked = |block: &u64| self.picks(strike.id, *block, strike.one_in);
        strike.blocks.clone().filter(picked).map(move |block| {
            let start = (block * BLOCK_BYTES).saturating_sub(offset);
            let end = ((block + 1) * BLOCK_BYTES - offset).min(len as u64);
            let of = |at: u64| usize::try_from(at).expect("inside the memory");
            (block, of(start)..of(end))
        })
    }

    fn damage(&self, strike: &Strike, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        for (block, part) in self.struck_parts(strike, offset, memory.len()) {
            match strike.fault {
                Fault::Rot { bits } => self.flip(strike.id, block, bits, offset, memory, &part),
                Fault::MisdirectedRead { by } => {
                    let at = offset + part.start as u64;
                    let from = self.elsewhere(at, by, part.len());
                    self.inner.read_at(from, &mut memory[part])?;
                }
                Fault::ReadError
                | Fault::WriteError
                | Fault::FlushError
                | Fault::MisdirectedWrite { .. }
                | Fault::TornWrite
                | Fault::LostWrite
                | Fault::HeldRead
                | Fault::Delay(_) => {}
            }
        }
        Ok(())
    }

    /// Flips the block's rotten bits, as far as they are part of the request.
    fn flip(
        &self,
        id: u64,
        block: u64,
        bits: u32,
        offset: u64,
        memory: &mut [u8],
        part: &Range<usize>,
    ) {
        for bit in 0..u64::from(bits) {
            let place = mix(self.seed, id, block, bit + 1) % (BLOCK_BYTES * 8);
            let at = (block * BLOCK_BYTES + place / 8).checked_sub(offset);
            let at = at.and_then(|at| usize::try_from(at).ok()).filter(|at| part.contains(at));
            if let Some(byte) = at.and_then(|at| memory.get_mut(at)) {
                *byte ^= 1 << (place % 8);
            }
        }
    }

    fn elsewhere(&self, offset: u64, by: u64, len: usize) -> u64 {
        let places = self.inner.bytes().saturating_sub(len as u64) + 1;
        offset.wrapping_add(by) % places
    }

    /// How many of the bytes before `first` struck byte survive a tear.
    fn tear(&self, strike: &Strike, len: usize) -> usize {
        let sectors = len.div_ceil(TEAR_BYTES).max(1);
        let keep = mix(self.seed, strike.id, strike.first, 0x7ea5) % sectors as u64;
        usize::try_from(keep).expect("below the length") * TEAR_BYTES
    }
}

impl Device for FaultyDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn bytes_now(&self) -> u64 {
        self.inner.bytes_now()
    }

    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }

    fn alignment(&self) -> Alignment {
        self.inner.alignment()
    }

    fn write_cache(&self) -> WriteCache {
        self.inner.write_cache()
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        check_range(self, offset, memory.len() as u64)?;
        let strikes = self.strikes(offset, memory.len() as u64, |fault| {
            matches!(fault, Fault::ReadError | Fault::Rot { .. } | Fault::Delay(_))
                || matches!(fault, Fault::MisdirectedRead { .. } | Fault::HeldRead)
        });
        if let Err(cause) = self.delay_or_fail(&strikes) {
            self.counters().count_read(memory.len());
            return Err(DeviceError::read(self, offset, memory.len() as u64, cause));
        }
        self.inner.read_at(offset, memory)?;
        for strike in &strikes {
            if matches!(strike.fault, Fault::Rot { .. } | Fault::MisdirectedRead { .. }) {
                self.count(strike.fault);
                self.damage(strike, offset, memory)?;
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        check_writable(self)?;
        check_range(self, offset, memory.len() as u64)?;
        let strikes = self.strikes(offset, memory.len() as u64, |fault| {
            matches!(fault, Fault::WriteError | Fault::TornWrite | Fault::LostWrite)
                || matches!(fault, Fault::MisdirectedWrite { .. } | Fault::Delay(_))
        });
        if let Err(cause) = self.delay_or_fail(&strikes) {
            self.counters().count_write(memory.len());
            return Err(DeviceError::write(self, offset, memory.len() as u64, cause));
        }
        let damage = strikes.iter().find(|strike| !matches!(strike.fault, Fault::Delay(_)));
        let Some(strike) = damage else { return self.inner.write_at(offset, memory) };
        self.count(strike.fault);
        match strike.fault {
            Fault::MisdirectedWrite { by } => {
                self.inner.write_at(self.elsewhere(offset, by, memory.len()), memory)
            }
            Fault::TornWrite => {
                self.inner.write_at(offset, &memory[..self.tear(strike, memory.len())])
            }
            Fault::LostWrite
            | Fault::ReadError
            | Fault::WriteError
            | Fault::FlushError
            | Fault::Rot { .. }
            | Fault::MisdirectedRead { .. }
            | Fault::HeldRead
            | Fault::Delay(_) => {
                self.counters().count_write(memory.len());
                Ok(())
            }
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let strikes = self.strikes(0, 1, |fault| matches!(fault, Fault::FlushError));
        if let Err(cause) = self.delay_or_fail(&strikes) {
            self.counters().count_flush();
            return Err(DeviceError::flush(self, cause));
        }
        self.inner.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
}

fn index(fault: Fault) -> usize {
    match fault {
        Fault::ReadError => 0,
        Fault::WriteError => 1,
        Fault::FlushError => 2,
        Fault::Rot { .. } => 3,
        Fault::MisdirectedRead { .. } => 4,
        Fault::MisdirectedWrite { .. } => 5,
        Fault::TornWrite => 6,
        Fault::LostWrite => 7,
        Fault::Delay(_) => 8,
        Fault::HeldRead => 9,
    }
}

/// A number that looks random and depends on nothing but its arguments (splitmix64's finish).
fn mix(seed: u64, id: u64, block: u64, salt: u64) -> u64 {
    let mut state = seed;
    for word in [id, block, salt] {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(word);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    state
}

#[cfg(test)]
mod tests;
