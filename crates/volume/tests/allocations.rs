//! In a steady state, reads and writes of a data queue allocate no memory.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod set;

use butternut_device::{Backend, Device, FileDevice, OpenDevice};
use butternut_format::chunk::BlockGroupFlags;
use butternut_format::units::Logical;
use butternut_sys::allocations::{CountingAllocator, allocations_of};
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Buffers;
use butternut_volume::{Checksums, DataQueueOptions};
use set::{DEVICE_BYTES, START, volume_of};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_steady_data_queue_allocates_nothing() {
    for profile in [BlockGroupFlags(0), BlockGroupFlags::DUP] {
        let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        image.as_file().set_len(DEVICE_BYTES).unwrap();
        let how = OpenDevice { writable: true, ..OpenDevice::default() };
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(image.path(), &how).unwrap());
        let volume = volume_of(profile, vec![device]);
        let options = DataQueueOptions { depth: 32, ..DataQueueOptions::default() };
        let mut queue = volume.data_queue(&options);
        assert_eq!(queue.backend(), Backend::Ring);
        let mut spare: Vec<Buffer> = (0..32).map(|_| Buffer::zeroed(4096)).collect();
        let mut rows: Vec<Buffers> = (0..16)
            .map(|nth| match nth % 2 {
                0 => Buffers::from(Buffer::zeroed(4096)),
                _ => Buffers::from(vec![Buffer::zeroed(4096), Buffer::zeroed(8192)]),
            })
            .collect();
        let mut done = Vec::with_capacity(32);
        let mut round = || {
            for (buffer, tag) in spare.drain(..).zip(0..) {
                let taken = queue.read(&volume, Logical(START + tag * 4096), buffer, tag);
                assert!(taken.is_ok());
            }
            queue.submit();
            queue.poll(&volume, 32, None, &mut done).expect("the queue of this volume");
            for done in done.drain(..) {
                let buffer = done.buffers.into_one().unwrap();
                assert!(done.result.is_ok() && volume.verify(&buffer, Checksums::None));
                spare.push(buffer);
            }
            for (row, tag) in rows.drain(..).zip(0..) {
                let taken = queue.write(&volume, Logical(START + tag * 65536), row, tag);
                assert!(taken.is_ok());
            }
            queue.poll(&volume, 16, None, &mut done).expect("the queue of this volume");
            rows.extend(done.drain(..).map(|done| done.buffers));
        };
        round();
        let (allocations, ()) = allocations_of(|| (0..10).for_each(|_| round()));
        assert_eq!(allocations, 0);
        assert_eq!((spare.len(), rows.len()), (32, 16));
    }
}
