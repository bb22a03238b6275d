//! Compares the usage of quota groups with that of the extents.
//!
//! 1. Nothing is counted if references and extent items differ, or parts of a tree are lost: that
//!    is reported, and the usage follows from it.
//! 2. Usage that the quota tree does not claim to be exact is not compared. A note says so.
//! 3. Which subvolumes refer to an extent is resolved by `tree`, through the back references that
//!    this crate has compared with the trees. Its judges are the kernel's rescan and `btrfs check`.

use crate::finding::Kind;
use crate::sink::Sink;
use butternut_tree::{QgroupCount, QuotaCheck, TreeError};
use butternut_volume::{Volume, chain};
use std::sync::Arc;

/// Checks the usage of all quota groups. Returns it if it was counted.
pub(crate) fn check(
    volume: &Arc<Volume>,
    sink: &Sink<'_>,
    has_same_references: bool,
) -> Vec<QgroupCount> {
    let counted = QuotaCheck::open(volume).and_then(|quota| {
        quota.map_or_else(|| Ok(Vec::new()), |quota| count(&quota, sink, has_same_references))
    });
    counted.unwrap_or_else(|error| {
        sink.note(format!("the usage of quota groups is not compared: {}", chain(&error)));
        Vec::new()
    })
}

fn count(
    quota: &QuotaCheck,
    sink: &Sink<'_>,
    has_same_references: bool,
) -> Result<Vec<QgroupCount>, TreeError> {
    if !has_same_references {
        sink.note("the usage of quota groups is not compared, as references to extents differ");
        return Ok(Vec::new());
    }
    let why_inexact = quota.why_inexact();
    if let Some(why) = why_inexact {
        sink.note(format!(
            "the usage of quota groups is not compared, as {why}; a rescan computes it again"
        ));
        if !sink.options().qgroup_report {
            return Ok(Vec::new());
        }
    }
    let counts = quota.count()?;
    if why_inexact.is_none() {
        for count in &counts {
            compare(count, sink);
        }
    }
    Ok(counts)
}

fn compare(count: &QgroupCount, sink: &Sink<'_>) {
    let fields = [
        ("referenced", count.stored.referenced, count.counted.referenced),
        ("exclusive", count.stored.exclusive, count.counted.exclusive),
    ];
    for (field, have, want) in fields.into_iter().filter(|(_, have, want)| have != want) {
        let place = format!("quota group {}", count.id);
        sink.add(Kind::QgroupUsage, place, field, have, format!("{want}, as the extents"));
    }
}
