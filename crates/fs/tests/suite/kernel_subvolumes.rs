//! Subvolumes, snapshots and deletions by Butternut and by the kernel, in turns: after each turn of
//! Butternut, `btrfs check` finds no error, and the kernel's mount shows the same contents.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

use crate::kernel_compare::compare;
use crate::kernel_image::{KernelImage, kernel_is_here, run};
use butternut::format::stream::{Command, StreamVersion};
use butternut::format::uuid::Uuid;
use butternut::receive::{ReceiveReport, StreamEnd, StreamReader};
use butternut::{
    DevicePath, FIRST_ENTRY, FileId, Filesystem, Follow, MountOptions, NewInode, RecursiveSnapshot,
    RenameFlags, Result, SnapshotAccess, TOP_LEVEL,
};
use butternut_sys::subvolume_calls as calls;
use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

fn open(image: &KernelImage, read_only: bool) -> Filesystem {
    let options = MountOptions::default().read_only(read_only).commit_seconds(0);
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    Filesystem::open(&devices, &options).unwrap()
}

/// Runs `btrfs check` and the kernel on the volume, and the kernel's scrub.
fn judge(image: &KernelImage) {
    let path = image.devices[0].to_string_lossy().into_owned();
    run("btrfs", &["check", "--check-data-csum", &path]);
    let mount = image.mount("ro");
    run("btrfs", &["scrub", "start", "-Br", &mount.path().to_string_lossy()]);
    let filesystem = open(image, true);
    compare(&filesystem, filesystem.root(), mount.path());
}

fn subvolume(filesystem: &Filesystem, path: &str) -> u64 {
    let id = filesystem.resolve(path.as_bytes(), Follow::Last).unwrap();
    assert!(id.is_subvolume_root(), "{path}");
    id.subvolume
}

fn write(filesystem: &Filesystem, path: &str, bytes: &[u8]) {
    let new = NewInode { permissions: 0o644, umask: 0, uid: 1000, gid: 100 };
    let file = filesystem.open_path(path.as_bytes());
    let file = file.unwrap_or_else(|_| filesystem.create_path(path.as_bytes(), &new).unwrap());
    file.truncate(0).unwrap();
    file.write_at(0, bytes).unwrap();
}

/// A tree of several levels, with data extents of all kinds.
const MANY_FILES: &str = "
btrfs -q subvolume create big
for i in $(seq 3000); do echo $i > big/small$i; done
for i in $(seq 300); do head -c $((i * 500)) /dev/urandom > big/file$i; done
long=$(head -c 1500 /dev/zero | tr '\\0' x)
for i in $(seq 700); do setfattr -n user.long -v $long big/small$i; done
cp --reflink=always big/file300 big/clone
mkdir out
sync
";

#[test]
fn a_rich_volume_gets_subvolumes_and_snapshots() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", include_str!("../kernel_image/rich.sh"));
    let filesystem = open(&image, false);
    let root = filesystem.root();
    let new = NewInode { permissions: 0o750, umask: 0, uid: 1000, gid: 100 };
    filesystem.create_subvolume(root, b"ours", &new).unwrap();
    write(&filesystem, "ours/file", &vec![7; 100_000]);
    let ours = FileId::root_of(subvolume(&filesystem, "ours"));
    for (number, source) in ["sub", "snap", "snapro", "topsnap", "own", "ours"].iter().enumerate() {
        let access =
            if number % 2 == 0 { SnapshotAccess::ReadOnly } else { SnapshotAccess::ReadWrite };
        let source = subvolume(&filesystem, source);
        filesystem.snapshot(source, ours, format!("of {number}").as_bytes(), access).unwrap();
    }
    filesystem.snapshot(TOP_LEVEL, root, b"all", SnapshotAccess::ReadWrite).unwrap();
    write(&filesystem, "all/noise", &vec![1; 500_000]);
    write(&filesystem, "dir/f1", b"changed");
    write(&filesystem, "ours/of 1/a/b/c/new", b"new");
    let moves = [((ours, "of 5"), (root, "out")), ((root, "all"), (root, "everything"))];
    for ((from, name), (to, new_name)) in moves {
        let flags = RenameFlags::default();
        filesystem.rename((from, name.as_bytes()), (to, new_name.as_bytes()), flags).unwrap();
    }
    filesystem.close().unwrap();
    judge(&image);
    {
        let mount = image.mount("rw");
        let script = format!(
            "set -e; cd '{}'\n\
             btrfs subvolume show 'ours/of 0' | grep -q readonly\n\
             uuid() {{ btrfs subvolume show \"$1\" | grep -P \"^\\t$2\" | awk '{{print $NF}}'; }}\n\
             test \"$(uuid 'ours/of 0' 'Parent UUID')\" = \"$(uuid sub UUID)\"\n\
             mv out ours/back; mv everything all\n\
             echo kernel > 'ours/of 1/kernel'; rm -r all/dir\n\
             btrfs -q subvolume snapshot all ours/by_kernel\n\
             btrfs -q subvolume delete all\n\
             btrfs subvolume sync .",
            mount.path().display()
        );
        run("bash", &["-c", &script]);
    }
    let filesystem = open(&image, false);
    filesystem.delete_subvolume(ours, b"by_kernel").unwrap();
    filesystem.delete_subvolume(ours, b"of 3").unwrap();
    filesystem.clean_subvolumes().unwrap();
    filesystem.close().unwrap();
    judge(&image);
}

/// Subvolumes inside subvolumes, many in one directory, and data that they share.
const NESTED: &str = "
btrfs -q subvolume create top
mkdir -p top/dir/deep
btrfs -q subvolume create top/a; btrfs -q subvolume create top/dir/deep/b
btrfs -q subvolume create top/a/c; btrfs -q subvolume create top/a/c/d
for i in $(seq 40); do btrfs -q subvolume create top/a/many$i; echo $i > top/a/many$i/file; done
for dir in top top/a top/dir/deep/b top/a/c top/a/c/d; do
    for i in $(seq 300); do echo $dir $i > $dir/small$i; done
    head -c 3M /dev/urandom > $dir/large; setfattr -n user.dir -v $dir $dir
    cp --reflink=always $dir/large $dir/clone
done
cp --reflink=always top/large top/a/c/d/of_top
btrfs -q subvolume snapshot -r top/a/c top/dir/snap
mkdir out; sync
";

#[test]
fn recursive_snapshots_are_sound_and_the_kernel_changes_them() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", NESTED);
    let filesystem = open(&image, false);
    let (root, top) = (filesystem.root(), subvolume(&filesystem, "top"));
    let inside = FileId::root_of(subvolume(&filesystem, "top/a/c"));
    write(&filesystem, "top/a/c/d/new", &vec![9; 200_000]);
    for (dir, name, access) in [
        (root, "ro", SnapshotAccess::ReadOnly),
        (inside, "inside", SnapshotAccess::ReadWrite),
        (root, "rw", SnapshotAccess::ReadWrite),
    ] {
        let options = RecursiveSnapshot::new(access);
        filesystem.snapshot_recursive(top, dir, name.as_bytes(), options).unwrap();
        write(&filesystem, &format!("top/a/small{}", name.len()), name.as_bytes());
    }
    write(&filesystem, "rw/a/c/d/small7", &[1; 9000]);
    write(&filesystem, "rw/a/c/inside/a/large", &[2; 5000]);
    filesystem.close().unwrap();
    judge(&image);
    {
        let mount = image.mount("rw,commit=1");
        let script = format!(
            "set -e; cd '{}'\n\
             diff -r --no-dereference top/dir/deep/b ro/dir/deep/b\n\
             diff -r --no-dereference top/a/c/d ro/a/c/d\n\
             grep -q 'top/a/c/d 7' ro/a/c/d/small7\n\
             btrfs subvolume show ro/a/c/d | grep -q readonly\n\
             if touch ro/a/c/d/x 2> /dev/null; then exit 1; fi\n\
             test $(btrfs subvolume list . | grep -c ' path ro') = 46\n\
             uuid() {{ btrfs subvolume show \"$1\" | grep -P \"^\\t$2\" | awk '{{print $NF}}'; }}\n\
             test \"$(uuid ro/a/c/d 'Parent UUID')\" = \"$(uuid top/a/c/d UUID)\"\n\
             test \"$(getfattr -n user.dir --only-values rw/a/c)\" = top/a/c\n\
             echo kernel > rw/a/c/d/kernel; mv rw/a/c/d rw/moved; rm rw/a/large\n\
             btrfs -q subvolume delete rw/moved rw/a/many3\n\
             btrfs -q subvolume snapshot -r rw/a/c by_kernel\n\
             btrfs -q send ro/a/c/d | btrfs -q receive out\n\
             diff -r --no-dereference ro/a/c/d out/d\n\
             btrfs subvolume sync .; btrfs -q filesystem defragment -r top/a; sync\n\
             btrfs -q balance start --full-balance .",
            mount.path().display()
        );
        run("bash", &["-c", &script]);
    }
    judge(&image);
    let filesystem = open(&image, false);
    let rw = subvolume(&filesystem, "rw");
    let all = RecursiveSnapshot::new(SnapshotAccess::ReadWrite);
    filesystem.snapshot_recursive(rw, filesystem.root(), b"again", all).unwrap();
    filesystem.close().unwrap();
    judge(&image);
}

#[test]
fn a_deletion_that_stops_goes_on_in_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    for steps in [2_u32, 30] {
        let image = KernelImage::make(1, &[], "", MANY_FILES);
        let filesystem = open(&image, false);
        let root = filesystem.root();
        let big = subvolume(&filesystem, "big");
        filesystem.snapshot(big, root, b"kept", SnapshotAccess::ReadOnly).unwrap();
        for number in 0..200 {
            write(&filesystem, &format!("big/small{}", number * 7 + 1), &[2; 6000]);
        }
        filesystem.delete_subvolume(root, b"big").unwrap();
        let left = Cell::new(steps);
        let goes_on = || left.replace(left.get().saturating_sub(1)) > 0;
        filesystem.clean_subvolumes_while(&goes_on).unwrap();
        filesystem.close().unwrap();
        judge(&image);
        {
            let mount = image.mount("rw");
            run("btrfs", &["subvolume", "sync", &mount.path().to_string_lossy()]);
        }
        judge(&image);
        let filesystem = open(&image, false);
        assert!(filesystem.clean_subvolumes().unwrap().is_empty());
        filesystem.delete_subvolume(root, b"kept").unwrap();
        filesystem.clean_subvolumes().unwrap();
        filesystem.close().unwrap();
        judge(&image);
    }
}

#[test]
fn a_deletion_of_the_kernel_goes_on_here() {
    if !kernel_is_here() {
        return;
    }
    let script = format!(
        "{MANY_FILES}
         btrfs -q subvolume snapshot big kept; rm kept/small1*; echo x > big/small5; sync
         btrfs -q subvolume snapshot -r big gone; btrfs -q subvolume delete big gone"
    );
    let image = KernelImage::make(1, &[], "", &script);
    let filesystem = open(&image, false);
    assert!(filesystem.clean_subvolumes().unwrap().is_empty());
    filesystem.close().unwrap();
    judge(&image);
    let filesystem = open(&image, true);
    assert_eq!(filesystem.subvolumes().unwrap().len(), 1);
}

/// What a subvolume says of the stream that it was received from.
fn received(filesystem: &Filesystem, path: &str) -> impl std::fmt::Debug + PartialEq {
    let info = filesystem.subvolume(subvolume(filesystem, path)).unwrap();
    let generations = (info.sent_generation, info.received_generation);
    (info.received_uuid, generations, info.sent, info.received, info.read_only)
}

#[test]
fn a_snapshot_keeps_of_a_received_subvolume_what_the_kernel_keeps() {
    if !kernel_is_here() {
        return;
    }
    let script = "
        btrfs -q subvolume create src; echo 1 > src/file; btrfs -q subvolume snapshot -r src sent
        mkdir in; btrfs -q send sent | btrfs -q receive in
        btrfs -q subvolume snapshot in/sent kernel_rw
        btrfs -q subvolume snapshot -r in/sent kernel_ro";
    let image = KernelImage::make(1, &[], "", script);
    let filesystem = open(&image, false);
    let (root, source) = (filesystem.root(), subvolume(&filesystem, "in/sent"));
    for (name, access) in [("rw", SnapshotAccess::ReadWrite), ("ro", SnapshotAccess::ReadOnly)] {
        filesystem.snapshot(source, root, format!("ours_{name}").as_bytes(), access).unwrap();
    }
    filesystem.close().unwrap();
    let filesystem = open(&image, true);
    let device = image.devices[0].to_string_lossy().into_owned();
    let listed = run("btrfs", &["inspect-internal", "dump-tree", "-t", "uuid", &device]);
    for (name, times) in [("rw", 1), ("ro", 2)] {
        let (ours, kernels) = (format!("ours_{name}"), format!("kernel_{name}"));
        assert_eq!(received(&filesystem, &ours), received(&filesystem, &kernels), "{name}");
        for path in [ours, kernels] {
            let line = format!("subvol_id {}", subvolume(&filesystem, &path));
            let count = listed.lines().filter(|one| one.trim() == line).count();
            assert_eq!(count, times, "{path} in the UUID tree");
        }
    }
    drop(filesystem);
    judge(&image);
}

/// Directories whose mode, flags, properties and lists of access rights a new directory inherits.
const INHERITED: &str = "
mkdir acl sgid nocow zdir
setfacl -d -m u::rwx,g::r-x,o::--- acl
chgrp 100 sgid; chmod 2775 sgid
chattr +C nocow; chattr +c zdir
btrfs -q subvolume create zsub; mkdir zsub/nocow; chattr +C zsub/nocow
btrfs property set zsub compression zstd; mkdir zsub/plain zsub/lzo
btrfs property set zsub/lzo compression lzo
for dir in acl sgid nocow zdir zsub zsub/plain zsub/nocow zsub/lzo; do
    for mask in 022 077; do (umask $mask; btrfs -q subvolume create $dir/kernel$mask); done
done
";

#[test]
fn a_new_subvolume_inherits_what_the_kernel_lets_it_inherit() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", INHERITED);
    let filesystem = open(&image, false);
    let dirs = ["acl", "sgid", "nocow", "zdir", "zsub", "zsub/plain", "zsub/nocow", "zsub/lzo"];
    for dir in dirs {
        let at = filesystem.resolve(dir.as_bytes(), Follow::Last).unwrap();
        for umask in [0o22, 0o77] {
            let new = NewInode { permissions: 0o777, umask, uid: 0, gid: 0 };
            filesystem.create_subvolume(at, format!("ours{umask:03o}").as_bytes(), &new).unwrap();
        }
    }
    filesystem.close().unwrap();
    // The kernel adds the flag of the compression property when it reads an inode.
    let mount = image.mount("ro");
    let shown = |path: String| {
        let path = mount.path().join(path).display().to_string();
        let script = "stat -c '%a %u %g' \"$0\"; lsattr -d \"$0\" | cut -d' ' -f1
            getfattr -h -d -m - \"$0\" 2> /dev/null | grep -v '^#'; true";
        run("bash", &["-c", script, &path])
    };
    let differ: Vec<_> = dirs
        .iter()
        .flat_map(|dir| ["022", "077"].map(|umask| (dir, umask)))
        .map(|(dir, mask)| {
            (dir, shown(format!("{dir}/ours{mask}")), shown(format!("{dir}/kernel{mask}")))
        })
        .filter(|(_, ours, kernels)| ours != kernels)
        .collect();
    drop(mount);
    assert!(differ.is_empty(), "ours, the kernel's: {differ:#?}");
    judge(&image);
}

fn stream_of(name: &[u8], uuid: Uuid, file: &[u8]) -> Vec<u8> {
    let version = StreamVersion::One;
    let mut bytes = version.encode().to_vec();
    for command in [
        Command::Subvol { path: name, uuid, ctransid: 7 },
        Command::Mkfile { path: file, ino: 257 },
        Command::End,
    ] {
        command.encode(version, &mut bytes).unwrap();
    }
    bytes
}

fn resume(filesystem: &Filesystem, dir: &str, bytes: &[u8]) -> (Result<()>, ReceiveReport) {
    let dir = filesystem.resolve(dir.as_bytes(), Follow::Last).unwrap();
    let (mut reader, mut report) = (StreamReader::new(bytes), ReceiveReport::default());
    let end = StreamEnd::Input;
    let done = filesystem.receive_resumable(dir, &mut reader, end, 1 << 20, &mut report);
    (done, report)
}

/// Changes a subvolume of the kernel's mount as its owner can: the kernel keeps its received UUID.
fn change(subvolume: &Path) {
    let root = File::open(subvolume).unwrap();
    calls::set_read_only(root.as_fd(), false).unwrap();
    File::create(subvolume.join("evil")).unwrap();
    calls::set_read_only(root.as_fd(), true).unwrap();
}

fn snapshot_by_kernel(source: &Path, target: &Path) {
    let [source, target] = [source, target].map(|path| path.to_str().unwrap());
    run("btrfs", &["-q", "subvolume", "snapshot", "-r", source, target]);
}

/// Users of the kernel's btrfs can make nothing that counts as what an interrupted receive has
/// left, although the kernel keeps a received UUID and lets them set it.
#[test]
fn a_receive_goes_on_from_no_snapshot_that_the_kernel_has_changed_or_made() {
    if !kernel_is_here() {
        return;
    }
    let uuid = Uuid([7; 16]);
    let whole = stream_of(b"one", uuid, b"good");
    let image = KernelImage::make(1, &[], "", "mkdir kept changed snapshot received");
    let dirs = ["kept", "changed", "snapshot", "received"];
    let filesystem = open(&image, false);
    for dir in dirs {
        let (done, report) = resume(&filesystem, dir, &whole[..whole.len() - 4]);
        done.unwrap_err();
        assert_eq!(report.resumable, Some(2));
    }
    let kept = filesystem.resolve(b"kept", Follow::Last).unwrap();
    let entries = filesystem.read_dir(kept, FIRST_ENTRY).unwrap();
    let names: Vec<_> = entries.map(|entry| entry.unwrap().name).collect();
    assert_eq!(names.len(), 1);
    let name = String::from_utf8(names[0].clone()).unwrap();
    let left = filesystem.subvolume(subvolume(&filesystem, &format!("kept/{name}"))).unwrap();
    filesystem.close().unwrap();
    judge(&image);
    {
        let mount = image.mount("rw");
        let at = |dir: &str| mount.path().join(dir).join(&name);
        change(&at("changed"));
        change(&at("snapshot"));
        let other = mount.path().join("snapshot/other");
        snapshot_by_kernel(&at("snapshot"), &other);
        let delete =
            |path: &Path| run("btrfs", &["-q", "subvolume", "delete", path.to_str().unwrap()]);
        delete(&at("snapshot"));
        std::fs::rename(&other, at("snapshot")).unwrap();
        delete(&at("received"));
        let stream = image.devices[0].with_file_name("stream");
        std::fs::write(&stream, stream_of(b"marked", Uuid(left.received_uuid), b"evil")).unwrap();
        let received = mount.path().join("received");
        let [stream, target] = [&stream, &received].map(|path| path.to_str().unwrap());
        run("btrfs", &["-q", "receive", "-f", stream, target]);
        snapshot_by_kernel(&received.join("marked"), &at("received"));
    }
    let filesystem = open(&image, false);
    for dir in dirs {
        let path = format!("{dir}/{name}");
        if dir != "kept" {
            let made = filesystem.subvolume(subvolume(&filesystem, &path)).unwrap();
            assert_eq!((made.received_uuid, made.read_only), (left.received_uuid, true), "{dir}");
        }
        let (done, report) = resume(&filesystem, dir, &whole);
        done.unwrap();
        assert_eq!(report.subvolumes.len(), 1);
        assert_eq!(report.changed.len(), usize::from(dir != "kept"), "{dir}");
        assert_eq!(filesystem.resolve(path.as_bytes(), Follow::Last).is_ok(), dir != "kept");
        let one = FileId::root_of(subvolume(&filesystem, &format!("{dir}/one")));
        let entries = filesystem.read_dir(one, FIRST_ENTRY).unwrap();
        let names: Vec<_> = entries.map(|entry| entry.unwrap().name).collect();
        assert_eq!(names, [b"good"], "{dir}");
    }
    filesystem.close().unwrap();
    judge(&image);
}
