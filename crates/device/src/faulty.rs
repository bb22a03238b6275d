//! [`FaultyDevice`]: a test device that injects faults, determined by its rules and its seed.
//!
//! # The faults
//!
//! | fault | the caller sees | the medium holds |
//! |---|---|---|
//! | `ReadError` | EIO | the old contents |
//! | `WriteError` | EIO | the old contents |
//! | `FlushError` | EIO | the old contents; nothing is flushed |
//! | `Rot` | success, some bits flipped | the old contents |
//! | `MisdirectedRead` | success, bytes from elsewhere | the old contents |
//! | `MisdirectedWrite` | success | the new bytes, elsewhere |
//! | `TornWrite` | success | only the first sectors of the write |
//! | `LostWrite` | success | the old contents |
//! | `Delay` | success, later | as requested |
//! | `HeldRead` | what a read sees after the rule is removed | as requested |
//! | `HeldWrite` | success or an error, after the rule is removed | as requested |
//! | `ClaimError` | EBUSY from [`Device::claim`] | the old contents |
//!
//! # When a rule applies
//!
//! Ranges are divided into blocks of 4096 bytes, counted from the device's first byte. A rule
//! applies to a request if it selects one of the blocks that are both in the rule's range and in
//! the request. [`When::Always`] selects every block; [`When::OneIn`] selects those that the seed
//! picks, the same ones every time, like bad sectors. The other three select requests, counted
//! among those that touch the range and that the fault concerns: [`When::Times`] the first ones
//! only, as a transient fault does; [`When::Nth`] one request, so that a test can fail each one in
//! turn; [`When::From`] that one and all after it. Which blocks, which bits and where a write tears
//! are functions of the seed, the rule's number and the block: they depend neither on time nor on
//! threads nor on order.
//!
//! Rules may be added and removed while requests run. They apply in the order in which they were
//! added; errors come before damage, and of several rules that damage a write only the first
//! applies. Flush and claim errors ignore the range. Discards have no faults.

use crate::counters::Counters;
use crate::device::Device;
use crate::error::{DeviceError, check_range, check_writable};
use butternut_sys::errno::Errno;
use butternut_sys::file::{Alignment, WriteCache};
use butternut_sys::lock::{Condvar, Mutex, RwLock, rank};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The unit in which rules select, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// The unit in which writes tear, in bytes.
const TEAR_BYTES: usize = 512;

/// A device that injects faults.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    seed: u64,
    rules: RwLock<Rules, rank::FaultRules>,
    counts: [AtomicU64; FAULTS],
    is_held: AtomicBool,
    /// Notified when a rule is removed, or a request is held.
    changed: (Mutex<(), rank::FaultChange>, Condvar),
}

/// A fault to inject; see the table of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    ReadError,
    WriteError,
    FlushError,
    /// Flips this many bits in each selected block.
    Rot {
        bits: u32,
    },
    /// Reads blocks from `by` bytes further on, modulo the size of the device.
    MisdirectedRead {
        by: u64,
    },
    /// Writes blocks `by` bytes further on, modulo the size of the device.
    MisdirectedWrite {
        by: u64,
    },
    TornWrite,
    LostWrite,
    Delay(Duration),
    /// Blocks reads until the rule is removed.
    HeldRead,
    /// Blocks writes until the rule is removed.
    HeldWrite,
    ClaimError,
}

const FAULTS: usize = 12;

/// Which blocks or requests a rule selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    /// One block in this many, on average.
    OneIn(u64),
    /// This many requests, the first ones.
    Times(u64),
    /// Only this request, counted from 0.
    Nth(u64),
    /// This request, counted from 0, and all after it, like a device that died.
    From(u64),
}

/// A fault, and what it applies to.
#[derive(Clone, Debug)]
pub struct Rule {
    pub range: Range<u64>,
    pub when: When,
    pub fault: Fault,
}

impl Rule {
    /// Makes a rule for every request.
    pub fn everywhere(fault: Fault) -> Rule {
        Rule { range: 0..u64::MAX, when: When::Always, fault }
    }

    /// Makes a rule for every request that touches the range.
    pub fn at(range: Range<u64>, fault: Fault) -> Rule {
        Rule { range, when: When::Always, fault }
    }
}

/// Identifies a rule of one device, for its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

/// The number of requests to which each fault was applied.
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
    pub held_writes: u64,
    pub claim_errors: u64,
}

#[derive(Debug, Default)]
struct Rules {
    next_id: u64,
    rules: Vec<ActiveRule>,
}

/// A rule that has been added.
#[derive(Debug)]
struct ActiveRule {
    id: u64,
    rule: Rule,
    /// Number of requests that the rule could have applied to.
    seen: AtomicU64,
}

/// A rule that applies to the current request.
struct MatchedRule {
    id: u64,
    fault: Fault,
    /// The first block of the request that the rule selects.
    first: u64,
    blocks: Range<u64>,
    one_in: u64,
}

impl FaultyDevice {
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> FaultyDevice {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        let (rules, changed) = (RwLock::default(), Default::default());
        FaultyDevice { inner, seed, rules, counts, is_held: AtomicBool::new(false), changed }
    }

    /// Makes this a device that the process has claimed at its open.
    pub fn hold(&self) {
        self.is_held.store(true, Ordering::Relaxed);
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut rules = self.rules.write();
        let id = rules.next_id;
        rules.next_id += 1;
        rules.rules.push(ActiveRule { id, rule, seen: AtomicU64::new(0) });
        RuleId(id)
    }

    /// Removes a rule. Returns whether it existed.
    pub fn remove(&self, id: RuleId) -> bool {
        let mut rules = self.rules.write();
        let before = rules.rules.len();
        rules.rules.retain(|active| active.id != id.0);
        let was_there = rules.rules.len() != before;
        drop(rules);
        self.notify_change();
        was_there
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.rules.write().rules.clear();
        self.notify_change();
    }

    /// Waits until `count` reads have been held since the device was created.
    pub fn wait_for_held_reads(&self, count: u64) {
        self.wait_until(|| self.fault_counts().held_reads >= count);
    }

    /// Waits until `count` writes have been held since the device was created.
    pub fn wait_for_held_writes(&self, count: u64) {
        self.wait_until(|| self.fault_counts().held_writes >= count);
    }

    fn has_rule(&self, id: u64) -> bool {
        let rules = self.rules.read();
        rules.rules.iter().any(|active| active.id == id)
    }

    fn notify_change(&self) {
        drop(self.changed.0.lock());
        self.changed.1.notify_all();
    }

    fn wait_until(&self, is_so: impl Fn() -> bool) {
        let mut lock = self.changed.0.lock();
        while !is_so() {
            lock = self.changed.1.wait(lock);
        }
    }

    /// Returns how often each fault was applied.
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
            held_writes: of(Fault::HeldWrite),
            claim_errors: of(Fault::ClaimError),
        }
    }

    /// Returns the rules that apply to this request, in order. `concerns` selects the relevant
    /// faults.
    fn match_rules(
        &self,
        offset: u64,
        bytes: u64,
        concerns: impl Fn(Fault) -> bool,
    ) -> Vec<MatchedRule> {
        let rules = self.rules.read();
        let end = offset.saturating_add(bytes);
        let match_rule = |active: &ActiveRule| {
            let fault = active.rule.fault;
            let has_range = !matches!(fault, Fault::FlushError | Fault::ClaimError);
            let (start, end) = if has_range {
                (active.rule.range.start.max(offset), active.rule.range.end.min(end))
            } else {
                (0, 1)
            };
            if !concerns(fault) || start >= end {
                return None;
            }
            let blocks = start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
            let one_in = match active.rule.when {
                When::OneIn(one_in) => one_in.max(1),
                When::Always | When::Times(_) | When::Nth(_) | When::From(_) => 1,
            };
            let first = blocks.clone().find(|block| self.selects(active.id, *block, one_in))?;
            let number = active.seen.fetch_add(1, Ordering::Relaxed);
            let is_due = match active.rule.when {
                When::Always | When::OneIn(_) => true,
                When::Times(times) => number < times,
                When::Nth(nth) => number == nth,
                When::From(nth) => number >= nth,
            };
            is_due.then_some(MatchedRule { id: active.id, fault, first, blocks, one_in })
        };
        rules.rules.iter().filter_map(match_rule).collect()
    }

    fn selects(&self, id: u64, block: u64, one_in: u64) -> bool {
        one_in == 1 || mix(self.seed, id, block, 0).is_multiple_of(one_in)
    }

    fn count(&self, fault: Fault) {
        self.counts[index(fault)].fetch_add(1, Ordering::Relaxed);
    }

    /// Sleeps for delays, blocks held requests, and returns an error if a rule requires one.
    fn delay_or_fail(&self, matched: &[MatchedRule]) -> Result<(), Errno> {
        for rule in matched {
            if let Fault::Delay(time) = rule.fault {
                self.count(rule.fault);
                std::thread::sleep(time);
            } else if matches!(rule.fault, Fault::HeldRead | Fault::HeldWrite) {
                self.count(rule.fault);
                self.notify_change();
                self.wait_until(|| !self.has_rule(rule.id));
            }
        }
        let is_error = |fault| {
            matches!(fault, Fault::ReadError | Fault::WriteError | Fault::FlushError)
                || fault == Fault::ClaimError
        };
        match matched.iter().find(|rule| is_error(rule.fault)) {
            Some(rule) => {
                self.count(rule.fault);
                Err(Errno::IO)
            }
            None => Ok(()),
        }
    }

    /// Returns the blocks that the rule selects, and their parts of memory that lies at `offset`.
    fn selected_parts<'a>(
        &'a self,
        rule: &'a MatchedRule,
        offset: u64,
        len: usize,
    ) -> impl Iterator<Item = (u64, Range<usize>)> + 'a {
        let picked = |block: &u64| self.selects(rule.id, *block, rule.one_in);
        rule.blocks.clone().filter(picked).map(move |block| {
            let start = (block * BLOCK_BYTES).saturating_sub(offset);
            let end = ((block + 1) * BLOCK_BYTES - offset).min(len as u64);
            let of = |at: u64| usize::try_from(at).expect("inside the memory");
            (block, of(start)..of(end))
        })
    }

    fn damage(
        &self,
        rule: &MatchedRule,
        offset: u64,
        memory: &mut [u8],
    ) -> Result<(), DeviceError> {
        for (block, part) in self.selected_parts(rule, offset, memory.len()) {
            match rule.fault {
                Fault::Rot { bits } => self.flip(rule.id, block, bits, offset, memory, &part),
                Fault::MisdirectedRead { by } => {
                    let at = offset + part.start as u64;
                    let from = self.misdirected_offset(at, by, part.len());
                    self.inner.read_at(from, &mut memory[part])?;
                }
                Fault::ReadError
                | Fault::WriteError
                | Fault::FlushError
                | Fault::MisdirectedWrite { .. }
                | Fault::TornWrite
                | Fault::LostWrite
                | Fault::HeldRead
                | Fault::HeldWrite
                | Fault::ClaimError
                | Fault::Delay(_) => {}
            }
        }
        Ok(())
    }

    /// Flips the selected bits of a block, as far as they are in the request.
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

    fn misdirected_offset(&self, offset: u64, by: u64, len: usize) -> u64 {
        let places = self.inner.bytes().saturating_sub(len as u64) + 1;
        offset.wrapping_add(by) % places
    }

    /// Returns the number of bytes of a torn write that reach the medium.
    fn tear(&self, rule: &MatchedRule, len: usize) -> usize {
        let sectors = len.div_ceil(TEAR_BYTES).max(1);
        let keep = mix(self.seed, rule.id, rule.first, 0x7ea5) % sectors as u64;
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
        let matched = self.match_rules(offset, memory.len() as u64, |fault| {
            matches!(fault, Fault::ReadError | Fault::Rot { .. } | Fault::Delay(_))
                || matches!(fault, Fault::MisdirectedRead { .. } | Fault::HeldRead)
        });
        if let Err(cause) = self.delay_or_fail(&matched) {
            self.counters().count_read(memory.len());
            return Err(DeviceError::read(self, offset, memory.len() as u64, cause));
        }
        self.inner.read_at(offset, memory)?;
        for rule in &matched {
            if matches!(rule.fault, Fault::Rot { .. } | Fault::MisdirectedRead { .. }) {
                self.count(rule.fault);
                self.damage(rule, offset, memory)?;
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        check_writable(self)?;
        check_range(self, offset, memory.len() as u64)?;
        let matched = self.match_rules(offset, memory.len() as u64, |fault| {
            matches!(fault, Fault::WriteError | Fault::TornWrite | Fault::LostWrite)
                || matches!(fault, Fault::MisdirectedWrite { .. })
                || matches!(fault, Fault::Delay(_) | Fault::HeldWrite)
        });
        if let Err(cause) = self.delay_or_fail(&matched) {
            self.counters().count_write(memory.len());
            return Err(DeviceError::write(self, offset, memory.len() as u64, cause));
        }
        let waits = |fault| matches!(fault, Fault::Delay(_) | Fault::HeldWrite);
        let damage = matched.iter().find(|rule| !waits(rule.fault));
        let Some(rule) = damage else { return self.inner.write_at(offset, memory) };
        self.count(rule.fault);
        match rule.fault {
            Fault::MisdirectedWrite { by } => {
                self.inner.write_at(self.misdirected_offset(offset, by, memory.len()), memory)
            }
            Fault::TornWrite => {
                self.inner.write_at(offset, &memory[..self.tear(rule, memory.len())])
            }
            Fault::LostWrite
            | Fault::ReadError
            | Fault::WriteError
            | Fault::FlushError
            | Fault::Rot { .. }
            | Fault::MisdirectedRead { .. }
            | Fault::HeldRead
            | Fault::HeldWrite
            | Fault::ClaimError
            | Fault::Delay(_) => {
                self.counters().count_write(memory.len());
                Ok(())
            }
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let matched = self.match_rules(0, 1, |fault| matches!(fault, Fault::FlushError));
        if let Err(cause) = self.delay_or_fail(&matched) {
            self.counters().count_flush();
            return Err(DeviceError::flush(self, cause));
        }
        self.inner.flush()
    }

    fn claim(&self, wait: Duration) -> Result<bool, DeviceError> {
        let matched = self.match_rules(0, 1, |fault| matches!(fault, Fault::ClaimError));
        if self.delay_or_fail(&matched).is_err() {
            return Err(DeviceError::Claim { device: self.name().into(), cause: Errno::BUSY });
        }
        Ok(self.inner.claim(wait)? && !self.is_held.load(Ordering::Relaxed))
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
        Fault::ClaimError => 10,
        Fault::HeldWrite => 11,
    }
}

/// Returns a pseudo-random number that depends only on its arguments (splitmix64's finaliser).
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
