//! Crafted volumes that could exhaust a program that walks over them. Every command ends, in
//! bounded memory.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use butternut::format::checksum::ChecksumKind;
use butternut::{DevicePath, Filesystem, MountOptions, NewInode, RenameFlags};

use super::command::{butternut, shell};

const NODE_BYTES: usize = 16384;
const HEADER_BYTES: usize = 101;
const ITEM_BYTES: usize = 25;
const INODE_ITEM: u8 = 1;
const EXTENT_DATA: u8 = 108;
const DIR_ITEM: u8 = 84;
const DIR_INDEX: u8 = 96;
/// The type of a regular file in a directory entry.
const FILE_TYPE: u8 = 1;

/// Makes an empty volume, and fills it through the library.
pub(crate) fn volume(dir: &Path, fill: impl FnOnce(&Filesystem)) -> PathBuf {
    let image = dir.join("image");
    shell(&format!("truncate -s 256M {0}; mkfs.btrfs -q {0}", image.display()));
    let options = MountOptions::default().read_only(false);
    let filesystem = Filesystem::open(&[DevicePath::from(&image)], &options).unwrap();
    fill(&filesystem);
    filesystem.close().unwrap();
    image
}

pub(crate) fn new() -> NewInode {
    NewInode { permissions: 0o755, umask: 0, uid: 0, gid: 0 }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// Calls `change` with each leaf and the number of its items, and recomputes the checksums of the
/// leaves that it changed.
fn rewrite_leaves(image: &Path, mut change: impl FnMut(&mut [u8], usize) -> bool) {
    let mut bytes = fs::read(image).unwrap();
    let file = OpenOptions::new().write(true).open(image).unwrap();
    let fsid = bytes[65536 + 0x20..65536 + 0x30].to_vec();
    for at in (1 << 20..bytes.len()).step_by(NODE_BYTES) {
        let Some(block) = bytes.get_mut(at..at + NODE_BYTES) else { continue };
        if block[0x20..0x30] != fsid || block[100] != 0 {
            continue;
        }
        let items = u32::from_le_bytes(block[96..100].try_into().unwrap());
        if change(block, usize::try_from(items).unwrap()) {
            let digest = ChecksumKind::Crc32c.compute(&block[32..]);
            block[..32].copy_from_slice(&digest);
            file.write_all_at(block, at.try_into().unwrap()).unwrap();
        }
    }
}

/// Returns the key and the data of an item of a leaf.
fn item(block: &mut [u8], slot: usize) -> (&mut [u8], &mut [u8]) {
    let item = HEADER_BYTES + slot * ITEM_BYTES;
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
    let start = HEADER_BYTES + usize::try_from(word(item + 17)).unwrap();
    let end = start + usize::try_from(word(item + 21)).unwrap();
    let (head, data) = block.split_at_mut(start);
    (&mut head[item..item + 17], &mut data[..end - start])
}

/// Calls `change` with the key and the data of each item of each leaf, and recomputes the checksums
/// of the leaves that it changed.
pub(crate) fn rewrite_items(image: &Path, mut change: impl FnMut(&mut [u8], &mut [u8]) -> bool) {
    rewrite_leaves(image, |block, items| {
        let mut is_changed = false;
        for slot in 0..items {
            let (key, data) = item(block, slot);
            is_changed |= change(key, data);
        }
        is_changed
    });
}

/// An export that tried each sector of the extent would read for weeks.
#[test]
fn an_extent_that_is_longer_than_the_volume_is_not_exported() {
    const BYTES: u64 = 1 << 43;
    const INODE_SIZE_AT: usize = 16;
    const LENGTHS_AT: [usize; 3] = [8, 29, 45];
    let scratch = tempfile::tempdir().unwrap();
    let mut ino = 0;
    let image = volume(scratch.path(), |fs| {
        let id = fs.create(fs.root(), b"long", &new()).unwrap();
        fs.open_file(id).unwrap().write_at(0, &[7; 8192]).unwrap();
        let other = fs.create(fs.root(), b"other", &new()).unwrap();
        fs.open_file(other).unwrap().write_at(0, b"data").unwrap();
        ino = id.ino;
    });
    rewrite_items(&image, |key, data| {
        let places: &[usize] = match (number(&key[..8]), key[8]) {
            (objectid, INODE_ITEM) if objectid == ino => &[INODE_SIZE_AT],
            (objectid, EXTENT_DATA) if objectid == ino => &LENGTHS_AT,
            _ => return false,
        };
        for at in places {
            data[*at..at + 8].copy_from_slice(&BYTES.to_le_bytes());
        }
        true
    });
    let out = scratch.path().join("out");
    let ran = butternut(&["export", "-q", image.to_str().unwrap(), "/", out.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("the extent is longer than the volume"), "{}", ran.err);
    assert_eq!(fs::read(out.join("other")).unwrap(), b"data");
}

/// A tar program that extracts a symlink, and then files in a directory of its name, would write
/// outside. Once the lookup finds the symlink, and once the directory.
#[test]
fn an_archive_has_no_two_files_of_one_name() {
    for (kept, renamed) in [(&b"aa"[..], &b"bb"[..]), (b"bb", b"aa")] {
        let scratch = tempfile::tempdir().unwrap();
        let outside = scratch.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let image = volume(scratch.path(), |fs| {
            let target = outside.to_str().unwrap().as_bytes();
            fs.symlink(fs.root(), b"aa", target, &new()).unwrap();
            let dir = fs.mkdir(fs.root(), b"bb", &new()).unwrap();
            let file = fs.create(dir, b"file", &new()).unwrap();
            fs.open_file(file).unwrap().write_at(0, b"data").unwrap();
        });
        rewrite_items(&image, |key, data| {
            let is_renamed = key[8] == DIR_INDEX && data[30..] == *renamed;
            if is_renamed {
                data[30..].copy_from_slice(kept);
            }
            is_renamed
        });
        let ran = butternut(&["export", "-q", "--tar", image.to_str().unwrap(), "/", "-"]);
        assert_eq!(ran.code, Some(1), "{}", ran.err);
        let want = "the directory entry is damaged: the directory has another file of this name";
        assert!(ran.err.contains(want), "{}", ran.err);
        let archive = scratch.path().join("archive.tar");
        fs::write(&archive, &ran.bytes).unwrap();
        let listed = shell(&format!("tar -tf {} | sort", archive.display()));
        let want = if kept == b"aa" { "./\n./aa\n" } else { "./\n./bb/\n./bb/file\n" };
        assert_eq!(listed, want);
    }
}

/// Makes directories 40 levels deep. Each contains the next one twice, as "a" and as "b".
fn directories_with_two_names(dir: &Path) -> PathBuf {
    let mut twins = Vec::new();
    let image = volume(dir, |fs| {
        let mut at = fs.root();
        for _ in 0..40 {
            let first = fs.mkdir(at, b"a", &new()).unwrap();
            fs.mkdir(at, b"b", &new()).unwrap();
            twins.push((at.ino, first.ino));
            at = first;
        }
    });
    rewrite_items(&image, |key, data| {
        let is_entry = key[8] == DIR_ITEM || key[8] == DIR_INDEX;
        let twin = twins.iter().find(|(above, _)| *above == number(&key[..8]));
        let Some((_, child)) = twin.filter(|_| is_entry && data[30..] == *b"b") else {
            return false;
        };
        data[..8].copy_from_slice(&child.to_le_bytes());
        true
    });
    image
}

#[test]
fn a_directory_with_two_names_is_walked_once() {
    let scratch = tempfile::tempdir().unwrap();
    let image = directories_with_two_names(scratch.path());
    let (image, out) = (image.to_str().unwrap(), scratch.path().join("out"));
    let out = out.to_str().unwrap();
    for words in [
        vec!["find", image, "/"],
        vec!["ls", "-R", image, "/"],
        vec!["filesystem", "du", image, "/"],
        vec!["export", "-q", image, "/", out],
    ] {
        let ran = butternut(&words);
        assert_eq!(ran.code, Some(1), "{words:?}: {}", ran.err);
        assert!(ran.err.contains("or has two names"), "{words:?}: {}", ran.err);
        assert!(ran.out.lines().count() < 1000, "{words:?}");
    }
}

/// Its contents would be missing from an export that reports success.
#[test]
fn an_export_reports_a_directory_that_its_entry_calls_a_file() {
    let scratch = tempfile::tempdir().unwrap();
    let image = volume(scratch.path(), |fs| {
        let dir = fs.mkdir(fs.root(), b"lost", &new()).unwrap();
        fs.create(dir, b"inside", &new()).unwrap();
        fs.create(fs.root(), b"other", &new()).unwrap();
    });
    rewrite_items(&image, |key, data| {
        let is_entry = key[8] == DIR_ITEM || key[8] == DIR_INDEX;
        let is_lost = is_entry && data[30..] == *b"lost";
        if is_lost {
            data[29] = FILE_TYPE;
        }
        is_lost
    });
    let out = scratch.path().join("out");
    let ran = butternut(&["export", "-q", image.to_str().unwrap(), "/", out.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let said = "lost: is a directory, and its directory entry has another type";
    assert!(ran.err.contains(said), "{}", ran.err);
    assert!(out.join("other").is_file());
}

#[test]
fn the_largest_directory_index_is_rejected() {
    let scratch = tempfile::tempdir().unwrap();
    for index in [u64::MAX, u64::MAX - 1, i64::MAX.unsigned_abs()] {
        let dir = tempfile::tempdir_in(scratch.path()).unwrap();
        let image = volume(dir.path(), |fs| {
            fs.create(fs.root(), b"first", &new()).unwrap();
            fs.create(fs.root(), b"last", &new()).unwrap();
        });
        rewrite_items(&image, |key, data| {
            let is_last = key[8] == DIR_INDEX && data[30..] == *b"last";
            if is_last {
                key[9..17].copy_from_slice(&index.to_le_bytes());
            }
            is_last
        });
        let ran = butternut(&["ls", image.to_str().unwrap(), "/"]);
        assert!(ran.err.contains("dir index: have"), "{}", ran.err);
        let devices = [DevicePath::from(&image)];
        let fs = Filesystem::open(&devices, &MountOptions::default()).unwrap();
        let mut cookie = 0;
        let mut names = 0;
        // As a mount lists: one entry per call, continued at its cookie.
        while let Some(Ok(entry)) = fs.read_dir(fs.root(), cookie).unwrap().next() {
            (cookie, names) = (entry.cookie, names + 1);
            assert!(names < 10, "the listing does not end");
        }
    }
}

/// Makes nested directories with a file in the last one.
fn deep_directories(dir: &Path, name: &str, levels: usize) -> PathBuf {
    volume(dir, |fs| {
        let mut at = fs.root();
        for _ in 0..levels {
            at = fs.mkdir(at, name.as_bytes(), &new()).unwrap();
        }
        fs.create(at, b"leaf", &new()).unwrap();
    })
}

/// Their paths, of up to 1 MiB each, would take gigabytes.
#[test]
fn deep_trees_with_long_names_are_exported_in_bounded_memory() {
    let scratch = tempfile::tempdir().unwrap();
    let image = deep_directories(scratch.path(), &"n".repeat(255), 4000);
    let (program, out) = (env!("CARGO_BIN_EXE_butternut"), scratch.path().join("out"));
    let (image, out) = (image.display(), out.display());
    shell(&format!(
        "ulimit -v 2000000; {program} export -q --threads 2 {image} / {out}
         {program} find --name leaf {image} / | wc -c | grep -q '^10[0-9]*$'
         rm -rf {out}"
    ));
}

#[test]
fn deep_trees_with_long_names_are_changed_in_bounded_memory() {
    let scratch = tempfile::tempdir().unwrap();
    let name = "n".repeat(255);
    let image = deep_directories(scratch.path(), &name, 4000);
    let (program, image) = (env!("CARGO_BIN_EXE_butternut"), image.display());
    for change in [format!("chmod -R {image} 700"), format!("chown -R {image} 7:7")] {
        shell(&format!("ulimit -v 1500000; {program} {change} /{name}"));
    }
    let left = shell(&format!(
        "ulimit -v 1500000; {program} rm -r {image} /{name}; {program} ls {image} /"
    ));
    assert_eq!(left, "");
}

#[test]
fn directories_that_are_too_deep_are_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let image = deep_directories(scratch.path(), "n", 4100);
    for words in [&["ls", "-R"][..], &["find"]] {
        let ran = butternut(&[words, &[image.to_str().unwrap(), "/"]].concat());
        assert_eq!(ran.code, Some(1), "{words:?}");
        assert!(ran.err.ends_with("/n: name too long\n"), "{words:?}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{words:?}: {}", ran.err);
    }
}

/// A walk that entered the directory again would read its entries 4,096 times.
#[test]
fn a_directory_inside_itself_is_not_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let mut ino = 0;
    let image = volume(scratch.path(), |fs| {
        let dir = fs.mkdir(fs.root(), b"dir", &new()).unwrap();
        fs.mkdir(dir, b"self", &new()).unwrap();
        for number in 0..100 {
            fs.create(dir, format!("{number}").as_bytes(), &new()).unwrap();
        }
        ino = dir.ino;
    });
    rewrite_items(&image, |key, data| {
        let is_entry = key[8] == DIR_ITEM || key[8] == DIR_INDEX;
        let is_it = is_entry && number(&key[..8]) == ino && data[30..] == *b"self";
        if is_it {
            data[..8].copy_from_slice(&ino.to_le_bytes());
        }
        is_it
    });
    let image = image.to_str().unwrap();
    for words in [
        vec!["rm", "-r", image, "/dir"],
        vec!["chmod", "-R", image, "700", "/dir"],
        vec!["chown", "-R", image, "7", "/dir"],
    ] {
        let ran = butternut(&words);
        assert_eq!(ran.code, Some(1), "{words:?}: {}", ran.err);
        assert!(ran.err.contains("dir/self: the directory is inside itself"), "{}", ran.err);
    }
    assert_eq!(butternut(&["ls", image, "/dir"]).out.lines().count(), 101);
}

/// 20,000 links under 1,000 directories with long names: their paths would take gigabytes.
#[test]
fn paths_of_a_file_with_many_deep_links_are_bounded() {
    let scratch = tempfile::tempdir().unwrap();
    let mut ino = 0;
    let image = volume(scratch.path(), |fs| {
        let mut at = fs.root();
        for _ in 0..1000 {
            at = fs.mkdir(at, &[b'n'; 255], &new()).unwrap();
        }
        let file = fs.create(at, b"first", &new()).unwrap();
        for number in 0..20_000 {
            fs.link(file, at, format!("{number}").as_bytes()).unwrap();
        }
        ino = file.ino;
    });
    let (program, image) = (env!("CARGO_BIN_EXE_butternut"), image.display());
    let output = shell(&format!(
        "ulimit -v 1500000; {program} inspect inode-resolve {ino} {image} 2>&1 || echo ended $?"
    ));
    assert!(output.contains("bytes in the paths of one inode: more than"), "{output}");
    assert!(output.ends_with("ended 1\n"), "{output}");
}

/// Inode numbers go up to 2^64 - 257; the kernel assigns the largest one plus 1.
#[test]
fn the_largest_inode_numbers_work() {
    const LARGE: u64 = (1 << 63) + 256;
    let scratch = tempfile::tempdir().unwrap();
    let mut ino = 0;
    let image = volume(scratch.path(), |fs| {
        ino = fs.mkdir(fs.root(), b"dir", &new()).unwrap().ino;
    });
    rewrite_items(&image, |key, data| {
        let is_entry = key[8] == DIR_ITEM || key[8] == DIR_INDEX;
        if is_entry && data.ends_with(b"dir") && number(&data[..8]) == ino {
            data[..8].copy_from_slice(&LARGE.to_le_bytes());
            return true;
        }
        let is_it = number(&key[..8]) == ino;
        if is_it {
            key[..8].copy_from_slice(&LARGE.to_le_bytes());
        }
        is_it
    });
    let image = image.to_str().unwrap();
    shell(&format!("btrfs check {image} 2>&1"));
    for words in [
        vec!["mkdir", image, "/dir/new"],
        vec!["chmod", image, "700", "/dir"],
        vec!["mkdir", image, "/other"],
        vec!["mv", image, "/dir/new", "/other/moved"],
    ] {
        let ran = butternut(&words);
        assert_eq!(ran.code, Some(0), "{words:?}: {}", ran.err);
    }
    assert_eq!(butternut(&["ls", image, "/other"]).out, "moved\n");
    shell(&format!("btrfs check {image} 2>&1"));
}

/// Set-user-id bits, capabilities, trusted attributes and devices are exported only on request.
#[test]
fn an_export_as_root_creates_privileged_files_only_on_request() {
    if !super::image::kernel_tests_enabled(
        "an_export_as_root_creates_privileged_files_only_on_request",
    ) {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = scratch.path().display();
    shell(&format!(
        "cd {dir}; truncate -s 256M img; mkfs.btrfs -q img; mkdir mnt; mount -o loop img mnt
         trap 'cd /; umount {dir}/mnt' EXIT
         cd mnt; chown 1234:1234 .; chmod 777 .
         cp /bin/true tool; chown 0:0 tool; chmod 6755 tool
         setfattr -n security.capability -v 0x0100000200400000000000000000000000000000 tool
         setfattr -n trusted.key -v value tool; setfattr -n user.key -v value tool
         mknod disk b 7 0; mknod null c 1 3; mkfifo pipe; ln null null2"
    ));
    let image = scratch.path().join("img").display().to_string();
    let listing = |out: &str| {
        shell(&format!(
            "cd {dir}/{out}; find . -mindepth 1 -printf '%p %y %m\\n' | sort
             getfattr -d -m - tool 2>/dev/null | grep = | cut -d= -f1 | tr '\\n' ' '"
        ))
    };
    let export = |more: &[&str], out: &str| {
        fs::create_dir(scratch.path().join(out)).unwrap();
        shell(&format!("chmod 700 {dir}/{out}"));
        let place = scratch.path().join(out).display().to_string();
        let mut words = vec!["export", "-q"];
        words.extend(more);
        words.extend([image.as_str(), "/", place.as_str()]);
        let ran = butternut(&words);
        let owner = shell(&format!("stat -c '%u %a' {place}"));
        assert_eq!(owner.trim(), "0 700", "an existing directory keeps its owner and mode");
        ran
    };
    let ran = export(&["--no-owner"], "none");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(listing("none"), "./pipe p 644\n./tool f 755\nuser.key ");
    let ran = export(&[], "owners");
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("devices not kept, 3 in all"), "{}", ran.err);
    let kept = "./pipe p 644\n./tool f 6755\nsecurity.capability trusted.key user.key ";
    assert_eq!(listing("owners"), kept);
    let ran = export(&["--devices"], "devices");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(listing("devices").contains("./disk b 644\n./null c 644\n./null2 c 644\n"));
    assert_eq!(butternut(&["export", "--no-owner", "--devices", &image, "/", "x"]).code, Some(2));
}

/// A file that exists under the name of the first copy gets no link.
#[test]
fn an_export_links_only_to_files_that_it_created() {
    let scratch = tempfile::tempdir().unwrap();
    let image = volume(scratch.path(), |fs| {
        let id = fs.create(fs.root(), b"a", &new()).unwrap();
        fs.link(id, fs.root(), b"b").unwrap();
    });
    let out = scratch.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("a"), "mine").unwrap();
    let ran = butternut(&["export", "-q", image.to_str().unwrap(), "/", out.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert_eq!(fs::read(out.join("a")).unwrap(), b"mine");
    assert_eq!(fs::read(out.join("b")).unwrap(), b"");
}

/// Entries without an index are found by name, and no listing shows them.
#[test]
fn a_directory_whose_entries_have_no_index_is_removed_as_the_message_says() {
    let scratch = tempfile::tempdir().unwrap();
    let image = volume(scratch.path(), |fs| {
        let root = fs.root();
        fs.create(root, b"a", &new()).unwrap();
        let nested = fs.mkdir(root, b"b", &new()).unwrap();
        fs.create(nested, b"listed", &new()).unwrap();
        // The largest inode number, so that the index of its last entry is the last item.
        let dir = fs.mkdir(root, b"dir", &new()).unwrap();
        fs.rename((root, b"a"), (dir, b"listed"), RenameFlags::default()).unwrap();
        fs.rename((root, b"b"), (dir, b"hidden"), RenameFlags::default()).unwrap();
    });
    rewrite_leaves(&image, |block, items| {
        let Some(last) = items.checked_sub(1) else { return false };
        let (key, data) = item(block, last);
        let is_it = key[8] == DIR_INDEX && data[30..] == *b"hidden";
        if is_it {
            block[96..100].copy_from_slice(&u32::try_from(last).unwrap().to_le_bytes());
        }
        is_it
    });
    let image = image.to_str().unwrap();
    assert_eq!(butternut(&["ls", image, "/dir"]).ok(), "listed\n");
    let message = butternut(&["rm", "-r", image, "/dir"]).failure();
    assert!(message.contains("/dir: the directory is damaged: it has entries"), "{message}");
    assert!(message.contains("`butternut rm -r` removes each by its path"), "{message}");
    let dump = butternut(&["inspect", "dump-tree", image]).ok();
    assert!(dump.contains("name: hidden"), "{dump}");
    butternut(&["rm", "-r", image, "/dir/hidden"]).ok();
    butternut(&["rm", "-r", image, "/dir"]).ok();
    assert_eq!(butternut(&["ls", image, "/"]).ok(), "");
}

/// An inline extent of more than one sector, as only a crafted volume has, reads as its bytes. A
/// clone has the same bytes, or fails.
#[test]
fn a_clone_of_an_overlong_inline_extent_has_its_bytes_or_fails() {
    let scratch = tempfile::tempdir().unwrap();
    let whole = [vec![b'A'; 4096], vec![b'B'; 4096]].concat();
    let mut packed = flate(&whole); // zlib stream of `whole`, some 40 bytes
    let mut ino = 0;
    let image = volume(scratch.path(), |fs| {
        let id = fs.create(fs.root(), b"long", &new()).unwrap();
        fs.open_file(id).unwrap().write_at(0, &vec![0x55; packed.len()]).unwrap();
        ino = id.ino;
    });
    rewrite_items(&image, |key, data| match (number(&key[..8]), key[8]) {
        (objectid, INODE_ITEM) if objectid == ino => {
            data[16..24].copy_from_slice(&8000_u64.to_le_bytes());
            true
        }
        (objectid, EXTENT_DATA) if objectid == ino => {
            data[8..16].copy_from_slice(&8192_u64.to_le_bytes());
            data[16] = 1;
            data[21..].copy_from_slice(&packed);
            true
        }
        _ => false,
    });
    packed.clear();
    let image = image.to_str().unwrap();
    assert_eq!(butternut(&["cat", image, "long"]).bytes, whole[..8000]);
    let ran = butternut(&["cp", image, "long", "copy"]);
    if ran.code == Some(0) {
        assert_eq!(butternut(&["cat", image, "copy"]).bytes, whole[..8000]);
    }
}

/// Python is there for other tests, too.
fn flate(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut python = std::process::Command::new("python3")
        .args([
            "-c",
            "import sys,zlib; sys.stdout.buffer.write(zlib.compress(sys.stdin.buffer.read(), 9))",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(bytes).unwrap();
    python.wait_with_output().unwrap().stdout
}
