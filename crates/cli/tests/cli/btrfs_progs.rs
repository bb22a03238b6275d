//! Commands that btrfs-progs has too: both programs print the same.

use std::ffi::OsStr;

use super::command::{butternut, run};
use super::image::{KernelMount, kernel, kernel_tests_enabled};

fn image() -> &'static str {
    kernel().to_str().unwrap()
}

/// Returns what btrfs prints about the kernel's mount of the image.
fn btrfs(mount: &KernelMount, words: &str) -> String {
    let mut words: Vec<&OsStr> = words.split(' ').map(OsStr::new).collect();
    words.push(mount.path().as_os_str());
    run("btrfs", &words)
}

fn actual(words: &str) -> String {
    let mut words: Vec<&str> = words.split(' ').collect();
    words.push(image());
    butternut(&words).ok()
}

#[test]
fn subvolume_list_matches_btrfs_progs() {
    if !kernel_tests_enabled("subvolume_list_matches_btrfs_progs") {
        return;
    }
    let mount = KernelMount::new();
    for flags in [
        "",
        " -p",
        " -a",
        " -o",
        " -c",
        " -g",
        " -u",
        " -q",
        " -R",
        " -s",
        " -r",
        " -t",
        " -d",
        " -pcguqR",
        " -tpcguqR",
        " -aqs",
        " --sort=-rootid",
        " --sort=path",
        " --sort=gen",
    ] {
        let words = format!("subvolume list{flags}");
        assert_eq!(actual(&words), btrfs(&mount, &words), "{words}");
    }
}

#[test]
fn subvolume_show_matches_btrfs_progs() {
    if !kernel_tests_enabled("subvolume_show_matches_btrfs_progs") {
        return;
    }
    let mount = KernelMount::new();
    // btrfs prints the time of creation as send time where nothing was sent.
    let common = |text: &str| {
        let lines = text.lines();
        let kept = lines.filter(|line| !line.contains("Send time"));
        kept.collect::<Vec<_>>().join("\n")
    };
    for path in ["", "s1", "s1/nested", "snap-ro"] {
        let expected = mount.path().join(path);
        let words = ["subvolume".as_ref(), "show".as_ref(), expected.as_os_str()];
        let path = format!("/{path}");
        let actual = butternut(&["subvolume", "show", image(), &path]).ok();
        assert_eq!(common(&actual), common(&run("btrfs", &words)), "{path}");
    }
}

#[test]
fn filesystem_df_and_usage_match_btrfs_progs() {
    if !kernel_tests_enabled("filesystem_df_and_usage_match_btrfs_progs") {
        return;
    }
    let mount = KernelMount::new();
    for words in ["filesystem df", "filesystem df -b", "filesystem df -k", "filesystem df -H"] {
        assert_eq!(actual(words), btrfs(&mount, words), "{words}");
    }
    let device = run("findmnt", &["-no".as_ref(), "SOURCE".as_ref(), mount.path().as_os_str()]);
    // statfs(2) of a read-only mount of the kernel does not count free space in block groups.
    let common = |text: &str| {
        let lines = text.lines().filter(|line| !line.contains("Free (statfs"));
        lines.collect::<Vec<_>>().join("\n").replace(device.trim(), image())
    };
    for words in ["filesystem usage", "filesystem usage -b"] {
        assert_eq!(common(&actual(words)), common(&btrfs(&mount, words)), "{words}");
    }
    let shown = run("btrfs", &["filesystem".as_ref(), "show".as_ref(), mount.path().as_os_str()]);
    assert_eq!(actual("filesystem show").trim_end(), common(&shown).trim_end());
}

#[test]
fn filesystem_du_matches_btrfs_progs() {
    if !kernel_tests_enabled("filesystem_du_matches_btrfs_progs") {
        return;
    }
    let mount = KernelMount::new();
    // The order of entries inside a directory may differ. And btrfs takes a compressed extent for
    // as long on disk as its data, so it finds overlaps that do not exist: "Set shared" is not
    // compared.
    let lines = |text: &str, top: &str| {
        let named = text.replace(top, "").replace("  \n", "  /\n");
        let unset = |line: &str| format!("{}{}", &line[..24], &line[34..]);
        let mut lines: Vec<String> = named.lines().map(unset).collect();
        lines.sort();
        lines
    };
    let top = mount.path().to_str().unwrap();
    let expected = btrfs(&mount, "filesystem du");
    assert_eq!(lines(&actual("filesystem du"), "\0"), lines(&expected, top));
    let expected = btrfs(&mount, "filesystem du -s");
    assert_eq!(lines(&actual("filesystem du -s"), "\0"), lines(&expected, top));
}

#[test]
fn addresses_and_inodes_resolve_as_in_btrfs_progs() {
    if !kernel_tests_enabled("addresses_and_inodes_resolve_as_in_btrfs_progs") {
        return;
    }
    let mount = KernelMount::new();
    let stat = butternut(&["stat", image(), "d/e/random", "-e", "--json"]).ok();
    let stat: serde_json::Value = serde_json::from_str(&stat).unwrap();
    let logical = stat[0]["extents"][0]["logical"].to_string();
    let ino = stat[0]["inode"].to_string();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let words = ["inspect-internal", "logical-resolve", "-P", &logical];
    let mut expected: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
    expected.push(mount.path().as_os_str());
    let actual = butternut(&["inspect", "logical-resolve", "-P", &logical, image()]).ok();
    assert_eq!(sorted(&actual), sorted(&run("btrfs", &expected)));
    let words = ["inspect-internal", "inode-resolve", &ino];
    let mut expected: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
    expected.push(mount.path().as_os_str());
    let expected = run("btrfs", &expected).replace(mount.path().to_str().unwrap(), "");
    let actual = butternut(&["inspect", "inode-resolve", &ino, image()]).ok();
    assert_eq!(sorted(&actual), sorted(&expected));
    assert_eq!(butternut(&["inspect", "rootid", image(), "snap-ro"]).ok(), "259\n");
}

#[test]
fn tree_stats_match_btrfs_progs() {
    if !kernel_tests_enabled("tree_stats_match_btrfs_progs") {
        return;
    }
    let words = ["inspect-internal", "tree-stats", image()].map(OsStr::new);
    let counted = |text: &str| {
        let wanted = ["Calculating", "Total size", "Inline", "Levels", "Total nodes", "On level"];
        let lines = text.lines().filter(|line| wanted.iter().any(|word| line.contains(word)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(counted(&actual("inspect tree-stats")), counted(&run("btrfs", &words)));
}
