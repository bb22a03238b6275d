//! `dedupe` of a mounted volume: the same script on a mount of ours and on one of the kernel, with
//! the same results. Both volumes are checked at the end.

use std::fs::{self, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use butternut_sys::extent_calls::{dedupe, extents};
use butternut_undo::MountGuard;

use super::command::{butternut, command, run, script_on_mount};
use super::image::kernel_tests_enabled;

/// As for [`script_on_mount`]: prints what each command did, without what differs from mount to
/// mount.
const SCRIPT: &str = r#"
chmod 777 .
umask 022
# Bytes that compress, of a kind.
data() {
    [ -e "$M.data$1" ] || od -An -v -tx1 -N 1000000 /dev/urandom | tr -d ' \n' > "$M.data$1"
    head -c "$2" "$M.data$1"
}
sums() { find . -xdev -type f -print0 | sort -z | xargs -0 sha256sum; }

mkdir dir
data 1 1500000 > dir/a
data 1 1500000 > dir/b
{ data 2 524288; data 1 1048576; } > dir/part
truncate -s 20M dir/sparse
data 1 1500000 | dd of=dir/sparse bs=1M seek=8 conv=notrunc status=none
head -c 1000000 /dev/zero > dir/zeros
cp dir/zeros dir/zeros2
ln dir/a dir/hard
ln -s a dir/link
mkfifo dir/fifo
data 3 300000 > dir/closed
chmod 0 dir/closed
"$B" subvolume create ./sub > /dev/null
data 1 1500000 > sub/c
"$B" subvolume snapshot -r ./sub ./ro
data 4 400000 > sub/late
cp sub/late dir/late
mkdir dir/other
mount -t tmpfs none dir/other
data 1 1500000 > dir/other/x
touch plain none
chattr +C none
data 5 500000 > plain
data 5 500000 > none
sync -f .
sums > "$M.sums"

try "$B" dedupe -n dir sub ro plain none
try "$B" dedupe dir sub ro plain none
sums | cmp - "$M.sums" && echo "all bytes are the same"
sleep 0.2
try "$B" dedupe --index "$M.index" "$M"
try "$B" dedupe --index "$M.index" "$M"
echo more >> dir/late
try "$B" -q dedupe --index "$M.index" "$M"
try "$B" dedupe dir/a dir/b
try "$B" dedupe dir/a dir/link
try "$B" dedupe dir/missing dir/a
try "$B" dedupe dir/other

# Another user: own files, and those that the user may write to.
mkdir theirs; chown 12345:12345 theirs
user sh -c 'umask 077; cat dir/part > theirs/one; cat dir/part > theirs/two'
data 6 600000 > public; chmod 666 public
data 6 600000 > protected; chmod 644 protected
data 6 600000 > secret; chmod 600 secret
sync -f .
try user "$B" dedupe theirs
try user "$B" dedupe protected public
try user "$B" dedupe protected secret public
try user "$B" dedupe public protected
mkdir "$M.ro"
mount --bind "$M" "$M.ro"
mount -o remount,bind,ro "$M.ro"
data 7 700000 > r1; data 7 700000 > r2
try "$B" dedupe "$M.ro/r1" "$M.ro/r2"
umount "$M.ro"
try "$B" dedupe "$M/r1" "$M/r2"
chattr +i r1
data 7 700000 > r3
try "$B" dedupe r3 r1
chattr -i r1
umount dir/other
"#;

/// Two files with the same bytes, of which one has the halves the other way round.
const SWAPPED: &str = r#"
set -e
od -An -v -tx1 -N 65536 /dev/urandom | tr -d ' \n' > s
sync -f .
{ tail -c 65536 s; head -c 65536 s; } > t
sync -f .
"$B" dedupe --block 64K s t
sync -f .
"$B" dedupe --block 64K s t
"#;

/// Three copies, of which the first one has no checksums.
const COPIES: &str = r#"
set -e
head -c 300000 /dev/urandom > a
sync -f .
mount -o remount,datasum .
cp --reflink=never a b
cp --reflink=never a c
sync -f .
"$B" dedupe a b c
"#;

fn script(mountpoint: &str) -> String {
    script_on_mount(mountpoint, SCRIPT, &[])
}

/// Mounts a new volume by the kernel or by ours with these options, calls `run_on` with the mount
/// point, unmounts and checks it. Returns the result, and the bytes of data that are left.
fn on_mount<R>(is_kernel: bool, options: &str, run_on: impl FnOnce(&str) -> R) -> (R, String) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
    fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let _inner = MountGuard::before_mount(&at.join("dir/other")).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    // Other users pass through.
    run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
    butternut(&["mkfs", "--size", "512M", image]).ok();
    if is_kernel {
        run("mount", &["-o", &format!("loop{options}"), image, at].map(AsRef::as_ref));
    } else {
        butternut(&["mount", "-o", &format!("allow_other{options}"), image, at]).ok();
    }
    let result = run_on(at);
    if is_kernel {
        run("umount", &[at].map(AsRef::as_ref));
    } else {
        butternut(&["umount", "-q", at]).ok();
    }
    run("btrfs", &["check", "--check-data-csum", image].map(AsRef::as_ref));
    let used = butternut(&["filesystem", "du", "-s", image, "/"]).ok();
    (result, used)
}

#[test]
fn a_mount_of_ours_deduplicates_as_the_kernels_does() {
    if !kernel_tests_enabled("a_mount_of_ours_deduplicates_as_the_kernels_does") {
        return;
    }
    for options in ["", ",compress=zstd"] {
        let (kernel, used_kernel) = on_mount(true, options, script);
        let (ours, used_ours) = on_mount(false, options, script);
        assert_eq!(ours, kernel, "options: {options}");
        assert_eq!(used_ours, used_kernel);
        assert!(kernel.contains("all bytes are the same"), "{kernel}");
        assert!(kernel.lines().count() > 60, "{kernel}");
    }
}

/// Writes to files, truncates and removes them, so many times. Returns what each file holds.
pub(crate) fn change_files(at: &Path, count: u64) -> Vec<Vec<u8>> {
    const BLOCK: usize = 64 << 10;
    let mut files: Vec<Vec<u8>> = vec![Vec::new(); 5];
    for step in 0..count {
        // The multipliers have no factor in common with the numbers of files, places and kinds.
        let file = usize::try_from(step * 7 % 5).unwrap();
        let (path, bytes) = (at.join(format!("f{file}")), &mut files[file]);
        let changed = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let changed = changed.unwrap();
        match step % 11 {
            10 => {
                fs::remove_file(&path).unwrap();
                bytes.clear();
            }
            3 | 7 => {
                let length = bytes.len() * usize::try_from(step % 4).unwrap() / 5;
                changed.set_len(length as u64).unwrap();
                bytes.truncate(length);
            }
            _ => {
                let from = usize::try_from(step * 5 % 12).unwrap() * BLOCK;
                let block = vec![u8::try_from(step * 3 % 4 + 1).unwrap(); BLOCK];
                changed.write_all_at(&block, from as u64).unwrap();
                bytes.resize(bytes.len().max(from + BLOCK), 0);
                bytes[from..from + BLOCK].copy_from_slice(&block);
            }
        }
    }
    files
}

#[test]
fn files_that_change_meanwhile_keep_what_was_written() {
    if !kernel_tests_enabled("files_that_change_meanwhile_keep_what_was_written") {
        return;
    }
    let count = if std::env::var_os("BUTTERNUT_LONG").is_some() { 100_000 } else { 1500 };
    for is_kernel in [true, false] {
        on_mount(is_kernel, "", |at| {
            let path = Path::new(at).to_owned();
            let writer = thread::spawn(move || change_files(&path, count));
            while !writer.is_finished() {
                butternut(&["-q", "dedupe", "--block", "64K", at]).ok();
            }
            let files = writer.join().unwrap();
            butternut(&["-q", "dedupe", "--block", "64K", at]).ok();
            for (number, want) in files.iter().enumerate() {
                let got = fs::read(Path::new(at).join(format!("f{number}"))).unwrap_or_default();
                assert!(got == *want, "f{number}, kernel: {is_kernel}");
            }
        });
    }
}

/// Returns the answers to calls with ranges of all kinds, and the extents of the files. Where a
/// range is shortened to whole sectors, the kernel returns the length that it was asked for, so no
/// such call is among them.
fn answers(at: &str) -> Vec<String> {
    const BYTES: u64 = 65536;
    let path = |name: &str| Path::new(at).join(name);
    let whole = vec![1; 65536];
    let sparse = [vec![1; 8192], vec![0; 8192], vec![2; 1000]].concat();
    let contents: [(&str, &[u8]); 4] =
        [("a", &whole), ("b", &whole), ("c", &sparse), ("small", b"inline")];
    for (name, bytes) in contents {
        fs::write(path(name), bytes).unwrap();
    }
    run(
        "fallocate",
        &["-p", "-o", "8192", "-l", "8192", path("c").to_str().unwrap()].map(AsRef::as_ref),
    );
    run("fallocate", &["-l", "65536", path("prealloc").to_str().unwrap()].map(AsRef::as_ref));
    let open = |name: &str| fs::File::open(path(name)).unwrap();
    let (a, b, c, other) =
        (open("a"), open("b"), open("c"), fs::File::open("/etc/passwd").unwrap());
    let directory = open(".");
    let mut answers = Vec::new();
    let mut call = |from: (&fs::File, u64), to: (&fs::File, u64), bytes: u64| {
        let answer = dedupe((from.0.as_fd(), from.1), (to.0.as_fd(), to.1), bytes);
        answers.push(format!("{:?}", answer.map_err(|error| error.raw_os_error())));
    };
    call((&a, 0), (&b, 0), BYTES);
    call((&a, 0), (&b, 0), BYTES);
    call((&a, 0), (&b, 0), 0);
    call((&a, 0), (&c, 0), 8192);
    call((&a, 0), (&c, 0), 16384);
    call((&a, 0), (&a, 0), 4096);
    call((&a, 0), (&a, 8192), 8192);
    call((&a, 1), (&b, 0), 4096);
    call((&a, 0), (&b, 4096), BYTES);
    call((&a, 4096), (&b, 0), BYTES);
    call((&a, 0), (&b, 0), u64::MAX);
    call((&a, 0), (&other, 0), 4096);
    call((&a, 0), (&directory, 0), 4096);
    for name in ["a", "b", "c", "small", "prealloc"] {
        const SHARED: u32 = 0x2000;
        let file = open(name);
        let length = file.metadata().unwrap().len();
        for from in [0, 4096, 12288, 1 << 20] {
            let found = extents(file.as_fd(), from).unwrap();
            let ends = |extent: &butternut_sys::extent_calls::FileExtent| {
                // The kernel returns the first extent from its own beginning, and the last one to
                // the end of its last sector.
                let end = (extent.offset + extent.bytes).min(length);
                (extent.offset.max(from), end, extent.flags & !SHARED)
            };
            let found: Vec<_> = found.iter().map(ends).collect();
            answers.push(format!("{name} {from} {found:?}"));
        }
    }
    answers
}

#[test]
fn a_mount_of_ours_answers_the_calls_as_the_kernel_does() {
    if !kernel_tests_enabled("a_mount_of_ours_answers_the_calls_as_the_kernel_does") {
        return;
    }
    let (kernel, _) = on_mount(true, "", answers);
    let (ours, _) = on_mount(false, "", answers);
    for (ours, kernel) in ours.iter().zip(&kernel) {
        assert_eq!(ours, kernel);
    }
    assert_eq!(ours.len(), kernel.len());
}

/// A user without permission for what is mounted below an argument gets no message of it.
#[test]
fn what_is_mounted_below_an_argument_is_not_opened() {
    if !kernel_tests_enabled("what_is_mounted_below_an_argument_is_not_opened") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let closed = scratch.path().join("tree/closed");
    std::fs::create_dir_all(&closed).unwrap();
    run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
    let _guard = MountGuard::before_mount(&closed).unwrap();
    run(
        "mount",
        &["-t", "tmpfs", "-o", "mode=700", "none", closed.to_str().unwrap()].map(AsRef::as_ref),
    );
    let mut user = std::process::Command::new("setpriv");
    user.args(["--reuid=12345", "--regid=12345", "--clear-groups"]).arg(command().get_program());
    let output = user.arg("dedupe").arg(scratch.path().join("tree")).output().unwrap();
    run("umount", &[closed.as_os_str()]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

/// The halves of a compressed extent change places: that saves nothing, and a second run has no
/// more to do.
#[test]
fn parts_of_one_compressed_extent_are_shared_already() {
    if !kernel_tests_enabled("parts_of_one_compressed_extent_are_shared_already") {
        return;
    }
    for is_kernel in [true, false] {
        let (said, _) =
            on_mount(is_kernel, ",compress=zstd", |at| script_on_mount(at, SWAPPED, &[]));
        let saved: Vec<&str> =
            said.lines().filter(|line| line.starts_with("deduplicated: ")).collect();
        let want = ["deduplicated: 128.00KiB (131072 bytes)", "deduplicated: 0.00B (0 bytes)"];
        assert_eq!(saved, want, "kernel: {is_kernel}");
    }
}

#[test]
fn copies_with_checksums_share_although_the_first_copy_has_none() {
    if !kernel_tests_enabled("copies_with_checksums_share_although_the_first_copy_has_none") {
        return;
    }
    let (said, _) = on_mount(true, ",nodatasum", |at| script_on_mount(at, COPIES, &[]));
    assert!(said.contains("\ndeduplicated: 296.00KiB (303104 bytes)\n"), "{said}");
    assert!(said.contains("\nfiles skipped: 1 refused by the filesystem\n"), "{said}");
}

#[test]
fn an_argument_without_deduplication_is_refused_and_the_others_are_not() {
    if !kernel_tests_enabled("an_argument_without_deduplication_is_refused_and_the_others_are_not")
    {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("ext4.img"), scratch.path().join("at"));
    fs::create_dir(&at).unwrap();
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let guard = MountGuard::before_mount(&at).unwrap();
    run("mkfs.ext4", &["-q".as_ref(), image.as_os_str()]);
    run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
    let ext4 = at.to_str().unwrap();
    let data: Vec<u8> = (0..75_000_u32).flat_map(|at| (at ^ at << 11).to_le_bytes()).collect();
    for is_kernel in [true, false] {
        on_mount(is_kernel, "", |other| {
            for name in ["1", "2"] {
                fs::write(at.join(name), &data).unwrap();
                fs::write(Path::new(other).join(name), &data).unwrap();
            }
            for options in ["-n", "-v"] {
                let ran = command().args(["dedupe", options, ext4, other]).output().unwrap();
                let said = String::from_utf8_lossy(&ran.stdout).into_owned();
                let err = String::from_utf8_lossy(&ran.stderr).into_owned();
                assert_eq!(ran.status.code(), Some(1), "{said}{err}");
                let refused = format!("butternut: {ext4}: the filesystem has no deduplication");
                assert!(err.contains(&refused), "{err}");
                assert!(said.contains("deduplicated: 296.00KiB (303104 bytes)\n"), "{said}");
            }
        });
    }
    guard.unmount().unwrap();
}

/// Any filesystem with the call: the free space tells of the saving.
#[test]
fn xfs_is_deduplicated_too() {
    if !kernel_tests_enabled("xfs_is_deduplicated_too") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("xfs.img"), scratch.path().join("at"));
    fs::create_dir(&at).unwrap();
    fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
    let guard = MountGuard::before_mount(&at).unwrap();
    run("mkfs.xfs", &["-q".as_ref(), image.as_os_str()]);
    run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
    let bytes: Vec<u8> = (0..500_000_u32).flat_map(|at| (at ^ at << 11).to_le_bytes()).collect();
    for name in ["a", "b"] {
        fs::write(at.join(name), &bytes).unwrap();
    }
    let said = butternut(&["dedupe".as_ref(), at.as_os_str()]).ok();
    assert!(said.contains("\ndeduplicated: 1.91MiB (2002944 bytes)\n"), "{said}");
    let again = butternut(&["dedupe".as_ref(), at.as_os_str()]).ok();
    assert!(again.contains("\nshared before: 1.91MiB (2002944 bytes)\n"), "{again}");
    assert!(fs::read(at.join("b")).unwrap() == bytes);
    guard.unmount().unwrap();
}
