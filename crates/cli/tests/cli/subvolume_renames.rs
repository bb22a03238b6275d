//! Renames and exchanges with subvolumes: the same script on a mount of ours and on one of the
//! kernel, with the same results, and with the same contents when the kernel mounts both volumes.

use std::path::Path;

use super::command::{butternut, run};
use super::image::kernel_tests_enabled;
use butternut_undo::MountGuard;

const SCRIPT: &str = include_str!("subvolume_renames.py");

/// Prints what the kernel has to say of a volume that is mounted, without what differs from volume
/// to volume.
const LOOK: &str = r#"
cd "$1"
find . -printf '%p %y %m %U %s %n\n' | sort
btrfs subvolume list . | sed 's/^ID \([0-9]*\) gen [0-9]*/\1/'
btrfs subvolume list . | sed 's/.* path //' | head -12 | while read -r path; do
    btrfs subvolume show "$path" | grep -E 'Name|Subvolume ID|Parent ID|Top level ID|Flags'
done
"#;

fn stdout(command: &mut std::process::Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn mount_by_kernel(image: &str, at: &str) {
    run("mount", &["-o", "loop", image, at].map(AsRef::as_ref));
}

pub(crate) fn unmount_by_kernel(at: &str) {
    run("umount", &[at].map(AsRef::as_ref));
}

/// Makes a volume, runs the script on a mount of it, and calls `judge` with the image. Returns what
/// the script printed, and the result of `judge`.
pub(crate) fn outcome_of<R>(
    script: &str,
    mount: impl Fn(&str, &str),
    unmount: impl Fn(&str),
    judge: impl Fn(&str) -> R,
) -> (String, R) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
    std::fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    // Other users pass through.
    run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
    butternut(&["mkfs", "--size", "512M", image]).ok();
    mount(image, at);
    let path = Path::new(at).with_file_name("script.py");
    std::fs::write(&path, script).unwrap();
    let said = stdout(std::process::Command::new("python3").arg(path).arg(at));
    unmount(at);
    (said, judge(image))
}

/// Runs the script on a volume, checks it, and mounts it by the kernel. Returns what the script
/// printed, and what the kernel shows.
fn outcome(mount: impl Fn(&str, &str), unmount: impl Fn(&str)) -> (String, String) {
    outcome_of(SCRIPT, mount, unmount, |image| {
        run("btrfs", &["check", "--check-data-csum", image].map(AsRef::as_ref));
        let at = tempfile::tempdir_in("/var/tmp").unwrap();
        let _guard = MountGuard::before_mount(at.path()).unwrap();
        let at = at.path().to_str().unwrap();
        mount_by_kernel(image, at);
        let shown = stdout(std::process::Command::new("bash").args(["-c", LOOK, "look", at]));
        unmount_by_kernel(at);
        shown
    })
}

pub(crate) fn assert_same_lines(ours: &str, kernels: &str, what: &str) {
    for (ours, kernel) in ours.lines().zip(kernels.lines()) {
        assert_eq!(ours, kernel, "{what}");
    }
    assert_eq!(ours.lines().count(), kernels.lines().count(), "{what}");
}

#[test]
fn subvolumes_are_renamed_and_exchanged_as_by_the_kernel() {
    if !kernel_tests_enabled("subvolumes_are_renamed_and_exchanged_as_by_the_kernel") {
        return;
    }
    let kernels = outcome(mount_by_kernel, unmount_by_kernel);
    for options in ["allow_other", "allow_other,writeback"] {
        let ours = outcome(
            |image, at| {
                butternut(&["mount", "-o", options, image, at]).ok();
            },
            |at| {
                butternut(&["umount", "-q", at]).ok();
            },
        );
        assert_same_lines(&ours.0, &kernels.0, options);
        assert_same_lines(&ours.1, &kernels.1, options);
    }
    assert!(kernels.0.lines().count() > 500, "{}", kernels.0);
}
