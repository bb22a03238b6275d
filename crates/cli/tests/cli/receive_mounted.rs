//! `receive` into a directory of a mounted volume, while programs use the mount.

use super::command::{butternut, shell};
use super::image::kernel_tests_enabled;
use super::volumes_mounted::{Scratch, expect_lines};
use butternut_undo::MountGuard;

/// Streams that the kernel makes of two snapshots, in the directory `$T`.
const STREAMS: &str = r"
truncate -s 400M T/kernel.img; mkfs.btrfs -q T/kernel.img; mount -o loop T/kernel.img T/kernel
cd T/kernel; btrfs -q subvolume create w; mkdir w/dir w/dir/deep
for i in $(seq 60); do head -c $((i * 900)) /dev/urandom > w/dir/f$i; done
head -c 6M /dev/urandom > w/big; ln w/big w/dir/link; ln -s x w/symlink; mkfifo w/fifo
truncate -s 9M w/sparse; chown 1000:100 w/dir/f2; chmod 4755 w/dir/f3; setfattr -n user.k -v 1 w/dir
btrfs -q subvolume snapshot -r w a
rm w/dir/f1*; mv w/dir/deep w/moved; echo more >> w/big; cp --reflink=always w/big w/copy
btrfs -q subvolume snapshot -r w b
btrfs -q send -f ../a.stream a; btrfs -q send -p a -f ../b.stream b
cat ../a.stream ../b.stream > ../both.stream
head -c 4000000 ../a.stream > ../cut.stream";

/// A volume that is mounted for all, the streams, and the mount of the kernel that they are from.
struct Streams {
    scratch: Scratch,
    _guard: MountGuard,
}

impl Streams {
    fn new() -> Self {
        let scratch = Scratch::new("768M");
        std::fs::create_dir(scratch.path("kernel")).unwrap();
        let guard = MountGuard::before_mount(&scratch.path("kernel")).unwrap();
        let folder = scratch.text("kernel");
        let folder = folder.strip_suffix("/kernel").unwrap();
        shell(&STREAMS.replace("T/", &format!("{folder}/")));
        scratch.mount("allow_other");
        Self { scratch, _guard: guard }
    }

    /// Unmounts the volume, which must be clean.
    fn end(self) {
        self.scratch.umount();
        self.scratch.check();
    }
}

const RECEIVES: &str = r#"
list() { (cd "$1" && find . -printf '%P %y %s %m %U:%G %n %T@ %l\n' |
    sed -E 's/ d [0-9]+ / d /' | sort); }
mkdir dir
# The kernel caches that there are no such names, and the attributes of the directory.
try cat dir/a/big; try stat dir/b; stat -c %Y dir > "$T/before"; sleep 1
load() {
    n=0
    while [ ! -e "$T/ended" ]; do
        n=$((n + 1)); head -c 300000 /dev/urandom > load$((n % 20)); ls -lR dir > "$T/seen"
        "$B" filesystem sync .; touch "$T/loaded"
    done
}
load & loading=$!
until [ -e "$T/loaded" ]; do sleep 0.05; done
try "$B" -v receive -f "$T/a.stream" "$M/dir"
cmp <(stat -c %Y dir) "$T/before"
try "$B" --json receive -f "$T/b.stream" dir
touch "$T/ended"; wait $loading
for name in a b; do
    diff <(list dir/$name) <(list "$T/kernel/$name") &&
        diff -r --no-dereference dir/$name "$T/kernel/$name" 2>&1 | grep -v fifo
    getfattr -d dir/$name/dir | grep user
    try "$B" property get dir/$name ro
done
"$B" subvolume show dir/a | grep Received | tr -d '[:space:]' > "$T/uuid"
btrfs subvolume show "$T/kernel/a" | grep -m 1 UUID | tr -d '[:space:]' >> "$T/uuid"
sed 's/.*ReceivedUUID:\([-0-9a-f]*\)UUID:\1/same uuid/' "$T/uuid"; echo
# Two streams in one input, to the end of it and one after another.
mkdir two each
try "$B" -v receive two < "$T/both.stream"
(try "$B" -v receive -e each; try "$B" -v receive -e each) < "$T/both.stream"
ls two each
"#;

#[test]
fn a_mount_in_use_receives_what_the_kernel_sends() {
    if !kernel_tests_enabled("a_mount_in_use_receives_what_the_kernel_sends") {
        return;
    }
    let streams = Streams::new();
    let printed = streams.scratch.script(RECEIVES);
    expect_lines(
        &printed,
        &[
            "cat dir/a/big: 1 ",
            "stat dir/b: 1 ",
            "butternut -v receive -f T/a.stream M/dir: 0 butternut: M/dir/a: received",
            "/dev/fd/63 T/before differ",
            "butternut --json receive -f T/b.stream dir: 0 {",
            "      \"path\": \"dir/b\"",
            "      \"incremental\": true",
            "user.k=\"1\"",
            "butternut property get dir/a ro: 0 ro=true",
            "user.k=\"1\"",
            "butternut property get dir/b ro: 0 ro=true",
            "same uuid",
            "butternut -v receive two: 0 butternut: two/a: received",
            "butternut -v receive -e each: 0 butternut: each/a: received",
            "butternut -v receive -e each: 0 butternut: each/b: received",
            "each:",
        ],
    );
    assert!(!printed.contains("> ") && !printed.contains("< "), "a difference: {printed}");
    assert!(!printed.contains("Files "), "a difference: {printed}");
    streams.end();
}

const REFUSED: &str = r#"
mkdir dir ro; "$B" subvolume create dir/a; chmod 644 "$T/a.stream"
"$B" subvolume create frozen; "$B" property set frozen ro true
try "$B" receive -f "$T/a.stream" dir
try "$B" receive -f "$T/cut.stream" ro
try "$B" receive -f "$T/b.stream" ro
try "$B" receive -f "$T/a.stream" frozen
try "$B" receive -f "$T/a.stream" missing
try "$B" receive -f "$T/a.stream" . /dir
try "$B" receive -f "$T/a.stream" --resume .
try "$B" receive -f "$T/missing" .
try "$B" receive -f "$T/kernel.img" ro
try "$B" receive -f "$T" ro
try "$B" receive -f "$T/a.stream" "$T/kernel"
try "$B" receive -f "$T/a.stream" /proc
try user "$B" receive -f "$T/a.stream" "$M/dir"
mount --bind -o ro "$M/ro" ro
try "$B" receive -f "$T/a.stream" ro
umount ro
mkdir gone; exec 5< gone; rmdir gone
try "$B" receive -f "$T/a.stream" /proc/self/fd/5
exec 5<&-
# A symlink to a directory, in another mount.
ln -s "$T/kernel" away; ln -s ro near
try "$B" receive -f "$T/a.stream" away
try "$B" receive -f "$T/a.stream" near
ls ro dir
try "$B" subvolume list .
"#;

#[test]
fn what_cannot_be_received_leaves_nothing() {
    if !kernel_tests_enabled("what_cannot_be_received_leaves_nothing") {
        return;
    }
    let streams = Streams::new();
    let printed = streams.scratch.script(REFUSED);
    expect_lines(
        &printed,
        &[
            "butternut receive -f T/a.stream dir: 1 butternut: T/a.stream: command 1 at byte",
            "butternut receive -f T/cut.stream ro: 1 butternut: T/cut.stream: command ",
            "butternut receive -f T/b.stream ro: 1 butternut: T/b.stream: command 1",
            "butternut receive -f T/a.stream frozen: 1 butternut: ",
            "butternut receive -f T/a.stream missing: 1 butternut: missing: no such",
            "butternut receive -f T/a.stream . /dir: 2 butternut: usage: of a mounted",
            "butternut receive -f T/a.stream --resume .: 1 butternut: .: --resume is",
            "butternut receive -f T/missing .: 1 butternut: T/missing: no such file",
            "butternut receive -f T/kernel.img ro: 1 butternut: T/kernel.img: header",
            "butternut receive -f T ro: 1 butternut: T: is a directory",
            "butternut receive -f T/a.stream T/kernel: 1 butternut: T/kernel: is on a",
            "butternut receive -f T/a.stream /proc: 1 butternut: ",
            "user butternut receive -f T/a.stream M/dir: 1 butternut: M/dir: permission",
            "butternut receive -f T/a.stream ro: 1 butternut: ro: read-only file system",
            "butternut receive -f T/a.stream /proc/self/fd/5: 1 butternut: ",
            "butternut receive -f T/a.stream away: 1 butternut: away: is on a mount of",
            "butternut receive -f T/a.stream near: 0 ",
            "dir:",
            "a",
            "ro:",
            "a",
            "butternut subvolume list .: 0 ID ",
        ],
    );
    assert_eq!(printed.matches(" top level ").count(), 3, "{printed}");
    streams.end();
}

const INTERRUPTED: &str = r#"
mkdir dir; mkfifo "$T/fifo"
# The client is killed when the process has half of the stream, and has asked for more.
"$B" receive -f "$T/fifo" dir & client=$!
exec 6> "$T/fifo"
cat "$T/cut.stream" >&6
until "$B" subvolume list . | grep -q dir/a; do sleep 0.05; done
# Nothing of it is seen on the mount.
ls dir; try stat dir/a; try mkdir dir/a; try "$B" subvolume create dir/a
try umount "$M"
try "$B" subvolume snapshot -r dir/a copy
kill -9 $client; wait $client 2> /dev/null
until ! "$B" subvolume list . | grep -q dir/a; do sleep 0.05; done
exec 6>&-
ls dir
# The name is free again.
try "$B" receive -f "$T/a.stream" dir
ls dir
"#;

#[test]
fn a_client_that_is_killed_leaves_no_subvolume() {
    if !kernel_tests_enabled("a_client_that_is_killed_leaves_no_subvolume") {
        return;
    }
    let streams = Streams::new();
    let printed = streams.scratch.script(INTERRUPTED);
    expect_lines(
        &printed,
        &[
            "stat dir/a: 1 ",
            "mkdir dir/a: 1 ",
            "butternut subvolume create dir/a: 1 butternut: dir/a: file exists",
            "umount M: 32 ",
            "butternut subvolume snapshot -r dir/a copy: 1 butternut: dir/a: no such file",
            "butternut receive -f T/a.stream dir: 0 ",
            "a",
        ],
    );
    streams.end();
}

const ENDED: &str = r#"
mkdir dir; mkfifo "$T/fifo"
"$B" receive -f "$T/fifo" dir & client=$!
exec 6> "$T/fifo"
cat "$T/cut.stream" >&6
until "$B" subvolume list . | grep -q dir/a; do sleep 0.05; done
cd /; umount -l "$M"
kill -9 $client; wait $client 2> /dev/null
exec 6>&-
"#;

/// The incomplete subvolume is deleted, or it stays and is writable.
#[test]
fn a_mount_that_ends_while_it_receives_is_released() {
    if !kernel_tests_enabled("a_mount_that_ends_while_it_receives_is_released") {
        return;
    }
    let streams = Streams::new();
    streams.scratch.script(ENDED);
    let image = streams.scratch.image();
    // Once the process of the mount has released the image, another one may lock it.
    while butternut(&["filesystem", "sync", &image]).code != Some(0) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let left = butternut(&["subvolume", "list", "-r", &image]).ok();
    assert_eq!(left, "", "read-only: it would count as complete");
    streams.scratch.check();
}
