//! Commands that change a volume: what they do and what they reject. A command that fails leaves
//! the volume unchanged. Each volume is made by `butternut mkfs` and checked by `btrfs check` at
//! the end.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, XattrFlags, fcntl_lock};
use serde_json::Value;
use tempfile::TempDir;

use super::command::{CommandOutput, butternut, command, run};

/// `user::rw-,user:1000:r--,group::r--,mask::rw-,other::---`
pub(crate) const ACL: &str = "0x0200000001000600ffffffff02000400e8030000\
04000400ffffffff10000600ffffffff20000000ffffffff";

/// A new volume in its own directory.
pub(crate) struct Volume {
    pub(crate) dir: TempDir,
    pub(crate) image: PathBuf,
}

impl Volume {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        butternut(&["mkfs", "-q", "--size", "256M", image.to_str().unwrap()]).ok();
        Self { dir, image }
    }

    /// Runs a command line, in which `VOL` stands for the image.
    pub(crate) fn run(&self, line: &str) -> CommandOutput {
        let image = self.image.to_str().unwrap();
        let words: Vec<String> =
            line.split_whitespace().map(|word| word.replace("VOL", image)).collect();
        let mut command = command();
        command.current_dir(self.dir.path()).args(words).output().unwrap().into()
    }

    #[track_caller]
    pub(crate) fn ok(&self, line: &str) -> String {
        self.run(line).ok()
    }

    /// Returns the error message of a command that must fail and must not change the volume.
    #[track_caller]
    pub(crate) fn failure(&self, line: &str) -> String {
        let before = self.bytes();
        let message = self.run(line).failure();
        assert!(self.bytes() == before, "{line}: the superblock or a tree has changed");
        let image = self.image.display().to_string();
        message.strip_prefix("butternut: ").unwrap_or(&message).replace(&image, "VOL")
    }

    /// Returns the superblock. Every commit changes it.
    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.image).unwrap()[65536..65536 + 4096].to_vec()
    }

    #[track_caller]
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) {
        self.feed(&format!("write VOL {path}"), bytes).ok();
    }

    pub(crate) fn feed(&self, line: &str, bytes: &[u8]) -> CommandOutput {
        let image = self.image.to_str().unwrap();
        let words = line.split_whitespace().map(|word| word.replace("VOL", image));
        let mut child = command();
        child.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        // A command that refuses its arguments closes the pipe early.
        child.stdin.take().unwrap().write_all(bytes).unwrap_or_default();
        child.wait_with_output().unwrap().into()
    }

    pub(crate) fn cat(&self, path: &str) -> Vec<u8> {
        let ran = butternut(&["cat", self.image.to_str().unwrap(), path]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran.bytes
    }

    /// Returns the attributes of one file.
    #[track_caller]
    pub(crate) fn stat(&self, path: &str) -> Value {
        let output = self.ok(&format!("stat --json --xattrs VOL {path}"));
        serde_json::from_str::<Vec<Value>>(&output).unwrap().remove(0)
    }

    /// Returns all paths, sorted.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> =
            self.ok("find VOL /").lines().map(str::to_owned).filter(|path| path != "/").collect();
        paths.sort();
        paths
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        check(&self.image);
    }
}

/// Runs `btrfs check` and `butternut check`, which must find no error.
#[track_caller]
pub(crate) fn check(image: &Path) {
    let words = ["check".as_ref(), "--check-data-csum".as_ref(), image.as_os_str()];
    run("btrfs", &words);
    butternut(&["check".as_ref(), "-q".as_ref(), "--check-data-csum".as_ref(), image.as_os_str()])
        .ok();
}

#[test]
fn mkdir_creates_directories_and_their_parents() {
    let volume = Volume::new();
    volume.ok("mkdir VOL a b");
    volume.ok("mkdir -p -m 2750 VOL a/b/c /a/b/d/");
    volume.ok("mkdir -p VOL a a/b");
    assert_eq!(volume.paths(), ["/a", "/a/b", "/a/b/c", "/a/b/d", "/b"]);
    let mode = |path| volume.stat(path)["mode"].clone();
    assert_eq!(
        (mode("a"), mode("a/b"), mode("a/b/c")),
        ("0755".into(), "0755".into(), "2750".into())
    );
    assert_eq!(
        volume.failure("mkdir VOL new a"),
        "a: file exists (remove it, or choose another name)"
    );
    assert!(volume.failure("mkdir VOL no/such").starts_with("no: no such file or directory ("));
    assert!(volume.failure("mkdir VOL /").starts_with("/: does not name a directory entry ("));
    assert!(volume.failure("mkdir -m 888 VOL x").starts_with("mode: \"888\" is not a file mode ("));
    let report: Value = serde_json::from_str(&volume.ok("mkdir --json VOL x")).unwrap();
    assert_eq!(report["changes"], serde_json::json!([{ "did": "made", "path": "x" }]));
    let output = volume.run("mkdir -v VOL y");
    assert!(output.err.starts_with("butternut: y: made\n"), "{}", output.err);
}

#[test]
fn write_honours_offset_append_and_truncate() {
    let volume = Volume::new();
    volume.write("f", b"0123456789");
    volume.feed("write VOL f --offset 4", b"abc").ok();
    assert_eq!(volume.cat("f"), b"0123abc789");
    volume.feed("write VOL f --append", b"!").ok();
    assert_eq!(volume.cat("f"), b"0123abc789!");
    volume.feed("write VOL f --offset 0", b"ABC").ok();
    assert_eq!(volume.cat("f"), b"ABC3abc789!");
    volume.feed("write VOL f --offset 2 --truncate", b"-").ok();
    assert_eq!(volume.cat("f"), b"AB-");
    let large: Vec<u8> = (0..9_000_001_u32).map(|at| (at / 7 % 251) as u8).collect();
    let output = volume.feed("write --json VOL large --offset 1M", &large).ok();
    let report: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&report["offset"], &report["bytes"]), (&(1 << 20).into(), &large.len().into()));
    let read = volume.cat("large");
    assert!(read[..1 << 20].iter().all(|byte| *byte == 0) && read[1 << 20..] == large[..]);
    volume.ok("mkdir VOL d");
    let message = volume.feed("write VOL d", b"x").failure();
    assert!(message.starts_with("butternut: d: is a directory ("), "{message}");
}

/// As `>` of a shell: nothing of a longer file stays.
#[test]
fn write_replaces_a_file() {
    let volume = Volume::new();
    let long: Vec<u8> = (0..900_001_u32).map(|at| (at / 7 % 251) as u8).collect();
    for bytes in [&long[..], b"short", &long[..5000], b"x"] {
        volume.feed("write VOL f", bytes).ok();
        assert!(volume.cat("f") == bytes, "{}", bytes.len());
        volume.feed("write VOL f -t", b"").ok();
        assert!(volume.cat("f").is_empty());
        volume.feed("write VOL f", b"").ok();
        volume.feed("write VOL f -t", bytes).ok();
        assert!(volume.cat("f") == bytes, "{}", bytes.len());
    }
    volume.ok("chmod VOL 4755 f");
    volume.ok("touch -d @5 VOL f");
    for line in ["write VOL f --append", "write VOL f --offset 9"] {
        volume.feed(line, b"").ok();
        assert_eq!(
            (volume.cat("f"), volume.stat("f")["mtime"]["secs"].clone()),
            (b"x".into(), 5.into())
        );
    }
    // What comes through a pipe may be the end of a command that has failed.
    let message = volume.feed("write VOL f", b"").failure();
    let wanted = "butternut: f: stdin is empty, and the file is not (--truncate empties it)";
    assert_eq!((message.trim_end(), volume.cat("f")), (wanted, b"x".into()));
    volume.feed("write VOL f -t", b"").ok();
    assert_eq!(volume.stat("f")["mode"], "0755", "the file has new contents");
    assert_ne!(volume.stat("f")["mtime"]["secs"], 5);
    // Without space for the new contents, the old ones stay.
    volume.write("f", &long);
    let too_long = vec![7; 200 << 20];
    let message = volume.feed("write VOL f", &too_long).failure();
    assert!(message.starts_with("butternut: f: "), "{message}");
    assert!(volume.cat("f") == long);
}

/// The reader has its volume for itself until its output ends.
#[test]
fn a_file_is_written_with_what_is_made_of_it() {
    let volume = Volume::new();
    let bytes: Vec<u8> = (0..1_300_001_u32).map(|at| (at / 7 % 251) as u8).collect();
    volume.write("f", &bytes);
    for _ in 0..8 {
        let image = volume.image.to_str().unwrap();
        let mut cat = command();
        let mut cat = cat.args(["cat", image, "f"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut write = command();
        write.args(["write", image, "f"]).stdin(cat.stdout.take().unwrap());
        let written = write.output().unwrap();
        assert!(cat.wait().unwrap().success());
        assert!(written.status.success(), "{written:?}");
        assert!(volume.cat("f") == bytes);
    }
}

/// Nothing to write is refused where something to write is.
#[test]
fn an_empty_write_is_refused_like_any_other() {
    let volume = Volume::new();
    volume.ok("subvolume create VOL /s");
    volume.write("s/f", b"x");
    volume.write("sealed", b"x");
    volume.ok("verity enable VOL sealed");
    volume.ok("property set VOL /s ro true");
    volume.ok("mkdir VOL d");
    for (path, how) in ["s/f", "sealed", "d", "d/"]
        .iter()
        .flat_map(|path| ["", "--append", "--offset 0", "-t --offset 1"].map(|how| (path, how)))
    {
        let line = format!("write VOL {path} {how}");
        let refused = [&b""[..], b"x"].map(|bytes| volume.feed(&line, bytes).failure());
        assert_eq!(refused[0], refused[1], "{line}");
        assert!(refused[0].starts_with(&format!("butternut: {path}: ")), "{line}: {}", refused[0]);
    }
    assert_eq!((volume.cat("s/f"), volume.cat("sealed")), (b"x".into(), b"x".into()));
}

#[test]
fn rm_removes_trees_and_does_not_follow_symlinks() {
    let volume = Volume::new();
    volume.ok("mkdir -p VOL a/b/c keep");
    for path in ["a/one", "a/b/two", "keep/file", "file"] {
        volume.write(path, &[7; 5000]);
    }
    volume.ok("ln -s VOL ../keep a/out");
    volume.ok("ln -s VOL /keep away");
    volume.ok("rm VOL away file");
    assert!(volume.failure("rm VOL a").starts_with("a: is a directory (`rm -r` removes it"));
    assert!(volume.failure("rm -d VOL a").starts_with("a: directory not empty (`butternut rm -r`"));
    assert!(volume.failure("rm -r VOL keep gone").starts_with("gone: no such file or directory ("));
    assert!(
        volume
            .failure("rm -r VOL /")
            .starts_with("/: is the root directory and cannot be removed (")
    );
    volume.ok("rm -rf VOL a gone");
    assert_eq!(volume.paths(), ["/keep", "/keep/file"]);
    volume.ok("rm -r VOL keep");
    assert!(volume.paths().is_empty());
}

#[test]
fn mv_renames_replaces_and_exchanges() {
    let volume = Volume::new();
    volume.ok("mkdir VOL d e");
    volume.write("one", b"1");
    volume.write("two", b"2");
    volume.ok("mv VOL one three");
    volume.ok("mv VOL three two d");
    assert_eq!(volume.paths(), ["/d", "/d/three", "/d/two", "/e"]);
    assert!(volume.failure("mv -n VOL d/three d/two").starts_with("d/two: file exists ("));
    volume.ok("mv --exchange VOL d/three d/two");
    assert_eq!((volume.cat("d/three"), volume.cat("d/two")), (b"2".to_vec(), b"1".to_vec()));
    volume.ok("mv VOL d/three d/two");
    assert_eq!(volume.cat("d/two"), b"2");
    volume.ok("mv VOL d e/f");
    assert_eq!(volume.paths(), ["/e", "/e/f", "/e/f/two"]);
    assert!(volume.failure("mv VOL e e/f/g").starts_with("e/f/g: "));
    assert!(volume.failure("mv VOL gone x").starts_with("gone: no such file or directory ("));
    assert!(volume.failure("mv VOL e/f/two e x").contains("several files cannot be moved"));
    volume.ok("ln VOL e/f/two hard");
    volume.ok("mv VOL hard e/f/two");
    assert_eq!(volume.paths(), ["/e", "/e/f", "/e/f/two"]);
    assert_eq!(volume.stat("e/f/two")["links"], 1);
}

/// Not the name that would be made of it, nor a file of the host.
#[test]
fn the_read_only_side_of_a_copy_or_move_is_named() {
    let volume = Volume::new();
    volume.ok("mkdir VOL d");
    volume.write("d/f", b"1");
    volume.ok("subvolume snapshot -r VOL / s");
    fs::create_dir_all(volume.dir.path().join("host/sub")).unwrap();
    for (line, named) in [
        ("mv VOL s/d x", "s/d"),
        ("mv VOL s/d/f d", "s/d/f"),
        ("mv VOL s/d/f s/g", "s/d/f"),
        ("import VOL host s", "s/host"),
        ("import VOL host/. s/d", "s/d/sub"),
        ("import VOL host s/new", "s/new"),
    ] {
        let why = volume.failure(line);
        assert!(why.starts_with(&format!("{named}: the subvolume is read-only")), "{line}: {why}");
    }
}

/// Attributes need no more space than a block has.
#[test]
fn an_attribute_that_is_too_large_is_no_lack_of_space() {
    let volume = Volume::new();
    let value = "v".repeat(20_000);
    volume.write("f", b"x");
    let why = volume.failure(&format!("setfattr -n user.big -v {value} VOL f"));
    assert!(why.ends_with("do not fit into an item of 16258"), "{why}");
    // In memory, where attributes of this length can be.
    let host = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = host.path().join("file");
    fs::write(&file, "x").unwrap();
    rustix::fs::setxattr(&file, "user.big", value.as_bytes(), XattrFlags::empty()).unwrap();
    let file = file.display();
    let why = volume.failure(&format!("import VOL {file} /"));
    assert!(why.starts_with(&format!("{file}: the attribute user.big is too large: ")), "{why}");
    assert!(
        why.ends_with(" (--no-xattrs leaves out extended attributes and access lists)"),
        "{why}"
    );
    volume.ok(&format!("import --no-xattrs VOL {file} /"));
}

#[test]
fn ln_creates_hard_and_symbolic_links() {
    let volume = Volume::new();
    volume.ok("mkdir VOL d");
    volume.write("file", b"x");
    volume.ok("ln VOL file d");
    volume.ok("ln VOL file d/other");
    assert_eq!(volume.stat("d/other")["links"], 3);
    volume.ok("ln -s VOL any/where d/link");
    assert_eq!(volume.stat("d/link")["target"], "any/where");
    assert!(volume.failure("ln VOL file d/link").starts_with("d/link: file exists ("));
    volume.ok("ln -sf VOL ../file d/link");
    assert_eq!(volume.cat("d/link"), b"x");
    assert!(
        volume
            .failure("ln VOL d hard")
            .starts_with("d: hard links to directories are not allowed (")
    );
    assert!(volume.failure("ln -f VOL file d/other").contains("is already a name of this file"));
}

#[test]
fn chmod_and_chown_change_permissions_and_owners() {
    let volume = Volume::new();
    volume.ok("mkdir -p VOL d/e");
    volume.write("d/f", b"x");
    volume.ok("ln -s VOL d/f link");
    volume.ok("chmod VOL 4755 d/f");
    assert_eq!(volume.stat("d/f")["mode"], "4755");
    volume.ok("chmod -R VOL go-rx d");
    assert_eq!(
        (volume.stat("d")["mode"].as_str(), volume.stat("d/f")["mode"].as_str()),
        (Some("0700"), Some("4700"))
    );
    volume.ok("chmod VOL -w d/f");
    assert_eq!(volume.stat("d/f")["mode"], "4500");
    volume.ok("chown VOL 1000:1001 link");
    let owner = |path| (volume.stat(path)["uid"].clone(), volume.stat(path)["gid"].clone());
    assert_eq!(owner("d/f"), (1000.into(), 1001.into()));
    assert_eq!(volume.stat("d/f")["mode"], "0500", "a new owner gets no set-user-id program");
    volume.ok("chown --no-dereference VOL :7 link");
    assert_eq!(owner("link").1, 7);
    volume.ok("chown -R VOL root:root d");
    assert_eq!(owner("d/f"), (0.into(), 0.into()));
    assert!(
        volume
            .failure("chown VOL no-such-user d")
            .starts_with("owner: \"no-such-user\" is not a user (")
    );
    assert!(volume.failure("chmod VOL u+z d").starts_with("mode: \"u+z\" is not a file mode ("));
    assert!(
        volume.failure("chmod VOL 700 d gone").starts_with("gone: no such file or directory (")
    );
}

#[test]
fn xattrs_are_set_shown_and_removed() {
    let volume = Volume::new();
    volume.write("f", b"x");
    volume.ok("setfattr -n user.one -v bar VOL f");
    volume.ok("setfattr -n trusted.two -v 0x00ff VOL f");
    volume.ok("setfattr -n user.none VOL f");
    let output = volume.ok("getfattr VOL f");
    assert_eq!(output, "# file: f\ntrusted.two=0x00ff\nuser.none=\"\"\nuser.one=\"bar\"\n\n");
    assert_eq!(volume.ok("getfattr -n user.one -e base64 VOL f"), "# file: f\nuser.one=0sYmFy\n\n");
    assert_eq!(volume.ok("getfattr -n user.one --only-values VOL f"), "bar");
    let report: Value = serde_json::from_str(&volume.ok("getfattr --json VOL f")).unwrap();
    assert_eq!(report[0]["xattrs"][2]["value"], "bar");
    volume.ok("setfattr -x user.one VOL f");
    assert!(
        volume.failure("setfattr -x user.one VOL f").starts_with("f: no such extended attribute")
    );
    assert!(
        volume.failure("setfattr -n color -v x VOL f").contains("is not in a known namespace (")
    );
    assert!(
        volume
            .failure("setfattr -n user.x -v 0x1 VOL f")
            .starts_with("--value: 0x1 is not a valid value (")
    );
    volume.ok(&format!("setfattr -n system.posix_acl_access -v {ACL} VOL f"));
    assert_eq!(volume.stat("f")["mode"], "0660", "the group bits of the mode are the ACL's mask");
}

#[test]
fn truncate_and_touch_change_sizes_and_times() {
    let volume = Volume::new();
    volume.write("f", &[7; 10_000]);
    volume.ok("truncate -s 5K VOL f new");
    volume.ok("truncate -s +1 VOL f");
    volume.ok("truncate -s -21 VOL f");
    assert_eq!((volume.cat("f"), volume.cat("new")), (vec![7; 5100], vec![0; 5120]));
    volume.ok("truncate -c -s 1 VOL gone");
    let refused = volume.run("truncate -s x VOL f").usage();
    assert!(refused.contains("--size: \"x\" is not a number"), "{refused}");
    volume.ok("mkdir VOL d");
    assert!(volume.failure("truncate -s 0 VOL f d").starts_with("d: is a directory ("));
    volume.ok("touch -d 2001-02-03T04:05:06.5Z VOL f made");
    volume.ok("touch -c -d @5 VOL gone");
    let mtime = volume.stat("f")["mtime"].clone();
    assert_eq!(mtime, serde_json::json!({ "secs": 981_173_106, "nanos": 500_000_000 }));
    assert_eq!(volume.paths(), ["/d", "/f", "/made", "/new"]);
    assert!(volume.failure("touch -d soon VOL f").starts_with("--date: \"soon\" is not a time ("));
}

#[test]
fn label_and_resize_change_the_volume_and_its_image() {
    let volume = Volume::new();
    let len = || fs::metadata(&volume.image).unwrap().len();
    volume.ok("filesystem label VOL new-name");
    assert_eq!(volume.ok("filesystem label VOL"), "new-name\n");
    let message = volume.failure(&format!("filesystem label VOL {}", "x".repeat(256)));
    assert!(message.starts_with("VOL: "), "{message}");
    volume.ok("filesystem resize VOL +100M");
    assert_eq!(len(), 356 << 20);
    volume.ok("filesystem resize VOL 1:300M");
    assert_eq!(len(), 300 << 20);
    volume.ok("filesystem resize --keep-file VOL -20M");
    assert_eq!(len(), 300 << 20);
    volume.ok("filesystem resize VOL max");
    let report: Value =
        serde_json::from_str(&volume.ok("filesystem resize --json VOL 1G")).unwrap();
    assert_eq!((&report["bytes_was"], &report["bytes"]), (&(300 << 20).into(), &(1 << 30).into()));
    let message = volume.failure("filesystem resize VOL 20M");
    assert!(message.contains("(choose at least the allocated size"), "{message}");
    assert_eq!(len(), 1 << 30);
    assert!(volume.failure("filesystem resize VOL 2:max").starts_with("size: no device 2 ("));
    let message = volume.failure(&format!("filesystem resize VOL {}", u64::MAX));
    assert!(message.starts_with("size: an image file has at most 8.00EiB ("), "{message}");
    volume.ok("filesystem sync VOL");
    assert!(volume.ok("trim VOL").ends_with(" trimmed\n"));
}

/// As mv(1) and cp(1): a file that the command has just made is not overwritten by its next one.
#[test]
fn two_files_of_one_name_are_not_moved_or_copied_over_each_other() {
    let volume = Volume::new();
    volume.ok("mkdir VOL a b dest");
    volume.write("a/x", b"first");
    volume.write("b/x", b"second");
    for verb in ["mv", "cp", "cp -n"] {
        let why = volume.failure(&format!("{verb} VOL a/x b/x dest"));
        assert!(why.starts_with("dest/x: two of the files would get this name ("), "{why}");
        assert_eq!((volume.cat("a/x"), volume.cat("b/x")), (b"first".into(), b"second".into()));
    }
    volume.write("dest/x", b"old");
    volume.ok("cp VOL a/x dest");
    volume.ok("mv VOL b/x dest");
    assert_eq!(volume.cat("dest/x"), b"second");
}

/// As cp(1) and mv(1): a name with a slash at its end is that of a directory.
#[test]
fn a_destination_with_a_slash_at_its_end_is_a_directory() {
    let volume = Volume::new();
    volume.write("one", b"1");
    volume.write("two", b"2");
    let host = volume.dir.path().join("host");
    fs::write(&host, "3").unwrap();
    for line in [
        "cp VOL one missing/",
        "mv VOL one missing/",
        "ln VOL one missing/",
        "ln -s VOL one missing/",
        "touch VOL missing/",
        "truncate -s 5 VOL missing/",
        "import VOL host missing/",
        "export VOL one missing/",
    ] {
        let why = volume.failure(line);
        assert!(why.starts_with("missing/: not a directory ("), "{line}: {why}");
    }
    let why = volume.feed("write VOL missing/", b"x").failure();
    assert!(why.contains("missing/: not a directory ("), "{why}");
    assert!(!volume.dir.path().join("missing").exists());
    volume.ok("mkdir VOL new/");
    volume.ok("mv VOL new renamed/");
    for line in ["mv --exchange VOL renamed/ two/", "mv VOL one two/", "rm VOL one/"] {
        let why = volume.failure(line);
        assert!(why.contains("/: not a directory ("), "{line}: {why}");
    }
    volume.ok("mv --exchange VOL one renamed");
    volume.ok("mv VOL two one/");
    assert_eq!(volume.paths(), ["/one", "/one/two", "/renamed"]);
}

/// Locks the image while it has another size than `bytes`, or returns `None` once `has_ended`.
fn lock_when_resized(image: &Path, bytes: u64, has_ended: &AtomicBool) -> Option<fs::File> {
    let file = fs::File::options().read(true).write(true).open(image).unwrap();
    while !has_ended.load(Ordering::SeqCst) {
        if file.metadata().unwrap().len() == bytes {
            continue;
        }
        let how = FlockOperation::NonBlockingLockExclusive;
        if fcntl_lock(&file, how).is_ok() {
            if file.metadata().unwrap().len() != bytes {
                return Some(file);
            }
            fcntl_lock(&file, FlockOperation::Unlock).unwrap();
        }
    }
    None
}

/// A process that has locked the image may have grown the volume in it.
#[test]
fn a_resize_changes_no_image_that_another_process_has_locked() {
    let volume = Volume::new();
    let len = || fs::metadata(&volume.image).unwrap().len();
    let mut bytes = len();
    loop {
        let has_ended = AtomicBool::new(false);
        let (locked, ran) = std::thread::scope(|scope| {
            let locking = scope.spawn(|| lock_when_resized(&volume.image, bytes, &has_ended));
            let ran = volume.run("filesystem resize VOL +4M");
            has_ended.store(true, Ordering::SeqCst);
            (locking.join().unwrap(), ran)
        });
        // The command may have resized the volume before the lock, and has ended well then.
        if locked.is_some() && ran.code == Some(1) {
            assert!(ran.err.contains("busy"), "{}", ran.err);
            assert_eq!(len(), bytes + (4 << 20));
            return;
        }
        bytes = len();
    }
}

#[test]
fn a_busy_volume_is_not_changed() {
    let volume = Volume::new();
    // A writer that waits for its stdin.
    let mut child = command();
    child.args(["write", volume.image.to_str().unwrap(), "f"]);
    let mut child = child.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(&vec![7; 5 << 20]).unwrap();
    let open_files = format!("/proc/{}/fd", child.id());
    let holds = || {
        let files = fs::read_dir(&open_files).unwrap().flatten();
        files.flat_map(|file| fs::read_link(file.path())).any(|file| file == volume.image)
    };
    while !holds() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // It has opened the file, and locks it right after that.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let message = volume.failure("mkdir VOL busy");
    assert!(
        message.contains("busy") && message.ends_with("(unmount it, or wait until it is free)"),
        "{message}"
    );
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(volume.paths(), ["/f"]);
}

#[test]
fn cp_shares_the_data_of_files() {
    let volume = Volume::new();
    let data: Vec<u8> = (0..100_003_u32).map(|at| (at / 7).to_le_bytes()[0]).collect();
    volume.write("one", &data);
    volume.ok("chmod VOL 640 one");
    volume.ok("cp VOL one two");
    volume.ok("cp --reflink=always VOL one three");
    volume.ok("cp --reflink VOL one shared");
    volume.ok("cp --reflink=never VOL one other");
    volume.ok("mkdir VOL d");
    volume.ok("cp -p VOL one two d");
    for path in ["two", "three", "shared", "other", "d/one", "d/two"] {
        assert!(volume.cat(path) == data, "{path}");
    }
    assert_eq!(volume.stat("d/one")["mode"], "0640");
    let exclusive = |path: &str| {
        let line = format!("filesystem du --json VOL {path}");
        let du: Value = serde_json::from_str(&volume.ok(&line)).unwrap();
        du[0]["exclusive_bytes"].as_u64().unwrap()
    };
    assert_eq!((exclusive("two"), exclusive("other")), (0, 102_400));
    // A change of the original leaves the copies.
    volume.feed("write VOL one --offset 5000", b"changed").ok();
    assert!(volume.cat("two") == data && volume.cat("one") != data);
    // The destination is replaced, or kept.
    volume.write("two", b"short");
    volume.ok("cp VOL two three");
    assert_eq!(volume.cat("three"), b"short");
    assert!(volume.failure("cp -n VOL two three").starts_with("three: file exists ("));
    assert!(volume.failure("cp VOL two two").contains("is the same file"));
    assert!(volume.failure("cp VOL d e").starts_with("d: is a directory"));
    assert!(volume.failure("cp VOL one two gone").contains("several files cannot be copied"));
    assert!(volume.failure("cp VOL gone x").starts_with("gone: no such file or directory ("));
}

/// The data of small files is written by the last sync, which commits although some was lost.
#[test]
fn an_import_whose_data_cannot_be_written_changes_nothing() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let source = scratch.path().join("src");
    fs::create_dir(&source).unwrap();
    let mut random = fs::File::open("/dev/urandom").unwrap();
    for number in 0..60 {
        let mut data = vec![0; 40_000];
        std::io::Read::read_exact(&mut random, &mut data).unwrap();
        fs::write(source.join(format!("f{number}")), data).unwrap();
    }
    let image = scratch.path().join("a.img");
    let image = image.to_str().unwrap();
    let program = command().get_program().to_str().unwrap().to_owned();
    let mut failed = 0;
    // Writes after this many KiB of the image fail with EFBIG: data, or metadata, or both.
    for limit in (5600..9600).step_by(200) {
        drop(fs::remove_file(image));
        butternut(&["mkfs", "-q", "--mixed", "--size", "64M", image]).ok();
        let script = format!(
            "trap '' XFSZ; ulimit -f {limit}; exec {program} import {image} {} /",
            source.display()
        );
        let ran = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        let listed = butternut(&["ls", image, "/"]).ok();
        if ran.status.success() {
            assert_eq!(listed, "src\n");
            continue;
        }
        failed += 1;
        let why = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(listed, "", "limit {limit}: the import failed ({why}), and is in the volume");
    }
    assert!(failed > 5, "{failed}");
}

/// The owner of the directory of an image sees that it is opened (inotify), and replaces it.
#[test]
fn a_resize_changes_no_file_that_replaces_the_image_after_it_was_opened() {
    for _ in 0..20 {
        let volume = Volume::new();
        let victim = volume.dir.path().join("victim");
        fs::write(&victim, "victim").unwrap();
        let mut child = command()
            .args(["filesystem", "resize", volume.image.to_str().unwrap(), "+4M"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let fds = format!("/proc/{}/fd", child.id());
        let is_image =
            |fd: fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|opened| opened == volume.image);
        let has_opened = || fs::read_dir(&fds).is_ok_and(|all| all.flatten().any(is_image));
        while child.try_wait().unwrap().is_none() && !has_opened() {}
        let moved = volume.dir.path().join("moved");
        fs::rename(&volume.image, &moved).unwrap();
        std::os::unix::fs::symlink(&victim, &volume.image).unwrap();
        child.wait().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"victim");
        // It is checked at the end.
        fs::rename(moved, &volume.image).unwrap();
    }
}
