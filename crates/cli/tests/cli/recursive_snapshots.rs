//! `subvolume snapshot --recursive`, on volumes that are not mounted and on a mount.

use tempfile::TempDir;

use super::command::{butternut, run, shell};
use super::image::kernel_tests_enabled;
use super::mount::MountPoint;

/// Makes a volume with subvolumes inside a subvolume.
fn volume() -> (TempDir, String) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img").to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "256M", &image]).ok();
    butternut(&["subvolume", "create", &image, "/top", "/top/a", "/top/a/b"]).ok();
    let file = scratch.path().join("file");
    std::fs::write(&file, "contents").unwrap();
    for dir in ["/top", "/top/a", "/top/a/b"] {
        butternut(&["import", &image, file.to_str().unwrap(), &format!("{dir}/file")]).ok();
    }
    (scratch, image)
}

fn check(image: &str) {
    run("btrfs", &["check", "--check-data-csum", image].map(AsRef::as_ref));
}

#[test]
fn an_image_gets_recursive_snapshots() {
    let (_scratch, image) = volume();
    let made = butternut(&["--json", "subvolume", "snapshot", "-r", "-R", &image, "/top", "/ro"]);
    let made: serde_json::Value = serde_json::from_str(&made.ok()).unwrap();
    assert_eq!(made["subvolume"], 259);
    assert_eq!(made["snapshots"][2], serde_json::json!({ "source": 258, "subvolume": 261 }));
    butternut(&["subvolume", "snapshot", "--recursive", &image, "/top", "/rw"]).ok();
    let list = butternut(&["subvolume", "list", &image]).ok();
    let paths: Vec<&str> = list.lines().filter_map(|line| line.split(" path ").nth(1)).collect();
    let wanted = ["top", "top/a", "top/a/b", "ro", "ro/a", "ro/a/b", "rw", "rw/a", "rw/a/b"];
    assert_eq!(paths, wanted);
    assert_eq!(butternut(&["property", "get", &image, "/ro/a/b", "ro"]).ok(), "ro=true\n");
    assert_eq!(butternut(&["cat", &image, "/rw/a/b/file"]).ok(), "contents");
    butternut(&["mkdir", &image, "/rw/a/b/dir"]).ok();
    butternut(&["subvolume", "snapshot", "-R", &image, "/top", "/top/a"]).ok();
    let refused = butternut(&["subvolume", "snapshot", "-R", &image, "/top", "/top/a/file"]);
    let refused = refused.failure();
    assert!(refused.contains("exists"), "{refused}");
    check(&image);
}

#[test]
fn a_mount_makes_recursive_snapshots_and_the_kernel_refuses_to() {
    if !kernel_tests_enabled("a_mount_makes_recursive_snapshots_and_the_kernel_refuses_to") {
        return;
    }
    let (scratch, image) = volume();
    // Other users pass through.
    run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
    for options in ["rw,allow_other", "writeback,allow_other"] {
        let mount_point = MountPoint::new();
        run("chmod", &["755", mount_point.name()].map(AsRef::as_ref));
        butternut(&["mount", "-o", options, &image, mount_point.name()]).ok();
        let at = |name: &str| mount_point.path().join(name).to_str().unwrap().to_owned();
        shell(&format!(
            "echo unsynced >> {}; echo unsynced >> {}",
            at("top/file"),
            at("top/a/b/file")
        ));
        butternut(&["subvolume", "snapshot", "-r", "-R", &at("top"), &at("snap")]).ok();
        for file in ["top/a/b/file", "top/file"] {
            let copy = std::fs::read(at(&file.replacen("top", "snap", 1))).unwrap();
            assert!(copy == std::fs::read(at(file)).unwrap(), "{options}: {file}");
            assert!(copy.ends_with(b"unsynced\n"));
        }
        assert_eq!(butternut(&["property", "get", &at("snap/a/b")]).ok(), "ro=true\n");
        let list = butternut(&["subvolume", "list", mount_point.name()]).ok();
        assert_eq!(list.lines().filter(|line| line.contains(" path snap")).count(), 3, "{list}");
        let program = super::command::command().get_program().to_str().unwrap().to_owned();
        // One of the nested subvolumes belongs to another user.
        shell(&format!(
            "chmod 777 {}; chown 12345 {} {}",
            mount_point.name(),
            at("top"),
            at("top/a")
        ));
        let as_user = format!(
            "setpriv --reuid=12345 --regid=12345 --clear-groups \
             {program} subvolume snapshot -R {} {}",
            at("top"),
            at("of-user")
        );
        shell(&format!("! {as_user} 2> /dev/null"));
        assert!(!mount_point.path().join("of-user").exists());
        shell(&format!("chown 12345 {}; {as_user}", at("top/a/b")));
        assert!(mount_point.path().join("of-user/a/b/file").exists());
        for name in ["of-user/a/b", "of-user/a", "of-user", "snap/a/b", "snap/a", "snap"] {
            let is_read_only = name.starts_with("snap");
            if is_read_only {
                butternut(&["property", "set", &at(name), "ro", "false"]).ok();
            }
        }
        for name in ["of-user/a/b", "of-user/a", "of-user", "snap/a/b", "snap/a", "snap"] {
            butternut(&["subvolume", "delete", &at(name)]).ok();
        }
        shell(&format!("chown 0 {} {} {}", at("top"), at("top/a"), at("top/a/b")));
        butternut(&["subvolume", "sync", mount_point.name()]).ok();
        butternut(&["umount", mount_point.name()]).ok();
        check(&image);
    }
    let mount_point = MountPoint::new();
    shell(&format!("mount -o loop {image} {}", mount_point.name()));
    let (from, to) = (mount_point.path().join("top"), mount_point.path().join("new"));
    let words = ["subvolume", "snapshot", "-R", from.to_str().unwrap(), to.to_str().unwrap()];
    let refused = butternut(&words).failure();
    assert!(refused.contains("the kernel's btrfs makes no recursive snapshots"), "{refused}");
    shell(&format!("umount {}", mount_point.name()));
}

#[test]
fn a_recursive_deletion_deletes_what_is_inside_first() {
    let (_scratch, image) = volume();
    butternut(&["subvolume", "create", &image, "/other", "/other/x", "/top/c"]).ok();
    let refused = butternut(&["subvolume", "delete", &image, "/top"]).failure();
    assert!(refused.contains("add -R"), "{refused}");
    let done = butternut(&["--json", "subvolume", "delete", "-R", &image, "/top", "/other/x"]).ok();
    let done: serde_json::Value = serde_json::from_str(&done).unwrap();
    assert_eq!(done["subvolumes"], serde_json::json!([258, 261, 257, 256, 260]), "{done}");
    let list = butternut(&["subvolume", "list", &image]).ok();
    assert_eq!(list.lines().count(), 1, "{list}");
    butternut(&["subvolume", "create", &image, "/other/y", "/other/y/z"]).ok();
    butternut(&["subvolume", "delete", "-R", "-i", "259", &image]).ok();
    assert_eq!(butternut(&["subvolume", "list", &image]).ok(), "");
    check(&image);
}

#[test]
fn a_recursive_deletion_on_a_mount_deletes_what_is_inside_first() {
    if !kernel_tests_enabled("a_recursive_deletion_on_a_mount_deletes_what_is_inside_first") {
        return;
    }
    let (_scratch, image) = volume();
    let mount_point = MountPoint::new();
    butternut(&["mount", &image, mount_point.name()]).ok();
    let at = |name: &str| format!("{}/{name}", mount_point.name());
    butternut(&["subvolume", "create", &at("top/c"), &at("other"), &at("other/x")]).ok();
    let refused = butternut(&["subvolume", "delete", &at("top")]).failure();
    assert!(refused.contains("add -R"), "{refused}");
    butternut(&["subvolume", "delete", "-R", &at("top")]).ok();
    let list = butternut(&["subvolume", "list", mount_point.name()]).ok();
    let paths: Vec<&str> = list.lines().filter_map(|line| line.split(" path ").nth(1)).collect();
    assert_eq!(paths, ["other", "other/x"]);
    let elsewhere = butternut(&["property", "get", "/proc", "ro"]).failure();
    assert!(elsewhere.contains("is in no mounted btrfs volume"), "{elsewhere}");
    butternut(&["umount", mount_point.name()]).ok();
    check(&image);
}
