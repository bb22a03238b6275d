//! `send` of subvolumes of a mounted volume that is in use: the kernel's `btrfs receive` applies
//! the streams, and shows what the mount shows.

use super::command::{butternut, run, script_on_mount, shell};
use super::image::kernel_tests_enabled;
use butternut_undo::MountGuard;
use std::os::unix::fs::MetadataExt;

/// As for [`script_on_mount`]; `$K` is a mount of the kernel that receives, and `$T` a directory.
const SCRIPT: &str = r#"
"$B" subvolume create w
for i in $(seq 150); do head -c $((i * 700)) /dev/urandom > w/f$i; done
mkdir w/dir; setfattr -n user.k -v 1 w/dir; ln w/f1 w/dir/link; ln -s x w/symlink; mkfifo w/fifo
truncate -s 5M w/sparse; echo end >> w/sparse; chown 1000:100 w/f2; chmod 4755 w/f3
"$B" subvolume snapshot -r w a
rm w/f[1-3]*; cp w/f50 w/clone; mv w/dir w/moved; echo more >> w/f60
truncate -s 100 w/f70; head -c 3M /dev/urandom > w/new
"$B" subvolume snapshot -r w b
# Writes, syncs, snapshots and deletions, until the streams have ended.
load() {
    n=0
    while [ ! -e "$T/ended" ]; do
        n=$((n + 1))
        head -c 300000 /dev/urandom > w/load$((n % 20))
        echo $n >> w/f80
        "$B" subvolume snapshot w snap > "$T/out" 2>&1
        "$B" subvolume delete snap > "$T/out" 2>&1
        [ $((n % 4)) != 0 ] || sync -f w
        touch "$T/loaded"
    done
}
touch "$T/reads"
load & loading=$!
until [ -e "$T/loaded" ]; do sleep 0.05; done
"$B" send a | btrfs -q receive "$K"; echo "full: ${PIPESTATUS[*]}"
"$B" send -p a -f "$T/b.stream" "$M/b"; echo "incremental: $?"
btrfs -q receive -f "$T/b.stream" "$K"; echo "received: $?"
"$B" send -c "$M/a" b > "$T/chosen.stream"; echo "parent chosen: $?"
cmp "$T/b.stream" "$T/chosen.stream" && echo "same stream"
touch "$T/ended"; wait $loading
list() { (cd "$1" && find . -printf '%P %y %s %m %U:%G %n %T@ %l\n' |
    sed -E 's/ d [0-9]+ / d /' | sort); }
for name in a b; do
    list $name > "$T/want"; list "$K/$name" > "$T/have"
    diff "$T/want" "$T/have" && diff -r --no-dereference $name "$K/$name" 2>&1 | grep -v fifo
    getfattr -R -d $name > "$T/want" 2>&1; (cd "$K"; getfattr -R -d $name) > "$T/have" 2>&1
    cmp "$T/want" "$T/have" && echo "$name is equal: $(wc -l < "$T/want")"
done
try "$B" send w -f "$T/none"
try "$B" send a/moved -f "$T/none"
try "$B" send w/f80 -f "$T/none"
try "$B" send missing -f "$T/none"
try "$B" send -p w b -f "$T/none"
try "$B" send -p "$K/a" b -f "$T/none"
try "$B" send "$K/a" -f "$T/none"
try "$B" send b -f "$I"
try user "$B" send "$M/b"
# The reader has ended before the first byte, and the stream fits into the buffer of stdout.
"$B" subvolume create small > "$T/out"; "$B" subvolume snapshot -r small small-r > "$T/out"
exec 9>&1
{ until [ ! -e "$T/reads" ]; do sleep 0.05; done
    "$B" send small-r 2> "$T/said"; echo "small without a reader: $?" >&9; } |
    { exec < /dev/null; rm "$T/reads"; }
exec 9>&-
"$B" subvolume delete small-r small > "$T/out"
# A reader that has begun.
mkfifo "$T/fifo"
"$B" send b > "$T/fifo" & sending=$!
exec 7< "$T/fifo"
head -c 1 <&7 > "$T/stream"
try "$B" subvolume delete b
try "$B" property set b ro false
try umount "$M"
try "$B" subvolume snapshot -r b c
# The reader ends before the stream.
exec 7<&-
wait $sending; echo "without a reader: $?"
until "$B" subvolume delete b > "$T/out" 2>&1; do sleep 0.05; done
try "$B" subvolume delete a c
"#;

const PRINTS: [&str; 20] = [
    "full: 0 0",
    "incremental: 0",
    "received: 0",
    "parent chosen: 0",
    "same stream",
    "a is equal: ",
    "b is equal: ",
    "butternut send w -f T/none: 1 butternut: w: only read-only subvolumes can be sent",
    "butternut send a/moved -f T/none: 1 butternut: a/moved: no such file or directory",
    "butternut send w/f80 -f T/none: 1 butternut: w/f80: not a subvolume (",
    "butternut send missing -f T/none: 1 butternut: missing: no such file or directory",
    "butternut send -p w b -f T/none: 1 butternut: w: only read-only subvolumes can be sent",
    "butternut send -p K/a b -f T/none: 1 butternut: K/a: is not in the volume of b",
    "butternut send K/a -f T/none: 1 butternut: K/a: is on a mount of the kernel's btrfs (`btrfs \
     send` does it there)",
    "butternut send b -f I: 1 butternut: I: is a device of the volume",
    "user butternut send M/b: 1 butternut: send: the mount at M/b: no control socket",
    "butternut subvolume delete b: 1 butternut: b: is in use: a send or a receive reads it, or it \
     has a swap file that is in use (wait until `send` or `receive` ends, or end it; `swapoff` \
     ends the use of a swap file)",
    "butternut property set b ro false: 1 butternut: b: operation not permitted (only root and its \
     owner change it, and nothing does while a send or a receive reads it)",
    "butternut subvolume snapshot -r b c: 0 ",
    "without a reader: 1",
];

#[test]
fn the_kernel_receives_what_a_mount_in_use_sends() {
    if !kernel_tests_enabled("the_kernel_receives_what_a_mount_in_use_sends") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = |name: &str| scratch.path().join(name);
    let (image, at, kernel) = (path("volume.img"), path("at"), path("kernel"));
    for dir in [&at, &kernel] {
        std::fs::create_dir(dir).unwrap();
    }
    let _guards = [&at, &kernel].map(|dir| MountGuard::before_mount(dir).unwrap());
    run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
    let [image, at, kernel] = [&image, &at, &kernel].map(|path| path.to_str().unwrap());
    let folder = scratch.path().to_str().unwrap();
    shell(&format!(
        "truncate -s 300M {folder}/receiver.img; mkfs.btrfs -q {folder}/receiver.img
         mount -o loop {folder}/receiver.img {kernel}"
    ));
    butternut(&["mkfs", "--size", "512M", image]).ok();
    butternut(&["mount", "-o", "allow_other", image, at]).ok();
    let printed = script_on_mount(at, SCRIPT, &[("K", kernel), ("T", folder), ("I", image)]);
    butternut(&["umount", at]).ok();
    shell(&format!("umount {kernel}"));
    let printed = printed.replace(kernel, "K").replace(image, "I").replace(folder, "T");
    let mut lines = printed.lines();
    for expected in PRINTS {
        assert!(lines.any(|line| line.starts_with(expected)), "{expected}\n{printed}");
    }
    assert!(printed.contains("umount M: 32 "), "{printed}");
    assert!(printed.contains("small without a reader: 1"), "{printed}");
    assert!(printed.contains("butternut subvolume delete a c: 0 "), "{printed}");
    run("btrfs", &["check", "--check-data-csum", image].map(AsRef::as_ref));
}

/// Storage below and above the devices counts, as for a volume that is not mounted.
#[test]
fn a_stream_of_a_mount_does_not_overwrite_its_volume() {
    if !kernel_tests_enabled("a_stream_of_a_mount_does_not_overwrite_its_volume") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
    std::fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let [image, at] = [&image, &at].map(|path| path.to_str().unwrap());
    butternut(&["mkfs", "--size", "128M", image]).ok();
    butternut(&["subvolume", "create", image, "w"]).ok();
    butternut(&["subvolume", "snapshot", "-r", image, "w", "a"]).ok();
    let device = butternut_undo::LoopGuard::attach(image.as_ref(), &[]).unwrap();
    let device = device.path().to_str().unwrap();
    let before = std::fs::metadata(image).unwrap();
    for (source, file) in [(image, device), (device, image)] {
        butternut(&["mount", source, at]).ok();
        let refused = butternut(&["send", "-f", file, &format!("{at}/a")]).failure();
        assert!(refused.contains("is a device of the volume"), "{source} {file}: {refused}");
        butternut(&["umount", at]).ok();
    }
    assert_eq!(std::fs::metadata(image).unwrap().ino(), before.ino());
    run("btrfs", &["check", image].map(AsRef::as_ref));
}

/// The reader pauses while the last part and the response are due, for longer than the response to
/// another request may take. The last part of some of these streams fills the buffer of the socket,
/// which has 208 KiB by default.
const PAUSES: &str = r#"
for n in $(seq 0 5); do
    "$B" subvolume create w$n > "$T/out"
    head -c $((262144 + 205000 + n * 2200)) /dev/urandom > w$n/f
    "$B" subvolume snapshot -r w$n r$n > "$T/out"
done
for n in $(seq 0 5); do
    ( "$B" send r$n 2> "$T/why$n" | { sleep 3; cat > "$T/stream$n"; }
      echo "${PIPESTATUS[0]} $(cat "$T/why$n")" > "$T/status$n" ) &
done
wait
for n in $(seq 0 5); do
    echo "stream $n of $(stat -c %s "$T/stream$n") bytes: $(cat "$T/status$n")"
done
"#;

#[test]
fn a_reader_that_pauses_at_the_end_gets_the_whole_stream_and_its_status() {
    const NAME: &str = "a_reader_that_pauses_at_the_end_gets_the_whole_stream_and_its_status";
    if !kernel_tests_enabled(NAME) {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
    std::fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let [image, at] = [&image, &at].map(|path| path.to_str().unwrap());
    butternut(&["mkfs", "--size", "256M", image]).ok();
    butternut(&["mount", image, at]).ok();
    let printed = script_on_mount(at, PAUSES, &[("T", scratch.path().to_str().unwrap())]);
    butternut(&["umount", at]).ok();
    assert_eq!(printed.lines().count(), 6, "{printed}");
    assert!(printed.lines().all(|line| line.ends_with(" bytes: 0 ")), "{printed}");
}
