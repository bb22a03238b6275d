//! Commands for a whole volume on a mounted one: what they print is what they print for the volume
//! when it is not mounted, and a mount of the kernel gets the kernel's call or the name of the
//! command of btrfs-progs.

use super::command::{butternut, run, script_on_mount, shell};
use super::image::kernel_tests_enabled;
use butternut_undo::{LoopGuard, MountGuard};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A new volume in a scratch directory, and a mount point.
pub(crate) struct Scratch {
    /// Before the directory, which cannot be removed with a mount in it.
    _guard: MountGuard,
    dir: TempDir,
}

impl Scratch {
    pub(crate) fn new(bytes: &str) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = dir.path().join("at");
        std::fs::create_dir(&at).unwrap();
        let guard = MountGuard::before_mount(&at).unwrap();
        run("chmod", &["755", dir.path().to_str().unwrap()].map(AsRef::as_ref));
        let scratch = Self { dir, _guard: guard };
        butternut(&["mkfs", "-q", "-L", "first", "--size", bytes, &scratch.image()]).ok();
        scratch
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn image(&self) -> String {
        self.text("volume.img")
    }

    pub(crate) fn at(&self) -> String {
        self.text("at")
    }

    pub(crate) fn mount(&self, options: &str) {
        butternut(&["mount", "-o", options, &self.image(), &self.at()]).ok();
    }

    pub(crate) fn umount(&self) {
        butternut(&["umount", &self.at()]).ok();
    }

    /// Runs a script on the mount, and returns its output without the paths of this test.
    pub(crate) fn script(&self, script: &str) -> String {
        let (folder, image) = (self.dir.path().to_str().unwrap(), self.image());
        let printed = script_on_mount(&self.at(), script, &[("T", folder), ("I", &image)]);
        printed.replace(&image, "I").replace(folder, "T")
    }

    pub(crate) fn check(&self) {
        run("btrfs", &["check", "--check-data-csum", &self.image()].map(AsRef::as_ref));
    }
}

/// Fails unless these lines are printed in this order; each is the beginning of one.
#[track_caller]
pub(crate) fn expect_lines(printed: &str, expected: &[&str]) {
    let mut lines = printed.lines();
    for wanted in expected {
        assert!(lines.any(|line| line.starts_with(wanted)), "{wanted}\n{printed}");
    }
}

const FILES: &str = r#"
"$B" subvolume create sub
mkdir sub/dir dir; head -c 5000000 /dev/urandom > sub/dir/big; ln sub/dir/big sub/dir/link
head -c 300000 /dev/zero > dir/zeroes; echo short > dir/inline; truncate -s 9M dir/sparse
fallocate -n -l 2M dir/beyond; ln -s big dir/symlink; mkfifo dir/fifo
head -c 4M /dev/urandom > sub/cut; fallocate -p -o 1M -l 1M sub/cut
"$B" subvolume snapshot sub snap; echo more >> snap/dir/big
cp --reflink=always sub/cut sub/copied
sync -f .
rm -r dir/zeroes; "$B" filesystem sync .
"#;

/// The commands whose output is compared, without the volume.
const SHOWN: [&str; 13] = [
    "usage",
    "usage -T --raw",
    "--json usage",
    "df",
    "df --raw",
    "--json df",
    "show",
    "show --raw",
    "label",
    "du",
    "du -s --raw",
    "--json du",
    "du --kbytes",
];

fn filesystem(words: &str, volume: &str) -> String {
    let words = words.split(' ').filter(|word| !word.is_empty());
    let (json, rest): (Vec<&str>, Vec<&str>) = words.partition(|word| *word == "--json");
    let command = [json, vec!["filesystem"], rest, vec![volume]].concat();
    butternut(&command).ok()
}

#[test]
fn what_a_mount_shows_is_what_its_volume_has() {
    if !kernel_tests_enabled("what_a_mount_shows_is_what_its_volume_has") {
        return;
    }
    let scratch = Scratch::new("512M");
    for options in ["allow_other", "allow_other,compress=zstd,writeback"] {
        scratch.mount(options);
        scratch.script(FILES);
        let at = scratch.at();
        let mounted = SHOWN.map(|words| filesystem(words, &at).replace(&at, ""));
        let below = filesystem("du", &format!("{at}/sub/dir")).replace(&at, "");
        scratch.umount();
        let image = scratch.image();
        for (words, mounted) in SHOWN.iter().zip(&mounted) {
            let mut want = filesystem(words, &image);
            if words.contains("du") {
                // A path in the volume begins with a slash.
                want = want.replace("\"path\":\"/\"", "\"path\":\"\"");
                want = want
                    .lines()
                    .map(|line| {
                        line.strip_suffix("  /")
                            .map_or_else(|| format!("{line}\n"), |line| format!("{line}  \n"))
                    })
                    .collect();
            }
            assert_eq!(mounted, &want, "{options}: {words}");
        }
        let offline = butternut(&["filesystem", "du", &image, "/sub/dir"]).ok();
        assert_eq!(below, offline, "{options}");
        shell(&format!("rm {image}"));
        butternut(&["mkfs", "-q", "-L", "second", "--size", "512M", &image]).ok();
    }
}

const LABELS: &str = r#"
try "$B" filesystem label .
try user "$B" filesystem label "$M/dir"
try "$B" filesystem label . 'a new one'
try user "$B" filesystem label . theirs
try "$B" --json filesystem label dir
try "$B" filesystem label . "$(printf '%0256d' 0)"
try "$B" filesystem label dir/missing
try "$B" filesystem label /proc
mount --bind -o ro "$M" "$T/ro"
try "$B" filesystem label "$T/ro" other
try "$B" filesystem resize "$T/ro" max
try "$B" filesystem usage "$T/ro" > "$T/out"; head -c 30 "$T/out"; echo
umount "$T/ro"
try user "$B" filesystem usage "$M"
try user "$B" filesystem df "$M"
try user "$B" filesystem show "$M"
try user "$B" filesystem resize "$M" max
mkdir closed; chmod 700 closed; echo x > closed/file
user "$B" filesystem du "$M" > "$T/out" 2>&1; echo "du of a user: $?"; grep -c denied "$T/out"
mkdir other; mount -t tmpfs none other; echo x > other/file
try "$B" filesystem df other
"$B" filesystem du . > "$T/out" 2>&1; echo "du: $?"; grep -c other/ "$T/out"
umount other
ln -s dir link
try "$B" filesystem df link > "$T/out"; "$B" filesystem df dir > "$T/out2"
"$B" filesystem du -s --raw link | tail -1; "$B" filesystem du -s --raw dir | tail -1
"#;

#[test]
fn labels_and_callers_of_a_mount() {
    if !kernel_tests_enabled("labels_and_callers_of_a_mount") {
        return;
    }
    let scratch = Scratch::new("256M");
    std::fs::create_dir(scratch.path("ro")).unwrap();
    let _guard = MountGuard::before_mount(&scratch.path("ro")).unwrap();
    scratch.mount("allow_other");
    let printed = scratch.script(&format!("mkdir dir; head -c 100000 /dev/zero > dir/f\n{LABELS}"));
    scratch.umount();
    let denied = |command: &str| {
        format!(
            "user butternut filesystem {command}: 1 butternut: filesystem {}: the mount at M: no \
             control socket",
            command.split(' ').next().unwrap()
        )
    };
    let [usage, df, show, resize] = ["usage M", "df M", "show M", "resize M max"].map(denied);
    expect_lines(
        &printed,
        &[
            "butternut filesystem label .: 0 first",
            "user butternut filesystem label M/dir: 0 first",
            "butternut filesystem label . a new one: 0 ",
            "user butternut filesystem label . theirs: 1 butternut: filesystem label: the mount at",
            "butternut --json filesystem label dir: 0 {",
            "  \"label\": \"a new one\"",
            "butternut filesystem label . 000",
            "butternut filesystem label dir/missing: 1 butternut: dir/missing: no such file",
            "butternut filesystem label /proc: 1 butternut: /proc: is in no mounted",
            "butternut filesystem label T/ro other: 1 butternut: T/ro: read-only file system",
            "butternut filesystem resize T/ro max: 1 butternut: T/ro: read-only file system",
            "butternut filesystem usage ",
            &usage,
            &df,
            &show,
            &resize,
            "du of a user: 1",
            "1",
            "butternut filesystem df other: 1 butternut: filesystem df: no butternut mount",
            "du: 0",
            "0",
        ],
    );
    assert!(printed.contains("want at most 255") || printed.contains("at most 255"), "{printed}");
    let last: Vec<&str> = printed.lines().rev().take(2).collect();
    assert_eq!(last[0].replace("dir", ""), last[1].replace("link", ""), "{printed}");
    assert_eq!(filesystem("label", &scratch.image()), "a new one\n");
    scratch.check();
}

const RESIZES: &str = r#"
size() { "$B" --json filesystem usage . | tr ',{' '\n\n' | grep -m 1 '"device_bytes"'; }
# Writes and deletions, until the resizes have ended.
load() {
    n=0
    while [ ! -e "$T/ended" ]; do
        n=$((n + 1)); head -c 300000 /dev/urandom > load$((n % 20)); "$B" filesystem sync .
        touch "$T/loaded"
    done
}
load & loading=$!
until [ -e "$T/loaded" ]; do sleep 0.05; done
try "$B" --json filesystem resize . -128M
size
try "$B" filesystem resize . 1:+64M
size
try "$B" filesystem resize . +1G
try "$B" filesystem resize . 2:max
try "$B" filesystem resize . 1
try "$B" filesystem resize . x
try "$B" filesystem resize . max
size
truncate -s +256M "$I"
try "$B" filesystem resize . max
size
touch "$T/ended"; wait $loading
try "$B" filesystem resize . min
"#;

#[test]
fn a_volume_is_resized_while_programs_write() {
    if !kernel_tests_enabled("a_volume_is_resized_while_programs_write") {
        return;
    }
    let scratch = Scratch::new("1G");
    scratch.mount("rw");
    let printed = scratch.script(RESIZES);
    scratch.umount();
    let sizes: Vec<&str> = printed
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("\"device_bytes\""))
        .collect();
    let of = |mebibytes: u64| format!("\"device_bytes\": {}", mebibytes << 20);
    assert_eq!(sizes, [of(896), of(960), of(1024), of(1280)], "{printed}");
    expect_lines(
        &printed,
        &[
            "butternut --json filesystem resize . -128M: 0 {",
            "  \"bytes\": 939524096",
            "butternut filesystem resize . +1G: 1 butternut: filesystem resize: the device has",
            "butternut filesystem resize . 2:max: 1 butternut: filesystem resize: no device 2",
            "butternut filesystem resize . 1: 1 butternut: filesystem resize: ",
            "butternut filesystem resize . x: 2 butternut: size: ",
            "butternut filesystem resize . max: 0 ",
            "butternut filesystem resize . min: 0 ",
        ],
    );
    scratch.check();
    shell(&format!("mount -o loop {} {at}; umount {at}", scratch.image(), at = scratch.at()));
    // It grows again, as far as its file goes, also beside the other lock of an image.
    let busy = butternut(&["filesystem", "resize", &scratch.image(), "min"]);
    assert!(busy.code.is_some(), "{}", busy.err);
    scratch.check();
}

const OF_KERNEL: &str = r#"
head -c 3000000 /dev/urandom > file; cp --reflink=always file copy; ln file link
head -c 3000000 /dev/zero > zeroes; btrfs -q property set zeroes compression zstd; sync -f .
try "$B" filesystem label .
try user "$B" filesystem label .
try "$B" filesystem label . changed
btrfs filesystem label .
try user "$B" filesystem label . theirs
try "$B" filesystem resize . -64M
try "$B" filesystem resize . 1:max
try "$B" filesystem resize . +1G
try "$B" filesystem resize . min
for command in df usage show; do try "$B" filesystem $command .; done
btrfs filesystem du --raw . > "$T/want"; "$B" filesystem du --raw . > "$T/have"
squeeze() { sed -E 's/[[:space:]]+/ /g; s/^ //' "$1" | grep -v Filename; }
diff <(squeeze "$T/want" | grep -v link) <(squeeze "$T/have") && echo "du is equal"
"#;

#[test]
fn a_mount_of_the_kernel_gets_the_calls_of_the_kernel() {
    if !kernel_tests_enabled("a_mount_of_the_kernel_gets_the_calls_of_the_kernel") {
        return;
    }
    let scratch = Scratch::new("512M");
    let device = LoopGuard::attach(Path::new(&scratch.image()), &[]).unwrap();
    shell(&format!("mount {} {}", device.path().display(), scratch.at()));
    let printed = scratch.script(OF_KERNEL);
    shell(&format!("umount {}", scratch.at()));
    let instead = |command: &str| {
        format!(
            "butternut filesystem {command} .: 1 butternut: .: is on a mount of the kernel's btrfs \
             (`btrfs filesystem {command}` does it there)"
        )
    };
    let [df, usage, show] = ["df", "usage", "show"].map(instead);
    expect_lines(
        &printed,
        &[
            "butternut filesystem label .: 0 first",
            "user butternut filesystem label .: 0 first",
            "butternut filesystem label . changed: 0 ",
            "changed",
            "user butternut filesystem label . theirs: 1 butternut: .: operation not",
            "butternut filesystem resize . -64M: 0 ",
            "butternut filesystem resize . 1:max: 0 ",
            "butternut filesystem resize . +1G: 1 butternut: .: file too large",
            "butternut filesystem resize . min: 1 butternut: .: is on a mount of the kernel",
            &df,
            &usage,
            &show,
            "du is equal",
        ],
    );
}

/// As for [`script_on_mount`]. Removals of subvolumes by rmdir(2), of root and of a user.
const REMOVALS: &str = r#"
chmod 755 "$M"
for name in empty full sealed default outer file held of-root; do
    btrfs -q subvolume create $name
done
touch full/file; btrfs -q subvolume create outer/inner; touch held/f; exec 5< held; rm held/f
btrfs -q property set -t subvol sealed ro true; btrfs subvolume set-default default
try rmdir empty full sealed default outer held
try rmdir outer/inner
try rmdir outer
exec 5<&-
mkdir theirs; chown 12345 theirs
try user btrfs -q subvolume create theirs/sub
try user rmdir theirs/sub
btrfs -q subvolume create theirs/of-root; touch of-root
try user rmdir of-root
try user rmdir theirs/of-root
btrfs -q subvolume create theirs/again; touch theirs/again/x; chmod 777 theirs/again
try user rmdir theirs/again
mkdir sticky; chmod 1777 sticky; btrfs -q subvolume create sticky/of-root
try user rmdir sticky/of-root
btrfs -q subvolume create frozen; mkdir frozen/dir; btrfs -q subvolume create frozen/dir/sub
btrfs -q property set -t subvol frozen ro true
try rmdir frozen/dir/sub
btrfs -q property set -t subvol frozen ro false
btrfs -q subvolume snapshot frozen copy
try rmdir copy/dir/sub
try rmdir full/file
mkdir below; mount --bind below of-root
try rmdir of-root
umount of-root
mkdir -p plain; touch plain/x; mv -T full moved; rm moved/file
try rmdir moved
sync -f .
ls
btrfs subvolume list . | sed -E 's/ID [0-9]+ gen [0-9]+ //'
"#;

#[test]
fn rmdir_removes_empty_subvolumes_as_the_kernel_does() {
    if !kernel_tests_enabled("rmdir_removes_empty_subvolumes_as_the_kernel_does") {
        return;
    }
    let scratch = Scratch::new("512M");
    let device = LoopGuard::attach(Path::new(&scratch.image()), &[]).unwrap();
    shell(&format!("mount {} {}", device.path().display(), scratch.at()));
    let of_kernel = scratch.script(REMOVALS);
    shell(&format!("umount {}", scratch.at()));
    drop(device);
    shell(&format!("rm {}", scratch.image()));
    butternut(&["mkfs", "-q", "--size", "512M", &scratch.image()]).ok();
    scratch.mount("allow_other,default_permissions");
    // The tool of btrfs-progs refuses mounts of other types.
    let ours = REMOVALS
        .replace("btrfs -q subvolume", "\"$B\" -q subvolume")
        .replace("btrfs -q property set -t subvol", "\"$B\" property set")
        .replace("btrfs subvolume", "\"$B\" subvolume")
        .replace("user btrfs", "user \"$B\"");
    let printed = scratch.script(&ours);
    scratch.umount();
    let comparable = |text: &str| text.replace("user butternut", "user btrfs");
    assert_eq!(comparable(&printed), comparable(&of_kernel));
    assert!(printed.contains("rmdir outer/inner: 0"), "{printed}");
    scratch.check();
}

/// Files, snapshots and deletions, so that every commit frees and reuses blocks.
const CHECKS: &str = r#"
"$B" subvolume create w
load() {
    n=0
    while [ ! -e "$T/ended" ]; do
        n=$((n + 1)); dir=w/d$((n % 7)); mkdir -p $dir
        head -c $((n % 9 * 40000)) /dev/urandom > $dir/$n
        rm -f w/d*/$((n - 30)); [ $((n % 3)) = 0 ] || sync $dir/$n
        [ $((n % 5)) != 0 ] || "$B" filesystem sync .
        "$B" subvolume snapshot w s > "$T/out" 2>&1; "$B" subvolume delete s > "$T/out" 2>&1
        touch "$T/loaded"
    done
}
load & loading=$!
until [ -e "$T/loaded" ]; do sleep 0.05; done
for n in 1 2 3 4 5 6; do
    "$B" check --online . > "$T/report"; echo "check: $?"; cat "$T/report"
done
"$B" check --online --check-data-csum --json w | grep '"clean"'
touch "$T/ended"; wait $loading
try "$B" check .
try "$B" check --online "$I"
try "$B" check --online /proc
try user "$B" check --online "$M"
yes 'a line of a file that is found in the image' | head -c 300000 > found; "$B" filesystem sync .
at=$(grep -obUa 'file that is found in the image' "$I" | sed -n '3000p' | cut -d : -f 1)
printf '?' | dd of="$I" bs=1 seek="$at" conv=notrunc 2> "$T/out"
"$B" check --online --check-data-csum . > "$T/report"; echo "damaged: $?"
rm found
"#;

#[test]
fn a_mounted_volume_is_checked_while_commits_go_on() {
    if !kernel_tests_enabled("a_mounted_volume_is_checked_while_commits_go_on") {
        return;
    }
    let scratch = Scratch::new("512M");
    scratch.mount("allow_other");
    let printed = scratch.script(CHECKS);
    scratch.umount();
    assert_eq!(printed.matches("check: 0\n.: clean at generation ").count(), 6, "{printed}");
    expect_lines(
        &printed,
        &[
            "  \"clean\": true,",
            "butternut check .: 8 butternut: .: is a directory (name the image file",
            "butternut check --online I: 8 butternut: I: is no directory of a mounted",
            "butternut check --online /proc: 8 butternut: check: no butternut mount",
            "user butternut check --online M: 8 butternut: check: the mount at M belongs",
            "damaged: 4",
        ],
    );
    scratch.mount("ro");
    let report = butternut(&["check", "--online", &scratch.at()]).ok();
    assert!(report.contains(": clean at generation "), "{report}");
    scratch.umount();
    scratch.check();
}

const SHORTENED: &str = r#"
try "$B" filesystem resize . 768M
truncate -s 768M "$I"
echo kept > file; "$B" filesystem sync .
echo late > late
try "$B" filesystem resize . max
try "$B" filesystem resize . +64M
truncate -s 896M "$I"
try "$B" filesystem resize . max
try "$B" filesystem sync .
"#;

#[test]
fn a_volume_whose_file_was_shortened_grows_only_as_far_as_it() {
    if !kernel_tests_enabled("a_volume_whose_file_was_shortened_grows_only_as_far_as_it") {
        return;
    }
    let scratch = Scratch::new("1G");
    scratch.mount("rw");
    let printed = scratch.script(SHORTENED);
    butternut(&["umount", &scratch.at()]);
    expect_lines(
        &printed,
        &[
            "butternut filesystem resize . 768M: 0 ",
            "butternut filesystem resize . max: 0 ",
            "butternut filesystem resize . +64M: 1 butternut: filesystem resize: the device has",
            "butternut filesystem resize . max: 0 ",
            "butternut filesystem sync .: 0 ",
        ],
    );
    assert_eq!(butternut(&["cat", &scratch.image(), "late"]).ok(), "late\n");
    let usage = filesystem("--json usage", &scratch.image());
    assert!(usage.contains(&format!("\"device_bytes\": {}", 896_u64 << 20)), "{usage}");
    scratch.check();
}

/// The process of the mount has the root directory as its working directory.
#[test]
fn a_volume_on_devices_with_relative_paths_grows() {
    if !kernel_tests_enabled("a_volume_on_devices_with_relative_paths_grows") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    shell(&format!(
        "cd {}; truncate -s 300M a.img b.img; mkfs.btrfs -q -d single -m raid1 a.img b.img",
        dir.path().display()
    ));
    let here = |words: &[&str]| -> super::command::CommandOutput {
        let ran = super::command::command().current_dir(dir.path()).args(words).output();
        ran.unwrap().into()
    };
    here(&["mount", "a.img", "b.img", "at"]).ok();
    shell(&format!("truncate -s 600M {}/a.img", dir.path().display()));
    let grown = here(&["filesystem", "resize", "at", "1:max"]);
    here(&["umount", "at"]).ok();
    grown.ok();
}

const QUOTAS_READ_ONLY: &str = r#"
mount --bind -o ro "$M" "$T/ro"
try "$B" quota enable "$T/ro"
try "$B" quota status "$T/ro"
"$B" quota enable "$M"
try "$B" qgroup create 1/1 "$T/ro"
try "$B" qgroup limit 1M 0/5 "$T/ro"
try "$B" quota disable "$T/ro"
umount "$T/ro"
"$B" mount -o remount,ro "$M"
try "$B" quota rescan .
try "$B" qgroup create 1/2 .
"#;

/// As in the kernel, where these calls need write access to the mount (`mnt_want_write_file`).
#[test]
fn quotas_are_not_changed_through_a_read_only_mount() {
    if !kernel_tests_enabled("quotas_are_not_changed_through_a_read_only_mount") {
        return;
    }
    let scratch = Scratch::new("256M");
    std::fs::create_dir(scratch.path("ro")).unwrap();
    let _guard = MountGuard::before_mount(&scratch.path("ro")).unwrap();
    scratch.mount("allow_other");
    let printed = scratch.script(QUOTAS_READ_ONLY);
    scratch.umount();
    expect_lines(
        &printed,
        &[
            "butternut quota enable T/ro: 1 butternut: T/ro: read-only file system",
            "butternut quota status T/ro: 0 Enabled:      no",
            "butternut qgroup create 1/1 T/ro: 1 butternut: T/ro: read-only file system",
            "butternut qgroup limit 1M 0/5 T/ro: 1 butternut: T/ro: read-only file system",
            "butternut quota disable T/ro: 1 butternut: T/ro: read-only file system",
            "butternut quota rescan .: 1 butternut: .: read-only file system",
            "butternut qgroup create 1/2 .: 1 butternut: .: read-only file system",
        ],
    );
}

#[test]
fn a_mounted_volume_with_a_path_that_is_no_text_is_checked() {
    use std::os::unix::ffi::OsStrExt;
    if !kernel_tests_enabled("a_mounted_volume_with_a_path_that_is_no_text_is_checked") {
        return;
    }
    let scratch = Scratch::new("256M");
    let odd = scratch.path("").join(std::ffi::OsStr::from_bytes(b"odd\xff.img"));
    std::fs::rename(scratch.image(), &odd).unwrap();
    let at = scratch.path("at");
    butternut(&["mount".as_ref(), odd.as_os_str(), at.as_os_str()]).ok();
    let report = butternut(&["check", "--online", &scratch.at()]);
    scratch.umount();
    assert!(report.ok().contains(": clean at generation "));
}
