//! One chunk of data on a new volume, installed without a chunk tree.

use butternut_format::chunk::{BlockGroupFlags, Chunk, Profile, Stripe};
use butternut_format::units::{Logical, Physical};
use butternut_volume::Volume;

/// The offset of the data, on the device and in the volume.
pub(crate) const DATA_AT: u64 = 128 << 20;
pub(crate) const LOGICAL: u64 = 1 << 40;

pub(crate) fn install(volume: &Volume, bytes: u64) {
    let device = *volume.super_block().device();
    let stripe = Stripe { devid: device.devid, offset: Physical(DATA_AT), dev_uuid: device.uuid };
    let chunk = Chunk {
        logical: Logical(LOGICAL),
        bytes,
        flags: BlockGroupFlags::DATA,
        profile: Profile::Single,
        sub_stripes: 1,
        stripes: vec![stripe],
    };
    volume.install_chunk(chunk.logical, &chunk).unwrap();
    volume.install_device(&device);
    volume.seal().unwrap();
}
