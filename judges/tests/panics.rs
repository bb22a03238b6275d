//! A panic while a mount serves a request: the caller gets `EIO`, reads continue, and no part of
//! the interrupted change reaches the volume.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use butternut::device::{Device, MemoryDevice};
use butternut::format::inode::Time;
use butternut::{Clock, Filesystem, Follow, MountOptions, NewInode};
use butternut_fuse::{Options, Unmounter};
use butternut_judges::kernel_mount::mount_point;
use butternut_mkfs::MkfsOptions;
use butternut_undo::MountGuard;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static CLOCK_PANICS: AtomicBool = AtomicBool::new(false);

/// The clock of changes. Here a test can make the engine panic.
fn clock() -> Time {
    assert!(!CLOCK_PANICS.load(Ordering::SeqCst), "a panic that the test injects");
    Time { secs: 1_700_000_000, nanos: 0 }
}

fn open(device: &Arc<dyn Device>) -> Filesystem {
    let clock = Clock::new(clock);
    // No commit in the background: it would panic before the request does.
    let options = MountOptions::default().read_only(false).clock(clock).commit_seconds(0);
    Filesystem::open_devices(vec![Arc::clone(device)], &options).unwrap()
}

/// Unmounts and removes the directory, also if the test fails.
struct MountPoint(
    PathBuf,
    Unmounter,
    #[expect(dead_code, reason = "kept for its drop")] MountGuard,
);

impl Drop for MountPoint {
    fn drop(&mut self) {
        self.1.unmount().ok();
        std::fs::remove_dir(&self.0).ok();
    }
}

#[test]
fn a_panic_fails_its_request_and_ends_writing() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", 256 << 20));
    butternut_mkfs::make(&*device, &MkfsOptions::default()).unwrap();
    let fs = open(&device);
    fs.mkdir(fs.root(), b"before", &NewInode::new(0o755)).unwrap();
    fs.sync().unwrap();
    let reports = Arc::new(AtomicU32::new(0));
    let root = mount_point("panics").unwrap();
    let options = Options { is_writable: true, threads: 3, ..Options::default() };
    let counted = Arc::clone(&reports);
    let report = Box::new(move |_: &(dyn std::error::Error + 'static)| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let guard = MountGuard::before_mount(&root).unwrap();
    let mounted = butternut_fuse::mount(fs, &root, &options, report).unwrap();
    let mount_point = MountPoint(root.clone(), mounted.unmounter(), guard);
    let served = std::thread::spawn(move || mounted.start()?.wait());
    CLOCK_PANICS.store(true, Ordering::SeqCst);
    // More requests than threads, so that a lost thread would be noticed.
    let errno = |name: &str| {
        let made = std::fs::create_dir(root.join(name));
        made.unwrap_err().raw_os_error().unwrap()
    };
    assert_eq!(errno("first"), 5);
    for number in 0..5 {
        assert_eq!(errno(&format!("later {number}")), 30);
    }
    CLOCK_PANICS.store(false, Ordering::SeqCst);
    assert_eq!(errno("last"), 30);
    assert!(std::fs::metadata(root.join("before")).unwrap().is_dir());
    let names: Vec<_> = std::fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["before"]);
    assert_eq!(reports.load(Ordering::SeqCst), 1);
    drop(mount_point);
    assert!(
        served.join().unwrap().is_err(),
        "closing reports no error, though the last changes are not committed"
    );
    let fs = open(&device);
    assert!(fs.resolve(b"before", Follow::Last).is_ok());
    assert!(fs.resolve(b"first", Follow::Last).is_err());
}
