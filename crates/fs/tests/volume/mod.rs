//! Empty volumes in memory, made by our own mkfs; each that was written is checked when it is
//! closed, and opened again.

use butternut::device::{Device, MemoryDevice};
use butternut::format::inode::Time;
use butternut::{Clock, FileId, Filesystem, MountOptions, NewInode};
use butternut_check::{CheckOptions, Kind};
use butternut_mkfs::MkfsOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A volume in memory.
pub(crate) struct TestVolume {
    device: Arc<MemoryDevice>,
}

/// A clock that goes on a second with every look.
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
        let options = MountOptions {
            read_only: false,
            clock: Clock::new(ticking),
            ..MountOptions::default()
        };
        Filesystem::open_devices(self.devices(), &options).unwrap()
    }

    /// Closes the filesystem, checks the volume, and opens it for reading.
    pub(crate) fn reopen(&self, filesystem: Filesystem) -> Filesystem {
        filesystem.close().unwrap();
        self.check();
        Filesystem::open_devices(self.devices(), &MountOptions::default()).unwrap()
    }

    /// What a power cut now would leave.
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

    pub(crate) fn check(&self) {
        let options = CheckOptions { check_data_csum: true, ..CheckOptions::default() };
        let report = butternut_check::check(self.devices(), &options).unwrap();
        // What a test made a device fail is on record, as it should be.
        let findings = report.findings.iter().filter(|found| found.kind != Kind::DeviceErrors);
        let found: Vec<String> = findings.map(ToString::to_string).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

pub(crate) fn new(permissions: u32) -> NewInode {
    NewInode { permissions, umask: 0, uid: 1000, gid: 100 }
}

/// The names in a directory, sorted.
pub(crate) fn names(filesystem: &Filesystem, dir: FileId) -> Vec<String> {
    let entries = filesystem.read_dir(dir, butternut::FIRST_ENTRY).unwrap();
    let name = |entry: butternut::Result<butternut::DirEntry>| {
        String::from_utf8(entry.unwrap().name).unwrap()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}
