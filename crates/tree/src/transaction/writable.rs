//! Checks before a volume is opened for writing: which features and states writing would damage.

use crate::committed::CommittedTrees;
use crate::error::TreeError;
use crate::quota::items::read_status;
use butternut_format::device_extent::{RawDeviceReplace, ReplaceState};
use butternut_format::feature::SIMPLE_QUOTA;
use butternut_format::key::{ItemType, Key};
use butternut_format::quota::{STATUS_ON, STATUS_SIMPLE_MODE};
use butternut_format::refused::{Refused, require};
use butternut_format::units::TreeId;

/// The last generation that a volume may have to be written to. No volume reaches it by commits,
/// and those that follow must have generations of their own.
const GENERATION_MAX: u64 = 1 << 63;

/// The key of the state of a device replacement, in the device tree.
const REPLACEMENT: Key = Key::new(0, ItemType::DEV_REPLACE, 0);

/// Refuses a volume that writing would make inconsistent.
pub(crate) fn check(trees: &CommittedTrees, replays_log: bool) -> Result<(), TreeError> {
    let super_block = trees.volume().super_block();
    super_block.writable().map_err(TreeError::Unwritable)?;
    let generation = super_block.generation().0;
    require(generation <= GENERATION_MAX, "generation", generation, "at most 2^63")
        .map_err(TreeError::Unwritable)?;
    let have = "one";
    require(
        replays_log || super_block.log_root().is_none(),
        "log tree",
        have,
        "none: open the volume once without nologreplay",
    )
    .map_err(TreeError::Unwritable)?;
    if let Some(device) = trees.volume().unread_first_copy() {
        let have = format_args!("not the first copy, which {device} cannot read");
        let want = "the first copy, which may name a log: open the volume for reading, or let \
                    `btrfs rescue super-recover` write that copy";
        return Err(TreeError::Unwritable(Refused::new("superblock", have, want)));
    }
    require(!super_block.is_seeding(), "seed", "a seed device", "a device that is not a seed")
        .map_err(TreeError::Unwritable)?;
    // First: the device that replaces another one has no device item.
    no_replacement(trees)?;
    if let Some(device) = trees.volume().unlisted_device() {
        let have = format_args!("{device}, which has no device item");
        let want = "only devices of the volume: leave out one that was removed from it";
        return Err(TreeError::Unwritable(Refused::new("devices", have, want)));
    }
    let want = "all of them writable (the option degraded accepts stale ones)";
    require(trees.volume().is_writable(), "devices", "read-only, stale or missing", want)
        .map_err(TreeError::Unwritable)?;
    no_parity(trees)?;
    has_feature_of_quotas(trees)?;
    no_relocation(trees)
}

/// Refuses raid5 and raid6, which are supported for reading only.
fn no_parity(trees: &CommittedTrees) -> Result<(), TreeError> {
    let chunks = trees.volume().chunks();
    let parity = chunks.iter().find(|layout| layout.attributes().parities > 0);
    let have = parity.map_or("", |_| "raid5 or raid6");
    require(parity.is_none(), "profile", have, "one without parity").map_err(TreeError::Unwritable)
}

/// Refuses simple quotas without their feature: what does not know them would write to the volume,
/// and account for nothing.
fn has_feature_of_quotas(trees: &CommittedTrees) -> Result<(), TreeError> {
    let Some(tree) = trees.tree(TreeId::QUOTA)? else { return Ok(()) };
    let status = read_status(&tree)?.filter(|status| status.flags & STATUS_ON != 0);
    let is_simple = status.is_some_and(|status| status.flags & STATUS_SIMPLE_MODE != 0);
    let has_feature = trees.volume().super_block().has(SIMPLE_QUOTA);
    let want = "with the feature simple-quota";
    require(has_feature || !is_simple, "quotas", "simple ones", want).map_err(TreeError::Unwritable)
}

/// Refuses a volume with an interrupted balance: it has relocation trees, which only the kernel can
/// merge.
fn no_relocation(trees: &CommittedTrees) -> Result<(), TreeError> {
    let mut cursor = trees.root_tree().cursor();
    cursor.seek(&Key::new(TreeId::TREE_RELOCATION.0, ItemType::ROOT_ITEM, 0))?;
    let is_relocating = cursor.key().is_some_and(|key| {
        key.objectid == TreeId::TREE_RELOCATION.0 && key.item_type == ItemType::ROOT_ITEM
    });
    require(
        !is_relocating,
        "balance",
        "an interrupted one",
        "none: mount with the kernel to finish it",
    )
    .map_err(TreeError::Unwritable)
}

/// Refuses a volume with an interrupted replacement of a device. The kernel goes on with it from
/// its cursor, so the new device would lack what was written before the cursor meanwhile.
fn no_replacement(trees: &CommittedTrees) -> Result<(), TreeError> {
    let Some(tree) = trees.tree(TreeId::DEVICE)? else { return Ok(()) };
    let Some(item) = tree.find(&REPLACEMENT)? else { return Ok(()) };
    let state = RawDeviceReplace::check(item.data()).and_then(RawDeviceReplace::state);
    let state = state.map_err(|source| TreeError::Corrupt { tree: TreeId::DEVICE, source })?;
    let want = "none: mount all devices with the kernel, which finishes it, or let \
                `btrfs replace cancel` end it there";
    let is_interrupted = matches!(state, ReplaceState::Started | ReplaceState::Suspended);
    require(!is_interrupted, "device replacement", "an interrupted one", want)
        .map_err(TreeError::Unwritable)
}
