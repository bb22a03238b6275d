//! Changes and reports of quotas, in the form that the control socket carries. Commands for a
//! volume that is not mounted use the same ones.
//!
//! Laws:
//!
//! 1. A report has at most about [`PAGE_BYTES_MAX`] bytes; the client requests the rest. Its pages
//!    may be of different commits.
//! 2. What a process responds is checked as any input: a page that does not go on is refused, and a
//!    report that is longer than the process said first.

use butternut::format::quota::{QgroupId, STATUS_INCONSISTENT};
use butternut::{
    Filesystem, Qgroup, QgroupLimits, QgroupUsage, QuotaMode, SubvolumeInfo, TOP_LEVEL,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of a page of the report, about: the paths and the parents of its groups as JSON.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a path in a report, at most: as many as the kernel's calls take. Any user can make
/// longer ones.
const PATH_BYTES_MAX: usize = 4096;

/// Groups that a process may say that a volume has, at most.
const GROUPS_MAX: usize = 1 << 20;

/// A change of the quotas. Groups have the ids of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum QuotaChange {
    Enable,
    /// Enables simple quotas.
    Simple,
    Disable,
    Rescan,
    Create {
        group: u64,
    },
    Remove {
        group: u64,
    },
    Assign {
        child: u64,
        parent: u64,
    },
    Unassign {
        child: u64,
        parent: u64,
    },
    /// One of the limits of a group, in bytes; none is no limit.
    Limit {
        group: u64,
        is_exclusive: bool,
        bytes: Option<u64>,
    },
}

impl QuotaChange {
    /// Returns the command of btrfs-progs that makes the change.
    pub(crate) fn kernel_command(&self) -> &'static str {
        match self {
            Self::Enable | Self::Simple => "btrfs quota enable",
            Self::Disable => "btrfs quota disable",
            Self::Rescan => "btrfs quota rescan",
            Self::Create { .. } => "btrfs qgroup create",
            Self::Remove { .. } => "btrfs qgroup destroy",
            Self::Assign { .. } => "btrfs qgroup assign",
            Self::Unassign { .. } => "btrfs qgroup remove",
            Self::Limit { .. } => "btrfs qgroup limit",
        }
    }

    /// Makes the change, which is durable afterwards.
    ///
    /// # Errors
    /// As the methods of [`Filesystem`] that it calls.
    pub(crate) fn apply(&self, filesystem: &Filesystem) -> Result<(), butternut::Error> {
        let id = QgroupId;
        match *self {
            Self::Enable => filesystem.enable_quotas().map(drop),
            Self::Simple => filesystem.enable_simple_quotas().map(drop),
            Self::Disable => filesystem.disable_quotas().map(drop),
            Self::Rescan => filesystem.rescan_quotas(),
            Self::Create { group } => filesystem.create_qgroup(id(group)),
            Self::Remove { group } => filesystem.remove_qgroup(id(group)),
            Self::Assign { child, parent } => filesystem.assign_qgroup(id(child), id(parent)),
            Self::Unassign { child, parent } => filesystem.unassign_qgroup(id(child), id(parent)),
            Self::Limit { group, is_exclusive, bytes } => {
                filesystem.change_qgroup_limits(id(group), |mut limits| {
                    let place =
                        if is_exclusive { &mut limits.exclusive } else { &mut limits.referenced };
                    *place = bytes;
                    limits
                })
            }
        }
    }
}

/// The quotas of a volume; those of one page, in a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuotaReport {
    pub(crate) is_enabled: bool,
    /// A mount of an earlier version serves no simple quotas.
    #[serde(default)]
    pub(crate) is_simple: bool,
    pub(crate) is_consistent: bool,
    /// By rising id.
    pub(crate) groups: Vec<GroupReport>,
    /// The number of groups of the volume.
    pub(crate) count: usize,
    /// Where the next page begins, if this is not the last one.
    pub(crate) next: Option<u64>,
}

/// A quota group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupReport {
    pub(crate) id: u64,
    pub(crate) referenced: u64,
    pub(crate) exclusive: u64,
    pub(crate) max_referenced: Option<u64>,
    pub(crate) max_exclusive: Option<u64>,
    pub(crate) parents: Vec<u64>,
    pub(crate) subvolume: GroupSubvolume,
}

/// The subvolume of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GroupSubvolume {
    None,
    /// Deleted, and not yet cleaned.
    Deleted,
    /// Its path from the top level.
    Path(Vec<u8>),
    /// Its path is too long for a report.
    LongPath,
}

impl QuotaReport {
    /// Reports the groups from an id on: those of one page, or all.
    ///
    /// # Errors
    /// A tree cannot be read.
    pub(crate) fn read(
        filesystem: &Filesystem,
        from: u64,
        bytes_max: usize,
    ) -> Result<Self, butternut::Error> {
        let Some(quotas) = filesystem.quotas()? else { return Ok(Self::disabled()) };
        let path = |one: SubvolumeInfo| match one.path.filter(|path| path.len() <= PATH_BYTES_MAX) {
            Some(path) => GroupSubvolume::Path(path),
            None if one.deleted => GroupSubvolume::Deleted,
            None => GroupSubvolume::LongPath,
        };
        let found = filesystem.subvolumes()?.into_iter();
        let mut subvolumes: BTreeMap<_, _> = found.map(|one| (one.id, path(one))).collect();
        subvolumes.insert(TOP_LEVEL, GroupSubvolume::Path(Vec::new()));
        let mut report = Self {
            is_enabled: true,
            is_simple: quotas.mode() == QuotaMode::Simple,
            is_consistent: quotas.status.flags & STATUS_INCONSISTENT == 0,
            groups: Vec::new(),
            count: quotas.groups.len(),
            next: None,
        };
        let mut bytes = 0_usize;
        for group in quotas.groups.iter().filter(|group| group.id.0 >= from) {
            if bytes >= bytes_max {
                report.next = Some(group.id.0);
                break;
            }
            let subvolume = subvolumes.remove(&group.id.0).unwrap_or(GroupSubvolume::None);
            let reported = GroupReport::of(group, subvolume);
            bytes = bytes.saturating_add(reported.json_bytes());
            report.groups.push(reported);
        }
        Ok(report)
    }

    /// Reports one page, as a response.
    pub(crate) fn page(filesystem: &Filesystem, from: u64) -> Result<Self, butternut::Error> {
        Self::read(filesystem, from, PAGE_BYTES_MAX)
    }

    /// Returns the first group of a page, if it has this id.
    pub(crate) fn into_first(self, id: u64) -> Option<GroupReport> {
        self.groups.into_iter().next().filter(|group| group.id == id)
    }

    fn disabled() -> Self {
        Self {
            is_enabled: false,
            is_simple: false,
            is_consistent: true,
            groups: Vec::new(),
            count: 0,
            next: None,
        }
    }

    /// Adds the next page (law 2).
    ///
    /// # Errors
    /// The page does not go on.
    pub(crate) fn append(&mut self, page: Self) -> Result<(), String> {
        let last = self.groups.last().map(|group| group.id);
        let first = page.groups.first().map(|group| group.id);
        let goes_on = match first {
            None => page.next.is_none(),
            Some(_) => first > last,
        };
        let count = self.groups.len().saturating_add(page.groups.len());
        // Some may have been created meanwhile. The first number, too, is the word of the process.
        let is_short = count <= self.count.min(GROUPS_MAX).saturating_mul(2).saturating_add(1000);
        let is_same = (page.is_enabled, page.is_simple) == (self.is_enabled, self.is_simple);
        if !goes_on || !is_short || !is_same {
            return Err("its report changes while it is read".to_owned());
        }
        self.is_consistent &= page.is_consistent;
        self.groups.extend(page.groups);
        self.next = page.next;
        Ok(())
    }
}

impl GroupReport {
    fn of(group: &Qgroup, subvolume: GroupSubvolume) -> Self {
        let QgroupUsage { referenced, exclusive } = group.usage;
        let QgroupLimits { referenced: max_referenced, exclusive: max_exclusive } = group.limits;
        Self {
            id: group.id.0,
            referenced,
            exclusive,
            max_referenced,
            max_exclusive,
            parents: group.parents.iter().map(|parent| parent.0).collect(),
            subvolume,
        }
    }

    /// Returns the size in a response, about.
    fn json_bytes(&self) -> usize {
        let path = match &self.subvolume {
            GroupSubvolume::Path(path) => path.len(),
            GroupSubvolume::None | GroupSubvolume::Deleted | GroupSubvolume::LongPath => 0,
        };
        let numbers = self.parents.len().saturating_mul(20);
        path.saturating_mul(4).saturating_add(numbers).saturating_add(200)
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupReport, GroupSubvolume, QuotaChange, QuotaReport};
    use butternut::device::{Device, MemoryDevice};
    use butternut::{Filesystem, MountOptions};
    use std::sync::Arc;

    fn page(ids: &[u64], next: Option<u64>) -> QuotaReport {
        let group = |id: &u64| GroupReport {
            id: *id,
            referenced: 0,
            exclusive: 0,
            max_referenced: None,
            max_exclusive: None,
            parents: Vec::new(),
            subvolume: GroupSubvolume::None,
        };
        let groups = ids.iter().map(group).collect();
        let (is_enabled, is_consistent) = (true, true);
        QuotaReport { is_enabled, is_simple: false, is_consistent, groups, count: 9, next }
    }

    #[test]
    fn a_report_that_does_not_go_on_is_refused() {
        let mut report = page(&[5, 256], Some(257));
        report.append(page(&[257], Some(258))).expect("the next page");
        report.append(page(&[], Some(258))).expect_err("nothing, and more");
        report.append(page(&[257], None)).expect_err("the same again");
        report.append(page(&[258], None)).expect("the last page");
        report.count = usize::MAX;
        let too_many: Vec<u64> = (1000..3_000_000).collect();
        report.append(page(&too_many, None)).expect_err("more groups than a volume has");
        assert_eq!((report.groups.len(), report.next), (4, None));
    }

    /// Two commands for one mount, each for one of the limits.
    #[test]
    fn each_of_two_limits_that_two_threads_set_is_kept() {
        let device = Arc::new(MemoryDevice::new("memory", 256 << 20));
        butternut_mkfs::make(&*device, &butternut_mkfs::MkfsOptions::default()).unwrap();
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let fs = Filesystem::open_devices(vec![device as Arc<dyn Device>], &options).unwrap();
        fs.enable_quotas().unwrap();
        let group = 1 << 48 | 1;
        QuotaChange::Create { group }.apply(&fs).unwrap();
        for round in 1..200 {
            let bytes = Some(round << 20);
            std::thread::scope(|scope| {
                for is_exclusive in [false, true] {
                    let limit = QuotaChange::Limit { group, is_exclusive, bytes };
                    let fs = &fs;
                    scope.spawn(move || limit.apply(fs).unwrap());
                }
            });
            let report = QuotaReport::read(&fs, 0, usize::MAX).unwrap();
            let found = report.groups.iter().find(|found| found.id == group).unwrap();
            assert_eq!((found.max_referenced, found.max_exclusive), (bytes, bytes));
        }
    }

    /// The process of a mount may be any program of its owner.
    #[test]
    fn a_report_without_an_end_is_refused() {
        let mut report = page(&[5], Some(6)); // `page` says that there are 9 groups.
        let grown = (6..3000).try_for_each(|id| report.append(page(&[id], Some(id + 1))));
        assert!(grown.is_err(), "{} groups of 9", report.groups.len());
    }

    /// A user makes the directories and subvolumes; root wants the report.
    #[test]
    fn each_page_of_a_report_fits_into_a_response() {
        use super::super::{RESPONSE_BYTES_MAX, Response, line_of};
        let device = Arc::new(MemoryDevice::new("memory", 512 << 20));
        butternut_mkfs::make(&*device, &butternut_mkfs::MkfsOptions::default()).unwrap();
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let fs = Filesystem::open_devices(vec![device as Arc<dyn Device>], &options).unwrap();
        fs.enable_quotas().unwrap();
        let new = butternut::NewInode::new(0o755);
        let mut dir = fs.root();
        for _ in 0..3 {
            for _ in 0..2000 {
                dir = fs.mkdir(dir, &[b'x'; 255], &new).unwrap();
            }
            let id = fs.create_subvolume(dir, b"s", &new).unwrap();
            dir = butternut::FileId::root_of(id);
        }
        // The third path has 1.5 MB, and 6 MB as JSON: "120," for each byte.
        let mut from = Some(0);
        while let Some(at) = from {
            let page = QuotaReport::page(&fs, at).unwrap();
            let line = line_of(&Response::Ok(serde_json::to_value(&page).unwrap())).unwrap();
            assert!(line.len() <= RESPONSE_BYTES_MAX, "{} bytes", line.len());
            from = page.next;
        }
    }
}
