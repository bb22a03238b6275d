//! `filesystem defragment`, of a volume that the kernel has made and on mounts. The kernel compares
//! every byte and counts the extents, and `btrfs check` reads all data.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use butternut_sys::defragment_calls::{Range, defragment, defragment_in_kernel};
use butternut_sys::mapped::Mapped;
use butternut_undo::MountGuard;

use super::command::{butternut, command, run, script_on_mount};
use super::dedupe_mounted::change_files;
use super::image::kernel_tests_enabled;
use super::mount_end::run_in_namespace;

/// Fragmented files of all kinds. Every second block is written first, and is on disk before the
/// others are.
const FILES: &str = r#"
set -e
chmod 777 .
fragment() {
    touch "$1"; [ -z "$3" ] || chattr +C "$1"
    seq $(($RANDOM + 100000)) 100000000 | head -c $(($2 * 4096)) > "$M.data"
    for first in 0 1; do
        for at in $(seq $first 2 $(($2 - 1))); do
            dd if="$M.data" of="$1" bs=4096 count=1 skip=$at seek=$at conv=notrunc oflag=direct \
                status=none
        done
        sync -f .
    done
    cmp "$M.data" "$1"
    rm "$M.data"
}
mkdir dir
fragment dir/plain 300
fragment dir/none 100 C
fragment dir/shared 100
cp --reflink=always dir/shared copy
fragment dir/part 60
fallocate -p -o 40960 -l 40960 dir/part
fallocate -l 1M -n dir/part
echo inline > dir/inline
truncate -s 1M dir/hole
ln -s plain dir/link
mkfifo dir/fifo
btrfs subvolume create dir/sub > /dev/null
fragment dir/sub/deep 20
btrfs subvolume snapshot -r dir/sub ro > /dev/null
sync -f .
find . -xdev -type f -print0 | sort -z | xargs -0 sha256sum > "$M.sums"
set +e
"#;

/// Prints the number of extents of each file, and whether all bytes are the same.
const LOOK: &str = r#"
for file in dir/plain dir/none dir/shared dir/part; do
    filefrag "$file" | sed 's/ extents\? found//'
done
find . -xdev -type f -print0 | sort -z | xargs -0 sha256sum | cmp - "$M.sums" && echo same
for file in dir/shared copy dir/plain; do
    echo "$file: $(btrfs filesystem du --raw "$file" | tail -1 | awk '{print $1, $2}')"
done
"#;

/// A directory with an image that a mount point is made for.
struct Volume {
    scratch: tempfile::TempDir,
}

impl Volume {
    fn new() -> Self {
        let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::create_dir(scratch.path().join("at")).unwrap();
        // Other users pass through.
        run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
        let volume = Self { scratch };
        butternut(&["mkfs", "--size", "512M", &volume.image()]).ok();
        volume
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).to_str().unwrap().to_owned()
    }

    fn image(&self) -> String {
        self.path("volume.img")
    }

    /// Runs a script on a mount of the kernel.
    fn on_kernel(&self, script: &str) -> String {
        let at = self.path("at");
        let guard = MountGuard::before_mount(Path::new(&at)).unwrap();
        run("mount", &["-o", "loop", &self.image(), &at].map(AsRef::as_ref));
        let said = script_on_mount(&at, script, &[]);
        guard.unmount().unwrap();
        said
    }

    /// Runs a closure on a mount of ours.
    fn on_ours<R>(&self, options: &str, run_on: impl FnOnce(&str) -> R) -> R {
        let at = self.path("at");
        let _guard = MountGuard::before_mount(Path::new(&at)).unwrap();
        let options = format!("allow_other{options}");
        butternut(&["mount", "-o", &options, &self.image(), &at]).ok();
        let result = run_on(&at);
        butternut(&["umount", "-q", &at]).ok();
        result
    }

    fn check(&self) {
        run("btrfs", &["check", "--check-data-csum", &self.image()].map(AsRef::as_ref));
    }
}

/// Returns a number after a word in the output of [`LOOK`].
fn number(said: &str, name: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    let line = line.unwrap_or_else(|| panic!("{name} in {said}"));
    line.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line} of {said}"))
}

#[test]
fn files_of_a_volume_that_is_not_mounted_become_contiguous() {
    if !kernel_tests_enabled("files_of_a_volume_that_is_not_mounted_become_contiguous") {
        return;
    }
    let volume = Volume::new();
    let before = volume.on_kernel(&[FILES, LOOK].concat());
    assert!(before.contains("\nsame\n"), "{before}");
    assert!(number(&before, "dir/plain") > 100, "{before}");
    let image = volume.image();
    let defragment = |words: &[&str]| {
        let words = [&["filesystem", "defragment"], words].concat();
        butternut(&words)
    };
    let err = defragment(&[&image, "/dir"]).err;
    assert!(err.contains("is a directory (-r defragments"), "{err}");
    let err = defragment(&[&image]).usage();
    assert!(err.contains("no path in the volume is named"), "{err}");
    let said = defragment(&["-r", &image, "/"]).ok();
    // Both files count.
    let shared = "\nleft alone because it is shared: 800.00KiB (819200 bytes)\n";
    assert!(said.contains(shared), "{said}");
    volume.check();
    let after = volume.on_kernel(LOOK);
    assert!(after.contains("\nsame\n"), "{after}");
    assert_eq!(number(&after, "dir/plain"), 1, "{after}");
    assert_eq!(number(&after, "dir/none"), 1, "{after}");
    assert!(number(&after, "dir/part") <= 4, "{after}");
    assert_eq!(number(&after, "dir/shared"), number(&before, "dir/shared"), "{after}");
    // What the kernel counts as exclusive.
    assert!(after.contains("dir/shared: 409600 0\n"), "{after}");
    let json = defragment(&["--json", "--break-sharing", &image, "/dir/shared"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["files"], &json["extents_after"]), (&1.into(), &1.into()), "{json}");
    assert_eq!(json["unshared_bytes"], 409_600, "{json}");
    volume.check();
    let broken = volume.on_kernel(LOOK);
    assert!(broken.contains("\nsame\n"), "{broken}");
    assert!(broken.contains("dir/shared: 409600 409600\n"), "{broken}");
    assert_eq!(number(&broken, "dir/shared"), 1);
    // Compressed by each algorithm, and back.
    for algorithm in ["zlib:9", "lzo", "zstd"] {
        let compress = format!("--compress={algorithm}");
        defragment(&["-q", &compress, &image, "/dir/plain", "/dir/none"]).ok();
        volume.check();
        let compressed = volume.on_kernel(LOOK);
        assert!(compressed.contains("\nsame\n"), "{algorithm}: {compressed}");
        assert_eq!(number(&compressed, "dir/plain"), 10, "{algorithm}: {compressed}");
        assert_eq!(number(&compressed, "dir/none"), 1, "{algorithm}: {compressed}");
    }
    // A read-only subvolume is refused, and the other files are done.
    let ran = defragment(&["--compress", &image, "/ro/deep", "/dir/sub/deep"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.err.contains("/ro/deep") && ran.out.contains("files: 1\n"),
        "{}{}",
        ran.err,
        ran.out
    );
    volume.check();
}

/// What the calls answer to callers of all kinds.
const CALLERS: &str = r#"
mkdir theirs; chown 12345 theirs
user sh -c 'cat dir/plain > theirs/own; cat dir/plain > theirs/closed; chmod 400 theirs/closed'
chmod 644 dir/plain
try user "$B" filesystem defragment theirs/own
try user "$B" filesystem defragment theirs/closed
try user "$B" filesystem defragment dir/plain
try "$B" -v filesystem defragment dir/link
try "$B" filesystem defragment dir/fifo
try "$B" filesystem defragment ro/deep
try "$B" filesystem defragment dir
"#;

#[test]
fn files_on_a_mount_become_contiguous() {
    if !kernel_tests_enabled("files_on_a_mount_become_contiguous") {
        return;
    }
    for options in ["", ",writeback"] {
        let volume = Volume::new();
        let before = volume.on_kernel(&[FILES, LOOK].concat());
        assert!(before.contains("\nsame\n"), "{before}");
        let said = volume.on_ours(options, |at| {
            let said = butternut(&["filesystem", "defragment", "-r", at]).ok();
            assert!(said.contains("left alone because it is shared: 800.00KiB"), "{said}");
            // What a program has written is newer, and stays.
            let mut open = fs::OpenOptions::new();
            let open = open.read(true).write(true).create_new(true);
            let file = open.open(format!("{at}/new")).unwrap();
            for number in (0..32_u64).rev() {
                let byte = u8::try_from(number).unwrap();
                file.write_all_at(&[byte; 4096], number * 4096).unwrap();
            }
            let range = Range { bytes: u64::MAX, ..Range::default() };
            let done = defragment(file.as_fd(), &range).unwrap();
            assert!(done.extents_after <= 1, "{done:?}");
            // The call of the kernel's header.
            defragment_in_kernel(file.as_fd(), &range).unwrap();
            let bad = Range { compress: Some((9, 0)), ..range };
            assert_eq!(defragment(file.as_fd(), &bad).unwrap_err().raw_os_error(), Some(22));
            let shared = fs::File::open(format!("{at}/dir/shared")).unwrap();
            let broken = Range { breaks_sharing: true, ..range };
            let done = defragment(shared.as_fd(), &broken).unwrap();
            assert_eq!(done.unshared_bytes, 409_600, "{done:?}");
            assert_eq!(done.extents_after, 1);
            fs::remove_file(format!("{at}/new")).unwrap();
            script_on_mount(at, CALLERS, &[])
        });
        for (want, name) in [
            (": 0 files: 1", "theirs/own"),
            (": 1 ", "theirs/closed"),
            (": 1 ", "dir/plain"),
            (": 1 ", "dir/link"),
            (": 2 ", "dir/fifo"),
            (": 1 ", "ro/deep"),
            (": 1 ", "dir:"),
        ] {
            let line = said.lines().find(|line| line.contains(&format!("defragment {name}")));
            assert!(line.is_some_and(|line| line.contains(want)), "{name}: {said}");
        }
        assert!(said.contains("operation not permitted"), "{said}");
        assert!(said.contains("ro/deep: read-only file system"), "{said}");
        volume.check();
        let after = volume.on_kernel(&format!("rm -r theirs\n{LOOK}"));
        assert!(after.contains("\nsame\n"), "{after}");
        assert_eq!(number(&after, "dir/plain"), 1, "{after}");
        assert!(after.contains("dir/shared: 409600 409600\n"), "{after}");
    }
}

#[test]
fn files_on_a_mount_of_the_kernel_need_break_sharing() {
    if !kernel_tests_enabled("files_on_a_mount_of_the_kernel_need_break_sharing") {
        return;
    }
    let volume = Volume::new();
    let script = [
        FILES,
        "try \"$B\" filesystem defragment dir/plain\n",
        "try \"$B\" filesystem defragment -r --break-sharing .\n",
        LOOK,
    ]
    .concat();
    let said = volume.on_kernel(&script);
    assert!(said.contains("dir/plain: 1 butternut: dir/plain: is in no mounted volume"), "{said}");
    assert!(said.contains("rewritten: unknown, the kernel does not tell"), "{said}");
    assert_eq!(number(&said, "dir/plain"), 1, "{said}");
    volume.check();
}

#[test]
fn a_file_outside_of_btrfs_is_refused() {
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let path = file.path().to_str().unwrap();
    let ran = command().args(["filesystem", "defragment", path]).output().unwrap();
    assert_eq!(ran.status.code(), Some(1));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("is in no mounted volume of butternut"), "{said}");
}

/// Changes a file by its mapping, so many times. Returns what it holds.
fn change_mapped(at: &Path, count: usize) -> Vec<u8> {
    const BYTES: usize = 1 << 20;
    let path = at.join("mapped");
    let mut bytes = vec![9; BYTES];
    fs::write(&path, &bytes).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mapped = Mapped::shared(&file, BYTES).unwrap();
    for step in 0..count {
        let place = step * 37 % 251 * 4096 + step % 4000;
        let word = step.to_le_bytes();
        mapped.put(place, &word);
        bytes[place..place + word.len()].copy_from_slice(&word);
        if step % 100 == 99 {
            mapped.sync().unwrap();
        }
    }
    bytes
}

#[test]
fn files_that_programs_write_and_map_meanwhile_keep_what_was_written() {
    if !kernel_tests_enabled("files_that_programs_write_and_map_meanwhile_keep_what_was_written") {
        return;
    }
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some();
    let count = if is_long { 100_000 } else { 1500 };
    for options in ["", ",writeback", ",compress=zstd"] {
        let volume = Volume::new();
        volume.on_ours(options, |at| {
            let (path, mapped) = (Path::new(at).to_owned(), Path::new(at).to_owned());
            let writer = thread::spawn(move || change_files(&path, count));
            let storing =
                thread::spawn(move || change_mapped(&mapped, usize::try_from(count).unwrap()));
            let ways = ["--keep-sharing", "--break-sharing", "--compress=lzo"];
            for way in ways.iter().cycle() {
                // A file may be removed meanwhile, which is no failure.
                butternut(&["-q", "filesystem", "defragment", "-r", way, at]).ok();
                if writer.is_finished() && storing.is_finished() {
                    break;
                }
            }
            let (files, mapped) = (writer.join().unwrap(), storing.join().unwrap());
            butternut(&["-q", "filesystem", "defragment", "-r", at]).ok();
            for (number, want) in files.iter().enumerate() {
                let got = fs::read(Path::new(at).join(format!("f{number}"))).unwrap_or_default();
                assert!(got == *want, "f{number}, options: {options}");
            }
            assert!(fs::read(Path::new(at).join("mapped")).unwrap() == mapped, "{options}");
        });
        volume.check();
    }
}

#[test]
fn only_algorithms_and_levels_that_exist_are_taken() {
    let volume = Volume::new();
    let image = volume.image();
    let run = |words: &[&str]| butternut(&[&["filesystem", "defragment"][..], words].concat());
    for typed in
        ["none", "no", "lz4", "zstd:22", "zstd:-16", "zlib:10", "zlib:-1", "lzo:1", "zstd:x"]
    {
        let refused = run(&[&format!("-c{typed}"), &image, "/"]).usage();
        let want = format!(
            "invalid value '{typed}' for '--compress[=<ALGO[:LEVEL]>]': is none of \
             lzo, zlib[:1 to 9], zstd[:-15 to 15]"
        );
        assert!(refused.contains(&want), "{refused}");
    }
    for typed in ["zstd:15", "zstd:-15", "zlib:9", "zlib:0", "lzo"] {
        let ran = run(&["-r", &format!("-c{typed}"), &image, "/"]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{typed}");
    }
}

/// Mounts a volume with the file m1/f, whose compression takes long, and sets D to the process of
/// the mount and C to its connection. `user N` defragments m1/N as a user; `threads` prints the
/// number of calls that run, and `calls N` waits until the kernel waits for N replies.
const LONG_CALLS: &str = r#"
    chmod 755 .; mkdir connections; mount -t fusectl none connections
    truncate -s 2G image; $B -q mkfs image; $B mount -o allow_other image m1; D=$(daemon)
    C=$(mountpoint -d m1); C=connections/$((${C%:*} << 20 | ${C#*:}))
    head -c 72M /dev/urandom | base64 >m1/f; sync -f m1
    # BTRFS_IOC_DEFRAG_RANGE, sized: COMPRESS | COMPRESS_LEVEL, zstd, level 15, breaks sharing.
    echo 'open(my $file, "<", $ARGV[0]) or die $!;
        my $range = pack("Q Q Q L C c x2 L x52", 0, ~0, 5, 0, 3, 15, 1);
        ioctl($file, 0xc0589410, $range) or exit 1' >call.pl
    user() { exec setpriv --reuid=12345 --regid=12345 --clear-groups perl call.pl m1/$1; }
    threads() { cat /proc/$D/task/*/comm 2>ignored | grep -c butternut-defer || true; }
    calls() { until [ $(cat $C/waiting) -ge $1 ]; do sleep .05; done; }
"#;

/// A call has 16 MiB of data in memory, and holds the lock of its file.
#[test]
fn few_defragmentations_of_a_user_run_at_a_time() {
    if !kernel_tests_enabled("few_defragmentations_of_a_user_run_at_a_time") {
        return;
    }
    let output = run_in_namespace(&format!(
        r#"{LONG_CALLS}
        for n in $(seq 8); do cp m1/f m1/$n; chmod 666 m1/$n; done
        for n in $(seq 8); do user $n & P="$P $!"; done
        calls 8; threads; kill -9 $P; wait; $B umount -q m1"#
    ));
    assert_eq!(output, "2\n");
}

/// Two defragmentations of a user run, and its third one is queued until one of them ends. A caller
/// that is killed waits for its reply.
#[test]
fn a_queued_defragmentation_ends_when_its_caller_is_killed() {
    if !kernel_tests_enabled("a_queued_defragmentation_ends_when_its_caller_is_killed") {
        return;
    }
    let output = run_in_namespace(&format!(
        r"{LONG_CALLS}
        for n in 1 2 3; do cp m1/f m1/$n; chmod 666 m1/$n; done
        user 1 & P1=$!; user 2 & P2=$!; calls 2
        user 3 & P3=$!; calls 3; kill -9 $P3; wait $P3 || true
        kill -0 $P1 && kill -0 $P2 && echo both run
        kill -9 $P1 $P2; wait; $B umount -q m1"
    ));
    assert_eq!(output, "both run\n");
}

#[test]
fn an_aborted_mount_ends_while_a_file_is_defragmented() {
    if !kernel_tests_enabled("an_aborted_mount_ends_while_a_file_is_defragmented") {
        return;
    }
    // The whole file would take longer than `ended` waits.
    let output = run_in_namespace(&format!(
        r#"{LONG_CALLS}
        B2=$(stat -c %s m1/f); B2=$((B2 / 4096 * 4096))
        for n in $(seq 15); do
            xfs_io -c "copy_range -d $((B2 * n)) -l $B2 m1/f" m1/f
        done
        perl call.pl m1/f & P=$!; calls 1
        until [ $(threads) = 1 ]; do sleep .05; done
        echo 1 >$C/abort; ended $D && echo ended; wait $P || echo failed
        btrfs check --check-data-csum image >log 2>&1 || cat log"#
    ));
    assert_eq!(output, "ended\nfailed\n");
}
