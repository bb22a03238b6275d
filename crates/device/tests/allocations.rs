//! In a steady state, aligned reads and writes allocate no memory.

use butternut_device::{Device, FileDevice, OpenDevice, QueuePair, ReadInto, Request};
use butternut_sys::allocations::{CountingAllocator, allocations_of};
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Buffers;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_steady_queue_pair_allocates_nothing() {
    let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    image.as_file().set_len(4 << 20).unwrap();
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let device = FileDevice::open(image.path(), &how).unwrap();
    assert!(device.is_direct());
    let devices: [Arc<dyn Device>; 1] = [Arc::new(device)];
    let mut pair = QueuePair::new(devices, 32);

    let mut memory = Buffer::zeroed(1 << 20);
    let mut batch: Vec<_> = memory
        .chunks_mut(4096)
        .zip(0..)
        .map(|(memory, at)| ReadInto::new(0, at * 8192, memory))
        .collect();
    pair.run(&mut batch);
    let (borrowed, ()) = allocations_of(|| {
        for _ in 0..10 {
            pair.run(&mut batch);
        }
    });
    assert!(batch.iter().all(|read| read.result.is_ok()));
    assert_eq!(borrowed, 0, "run");

    let mut unaligned = vec![0; 5000];
    let mut batch = [ReadInto::new(0, 333, &mut unaligned)];
    pair.run(&mut batch);
    let (bounced, ()) = allocations_of(|| pair.run(&mut batch));
    assert_eq!(bounced, 0, "a bounce");

    let mut out = Vec::with_capacity(32);
    let mut spare: Vec<_> = (0..32).map(|_| Buffer::zeroed(4096)).collect();
    let (owned, ()) = allocations_of(|| {
        for _ in 0..10 {
            for (buffer, tag) in spare.drain(..).zip(0..) {
                assert!(pair.submit(Request::read(0, tag * 4096, buffer, tag)).is_ok());
            }
            pair.poll(32, None, &mut out);
            spare.extend(out.drain(..).map(|done| done.load.into_one().unwrap()));
        }
    });
    assert_eq!((owned, spare.len()), (0, 32), "submit and poll");

    let mut lists: Vec<Vec<Buffer>> =
        (0..8).map(|_| (0..9).map(|_| Buffer::zeroed(4096)).collect()).collect();
    let mut write_lists = |pair: &mut QueuePair| {
        for (list, tag) in lists.drain(..).zip(0..) {
            assert!(pair.submit(Request::write(0, tag << 16, list, tag)).is_ok());
        }
        pair.poll(8, None, &mut out);
        lists.extend(out.drain(..).map(|done| match done.load.into_buffers().unwrap() {
            Buffers::Many(list) => list,
            Buffers::One(_) => Vec::new(),
        }));
    };
    write_lists(&mut pair);
    let (from_lists, ()) = allocations_of(|| (0..10).for_each(|_| write_lists(&mut pair)));
    assert_eq!(from_lists, 0, "writes from several buffers");
    assert!(lists.iter().all(|list| list.len() == 9));
}
