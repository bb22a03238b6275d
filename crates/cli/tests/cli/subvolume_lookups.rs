//! Calls that tell of a volume, its devices and its subvolumes: the same script on a mount of ours
//! and on one of the kernel, with the same results.

use super::command::{butternut, run, shell};
use super::hostile::{new, rewrite_items, volume};
use super::image::kernel_tests_enabled;
use super::mount::MountPoint;
use super::subvolume_renames::{assert_same_lines, mount_by_kernel, outcome_of, unmount_by_kernel};

const INODE_REF: u8 = 12;
const SCRIPT: &str = include_str!("subvolume_lookups.py");

#[test]
fn a_mount_tells_of_devices_and_subvolumes_as_the_kernel_does() {
    if !kernel_tests_enabled("a_mount_tells_of_devices_and_subvolumes_as_the_kernel_does") {
        return;
    }
    let check = |image: &str| {
        run("btrfs", &["check", image].map(AsRef::as_ref));
    };
    let kernels = outcome_of(SCRIPT, mount_by_kernel, unmount_by_kernel, check);
    let ours = outcome_of(
        SCRIPT,
        |image, at| {
            butternut(&["mount", "-o", "allow_other", image, at]).ok();
        },
        |at| {
            butternut(&["umount", "-q", at]).ok();
        },
        check,
    );
    assert_same_lines(&ours.0, &kernels.0, "calls");
    assert!(kernels.0.lines().count() > 700, "{}", kernels.0);
}

/// `FS_INFO` with its argument in a mapping of a file of the same mount, of which no page is in
/// memory: a server that reads it waits for itself.
const ARGUMENT_IN_A_FILE: &str = "
import ctypes, mmap, os, sys, threading
CALLS, APART = 12, 1 << 20
fd = os.open(sys.argv[1] + '/file', os.O_RDWR | os.O_CREAT)
os.pwrite(fd, bytes(CALLS * APART), 0)
os.fsync(fd)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
both = mmap.PROT_READ | mmap.PROT_WRITE
at = libc.mmap(None, ctypes.c_size_t(CALLS * APART), both, mmap.MAP_SHARED, fd, ctypes.c_long(0))
top = os.open(sys.argv[1], os.O_RDONLY)
done = []
def call(number):
    done.append(libc.ioctl(top, 0x8400941f, at + number * APART))
threads = [threading.Thread(target=call, args=[number]) for number in range(CALLS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(done)
";

#[test]
fn a_call_whose_argument_is_in_a_file_of_the_mount_ends() {
    if !kernel_tests_enabled("a_call_whose_argument_is_in_a_file_of_the_mount_ends") {
        return;
    }
    let mount = |image: &str, at: &str| {
        butternut(&["mount", image, at]).ok();
    };
    let unmount = |at: &str| {
        butternut(&["umount", "-q", at]).ok();
    };
    let (said, ()) = outcome_of(ARGUMENT_IN_A_FILE, mount, unmount, |_| ());
    assert_eq!(said.trim(), format!("{:?}", [0; 12]));
}

/// The reference of a directory names a file as its parent.
#[test]
fn a_lookup_in_a_directory_whose_parent_is_a_file_ends() {
    if !kernel_tests_enabled("a_lookup_in_a_directory_whose_parent_is_a_file_ends") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = volume(scratch.path(), |filesystem| {
        let root = filesystem.root();
        assert_eq!(filesystem.create(root, b"file", &new()).unwrap().ino, 257);
        assert_eq!(filesystem.mkdir(root, b"dir", &new()).unwrap().ino, 258);
    });
    rewrite_items(&image, |key, _| {
        let is_it = key[..8] == 258_u64.to_le_bytes() && key[8] == INODE_REF;
        if is_it {
            key[9..17].copy_from_slice(&257_u64.to_le_bytes());
        }
        is_it
    });
    let mount_point = MountPoint::new();
    butternut(&["mount", image.to_str().unwrap(), mount_point.name()]).ok();
    let said = shell(&format!(
        "python3 -c \"
import errno, fcntl, os, struct
top = os.open('{}', os.O_RDONLY)
try:
    fcntl.ioctl(top, 0xd000943e, bytearray(struct.pack('<QQ4080x', 258, 5)), True)
except OSError as error:
    print(errno.errorcode[error.errno])\"",
        mount_point.name()
    ));
    butternut(&["umount", "-q", mount_point.name()]).ok();
    assert_eq!(said.trim(), "ENOTDIR");
}
