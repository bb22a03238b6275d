//! The items of the quota tree, as a commit writes them.
//!
//! Left to others: their keys (`items`), when they change (`account`, `admin`).

use super::groups::{Groups, QgroupUsage};
use super::items::{STATUS, corrupt, info_key, limit_key, relation_key};
use super::state::Quota;
use crate::error::TreeError;
use crate::transaction::TreeEdit;
use butternut_format::quota::{
    QgroupId, RawQgroupInfo, RawQgroupStatus, STATUS_BYTES_SHORT, STATUS_VERSION,
};
use butternut_format::refused::require;
use butternut_format::units::Generation;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Writes the groups that differ from their items.
pub(crate) fn write_groups(
    edit: &TreeEdit<'_>,
    groups: &mut Groups,
    generation: Generation,
) -> Result<(), TreeError> {
    for (id, group) in groups.iter_mut().filter(|(_, group)| group.is_stale) {
        let QgroupUsage { referenced, exclusive } = group.usage;
        let info = RawQgroupInfo {
            generation: U64::new(generation.0),
            rfer: U64::new(referenced),
            // As in the kernel, compression makes no difference: extents count as on disk.
            rfer_cmpr: U64::new(referenced),
            excl: U64::new(exclusive),
            excl_cmpr: U64::new(exclusive),
        };
        edit.put(&info_key(id), info.as_bytes())?;
        edit.put(&limit_key(id), group.limit.as_bytes())?;
        group.is_stale = false;
    }
    Ok(())
}

/// Writes the relation of two groups, in both directions.
pub(crate) fn write_relation(
    edit: &TreeEdit<'_>,
    child: QgroupId,
    parent: QgroupId,
) -> Result<(), TreeError> {
    edit.put(&relation_key(child, parent), &[])?;
    edit.put(&relation_key(parent, child), &[])
}

/// Removes the relation of two groups, in both directions.
pub(crate) fn remove_relation(
    edit: &TreeEdit<'_>,
    child: QgroupId,
    parent: QgroupId,
) -> Result<(), TreeError> {
    edit.remove(&relation_key(child, parent))?;
    edit.remove(&relation_key(parent, child)).map(drop)
}

/// Removes the items of a group, with its relations to the groups `related`.
pub(crate) fn remove_group(
    edit: &TreeEdit<'_>,
    id: QgroupId,
    related: &[QgroupId],
) -> Result<(), TreeError> {
    for other in related {
        remove_relation(edit, id, *other)?;
    }
    edit.remove(&info_key(id))?;
    edit.remove(&limit_key(id)).map(drop)
}

/// Writes the status item. The kernel accepts the counters only if its generation is that of the
/// superblock, so each commit writes it.
pub(crate) fn write_status(
    edit: &TreeEdit<'_>,
    quota: &Quota,
    generation: Generation,
) -> Result<(), TreeError> {
    let mut is_whole = true;
    let found = edit.update(&STATUS, &mut |data| {
        let fields = [STATUS_VERSION, generation.0, quota.flags, quota.rescan].map(U64::new);
        let front = data.get_mut(..fields.as_bytes().len());
        is_whole = front.map(|front| front.copy_from_slice(fields.as_bytes())).is_some();
    })?;
    require(found && is_whole, "status item", "none, or a short one", "a whole one")
        .map_err(corrupt)
}

/// Adds the status item of quotas that were just enabled.
/// Those of a volume that never had simple ones have no `enable_gen`.
pub(crate) fn add_status(
    edit: &TreeEdit<'_>,
    quota: &Quota,
    is_short: bool,
) -> Result<(), TreeError> {
    let raw = RawQgroupStatus {
        version: U64::new(STATUS_VERSION),
        generation: U64::new(edit.generation().0),
        flags: U64::new(quota.flags),
        rescan: U64::new(0),
        enable_gen: U64::new(quota.simple_since.map_or(0, |since| since.0)),
    };
    let whole = raw.as_bytes();
    let data = if is_short { whole.get(..STATUS_BYTES_SHORT).unwrap_or_default() } else { whole };
    edit.insert(&STATUS, data)
}
