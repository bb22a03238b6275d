//! Damage to the quota tree: usage that differs from the extents.

use crate::test_image::TestImage;
use crate::{Case, QUOTAS, Volume, listed};
use butternut_check::{CheckOptions, Kind, Report, check};
use butternut_format::key::{ItemType, Key};
use butternut_format::quota::{
    RawQgroupInfo, RawQgroupStatus, STATUS_BYTES_SHORT, STATUS_INCONSISTENT, STATUS_RESCAN,
};
use butternut_format::units::TreeId;
use libtest_mimic::Failed;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

const STATUS: Key = Key::new(0, ItemType::QGROUP_STATUS, 0);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        quota(
            "quota group that refers to more",
            |p| usage(p, 256, |raw| raw.rfer += U64::new(4096)),
            &[Kind::QgroupUsage],
        ),
        quota(
            "quota group that has less exclusively",
            |p| usage(p, 257, |raw| raw.excl -= U64::new(4096)),
            &[Kind::QgroupUsage],
        ),
        quota(
            "quota usage that a rescan computes again",
            |p| {
                usage(p, 256, |raw| raw.rfer += U64::new(4096));
                flags(p, STATUS_RESCAN);
            },
            &[],
        ),
        quota("quota usage that is marked as inconsistent", inconsistent, &[]),
        simple(
            "simple quota group that uses less",
            |p| usage(p, 256, |raw| raw.rfer -= U64::new(4096)),
            &[Kind::QgroupUsage],
        ),
        simple("data of another owner", other_owner, &[Kind::QgroupUsage]),
    ]
}

const fn simple(name: &'static str, damage: fn(&TestImage), want: &'static [Kind]) -> Case {
    Case { name, volume: Volume::SimpleQuotas, damage, want }
}

/// Gives the first data extent of a subvolume to another one.
fn other_owner(p: &TestImage) {
    const OWNER: u8 = ItemType::EXTENT_OWNER_REF.0;
    // The type and the owner are behind the count, the generation and the flags.
    let is_owned =
        |data: &[u8]| data.get(24) == Some(&OWNER) && data[25..33] == [0, 1, 0, 0, 0, 0, 0, 0];
    let is_data = |key: &Key, data: &[u8]| key.item_type == ItemType::EXTENT_ITEM && is_owned(data);
    let (key, _) = p.find(TreeId::EXTENT, is_data);
    p.change(TreeId::EXTENT, &key, |data| data[25] = 1);
}

const fn quota(name: &'static str, damage: fn(&TestImage), want: &'static [Kind]) -> Case {
    Case { name, volume: Volume::Quotas, damage, want }
}

fn usage(p: &TestImage, subvolume: u64, alter: impl FnOnce(&mut RawQgroupInfo)) {
    p.alter(TreeId::QUOTA, &Key::new(0, ItemType::QGROUP_INFO, subvolume), alter);
}

fn flags(p: &TestImage, flag: u64) {
    p.change(TreeId::QUOTA, &STATUS, |data| {
        let mut whole = data.clone();
        whole.resize(size_of::<RawQgroupStatus>(), 0);
        let raw = RawQgroupStatus::mut_from_bytes(&mut whole).unwrap();
        raw.flags |= U64::new(flag);
        data[..STATUS_BYTES_SHORT].copy_from_slice(&raw.as_bytes()[..STATUS_BYTES_SHORT]);
    });
}

fn inconsistent(p: &TestImage) {
    usage(p, 256, |raw| raw.excl += U64::new(4096));
    flags(p, STATUS_INCONSISTENT);
}

/// Usage that is marked as inconsistent is compared by no check, which says so, and counted if the
/// caller wants a report.
pub(crate) fn inexact_usage_is_counted_on_request() -> Result<(), Failed> {
    let image = TestImage::new(&QUOTAS);
    inconsistent(&image);
    let run = |qgroup_report| -> Report {
        let options = CheckOptions { qgroup_report, ..CheckOptions::default() };
        check(vec![image.device()], &options).expect("the volume can be opened")
    };
    let (without, with) = (run(false), run(true));
    for report in [&without, &with] {
        let is_said = |note: &String| note.contains("it is marked as inconsistent; a rescan");
        if !report.notes.iter().any(is_said) || !report.is_clean() {
            return Err(format!("{:?}\n{}", report.notes, listed(report)).into());
        }
    }
    let different: Vec<u64> = with
        .qgroups
        .iter()
        .filter(|count| count.stored.exclusive == count.counted.exclusive + 4096)
        .map(|count| count.id.0)
        .collect();
    if !without.qgroups.is_empty() || different != [256] {
        return Err(format!("{:?}\n{:?}", without.qgroups, with.qgroups).into());
    }
    Ok(())
}
