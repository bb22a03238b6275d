//! Wipes signatures of older filesystems: at both ends of the volume, and old btrfs superblocks
//! behind its end.
//!
//! 1. Ranges that are zero already are not written, so that a sparse image stays sparse.
//! 2. Behind the volume's end only btrfs superblocks at their fixed addresses are wiped.

use crate::error::MkfsError;
use butternut_device::Device;
use butternut_format::super_block::{COPY_OFFSETS, MAGIC, RawSuperBlock, SUPER_BLOCK_BYTES};
use butternut_format::units::{index, length};
use butternut_sys::buffer::Buffer;
use zerocopy::FromBytes;

/// Bytes that are wiped at each end, as by `mkfs.btrfs`.
const END_BYTES: u64 = 2 << 20;

/// Size of each read and write, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes of each discard request, because a device may take long for a large one.
const DISCARD_BYTES: u64 = 1 << 30;

/// Discards the volume's range.
pub(crate) fn discard(device: &dyn Device, volume_bytes: u64) -> Result<(), MkfsError> {
    let mut at = 0;
    while at < volume_bytes {
        let bytes = DISCARD_BYTES.min(volume_bytes - at);
        device.discard(at, bytes)?;
        at += bytes;
    }
    Ok(())
}

/// Wipes the superblocks, without which the other blocks belong to no volume.
pub(crate) fn super_blocks(device: &dyn Device, volume_bytes: u64) -> Result<(), MkfsError> {
    let copy_bytes = length(SUPER_BLOCK_BYTES);
    for offset in COPY_OFFSETS {
        let is_behind = offset + copy_bytes >= volume_bytes;
        if offset + copy_bytes > device.bytes() {
            break;
        }
        if !is_behind || holds_super_block(device, offset)? {
            zero(device, offset, copy_bytes)?;
        }
    }
    Ok(())
}

/// Wipes both ends of the volume.
pub(crate) fn ends(device: &dyn Device, volume_bytes: u64) -> Result<(), MkfsError> {
    let end = volume_bytes.saturating_sub(END_BYTES);
    zero(device, 0, END_BYTES.min(volume_bytes))?;
    zero(device, end, volume_bytes - end)
}

fn holds_super_block(device: &dyn Device, offset: u64) -> Result<bool, MkfsError> {
    let mut memory = Buffer::zeroed(SUPER_BLOCK_BYTES);
    device.read_at(offset, &mut memory)?;
    let raw = RawSuperBlock::ref_from_bytes(&memory);
    Ok(raw.is_ok_and(|raw| raw.magic.get() == MAGIC))
}

fn zero(device: &dyn Device, start: u64, bytes: u64) -> Result<(), MkfsError> {
    let len = u32::try_from(bytes).map(index).expect("an end, or a superblock");
    let mut memory = Buffer::zeroed(len);
    device.read_at(start, &mut memory)?;
    let mut at = start;
    for piece in memory.chunks_mut(PIECE_BYTES) {
        if piece.iter().any(|byte| *byte != 0) {
            piece.fill(0);
            device.write_at(at, piece)?;
        }
        at += length(piece.len());
    }
    Ok(())
}
