//! Which quota groups `qgroup show` prints, and in which order: as `btrfs qgroup show`.
//!
//! Groups of a higher level have no path: they follow the groups of subvolumes, by level. A limit
//! that is not set counts as 0.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::Path;

use butternut::format::quota::QgroupId;

use super::super::mounted::{self, root_tree::MountedVolume};
use crate::args::{GlobalArgs, QgroupShowArgs, QgroupSort, QgroupSortField, VolumesArgs};
use crate::control::quotas::{GroupReport, GroupSubvolume, QuotaReport};
use crate::failure::Failure;
use crate::volume::OpenVolume;

/// Leaves the groups that the options select, in the order that they select.
///
/// # Errors
/// The subvolume of the path is not known.
pub(super) fn select(
    global: &GlobalArgs,
    args: &QgroupShowArgs,
    report: &QuotaReport,
) -> Result<Vec<GroupReport>, Failure> {
    let mut groups = report.groups.clone();
    if args.of_path || args.of_path_only {
        let subvolume = subvolume_of(global, &args.volume)?;
        let shown = if args.of_path { including(report, subvolume) } else { [subvolume].into() };
        groups.retain(|group| shown.contains(&group.id));
    }
    let keys: Vec<_> = args.sort.iter().flat_map(|sort| sort.0.iter().copied()).collect();
    // Stable: groups that do not differ stay ordered by id.
    groups.sort_by(|one, other| compare(&keys, one, other));
    Ok(groups)
}

/// Returns the id of the subvolume that the arguments name.
fn subvolume_of(global: &GlobalArgs, volume: &VolumesArgs) -> Result<u64, Failure> {
    match volume.volume.as_slice() {
        [path] if mounted::is_directory(path) => MountedVolume::open(Path::new(path))?.id(),
        _ => OpenVolume::from_args(global, volume).map(|opened| opened.filesystem.root().subvolume),
    }
}

/// Returns the ids of a group and of all groups that include it.
fn including(report: &QuotaReport, group: u64) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let mut next = vec![group];
    while let Some(id) = next.pop() {
        if found.insert(id) {
            let group = report.groups.iter().find(|group| group.id == id);
            next.extend(group.into_iter().flat_map(|group| &group.parents));
        }
    }
    found
}

fn compare(keys: &[QgroupSort], one: &GroupReport, other: &GroupReport) -> Ordering {
    let limit = |one: Option<u64>, other: Option<u64>| one.unwrap_or(0).cmp(&other.unwrap_or(0));
    let by_key = |key: &QgroupSort| {
        let ordering = match key.field {
            QgroupSortField::Qgroupid => one.id.cmp(&other.id),
            QgroupSortField::Rfer => one.referenced.cmp(&other.referenced),
            QgroupSortField::Excl => one.exclusive.cmp(&other.exclusive),
            QgroupSortField::MaxRfer => limit(one.max_referenced, other.max_referenced),
            QgroupSortField::MaxExcl => limit(one.max_exclusive, other.max_exclusive),
            QgroupSortField::Path => path_key(one).cmp(&path_key(other)),
        };
        if key.is_descending { ordering.reverse() } else { ordering }
    };
    keys.iter().map(by_key).find(|ordering| ordering.is_ne()).unwrap_or(Ordering::Equal)
}

fn path_key(group: &GroupReport) -> (u64, &[u8]) {
    let path = match &group.subvolume {
        GroupSubvolume::Path(path) => path.as_slice(),
        GroupSubvolume::None | GroupSubvolume::Deleted | GroupSubvolume::LongPath => &[],
    };
    (QgroupId(group.id).level(), path)
}
