//! `receive` into a directory of a mounted volume, while programs use the mount.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use super::command::{butternut, command, shell};
use super::image::kernel_tests_enabled;
use super::volumes_mounted::{Scratch, expect_lines};
use butternut_undo::MountGuard;
use rustix::process::{Pid, Signal, kill_process};

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
    /// Before the directory, which cannot be removed with a mount in it.
    _guard: MountGuard,
    scratch: Scratch,
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

/// The command returns, and says that no subvolume is left, when it is deleted.
#[test]
fn a_receive_whose_input_fails_has_deleted_the_subvolume_when_it_returns() {
    if !kernel_tests_enabled(
        "a_receive_whose_input_fails_has_deleted_the_subvolume_when_it_returns",
    ) {
        return;
    }
    let streams = Streams::new();
    let scratch = &streams.scratch;
    scratch.script("mkdir dir");
    let cut = std::fs::read(scratch.path("cut.stream")).unwrap();
    let (at, dir) = (scratch.at(), format!("{}/dir", scratch.at()));
    for round in 0..20 {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        // It is unread when `ours` is closed, so the reader gets ECONNRESET behind the data.
        (&theirs).write_all(b"x").unwrap();
        let mut receive = command();
        receive.args(["receive", &dir]).stdin(OwnedFd::from(theirs)).stderr(Stdio::piped());
        let receive = receive.spawn().unwrap();
        ours.write_all(&cut).unwrap();
        drop(ours);
        let output = receive.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("no incomplete subvolume is left"), "{message}");
        let left = butternut(&["subvolume", "list", &at]).ok();
        assert!(!left.contains("dir/a"), "round {round}: {left}");
    }
    // The same for the next receive, which must not find the name taken.
    butternut(&["receive", "-f", &scratch.text("a.stream"), &dir]).ok();
    streams.end();
}

/// As at the end of a signal: the process dies of it, and what it says is true then.
#[test]
fn a_signal_deletes_the_incomplete_subvolume_of_a_mount() {
    if !kernel_tests_enabled("a_signal_deletes_the_incomplete_subvolume_of_a_mount") {
        return;
    }
    let streams = Streams::new();
    let scratch = &streams.scratch;
    scratch.script("mkdir dir");
    let cut = std::fs::read(scratch.path("cut.stream")).unwrap();
    let (at, dir) = (scratch.at(), format!("{}/dir", scratch.at()));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut receive = command();
        receive.args(["receive", &dir]).stdin(OwnedFd::from(theirs)).stderr(Stdio::piped());
        let receive = receive.spawn().unwrap();
        ours.write_all(&cut).unwrap();
        // It has the subvolume, and waits for more.
        while !butternut(&["subvolume", "list", &at]).ok().contains("dir/a") {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        kill_process(Pid::from_child(&receive), signal).unwrap();
        let output = receive.wait_with_output().unwrap();
        drop(ours);
        assert_eq!(output.status.signal(), Some(signal.as_raw()));
        let message = String::from_utf8_lossy(&output.stderr);
        let said = "a signal has ended the receive (no incomplete subvolume is left)";
        assert!(message.contains(said), "{message}");
        let left = butternut(&["subvolume", "list", &at]).ok();
        assert!(!left.contains("dir/a"), "{left}");
    }
    streams.end();
}

const READ_ONLY: &str = r#"
mkdir dir; mkfifo "$T/fifo"
"$B" receive -f "$T/fifo" dir > "$T/said" 2>&1 & client=$!
exec 6> "$T/fifo"
cat "$T/cut.stream" >&6
until "$B" subvolume list . | grep -q dir/a; do sleep 0.05; done
if "$B" mount -o remount,ro "$I" "$M" 2> "$T/out"; then
    tail -c +4000001 "$T/a.stream" >&6
    exec 6>&-
    wait $client; echo "receive: $?"
    ls dir
else
    exec 6>&-; wait $client
    echo "busy"
fi
"#;

/// The kernel refuses the remount, as during a receive on its own btrfs.
#[test]
fn nothing_is_received_through_a_mount_that_has_become_read_only() {
    if !kernel_tests_enabled("nothing_is_received_through_a_mount_that_has_become_read_only") {
        return;
    }
    let streams = Streams::new();
    let printed = streams.scratch.script(READ_ONLY);
    assert_eq!(printed, "busy\n");
    streams.end();
}

const USED: &str = r#"
mkdir dir
try "$B" receive --resume -f "$T/cut.stream" dir
left="$(echo dir/.butternut-receive*)"
# As its owner can. What it writes stays in the kernel's cache until it closes the file.
"$B" property set -f "$left" ro false
exec 5<> "$left/dir/f60"; printf MINE >&5
try "$B" -q receive --resume -f "$T/a.stream" dir
exec 5>&-; echo "closed: $?"
head -c 4 "$left/dir/f60"; echo
try "$B" property get "$left" ro
diff -r --no-dereference dir/a "$T/kernel/a" 2>&1 | grep -v fifo
"#;

/// A snapshot that an interrupted receive has left is not used, and not deleted, once a program may
/// have written to it: with write-back caching, the process of the mount does not know of it.
#[test]
fn what_programs_write_to_a_kept_snapshot_is_not_lost() {
    if !kernel_tests_enabled("what_programs_write_to_a_kept_snapshot_is_not_lost") {
        return;
    }
    let streams = Streams::new();
    streams.scratch.umount();
    streams.scratch.mount("allow_other,writeback");
    let printed = streams.scratch.script(USED);
    expect_lines(
        &printed,
        &[
            "butternut receive --resume -f T/cut.stream dir: 1 ",
            "butternut -q receive --resume -f T/a.stream dir: 0 ",
            "closed: 0",
            "MINE",
            "butternut property get dir/.butternut-receive",
        ],
    );
    assert!(printed.contains(" ro=false"), "{printed}");
    assert!(!printed.contains("> ") && !printed.contains("Files "), "a difference: {printed}");
    streams.end();
}

const RESUMED: &str = r#"
list() { (cd "$1" && find . -printf '%P %y %s %m %U:%G %n %T@ %l\n' |
    sed -E 's/ d [0-9]+ / d /' | sort); }
names() { (cd "$1" && ls -A | sed -E 's/(receive)\..*/\1/'); }
mkdir dir; mkfifo "$T/fifo"
try "$B" receive --resume -f "$T/cut.stream" dir
names dir
left="$(echo dir/.butternut-receive*)"
# Programs use what is left, and cannot change it.
exec 5< "$left/dir/f60"; ls -lR dir > /dev/null; touch "$left/new" 2>&1 | grep -c Read-only
# More of it, until the client is killed when the process has asked for more.
head -c 5000000 "$T/a.stream" > "$T/longer.stream"
"$B" receive --resume -f "$T/fifo" dir & client=$!
exec 6> "$T/fifo"
cat "$T/longer.stream" >&6
until "$B" subvolume list . | grep -q 'dir/a$'; do sleep 0.05; done
echo "seen: $(names dir)"; try stat "$left"; try stat dir/a
kill -9 $client; wait $client 2> /dev/null
until "$B" subvolume list . | grep -q receive && [ -n "$(ls -A dir)" ]; do sleep 0.05; done
exec 6>&-
echo "left: $(names dir)"; [ "$(echo dir/.butternut-receive*)" != "$left" ] && echo "more of it"
try stat "$left"
# A shorter input changes nothing.
try "$B" receive --resume -f "$T/cut.stream" dir
echo "left: $(names dir)"
try "$B" -v receive --resume -f "$T/a.stream" dir
cat <&5 > /dev/null 2>&1; exec 5<&-
try "$B" -v receive --resume -f "$T/a.stream" dir
echo "complete: $(names dir)"
# The increment: the mount ends, and the receive goes on without it.
head -c -20 "$T/b.stream" > "$T/cut.stream"
try "$B" receive --resume -f "$T/cut.stream" dir
echo "complete: $(names dir)"
diff <(list dir/a) <(list "$T/kernel/a") &&
    diff -r --no-dereference dir/a "$T/kernel/a" 2>&1 | grep -v fifo
"#;

const RESUMED_AGAIN: &str = r#"
list() { (cd "$1" && find . -printf '%P %y %s %m %U:%G %n %T@ %l\n' |
    sed -E 's/ d [0-9]+ / d /' | sort); }
ls -A dir
diff <(list dir/b) <(list "$T/kernel/b") &&
    diff -r --no-dereference dir/b "$T/kernel/b" 2>&1 | grep -v fifo
try "$B" property get dir/b ro
"#;

#[test]
fn an_interrupted_receive_goes_on_in_a_mount_and_without_it() {
    if !kernel_tests_enabled("an_interrupted_receive_goes_on_in_a_mount_and_without_it") {
        return;
    }
    let streams = Streams::new();
    let scratch = &streams.scratch;
    let printed = scratch.script(RESUMED);
    expect_lines(
        &printed,
        &[
            "butternut receive --resume -f T/cut.stream dir: 1 butternut: T/cut.stream: ",
            ".butternut-receive",
            "1",
            "seen: ",
            "stat dir/.butternut-receive",
            "stat dir/a: 1 ",
            "left: .butternut-receive",
            "more of it",
            "stat dir/.butternut-receive",
            "butternut receive --resume -f T/cut.stream dir: 1 butternut: T/cut.stream: ",
            "left: .butternut-receive",
            "butternut -v receive --resume -f T/a.stream dir: 0 butternut: dir/a: received",
            "butternut -v receive --resume -f T/a.stream dir: 0 ",
            "complete: a",
            "butternut receive --resume -f T/cut.stream dir: 1 butternut: T/cut.stream: ",
            "complete: .butternut-receive",
            "a",
        ],
    );
    assert_eq!(printed.matches(" are kept; repeat it to go on)").count(), 3, "{printed}");
    assert!(!printed.contains("> ") && !printed.contains("Files "), "a difference: {printed}");
    scratch.umount();
    let (image, stream) = (scratch.image(), scratch.text("b.stream"));
    butternut(&["receive", "--resume", "-f", &stream, &image, "/dir"]).ok();
    scratch.mount("allow_other");
    let printed = scratch.script(RESUMED_AGAIN);
    assert_eq!(printed, "a\nb\nbutternut property get dir/b ro: 0 ro=true\n");
    streams.end();
}
