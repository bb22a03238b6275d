//! `filesystem mkswapfile`: the kernel swaps to the file, and btrfs-progs finds it suitable.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use butternut_undo::MountGuard;

use super::command::{butternut, run, script_on_mount};
use super::image::kernel_tests_enabled;

const UUID: &str = "12345678-9abc-4def-8012-3456789abcde";

fn image(directory: &Path) -> String {
    let image = directory.join("volume.img").to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "512M", &image]).ok();
    image
}

fn mkswapfile(words: &[&str]) -> super::command::CommandOutput {
    butternut(&[&["filesystem", "mkswapfile"], words].concat())
}

/// A swap file in use ends before its mount does, whatever fails.
const SWAP: &str = r#"
trap 'swapoff "$M/swap/file" 2>/dev/null' EXIT
echo "offset: $(btrfs inspect-internal map-swapfile -r swap/file && echo mapped)"
blkid -p -s TYPE -s UUID -o export swap/file
stat -c "%a %s" swap/file
lsattr swap/file | cut -d ' ' -f 1
filefrag -v swap/file | grep -c unwritten
if swapon "$M/swap/file"; then
    grep -F "$M/swap/file" /proc/swaps | awk '{print $2, $3}'
    swapoff "$M/swap/file" && echo "off"
fi
"#;

#[test]
fn the_kernel_swaps_to_the_file() {
    if !kernel_tests_enabled("the_kernel_swaps_to_the_file") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = image(scratch.path());
    butternut(&["subvolume", "create", &image, "/swap"]).ok();
    let said = mkswapfile(&["--size", "16M", "-U", UUID, &image, "/swap/file"]).ok();
    assert_eq!(said, format!("/swap/file: swap file of 16.00MiB, UUID={UUID}\n"));
    run("btrfs", &["check", "--check-data-csum", &image].map(AsRef::as_ref));
    let at = scratch.path().join("at");
    fs::create_dir(&at).unwrap();
    let guard = MountGuard::before_mount(&at).unwrap();
    let at = at.to_str().unwrap();
    run("mount", &["-o", "loop", &image, at].map(AsRef::as_ref));
    let said = script_on_mount(at, SWAP, &[]);
    let mode = fs::metadata(Path::new(at).join("swap/file")).unwrap().permissions().mode();
    guard.unmount().unwrap();
    assert!(said.contains("\nmapped\n"), "{said}");
    assert!(said.contains(&format!("UUID={UUID}\nTYPE=swap\n")), "{said}");
    assert!(said.contains("\n600 16777216\n"), "{said}");
    assert!(said.contains("C---"), "{said}");
    assert_eq!(mode & 0o777, 0o600);
    // The size is in KiB, without the header.
    assert!(said.contains("\nfile 16380\noff\n"), "{said}");
    run("btrfs", &["check", "--check-data-csum", &image].map(AsRef::as_ref));
}

#[test]
fn the_header_is_that_of_mkswap() {
    if !kernel_tests_enabled("the_header_is_that_of_mkswap") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = image(scratch.path());
    mkswapfile(&["--size", "1M", "--uuid", UUID, &image, "/file"]).ok();
    let made = butternut(&["cat", &image, "/file"]).bytes;
    let wanted = scratch.path().join("wanted");
    fs::write(&wanted, vec![0; 1 << 20]).unwrap();
    run("chmod", &["600", wanted.to_str().unwrap()].map(AsRef::as_ref));
    run("mkswap", &["-p", "4096", "-U", UUID, wanted.to_str().unwrap()].map(AsRef::as_ref));
    assert!(made == fs::read(&wanted).unwrap(), "the contents are those of mkswap");
}

#[test]
fn what_cannot_be_a_swap_file_is_refused_and_changes_nothing() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = image(scratch.path());
    butternut(&["mkdir", &image, "/dir"]).ok();
    let before = fs::read(&image).unwrap();
    for (words, why) in [
        (&["--size", "10K", &image, "/file"][..], "a swap file has 40 KiB to 16 TiB"),
        (&["--size", "4G", &image, "/file"], "/file: "),
        (&["--size", "1M", &image, "/dir"], "/dir: the file exists"),
        (&["--size", "1M", &image, "/none/file"], "no such file or directory"),
    ] {
        let err = mkswapfile(words).failure();
        assert!(err.contains(why), "{err}");
    }
    let err = mkswapfile(&["--uuid", "other", &image, "/file"]).usage();
    assert!(err.contains("\"other\" is not a UUID"), "{err}");
    assert!(fs::read(&image).unwrap() == before, "nothing has changed");
    // Numbers of the JSON output, and a file without a UUID.
    let json = mkswapfile(&["--json", "-s", "41000", "-U", "clear", &image, "/file"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["bytes"], &json["uuid"]), (&40_960.into(), &serde_json::Value::Null));
    // The kernel refuses a profile with copies, and a note tells of it.
    let other = scratch.path().join("dup.img").to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "512M", "-d", "dup", &other]).ok();
    let ran = mkswapfile(&["--size", "1M", &other, "/file"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.err.contains("only where the data profile is single"), "{}", ran.err);
}
