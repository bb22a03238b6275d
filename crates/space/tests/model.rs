//! The allocator compared with an array of sectors: for every sequence of operations it allocates
//! free sectors only, and its totals are right.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::{Generation, Logical};
use butternut_space::{AllocationRequest, Class, Cluster, Group, Reservation, Space, SpaceOptions};
use proptest::prelude::*;
use std::ops::Range;

const SECTOR: u64 = 4096;
const NODE: u32 = 16384;
const GROUP_SECTORS: u64 = 1024;
const GROUPS: [(u64, BlockGroupFlags); 4] = [
    (16 << 20, BlockGroupFlags::METADATA),
    (20 << 20, BlockGroupFlags::DATA),
    // Not aligned to nodes.
    ((24 << 20) + SECTOR, BlockGroupFlags::METADATA),
    (40 << 20, BlockGroupFlags::DATA),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sector {
    Free,
    Allocated,
    Pinned(u64),
    Excluded,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate {
        metadata: bool,
        least: u64,
        most: u64,
        cluster: u64,
    },
    Node {
        cluster: u64,
    },
    Release {
        which: usize,
        from: u64,
        sectors: u64,
    },
    /// The range may have been allocated by another cluster.
    ReleaseToCluster {
        which: usize,
        from: u64,
        sectors: u64,
        cluster: u64,
    },
    ReleaseRecycled {
        metadata: bool,
    },
    Pin {
        which: usize,
        from: u64,
        sectors: u64,
        generation: u64,
    },
    Unpin {
        generation: u64,
        is_held: bool,
    },
    ReadOnly {
        group: usize,
        is_read_only: bool,
    },
    FreeRanges {
        group: usize,
    },
    AllocateExact {
        group: usize,
        from: u64,
        sectors: u64,
    },
    Trim {
        group: usize,
        least: u64,
        batch: u64,
    },
    Reserve {
        metadata: bool,
        sectors: u64,
        is_deletion: bool,
    },
    Drop {
        which: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (any::<bool>(), 1_u64..40, 1_u64..300, 0_u64..5).prop_map(
            |(metadata, least, most, cluster)| Op::Allocate { metadata, least, most, cluster }
        ),
        8 => (0_u64..5).prop_map(|cluster| Op::Node { cluster }),
        6 => (any::<usize>(), 0_u64..64, 1_u64..64).prop_map(
            |(which, from, sectors)| Op::Release { which, from, sectors }
        ),
        4 => (any::<usize>(), 0_u64..64, 1_u64..8, 0_u64..5).prop_map(
            |(which, from, sectors, cluster)| Op::ReleaseToCluster { which, from, sectors, cluster }
        ),
        1 => any::<bool>().prop_map(|metadata| Op::ReleaseRecycled { metadata }),
        6 => (any::<usize>(), 0_u64..64, 1_u64..64, 0_u64..4).prop_map(
            |(which, from, sectors, generation)| Op::Pin { which, from, sectors, generation }
        ),
        2 => (0_u64..4, any::<bool>()).prop_map(
            |(generation, is_held)| Op::Unpin { generation, is_held }
        ),
        1 => (0_usize..4, any::<bool>()).prop_map(
            |(group, is_read_only)| Op::ReadOnly { group, is_read_only }
        ),
        1 => (0_usize..4).prop_map(|group| Op::FreeRanges { group }),
        2 => (0_usize..4, 0_u64..1024, 1_u64..50).prop_map(
            |(group, from, sectors)| Op::AllocateExact { group, from, sectors }
        ),
        1 => (0_usize..4, 1_u64..8, 1_u64..600).prop_map(
            |(group, least, batch)| Op::Trim { group, least, batch }
        ),
        3 => (any::<bool>(), 0_u64..900, any::<bool>()).prop_map(
            |(metadata, sectors, is_deletion)| Op::Reserve { metadata, sectors, is_deletion }
        ),
        2 => any::<usize>().prop_map(|which| Op::Drop { which }),
    ]
}

struct Model {
    space: Space,
    is_mixed: bool,
    sectors: Vec<Vec<Sector>>,
    read_only: [bool; 4],
    held: Vec<Range<u64>>,
    reservations: Vec<(bool, Reservation)>,
}

const RESERVE: u64 = 100 * SECTOR;

impl Model {
    fn new(is_mixed: bool, holes: &[(usize, u64, u64)]) -> Self {
        let space = Space::new(SpaceOptions { node_bytes: NODE, is_mixed });
        let mut sectors = vec![vec![Sector::Free; GROUP_SECTORS as usize]; GROUPS.len()];
        for (group, from, count) in holes {
            let to = (from + count).min(GROUP_SECTORS);
            sectors[*group][*from as usize..to as usize].fill(Sector::Allocated);
        }
        // Like superblock copies.
        sectors[1][100..116].fill(Sector::Excluded);
        let mut held = Vec::new();
        for (index, (start, flags)) in GROUPS.into_iter().enumerate() {
            let flags = if is_mixed { BlockGroupFlags(5) } else { flags };
            let allocated = runs(start, &sectors[index], |sector| sector == Sector::Allocated);
            let used = allocated.iter().map(|range| range.end - range.start).sum();
            let (start, bytes) = (Logical(start), GROUP_SECTORS * SECTOR);
            let excluded = runs(start.0, &sectors[index], |sector| sector == Sector::Excluded);
            // The free space tree counts excluded sectors as free.
            let is_free = |sector| matches!(sector, Sector::Free | Sector::Excluded);
            let free = runs(start.0, &sectors[index], is_free);
            let group = Group { start, bytes, flags, used, free, excluded, is_read_only: false };
            space.add_group(&group).unwrap();
            held.extend(allocated);
        }
        space.set_global_reserve(Class::Metadata, RESERVE, 0);
        let read_only = [false; 4];
        Self { space, is_mixed, sectors, read_only, held, reservations: Vec::new() }
    }

    fn group_of(at: u64) -> usize {
        GROUPS.iter().position(|(start, _)| (*start..start + (4 << 20)).contains(&at)).unwrap()
    }

    fn set(&mut self, range: &Range<u64>, from: &[Sector], to: Sector) {
        let group = Self::group_of(range.start);
        let base = GROUPS[group].0;
        for at in (range.start..range.end).step_by(SECTOR as usize) {
            let sector = &mut self.sectors[group][((at - base) / SECTOR) as usize];
            assert!(from.contains(sector), "{at}: {sector:?}, want one of {from:?}");
            *sector = to;
        }
    }

    fn serves(&self, group: usize, metadata: bool) -> bool {
        self.is_mixed || (GROUPS[group].1 == BlockGroupFlags::METADATA) == metadata
    }

    fn allocate(&mut self, metadata: bool, request: AllocationRequest) {
        let class = class_of(metadata);
        let least = request.bytes_min.next_multiple_of(request.align);
        let Some(range) = self.space.allocate(class, request) else {
            for group in (0..GROUPS.len()).filter(|group| self.serves(*group, metadata)) {
                let base = GROUPS[group].0;
                let free = runs(base, &self.sectors[group], |sector| sector == Sector::Free);
                let fits = free
                    .iter()
                    .any(|range| range.start.next_multiple_of(request.align) + least <= range.end);
                assert!(!fits || self.read_only[group], "group {group} has space for {request:?}");
            }
            return;
        };
        let group = Self::group_of(range.start);
        assert!(self.serves(group, metadata) && !self.read_only[group]);
        let bytes = range.end - range.start;
        assert!(bytes >= least && bytes <= request.bytes_max.max(least), "{bytes} for {request:?}");
        assert!(range.start.is_multiple_of(request.align) && bytes.is_multiple_of(request.align));
        assert_eq!(Self::group_of(range.end - 1), group);
        self.set(&range, &[Sector::Free], Sector::Allocated);
        self.held.push(range);
    }

    fn allocate_node(&mut self, cluster: u64) {
        self.allocate(true, AllocationRequest::node(NODE, Cluster(cluster)));
    }

    /// Cuts a part out of an allocated range.
    fn part(&mut self, which: usize, from: u64, sectors: u64) -> Option<Range<u64>> {
        let index = which.checked_rem(self.held.len())?;
        let whole = self.held.swap_remove(index);
        let count = (whole.end - whole.start) / SECTOR;
        let from = from % count;
        let start = whole.start + from * SECTOR;
        let end = (start + sectors * SECTOR).min(whole.end);
        let rest = [whole.start..start, end..whole.end];
        self.held.extend(rest.into_iter().filter(|range| range.start < range.end));
        Some(start..end)
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Allocate { metadata, least, most, cluster } => {
                let request =
                    AllocationRequest::data(least * SECTOR, most * SECTOR, Cluster(cluster));
                self.allocate(metadata, request);
            }
            Op::Node { cluster } => self.allocate_node(cluster),
            Op::Release { which, from, sectors } => {
                let Some(range) = self.part(which, from, sectors) else { return };
                self.space.release(range.clone()).unwrap();
                self.set(&range, &[Sector::Allocated], Sector::Free);
                self.space.release(range).unwrap_err();
            }
            Op::ReleaseToCluster { which, from, sectors, cluster } => {
                let Some(range) = self.part(which, from, sectors) else { return };
                self.space.release_to_cluster(&range, Cluster(cluster)).unwrap();
                self.set(&range, &[Sector::Allocated], Sector::Free);
                self.space.release_to_cluster(&range, Cluster(cluster)).unwrap_err();
            }
            Op::ReleaseRecycled { metadata } => self.space.release_recycled(class_of(metadata)),
            Op::Pin { which, from, sectors, generation } => {
                let Some(range) = self.part(which, from, sectors) else { return };
                self.space.pin(range.clone(), Generation(generation)).unwrap();
                self.set(&range, &[Sector::Allocated], Sector::Pinned(generation));
                self.space.pin(range.clone(), Generation(9)).unwrap_err();
                self.space.release(range).unwrap_err();
            }
            Op::Unpin { generation, is_held } => self.unpin(generation, is_held),
            Op::ReadOnly { group, is_read_only } => {
                assert!(self.space.set_read_only(Logical(GROUPS[group].0), is_read_only));
                self.read_only[group] = is_read_only;
            }
            Op::FreeRanges { group } => {
                let base = GROUPS[group].0;
                let free = runs(base, &self.sectors[group], |sector| sector == Sector::Free);
                assert_eq!(self.space.free_ranges(Logical(base)), free);
            }
            Op::AllocateExact { group, from, sectors } => {
                let to = (from + sectors).min(GROUP_SECTORS);
                let (low, high) = (usize::try_from(from).unwrap(), usize::try_from(to).unwrap());
                let is_free = self.sectors[group][low..high].iter().all(|at| *at == Sector::Free);
                let base = GROUPS[group].0;
                let range = base + from * SECTOR..base + to * SECTOR;
                let class = Class::of(GROUPS[group].1);
                assert_eq!(self.space.allocate_exact(class, &range).unwrap(), is_free);
                if is_free {
                    self.set(&range, &[Sector::Free], Sector::Allocated);
                    self.held.push(range);
                }
            }
            Op::Trim { group, least, batch } => {
                let base = GROUPS[group].0;
                let batch = batch * SECTOR;
                let runs = self.space.allocate_for_trim(Logical(base), base, least * SECTOR, batch);
                let bytes: u64 = runs.iter().map(|range| range.end - range.start).sum();
                assert!(bytes <= batch);
                for range in runs {
                    self.set(&range, &[Sector::Free], Sector::Allocated);
                    self.held.push(range);
                }
            }
            Op::Reserve { metadata, sectors, is_deletion } => {
                self.reserve(metadata, sectors * SECTOR, is_deletion);
            }
            Op::Drop { which } => {
                if let Some(index) = which.checked_rem(self.reservations.len()) {
                    self.reservations.swap_remove(index);
                }
            }
        }
    }

    fn unpin(&mut self, generation: u64, is_held: bool) {
        let mut ranges = if is_held {
            self.space.unpin_to_caller(Generation(generation))
        } else {
            self.space.unpin(Generation(generation))
        };
        let mut want = Vec::new();
        for (group, (base, _)) in GROUPS.iter().enumerate() {
            let is_old = |sector| matches!(sector, Sector::Pinned(of) if of <= generation);
            want.extend(runs(*base, &self.sectors[group], is_old));
        }
        let to = if is_held { Sector::Allocated } else { Sector::Free };
        for range in &ranges {
            let pinned: Vec<_> = (0..=generation).map(Sector::Pinned).collect();
            self.set(range, &pinned, to);
        }
        if is_held {
            self.held.extend(ranges.iter().cloned());
        }
        // Runs of different generations are not joined.
        ranges.dedup_by(|later, before| {
            let touches = before.end == later.start
                && Self::group_of(before.start) == Self::group_of(later.start);
            if touches {
                before.end = later.end;
            }
            touches
        });
        assert_eq!(ranges, want);
    }

    fn free_bytes(&self, metadata: bool) -> u64 {
        let groups = (0..GROUPS.len()).filter(|group| self.serves(*group, metadata));
        let free = groups.filter(|group| !self.read_only[*group]).map(|group| {
            self.sectors[group].iter().filter(|sector| **sector == Sector::Free).count() as u64
        });
        free.sum::<u64>() * SECTOR
    }

    fn reserved(&self, metadata: bool) -> u64 {
        let same = self.reservations.iter().filter(|(of, _)| self.is_mixed || *of == metadata);
        same.map(|(_, reservation)| reservation.bytes()).sum()
    }

    fn reserve(&mut self, metadata: bool, bytes: u64, is_deletion: bool) {
        let class = class_of(metadata);
        let reserve = if metadata || self.is_mixed { RESERVE } else { 0 };
        let left_alone = if is_deletion { reserve / 2 } else { reserve };
        let fits = self.reserved(metadata) + bytes + left_alone <= self.free_bytes(metadata);
        let reservation = if is_deletion {
            self.space.reserve_for_deletion(class, bytes)
        } else {
            self.space.reserve(class, bytes)
        };
        assert_eq!(reservation.is_ok(), fits || bytes == 0, "{reservation:?}");
        match reservation {
            Ok(reservation) => self.reservations.push((metadata, reservation)),
            Err(error) => {
                assert_eq!(error.pinned_bytes, self.space.totals(class).pinned);
                assert!(!error.can_add_chunk, "there is no device");
            }
        }
    }

    /// Compares the totals with the array of sectors.
    fn check(&self) {
        for (index, status) in self.space.groups().into_iter().enumerate() {
            let count = |is: fn(Sector) -> bool| {
                self.sectors[index].iter().filter(|sector| is(**sector)).count() as u64 * SECTOR
            };
            assert_eq!(status.free, count(|sector| sector == Sector::Free));
            assert_eq!(status.allocated, count(|sector| sector == Sector::Allocated));
            assert_eq!(status.pinned, count(|sector| matches!(sector, Sector::Pinned(_))));
        }
        for (metadata, class) in [(false, Class::Data), (true, Class::Metadata)] {
            let totals = self.space.totals(class);
            assert_eq!(totals.free, self.free_bytes(metadata));
            assert_eq!(totals.reserved, self.reserved(metadata));
        }
    }
}

fn class_of(metadata: bool) -> Class {
    if metadata { Class::Metadata } else { Class::Data }
}

fn runs(base: u64, sectors: &[Sector], is: impl Fn(Sector) -> bool) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (index, sector) in sectors.iter().enumerate().filter(|(_, sector)| is(**sector)) {
        let _ = sector;
        let at = base + index as u64 * SECTOR;
        match runs.last_mut() {
            Some(last) if last.end == at => last.end = at + SECTOR,
            Some(_) | None => runs.push(at..at + SECTOR),
        }
    }
    runs
}

proptest! {
    #[test]
    fn allocations_are_free_sectors_and_totals_are_right(
        is_mixed in any::<bool>(),
        holes in prop::collection::vec((0_usize..4, 0_u64..1024, 1_u64..200), 0..20),
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let holes: Vec<_> = holes
            .into_iter()
            .filter(|(group, from, count)| *group != 1 || from + count <= 100 || *from >= 116)
            .collect();
        let mut model = Model::new(is_mixed, &holes);
        model.check();
        for op in ops {
            model.run(op);
            model.check();
        }
        let all = std::mem::take(&mut model.held);
        for range in all {
            model.space.release(range.clone()).unwrap();
            model.set(&range, &[Sector::Allocated], Sector::Free);
        }
        model.unpin(9, false);
        model.check();
    }
}
