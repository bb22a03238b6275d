//! export: everything that belongs to a file comes out, and nothing goes where it should not.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::command::{butternut, shell};
use super::image::{KernelView, ROTTEN_OFFSET, kernel, kernel_is_here, plain, rotten};

/// Every file below `root` with what a copy must keep; directories without sizes and times that
/// depend on the filesystem. Making the plain image reads its tree, which changes access times.
fn listing(root: &Path, with_owners: bool) -> String {
    let owners = if with_owners { "%U %G %A@" } else { "" };
    let root = root.display();
    shell(&format!(
        "cd {root}
         find . ! -type d -printf '%p %y %m %n {owners} %s %T@ %l\\n' | sort
         find . -type d -printf '%p %y %m %T@\\n' | sort
         find . -type b -o -type c | sort | xargs -r stat -c '%n %t:%T'
         find . -type f -print0 | sort -z | xargs -0 sha256sum"
    ))
}

fn xattrs(root: &Path) -> String {
    let root = root.display();
    shell(&format!(
        "cd {root}; find . -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex | grep -v btrfs"
    ))
}

#[test]
fn a_tree_comes_out_as_it_was() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let words = ["export", plain().0.to_str().unwrap(), "/", out.to_str().unwrap(), "-q"];
    butternut(&words).ok();
    assert_eq!(listing(&out, false), listing(&plain().1, false));
    let meta = |name: &str| fs::metadata(out.join(name)).unwrap();
    assert_eq!(meta("hello.txt").ino(), meta("docs/again").ino());
}

#[test]
fn what_the_kernel_made_comes_out_as_the_kernel_shows_it() {
    if !kernel_is_here("what_the_kernel_made_comes_out_as_the_kernel_shows_it") {
        return;
    }
    let view = KernelView::new();
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let out = scratch.path().join("out");
    butternut(&["export", "--devices", kernel().to_str().unwrap(), "/", out.to_str().unwrap()])
        .ok();
    // The stand-in for a subvolume inside a snapshot has the time of the mount.
    let kept = |text: String| {
        let lines = text.lines().filter(|line| !line.contains("/nested")).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    assert_eq!(kept(listing(&out, true)), kept(listing(view.path(), true)));
    assert_eq!(xattrs(&out), xattrs(view.path()));
    let blocks = |name: &str| fs::metadata(out.join(name)).unwrap().blocks();
    assert!(blocks("sparse") <= 16, "holes stay holes: {}", blocks("sparse"));
    assert_eq!(blocks("prealloc"), 0);
}

#[test]
fn one_file_goes_to_a_new_name_or_into_a_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let image = plain().0.to_str().unwrap();
    let place = |name: &str| scratch.path().join(name).display().to_string();
    butternut(&["export", image, "hello.txt", &place("other"), "-q"]).ok();
    assert_eq!(fs::read(place("other")).unwrap(), b"hello\n");
    butternut(&["export", image, "docs/again", &place(""), "-q"]).ok();
    assert_eq!(fs::read(place("again")).unwrap(), b"hello\n");
}

#[test]
fn nothing_that_exists_is_overwritten_and_no_symlink_is_followed() {
    let scratch = tempfile::tempdir().unwrap();
    let image = plain().0.to_str().unwrap();
    let (dest, away) = (scratch.path().join("dest"), scratch.path().join("away"));
    fs::create_dir(&dest).unwrap();
    fs::create_dir(&away).unwrap();
    fs::write(dest.join("empty"), "mine").unwrap();
    symlink(&away, dest.join("docs")).unwrap();
    symlink(away.join("stolen"), dest.join("hello.txt")).unwrap();
    let ran = butternut(&["export", image, "/", dest.to_str().unwrap(), "-q"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.err.contains("/empty: file exists (remove it, or choose another DEST)"),
        "{}",
        ran.err
    );
    assert_eq!(fs::read(dest.join("empty")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&away).unwrap().count(), 0, "nothing went through the symlinks");
}

#[test]
fn a_copy_without_owners_lends_no_rights() {
    if !kernel_is_here("a_copy_without_owners_lends_no_rights") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("new");
    let image = kernel().to_str().unwrap();
    butternut(&["export", "--no-owner", "-q", image, "new", out.to_str().unwrap()]).ok();
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn what_a_user_cannot_keep_is_said() {
    if !kernel_is_here("what_a_user_cannot_keep_is_said") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, image) = (scratch.path().display(), kernel().display());
    let program = env!("CARGO_BIN_EXE_butternut");
    // Copies that another user may reach, wherever the tests run.
    let said = shell(&format!(
        "cp --sparse=always {image} {dir}/a.img; cp {program} {dir}/butternut
         chmod 755 {dir}; mkdir {dir}/w; chown 1234 {dir}/w; chmod 644 {dir}/a.img
         setpriv --reuid=1234 --regid=1234 --clear-groups \
             {dir}/butternut export {dir}/a.img / {dir}/w/out 2>&1 || echo status $?"
    ));
    for want in [
        "out: devices not kept, 2 in all: /null: operation not permitted (",
        "out: security.* attributes not kept, 1 in all: /d/e/random: operation not permitted (",
        "out: note: everything belongs to you (run as root to keep owners",
        "status 1",
    ] {
        assert!(said.contains(want), "{want} in {said}");
    }
    assert_eq!(fs::read(scratch.path().join("w/out/hello.txt")).unwrap(), b"hello\n");
}

#[test]
fn what_is_rotten_is_a_hole_in_the_copy_and_said() {
    if !kernel_is_here("what_is_rotten_is_a_hole_in_the_copy_and_said") {
        return;
    }
    let (image, was) = rotten();
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let words = ["export", image.to_str().unwrap(), "file", out.to_str().unwrap()];
    let said = butternut(&words).failure();
    assert!(
        said.contains(&format!("file: from byte {ROTTEN_OFFSET} on, left as a hole: ")),
        "{said}"
    );
    assert!(said.contains(": 4.00KiB could not be read and are holes in the copy"), "{said}");
    let mut want = fs::read(was).unwrap();
    want[ROTTEN_OFFSET..ROTTEN_OFFSET + 4096].fill(0);
    assert!(fs::read(&out).unwrap() == want, "everything else is right");
    let ran = butternut(&["cat", image.to_str().unwrap(), "file"]);
    assert_eq!((ran.code, ran.bytes.len()), (Some(1), ROTTEN_OFFSET));
    assert!(
        ran.err.starts_with(&format!("butternut: file: at byte {ROTTEN_OFFSET}: ")),
        "{}",
        ran.err
    );
}
