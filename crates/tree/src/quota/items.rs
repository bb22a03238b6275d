//! The items of the quota tree: their keys, and how they are read.
//!
//! Left to others: what the numbers mean (`groups`), how items are written (`write`).

use super::groups::{Group, Groups, QgroupUsage};
use crate::error::TreeError;
use crate::tree::Tree;
use butternut_format::key::{ItemType, Key};
use butternut_format::quota::{self, QgroupId, QgroupStatus};
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;

/// The key of the status item.
pub(crate) const STATUS: Key = Key::new(0, ItemType::QGROUP_STATUS, 0);

pub(crate) fn info_key(id: QgroupId) -> Key {
    Key::new(0, ItemType::QGROUP_INFO, id.0)
}

pub(crate) fn limit_key(id: QgroupId) -> Key {
    Key::new(0, ItemType::QGROUP_LIMIT, id.0)
}

pub(crate) fn relation_key(one: QgroupId, other: QgroupId) -> Key {
    Key::new(one.0, ItemType::QGROUP_RELATION, other.0)
}

/// Reads the status item of the quota tree; `None` if it has none, because quotas are off.
pub(crate) fn read_status(tree: &Tree) -> Result<Option<QgroupStatus>, TreeError> {
    let Some(item) = tree.find(&STATUS)? else { return Ok(None) };
    QgroupStatus::check(STATUS, item.data()).map(Some).map_err(corrupt)
}

/// Reads all groups of the quota tree. Relations of groups that do not exist are left out.
pub(crate) fn read_groups(tree: &Tree) -> Result<Groups, TreeError> {
    let mut groups = Groups::default();
    let mut relations = Vec::new();
    let mut items = tree.scan();
    items.seek(&Key::MIN)?;
    while let Some((key, data)) = items.item_parts() {
        read_item(key, data, &mut groups, &mut relations)
            .map_err(|refused| corrupt(refused.at(format_args!("item {key}"))))?;
        items.advance()?;
    }
    for (child, parent) in relations {
        if groups.get(child).is_some() && groups.get(parent).is_some() {
            groups.relate(child, parent).map_err(corrupt)?;
        }
    }
    Ok(groups)
}

fn read_item(
    key: Key,
    data: &[u8],
    groups: &mut Groups,
    relations: &mut Vec<(QgroupId, QgroupId)>,
) -> Result<(), Refused> {
    match key.item_type {
        ItemType::QGROUP_INFO => {
            let (id, raw) = quota::check_info(key, data)?;
            let (referenced, exclusive) = (raw.rfer.get(), raw.excl.get());
            let group = added(groups, id);
            group.usage = QgroupUsage { referenced, exclusive };
        }
        ItemType::QGROUP_LIMIT => {
            // The information of a group comes before its limits.
            let (id, raw) = quota::check_limit(key, data)?;
            if let Some(group) = groups.get_mut(id) {
                group.limit = *raw;
            }
        }
        ItemType::QGROUP_RELATION => {
            let (one, other) = quota::check_relation(key, data)?;
            if one.level() < other.level() {
                relations.push((one, other));
            }
        }
        _ => {}
    }
    Ok(())
}

fn added(groups: &mut Groups, id: QgroupId) -> &mut Group {
    groups.add(id);
    let group = groups.get_mut(id).expect("it was just added");
    group.is_stale = false;
    group
}

pub(crate) fn corrupt(source: Refused) -> TreeError {
    TreeError::Corrupt { tree: TreeId::QUOTA, source }
}
