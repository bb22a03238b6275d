//! `inspect dump-tree` prints what `btrfs inspect-internal dump-tree` prints, with all options.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::command::{butternut, command};
use super::image::{kernel, kernel_tests_enabled, plain};

/// Options, in combinations.
const OPTIONS: [&str; 28] = [
    "",
    "-e",
    "-d",
    "-r",
    "-R",
    "-u",
    "-e -d",
    "-d -u",
    "-d -r",
    "-u -r",
    "--dfs",
    "--bfs",
    "--hide-names",
    "--csum-headers",
    "--csum-items",
    "-t fs",
    "-t 5 -R",
    "-t ROOT_TREE",
    "-t chunk -r",
    "-t extent -e",
    "-t csum --csum-items --csum-headers",
    "-t uuid",
    "-t free-space",
    "-t data_reloc_tree",
    "-t dev -d",
    "-t 256",
    "-t 9999",
    "-t 5 --dfs --hide-names",
];

#[track_caller]
fn same(image: &Path, options: &str) {
    let words = options.split_whitespace();
    let expected = Command::new("btrfs")
        .env("TZ", "UTC")
        .args(["inspect-internal", "dump-tree"])
        .args(words.clone())
        .arg(image)
        .output()
        .unwrap();
    let actual = command().args(["inspect", "dump-tree"]).args(words).arg(image).output().unwrap();
    let (want, have) =
        (String::from_utf8_lossy(&expected.stdout), String::from_utf8_lossy(&actual.stdout));
    let differing = want.lines().zip(have.lines()).find(|(want, have)| want != have);
    assert_eq!(differing, None, "{options}");
    assert!(expected.stdout == actual.stdout, "{options}: one output is longer");
}

/// Returns the addresses of the blocks in a dump.
fn addresses(image: &Path) -> Vec<String> {
    let shown = butternut(&["inspect", "dump-tree", image.to_str().unwrap()]).ok();
    let blocks = shown.lines().filter(|line| line.contains(" items "));
    blocks.filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect()
}

fn all_options(image: &Path) {
    for options in OPTIONS {
        same(image, options);
    }
    let blocks = addresses(image);
    for block in &blocks {
        same(image, &format!("-b {block}"));
    }
    let (first, last) = (&blocks[0], &blocks[blocks.len() - 1]);
    same(image, &format!("-b {last} -b {first} --hide-names"));
    let node = blocks.iter().max().unwrap();
    same(image, &format!("-b {node} --follow --dfs"));
    same(image, &format!("-b {node} --follow"));
}

#[test]
fn a_volume_of_mkfs_is_dumped_as_by_btrfs_progs() {
    all_options(&plain().0);
}

#[test]
fn a_volume_of_the_kernel_is_dumped_as_by_btrfs_progs() {
    if kernel_tests_enabled("a_volume_of_the_kernel_is_dumped_as_by_btrfs_progs") {
        all_options(kernel());
    }
}

#[test]
fn json_and_text_have_the_same_blocks() {
    let image = &plain().0;
    let words = ["inspect", "dump-tree", "--json", image.to_str().unwrap()];
    let json: serde_json::Value = serde_json::from_str(&butternut(&words).ok()).unwrap();
    let trees = json["trees"].as_array().unwrap();
    let blocks = trees.iter().flat_map(|tree| tree["blocks"].as_array().unwrap());
    let shown: BTreeSet<_> = blocks.map(|block| block["bytenr"].to_string()).collect();
    assert_eq!(shown, addresses(image).into_iter().collect());
    assert_eq!(trees[0]["name"], "root tree");
    let key = &trees[1]["blocks"][0]["items"][0]["key"];
    assert_eq!(key["text"], "(DEV_ITEMS DEV_ITEM 1)");
    assert!(json["uuid"].is_string());
}

#[test]
fn missing_trees_and_blocks_are_reported() {
    let image = plain().0.to_str().unwrap();
    let ran = butternut(&["inspect", "dump-tree", "-t", "bogus", image]);
    assert_eq!(
        ran.failure(),
        "butternut: inspect dump-tree: bogus: no tree has this id or name \
         (use an id, or a name like fs, root, chunk, extent, csum, uuid or quota)"
    );
    let ran = butternut(&["inspect", "dump-tree", "-t", "tree-log", image]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("log root tree: the volume has none"), "{}", ran.err);
    let ran = butternut(&["inspect", "dump-tree", "-t", "999", image]);
    let message = "butternut: inspect dump-tree: tree 999: found no root item\n";
    assert_eq!((ran.code, ran.err.as_str()), (Some(1), message));
    let ran = butternut(&["inspect", "dump-tree", "-b", "12345", image]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("block 12345: its address is not sector aligned"), "{}", ran.err);
}
