//! Floor 6: makes an empty btrfs volume on one device. It never reads a volume and does not use the
//! engine, so that the readers that test it share no code with it.
//!
//! The volume is that of `mkfs.btrfs` 6.14: the same block groups at the same addresses, the same
//! items in the same trees. The differences:
//!
//! - Everything has generation 1, and there is one root backup, since the volume is written in one
//!   transaction instead of eight.
//! - The superblock marks the UUID tree as complete, which it is. The kernel then does not scan all
//!   subvolumes at the first mount, for which the smallest volumes lack the space.
//! - Tree blocks are contiguous, and the free space tree has no items of temporary block groups.
//! - Mixed dup has a minimum size of its own; at the minimum that `mkfs.btrfs` prints, it fails.
//!
//! [`Target`] opens a path for it, and creates or extends an image file first.
//!
//! Laws of [`make`]:
//!
//! 1. It writes nothing outside of the device's window, and inside of it only the wiped ranges and
//!    the new blocks. So the time does not depend on the size of the device.
//! 2. Options and devices are refused before the first write.
//! 3. It wipes the old superblocks first and writes the new ones last, the first copy at the end,
//!    with flushes in between. An interruption leaves the whole old volume, or none.
//! 4. The same options with the same identity give the same bytes.

mod block;
mod compose;
mod error;
mod features;
mod identity;
mod item;
mod layout;
mod options;
mod overlap;
mod signature;
mod super_block;
mod target;
mod trees;
mod unfinished;
mod wipe;

pub use butternut_format::checksum::ChecksumKind;
pub use butternut_format::chunk::{BlockGroupFlags, Profile};
pub use butternut_format::inode::Time;
pub use butternut_format::uuid::Uuid;
pub use error::MkfsError;
pub use features::{FeatureName, Features};
pub use identity::Identity;
pub use options::MkfsOptions;
pub use overlap::Overlap;
pub use signature::{Signature, find as find_signature};
pub use target::Target;
pub use unfinished::Unfinished;

use butternut_device::{Device, FileDevice};
use compose::Composed;
use options::Plan;

/// Describes a volume that [`make`] made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub fsid: Uuid,
    pub device_uuid: Uuid,
    pub label: Vec<u8>,
    /// Size of the volume: that of the device, unless the options have a smaller one.
    pub bytes: u64,
    pub bytes_used: u64,
    pub node_bytes: u32,
    pub csum: ChecksumKind,
    pub features: Features,
    /// Block groups, sorted by address.
    pub groups: Vec<MadeGroup>,
}

/// A block group of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeGroup {
    pub flags: BlockGroupFlags,
    pub profile: Profile,
    /// Logical bytes. Dup uses twice as many on the device.
    pub bytes: u64,
}

impl MadeGroup {
    /// Returns the name of the group's type.
    pub fn kind(&self) -> &'static str {
        let holds = |kind| self.flags.contains(kind);
        if holds(BlockGroupFlags::SYSTEM) {
            "system"
        } else if !holds(BlockGroupFlags::DATA) {
            "metadata"
        } else if holds(BlockGroupFlags::METADATA) {
            "data+metadata"
        } else {
            "data"
        }
    }
}

/// Makes an empty volume.
///
/// # Errors
/// The options or the device are refused, or the device fails. Without
/// [`MkfsOptions::overwrite`], a device that has a filesystem or partition table is refused.
pub fn make(device: &dyn Device, options: &MkfsOptions) -> Result<Made, MkfsError> {
    let (plan, composed) = make_trees(device, options)?;
    super_block::write(device, &plan, &composed)?;
    device.flush()?;
    Ok(made(&plan, &composed))
}

/// As [`make`], but the superblocks stay in memory until [`Unfinished::finish`].
fn make_unfinished(
    device: FileDevice,
    options: &MkfsOptions,
) -> Result<(Made, Unfinished), MkfsError> {
    let (plan, composed) = make_trees(&device, options)?;
    let device = Unfinished::new(device);
    super_block::write(&device, &plan, &composed)?;
    Ok((made(&plan, &composed), device))
}

/// Does everything but the last step of [`make`]: there is no volume on the device then.
fn make_trees(device: &dyn Device, options: &MkfsOptions) -> Result<(Plan, Composed), MkfsError> {
    if !device.is_writable() {
        return Err(MkfsError::ReadOnly);
    }
    let plan = Plan::check(device.bytes(), options)?;
    if !options.overwrite
        && let Some(signature) = signature::find(device)?
    {
        return Err(MkfsError::InUse { signature });
    }
    let composed = compose::compose(&plan);
    wipe::super_blocks(device, plan.bytes)?;
    device.flush()?;
    if options.discard {
        wipe::discard(device, plan.bytes)?;
    }
    wipe::ends(device, plan.bytes)?;
    write_groups(device, &composed)?;
    device.flush()?;
    Ok((plan, composed))
}

fn write_groups(device: &dyn Device, composed: &Composed) -> Result<(), MkfsError> {
    for (group, blocks) in &composed.writes {
        for copy in &group.copies {
            device.write_at(copy.0, blocks)?;
        }
    }
    Ok(())
}

fn made(plan: &Plan, composed: &Composed) -> Made {
    let groups = plan.groups.iter().map(|group| MadeGroup {
        flags: group.flags,
        profile: group.profile(),
        bytes: group.bytes,
    });
    Made {
        fsid: plan.identity.fsid,
        device_uuid: plan.identity.device,
        label: plan.label.clone(),
        bytes: plan.bytes,
        bytes_used: composed.bytes_used,
        node_bytes: plan.node_bytes,
        csum: plan.csum,
        features: plan.features,
        groups: groups.collect(),
    }
}
