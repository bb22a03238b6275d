//! Floor 6: an empty btrfs volume on one device, composed from nothing. Never reads a volume,
//! never goes through the engine: what it writes is judged by readers that share no code with it.
//!
//! The shape is that of `mkfs.btrfs` 6.14: the same groups at the same addresses, the same items in
//! the same trees. What differs, and why:
//!
//! - Everything has generation 1, and there is one backup of the roots: the volume is written in
//!   one transaction, not eight.
//! - The superblock says that the uuid tree is complete, which it is: the kernel then does not scan
//!   all subvolumes at the first mount, for which the smallest volumes have no room.
//! - Tree blocks lie one behind the other, and the free space tree says nothing of groups that are
//!   not there.
//! - Under mixed groups, dup has a minimum size of its own: `mkfs.btrfs` names one that it then
//!   fails at.
//!
//! [`Target`] opens a path for it, and makes or extends an image file first.
//!
//! Laws of [`make`]:
//!
//! 1. Nothing outside the device's window is touched, and inside it nothing but the ranges that
//!    are wiped and the blocks that are written: a large device costs no more than a small one.
//! 2. What is refused is refused before the first write.
//! 3. The old superblocks go before all else, the new ones come last, the first copy at the very
//!    end, with flushes between: cut short, there is the old volume whole, or none.
//! 4. The same options, with an identity, give the same bytes.

mod block;
mod compose;
mod error;
mod features;
mod identity;
mod item;
mod layout;
mod options;
mod signature;
mod super_block;
mod target;
mod trees;
mod wipe;

pub use butternut_format::checksum::ChecksumKind;
pub use butternut_format::chunk::{BlockGroupFlags, Profile};
pub use butternut_format::inode::Time;
pub use butternut_format::uuid::Uuid;
pub use error::MkfsError;
pub use features::{FeatureName, Features};
pub use identity::Identity;
pub use options::MkfsOptions;
pub use signature::{Signature, find as find_signature};
pub use target::Target;

use butternut_device::Device;
use compose::Composed;
use options::Plan;

/// What [`make`] made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub fsid: Uuid,
    pub device_uuid: Uuid,
    pub label: Vec<u8>,
    /// Of the volume: the device's, or fewer where fewer were asked for.
    pub bytes: u64,
    pub bytes_used: u64,
    pub node_bytes: u32,
    pub csum: ChecksumKind,
    pub features: Features,
    /// In the order of their addresses.
    pub groups: Vec<MadeGroup>,
}

/// A block group of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeGroup {
    pub flags: BlockGroupFlags,
    pub profile: Profile,
    /// Logical bytes; dup takes twice as many.
    pub bytes: u64,
}

impl MadeGroup {
    /// What the group holds, by name.
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

/// Makes an empty volume; where something is there already, only if told to.
pub fn make(device: &dyn Device, options: &MkfsOptions) -> Result<Made, MkfsError> {
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
    super_block::write(device, &plan, &composed)?;
    device.flush()?;
    Ok(made(&plan, &composed))
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
