//! Commands for subvolumes of a mounted volume: the same script on a mount of ours and on one of
//! the kernel, with the same results.

use super::command::{butternut, run, script_on_mount};
use super::image::kernel_tests_enabled;
use butternut_undo::MountGuard;

/// As for [`script_on_mount`].
const SCRIPT: &str = r#"
other() { setpriv --reuid=54321 --regid=54321 --clear-groups "$@"; }
# Without what differs from volume to volume.
list() { "$B" subvolume list "$@" 2>&1 | sed 's/gen [0-9]*/gen N/g; s/otime [-0-9 :]*/otime T /'; }
show() {
    "$B" subvolume show "$@" 2>&1 |
        sed -E '/UUID|time|Generation|Gen at|transid|Quota group/d; s/[[:space:]]+/ /g'
}
default() { "$B" subvolume get-default "$@" 2>&1 | sed 's/gen [0-9]*/gen N/'; }
umask 022
chmod 755 "$M"
try "$B" subvolume create "$M/a" b
mkdir dir; chmod 777 dir
mkdir closed
echo before > a/file
# A write that nothing has synced is in the snapshot.
exec 5>> a/file
echo unsynced >&5
try "$B" subvolume snapshot "$M/a" "$M/snap"
echo after >&5
exec 5>&-
try "$B" subvolume snapshot -r a dir
cat snap/file dir/a/file
try touch dir/a/new
try "$B" property get dir/a ro
try "$B" property get a
try list "$M"
try list dir/a
try list -o -a dir/a
try list -s -r .
try show "$M"
try show "$M/a"
try show dir/a
try show dir
try show a/file
try default "$M"
try default dir/a
try user "$B" subvolume list "$M"
try user "$B" subvolume show "$M/a"
try user "$B" subvolume get-default "$M"
try "$B" property set a ro true
try touch a/new
try "$B" property set a ro false
try touch a/new
try "$B" property get dir ro
try "$B" property set dir ro true
try "$B" subvolume create a
try "$B" subvolume create dir/missing/x
try "$B" subvolume create a/.. 
try "$B" subvolume create "dir/$(printf '%0256d' 0)"
try "$B" subvolume snapshot dir dir/of-no-subvolume
try "$B" subvolume snapshot a/file dir/of-a-file
try "$B" subvolume snapshot a snap/file
try "$B" subvolume snapshot /proc dir/elsewhere
# A descriptor of a mount of another namespace.
exec 6< a
try unshare --mount "$B" subvolume snapshot /proc/self/fd/6 dir/from-outside
exec 6<&-
try "$B" subvolume delete dir
try "$B" subvolume delete a/file
try "$B" subvolume delete dir/missing
try "$B" subvolume create a/inner
try "$B" subvolume delete a
# Another user.
try user "$B" subvolume create dir/of-user
try user "$B" subvolume create closed/of-user
setfacl -m u:12345:rwx closed
try user "$B" subvolume create closed/by-acl
setfacl -m u:12345:rx closed
try user "$B" subvolume create closed/no-acl
try user "$B" subvolume snapshot dir/of-user dir/copy
try user "$B" subvolume snapshot a dir/of-root
try other "$B" subvolume snapshot dir/of-user dir/of-other
try other "$B" subvolume delete dir/copy
try user "$B" subvolume delete closed/by-acl
try user "$B" subvolume delete dir/copy
try user "$B" property set dir/of-user ro true
try user "$B" property set a ro true
try user "$B" subvolume set-default dir/of-user
chmod +t dir
chmod 777 dir/of-user
try other "$B" subvolume delete dir/of-user
try user "$B" subvolume snapshot dir/of-user dir/again
try user "$B" subvolume delete dir/again
try "$B" subvolume set-default dir/of-user
try default .
try "$B" subvolume delete dir/of-user
try "$B" subvolume set-default "$M" 5
try "$B" subvolume delete dir/of-user dir/copy
# Deletions are waited for, by any user. The kernel takes seconds for each.
if [ -n "$WAITS" ]; then
    try "$B" subvolume sync "$M"
    try "$B" subvolume sync "$M" 256
    try "$B" subvolume sync "$M" 5
    try "$B" subvolume sync "$M" 9999
    "$B" subvolume create ./short
    id="$("$B" --json subvolume show ./short | tr -dc '[:alnum:],')"
    id="${id#id}"; id="${id%%,*}"
    head -c 3000000 /dev/zero > short/file
    try "$B" subvolume delete ./short
    try user "$B" subvolume sync "$M" "$id"
    try list -d "$M"
    try list "$M"
fi
# A call that fails leaves what is mounted below the name.
mkdir -p dir/x/deep
mount -t tmpfs none dir/x/deep
try user "$B" subvolume create dir/x
try "$B" subvolume delete dir/x
mountpoint -q dir/x/deep && echo "still mounted"
umount dir/x/deep
# Nothing is changed through a read-only mount.
mkdir "$M.ro"
mount --bind "$M" "$M.ro"
mount -o remount,bind,ro "$M.ro"
try user "$B" subvolume create "$M.ro/dir/through-ro"
umount "$M.ro"
# Immutable subvolumes, and files of deleted ones that are open.
"$B" subvolume create ./fixed
chattr +i fixed
try "$B" subvolume delete ./fixed
chattr -i fixed
head -c 100000 /dev/zero > fixed/file
exec 6< fixed/file
try "$B" subvolume delete ./fixed
wc -c <&6
exec 6<&-
id="$("$B" --json subvolume delete a/inner | tr -dc '[:alnum:]' )"
echo "$id"
try "$B" subvolume delete -i 256 "$M"
try "$B" subvolume delete -i 256 "$M"
try "$B" subvolume delete -i 9999 "$M"
find . -printf '%p %m %u %g %y\n' | sort
cat snap/file
"#;

/// Runs the script on a mounted volume, and returns what it printed.
fn script(mountpoint: &str, waits: bool) -> String {
    script_on_mount(mountpoint, SCRIPT, &[("WAITS", if waits { "1" } else { "" })])
}

/// Makes a volume, mounts it with the command, runs the script and unmounts.
fn outcome(waits: bool, mount: impl Fn(&str, &str), unmount: impl Fn(&str)) -> String {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
    std::fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    // Other users pass through.
    run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
    butternut(&["mkfs", "--size", "256M", image]).ok();
    mount(image, at);
    let printed = script(at, waits);
    unmount(at);
    run("btrfs", &["check", "--check-data-csum", image].map(AsRef::as_ref));
    printed
}

#[test]
fn a_mount_serves_the_calls_for_subvolumes_as_the_kernel_does() {
    if !kernel_tests_enabled("a_mount_serves_the_calls_for_subvolumes_as_the_kernel_does") {
        return;
    }
    for (more, caching) in [("", ""), ("", ",writeback"), (",user_subvol_rm_allowed", "")] {
        let waits = (more, caching) == ("", "");
        let kernel = outcome(
            waits,
            |image, at| {
                run(
                    "mount",
                    &["-o", &format!("loop,commit=1{more}"), image, at].map(AsRef::as_ref),
                );
            },
            |at| {
                run("umount", &[at].map(AsRef::as_ref));
            },
        );
        let options = format!("allow_other{caching}{more}");
        let ours = outcome(
            waits,
            |image, at| {
                butternut(&["mount", "-o", &options, image, at]).ok();
            },
            |at| {
                butternut(&["umount", "-q", at]).ok();
            },
        );
        for (ours, kernel) in ours.lines().zip(kernel.lines()) {
            assert_eq!(ours, kernel, "with {options}");
        }
        assert_eq!(ours.lines().count(), kernel.lines().count());
        assert!(kernel.lines().count() > 60, "{kernel}");
    }
}

#[test]
fn a_subvolume_with_a_long_path_hides_no_others_on_a_mount() {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    use std::os::fd::AsFd;
    if !kernel_tests_enabled("a_subvolume_with_a_long_path_hides_no_others_on_a_mount") {
        return;
    }
    let scratch = super::volumes_mounted::Scratch::new("256M");
    scratch.mount("allow_other");
    let at = scratch.at();
    butternut(&["subvolume", "create", &format!("{at}/other")]).ok();
    butternut(&["subvolume", "create", &format!("{at}/top")]).ok();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // As any user may do below a directory of its own: 17 names of 250 bytes, more than the 4080
    // that INO_LOOKUP returns.
    let mut dir = openat(CWD, format!("{at}/top").as_str(), flags, Mode::empty()).unwrap();
    let name = "n".repeat(250);
    for _ in 0..17 {
        mkdirat(&dir, name.as_str(), Mode::RWXU).unwrap();
        dir = openat(&dir, name.as_str(), flags, Mode::empty()).unwrap();
    }
    butternut_sys::subvolume_calls::create(dir.as_fd(), b"inner").unwrap();
    drop(dir);
    let listed = butternut(&["subvolume", "list", &at]).ok();
    assert!(listed.contains("path other\n") && listed.lines().count() == 3, "{listed}");
    butternut(&["subvolume", "show", &format!("{at}/other")]).ok();
    butternut(&["subvolume", "delete", "-R", &format!("{at}/top")]).ok();
    scratch.umount();
    scratch.check();
}

/// A process whose root is a directory inside of the mount sees no mount of it in its table: the
/// kernel leaves out the mounts that are not below the root. The numbers are
/// `BTRFS_IOC_SUBVOL_CREATE` and `BTRFS_IOC_SNAP_DESTROY`.
const IN_A_JAIL: &str = r#"
mkdir jail; chmod 777 jail
call() {
    perl -e '
        sysopen(my $dir, $ARGV[0], 0200000) or die "open: $!\n";
        chroot($ARGV[0]) or die "chroot: $!\n"; chdir("/");
        if ($ARGV[3]) { $( = $) = $ARGV[3]; $< = $> = $ARGV[3]; }
        my $arguments = pack("q a4088", 0, $ARGV[2]);
        print(ioctl($dir, hex($ARGV[1]), $arguments) ? "done\n" : "$!\n");' "$@"
}
call "$M/jail" 5000940e of-root 0
call "$M/jail" 5000940e of-user 12345
call "$M/jail" 5000940f of-root 0
mkdir other jail/old; mount --bind -o ro "$M/other" "$M/jail/old"
call "$M/jail" 5000940e beside-read-only 0
umount "$M/jail/old"
mkdir "$T/ro"; mount --bind -o ro "$M" "$T/ro"
call "$T/ro/jail" 5000940e no 0
umount "$T/ro"
"#;

#[test]
fn a_process_with_its_root_inside_of_the_mount_makes_subvolumes() {
    if !kernel_tests_enabled("a_process_with_its_root_inside_of_the_mount_makes_subvolumes") {
        return;
    }
    let scratch = super::volumes_mounted::Scratch::new("256M");
    scratch.mount("allow_other");
    let printed = scratch.script(IN_A_JAIL);
    scratch.umount();
    // As with the kernel's btrfs.
    assert_eq!(printed, "done\ndone\ndone\ndone\nRead-only file system\n");
}
