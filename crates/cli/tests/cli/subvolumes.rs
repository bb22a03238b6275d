//! Commands that create and delete subvolumes and snapshots, and set their properties.

use std::path::PathBuf;

use tempfile::TempDir;

use super::command::{butternut, run, shell};

/// Makes an empty volume in a file.
fn volume() -> (TempDir, PathBuf, String) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img");
    let name = image.to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "256M", &name]).ok();
    (scratch, image, name)
}

/// Runs `btrfs check`.
fn check(image: &str) {
    run("btrfs", &["check", "--check-data-csum", image].map(AsRef::as_ref));
}

#[test]
fn subvolumes_are_created_shown_and_deleted() {
    let (scratch, _, image) = volume();
    butternut(&["subvolume", "create", &image, "/a", "/a/inner", "/b"]).ok();
    let file = scratch.path().join("file");
    std::fs::write(&file, "contents").unwrap();
    butternut(&["import", &image, file.to_str().unwrap(), "/a/file"]).ok();
    butternut(&["subvolume", "snapshot", &image, "/a", "/snap"]).ok();
    butternut(&["subvolume", "snapshot", "-r", &image, "/a", "/b"]).ok();
    assert_eq!(butternut(&["cat", &image, "/b/a/file"]).ok(), "contents");
    let list = butternut(&["subvolume", "list", &image]).ok();
    let paths: Vec<&str> = list.lines().filter_map(|line| line.split(" path ").nth(1)).collect();
    assert_eq!(paths, ["a", "a/inner", "b", "snap", "b/a"]);
    assert_eq!(butternut(&["property", "get", &image, "/b/a", "ro"]).ok(), "ro=true\n");
    let refused = butternut(&["mkdir", &image, "/b/a/dir"]).failure();
    assert!(refused.contains("read-only"), "{refused}");
    let refused = butternut(&["subvolume", "delete", &image, "/a"]).failure();
    assert!(refused.contains("delete the subvolumes inside it first, or add -R"), "{refused}");
    let refused = butternut(&["rm", "-r", &image, "/snap"]).failure();
    assert!(refused.contains("`butternut subvolume delete`"), "{refused}");
    let refused = butternut(&["subvolume", "create", &image, "/a"]).failure();
    assert!(refused.contains("exists"), "{refused}");
    check(&image);
    butternut(&["subvolume", "delete", &image, "/a/inner", "/a"]).ok();
    butternut(&["subvolume", "delete", "--keep-space", "-i", "260", &image]).ok();
    let deleted = butternut(&["subvolume", "list", "-d", &image]).ok();
    assert_eq!(deleted.lines().count(), 1, "{deleted}");
    check(&image);
    butternut(&["subvolume", "delete", &image, "/snap"]).ok();
    assert_eq!(butternut(&["subvolume", "list", "-d", &image]).ok(), "");
    check(&image);
}

#[test]
fn a_subvolume_is_moved_alone() {
    let (_scratch, _file, image) = volume();
    butternut(&["subvolume", "create", &image, "/a", "/b"]).ok();
    butternut(&["mv", &image, "/a", "/renamed"]).ok();
    butternut(&["mv", &image, "/renamed", "/b"]).ok();
    let list = butternut(&["subvolume", "list", &image]).ok();
    assert!(list.contains("path b/renamed"), "{list}");
    butternut(&["mkdir", &image, "/dir"]).ok();
    let refused = butternut(&["mv", &image, "/b/renamed", "/dir", "/"]).failure();
    assert!(refused.contains("move it alone"), "{refused}");
    let refused = butternut(&["mv", &image, "/b", "/b/renamed"]).failure();
    assert!(refused.contains("below itself"), "{refused}");
    check(&image);
}

#[test]
fn the_default_subvolume_and_read_only_are_set() {
    let (_scratch, _, image) = volume();
    butternut(&["subvolume", "create", &image, "/a", "/b"]).ok();
    assert_eq!(butternut(&["subvolume", "get-default", &image]).ok(), "ID 5 (FS_TREE)\n");
    butternut(&["subvolume", "set-default", &image, "/b"]).ok();
    let default = butternut(&["subvolume", "get-default", &image]).ok();
    assert!(default.starts_with("ID 257 gen ") && default.ends_with(" path b\n"), "{default}");
    let at_top = format!("{image}@5");
    let refused = butternut(&["subvolume", "delete", &at_top, "/b"]).failure();
    assert!(refused.contains("default subvolume"), "{refused}");
    butternut(&["subvolume", "set-default", &image, "5"]).ok();
    butternut(&["property", "set", &image, "/a", "ro", "true"]).ok();
    let refused = butternut(&["mkdir", &image, "/a/dir"]).failure();
    assert!(refused.contains("read-only"), "{refused}");
    butternut(&["property", "set", &image, "/a", "ro", "false"]).ok();
    butternut(&["mkdir", &image, "/a/dir"]).ok();
    let refused = butternut(&["property", "set", &image, "/a/dir", "ro", "true"]).failure();
    assert!(refused.contains("not a subvolume"), "{refused}");
    check(&image);
    shell(&format!("btrfs inspect-internal dump-super {image} | grep -q DEFAULT_SUBVOL"));
}

#[test]
fn a_deletion_that_fails_reports_and_frees_what_was_deleted() {
    let (_scratch, _, image) = volume();
    butternut(&["subvolume", "create", &image, "/a", "/b", "/c", "/b/inner"]).ok();
    let list = || butternut(&["subvolume", "list", &image]).ok().lines().count();
    let refused = butternut(&["subvolume", "delete", &image, "/a", "/none"]).failure();
    assert!(refused.contains("/none: no such file"), "{refused}");
    assert_eq!(list(), 4, "a name that is mistyped deletes nothing");
    let output = butternut(&["--json", "subvolume", "delete", &image, "/a", "/b", "/c"]);
    assert_eq!(output.code, Some(1));
    assert!(
        output.err.contains("delete the subvolumes inside it first, or add -R"),
        "{}",
        output.err
    );
    let shown: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(shown["subvolumes"], serde_json::json!([256]));
    assert_eq!(shown["changes"][0]["path"], "/a");
    assert_eq!(list(), 3);
    assert_eq!(butternut(&["subvolume", "list", "-d", &image]).ok(), "", "its space is free");
    let output = butternut(&["--json", "subvolume", "create", &image, "/d", "/b"]);
    assert!(output.code == Some(1) && output.err.contains("exists"), "{}", output.err);
    assert!(output.out.contains("/d"), "{}", output.out);
    butternut(&["subvolume", "delete", "--keep-space", &image, "/c"]).ok();
    for (id, why) in [("5", "the top level"), ("258", "deleted already"), ("999", "999")] {
        let refused = butternut(&["subvolume", "delete", "-i", id, &image]).failure();
        assert!(refused.starts_with(&format!("butternut: {id}: ")), "{refused}");
        assert!(refused.contains(why) && refused.contains('('), "{refused}");
    }
    check(&image);
}

#[test]
fn a_path_that_may_begin_at_the_top_level_is_explained() {
    let (_scratch, _, image) = volume();
    butternut(&["subvolume", "create", &image, "/t", "/u"]).ok();
    butternut(&["subvolume", "snapshot", "-r", &image, "/t", "/ro"]).ok();
    let hint = format!("{image}@5");
    for default in ["/t", "/ro"] {
        butternut(&["subvolume", "set-default", &format!("{image}@5"), default]).ok();
        for words in [
            &["subvolume", "snapshot", &image, "t", "x"][..],
            &["subvolume", "delete", &image, "u"],
            &["subvolume", "set-default", &image, "u"],
            &["property", "set", &image, "u", "ro", "true"],
            &["rm", &image, "u"],
        ] {
            let refused = butternut(words).failure();
            assert!(refused.contains(&hint), "{refused}");
        }
    }
    let refused = butternut(&["subvolume", "create", &image, "new"]).failure();
    assert!(refused.contains("read-only") && refused.contains(&hint), "{refused}");
    butternut(&["subvolume", "delete", &hint, "u"]).ok();
    let refused = butternut(&["subvolume", "delete", &hint, "u"]).failure();
    assert!(!refused.contains("@5 to begin"), "{refused}");
    check(&image);
}
