//! A crafted volume whose last commit has the last generation: further commits would have the same.

use crate::leaf::owner;
use crate::volume::TestVolume;
use butternut::format::checksum::ChecksumKind;
use butternut::{Filesystem, MountOptions};

fn put(data: &mut [u8], at: usize, value: u64) {
    data[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

const ROOT_TREE: u64 = 1;

fn with_generation(volume: &TestVolume, generation: u64) -> TestVolume {
    let changed = volume.with_leaves(|block| {
        let is_root = owner(block) == ROOT_TREE;
        if is_root {
            put(block, 80, generation); // the header's generation
        }
        is_root
    });
    let mut image = changed.image();
    let super_block = &mut image[65536..65536 + 4096];
    put(super_block, 0x48, generation);
    let digest = ChecksumKind::Crc32c.compute(&super_block[32..]);
    super_block[..32].copy_from_slice(&digest);
    TestVolume::of_image(&image)
}

#[test]
fn a_volume_whose_generations_are_used_up_is_not_opened_for_writing() {
    for generation in [u64::MAX, u64::MAX - 1] {
        let volume = with_generation(&TestVolume::new(), generation);
        let options = MountOptions::default();
        // It can be read.
        drop(Filesystem::open_devices(volume.devices(), &options).unwrap());
        let options = options.read_only(false);
        let refused = Filesystem::open_devices(volume.devices(), &options).unwrap_err();
        let message = butternut_volume::chain(&refused);
        assert!(message.contains("generation: have"), "{message}");
    }
}
