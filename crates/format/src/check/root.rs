//! The laws of the root tree's own items, and of quota groups.
//!
//! In addition to the laws of the types, for a root item:
//!
//! 1. The object id of its key, the tree, is not 0.
//! 2. No generation in it is above that of its leaf.
//! 3. If `drop_progress` is set, `drop_level` is above 0.

use super::{LeafContext, LeafItem};
use crate::key::{ItemType, Key};
use crate::quota::{self, QgroupStatus};
use crate::refused::{Refused, require};
use crate::root::RootItem;
use crate::root_ref::RootRef;

/// Checks one item whose type belongs to the root tree or the quota tree; others pass.
pub(super) fn item(item: &LeafItem<'_>, context: &LeafContext<'_>) -> Result<(), Refused> {
    let LeafItem { key, data } = *item;
    match key.item_type {
        ItemType::ROOT_ITEM => root(key, &RootItem::check(key, data)?, context),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => RootRef::check(data).map(drop),
        ItemType::QGROUP_STATUS => QgroupStatus::check(key, data).map(drop),
        ItemType::QGROUP_INFO => quota::check_info(key, data).map(drop),
        ItemType::QGROUP_LIMIT => quota::check_limit(key, data).map(drop),
        ItemType::QGROUP_RELATION => quota::check_relation(key, data).map(drop),
        _ => Ok(()),
    }
}

fn root(key: Key, item: &RootItem, context: &LeafContext<'_>) -> Result<(), Refused> {
    require(key.objectid != 0, "key objectid", key.objectid, "not 0")?;
    let (raw, leaf) = (item.raw(), context.generation);
    let generations = [
        ("generation", raw.generation),
        ("generation_v2", raw.generation_v2),
        ("last_snapshot", raw.last_snapshot),
    ];
    for (field, generation) in generations {
        require(generation.get() <= leaf.0, field, generation, format_args!("at most {leaf}"))?;
    }
    let progress = Key::from(&raw.drop_progress);
    require(
        progress.objectid == 0 || raw.drop_level != 0,
        "drop_level",
        raw.drop_level,
        format_args!("above 0 where drop_progress is {progress}"),
    )
}
