//! Mount tables that users have made long, in lines or in bytes.

use super::image::kernel_tests_enabled;
use super::mount_end::run_in_namespace;

/// The numbers of mount(2) and umount2(2).
const CALLS: [u32; 2] = if cfg!(target_arch = "x86_64") { [165, 166] } else { [40, 39] };

/// An ancestor of a mount point can be moved deeper. The table shows `\134` for a backslash.
#[test]
fn a_mount_point_that_was_moved_deep_hides_no_mount() {
    if !kernel_tests_enabled("a_mount_point_that_was_moved_deep_hides_no_mount") {
        return;
    }
    let output = run_in_namespace(
        r#"$B mount own.img m1
        mkdir t; mount -t tmpfs deep t; mkdir -p t/a/m; mount -t tmpfs other t/a/m
        (cd t; perl -e '$name = "\\" x 255;
            for (1..1100) { mkdir $name or die $!; chdir $name or die $! }
            rename "$ENV{PWD}/a", "a" or die $!')
        [ $(wc -L </proc/self/mountinfo) -gt 1100000 ] && echo long
        $B subvolume create m1/new && echo created
        $B stats m1 >out && echo shown
        $B umount --timeout 5 m1 && echo unmounted
        $B mount own.img m1; D=$(daemon); kill $D; ended $D && echo ended
        $B subvolume list own.img | grep -c new"#,
    );
    assert_eq!(output, "long\ncreated\nshown\nunmounted\nended\n1\n");
}

#[test]
fn the_table_of_another_process_delays_no_caller() {
    if !kernel_tests_enabled("the_table_of_another_process_delays_no_caller") {
        return;
    }
    let [mount, umount] = CALLS;
    // Its namespace has 80 mounts whose lines have 900 KiB each. BTRFS_IOC_SUBVOL_CREATE fails.
    let user = format!(
        r#"open(my $root, "<", "m1") or die $!; chdir "t" or die $!;
        my ($name, $none, $m1) = ("\\" x 255, "none", "$ENV{{PWD}}/m1");
        for (1..450) {{ mkdir $name or die $!; chdir $name or die $! }}
        for (0..80) {{
            my ($from, $to) = ("0", "$_"); mkdir $to or die $!;
            syscall({mount}, $from, $to, $none, 4096, 0) == 0 or die $!
        }}
        my $create = pack("x8 Z4088", "refused");
        my $done = ioctl($root, 0x5000940e, $create) ? "made" : $! + 0;
        close $root; syscall({umount}, $m1, 2) == 0 or die $!;
        open(my $out, ">", "$m1.partial"); print $out "$done\n"; close $out;
        rename "$m1.partial", "$m1.done"; sleep 1000"#
    );
    let output = run_in_namespace(&format!(
        r"$B mount -o allow_other own.img m1; mkdir t; mount -t tmpfs deep t
        unshare --mount perl -e '{user}' & P=$!; trap 'kill $P' EXIT
        for n in $(seq 1200); do [ -e m1.done ] && break; sleep .05; done; cat m1.done
        $B subvolume create m1/new && echo created
        $B umount m1 2>&1 | grep -o 'note: not searching.*'; mountpoint -q m1 || echo unmounted
        $B subvolume list own.img | grep -c 'new\|refused'"
    ));
    let note = "not searching mount namespaces with too long a mount table for other mounts";
    assert_eq!(output, format!("1\ncreated\nnote: {note}\nunmounted\n1\n"));
}

/// As a user with fusermount3 can do: mounts of its own, at places that it moves deeper afterwards,
/// in the mount namespace of all other programs.
#[test]
fn long_lines_of_one_user_refuse_no_change_of_others() {
    if !kernel_tests_enabled("long_lines_of_one_user_refuse_no_change_of_others") {
        return;
    }
    let [mount, _] = CALLS;
    // 80 mounts whose lines have 900 KiB each: 72 MB.
    let user = format!(
        r#"chdir "t" or die $!; my ($name, $none) = ("\\" x 255, "none");
        for (1..450) {{ mkdir $name or die $!; chdir $name or die $! }}
        for (0..80) {{
            my ($from, $to) = ("0", "$_"); mkdir $to or die $!;
            syscall({mount}, $from, $to, $none, 4096, 0) == 0 or die $!
        }}"#
    );
    let output = run_in_namespace(&format!(
        r"$B mount own.img m1; mkdir t; mount -t tmpfs deep t
        perl -e '{user}'
        [ $(wc -c </proc/self/mountinfo) -gt 70000000 ] && echo long
        $B subvolume create m1/new && echo created
        $B subvolume snapshot m1/new m1/snap && echo snapshot
        $B subvolume delete m1/snap && echo deleted
        $B umount --timeout 20 m1 && echo unmounted"
    ));
    assert_eq!(output, "long\ncreated\nsnapshot\ndeleted\nunmounted\n");
}

/// Any user can bind-mount a directory of the volume thousands of times in a namespace of its own,
/// and call from many processes: the tables of all callers must not be in memory at once.
#[test]
fn the_mount_tables_of_many_callers_need_little_memory() {
    if !kernel_tests_enabled("the_mount_tables_of_many_callers_need_little_memory") {
        return;
    }
    let [mount, _] = CALLS;
    // 8,000 lines of the device, of 3 KiB each: 25 MB, less than each limit. 60 callers.
    let user = format!(
        r#"my $m1 = "$ENV{{PWD}}/m1"; chdir "t" or die $!; my ($name, $none) = ("d" x 255, "none");
        for (1..12) {{ mkdir $name or die $!; chdir $name or die $! }}
        for (1..8000) {{
            my ($from, $to) = ("$m1/dir", "$_"); mkdir $to or die $!;
            syscall({mount}, $from, $to, $none, 4096, 0) == 0 or die $!
        }}
        for my $n (1..60) {{
            next if fork;
            open(my $dir, "<", "$m1/dir") or die $!;
            my $create = pack("x8 Z4088", "n$n"); ioctl($dir, 0x5000940e, $create);
            exit
        }}
        1 while wait > 0"#
    );
    let output = run_in_namespace(&format!(
        r"$B mount -o allow_other own.img m1; D=$(daemon); mkdir m1/dir t; mount -t tmpfs deep t
        unshare --mount perl -e '{user}'
        awk '/VmHWM/ {{ print ($2 < 300000) ? 0 : $2 }}' /proc/$D/status
        $B umount m1"
    ));
    // All tables at once would need about 60 times 30 MB.
    assert_eq!(output, "0\n");
}
