//! `check`: its findings, and its status, which is that of fsck(8).

use std::fs::{self, OpenOptions};
use std::path::Path;

use butternut_undo::MountGuard;

use super::command::{CommandOutput, butternut, command, shell};
use super::image::{kernel_tests_enabled, plain};

/// Makes a copy of the plain image with one bit changed where the last occurrence of `marks`
/// begins.
fn changed(folder: &Path, marks: &[u8]) -> String {
    let mut bytes = fs::read(&plain().0).unwrap();
    let at = bytes.windows(marks.len()).rposition(|window| window == marks).unwrap();
    bytes[at] ^= 0x20;
    let path = folder.join("changed.img");
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn json(ran: &CommandOutput) -> serde_json::Value {
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn a_clean_volume_has_status_0() {
    let image = plain().0.to_str().unwrap();
    let output = butternut(&["check", "--check-data-csum", image]).ok();
    assert!(output.ends_with(" errors, 0 warnings\n"), "{output}");
    assert!(output.contains(": clean at generation "), "{output}");
    let ran = butternut(&["check", "--json", "--threads", "1", "--check-data-csum", image]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    let report = json(&ran);
    assert_eq!(report["clean"], true);
    assert!(report["counts"]["data_sectors"].as_u64().unwrap() > 10);
}

#[test]
fn damage_is_reported_with_status_4() {
    let folder = tempfile::tempdir().unwrap();
    let super_block = changed(folder.path(), b"_BHRfS_M");
    let ran = butternut(&["check", &super_block]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "a bad mirror is only a warning");
    assert!(ran.out.contains("warning: SuperMirror: "), "{}", ran.out);
    let data = changed(folder.path(), b"9997\n9998\n9999\n");
    assert_eq!(butternut(&["check", &data]).code, Some(0), "no data is read without the option");
    let ran = butternut(&["check", "--check-data-csum", &data]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(4), ""));
    assert!(ran.out.starts_with("error: DataCorrupt: data "), "{}", ran.out);
    assert!(ran.out.contains(": checksum: have "), "{}", ran.out);
    let report = json(&butternut(&["check", "--json", "--check-data-csum", &data]));
    assert_eq!(report["findings"][0]["kind"], "DataCorrupt");
    assert_eq!(report["errors"], 1);
}

#[test]
fn a_check_whose_findings_cannot_be_written_has_status_8() {
    let image = plain().0.to_str().unwrap();
    for words in [&["check", image][..], &["check", "--json", image]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = CommandOutput::from(command().args(words).stdout(full).output().unwrap());
        let said = "butternut: stdout: no space left on device\n";
        assert_eq!((ran.code, ran.err.as_str()), (Some(8), said), "{words:?}");
    }
}

#[test]
fn a_volume_that_the_kernel_writes_is_checked_only_with_force() {
    if !kernel_tests_enabled("a_volume_that_the_kernel_writes_is_checked_only_with_force") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, mount) = (folder.path().join("used.img"), folder.path().join("mount"));
    let (image, mount) = (image.to_str().unwrap(), mount.to_str().unwrap());
    let source = plain().0.display();
    shell(&format!("cp --sparse=always {source} {image}; mkdir {mount}"));
    let guard = MountGuard::before_mount(Path::new(mount)).unwrap();
    shell(&format!("mount -o loop {image} {mount}"));
    let refused = butternut(&["check", image]);
    let forced = butternut(&["check", "--force", image]);
    shell(&format!("mount -o remount,ro {mount}"));
    let read_only = butternut(&["check", image]);
    guard.unmount().unwrap();
    assert_eq!((refused.code, refused.out.as_str()), (Some(8), ""));
    assert!(refused.err.contains(" is in use: the kernel has mounted "), "{}", refused.err);
    assert!(refused.err.contains("(unmount it, "), "{}", refused.err);
    assert_eq!(forced.code, Some(0), "{}", forced.out);
    assert_eq!(read_only.code, Some(0), "{}{}", read_only.out, read_only.err);
}

#[test]
fn an_unreadable_volume_has_status_8_and_a_usage_error_16() {
    let ran = butternut(&["check", env!("CARGO_BIN_EXE_butternut")]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(8), ""));
    assert!(
        ran.err.contains("magic") && ran.err.contains("check that this is a btrfs volume"),
        "{}",
        ran.err
    );
    assert_eq!(butternut(&["check", "/nowhere.img"]).code, Some(8));
    let subvolume = format!("{}@5", plain().0.display());
    assert_eq!(butternut(&["check", &subvolume]).code, Some(8));
    assert_eq!(butternut(&["check"]).code, Some(16));
    assert_eq!(butternut(&["-q", "check", "--wrong", "x"]).code, Some(16));
}

/// As by `butternut check IMAGE | head -1`, or by `grep -q`.
#[test]
fn the_status_tells_damage_also_where_nothing_reads_the_findings() {
    let folder = tempfile::tempdir().unwrap();
    let image = changed(folder.path(), b"9997\n9998\n9999\n");
    for words in [vec!["check", &image], vec!["check", "--json", &image]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = command().args(&words).arg("--check-data-csum").stdout(writer).output().unwrap();
        assert_eq!(ran.status.code(), Some(4), "{words:?}");
    }
}

/// mkfs.btrfs leaves free space items of its temporary block groups, and so does the kernel.
#[test]
fn a_fresh_raid1_volume_is_clean_before_and_after_a_write() {
    let scratch = tempfile::tempdir().unwrap();
    let devices = ["one", "two"].map(|name| scratch.path().join(name).display().to_string());
    let [one, two] = devices.each_ref().map(String::as_str);
    shell(&format!("truncate -s 1G {one} {two}; mkfs.btrfs -q -d raid1 -m raid1 {one} {two}"));
    let check = || butternut(&["check", "--check-data-csum", one, two]).ok();
    assert!(check().ends_with(" 0 errors, 0 warnings\n"), "{}", check());
    butternut(&["mkdir", &format!("{one},{two}"), "/dir"]).ok();
    assert!(check().ends_with(" 0 errors, 0 warnings\n"), "{}", check());
}
