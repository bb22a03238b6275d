//! Quotas and quota groups: what the commands print is what btrfs-progs prints, and the kernel has
//! the groups and the limits that they set.

use super::command::{butternut, run, shell};
use super::image::{build, kernel_tests_enabled};
use std::path::{Path, PathBuf};

/// Options of `qgroup show` whose output the kernel's mount gave for the image.
const SHOWN: [&str; 5] = ["", "-p", "-pcre", "--raw -re", "-c --si"];

const QUOTAS: &str = r"
    truncate -s 300M IMG; mkfs.btrfs -q IMG
    mkdir -p DIR/m; mount -o loop IMG DIR/m
    trap 'cd /; umount DIR/m 2>/dev/null || true' EXIT
    cd DIR/m; btrfs -q subvolume create one; head -c 3M /dev/urandom > one/file
    btrfs -q subvolume snapshot one 'with space'; mkdir dir; btrfs -q subvolume create dir/three
    btrfs quota enable .; btrfs qgroup create 1/100 .; btrfs qgroup create 2/1 .
    for id in 256 257; do btrfs -q qgroup assign --no-rescan 0/$id 1/100 . || true; done
    btrfs -q qgroup assign --no-rescan 1/100 2/1 . || true
    btrfs quota rescan -w . > /dev/null
    btrfs qgroup limit 1G 1/100 .; btrfs qgroup limit -e 5M 0/256 .; sync -f .
    number=0
    for options in '' -p -pcre '--raw -re' '-c --si'; do
        btrfs qgroup show $options . > ../shown$number; number=$((number + 1))
    done";

fn image() -> (PathBuf, PathBuf) {
    build("cli-quotas", QUOTAS)
}

/// Lines without the path column of higher groups: btrfs-progs prints parents of a group there, and
/// counts them as its members.
fn lines(text: &str) -> Vec<String> {
    let heading = text.lines().next().unwrap_or_default();
    let path_at = heading.find("Path").unwrap() - 2;
    let is_higher = |line: &str| line.starts_with("1/") || line.starts_with("2/");
    let common = |line: &str| {
        let shown = if is_higher(line) { &line[..path_at] } else { line };
        shown.trim_end().to_owned()
    };
    text.lines().map(common).collect()
}

#[test]
fn qgroup_show_matches_btrfs_progs() {
    if !kernel_tests_enabled("qgroup_show_matches_btrfs_progs") {
        return;
    }
    let (image, folder) = image();
    for (number, options) in SHOWN.iter().enumerate() {
        let expected = std::fs::read_to_string(folder.join(format!("shown{number}"))).unwrap();
        let mut words = vec!["qgroup", "show"];
        words.extend(options.split_whitespace());
        words.push(image.to_str().unwrap());
        assert_eq!(lines(&butternut(&words).ok()), lines(&expected), "{options}");
    }
    let json = butternut(&["qgroup", "show", "--json", image.to_str().unwrap()]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[1]["id"], "0/256");
    assert_eq!(json[1]["path"], "one");
    assert_eq!(json[1]["parents"][0], "1/100");
    assert_eq!(json[1]["max_exclusive_bytes"], 5 << 20);
    assert_eq!(json[4]["children"][1], "0/257");
}

fn kernel_shows(image: &Path) -> String {
    let dir = tempfile::TempDir::with_prefix("butternut-test-").unwrap();
    let (image, at) = (image.display(), dir.path().display());
    shell(&format!(
        "mount -o loop {image} {at}; trap 'umount {at}' EXIT
         btrfs qgroup show --raw -pcre {at}; btrfs quota rescan -w {at} > /dev/null
         btrfs qgroup show --raw -pcre {at}"
    ))
}

#[test]
fn groups_and_limits_are_changed_for_the_kernel() {
    if !kernel_tests_enabled("groups_and_limits_are_changed_for_the_kernel") {
        return;
    }
    let dir = tempfile::TempDir::with_prefix("butternut-test-").unwrap();
    let copy = dir.path().join("copy.img");
    run("cp", &["--sparse=always".as_ref(), image().0.as_os_str(), copy.as_os_str()]);
    let volume = copy.to_str().unwrap();
    let ok = |words: &[&str]| butternut(words).ok();
    ok(&["qgroup", "create", "1/7", volume]);
    ok(&["qgroup", "assign", "0/258", "1/7", volume]);
    ok(&["qgroup", "limit", "64M", "1/7", volume]);
    ok(&["qgroup", "limit", "-e", "none", "0/256", volume]);
    ok(&["qgroup", "remove", "0/257", "1/100", volume]);
    let shown = kernel_shows(&copy);
    let rows: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    let (before, after) = rows.split_at(rows.len() / 2);
    assert_eq!(before, after, "a rescan of the kernel changes nothing");
    let row = |id: &str| before.iter().find(|row| row[0] == id).unwrap();
    assert_eq!(row("1/7")[3..7], ["67108864", "none", "-", "0/258"]);
    assert_eq!(row("0/256")[3..6], ["none", "none", "1/100"]);
    assert_eq!(row("0/257")[5], "-");
    let refused = butternut(&["qgroup", "create", "7", volume]).failure();
    assert!(refused.contains("LEVEL/NUMBER"), "{refused}");
    butternut(&["qgroup", "destroy", "1/7", volume]).failure();
    ok(&["quota", "disable", volume]);
    assert_eq!(ok(&["quota", "status", volume]), "Enabled:      no\n");
    let refused = butternut(&["qgroup", "show", volume]).failure();
    assert!(refused.contains("quotas are disabled"), "{refused}");
    ok(&["quota", "enable", volume]);
    ok(&["quota", "rescan", volume]);
    assert_eq!(
        ok(&["quota", "status", volume]),
        "Enabled:      yes\nInconsistent: no\nGroups:       4\n"
    );
    let shown = kernel_shows(&copy);
    let rows: Vec<&str> = shown.lines().collect();
    let (before, after) = rows.split_at(rows.len() / 2);
    assert_eq!(before, after);
}
