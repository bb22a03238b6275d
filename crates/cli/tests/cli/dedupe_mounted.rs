//! `dedupe` of a mounted volume: the same script on a mount of ours and on one of the kernel, with
//! the same results. Both volumes are checked at the end.

use super::command::{butternut, command, run};
use super::image::kernel_tests_enabled;
use butternut_undo::MountGuard;

/// A program for commands and a mount point: prints what each command did, without what differs
/// from mount to mount.
const SCRIPT: &str = r#"
exec 2>&1
cd "$M"
chmod 777 .
umask 022
try() {
    out="$("$@" 2>&1)"
    status=$?
    said="$*: $status $out"
    said="${said//$B/butternut}"
    printf '%s\n' "${said//$M/M}"
}
user() { setpriv --reuid=12345 --regid=12345 --clear-groups "$@"; }
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

fn script(mountpoint: &str) -> String {
    let program = command().get_program().to_os_string();
    let mut bash = std::process::Command::new("bash");
    bash.arg("-c").arg(SCRIPT).env("B", program).env("M", mountpoint);
    let output = bash.output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes a volume, mounts it with the command, runs the script and unmounts. Returns what was
/// printed, and the bytes of data that are left.
fn outcome(mount: impl Fn(&str, &str), unmount: impl Fn(&str)) -> (String, String) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
    std::fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let _inner = MountGuard::before_mount(&at.join("dir/other")).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    // Other users pass through.
    run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
    butternut(&["mkfs", "--size", "512M", image]).ok();
    mount(image, at);
    let printed = script(at);
    unmount(at);
    run("btrfs", &["check", "--check-data-csum", image].map(AsRef::as_ref));
    let used = butternut(&["filesystem", "du", "-s", image, "/"]).ok();
    (printed, used)
}

#[test]
fn a_mount_of_ours_deduplicates_as_the_kernels_does() {
    if !kernel_tests_enabled("a_mount_of_ours_deduplicates_as_the_kernels_does") {
        return;
    }
    for compress in [false, true] {
        let (options, more) =
            if compress { (",compress=zstd", ",compress=zstd") } else { ("", "") };
        let (kernel, used_kernel) = outcome(
            |image, at| {
                run("mount", &["-o", &format!("loop{options}"), image, at].map(AsRef::as_ref));
            },
            |at| {
                run("umount", &[at].map(AsRef::as_ref));
            },
        );
        let (ours, used_ours) = outcome(
            |image, at| {
                butternut(&["mount", "-o", &format!("allow_other{more}"), image, at]).ok();
            },
            |at| {
                butternut(&["umount", at]).ok();
            },
        );
        assert_eq!(ours, kernel, "compress: {compress}");
        assert_eq!(used_ours, used_kernel);
        assert!(kernel.contains("all bytes are the same"), "{kernel}");
        assert!(kernel.lines().count() > 60, "{kernel}");
    }
}
