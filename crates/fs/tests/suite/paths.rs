//! Edge cases of paths and lookups: symlinks, slashes, wrong file types, ids of no inode.

use crate::image::{Image, image_of};
use butternut::{
    DevicePath, Error, FIRST_ENTRY, FileId, FileKind, Filesystem, Follow, MountOptions, Subvolume,
};
use std::os::unix::fs::symlink;

fn image() -> Image {
    image_of(&[], |root| {
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "text").unwrap();
        symlink("a/b", root.join("relative")).unwrap();
        symlink("/a/b/file", root.join("absolute")).unwrap();
        symlink("../../a/b/", root.join("a/b/up")).unwrap();
        symlink("../../../../../a", root.join("beyond")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        symlink("loop2", root.join("loop1")).unwrap();
        symlink("loop1", root.join("loop2")).unwrap();
        // A path may follow at most 40 symlinks.
        std::fs::write(root.join("chain00"), "end").unwrap();
        for number in 1..=41 {
            let target = format!("chain{:02}", number - 1);
            symlink(target, root.join(format!("chain{number:02}"))).unwrap();
        }
    })
}

fn open(image: &Image, subvolume: Subvolume) -> Result<Filesystem, Error> {
    let options = MountOptions::default().subvolume(subvolume);
    Filesystem::open(&[DevicePath::from(&image.path)], &options)
}

/// Returns the errno of resolving a path.
fn errno(filesystem: &Filesystem, path: &[u8], follow: Follow) -> i32 {
    filesystem.resolve(path, follow).map_or_else(|error| error.errno(), |_| 0)
}

#[test]
fn symlinks_resolve_as_in_the_kernel() {
    let image = image();
    let filesystem = open(&image, Subvolume::Default).unwrap();
    let resolve = |path: &str| filesystem.resolve(path.as_bytes(), Follow::Last).unwrap();
    let (dir, file) = (resolve("a/b"), resolve("a/b/file"));
    assert_eq!(resolve("relative"), dir);
    assert_eq!(resolve("relative/file"), file);
    assert_eq!(resolve("absolute"), file);
    assert_eq!(resolve("a/b/up/up/up/file"), file);
    assert_eq!(resolve("beyond/b"), dir);
    assert_eq!(resolve("//a/./b/../b//file"), file);
    assert_eq!(resolve("../../.."), filesystem.root());
    assert_eq!((resolve(""), resolve("/")), (filesystem.root(), filesystem.root()));
    assert_eq!(resolve("chain40"), resolve("chain00"));
}

#[test]
fn the_last_symlink_is_followed_only_on_request() {
    let image = image();
    let filesystem = open(&image, Subvolume::Default).unwrap();
    let link = filesystem.resolve(b"relative", Follow::NotLast).unwrap();
    assert_eq!(filesystem.stat(link).unwrap().kind, FileKind::Symlink);
    assert_eq!(filesystem.read_link(link).unwrap(), b"a/b");
    let behind = filesystem.resolve(b"relative/", Follow::NotLast).unwrap();
    assert_eq!(filesystem.stat(behind).unwrap().kind, FileKind::Directory);
}

#[test]
fn unresolvable_paths_fail_with_the_kernels_errno() {
    let image = image();
    let filesystem = open(&image, Subvolume::Default).unwrap();
    let long = vec![b'n'; 256];
    let longer = b"a/".repeat(2048);
    for (path, want) in [
        (&b"dangling"[..], 2),
        (b"a/none/file", 2),
        (b"a/b/file/more", 20),
        (b"a/b/file/", 20),
        (b"a/b/file/..", 20),
        (b"loop1", 40),
        (b"chain41", 40),
        (&long, 36),
        (&longer, 36),
        (b"a/b\0", 2),
    ] {
        assert_eq!(errno(&filesystem, path, Follow::Last), want, "{}", path.escape_ascii());
    }
    assert_eq!(errno(&filesystem, b"dangling", Follow::NotLast), 0);
}

#[test]
fn each_call_refuses_the_wrong_kind_of_inode() {
    let image = image();
    let filesystem = open(&image, Subvolume::Default).unwrap();
    let resolve = |path: &str| filesystem.resolve(path.as_bytes(), Follow::NotLast).unwrap();
    let (dir, file, link) = (resolve("a"), resolve("a/b/file"), resolve("absolute"));
    assert_eq!(filesystem.open_file(dir).unwrap_err().errno(), 21);
    assert_eq!(filesystem.open_file(link).unwrap_err().errno(), 22);
    assert_eq!(filesystem.read_link(file).unwrap_err().errno(), 22);
    assert_eq!(filesystem.read_dir(file, 0).unwrap_err().errno(), 20);
    assert_eq!(filesystem.lookup(file, b"x").unwrap_err().errno(), 20);
    assert_eq!(filesystem.parent(file).unwrap_err().errno(), 20);
    assert_eq!(filesystem.xattr(file, b"user.none").unwrap_err().errno(), 61);
}

#[test]
fn an_id_of_no_inode_is_stale() {
    let image = image();
    let filesystem = open(&image, Subvolume::Default).unwrap();
    let numbers = [0, 1, 2, 5, 255, 999_999, 1 << 63, (1 << 63) + 999_999, u64::MAX - 8, u64::MAX];
    for subvolume in numbers {
        for ino in numbers {
            let id = FileId::new(subvolume, ino);
            assert_eq!(filesystem.stat(id).unwrap_err().errno(), 116, "{id:?}");
            let calls = [
                filesystem.lookup(id, b"x").map(drop),
                filesystem.lookup(id, b"..").map(drop),
                filesystem.read_dir(id, FIRST_ENTRY).map(drop),
                filesystem.read_link(id).map(drop),
                filesystem.open_file(id).map(drop),
                filesystem.xattr_names(id).map(drop),
                filesystem.xattr(id, b"user.x").map(drop),
                filesystem.paths_of(id).map(drop),
                filesystem.disk_usage(id).map(drop),
            ];
            for (number, call) in calls.into_iter().enumerate() {
                let error = call.expect_err("there is no such inode");
                assert_eq!(error.errno(), 116, "{id:?} {number}: {error}");
            }
        }
    }
}

#[test]
fn a_subvolume_is_named_by_a_path_without_symlinks() {
    let image = image();
    let filesystem = open(&image, Subvolume::Default).unwrap();
    for path in ["", "/", "//.//", "a/..", "..", "a/b/../../.."] {
        assert_eq!(filesystem.subvolume_at(path.as_bytes()).unwrap(), 5, "{path}");
        assert_eq!(open(&image, Subvolume::Path(path.into())).unwrap().root().subvolume, 5);
    }
    for (path, why, errno) in [
        ("/a/b", "/a/b is a directory, not a subvolume", 22),
        ("relative", "relative is a symbolic link, not a subvolume", 22),
        ("relative/", "relative is a symbolic link, not a subvolume", 22),
        ("a/b/up/b", "a/b/up is a symbolic link, not a subvolume", 22),
        ("beyond/..", "beyond is a symbolic link, not a subvolume", 22),
        ("a/b/file", "a/b/file is a file, not a subvolume", 22),
        ("a/none/../..", "no subvolume a/none", 2),
    ] {
        let error = open(&image, Subvolume::Path(path.into())).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.errno()), (why, errno), "{path}");
    }
}

#[test]
fn an_error_names_the_missing_subvolume() {
    let image = image();
    let error = open(&image, Subvolume::Id(777)).unwrap_err();
    assert_eq!(error.to_string(), "no subvolume 777");
    let error = open(&image, Subvolume::Path(b"none".to_vec())).unwrap_err();
    assert_eq!(error.to_string(), "no subvolume none");
    assert_eq!(open(&image, Subvolume::Path(vec![b'a'; 4096])).unwrap_err().errno(), 36);
}

#[test]
fn other_files_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zeros");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let error = Filesystem::open(&[DevicePath::from(&path)], &MountOptions::default()).unwrap_err();
    assert_eq!(error.errno(), 22);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("zeros"), "{cause}");
    let missing = dir.path().join("missing");
    let error = Filesystem::open(&[DevicePath::from(missing)], &MountOptions::default());
    assert_eq!(error.unwrap_err().errno(), 2);
    let none = Filesystem::open(&[], &MountOptions::default());
    assert_eq!(none.unwrap_err().errno(), 22);
}

#[test]
fn a_volume_may_begin_at_an_offset_of_an_image() {
    let image = image();
    let bytes = std::fs::read(&image.path).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len((3 << 20) + bytes.len() as u64).unwrap();
    for (number, chunk) in bytes.chunks(1 << 20).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            let offset = (3 << 20) + ((number as u64) << 20);
            std::os::unix::fs::FileExt::write_all_at(&file, chunk, offset).unwrap();
        }
    }
    let device = DevicePath { path, offset: 3 << 20, bytes: None };
    let filesystem = Filesystem::open(&[device], &MountOptions::default()).unwrap();
    assert!(filesystem.resolve(b"a/b/file", Follow::Last).is_ok());
}
