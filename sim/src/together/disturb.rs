//! The thread beside the others: it resizes a file of its own, syncs, commits and sets tunables.

use super::any_lane;
use crate::content::{Content, pattern};
use crate::lane::{make, read_whole};
use crate::operation::Lane;
use crate::random::Random;
use anyhow::{Result, ensure};
use butternut::{DirectStability, Filesystem, Privileges, Tunables, UncachedFlush};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BYTES_MAX: u64 = 300_000;
const PAUSE: Duration = Duration::from_micros(300);

pub(super) fn run(filesystem: &Filesystem, seed: u64, is_over: &AtomicBool) -> Result<u64> {
    let mut random = Random::new(seed);
    let file = make(filesystem, "other", 0)?;
    let mut model = Content::default();
    let mut count = 0;
    while !is_over.load(Ordering::Acquire) {
        count += 1;
        let (at, bytes) = (random.below(BYTES_MAX), 1 + random.index(40_000));
        match random.below(12) {
            0..=3 => {
                let content = pattern(1 + random.below(1000), bytes);
                let written = match any_lane(&mut random) {
                    Lane::Cached => file.write_at(at, &content),
                    Lane::Direct => file.write_direct(at, &content, Privileges::Keep),
                    Lane::Uncached => file.write_uncached(at, &content, Privileges::Keep),
                };
                ensure!(written? == bytes, "a write was short");
                model.write(at, &content);
            }
            4..=6 => {
                file.truncate(at)?;
                model.resize(at);
            }
            7 => file.sync_all()?,
            8 => filesystem.sync()?,
            9 => filesystem.set_tunables(any_tunables(&mut random)),
            _ => {
                let size = usize::try_from(model.size())?;
                ensure!(file.len() == model.size(), "the size is {}", file.len());
                let have = read_whole(&file, 0, size, any_lane(&mut random))?;
                ensure!(have == model.read(0, model.size()), "its content differs");
            }
        }
        std::thread::sleep(PAUSE);
    }
    filesystem.set_tunables(Tunables::default());
    Ok(count)
}

/// Returns random tunables. Those that trust borrowed memory stay off: memory that changes while it
/// is written would have wrong checksums.
fn any_tunables(random: &mut Random) -> Tunables {
    let stabilities = [DirectStability::Bounce, DirectStability::Buffered];
    let flushes = [UncachedFlush::Device, UncachedFlush::Inode, UncachedFlush::Inline];
    Tunables::default()
        .nosec(!random.one_in(4))
        .simple_read(!random.one_in(4))
        .direct_stability(*random.pick(&stabilities))
        .latency(!random.one_in(4))
        .uncached_flush(*random.pick(&flushes))
}
