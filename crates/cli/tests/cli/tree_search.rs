//! The calls that read trees, and the call that waits for deletions, on a mount.

use std::ffi::OsStr;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use butternut_sys::subvolume_calls as calls;
use butternut_sys::tree_search_calls::{ItemKey, path_of_inode, search};
use rustix::process::{Pid, Signal, kill_process};

use super::command::{butternut, command, run};
use super::image::{KernelMount, kernel, kernel_tests_enabled};
use super::mount::MountPoint;

/// The number of ioctl(2).
const IOCTL: u32 = if cfg!(target_arch = "x86_64") { 16 } else { 29 };

const INODE_ITEM: u8 = 1;
const ROOT_ITEM: u8 = 132;
/// The trees that have no root item.
const ROOT_TREE: u64 = 1;
const CHUNK_TREE: u64 = 3;

type Items = Vec<(ItemKey, Vec<u8>)>;

fn items(fd: BorrowedFd<'_>, tree: u64) -> Items {
    let mut items = Items::new();
    let keys = (0, 0, 0)..=(u64::MAX, u8::MAX, u64::MAX);
    search(fd, tree, keys, &mut |key, data| {
        items.push((key, data.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    items
}

/// Returns the ids of all trees of a volume.
fn trees(fd: BorrowedFd<'_>) -> Vec<u64> {
    let roots = items(fd, ROOT_TREE);
    let with_root = roots.iter().filter(|((_, item_type, _), _)| *item_type == ROOT_ITEM);
    let mut trees = vec![ROOT_TREE, CHUNK_TREE];
    trees.extend(with_root.map(|((tree, _, _), _)| *tree));
    trees
}

#[test]
fn a_mount_shows_the_items_and_paths_that_the_kernel_shows() {
    if !kernel_tests_enabled("a_mount_shows_the_items_and_paths_that_the_kernel_shows") {
        return;
    }
    let theirs = KernelMount::new();
    let ours = MountPoint::new();
    butternut(&["mount", "-o", "ro", kernel().to_str().unwrap(), ours.name()]).ok();
    let open = |path: &Path| File::open(path).unwrap();
    let (our_root, their_root) = (open(ours.path()), open(theirs.path()));
    let trees = trees(our_root.as_fd());
    assert!(trees.len() > 10, "{trees:?}");
    let mut paths = 0;
    for tree in trees {
        let found = items(our_root.as_fd(), tree);
        assert!(found == items(their_root.as_fd(), tree), "tree {tree}");
        let is_subvolume = tree == 5 || (256..1 << 48).contains(&tree);
        let inodes = found.iter().filter(|((_, item_type, _), _)| *item_type == INODE_ITEM);
        for ((inode, _, _), _) in inodes.filter(|_| is_subvolume) {
            let path = |root: &File| {
                let path = path_of_inode(root.as_fd(), tree, *inode);
                path.map_err(|error| error.raw_os_error())
            };
            let (our_path, their_path) = (path(&our_root), path(&their_root));
            paths += usize::from(our_path.is_ok());
            if our_path != their_path {
                // Two names of one file.
                let found = |path: Result<Vec<u8>, _>| {
                    let path = theirs.path().join(OsStr::from_bytes(&path.unwrap()));
                    std::fs::symlink_metadata(path).unwrap().ino()
                };
                assert_eq!((tree, found(our_path)), (5, found(their_path)), "inode {inode}");
            }
        }
    }
    assert!(paths > 30, "{paths} paths");
    for (tree, inode) in [(5, 1 << 40), (9999, 257), (4, 257)] {
        let refused = |root: &File| {
            path_of_inode(root.as_fd(), tree, inode).map_err(|error| error.raw_os_error())
        };
        assert_eq!(refused(&our_root).is_err(), refused(&their_root).is_err(), "{tree} {inode}");
    }
    let keys = (0, 0, 0)..=(u64::MAX, u8::MAX, u64::MAX);
    let missing = |root: &File| {
        let found = search(root.as_fd(), 9999, keys.clone(), &mut |_, _| ControlFlow::Continue(()));
        found.map_err(|error| error.raw_os_error())
    };
    assert_eq!(missing(&our_root), missing(&their_root));
    drop(our_root);
    butternut(&["umount", ours.name()]).ok();
}

#[test]
fn every_user_gets_the_path_of_a_root_directory() {
    // The results of the call for the directory that is the standard input.
    const LOOKUP: &str = r#"open(my $d, "<&=0") or die $!; my ($tree, $inode) = @ARGV;
        my $a = pack("QQx4080", $tree, $inode);
        ioctl($d, 0xd0009412, $a) ? printf("%vd", substr($a, 0, 17)) : print "errno ", $! + 0"#;
    if !kernel_tests_enabled("every_user_gets_the_path_of_a_root_directory") {
        return;
    }
    let theirs = KernelMount::new();
    let ours = MountPoint::new();
    let image = kernel().to_str().unwrap();
    butternut(&["mount", "-o", "ro,allow_other", image, ours.name()]).ok();
    let seen = |at: &Path| {
        let look_up = |(tree, inode): &(u64, u64)| {
            let ran = std::process::Command::new("setpriv")
                .args(["--reuid=12345", "--regid=12345", "--clear-groups", "perl", "-e", LOOKUP])
                .args([tree.to_string(), inode.to_string()])
                .stdin(File::open(at).unwrap())
                .output()
                .unwrap();
            String::from_utf8(ran.stdout).unwrap()
        };
        let calls = [(0, 256), (5, 256), (256, 256), (9999, 256), (0, 257), (5, 257)];
        calls.iter().map(look_up).collect::<Vec<_>>()
    };
    let found = seen(ours.path());
    assert_eq!(found, seen(theirs.path()));
    // The numbers 5 and 256 in eight bytes each, and an empty path.
    assert!(found[1] == "5.0.0.0.0.0.0.0.0.1.0.0.0.0.0.0.0", "{found:?}");
    assert_eq!(found[5], "errno 1");
    butternut(&["umount", ours.name()]).ok();
}

/// A subvolume is not freed while a file in it is open. A program that waits for it ends on a
/// signal.
#[test]
fn a_program_that_waits_for_a_deletion_can_be_ended() {
    if !kernel_tests_enabled("a_program_that_waits_for_a_deletion_can_be_ended") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img");
    let image = image.to_str().unwrap();
    butternut(&["mkfs", "--size", "256M", image]).ok();
    let mount_point = MountPoint::new();
    butternut(&["mount", image, mount_point.name()]).ok();
    let root = File::open(mount_point.path()).unwrap();
    calls::create(root.as_fd(), b"sub").unwrap();
    let path = mount_point.path().join("sub");
    let id = calls::info(File::open(&path).unwrap().as_fd()).unwrap().id;
    std::fs::write(path.join("file"), "data").unwrap();
    let file = File::open(path.join("file")).unwrap();
    calls::delete(root.as_fd(), b"sub").unwrap();
    let mut waiting = command()
        .args(["subvolume", "sync", mount_point.name(), &id.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&waiting);
    // The program has made the call: its thread is in the kernel, in an ioctl.
    while !is_in_ioctl(pid) {
        assert_eq!(waiting.try_wait().unwrap(), None, "it waits");
        std::thread::yield_now();
    }
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(waiting.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    let wait = calls::wait_until_cleaned(root.as_fd(), Some(256 + 99));
    assert_eq!(wait.unwrap_err().raw_os_error(), Some(2));
    drop((file, root));
    butternut(&["umount", mount_point.name()]).ok();
    butternut(&["subvolume", "sync", image]).ok();
    assert_eq!(butternut(&["subvolume", "list", "-d", image]).ok(), "");
    run("btrfs", &["check", image].map(AsRef::as_ref));
}

/// The kernel has the names of what is in use in its cache when a subvolume is deleted.
#[test]
fn a_deleted_subvolume_is_freed_when_the_last_program_has_left_it() {
    const PAUSE: Duration = Duration::from_millis(500);
    if !kernel_tests_enabled("a_deleted_subvolume_is_freed_when_the_last_program_has_left_it") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img");
    let image = image.to_str().unwrap();
    butternut(&["mkfs", "--size", "256M", image]).ok();
    let mount_point = MountPoint::new();
    butternut(&["mount", image, mount_point.name()]).ok();
    let root = File::open(mount_point.path()).unwrap();
    calls::create(root.as_fd(), b"sub").unwrap();
    let path = mount_point.path().join("sub");
    let (deep, inner) = (path.join("a/b"), path.join("c/d"));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::write(deep.join("file"), "data").unwrap();
    let file = File::open(deep.join("file")).unwrap();
    let mut inside = std::process::Command::new("sleep");
    let mut inside = inside.arg("600").current_dir(&inner).spawn().unwrap();
    calls::delete(root.as_fd(), b"sub").unwrap();
    let sync = ["subvolume", "sync", mount_point.name()];
    let mut waiting = command().args(sync).spawn().unwrap();
    std::thread::sleep(PAUSE);
    let first = waiting.try_wait().unwrap();
    drop(file);
    std::thread::sleep(PAUSE);
    let second = waiting.try_wait().unwrap();
    inside.kill().unwrap();
    inside.wait().unwrap();
    assert_eq!((first, second), (None, None), "a program is in the subvolume");
    let since = Instant::now();
    while waiting.try_wait().unwrap().is_none() {
        if since.elapsed() > Duration::from_secs(30) {
            waiting.kill().unwrap();
            panic!("the subvolume is not freed");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(waiting.wait().unwrap().success());
    drop(root);
    butternut(&["umount", mount_point.name()]).ok();
    run("btrfs", &["check", image].map(AsRef::as_ref));
}

fn is_in_ioctl(pid: Pid) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{}/syscall", pid.as_raw_nonzero()));
    let number = call.unwrap_or_default().split(' ').next().and_then(|call| call.parse().ok());
    number == Some(IOCTL)
}
