//! References that are dropped before a power failure: files without copy-on-write that share
//! extents by the kernel's reflinks. One file drops its reference, the other one writes to the
//! extent, and the power fails before the drop is durable. The first file then has its old bytes.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

use crate::kernel_image::{KernelImage, kernel_is_here};
use crate::volume::place;
use butternut::device::{Counters, Device, DeviceError, FileDevice, OpenDevice, RecordingDevice};
use butternut::{Allocate, Error, File, Filesystem, MountOptions, Privileges};
use std::sync::{Arc, Mutex};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
const BYTES: u64 = 64 * 4096;
/// The block that is dropped in all ways, and written.
const MIDDLE: u64 = 32 * 4096;
const NEW: u8 = 0xaa;

type Call = Box<dyn FnMut() + Send>;

/// A device that calls a closure on another thread before each flush.
struct AtFlush {
    inner: Arc<RecordingDevice>,
    call: Mutex<Option<Call>>,
}

impl AtFlush {
    fn set(&self, call: Option<Call>) {
        *self.call.lock().unwrap() = call;
    }
}

impl std::fmt::Debug for AtFlush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Device for AtFlush {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, memory)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // The closure may flush, too.
        let call = self.call.lock().unwrap().take();
        if let Some(mut call) = call {
            std::thread::scope(|scope| scope.spawn(&mut call).join().unwrap());
            self.set(Some(call));
        }
        self.inner.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
}

/// How a file drops its reference to the middle block.
#[derive(Clone, Copy, Debug)]
enum Way {
    OverwriteMiddle,
    OverwriteAll,
    Punch,
    TruncateHalf,
    TruncateAll,
    Delete,
    /// The file has the extent twice, and drops the second half.
    DropOwn,
}

const WAYS: [Way; 7] = [
    Way::OverwriteMiddle,
    Way::OverwriteAll,
    Way::Punch,
    Way::TruncateHalf,
    Way::TruncateAll,
    Way::Delete,
    Way::DropOwn,
];

impl Way {
    fn drop_reference(self, fs: &Filesystem) {
        let middle = MIDDLE..MIDDLE + 4096;
        let file = || open(fs, "dropping");
        match self {
            Self::OverwriteMiddle => {
                assert_eq!(file().write_at(MIDDLE, &[7; BLOCK]).unwrap(), BLOCK);
            }
            Self::OverwriteAll => {
                assert_eq!(file().write_at(0, &vec![9; BLOCKS * BLOCK]).unwrap(), BLOCKS * BLOCK);
            }
            Self::Punch => file().allocate(middle, Allocate::PunchHole).unwrap(),
            Self::TruncateHalf => file().truncate(MIDDLE).unwrap(),
            Self::TruncateAll => file().truncate(0).unwrap(),
            Self::Delete => fs.unlink(fs.root(), b"dropping").unwrap(),
            Self::DropOwn => open(fs, "writing").truncate(BYTES).unwrap(),
        }
    }

    /// The file's bytes in the range of the extent after the drop; `None` if it is deleted.
    fn after(self, old: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = old.to_vec();
        let middle = BLOCKS / 2 * BLOCK;
        match self {
            Self::OverwriteMiddle => bytes[middle..middle + BLOCK].fill(7),
            Self::OverwriteAll => bytes.fill(9),
            Self::Punch => bytes[middle..middle + BLOCK].fill(0),
            Self::TruncateHalf => bytes.truncate(middle),
            Self::TruncateAll | Self::DropOwn => bytes.clear(),
            Self::Delete => return None,
        }
        Some(bytes)
    }

    /// Whether the writing file is the only one with the extent when the drop is durable.
    fn leaves_one(self) -> bool {
        matches!(self, Self::OverwriteAll | Self::TruncateAll | Self::Delete | Self::DropOwn)
    }
}

fn open(fs: &Filesystem, name: &str) -> File {
    fs.open_file(fs.lookup(fs.root(), name.as_bytes()).unwrap()).unwrap()
}

/// Makes two files that share an extent, or one that has it twice.
fn shared(way: Way) -> KernelImage {
    let script = format!(
        "touch writing dropping; chattr +C writing dropping
         head -c {BYTES} /dev/urandom > writing; sync -f ."
    );
    let image = KernelImage::make(1, &[], "", &script);
    let mounted = image.mount("rw");
    let file = |name| {
        let path = mounted.path().join(name);
        std::fs::File::options().read(true).write(true).open(path).unwrap()
    };
    let (writing, dropping) = (file("writing"), file("dropping"));
    let (target, mut to) =
        if matches!(way, Way::DropOwn) { (&writing, BYTES) } else { (&dropping, 0) };
    let (mut from, bytes) = (0, BLOCKS * BLOCK);
    let copied =
        rustix::fs::copy_file_range(&writing, Some(&mut from), target, Some(&mut to), bytes);
    assert_eq!(copied.unwrap(), bytes);
    drop((writing, dropping, mounted));
    image
}

fn read(file: &File, from: u64) -> Vec<u8> {
    let mut all = vec![0; usize::try_from(file.len()).unwrap()];
    file.read_exact_at(0, &mut all).unwrap();
    all.split_off(usize::try_from(from).unwrap().min(all.len()))
}

/// The bytes of the file that drops its reference; `None` if it is deleted.
fn dropping(fs: &Filesystem, way: Way) -> Option<Vec<u8>> {
    if matches!(way, Way::DropOwn) {
        return Some(read(&open(fs, "writing"), BYTES));
    }
    match fs.lookup(fs.root(), b"dropping") {
        Ok(id) => Some(read(&fs.open_file(id).unwrap(), 0)),
        Err(Error::NotFound) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Drops a reference and writes to the extent while the drop is being committed, before each flush.
fn write_while_a_drop_is_committed(way: Way) {
    let image = shared(way);
    let file = FileDevice::open(&image.devices[0], &OpenDevice::default()).unwrap();
    let recorder = Arc::new(RecordingDevice::new(Arc::new(file)));
    let device = Arc::new(AtFlush { inner: Arc::clone(&recorder), call: Mutex::default() });
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let devices = vec![Arc::<AtFlush>::clone(&device) as Arc<dyn Device>];
    let fs = Filesystem::open_devices(devices, &options).unwrap();
    let writing = open(&fs, "writing");
    let old_place = place(&writing, 0);
    let mut old = read(&writing, 0);
    old.truncate(BLOCKS * BLOCK);
    way.drop_reference(&fs);
    let cuts = Arc::new(Mutex::new(Vec::new()));
    let (file, log, positions) = (writing.clone(), Arc::clone(&recorder), Arc::clone(&cuts));
    device.set(Some(Box::new(move || {
        assert_eq!(file.write_direct(MIDDLE, &[NEW; BLOCK], Privileges::Keep).unwrap(), BLOCK);
        positions.lock().unwrap().push(log.position());
    })));
    fs.sync().unwrap();
    device.set(None);
    let recording = recorder.recording();
    let cuts = cuts.lock().unwrap().clone();
    assert!(!cuts.is_empty());
    for cut in cuts {
        let crashed: Arc<dyn Device> = Arc::new(recording.image_at(cut).unwrap());
        let crashed = Filesystem::open_devices(vec![crashed], &options).unwrap();
        let found = dropping(&crashed, way);
        let is_old = found.as_ref() == Some(&old);
        assert!(is_old || found == way.after(&old), "{way:?}, cut at {cut}");
    }
    // The drop is durable: what no other file has is written in place again.
    fs.sync().unwrap();
    assert_eq!(writing.write_at(0, &[NEW; BLOCK]).unwrap(), BLOCK);
    fs.sync().unwrap();
    assert_eq!(place(&writing, 0) == old_place, way.leaves_one(), "{way:?}");
    drop(writing);
    fs.close().unwrap();
}

#[test]
fn a_dropped_reference_is_respected_until_its_drop_is_durable() {
    if !kernel_is_here() {
        return;
    }
    for way in WAYS {
        write_while_a_drop_is_committed(way);
    }
}
