//! The cost of an allocation, in nanoseconds a call.
//!
//! Goal: an allocation costs far less than the write that it is for, also in a group of 200,000
//! free runs. Non-goal: comparing machines.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its results and panics on errors"
)]

use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::{Generation, Logical};
use butternut_space::{AllocationRequest, Class, Cluster, Group, Space, SpaceOptions};
use std::ops::Range;
use std::time::Instant;

const GIB: u64 = 1 << 30;
const SECTOR: u64 = 4096;
const CALLS: u64 = 200_000;

fn main() {
    let whole = || vec![(GIB, GIB + 4 * GIB)];
    let fragments = || (0..CALLS).map(|nth| (GIB + 2 * nth * SECTOR, GIB + (2 * nth + 1) * SECTOR));
    for (name, free) in [("one run", whole()), ("200k fragments", fragments().collect())] {
        let space = space(free);
        let mut ranges = Vec::new();
        let want = |nth: u64| AllocationRequest::data(SECTOR, SECTOR, Cluster(nth % 4));
        report(name, "allocate", || {
            ranges.extend((0..CALLS).map(|nth| space.allocate(Class::Data, want(nth)).unwrap()));
        });
        shuffle(&mut ranges);
        report(name, "release", || {
            for range in &ranges {
                space.release(range.clone()).unwrap();
            }
        });
        report(name, "reservation", || {
            for _ in 0..CALLS {
                drop(space.reserve(Class::Data, SECTOR).unwrap());
            }
        });
        ranges.clear();
        ranges.extend((0..CALLS).map(|nth| space.allocate(Class::Data, want(nth)).unwrap()));
        shuffle(&mut ranges);
        report(name, "pin", || {
            for range in &ranges {
                space.pin(range.clone(), Generation(1)).unwrap();
            }
        });
        report(name, "unpin", || {
            space.unpin(Generation(1));
        });
    }
}

fn space(free: Vec<(u64, u64)>) -> Space {
    let space = Space::new(SpaceOptions { node_bytes: 16384, is_mixed: false });
    let bytes = 4 * GIB;
    let free: Vec<Range<u64>> = free.into_iter().map(|(start, end)| start..end).collect();
    let used = bytes - free.iter().map(|range| range.end - range.start).sum::<u64>();
    let (start, flags, excluded) = (Logical(GIB), BlockGroupFlags::DATA, Vec::new());
    let group = Group { start, bytes, flags, used, free, excluded, is_read_only: false };
    space.add_group(&group).unwrap();
    space
}

fn report(name: &str, what: &str, run: impl FnOnce()) {
    let start = Instant::now();
    run();
    println!("{name}: {what} {:.0} ns", start.elapsed().as_nanos() as f64 / CALLS as f64);
}

fn shuffle(ranges: &mut [Range<u64>]) {
    let mut state = 88_172_645_463_325_252_u64;
    for index in (1..ranges.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ranges.swap(index, usize::try_from(state % (index as u64 + 1)).unwrap());
    }
}
