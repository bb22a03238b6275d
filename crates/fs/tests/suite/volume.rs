//! Empty volumes in memory, made by Butternut's mkfs. Each written volume is checked when it is
//! closed, and opened again.

use butternut::device::{Device, Fault, FaultyDevice, MemoryDevice, Rule};
use butternut::format::checksum::ChecksumKind;
use butternut::format::chunk::BlockGroupFlags;
use butternut::format::inode::Time;
use butternut::{
    AttributeFlags, Clock, ExtentKind, File, FileId, Filesystem, MountOptions, NewInode,
};
use butternut_check::{CheckOptions, Kind};
use butternut_mkfs::MkfsOptions;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::ScopedJoinHandle;

/// Bytes of the header of a leaf, and of the slot of an item.
pub(crate) const HEADER_BYTES: usize = 101;
pub(crate) const SLOT_BYTES: usize = 25;

/// Reads a 32-bit number of a block.
pub(crate) fn word(block: &[u8], at: usize) -> usize {
    usize::try_from(u32::from_le_bytes(block[at..at + 4].try_into().unwrap())).unwrap()
}

/// A volume in memory.
pub(crate) struct TestVolume {
    device: Arc<MemoryDevice>,
}

/// A clock that advances by one second at each call.
pub(crate) fn ticking() -> Time {
    static NOW: AtomicI64 = AtomicI64::new(1_700_000_000);
    Time { secs: NOW.fetch_add(1, Ordering::Relaxed), nanos: 7 }
}

impl TestVolume {
    pub(crate) fn new() -> Self {
        Self::of(512 << 20, &MkfsOptions::default())
    }

    pub(crate) fn of(bytes: u64, options: &MkfsOptions) -> Self {
        let device = Arc::new(MemoryDevice::new("memory", bytes));
        butternut_mkfs::make(&*device, options).unwrap();
        Self { device }
    }

    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        vec![Arc::clone(&self.device) as Arc<dyn Device>]
    }

    pub(crate) fn open(&self) -> Filesystem {
        let options = MountOptions::default().read_only(false).clock(Clock::new(ticking));
        Filesystem::open_devices(self.devices(), &options).unwrap()
    }

    /// Opens the volume over a device with faults that the test selects.
    pub(crate) fn open_faulty(&self, options: &MountOptions) -> (Arc<FaultyDevice>, Filesystem) {
        let device = Arc::new(FaultyDevice::new(self.devices().remove(0), 1));
        let devices = vec![Arc::clone(&device) as Arc<dyn Device>];
        let options = options.clone().read_only(false);
        (device, Filesystem::open_devices(devices, &options).unwrap())
    }

    /// Closes the filesystem, checks the volume, and opens it read-only.
    pub(crate) fn reopen(&self, filesystem: Filesystem) -> Filesystem {
        filesystem.close().unwrap();
        self.check();
        Filesystem::open_devices(self.devices(), &MountOptions::default()).unwrap()
    }

    /// Returns a copy of the volume as a power failure now would leave it.
    pub(crate) fn copy(&self) -> Self {
        Self::of_image(&self.image())
    }

    /// All bytes of the device.
    pub(crate) fn image(&self) -> Vec<u8> {
        let mut image = vec![0; usize::try_from(self.device.bytes()).unwrap()];
        self.device.read_at(0, &mut image).unwrap();
        image
    }

    pub(crate) fn of_image(image: &[u8]) -> Self {
        Self { device: Arc::new(MemoryDevice::copy_of("copy", image)) }
    }

    /// Returns a copy whose leaves `change` has changed, with valid checksums.
    pub(crate) fn with_leaves(&self, mut change: impl FnMut(&mut [u8]) -> bool) -> Self {
        const NODE_BYTES: usize = 16384;
        const CHECKSUM_BYTES: usize = 32;
        let mut image = self.image();
        let fsid = image[65536 + 0x20..65536 + 0x30].to_vec();
        let mut changes = 0;
        for at in (1 << 20..image.len()).step_by(NODE_BYTES) {
            let Some(block) = image.get_mut(at..at + NODE_BYTES) else { continue };
            let is_leaf = block[0x20..0x30] == fsid && block[100] == 0;
            if is_leaf && change(block) {
                changes += 1;
                let digest = ChecksumKind::Crc32c.compute(&block[CHECKSUM_BYTES..]);
                block[..CHECKSUM_BYTES].copy_from_slice(&digest);
            }
        }
        assert!(changes > 0);
        Self::of_image(&image)
    }

    pub(crate) fn check(&self) {
        let options = CheckOptions { check_data_csum: true, ..CheckOptions::default() };
        let report = butternut_check::check(self.devices(), &options).unwrap();
        // Device errors that the test has injected are recorded, as they must be.
        let findings = report.findings.iter().filter(|found| found.kind != Kind::DeviceErrors);
        let found: Vec<String> = findings.map(ToString::to_string).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

/// A rule that fails writes of file data, and no others.
pub(crate) fn failing_data(filesystem: &Filesystem) -> Rule {
    let chunks = filesystem.inspect().chunks();
    let chunk = chunks.iter().find(|chunk| chunk.flags.contains(BlockGroupFlags::DATA)).unwrap();
    let at = chunk.stripes[0].1;
    Rule::at(at..at + chunk.bytes, Fault::WriteError)
}

pub(crate) fn new(permissions: u32) -> NewInode {
    NewInode { permissions, umask: 0, uid: 1000, gid: 100 }
}

/// Makes a file in the root directory, with attribute flags.
pub(crate) fn make(filesystem: &Filesystem, name: &str, flags: u32) -> File {
    let id = filesystem.create(filesystem.root(), name.as_bytes(), &new(0o644)).unwrap();
    filesystem.set_attribute_flags(id, AttributeFlags(flags)).unwrap();
    filesystem.open_file(id).unwrap()
}

/// Returns the names in a directory, sorted.
pub(crate) fn names(filesystem: &Filesystem, dir: FileId) -> Vec<String> {
    let entries = filesystem.read_dir(dir, butternut::FIRST_ENTRY).unwrap();
    let name = |entry: butternut::Result<butternut::DirEntry>| {
        String::from_utf8(entry.unwrap().name).unwrap()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

/// Returns the address of a block of a file on disk.
pub(crate) fn place(file: &File, at: u64) -> u64 {
    let extent = file.extents(at..at + 4096).next().unwrap().unwrap();
    let ExtentKind::Regular { logical, extent_offset, .. } = extent.kind else {
        panic!("{:?}", extent.kind);
    };
    logical + extent_offset + at - extent.offset
}

/// Replaces the contents of the file at a path; creates it if it does not exist.
pub(crate) fn write(filesystem: &Filesystem, path: &str, bytes: &[u8]) {
    let file = filesystem
        .open_path(path.as_bytes())
        .unwrap_or_else(|_| filesystem.create_path(path.as_bytes(), &new(0o644)).unwrap());
    file.truncate(0).unwrap();
    file.write_at(0, bytes).unwrap();
}

/// Returns the contents of the file at a path.
pub(crate) fn read(filesystem: &Filesystem, path: &str) -> Vec<u8> {
    let file = filesystem.open_path(path.as_bytes()).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len()).unwrap()];
    file.read_exact_at(0, &mut bytes).unwrap();
    bytes
}

/// Makes changes, at most as many as `rounds` has, as long as all readers go on. Then it sets
/// `done`, which ends them, and returns when they have ended.
pub(crate) fn change_beside<const N: usize>(
    readers: [ScopedJoinHandle<'_, ()>; N],
    done: &AtomicBool,
    rounds: Range<usize>,
    mut change: impl FnMut(usize),
) {
    for round in rounds {
        change(round);
        if readers.iter().any(ScopedJoinHandle::is_finished) {
            break;
        }
    }
    done.store(true, Ordering::Release);
    for reader in readers {
        reader.join().unwrap();
    }
}
