//! `export`: everything that belongs to a file is copied, and nothing outside of DEST is written.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use butternut::{SetAttributes, SetXattr};

use super::command::{butternut, shell};
use super::hostile;
use super::image::{CORRUPT_OFFSET, KernelMount, corrupt, kernel, kernel_tests_enabled, plain};

/// Lists all files below `root` with everything that a copy must keep. Sizes and access times of
/// directories depend on the filesystem, and making the plain image changes its access times.
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
fn export_preserves_a_tree() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let words = ["export", plain().0.to_str().unwrap(), "/", out.to_str().unwrap(), "-q"];
    butternut(&words).ok();
    assert_eq!(listing(&out, false), listing(&plain().1, false));
    let meta = |name: &str| fs::metadata(out.join(name)).unwrap();
    assert_eq!(meta("hello.txt").ino(), meta("docs/again").ino());
}

#[test]
fn export_of_a_kernel_volume_matches_the_kernels_mount() {
    if !kernel_tests_enabled("export_of_a_kernel_volume_matches_the_kernels_mount") {
        return;
    }
    let mount = KernelMount::new();
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let out = scratch.path().join("out");
    butternut(&["export", "--devices", kernel().to_str().unwrap(), "/", out.to_str().unwrap()])
        .ok();
    // The placeholder of a subvolume in a snapshot has the time of the mount.
    let kept = |text: String| {
        let lines = text.lines().filter(|line| !line.contains("/nested")).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    assert_eq!(kept(listing(&out, true)), kept(listing(mount.path(), true)));
    assert_eq!(xattrs(&out), xattrs(mount.path()));
    let blocks = |name: &str| fs::metadata(out.join(name)).unwrap().blocks();
    assert!(blocks("sparse") <= 16, "holes stay holes: {}", blocks("sparse"));
    assert_eq!(blocks("prealloc"), 0);
}

#[test]
fn an_archive_that_tar_extracts_is_what_the_kernel_shows() {
    if !kernel_tests_enabled("an_archive_that_tar_extracts_is_what_the_kernel_shows") {
        return;
    }
    let mount = KernelMount::new();
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (archive, out) = (scratch.path().join("archive.tar"), scratch.path().join("out"));
    fs::create_dir(&out).unwrap();
    let words = ["export", "--devices", "--tar", kernel().to_str().unwrap(), "/", "-"];
    let ran = butternut(&words);
    fs::write(&archive, &ran.bytes).unwrap();
    assert!(ran.err.is_empty() || ran.err.contains("sockets not kept"), "{}", ran.err);
    shell(&format!(
        "tar --xattrs --xattrs-include='*' --acls --numeric-owner -C {} -xpf {}",
        out.display(),
        archive.display()
    ));
    let kept = |text: String| {
        let is_kept = |line: &&str| !line.contains("/nested") && !line.contains(" s ");
        let lines = text.lines().filter(is_kept).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    // An archive has no access times.
    let owners = |root: &Path| {
        let script = format!("cd {}; find . -printf '%p %U %G\\n' | sort", root.display());
        listing(root, false) + &shell(&script)
    };
    assert_eq!(kept(owners(&out)), kept(owners(mount.path())));
    assert_eq!(xattrs(&out), xattrs(mount.path()));
    let blocks = |name: &str| fs::metadata(out.join(name)).unwrap().blocks();
    assert!(blocks("sparse") <= 16, "holes stay holes: {}", blocks("sparse"));
}

/// GNU tar ends the name of an attribute at `=`, unless it is encoded.
#[test]
fn names_of_attributes_with_signs_reach_tar() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = hostile::volume(scratch.path(), |fs| {
        let id = fs.create(fs.root(), b"file", &hostile::new()).unwrap();
        for name in [&b"user.a=b"[..], b"user.50%", b"user.%3D=%25"] {
            fs.set_xattr(id, name, name, SetXattr::Either).unwrap();
        }
    });
    let ran = butternut(&["export", "-q", "--tar", image.to_str().unwrap(), "/", "-"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    let archive = scratch.path().join("archive.tar");
    fs::write(&archive, &ran.bytes).unwrap();
    let at = scratch.path().display();
    let said = shell(&format!(
        "cd {at}; tar --xattrs --xattrs-include='*' -xf archive.tar ./file
         for name in 'user.a=b' 'user.50%' 'user.%3D=%25'; do
             getfattr --only-values -n \"$name\" file; echo; done; getfattr file | grep -c user"
    ));
    assert_eq!(said, "user.a=b\nuser.50%\nuser.%3D=%25\n3\n");
}

/// As a copy of the root directory of a volume into a directory, which leaves that as it is.
#[test]
fn an_archive_without_owners_does_not_change_the_directory_that_it_is_extracted_into() {
    let scratch = tempfile::tempdir().unwrap();
    let image = hostile::volume(scratch.path(), |fs| {
        let open = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
        fs.set_attributes(fs.root(), &open).unwrap();
        let dir = fs.mkdir(fs.root(), b"dir", &hostile::new()).unwrap();
        fs.set_attributes(dir, &open).unwrap();
        fs.create(dir, b"file", &hostile::new()).unwrap();
    });
    let image = image.to_str().unwrap();
    let extracted = |words: &[&str]| {
        let ran = butternut(&[&["export", "-q", "--tar"], words, &["-"]].concat());
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        fs::write(scratch.path().join("archive.tar"), &ran.bytes).unwrap();
        shell(&format!(
            "cd {}; rm -rf to; mkdir -m 750 to; tar -C to -xpf archive.tar
             stat -c '%a %n' to; tar -tf archive.tar",
            scratch.path().display()
        ))
    };
    assert_eq!(extracted(&["--no-owner", image, "/"]), "750 to\n./dir/\n./dir/file\n");
    assert_eq!(extracted(&["--no-owner", image, "dir"]), "750 to\ndir/\ndir/file\n");
    assert_eq!(extracted(&[image, "/"]), "777 to\n./\n./dir/\n./dir/file\n");
}

/// A tar program would end the target there.
#[test]
fn a_symlink_with_a_nul_byte_is_not_in_an_archive() {
    let scratch = tempfile::tempdir().unwrap();
    let image = hostile::volume(scratch.path(), |fs| {
        fs.symlink(fs.root(), b"link", b"/etc/passwd-of-it", &hostile::new()).unwrap();
        fs.symlink(fs.root(), b"other", b"target", &hostile::new()).unwrap();
    });
    hostile::rewrite_items(&image, |_, data| {
        let at = data.windows(17).position(|bytes| bytes == b"/etc/passwd-of-it");
        at.map(|at| data[at + 11] = 0).is_some()
    });
    let ran = butternut(&["export", "-q", "--tar", image.to_str().unwrap(), "/", "-"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("link: the symlink is damaged: its target has"), "{}", ran.err);
    let archive = scratch.path().join("archive.tar");
    fs::write(&archive, &ran.bytes).unwrap();
    assert_eq!(shell(&format!("tar -tf {}", archive.display())), "./\n./other\n");
}

#[test]
fn filters_leave_out_files_and_excluded_directories() {
    let scratch = tempfile::tempdir().unwrap();
    let image = plain().0.to_str().unwrap();
    let names = |words: &[&str]| {
        let out = scratch.path().join("out");
        let all = [&["export", "-q"], words, &[image, "/", out.to_str().unwrap()]].concat();
        butternut(&all).ok();
        let found = shell(&format!("cd {}; find . ! -type d | sort", out.display()));
        fs::remove_dir_all(&out).unwrap();
        let archive = [&["export", "-q", "--tar"], words, &[image, "/", "-"]].concat();
        let archive = butternut(&archive);
        assert_eq!((archive.code, archive.err.as_str()), (Some(0), ""));
        let at = scratch.path().join("archive.tar");
        fs::write(&at, &archive.bytes).unwrap();
        let listed = shell(&format!(
            "tar --quoting-style=literal -tf {} | sed '/[/]$/d' | sort",
            at.display()
        ));
        assert_eq!(found, listed, "{words:?}");
        found
    };
    assert_eq!(names(&["--include", "hello*"]), "./hello.txt\n");
    assert!(!names(&["--exclude", "docs"]).contains("docs/"));
    assert_eq!(names(&["--include", "docs/a*"]), "./docs/again\n");
    assert_eq!(names(&["--newer", "@9999999999"]), "");
    assert!(names(&["--newer", "1999-12-31 23:59"]).contains("./hello.txt\n"));
    let refused = |words: &[&str]| butternut(words).failure();
    let at = scratch.path().join("at").display().to_string();
    let no_time = butternut(&["export", "--newer", "soon", image, "/", &at]).usage();
    assert!(no_time.contains("neither a file"), "{no_time}");
    assert!(refused(&["export", "--tar", image, "/", &at]).contains("written to stdout"));
    assert!(refused(&["export", image, "/", "-"]).contains("add --tar"));
}

#[test]
fn export_of_one_file_takes_a_new_name_or_a_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let image = plain().0.to_str().unwrap();
    let place = |name: &str| scratch.path().join(name).display().to_string();
    butternut(&["export", image, "hello.txt", &place("other"), "-q"]).ok();
    assert_eq!(fs::read(place("other")).unwrap(), b"hello\n");
    butternut(&["export", image, "docs/again", &place(""), "-q"]).ok();
    assert_eq!(fs::read(place("again")).unwrap(), b"hello\n");
}

#[test]
fn export_overwrites_nothing_and_follows_no_symlinks() {
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

/// Another user that may rename the entries of the destination puts a directory that exists in the
/// place of the new one.
#[test]
fn export_changes_no_directory_that_replaced_the_one_it_made() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::sync::atomic::{AtomicBool, Ordering};
    const ROUNDS: usize = 60;
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("a.img");
    let image = image.to_str().unwrap();
    butternut(&["mkfs", "-q", "--size", "256M", image]).ok();
    butternut(&["mkdir", "-m", "777", image, "open"]).ok();
    let dest = scratch.path().to_str().unwrap();
    let (victim, out) = (scratch.path().join("victim"), scratch.path().join("open"));
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("secret"), "").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o700)).unwrap();
    for _ in 0..ROUNDS {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Succeeds only after the export has made its directory.
                while !is_over.load(Ordering::Relaxed)
                    && renameat_with(CWD, &victim, CWD, &out, RenameFlags::EXCHANGE).is_err()
                {
                    std::thread::yield_now();
                }
            });
            butternut(&["export", "-q", image, "open", dest]);
            is_over.store(true, Ordering::Relaxed);
        });
        if out.join("secret").exists() {
            renameat_with(CWD, &victim, CWD, &out, RenameFlags::EXCHANGE).unwrap();
        }
        fs::remove_dir(&out).unwrap();
        let mode = fs::metadata(&victim).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }
}

/// The owner of the destination, which may be another user, chooses what new files inherit.
#[test]
fn export_inherits_no_access_list_of_the_destination() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = scratch.path().display();
    shell(&format!(
        "cd {dir}; mkdir src src/tree dest; echo secret >src/secret; echo secret >src/tree/secret
         mkfifo src/fifo; chmod 640 src/secret src/tree/secret src/fifo; chmod 750 src/tree
         setfacl -d -m u:12345:rwx dest"
    ));
    let (image, dest) = (format!("{dir}/a.img"), format!("{dir}/dest"));
    butternut(&["mkfs", "-q", "--size", "256M", "--rootdir", &format!("{dir}/src"), &image]).ok();
    for name in ["secret", "tree", "fifo"] {
        butternut(&["export", "-q", &image, name, &dest]).ok();
    }
    butternut(&["export", "-q", &image, "/", &format!("{dest}/all")]).ok();
    let listed = shell(&format!("cd {dest}; getfacl -R -c -p * | grep -c user:12345 || true"));
    assert_eq!(listed, "0\n");
    let modes = |root: &str| shell(&format!("cd {dir}/{root}; stat -c %a secret tree fifo tree/*"));
    assert_eq!(modes("dest"), modes("src"));
    assert_eq!(modes("dest/all"), modes("src"));
}

#[test]
fn export_without_owners_drops_set_user_id() {
    if !kernel_tests_enabled("export_without_owners_drops_set_user_id") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("new");
    let image = kernel().to_str().unwrap();
    butternut(&["export", "--no-owner", "-q", image, "new", out.to_str().unwrap()]).ok();
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn export_reports_what_an_unprivileged_user_cannot_keep() {
    if !kernel_tests_enabled("export_reports_what_an_unprivileged_user_cannot_keep") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, image) = (scratch.path().display(), kernel().display());
    let program = env!("CARGO_BIN_EXE_butternut");
    // In a directory that another user can reach.
    let output = shell(&format!(
        "cp --sparse=always {image} {dir}/a.img; cp {program} {dir}/butternut
         chmod 755 {dir}; mkdir {dir}/w; chown 1234 {dir}/w; chmod 644 {dir}/a.img
         setpriv --reuid=1234 --regid=1234 --clear-groups \
             {dir}/butternut export {dir}/a.img / {dir}/w/out 2>&1 || echo status $?"
    ));
    for want in [
        "out: devices not kept, 2 in all: /null: operation not permitted (",
        "out: security.* attributes not kept, 1 in all: /d/e/random: operation not permitted (",
        "out: note: all files belong to you (run as root to preserve owners",
        "status 1",
    ] {
        assert!(output.contains(want), "{want} in {output}");
    }
    assert_eq!(fs::read(scratch.path().join("w/out/hello.txt")).unwrap(), b"hello\n");
}

#[test]
fn export_leaves_and_reports_a_hole_for_a_corrupt_sector() {
    if !kernel_tests_enabled("export_leaves_and_reports_a_hole_for_a_corrupt_sector") {
        return;
    }
    let (image, was) = corrupt();
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let words = ["export", image.to_str().unwrap(), "file", out.to_str().unwrap()];
    let message = butternut(&words).failure();
    assert!(
        message.contains(&format!("file: from byte {CORRUPT_OFFSET} on, left as a hole: ")),
        "{message}"
    );
    assert!(message.contains(": 4.00KiB could not be read and are holes in the copy"), "{message}");
    let mut want = fs::read(was).unwrap();
    want[CORRUPT_OFFSET..CORRUPT_OFFSET + 4096].fill(0);
    assert!(fs::read(&out).unwrap() == want, "all other bytes are equal");
    let ran = butternut(&["cat", image.to_str().unwrap(), "file"]);
    assert_eq!((ran.code, ran.bytes.len()), (Some(1), CORRUPT_OFFSET));
    assert!(
        ran.err.starts_with(&format!("butternut: file: at byte {CORRUPT_OFFSET}: ")),
        "{}",
        ran.err
    );
}
