//! Where btrfs-progs has the same command, both print the same.

use std::ffi::OsStr;

use super::command::{butternut, run};
use super::image::{KernelView, kernel, kernel_is_here};

fn image() -> &'static str {
    kernel().to_str().unwrap()
}

/// What btrfs prints about the kernel's mount of the image, with our name for the place.
fn progs(view: &KernelView, words: &str) -> String {
    let mut words: Vec<&OsStr> = words.split(' ').map(OsStr::new).collect();
    words.push(view.path().as_os_str());
    run("btrfs", &words)
}

fn ours(words: &str) -> String {
    let mut words: Vec<&str> = words.split(' ').collect();
    words.push(image());
    butternut(&words).ok()
}

#[test]
fn subvolume_list_is_that_of_btrfs_progs() {
    if !kernel_is_here("subvolume_list_is_that_of_btrfs_progs") {
        return;
    }
    let view = KernelView::new();
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
        assert_eq!(ours(&words), progs(&view, &words), "{words}");
    }
}

#[test]
fn subvolume_show_is_that_of_btrfs_progs() {
    if !kernel_is_here("subvolume_show_is_that_of_btrfs_progs") {
        return;
    }
    let view = KernelView::new();
    // They repeat the time of creation where nothing was sent, and we do not read quotas.
    let common = |text: &str| {
        let lines = text.lines();
        let kept = lines.filter(|l| !l.contains("Send time") && !l.contains("Quota group"));
        kept.collect::<Vec<_>>().join("\n")
    };
    for path in ["", "s1", "s1/nested", "snap-ro"] {
        let theirs = view.path().join(path);
        let words = ["subvolume".as_ref(), "show".as_ref(), theirs.as_os_str()];
        let path = format!("/{path}");
        let ours = butternut(&["subvolume", "show", image(), &path]).ok();
        assert_eq!(common(&ours), common(&run("btrfs", &words)), "{path}");
    }
}

#[test]
fn filesystem_df_and_usage_are_those_of_btrfs_progs() {
    if !kernel_is_here("filesystem_df_and_usage_are_those_of_btrfs_progs") {
        return;
    }
    let view = KernelView::new();
    for words in ["filesystem df", "filesystem df -b", "filesystem df -k", "filesystem df -H"] {
        assert_eq!(ours(words), progs(&view, words), "{words}");
    }
    let device = run("findmnt", &["-no".as_ref(), "SOURCE".as_ref(), view.path().as_os_str()]);
    // A read-only mount of the kernel counts no free space inside block groups.
    let common = |text: &str| {
        let lines = text.lines().filter(|line| !line.contains("Free (statfs"));
        lines.collect::<Vec<_>>().join("\n").replace(device.trim(), image())
    };
    for words in ["filesystem usage", "filesystem usage -b"] {
        assert_eq!(common(&ours(words)), common(&progs(&view, words)), "{words}");
    }
    let shown = run("btrfs", &["filesystem".as_ref(), "show".as_ref(), view.path().as_os_str()]);
    assert_eq!(ours("filesystem show").trim_end(), common(&shown).trim_end());
}

#[test]
fn filesystem_du_is_that_of_btrfs_progs() {
    if !kernel_is_here("filesystem_du_is_that_of_btrfs_progs") {
        return;
    }
    let view = KernelView::new();
    // The order inside a directory is ours alone; and they count the overlaps that compressed
    // extents would have if they were as long on disk as unpacked, so "Set shared" is left out.
    let lines = |text: &str, top: &str| {
        let named = text.replace(top, "").replace("  \n", "  /\n");
        let unset = |line: &str| format!("{}{}", &line[..24], &line[34..]);
        let mut lines: Vec<String> = named.lines().map(unset).collect();
        lines.sort();
        lines
    };
    let top = view.path().to_str().unwrap();
    let theirs = progs(&view, "filesystem du");
    assert_eq!(lines(&ours("filesystem du"), "\0"), lines(&theirs, top));
    let theirs = progs(&view, "filesystem du -s");
    assert_eq!(lines(&ours("filesystem du -s"), "\0"), lines(&theirs, top));
}

#[test]
fn addresses_and_inodes_resolve_as_in_btrfs_progs() {
    if !kernel_is_here("addresses_and_inodes_resolve_as_in_btrfs_progs") {
        return;
    }
    let view = KernelView::new();
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
    let mut theirs: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
    theirs.push(view.path().as_os_str());
    let ours = butternut(&["inspect", "logical-resolve", "-P", &logical, image()]).ok();
    assert_eq!(sorted(&ours), sorted(&run("btrfs", &theirs)));
    let words = ["inspect-internal", "inode-resolve", &ino];
    let mut theirs: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
    theirs.push(view.path().as_os_str());
    let theirs = run("btrfs", &theirs).replace(view.path().to_str().unwrap(), "");
    let ours = butternut(&["inspect", "inode-resolve", &ino, image()]).ok();
    assert_eq!(sorted(&ours), sorted(&theirs));
    assert_eq!(butternut(&["inspect", "rootid", image(), "snap-ro"]).ok(), "259\n");
}

#[test]
fn tree_stats_count_what_btrfs_progs_counts() {
    if !kernel_is_here("tree_stats_count_what_btrfs_progs_counts") {
        return;
    }
    let words = ["inspect-internal", "tree-stats", image()].map(OsStr::new);
    let counted = |text: &str| {
        let wanted = ["Calculating", "Total size", "Inline", "Levels", "Total nodes", "On level"];
        let lines = text.lines().filter(|line| wanted.iter().any(|word| line.contains(word)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(counted(&ours("inspect tree-stats")), counted(&run("btrfs", &words)));
}
