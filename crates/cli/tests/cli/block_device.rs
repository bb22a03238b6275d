//! `mount -o blkdev`: sync(2), syncfs(2) and umount(2) reach the process of the mount, and the
//! kernel's claim on the device keeps every other user away.

use super::command::{butternut, shell};
use super::image::kernel_tests_enabled;
use super::mount::{MountPoint, own_copy};
use super::mount_end::run_in_namespace;

/// Runs a script with a loop device L over own.img, and the mount points m1, m2, m3 and k. In the
/// script, `mounted WORDS` mounts L on m1 and sets D to the process of the mount, `saved FILE`
/// prints what a copy of the device has, and `refused WORDS` prints the message of a command that
/// must fail. Returns the output, with the path of the device replaced by `L`.
pub(crate) fn run_on_loop(script: &str) -> String {
    run_in_namespace(&format!(
        "mkdir m3 k; L=; D=none
         undo() {{ umount -l m1 m2 m3 k $L; [ $D = none ] || kill -9 $D; losetup -d $L; }}
         trap \"{{ undo || true; }} 2>ignored\" EXIT
         L=$(losetup -f --show own.img)
         mounted() {{ $B mount -o blkdev,commit=3600 \"$@\" $L m1; D=$(daemon); }}
         saved() {{
             cp --sparse=always own.img copy.img
             $B cat copy.img $1 2>errors || echo none
         }}
         refused() {{
             if \"$@\" >out 2>errors; then echo not refused: \"$@\"; else cat errors; fi
         }}
         free() {{ mkfs.btrfs -q -f $L; mount $L k; umount k; echo free; }}
         {{
             {script}
         }} >output
         [ $D = none ] || ended $D
         sed \"s:/dev/loop[0-9]*:L:g; s:$PWD/::g; s:process [0-9]*:process N:\" output"
    ))
}

/// Checks the output of a script. sync(2) of another program commits, and takes the report of an
/// error, at any time, so a script that must not meet one is tried several times.
#[track_caller]
pub(crate) fn check_output(run: impl Fn() -> String, is_right: impl Fn(&str) -> bool, what: &str) {
    let mut output = String::new();
    for _ in 0..10 {
        output = run();
        if is_right(&output) {
            return;
        }
    }
    panic!("{what}: {output}");
}

#[test]
fn syncfs_and_sync_make_written_data_durable() {
    if !kernel_tests_enabled("syncfs_and_sync_make_written_data_durable") {
        return;
    }
    // `sync -f` is syncfs(2), and `sync` is sync(2).
    for (options, how) in [("rw", "sync -f m1"), ("writeback", "sync -f m1"), ("rw", "sync")] {
        let script = format!(
            "mounted -o {options}
             findmnt -no FSTYPE,SOURCE m1
             echo text >m1/new; echo unsaved: $(saved /new)
             {how}
             echo saved: $(saved /new)
             echo other >m1/other; {how}
             kill -9 $D; ended $D; umount -l m1; D=none
             $B cat $L /new /other"
        );
        let expected = "fuseblk.butternut L\nunsaved: none\nsaved: text\ntext\nother\n";
        let what = format!("{options} {how}");
        check_output(|| run_on_loop(&script), |output| output == expected, &what);
    }
}

#[test]
fn umount_8_returns_after_the_commit() {
    if !kernel_tests_enabled("umount_8_returns_after_the_commit") {
        return;
    }
    for options in ["rw", "writeback", "uncached"] {
        let output = run_on_loop(&format!(
            "for n in 1 2 3; do
                 mounted -o {options}
                 mkdir m1/gone; (cd m1/gone; rmdir ../gone)
                 head -c 3M /dev/urandom >m1/data; cp m1/data data$n; echo $n >m1/new
                 umount m1
                 echo saved: $(saved /new)
                 # The process writes no more, so the kernel may mount the device now.
                 mount $L k; cmp data$n k/data; cat k/new; echo kernel >k/kernel; umount k
                 ended $D; D=none
             done
             btrfs check --check-data-csum $L >log 2>&1 || cat log
             $B cat $L /kernel"
        ));
        let expected = "saved: 1\n1\nsaved: 2\n2\nsaved: 3\n3\nkernel\n";
        assert_eq!(output, expected, "{options}");
    }
}

/// The kernel sends no last request, and releases the device at once.
#[test]
fn a_forced_unmount_loses_nothing() {
    if !kernel_tests_enabled("a_forced_unmount_loses_nothing") {
        return;
    }
    let output = run_on_loop(
        "mounted; head -c 9M /dev/urandom >m1/data; cp m1/data bytes; echo text >m1/new
         umount -i -f m1; ended $D; D=none
         $B cat $L /data | cmp bytes; $B cat $L /new
         btrfs check --check-data-csum $L >log 2>&1 || cat log",
    );
    assert_eq!(output, "text\n");
}

/// An abort leaves the mount, and so does a forced unmount of a mount in use. The kernel holds the
/// device as long as the superblock exists, and no longer sends requests.
#[test]
fn an_aborted_connection_loses_nothing() {
    if !kernel_tests_enabled("an_aborted_connection_loses_nothing") {
        return;
    }
    let (blkdev, plain) = ("mounted", "$B mount -o commit=3600 $L m1; D=$(daemon)");
    // The process may detach the mount before umount(2) finds it busy.
    let force = "umount -i -f m1 2>ignored || echo busy";
    let fsyncs =
        "(while dd if=/dev/zero of=m1/new conv=nocreat,notrunc,fsync bs=9 seek=1 count=1; do
         touch begun; done) 2>ignored & while [ ! -e begun ]; do sleep .01; done";
    for (mount, begin, abort, end) in [
        (blkdev, "", "abort", ""),
        (blkdev, "exec 7<m1/new", "abort", "exec 7<&-"),
        (blkdev, "exec 7<m1/new", force, "exec 7<&-"),
        (blkdev, "mkdir m1/t; mount -t tmpfs t m1/t", "abort", "umount -l m1"),
        (blkdev, fsyncs, "abort", "wait"),
        (plain, "", "abort", ""),
        (plain, "exec 7<m1/new", "abort", "exec 7<&-"),
    ] {
        let output = run_on_loop(&format!(
            "mkdir connections; mount -t fusectl none connections
             abort() {{ echo 1 >connections/$((${{N%:*}} << 20 | ${{N#*:}}))/abort; echo busy; }}
             {mount}; head -c 9M /dev/urandom >m1/data; cp m1/data bytes; echo text >m1/new
             N=$(mountpoint -d m1)
             {begin}
             {abort}
             ended $D; D=none
             {end}
             findmnt m1 || echo unmounted
             $B cat $L /data | cmp bytes; $B cat $L /new | head -n 1
             btrfs check --check-data-csum $L >log 2>&1 || cat log; free"
        ));
        assert_eq!(output, "busy\nunmounted\ntext\nfree\n", "{mount}; {begin}; {abort}");
    }
}

/// Once another program may have the device, the process writes nothing to it. It is stopped
/// meanwhile, as a process is that waits for a slow device.
#[test]
fn after_a_forced_unmount_another_users_device_is_not_written() {
    if !kernel_tests_enabled("after_a_forced_unmount_another_users_device_is_not_written") {
        return;
    }
    let others = [
        "mount $L k; cp bytes k/theirs; umount k",
        "mkfs.btrfs -q -f $L; mount $L k; cp bytes k/theirs; umount k",
        "mkfs.ext4 -q -F $L; mount $L k; cp bytes k/theirs; umount k",
    ];
    for other in others {
        let output = run_on_loop(&format!(
            "head -c 9M /dev/urandom >bytes
             mounted; cp bytes m1/ours; mkdir m1/new; kill -STOP $D
             umount -i -f m1
             {other}
             sectors() {{ awk '{{ print $7 }}' /sys/block/${{L#/dev/}}/stat; }}
             before=$(sectors)
             kill -CONT $D; ended $D; D=none
             echo written: $(($(sectors) - before))
             mount $L k; cmp bytes k/theirs; umount k"
        ));
        assert_eq!(output, "written: 0\n", "{other}");
    }
}

#[test]
fn the_device_is_refused_to_others_while_it_is_mounted() {
    if !kernel_tests_enabled("the_device_is_refused_to_others_while_it_is_mounted") {
        return;
    }
    let output = run_on_loop(
        "mounted; echo text >m1/new
         refused mount -t btrfs $L k | grep -o \"already mounted\"
         refused mkfs.btrfs -q -f $L | grep -o \"Device or resource busy\"
         refused $B mkdir $L /other; refused $B mkdir own.img /other
         umount m1; ended $D; D=none
         $B cat $L /new; free",
    );
    let hint = "(unmount it, or wait until it is free)";
    let mounted = "(it is mounted on m1; `butternut umount m1` releases it)";
    let expected = format!(
        "already mounted\nDevice or resource busy\n\
         butternut: L: is busy: the kernel has mounted L on m1 {hint}\n\
         butternut: own.img: is busy: process N (butternut) has it open {mounted}\n\
         text\nfree\n"
    );
    assert_eq!(output, expected);
}

#[test]
fn a_device_that_others_use_is_refused() {
    if !kernel_tests_enabled("a_device_that_others_use_is_refused") {
        return;
    }
    let output = run_on_loop(
        "mount $L k; refused $B mount -o blkdev $L m1; umount k
         $B mount own.img m2; refused $B mount -o blkdev $L m1 | grep -o \"busy: process.*open\"
         $B umount m2; mounted; $B umount m1; free",
    );
    let hint = "(unmount it, or wait until it is free)";
    let expected = format!(
        "butternut: L: is busy: the kernel has mounted L on k {hint}\n\
         busy: process N (butternut) has it open\nfree\n"
    );
    assert_eq!(output, expected);
}

#[test]
fn several_concurrent_mounts_are_one_mount() {
    if !kernel_tests_enabled("several_concurrent_mounts_are_one_mount") {
        return;
    }
    let output = run_on_loop(
        "for n in $(seq 8); do
             for m in m1 m2 m3; do
                 $B mount -o blkdev $L $m 2>errors.$m &
             done
             $B mkdir $L /dir$n 2>errors.mkdir & wait
             for m in m1 m2 m3; do
                 getfattr --only-values -n butternut.daemon $m 2>/dev/null && echo || true
             done | sort -u >daemons
             [ $(wc -l <daemons) -le 1 ] || cat daemons
             for m in m1 m2 m3; do findmnt $m >out && $B umount -q $m; done; true
         done
         btrfs check --check-data-csum $L >log 2>&1 || cat log; free",
    );
    assert_eq!(output, "free\n");
}

#[test]
fn errors_leave_the_device_free() {
    if !kernel_tests_enabled("errors_leave_the_device_free") {
        return;
    }
    let output = run_on_loop(
        "refused $B mount -o blkdev,subvol=none $L m1
         free
         dd if=/dev/zero of=$L bs=1M count=65 conv=fsync 2>log
         refused $B mount -o blkdev $L m1 | grep -o \"the volume cannot be opened\"
         free
         losetup -d $L; L=$(losetup -f --show --read-only own.img)
         refused $B mount -o blkdev $L m1
         $B mount -o blkdev,ro $L m1; findmnt -no FSTYPE,FS-OPTIONS m1 | cut -d , -f 1
         umount m1; findmnt m1 || echo unmounted",
    );
    let expected = "butternut: L: no subvolume none (`butternut subvolume list` shows what there \
         is)\nfree\nthe volume cannot be opened\nfree\n\
         butternut: L: cannot be mounted: permission denied (a read-only device needs -o ro)\n\
         fuseblk.butternut ro\nunmounted\n";
    assert_eq!(output, expected);
}

#[test]
fn only_root_mounts_a_block_device_and_nothing_else() {
    if !kernel_tests_enabled("only_root_mounts_a_block_device_and_nothing_else") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let image = own_copy(&scratch);
    let path = image.to_str().unwrap();
    let message = butternut(&["mount", "-o", "blkdev", path, mount_point.name()]).failure();
    let why = "is not a block device, which -o blkdev needs (attach an image file to a loop device \
               with losetup(8), or mount without -o blkdev)";
    assert_eq!(message, format!("butternut: {path}: {why}"));
    let (program, dir) = (env!("CARGO_BIN_EXE_butternut"), scratch.path().display());
    let output = shell(&format!(
        "chmod 755 {dir}; cp {program} {dir}/butternut; mkdir {dir}/m; chown nobody {dir}/m
         setpriv --reuid=nobody --regid=nogroup --clear-groups \
             {dir}/butternut mount -o blkdev {path} {dir}/m 2>&1 || true"
    ));
    assert_eq!(output, "butternut: option blkdev: needs root (mount without -o blkdev)\n");
    // Root of another user namespace has no block devices.
    let output = run_on_loop("refused unshare --user --map-root-user $B mount -o blkdev $L m1");
    assert!(output.contains("needs CAP_SYS_ADMIN in the initial user namespace"), "{output}");
}

#[test]
fn commands_work_on_a_mount_of_a_block_device() {
    if !kernel_tests_enabled("commands_work_on_a_mount_of_a_block_device") {
        return;
    }
    let output = run_on_loop(
        "mount $L k; btrfs -q subvolume create k/a; mkdir k/a/deep; umount k
         mounted -o subvol=a; cd m1; $B stats . | grep -c commits; cd ..
         $B ctl m1 nosec=off; $B ctl m1 nosec
         cat /sys/class/bdi/$(mountpoint -d m1)-fuseblk/read_ahead_kb
         echo one >m1/file; $B filesystem sync m1; echo saved: $(saved /a/file)
         # Further mounts, of other subvolumes, with their own flags.
         $B mount $L m2; $B mount -o ro,subvol=a $L m3
         cat m2/a/file m3/file; refused touch m3/new | grep -o Read-only
         # A remount, also with the options that mount(8) adds.
         $B mount -o remount,ro,$(findmnt -no OPTIONS m1) $L m1 2>&1
         $B mount -o remount,ro $L m2; findmnt -no FS-OPTIONS m1 | cut -d , -f 1
         umount m3; $B mount -o subvol=a $L m3; cat m3/file
         $B mount -o remount,rw $L m2; echo two >m2/two
         # The last mount point releases the volume.
         umount m1; umount m3; [ -d /proc/$D ] && echo served
         $B umount --json m2 | grep -o true
         ended $D; D=none; $B cat $L /two",
    );
    let expected = "1\noff\n4096\nsaved: one\none\none\nRead-only\nro\none\nserved\ntrue\ntwo\n";
    assert_eq!(output, expected);
}

#[test]
fn the_helpers_of_mount_8_mount_a_block_device() {
    if !kernel_tests_enabled("the_helpers_of_mount_8_mount_a_block_device") {
        return;
    }
    let output = run_on_loop(
        "ln -s $B mount.fuseblk.butternut; ln -s $B umount.fuseblk.butternut
         ./mount.fuseblk.butternut $L $PWD/m1 -o rw,noauto,subvol=/; D=$(daemon)
         findmnt -no FSTYPE m1; echo text >m1/new
         ./mount.fuseblk.butternut $L $PWD/m1 -o remount,ro
         refused touch m1/new | grep -o Read-only
         ./umount.fuseblk.butternut $PWD/m1
         ended $D; D=none
         $B cat $L /new",
    );
    assert_eq!(output, "fuseblk.butternut\nRead-only\ntext\n");
}

#[test]
fn a_signal_commits_and_ends_a_mount_of_a_block_device() {
    if !kernel_tests_enabled("a_signal_commits_and_ends_a_mount_of_a_block_device") {
        return;
    }
    let output = run_on_loop(
        "mounted; echo text >m1/new
         kill -TERM $D; ended $D; D=none
         findmnt m1 || echo unmounted
         $B cat $L /new
         mounted; echo more >m1/more; exec 7>m1/open
         kill -TERM $D; while findmnt m1 >out; do sleep .05; done
         echo late >&7; exec 7>&-
         ended $D; D=none
         $B cat $L /more /open; free",
    );
    assert_eq!(output, "unmounted\ntext\nmore\nlate\nfree\n");
}

/// Linux 6.18 lets neither sync(2) nor syncfs(2) wait for the pages that it sends.
#[test]
fn syncfs_and_sync_cover_files_that_stay_open() {
    if !kernel_tests_enabled("syncfs_and_sync_cover_files_that_stay_open") {
        return;
    }
    for (mib, how) in [(9, "sync"), (64, "sync -f m1"), (64, "sync")] {
        let script = format!(
            "mounted -o writeback
             head -c {mib}M /dev/urandom >bytes
             exec 7>m1/open; cat bytes >&7
             {how}
             cp --sparse=always own.img copy.img
             $B cat copy.img /open 2>errors | cmp bytes && echo whole
             exec 7>&-; umount m1; ended $D; D=none
             $B cat $L /open | cmp bytes && echo whole at the end"
        );
        // No retry: another program's sync(2) only helps.
        let output = run_on_loop(&script);
        assert_eq!(output, "whole\nwhole at the end\n", "{mib} MiB, {how}");
    }
}

/// A sync that a shutdown overtakes has committed nothing, and says so.
#[test]
fn a_syncfs_that_a_shutdown_overtakes_does_not_succeed() {
    if !kernel_tests_enabled("a_syncfs_that_a_shutdown_overtakes_does_not_succeed") {
        return;
    }
    // So many files make the walk of the sync take seconds, so that the shutdown overtakes its
    // commit.
    for options in ["writeback", "uncached"] {
        let output = run_on_loop(&format!(
            "ulimit -n 20000
             mounted -o {options}
             mkdir m1/many
             perl -e 'for (1..8000) {{ open(my $f, q(>), qq(m1/many/$_)) or die $!; push @o, $f }}
                 open(my $f, q(>), q(opened)); close($f); sleep 1000' & P=$!
             while [ ! -e opened ]; do sleep .05; done
             echo text >m1/new
             (if sync -f m1 2>said; then echo synced >result; else echo failed >result; fi) & S=$!
             sleep .5
             [ -e result ] && echo too fast
             perl -e 'open(my $f, q(<), q(m1)) or exit 99; my $mode = pack(q(L), 2);
                 ioctl($f, 0x8004587d, $mode) or exit $!'
             wait $S || true
             R=$(cat result); [ $R = failed ] || R=$(saved /new)
             echo $R
             kill $P; wait $P 2>ignored || true
             umount m1; ended $D; D=none"
        ));
        assert_eq!(output, "failed\n", "{options}: none: syncfs(2) has returned 0, and it is lost");
    }
}
