//! What the arguments of the commands for subvolumes name where volumes are mounted: an image in a
//! mounted volume, or subvolumes of that one. The same scripts on a mount of ours and on one of the
//! kernel.

use std::process::Command;

use butternut_undo::MountGuard;

use super::command::{butternut, command, run};
use super::image::kernel_tests_enabled;

/// Runs a script in a mounted volume: `$B` is the program, and `$M` the mount point. Each of its
/// commands must succeed.
fn run_on_both_mounts(script: &str) {
    for is_ours in [false, true] {
        let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
        let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
        std::fs::create_dir(&at).unwrap();
        let _guard = MountGuard::before_mount(&at).unwrap();
        let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
        butternut(&["mkfs", "-q", "--size", "256M", image]).ok();
        if is_ours {
            butternut(&["mount", image, at]).ok();
        } else {
            run("mount", &["-o", "loop", image, at].map(AsRef::as_ref));
        }
        let mut bash = Command::new("bash");
        bash.args(["-exc", script]).current_dir(at).env("B", command().get_program()).env("M", at);
        let output = bash.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ours: {is_ours}: {said}");
        run("umount", &[at].map(AsRef::as_ref));
    }
}

/// Where the image lies in a mounted volume, a volume argument names the image all the same.
#[test]
fn an_image_in_a_mounted_volume_is_named_with_its_subvolume_and_by_ids() {
    if !kernel_tests_enabled("an_image_in_a_mounted_volume_is_named_with_its_subvolume_and_by_ids")
    {
        return;
    }
    run_on_both_mounts(
        r#"
        "$B" mkfs -q --size 110M inner.img
        "$B" subvolume create "$M/inner.img@5" /new
        test ! -e inner.img@5
        test ! -e /new
        test "$("$B" ls inner.img /)" = new
        test "$("$B" property get inner.img /new)" = ro=false
        "$B" property set "$M/inner.img@5" /new ro true
        test "$("$B" property get "$M/inner.img@5" /new ro)" = ro=true
        "$B" subvolume set-default "$M/inner.img@5" 256
        "$B" subvolume set-default "$M/inner.img@5" 5
        "$B" subvolume delete -i 256 inner.img
        test -z "$("$B" ls inner.img@5 /)"
        # No subvolume has the name of an image and what follows it.
        for wrong in inner.img@ inner.img,missing.img "inner.img?size=4"; do
            ! "$B" subvolume create "$M/$wrong" /new || exit 1
            ! "$B" subvolume create "$M/$wrong" || exit 1
        done
        test "$(ls)" = inner.img
        test ! -e /new
        # Other names may have these characters.
        "$B" subvolume create "$M/new@5" ./a,b
        "$B" property set "$M/new@5" ro true
        test "$("$B" property get ./new@5 ro)" = ro=true
        "$B" subvolume delete "$M/new@5" ./a,b
        "#,
    );
}

/// All subvolumes are looked up before the first one is deleted.
#[test]
fn a_mistyped_name_deletes_no_subvolume_of_a_mount() {
    if !kernel_tests_enabled("a_mistyped_name_deletes_no_subvolume_of_a_mount") {
        return;
    }
    run_on_both_mounts(
        r#"
        "$B" subvolume create ./keep ./other
        mkdir dir
        touch file
        ln -s keep link
        for wrong in missing dir file link .; do
            ! "$B" subvolume delete ./keep "./$wrong" || exit 1
            test -d keep
        done
        ! "$B" --json subvolume delete ./keep ./missing > printed || exit 1
        test ! -s printed
        # What was done before a failure is reported.
        chattr +i other
        ! "$B" --json subvolume delete ./keep ./other > printed || exit 1
        grep -q '"path": "./keep"' printed
        test ! -e keep
        chattr -i other
        ! "$B" --json subvolume create ./new ./other > printed || exit 1
        grep -q '"path": "./new"' printed
        ! "$B" --json subvolume delete -i 258 -i 9999 "$M" > printed || exit 1
        grep -q '"path": "258"' printed
        test ! -e new
        "#,
    );
}
