//! Targets that open and walk whole volumes: a seed with changed bytes.
//!
//! ```text
//! input = seed 1 | change 9 | change 9 | ...
//! change = kind 1 | which block or page 2 | where in it 2 | value 4
//! ```
//!
//! In crafted volumes the checksums are recomputed, so that changes reach the checks behind them. A
//! walk may return any contents, but must end. In rotten volumes the checksums are not recomputed,
//! and a walk must return the contents of the seed, or errors.

use crate::seed::{PAGE_BYTES, PatchedDevice, SEEDS, SUPER_OFFSET, Seed};
use crate::walk::{Results, walk};
use butternut::{Filesystem, MountOptions};
use butternut_check::{CheckOptions, check};
use butternut_device::Device;
use std::sync::{Arc, LazyLock};

/// Maximum number of device reads of one walk; the largest seed needs a tenth.
pub(crate) const READS_MAX: u64 = 50_000;

/// Maximum number of changes of one input.
const CHANGES_MAX: usize = 32;

/// The file of the seeds without checksums, whose corruption cannot be detected.
const UNCHECKED: &[u8] = b"/nodatacow/\0bytes";

/// Result of a walk, for tests that count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Refused,
    Walked,
}

struct Change {
    kind: u8,
    which: usize,
    place: usize,
    value: u32,
}

fn changes(input: &[u8]) -> impl Iterator<Item = Change> + '_ {
    let (chunks, _) = input.as_chunks::<9>();
    chunks.iter().take(CHANGES_MAX).map(|c| Change {
        kind: c[0],
        which: usize::from(u16::from_le_bytes([c[1], c[2]])),
        place: usize::from(u16::from_le_bytes([c[3], c[4]])),
        value: u32::from_le_bytes([c[5], c[6], c[7], c[8]]),
    })
}

impl Change {
    /// Overwrites some bytes with the value, or with a number that is often a limit.
    fn apply(&self, bytes: &mut [u8]) {
        let place = self.place % bytes.len();
        let limits = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32, 4096, 4095, 256, 255];
        let limit = limits[usize::try_from(self.value).unwrap_or(0) % limits.len()];
        let (value, len) = match self.kind % 6 {
            0 => (u64::from(self.value), 1),
            1 => (u64::from(self.value), 2),
            2 => (u64::from(self.value), 4),
            3 => (limit, 8),
            4 => (limit, 4),
            _ => (u64::from(bytes[place] ^ 1 << (self.value % 8)), 1),
        };
        let end = (place + len).min(bytes.len());
        bytes[place..end].copy_from_slice(&value.to_le_bytes()[..end - place]);
    }
}

fn open(device: PatchedDevice) -> Option<Results> {
    let device: Arc<dyn Device> = Arc::new(device);
    let options = MountOptions::default().node_cache_bytes(1 << 20).workers(1);
    let fs = Filesystem::open_devices(vec![device], &options).ok()?;
    Some(walk(&fs))
}

fn seed_of<'a, 'i>(
    seeds: &'a [Arc<Seed>],
    input: &'i [u8],
) -> Option<(usize, &'a Arc<Seed>, &'i [u8])> {
    let (first, rest) = input.split_first()?;
    let index = usize::from(*first) % seeds.len();
    Some((index, &seeds[index], rest))
}

/// Returns one of the seeds with the changes of the input and recomputed checksums.
pub(crate) fn craft_changes(seeds: &[Arc<Seed>], input: &[u8]) -> Option<PatchedDevice> {
    let (_, seed, input) = seed_of(seeds, input)?;
    let mut device = PatchedDevice::new(seed, READS_MAX);
    for change in changes(input) {
        let in_super = change.kind >= 0xe0;
        let (offset, len) = if in_super {
            (SUPER_OFFSET, PAGE_BYTES)
        } else {
            (seed.blocks[change.which % seed.blocks.len()], seed.node_bytes)
        };
        let mut bytes = device.bytes_at(offset, len);
        change.apply(&mut bytes[32..]);
        let digest = seed.csum.compute(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        device.change(offset, &bytes);
    }
    Some(device)
}

/// Applies the changes, recomputes the checksums, and walks the volume.
pub fn crafted_ending(input: &[u8]) -> Ending {
    let opened = craft_changes(&SEEDS, input).and_then(open);
    if opened.is_some() { Ending::Walked } else { Ending::Refused }
}

/// Applies the changes, recomputes the checksums, and runs the checker, which may find anything.
pub(crate) fn checked(input: &[u8]) {
    let Some(device) = craft_changes(&SEEDS, input) else { return };
    let device: Arc<dyn Device> = Arc::new(device);
    let options = CheckOptions { check_data_csum: true, ..CheckOptions::default() };
    check(vec![device], &options).map(drop).unwrap_or_default();
}

pub(crate) fn crafted(input: &[u8]) {
    crafted_ending(input);
}

static TRUTH: LazyLock<Vec<Results>> = LazyLock::new(|| {
    let whole = |seed| open(PatchedDevice::new(seed, READS_MAX)).expect("a seed opens");
    SEEDS.iter().map(whole).collect()
});

/// Applies the changes only. The walk must return the contents of the seed, or errors.
pub(crate) fn rotten(input: &[u8]) {
    let Some((index, seed, input)) = seed_of(&SEEDS, input) else { return };
    let mut device = PatchedDevice::new(seed, READS_MAX);
    for change in changes(input) {
        let places = if change.kind & 0x80 == 0 { &seed.data_pages } else { &seed.blocks };
        let offset = places[change.which % places.len()];
        let mut bytes = device.bytes_at(offset, PAGE_BYTES);
        change.apply(&mut bytes);
        device.change(offset, &bytes);
    }
    let Some(results) = open(device) else { return };
    let truth = &TRUTH[index];
    for (name, result) in results.iter().filter(|(name, _)| !name.starts_with(UNCHECKED)) {
        let name_shown = String::from_utf8_lossy(name);
        if let Some(result) = result {
            let want = truth.get(name).unwrap_or_else(|| panic!("{name_shown}: was not there"));
            assert_eq!(Some(*result), *want, "{name_shown}: differs from the seed");
        }
    }
}
