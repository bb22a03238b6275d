//! Error messages name the object, the error and a remedy, on stderr, with the right status.

use std::fs::OpenOptions;

use super::command::{CommandOutput, butternut, command, shell};
use super::image::plain;

#[track_caller]
fn check(words: &[&str], want: &str) {
    let image = plain().0.to_str().unwrap();
    let words: Vec<String> = words.iter().map(|word| word.replace("IMG", image)).collect();
    let message = butternut(&words).failure().replace(image, "IMG");
    assert!(message.starts_with(&format!("butternut: {want}")), "{message}");
    assert!(!message.contains('\n'), "one line: {message}");
}

#[test]
fn unusable_volumes_are_reported() {
    check(
        &["ls", "/nowhere.img"],
        "/nowhere.img: no such file or directory (name an image file or a block device",
    );
    check(&["ls", "/proc"], "/proc: is in no mounted btrfs volume (name an image file");
    check(&["getfattr", "/", "x"], "/: is a directory (name the image file");
    check(&["ls", "IMG?offset=1M"], "IMG?offset=1M: the volume cannot be opened: ");
    check(
        &["ls", "IMG?size=1M"],
        "IMG?size=1M: \"size=1M\" after ? is not a setting (?offset=N and ",
    );
    check(&["ls", "IMG@"], "IMG@: no subvolume after the @ (");
    let junk = env!("CARGO_BIN_EXE_butternut");
    let message = butternut(&["ls", junk]).failure();
    assert!(
        message.contains("magic") && message.contains("(check that this is a btrfs volume"),
        "{message}"
    );
}

#[test]
fn missing_paths_and_subvolumes_are_reported() {
    check(&["ls", "IMG", "/nope"], "/nope: no such file or directory (`butternut ls` shows");
    check(&["ls", "IMG@nope"], "IMG@nope: no subvolume nope (`butternut subvolume list` shows");
    check(&["ls", "IMG@777"], "IMG@777: no subvolume 777 (");
    check(&["cat", "IMG", "docs"], "docs: is a directory (");
    check(&["subvolume", "show", "IMG", "docs"], "docs: not a subvolume (");
    check(&["inspect", "inode-resolve", "99999", "IMG"], "inode 99999 of subvolume 5: ");
    check(&["inspect", "logical-resolve", "1", "IMG"], "logical address 1: no file contains it (");
}

#[test]
fn missing_devices_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().display();
    shell(&format!(
        "cd {dir}; truncate -s 300M a b; mkfs.btrfs -q -d raid1 -m raid1 a b
         truncate -s 300M c d; mkfs.btrfs -q -d raid0 -m raid0 c d"
    ));
    let message = butternut(&["ls", &format!("{dir}/b")]).failure();
    assert!(
        message.contains(": missing device 1 (name all its devices, separated by"),
        "{message}"
    );
    let ran = butternut(&["ls", "--degraded", &format!("{dir}/b")]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.ends_with(": note: device 1 is missing\n"), "{}", ran.err);
    let message = butternut(&["ls", "--degraded", &format!("{dir}/c")]).failure();
    assert!(message.contains(" cannot be read") && message.contains("(name more of"), "{message}");
    butternut(&["ls", &format!("{dir}/a,{dir}/b")]).ok();
    butternut(&["filesystem", "df", &format!("{dir}/c"), &format!("{dir}/d")]).ok();
}

#[test]
fn invalid_arguments_are_reported() {
    let said = butternut(&["cat", plain().0.to_str().unwrap(), "hello.txt", "--offset", "x"]);
    let want = "butternut: --offset: \"x\" is not a number of bytes (";
    assert!(said.usage().starts_with(want));
    check(&["find", "IMG", "--type", "q"], "--type: 'q' is not a file type (");
    check(&["mount", "IMG", "/nowhere", "-o", "frob"], "option frob: is not known (known: ro,");
    check(
        &["mount", "IMG", "/nowhere", "-o", "commit=x"],
        "option commit=x: is not a number of seconds (the default is commit=30)",
    );
    for size in ["1G", "max", "1:+4K", "-1G"] {
        let refused = format!("{size}: is a size, not a volume (the volume is first: `butternut ");
        check(&["filesystem", "resize", size, "IMG"], &refused);
    }
    check(&["mount", "IMG", "/nowhere"], "/nowhere: no such file or directory (make the");
    check(&["mount", "IMG", "/etc/passwd"], "/etc/passwd: is not a directory (the last argument");
    // The volume does not exist, so nothing is mounted in any case.
    for root in ["/", "/usr/.."] {
        let refused =
            format!("{root}: is the root directory of the system, which cannot be a mount point (");
        check(&["mount", "/nowhere.img", root], &refused);
    }
    check(&["umount", "/proc"], "/proc: is a mount of proc (unmount it with umount(8))");
    check(&["umount", "/usr"], "/usr: is not mounted (");
}

#[test]
fn a_usage_error_has_status_2() {
    for words in [&["frob"][..], &["ls"], &["ls", "--frob", "x"], &["-q", "-v", "ls", "x"]] {
        let ran = butternut(words);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{words:?}");
        assert!(ran.err.starts_with("butternut: "), "{}", ran.err);
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    for words in [&["--help"][..], &["--version"], &["ls", "--help"], &["mount", "--help"]] {
        let ran = butternut(words);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{words:?}");
        assert!(!ran.out.is_empty());
    }
}

#[test]
fn help_that_cannot_be_written_is_reported() {
    for words in [&["--help"][..], &["--version"], &["ls", "--help"]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = CommandOutput::from(command().args(words).stdout(full).output().unwrap());
        let said = "butternut: stdout: no space left on device\n";
        assert_eq!((ran.code, ran.err.as_str()), (Some(1), said), "{words:?}");
    }
}
