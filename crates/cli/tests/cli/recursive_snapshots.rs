//! `subvolume snapshot --recursive`, on volumes that are not mounted and on a mount.

use std::fs;
use std::thread;

use butternut_undo::MountGuard;
use tempfile::TempDir;

use super::command::{butternut, run, script_on_mount, shell};
use super::image::kernel_tests_enabled;
use super::mount::MountPoint;

/// Makes a volume with subvolumes inside a subvolume.
fn volume() -> (TempDir, String) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img").to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "256M", &image]).ok();
    butternut(&["subvolume", "create", &image, "/top", "/top/a", "/top/a/b"]).ok();
    let file = scratch.path().join("file");
    fs::write(&file, "contents").unwrap();
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
            let copy = fs::read(at(&file.replacen("top", "snap", 1))).unwrap();
            assert!(copy == fs::read(at(file)).unwrap(), "{options}: {file}");
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

/// Each snapshot is in the quota groups that are named, with exact numbers.
#[test]
fn recursive_snapshots_are_in_quota_groups() {
    if !kernel_tests_enabled("recursive_snapshots_are_in_quota_groups") {
        return;
    }
    let (_scratch, image) = volume();
    for arguments in [&["quota", "enable"][..], &["qgroup", "create", "1/7"]] {
        butternut(&[arguments, &[&image[..]]].concat()).ok();
    }
    butternut(&["subvolume", "snapshot", "-R", "-i", "1/7", &image, "/top", "/image"]).ok();
    let mount_point = MountPoint::new();
    butternut(&["mount", &image, mount_point.name()]).ok();
    let at = |name: &str| mount_point.path().join(name).to_str().unwrap().to_owned();
    butternut(&["subvolume", "snapshot", "-R", "-i", "1/7", &at("top"), &at("mount")]).ok();
    let refused = ["subvolume", "snapshot", "-R", "-i", "1/8", &at("top"), &at("no")];
    let refused = butternut(&refused).failure();
    assert!(refused.contains("the quota groups of -i must exist"), "{refused}");
    assert!(!fs::exists(at("no")).unwrap());
    butternut(&["umount", "-q", mount_point.name()]).ok();
    let shown = butternut(&["qgroup", "show", "-p", &image]).ok();
    for id in 256..=264 {
        let line = shown.lines().find(|line| line.trim().starts_with(&format!("0/{id}")));
        assert_eq!(line.unwrap().contains("1/7"), id > 258, "{id}: {shown}");
    }
    check(&image);
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

/// As on the kernel's btrfs, nothing is deleted inside a read-only subvolume.
#[test]
fn a_read_only_recursive_snapshot_becomes_writable_first() {
    let (_scratch, image) = volume();
    butternut(&["subvolume", "snapshot", "-r", "-R", &image, "/top", "/ro"]).ok();
    let refused = butternut(&["subvolume", "delete", "-R", &image, "/ro"]).failure();
    for around in ["/ro/a", "/ro"] {
        let command = format!("property set {image}@5 {around} ro false");
        let wanted = format!("the subvolume around it is read-only: `butternut {command}`, and");
        let refused = butternut(&["subvolume", "delete", "-R", &image, "/ro"]).failure();
        assert!(refused.contains(&wanted), "{refused}");
        butternut(&command.split(' ').collect::<Vec<_>>()).ok();
    }
    assert!(refused.starts_with("butternut: ro/a/b: the subvolume is read-only ("), "{refused}");
    butternut(&["subvolume", "delete", "-R", &image, "/ro"]).ok();
    butternut(&["subvolume", "snapshot", "-r", "-R", &image, "/top", "/ro"]).ok();
    if kernel_tests_enabled("a_read_only_recursive_snapshot_becomes_writable_first") {
        let mount_point = MountPoint::new();
        butternut(&["mount", &image, mount_point.name()]).ok();
        let ro = format!("{}/ro", mount_point.name());
        for below in ["/a", ""] {
            let refused = butternut(&["subvolume", "delete", "-R", &ro]).failure();
            let command = format!("property set {ro}{below} ro false");
            let wanted = format!("the subvolume around it is read-only: `butternut {command}`,");
            assert!(refused.contains(&wanted), "{refused}");
            butternut(&command.split(' ').collect::<Vec<_>>()).ok();
        }
        butternut(&["subvolume", "delete", "-R", &ro]).ok();
        butternut(&["umount", mount_point.name()]).ok();
    }
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

/// A mount point is a name in the directory above it, but its ids are those of another volume. As
/// `butternut subvolume delete -R "$MOUNT/$name"` with an empty name.
#[test]
fn a_recursive_deletion_of_a_mount_point_deletes_nothing_in_the_volume_around_it() {
    const NAME: &str =
        "a_recursive_deletion_of_a_mount_point_deletes_nothing_in_the_volume_around_it";
    if !kernel_tests_enabled(NAME) {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let outer = MountPoint::new();
    butternut(&["mkfs", "--size", "128M", &image("outer")]).ok();
    butternut(&["mkfs", "--size", "128M", &image("inner")]).ok();
    butternut(&["mount", &image("outer"), outer.name()]).ok();
    let at = |name: &str| format!("{}/{name}", outer.name());
    // Ids 256 and 257 in both volumes.
    butternut(&["subvolume", "create", &at("victim"), &at("other")]).ok();
    fs::write(at("victim/file"), "contents").unwrap();
    fs::create_dir(at("mnt")).unwrap();
    let guard = MountGuard::before_mount(at("mnt").as_ref()).unwrap();
    butternut(&["mount", &image("inner"), &at("mnt")]).ok();
    butternut(&["subvolume", "create", &at("mnt/x"), &at("mnt/y")]).ok();
    for name in ["mnt", "mnt/"] {
        for options in [&["-R"][..], &[]] {
            let path = at(name);
            let words = [&["subvolume", "delete"], options, &[path.as_str()]].concat();
            let refused = butternut(&words).failure();
            assert!(refused.contains(": is a mount point"), "{refused}");
        }
    }
    let paths = |mount: &str| -> Vec<String> {
        let list = butternut(&["subvolume", "list", mount]).ok();
        list.lines().filter_map(|line| line.split(" path ").nth(1)).map(str::to_owned).collect()
    };
    assert_eq!(paths(outer.name()), ["victim", "other"]);
    assert_eq!(paths(&at("mnt")), ["x", "y"]);
    assert_eq!(fs::read_to_string(at("victim/file")).unwrap(), "contents");
    butternut(&["umount", &at("mnt")]).ok();
    drop(guard);
    butternut(&["umount", outer.name()]).ok();
    check(&image("outer"));
    check(&image("inner"));
}

/// The names are looked up, and then another program puts a plain directory in the place of one.
/// The subvolume that contains that directory is the top level.
#[test]
fn a_recursive_deletion_is_of_the_subvolume_that_was_looked_up() {
    const INSIDE: usize = 100;
    if !kernel_tests_enabled("a_recursive_deletion_is_of_the_subvolume_that_was_looked_up") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img").to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "256M", &image]).ok();
    let mount_point = MountPoint::new();
    butternut(&["mount", &image, mount_point.name()]).ok();
    let at = |name: &str| format!("{}/{name}", mount_point.name());
    let mut words: Vec<String> = ["subvolume", "create"].map(str::to_owned).to_vec();
    words.extend([at("first"), at("second"), at("victim")]);
    words.extend((0..INSIDE).map(|number| at(&format!("first/{number}"))));
    butternut(&words).ok();
    let (first, second, moved) = (at("first"), at("second"), at("moved"));
    let swapping = thread::spawn(move || {
        // Until the first deletion.
        while fs::read_dir(&first).is_ok_and(|names| names.count() == INSIDE) {
            thread::yield_now();
        }
        fs::rename(&second, &moved).unwrap();
        fs::create_dir(&second).unwrap();
    });
    butternut(&["subvolume", "delete", "-R", &at("first"), &at("second")]).failure();
    swapping.join().unwrap();
    let list = butternut(&["subvolume", "list", mount_point.name()]).ok();
    let paths: Vec<&str> = list.lines().filter_map(|line| line.split(" path ").nth(1)).collect();
    assert_eq!(paths, ["moved", "victim"]);
    butternut(&["umount", mount_point.name()]).ok();
    check(&image);
}

/// As `subvolume delete -R img $(the paths that subvolume list shows)`.
#[test]
fn a_recursive_deletion_takes_subvolumes_and_those_inside_them() {
    for words in [["/top/a", "/top", "/other"], ["/top", "/top/a", "/other"]] {
        let (_scratch, image) = volume();
        butternut(&["subvolume", "create", &image, "/other"]).ok();
        let begin = ["subvolume", "delete", "-R", &image];
        butternut(&[&begin[..], &words[..]].concat()).ok();
        assert_eq!(butternut(&["subvolume", "list", &image]).ok(), "");
        check(&image);
    }
    let (_scratch, image) = volume();
    butternut(&["subvolume", "delete", "-R", "-i", "257", "-i", "256", &image]).ok();
    assert_eq!(butternut(&["subvolume", "list", &image]).ok(), "");
}

/// The default may be the one that is named, or inside it.
#[test]
fn a_recursive_deletion_with_the_default_subvolume_deletes_nothing() {
    const NAME: &str = "a_recursive_deletion_with_the_default_subvolume_deletes_nothing";
    if !kernel_tests_enabled(NAME) {
        return;
    }
    let (_scratch, image) = volume();
    // Paths begin at the top level, whatever the default subvolume is.
    let top_level = format!("{image}@5");
    let before = butternut(&["subvolume", "list", &top_level]).ok();
    let refused = |words: &[&str], path: &str| {
        let message = butternut(words).failure();
        let wanted = format!("{path}: is the default subvolume, which cannot be deleted (");
        assert!(message.strip_prefix("butternut: ").unwrap_or(&message).starts_with(&wanted));
    };
    for default in ["top", "top/a"] {
        butternut(&["subvolume", "set-default", &top_level, default]).ok();
        refused(&["subvolume", "delete", "-R", &top_level, "top"], default);
        let mount_point = MountPoint::new();
        butternut(&["mount", &top_level, mount_point.name()]).ok();
        let top = format!("{}/top", mount_point.name());
        let shown = if default == "top" { &top } else { default };
        refused(&["subvolume", "delete", "-R", &top], shown);
        butternut(&["umount", mount_point.name()]).ok();
        assert_eq!(butternut(&["subvolume", "list", &top_level]).ok(), before);
    }
}

#[test]
fn a_recursive_deletion_on_a_mount_takes_subvolumes_and_those_inside_them() {
    const NAME: &str = "a_recursive_deletion_on_a_mount_takes_subvolumes_and_those_inside_them";
    if !kernel_tests_enabled(NAME) {
        return;
    }
    for words in [["top/a", "top"], ["top", "top/a"]] {
        let (_scratch, image) = volume();
        let mount_point = MountPoint::new();
        butternut(&["mount", &image, mount_point.name()]).ok();
        let at = |name: &str| format!("{}/{name}", mount_point.name());
        let words = words.map(at);
        let begin = ["--json", "subvolume", "delete", "-R"].map(str::to_owned);
        let done = butternut(&[&begin[..], &words[..]].concat()).ok();
        let done: serde_json::Value = serde_json::from_str(&done).unwrap();
        assert_eq!(done["changes"].as_array().map(Vec::len), Some(3), "{done}");
        assert_eq!(butternut(&["subvolume", "list", mount_point.name()]).ok(), "");
        // A name that was wrong from the beginning deletes nothing.
        butternut(&["subvolume", "create", &at("again")]).ok();
        butternut(&["subvolume", "delete", "-R", &at("again"), &at("none")]).failure();
        butternut(&["subvolume", "delete", "-R", &at("again")]).ok();
        butternut(&["umount", mount_point.name()]).ok();
        check(&image);
    }
}

/// As for [`script_on_mount`].
const OF_USER: &str = r#"
chmod 777 "$M"
user "$B" subvolume create "$M/one" "$M/around"
user "$B" subvolume create "$M/around/inside"
try user "$B" subvolume delete -R one
try user "$B" subvolume delete -R around
try user "$B" subvolume delete -R around/inside around
ls
"#;

/// Only root reads the trees of a mounted volume, so only for root -R finds what is inside.
#[test]
fn a_user_deletes_subvolumes_with_nothing_inside_recursively() {
    if !kernel_tests_enabled("a_user_deletes_subvolumes_with_nothing_inside_recursively") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
    let image = scratch.path().join("volume.img").to_str().unwrap().to_owned();
    butternut(&["mkfs", "--size", "128M", &image]).ok();
    let at = scratch.path().join("at");
    fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let at = at.to_str().unwrap();
    let want = [
        "user butternut subvolume delete -R one: 0 ",
        "user butternut subvolume delete -R around: 1 butternut: around: directory not empty \
         (delete the subvolumes inside it first: -R finds them for root)",
        "user butternut subvolume delete -R around/inside around: 0 ",
    ];
    let kernel = format!("mount -o loop,user_subvol_rm_allowed {image} {at}");
    let own = format!("$B mount -o allow_other,user_subvol_rm_allowed {image} {at}");
    for mount in [own, kernel] {
        shell(&mount.replace("$B", env!("CARGO_BIN_EXE_butternut")));
        let printed = script_on_mount(at, OF_USER, &[]);
        shell(&format!("umount {at}"));
        assert_eq!(printed.lines().collect::<Vec<_>>(), want, "{mount}");
        check(&image);
    }
}
