//! Queues on volumes of several devices: what waits for devices, and what does not.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

use crate::kernel_image::{KernelImage, kernel_is_here};
use butternut::device::{
    Alignment, Counters, Device, DeviceError, FileDevice, OpenDevice, RingTarget, WriteCache,
};
use butternut::queue::{IoFlags, Queue, QueueOptions, Refused};
use butternut::{Error, File, Filesystem, MountOptions, NewInode};
use butternut_sys::forbid::forbid_rings_on_this_thread;
use std::sync::{Arc, Condvar, Mutex};

const BLOCK: usize = 4096;
const DEPTH: usize = 2;

/// Whether devices hold writes, and how many they hold.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn close(&self, is_closed: bool) {
        self.state.lock().unwrap().0 = is_closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.0).unwrap();
        state.1 -= 1;
    }

    fn wait_for_held(&self, count: usize) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| state.1 < count));
    }
}

/// A device whose writes a test can hold. Without a ring, a pool of threads calls it.
#[derive(Debug)]
struct Gated {
    file: FileDevice,
    gate: Arc<Gate>,
}

impl Device for Gated {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn alignment(&self) -> Alignment {
        self.file.alignment()
    }

    fn write_cache(&self) -> WriteCache {
        self.file.write_cache()
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.file.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.gate.pass();
        self.file.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.file.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.file.discard(offset, bytes)
    }

    fn ring_target(&self) -> Option<RingTarget<'_>> {
        self.file.ring_target()
    }

    fn counters(&self) -> &Counters {
        self.file.counters()
    }
}

fn open(image: &KernelImage, gate: &Arc<Gate>) -> Filesystem {
    let how = OpenDevice { writable: true, ..OpenDevice::default() };
    let devices = image.devices.iter().map(|path| {
        let file = FileDevice::open(path, &how).unwrap();
        Arc::new(Gated { file, gate: Arc::clone(gate) }) as Arc<dyn Device>
    });
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    Filesystem::open_devices(devices.collect(), &options).unwrap()
}

fn write(queue: &mut Queue, file: &File, block: usize) {
    let mut buffer = queue.buffer(BLOCK).unwrap();
    buffer.fill(2);
    let offset = (block * BLOCK) as u64;
    queue.write(file, offset, buffer, IoFlags::DIRECT, block as u64).unwrap();
}

/// A write of more than a stripe is several writes of devices, which the caller waits for.
#[test]
fn a_nowait_write_of_more_than_a_stripe_is_refused() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(2, &["-d", "raid0", "-m", "raid0"], "", "true");
    let fs = open(&image, &Arc::default());
    let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    file.write_at(0, &vec![1; 64 * BLOCK]).unwrap();
    fs.sync().unwrap();
    let mut queue = fs.queue(&QueueOptions::default()).unwrap();
    let mut write = |bytes: usize, flags: IoFlags, fill: u8| {
        let mut buffer = queue.buffer(bytes).unwrap();
        buffer.fill(fill);
        queue.write(&file, 0, buffer, IoFlags::DIRECT.with(flags), 0)?;
        let mut done = Vec::new();
        assert_eq!(queue.reap(1, None, &mut done), 1);
        assert_eq!(*done[0].result.as_ref().unwrap(), bytes);
        Ok::<_, Box<Refused>>(())
    };
    let bytes = 32 * BLOCK;
    write(bytes, IoFlags::default(), 2).unwrap();
    write(BLOCK, IoFlags::NOWAIT, 3).unwrap();
    let before = fs.stat(id).unwrap();
    let refused = write(bytes, IoFlags::NOWAIT, 4).unwrap_err();
    assert!(matches!(refused.error, Error::WouldBlock), "{}", refused.error);
    let after = fs.stat(id).unwrap();
    assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime), "nothing was done");
    write(bytes, IoFlags::default(), 5).unwrap();
    drop(queue);
    let mut held = vec![0; bytes];
    assert_eq!(file.read_at(0, &mut held).unwrap(), bytes);
    assert!(held.iter().all(|byte| *byte == 5));
    drop(file);
    fs.close().unwrap();
}

/// With three copies, each write is three requests of devices, and as many writes as the queue
/// accepts are in flight together.
#[test]
fn a_submit_does_not_wait_for_earlier_writes() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(3, &["-d", "raid1c3", "-m", "raid1c3"], "", "true");
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            forbid_rings_on_this_thread().unwrap();
            let gate = Arc::default();
            let fs = open(&image, &gate);
            let id = fs.create(fs.root(), b"file", &NewInode::new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            file.write_at(0, &vec![1; 64 * BLOCK]).unwrap();
            fs.sync().unwrap();
            let mut queue = fs.queue(&QueueOptions::default().depth(DEPTH)).unwrap();
            gate.close(true);
            for number in 0..DEPTH {
                write(&mut queue, &file, 8 * number);
                queue.submit();
            }
            gate.wait_for_held(3 * DEPTH);
            gate.close(false);
            let mut done = Vec::new();
            assert_eq!(queue.reap(DEPTH, None, &mut done), DEPTH);
            assert!(done.iter().all(|done| done.result.is_ok()));
            drop((queue, file));
            fs.close().unwrap();
        });
        thread.join().unwrap();
    });
}
