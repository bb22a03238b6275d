//! Every failure says what, why and what to do, on stderr, with the right status.

use super::command::{butternut, shell};
use super::image::plain;

#[track_caller]
fn check(words: &[&str], want: &str) {
    let image = plain().0.to_str().unwrap();
    let words: Vec<String> = words.iter().map(|word| word.replace("IMG", image)).collect();
    let said = butternut(&words).failure().replace(image, "IMG");
    assert!(said.starts_with(&format!("butternut: {want}")), "{said}");
    assert!(!said.contains('\n'), "one line: {said}");
}

#[test]
fn volumes_that_are_none() {
    check(
        &["ls", "/nowhere.img"],
        "/nowhere.img: no such file or directory (name an image file or a block device",
    );
    check(&["ls", "/"], "/: is a directory (name the image file");
    check(&["ls", "IMG?offset=1M"], "IMG?offset=1M: the volume cannot be opened: ");
    check(&["ls", "IMG?size=1M"], "IMG?size=1M: \"size=1M\" after the ? (only ?offset=N is known)");
    check(&["ls", "IMG@"], "IMG@: no subvolume after the @ (");
    let junk = env!("CARGO_BIN_EXE_butternut");
    let said = butternut(&["ls", junk]).failure();
    assert!(said.contains("magic") && said.contains("(is it btrfs?"), "{said}");
}

#[test]
fn paths_and_subvolumes_that_are_none() {
    check(&["ls", "IMG", "/nope"], "/nope: no such file or directory (`butternut ls` shows");
    check(&["ls", "IMG@nope"], "IMG@nope: no subvolume nope (`butternut subvolume list` shows");
    check(&["ls", "IMG@777"], "IMG@777: no subvolume 777 (");
    check(&["cat", "IMG", "docs"], "docs: is a directory (");
    check(&["subvolume", "show", "IMG", "docs"], "docs: not a subvolume (");
    check(&["inspect", "inode-resolve", "99999", "IMG"], "inode 99999 of subvolume 5: ");
    check(&["inspect", "logical-resolve", "1", "IMG"], "logical address 1: no file holds it (");
}

#[test]
fn devices_that_are_missing_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().display();
    shell(&format!(
        "cd {dir}; truncate -s 300M a b; mkfs.btrfs -q -d raid1 -m raid1 a b
         truncate -s 300M c d; mkfs.btrfs -q -d raid0 -m raid0 c d"
    ));
    let said = butternut(&["ls", &format!("{dir}/b")]).failure();
    assert!(said.contains(": missing device 1 (name all its devices, joined with"), "{said}");
    let ran = butternut(&["ls", "--degraded", &format!("{dir}/b")]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.ends_with(": note: device 1 is missing\n"), "{}", ran.err);
    let said = butternut(&["ls", "--degraded", &format!("{dir}/c")]).failure();
    assert!(said.contains(" cannot be read") && said.contains("(name more of"), "{said}");
    butternut(&["ls", &format!("{dir}/a,{dir}/b")]).ok();
    butternut(&["filesystem", "df", &format!("{dir}/c"), &format!("{dir}/d")]).ok();
}

#[test]
fn words_that_mean_nothing() {
    check(
        &["cat", "IMG", "hello.txt", "--offset", "x"],
        "--offset: \"x\" is not a number of bytes (",
    );
    check(&["find", "IMG", "--type", "q"], "--type: 'q' is no kind (");
    check(&["mount", "IMG", "/nowhere", "-o", "frob"], "option frob: is not known (known: ro,");
    check(&["mount", "IMG", "/nowhere"], "/nowhere: no such file or directory (make the");
    check(&["mount", "IMG", "/etc/passwd"], "/etc/passwd: is not a directory (the last argument");
    // Of a volume that is not there, so that nothing is mounted whatever is said.
    for root in ["/", "/usr/.."] {
        let refused = format!("{root}: is the root of the system, where nothing is mounted (");
        check(&["mount", "/nowhere.img", root], &refused);
    }
    check(&["umount", "/proc"], "/proc: is a mount of proc (umount(8) ends it)");
    check(&["umount", "/usr"], "/usr: is not mounted (");
}

#[test]
fn a_wrong_command_line_has_status_2() {
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
