//! `import` and `mkfs --rootdir` keep everything that belongs to a file.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use super::change::{ACL, Volume, check};
use super::command::{CommandOutput, butternut, command, shell};

const UUID: &str = "8f2a1c3e-5b6d-4e7f-8091-a2b3c4d5e6f7";

/// Makes a tree with files of all sizes, links, holes, odd names and attributes.
pub(crate) fn tree(root: &Path) {
    fs::create_dir_all(root.join("deep/er")).unwrap();
    for (number, size) in [0, 1, 2048, 2049, 4096, 70_000, 131_073, 9_000_000].iter().enumerate() {
        let bytes: Vec<u8> = (0..*size).map(|at: u32| (at / 3 % 253) as u8).collect();
        fs::write(root.join(format!("size{number}")), bytes).unwrap();
    }
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    sparse.write_all_at(b"middle", 1 << 20).unwrap();
    let small = fs::File::create(root.join("deep/hole")).unwrap();
    small.set_len(100_000).unwrap();
    fs::hard_link(root.join("size3"), root.join("deep/again")).unwrap();
    symlink("../size3", root.join("deep/link")).unwrap();
    for number in 0..100 {
        fs::write(root.join(format!("deep/er/many{number}")), [number; 40]).unwrap();
    }
    shell(&format!(
        r#"cd {}; mkfifo pipe; chmod 4750 size1; chmod 2710 deep
        setfattr -n user.foo -v bar size2; setfattr -n user.dir -v 1 deep
        printf x > "$(printf 'odd\nname\377')"
        touch -h -d '1999-01-01 01:02:03.4' deep/link; touch -d '2100-01-01 00:00:00.123' size5
        touch -d '2001-02-03 04:05:06' deep/er deep"#,
        root.display()
    ));
}

/// Lists what a copy must keep, by stat(1) and checksums.
fn listing(root: &Path) -> String {
    shell(&format!(
        "cd {}
         find . ! -type d -printf '%p %y %m %n %U %G %s %T@ %l\\n' | sort
         find . -type d -printf '%p %y %m %T@\\n' | sort
         find . -type f -print0 | sort -z | xargs -0 sha256sum
         find . -print0 | sort -z | xargs -0 getfattr -h -d -m user. -e hex",
        root.display()
    ))
}

/// Exports a directory of a volume, and lists it.
fn exported(volume: &Path, path: &str) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    butternut(&["export", "-q", volume.to_str().unwrap(), path, out.to_str().unwrap()]).ok();
    listing(&out)
}

#[test]
fn import_and_export_preserve_a_tree() {
    let (volume, source) = (Volume::new(), tempfile::tempdir().unwrap());
    let root = source.path().join("tree");
    tree(&root);
    let output = volume.ok(&format!("import --json VOL {} /", root.display()));
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&report["links"], &report["directories"]), (&1.into(), &3.into()));
    assert_eq!(exported(&volume.image, "/tree"), listing(&root));
    let blocks = |path: &str| volume.stat(path)["blocks"].as_u64().unwrap();
    assert!(blocks("tree/sparse") <= 16, "holes stay holes: {}", blocks("tree/sparse"));
    assert_eq!(blocks("tree/deep/hole"), 0);
}

#[test]
fn import_creates_or_enters_the_destination() {
    let (volume, source) = (Volume::new(), tempfile::tempdir().unwrap());
    let root = source.path().join("tree");
    fs::create_dir_all(root.join("sub")).unwrap();
    fs::write(root.join("file"), "x").unwrap();
    let root = root.display();
    volume.ok(&format!("import VOL {root} /new"));
    volume.ok(&format!("import VOL {root} /new"));
    volume.ok(&format!("import VOL {root}/. /"));
    volume.ok(&format!("import VOL {root}/file /sub"));
    volume.ok(&format!("import VOL {root}/file /sub/other"));
    assert_eq!(
        volume.paths(),
        [
            "/file",
            "/new",
            "/new/file",
            "/new/sub",
            "/new/tree",
            "/new/tree/file",
            "/new/tree/sub",
            "/sub",
            "/sub/file",
            "/sub/other"
        ]
    );
}

#[test]
fn a_failed_import_leaves_nothing() {
    let (volume, source) = (Volume::new(), tempfile::tempdir().unwrap());
    let root = source.path().join("tree");
    fs::create_dir_all(root.join("sub")).unwrap();
    fs::write(root.join("file"), vec![7; 1 << 20]).unwrap();
    let line = format!("import VOL {}/. /", root.display());
    volume.write("sub", b"in the way");
    assert!(
        volume.failure(&line).starts_with("/sub: file exists (remove it, or choose another name)")
    );
    assert_eq!(volume.paths(), ["/sub"]);
    // More data than fits into the volume.
    volume.ok("rm VOL sub");
    let large = fs::File::create(root.join("large")).unwrap();
    for piece in 0..80_u64 {
        large.write_all_at(&vec![7; 4 << 20], piece << 22).unwrap();
    }
    let message = volume.failure(&line);
    assert!(
        message.contains("tree/./large: ") && message.contains("filesystem resize"),
        "{message}"
    );
    assert!(volume.paths().is_empty());
    let gone = volume.failure("import VOL no/such /");
    assert!(gone.starts_with("no/such: no such file or directory"), "{gone}");
    let own = volume.failure("import VOL a.img /");
    assert!(own.starts_with("./a.img: is the volume itself (keep the image outside"), "{own}");
}

#[test]
fn imported_files_inherit_nothing_from_their_directory() {
    let (volume, source) = (Volume::new(), tempfile::tempdir().unwrap());
    fs::create_dir(source.path().join("sub")).unwrap();
    fs::write(source.path().join("sub/file"), "x").unwrap();
    shell(&format!("chmod 755 {0}/sub; chmod 644 {0}/sub/file", source.path().display()));
    volume.ok("mkdir -m 2777 VOL d");
    volume.ok("chown VOL 5:6 d");
    volume.ok(&format!("setfattr -n system.posix_acl_default -v {ACL} VOL d"));
    volume.ok(&format!("import --no-owner VOL {}/sub /d", source.path().display()));
    for (path, mode) in [("d/sub", "0755"), ("d/sub/file", "0644")] {
        let stat = volume.stat(path);
        assert_eq!((&stat["mode"], &stat["gid"]), (&mode.into(), &0.into()), "{path}");
        assert_eq!(stat["xattrs"], serde_json::json!([]), "{path}");
    }
}

fn mkfs(dir: &Path, epoch: Option<&str>, line: &str) -> CommandOutput {
    let mut command = command();
    command.current_dir(dir).arg("mkfs").args(line.split_whitespace());
    command.env_remove("SOURCE_DATE_EPOCH");
    if let Some(epoch) = epoch {
        command.env("SOURCE_DATE_EPOCH", epoch);
    }
    command.output().unwrap().into()
}

#[test]
fn mkfs_fills_a_volume_from_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("tree"));
    shell(&format!("cd {}; chmod 1711 tree; touch -d 2011-11-11 tree", dir.path().display()));
    let output = mkfs(dir.path(), None, "--json --rootdir tree a.img").ok();
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&report["directories"], &report["links"]), (&2.into(), &1.into()));
    let image = dir.path().join("a.img");
    check(&image);
    assert_eq!(exported(&image, "/"), listing(&dir.path().join("tree")));
    mkfs(dir.path(), None, "-q --shrink --rootdir tree -M --csum sha256 b.img").ok();
    let small = dir.path().join("b.img");
    check(&small);
    assert_eq!(exported(&small, "/"), listing(&dir.path().join("tree")));
    let len = fs::metadata(&small).unwrap().len();
    assert!(len < fs::metadata(&image).unwrap().len() && len < 100 << 20, "{len}");
}

#[test]
fn mkfs_rootdir_is_reproducible_with_an_epoch_and_a_uuid() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("tree"));
    let make = |name: &str, threads: usize| {
        let line = format!("-q -U {UUID} --threads {threads} --rootdir tree {name}");
        mkfs(dir.path(), Some("1700000000"), &line).ok();
    };
    make("a.img", 1);
    shell(&format!("find {} -type f -exec cat {{}} + > /dev/null", dir.path().display()));
    make("b.img", 7);
    shell(&format!("cd {}; cmp a.img b.img", dir.path().display()));
    check(&dir.path().join("a.img"));
    let output = butternut(&["stat", dir.path().join("a.img").to_str().unwrap(), "size5"]).ok();
    assert!(!output.contains("2100-") && output.contains("Birth: 2023-11-14 22:13:20"), "{output}");
}

#[test]
fn a_volume_that_cannot_be_filled_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    let large = fs::File::create(dir.path().join("tree/large")).unwrap();
    for piece in 0..40_u64 {
        large.write_all_at(&vec![7; 4 << 20], piece << 22).unwrap();
    }
    let message = mkfs(dir.path(), None, "--size 128M --rootdir tree a.img").failure();
    assert!(message.starts_with("butternut: tree/large: "), "{message}");
    assert!(!dir.path().join("a.img").exists());
    let message = mkfs(dir.path(), None, "--rootdir gone a.img").failure();
    assert!(message.starts_with("butternut: gone: no such file or directory"), "{message}");
}
