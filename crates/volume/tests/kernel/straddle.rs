//! Tree blocks that span two elements of a full stripe, as on old converted volumes: each part may
//! have to be read from another mirror.
//!
//! A real block is mapped again under a chunk of the test, on one device that holds all stripes.

use crate::image::{Image, fill, kernel_is_here};
use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_format::chunk::{BlockGroupFlags, Chunk, Profile, Stripe};
use butternut_format::node::Expected;
use butternut_format::units::{Logical, Physical};
use butternut_sys::parity::generate;
use butternut_volume::{Layout, OpenOptions, Volume};
use std::sync::Arc;

const STRIPE: u64 = 65536;
/// Offset of the first stripe, and distance between stripes.
const PLACES_AT: u64 = 200 << 20;
const PLACE_BYTES: u64 = 1 << 20;

struct Straddle {
    volume: Volume,
    device: Arc<dyn Device>,
    root: Expected,
    good: Vec<u8>,
    layout: Arc<Layout>,
    _image: Image,
}

/// A volume whose root tree block has 8 KiB in one element and 8 KiB in the next, all mirrors good.
fn straddling(profile: Profile, flags: BlockGroupFlags, places: u64) -> Straddle {
    let image = Image::make(1, &["-d", "single", "-m", "single"]);
    // Moves the root away from the start of its chunk.
    image.with_kernel(&image.paths, "", fill);
    let (root, good) = root_of_roots(&image);
    let how = OpenDevice { writable: true, direct: false, ..OpenDevice::default() };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image.paths[0], &how).unwrap());
    let volume = Volume::open(vec![Arc::clone(&device)], OpenOptions::default()).unwrap();
    let item = *volume.super_block().device();
    let stripe = |index| Stripe {
        devid: item.devid,
        offset: Physical(PLACES_AT + index * PLACE_BYTES),
        dev_uuid: item.uuid,
    };
    let chunk = Chunk {
        logical: Logical(root.logical.0 - STRIPE + 8192),
        bytes: STRIPE * 8,
        flags: BlockGroupFlags(BlockGroupFlags::METADATA.0 | flags.0),
        profile,
        sub_stripes: 2,
        stripes: (0..places).map(stripe).collect(),
    };
    volume.install_chunk(chunk.logical, &chunk).unwrap();
    volume.install_device(&item);
    volume.seal().unwrap();
    let layout = Arc::clone(volume.chunks().find(root.logical).unwrap());
    let straddle = Straddle { volume, device, root, good, layout, _image: image };
    straddle.write_copies();
    straddle
}

/// Returns the block and its bytes, through the volume's own chunks.
fn root_of_roots(image: &Image) -> (Expected, Vec<u8>) {
    let opened = crate::survey::open(&image.paths, &[], &OpenOptions::default()).unwrap();
    let root = opened.volume.super_block().root();
    let block = opened.volume.read_block(&root).unwrap();
    (root, block.bytes().to_vec())
}

impl Straddle {
    fn write_copies(&self) {
        let mut at = 0;
        for segment in self.layout.segments(self.root.logical, 16384) {
            let end = at + usize::try_from(segment.bytes).unwrap();
            for place in self.layout.mirrors(&segment) {
                self.device.write_at(segment.physical(place).0, &self.good[at..end]).unwrap();
            }
            at = end;
        }
        assert_eq!(at, 16384);
        for segment in self.layout.segments(self.root.logical, 16384) {
            self.write_parity(&segment);
        }
    }

    fn write_parity(&self, segment: &butternut_volume::Segment) {
        let bytes = usize::try_from(segment.bytes).unwrap();
        let places: Vec<u64> =
            self.layout.full_stripe(segment).map(|place| segment.physical(place).0).collect();
        let [data @ .., p, q] = places.as_slice() else { return };
        let data: Vec<Vec<u8>> = data
            .iter()
            .map(|&at| {
                let mut element = vec![0; bytes];
                self.device.read_at(at, &mut element).unwrap();
                element
            })
            .collect();
        let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let (mut p_bytes, mut q_bytes) = (vec![0; bytes], vec![0; bytes]);
        generate(&slices, &mut p_bytes, Some(&mut q_bytes));
        self.device.write_at(*p, &p_bytes).unwrap();
        self.device.write_at(*q, &q_bytes).unwrap();
    }

    /// Corrupts mirror `copy` of part `part`.
    fn spoil(&self, part: usize, copy: usize) {
        let segment = self.layout.segments(self.root.logical, 16384).nth(part).unwrap();
        let place = &self.layout.mirrors(&segment)[copy];
        self.device.write_at(segment.physical(place).0 + 500, b"rot").unwrap();
    }

    fn is_read_right(&self) -> bool {
        self.volume.read_block(&self.root).is_ok_and(|block| block.bytes() == self.good)
    }
}

#[test]
fn each_part_may_come_from_another_mirror() {
    if !kernel_is_here() {
        return;
    }
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let straddle = straddling(Profile::Raid10, BlockGroupFlags::RAID10, 4);
        assert!(straddle.is_read_right());
        straddle.spoil(0, first);
        straddle.spoil(1, second);
        assert!(straddle.is_read_right(), "{first} {second}");
        straddle.spoil(0, 1 - first);
        let error = straddle.volume.read_block(&straddle.root).unwrap_err();
        assert_eq!(error.bad_ranges().len(), 1, "{error}");
    }
}

#[test]
fn each_part_may_come_from_parity() {
    if !kernel_is_here() {
        return;
    }
    let straddle = straddling(Profile::Raid6, BlockGroupFlags::RAID6, 5);
    assert!(straddle.is_read_right());
    straddle.spoil(0, 0);
    assert!(straddle.is_read_right());
    straddle.spoil(1, 0);
    assert!(straddle.is_read_right());
    assert_eq!(straddle.volume.rescue_counts().blocks, 2);
    let corrupt = straddle.volume.devices()[0].errors.corruption_errors;
    assert_eq!(corrupt, 1 + 2, "one corrupt part was read, then two");
}
