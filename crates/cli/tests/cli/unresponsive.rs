//! Commands on one volume while an unrelated filesystem does not respond.

use butternut_undo::UMOUNT_FUNCTION;

use super::command::{in_mount_namespace, shell};
use super::image::kernel_tests_enabled;
use super::mount_end::run_in_namespace;

/// Runs a script beside a mounted volume `m1` whose process `$O` the script stops with `stop`, and
/// a loop device `$L` over `image`. `$B` is the program; `soon` prints the status of a command, or
/// 124 if it does not end.
fn beside(image: &str, script: &str) -> String {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    shell(&in_mount_namespace(&format!(
        "{UMOUNT_FUNCTION}
         cd {}; B={}; mkdir m1; truncate -s 1G outer.img; $B mkfs -q outer.img
         $B mount outer.img m1; O=$(getfattr --only-values -n butternut.daemon m1)
         truncate -s 200M m1/inner.img other.img; $B mkfs -q other.img; sync -f m1/inner.img
         L=$(losetup --find --show {image}); P=
         trap \"{{ kill -CONT $O; [ -z \\$P ] || kill \\$P; losetup -d $L; umount m1; }} \\
             2>ignored || true\" EXIT
         stop() {{
             # The kernel forgets the attributes that it has.
             chattr +d m1/inner.img; chattr -d m1/inner.img; kill -STOP $O
         }}
         soon() {{ timeout 100 \"$@\" >said 2>&1 && s=0 || s=$?; echo $s; }}
         {script}",
        scratch.path().display(),
        env!("CARGO_BIN_EXE_butternut"),
    )))
}

#[test]
fn a_loop_device_over_a_file_that_does_not_respond_blocks_no_other_volume() {
    if !kernel_tests_enabled(
        "a_loop_device_over_a_file_that_does_not_respond_blocks_no_other_volume",
    ) {
        return;
    }
    let said = beside(
        "m1/inner.img",
        "stop; soon $B ls other.img; soon $B mkdir other.img a; soon $B mkfs -f other.img",
    );
    assert_eq!(said, "0\n0\n0\n");
}

#[test]
fn the_search_for_the_holder_of_a_device_waits_for_no_unrelated_filesystem() {
    if !kernel_tests_enabled(
        "the_search_for_the_holder_of_a_device_waits_for_no_unrelated_filesystem",
    ) {
        return;
    }
    // The device is busy with a mount; a process has a file of the filesystem open, at a path below
    // /dev as those of device nodes are.
    let said = beside(
        "other.img",
        "mkdir m2; $B mount $L m2; (exec 7<m1/inner.img; exec sleep 1000) & P=$!
         while ! ls -l /proc/$P/fd | grep -q inner; do sleep .05; done
         stop; soon $B mkfs -f $L; grep -o 'is busy: process' said
         kill -CONT $O; umount m2",
    );
    assert_eq!(said, "1\nis busy: process\n");
}

#[test]
fn a_mount_waits_for_no_process_of_another_volume() {
    if !kernel_tests_enabled("a_mount_waits_for_no_process_of_another_volume") {
        return;
    }
    // A client waits up to 10 s for the response of one process.
    let said = run_in_namespace(
        "P=
         for n in 1 2 3; do
             truncate -s 200M v$n.img; $B mkfs -q v$n.img; mkdir d$n; $B mount v$n.img d$n
             P=\"$P $(getfattr --only-values -n butternut.daemon d$n)\"
         done
         undo() { kill -CONT $P; for n in 1 2 3; do $B umount d$n; done; }
         trap \"undo 2>ignored || true\" EXIT
         kill -STOP $P
         timeout 25 $B mount own.img m1 && echo mounted
         $B umount m1; kill -CONT $P",
    );
    assert_eq!(said, "mounted\n");
}

#[test]
fn commands_report_that_the_process_of_a_mount_does_not_respond() {
    if !kernel_tests_enabled("commands_report_that_the_process_of_a_mount_does_not_respond") {
        return;
    }
    for words in ["umount m1", "filesystem sync m1"] {
        let said = run_in_namespace(&format!(
            "$B mount own.img m1; O=$(getfattr --only-values -n butternut.daemon m1)
             trap \"kill -CONT $O; umount m1 2>ignored || true\" EXIT
             # The kernel forgets the attributes that it has.
             chattr +d m1; chattr -d m1; kill -STOP $O
             $B {words} 2>said & U=$!
             for n in $(seq 1200); do [ -s said ] && break; sleep .05; done
             grep -o 'm1: note: still waits for a device' said || cat said
             kill -CONT $O; wait $U || true"
        ));
        assert_eq!(said, "m1: note: still waits for a device\n", "{words}");
    }
}
