//! Owners of extents and space usage, compared with the results of btrfs-progs and the kernel for
//! the same mounted volume.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

use crate::kernel_image::{KernelImage, Mount, kernel_is_here, run};
use butternut::{
    DevicePath, DiskUsage, Error, ExtentKind, FIRST_ENTRY, FileId, FileKind, Filesystem, Follow,
    MountOptions, Subvolume,
};
use std::collections::BTreeSet;

const SCRIPT: &str = r"
btrfs -q subvolume create sub; btrfs -q subvolume create sub/inner; mkdir sub/dir
head -c 4000000 /dev/urandom > sub/dir/noise
cp --reflink=always sub/dir/noise sub/dir/clone
btrfs -q filesystem sync .
btrfs -q subvolume snapshot sub snap; btrfs -q subvolume snapshot -r snap snapsnap
# One file of each is written into: leaves part company, extents stay shared.
dd if=/dev/urandom of=sub/dir/noise bs=4096 count=5 seek=200 conv=notrunc status=none
dd if=/dev/urandom of=snap/dir/clone bs=4096 count=1 seek=1 conv=notrunc status=none
head -c 3000000 /dev/urandom > alone; mkdir many
for i in $(seq 400); do cp --reflink=always alone many/c$i; done
for i in $(seq 3000); do echo $i > many/f$i; done
btrfs -q filesystem sync .; btrfs -q subvolume snapshot . whole
xfs_io -f -c 'falloc 0 256k' -c 'pwrite 64k 8k' sub/pre 2>/dev/null || fallocate -l 256k sub/pre
yes text | head -c 900000 > packed; btrfs -q property set . compression zstd
yes more | head -c 900000 > packed2
cp --reflink=always packed2 packed3
for i in $(seq 5); do ln alone link$i; done
";

fn image() -> KernelImage {
    KernelImage::make(1, &["--nodesize", "4096"], "", SCRIPT)
}

fn open(image: &KernelImage) -> Filesystem {
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    let options = MountOptions::default().subvolume(Subvolume::Id(5));
    Filesystem::open(&devices, &options).unwrap()
}

fn at(mount: &Mount<'_>, path: &str) -> String {
    mount.path().join(path).to_string_lossy().into_owned()
}

/// Returns a few addresses in the extents of a file.
fn addresses(filesystem: &Filesystem, path: &str) -> Vec<u64> {
    let id = filesystem.resolve(path.as_bytes(), Follow::NotLast).unwrap();
    let file = filesystem.open_file(id).unwrap();
    let extents: Vec<_> = file.extents(0..file.len()).collect::<Result<_, _>>().unwrap();
    let mut addresses = Vec::new();
    for extent in extents {
        match extent.kind {
            ExtentKind::Regular { logical, disk_bytes, .. } => {
                addresses.extend([logical, logical + disk_bytes / 8192 * 4096]);
            }
            ExtentKind::Prealloc { logical } => addresses.push(logical),
            ExtentKind::Hole | ExtentKind::Inline { .. } | ExtentKind::Buffered => {}
        }
    }
    assert!(!addresses.is_empty(), "{path} has no extents");
    addresses
}

#[test]
fn owners_of_an_address_agree_with_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    let image = image();
    let filesystem = open(&image);
    let mount = image.mount("ro,subvolid=5");
    let files = ["sub/dir/noise", "snap/dir/clone", "whole/alone", "sub/pre", "packed", "packed2"];
    let mut most = 0;
    for logical in files.iter().flat_map(|path| addresses(&filesystem, path)) {
        for any_offset in [false, true] {
            let mut arguments = vec!["inspect-internal", "logical-resolve", "-P", "-s", "1048576"];
            arguments.extend(any_offset.then_some("-o"));
            let (address, top) = (logical.to_string(), at(&mount, ""));
            arguments.extend([address.as_str(), top.trim_end_matches('/')]);
            let output = run("btrfs", &arguments);
            let theirs: BTreeSet<String> = output.lines().map(str::to_owned).collect();
            let owners = filesystem.owners_of_logical(logical, any_offset).unwrap();
            let ours: BTreeSet<String> = owners
                .iter()
                .map(|o| format!("inode {} offset {} root {}", o.ino, o.offset, o.subvolume))
                .collect();
            assert_eq!(ours, theirs, "owners of {logical}, any offset: {any_offset}");
            most = most.max(ours.len());
        }
    }
    assert!(most > 800, "clones in a subvolume and its snapshot: only {most}");
}

#[test]
fn addresses_of_no_extent_and_of_tree_blocks_are_distinguished() {
    if !kernel_is_here() {
        return;
    }
    let image = image();
    let filesystem = open(&image);
    assert!(matches!(filesystem.owners_of_logical(1 << 50, false), Err(Error::NotFound)));
    let root = filesystem.inspect().tree_roots().unwrap()[0].logical;
    let error = filesystem.owners_of_logical(root.0, false).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert_eq!(filesystem.inspect().block_at(root).unwrap().logical(), root);
}

/// Returns the usage of a directory and everything below it.
fn usage_below(filesystem: &Filesystem, id: FileId) -> DiskUsage {
    let mut usage = filesystem.disk_usage(id).unwrap();
    if filesystem.stat(id).unwrap().kind == FileKind::Directory {
        for entry in filesystem.read_dir(id, FIRST_ENTRY).unwrap() {
            usage.add(&usage_below(filesystem, entry.unwrap().id));
        }
    }
    usage
}

#[test]
fn shared_and_exclusive_space_agree_with_filesystem_du() {
    if !kernel_is_here() {
        return;
    }
    let image = image();
    let filesystem = open(&image);
    let mount = image.mount("ro,subvolid=5");
    for path in ["sub", "snap", "snapsnap", "alone", "many", "packed", "packed2", "sub/pre"] {
        let output = run("btrfs", &["filesystem", "du", "--raw", "-s", &at(&mount, path)]);
        let line = output.lines().last().unwrap();
        let theirs: Vec<u64> =
            line.split_whitespace().take(3).map(|word| word.parse().unwrap_or(0)).collect();
        let id = filesystem.resolve(path.as_bytes(), Follow::NotLast).unwrap();
        let usage = usage_below(&filesystem, id);
        let ours = [usage.total_bytes, usage.exclusive_bytes, usage.set_shared_bytes()];
        assert_eq!(ours.as_slice(), theirs, "{path}: total, exclusive, set shared");
    }
}

#[test]
fn space_by_type_and_profile_agrees_with_filesystem_df() {
    if !kernel_is_here() {
        return;
    }
    let image = image();
    let filesystem = open(&image);
    let usage = filesystem.usage().unwrap();
    let mount = image.mount("ro");
    let output = run("btrfs", &["filesystem", "df", "-b", &at(&mount, "")]);
    let mut lines = output.lines();
    for group in &usage.groups {
        let name = ["Data, single", "System, DUP", "Metadata, DUP"]
            [usize::from(group.flags & 2 != 0) + 2 * usize::from(group.flags & 4 != 0)];
        let want = format!("{name}: total={}, used={}", group.total_bytes, group.used_bytes);
        assert_eq!(lines.next(), Some(want.as_str()));
    }
    let reserve = format!("GlobalReserve, single: total={}, used=0", usage.global_reserve_bytes);
    assert_eq!(lines.next(), Some(reserve.as_str()));
    let device = &usage.devices[0];
    let in_chunks: u64 = device.allocated.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(in_chunks, device.allocated_bytes, "chunks and device item agree");
    assert_eq!(usage.groups.iter().map(|group| group.raw_bytes).sum::<u64>(), in_chunks);
}

#[test]
fn subvolumes_are_listed_with_their_paths() {
    if !kernel_is_here() {
        return;
    }
    let image = image();
    let filesystem = open(&image);
    let mount = image.mount("ro,subvolid=5");
    let output = run("btrfs", &["subvolume", "list", "-u", "-q", "-c", &at(&mount, "")]);
    let uuid = |bytes: [u8; 16]| {
        if bytes == [0; 16] {
            return "-".to_owned();
        }
        let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    };
    let line = |subvolume: &butternut::SubvolumeInfo| {
        format!(
            "ID {} gen {} cgen {} top level {} parent_uuid {:<36} uuid {} path {}",
            subvolume.id,
            subvolume.generation,
            subvolume.created_generation,
            subvolume.parent.unwrap_or(0),
            uuid(subvolume.parent_uuid),
            uuid(subvolume.uuid),
            String::from_utf8_lossy(subvolume.path.as_deref().unwrap_or(b"DELETED")),
        )
    };
    let ours: Vec<String> = filesystem.subvolumes().unwrap().iter().map(line).collect();
    assert_eq!(ours, output.lines().collect::<Vec<_>>());
}

#[test]
fn a_deleted_subvolume_has_no_path_and_cannot_be_opened() {
    if !kernel_is_here() {
        return;
    }
    // The kernel's cleaner cannot finish: the volume is unmounted too soon.
    let script = "btrfs -q subvolume create gone; \
                  for i in $(seq 2000); do echo $i > gone/$i; done; \
                  btrfs -q filesystem sync .; btrfs -q subvolume delete -c gone";
    let image = KernelImage::make(1, &["--nodesize", "4096"], "", script);
    let filesystem = open(&image);
    for subvolume in filesystem.subvolumes().unwrap() {
        assert!(subvolume.deleted && subvolume.path.is_none(), "{subvolume:?}");
    }
    let error = filesystem.stat(FileId::new(256, 256)).unwrap_err();
    assert!(matches!(error, Error::Stale { .. }), "{error}");
    let found = filesystem.lookup(filesystem.root(), b"gone");
    assert!(matches!(found, Err(Error::NotFound)), "{found:?}");
}

#[test]
fn paths_of_an_inode_include_every_link() {
    if !kernel_is_here() {
        return;
    }
    let script = "mkdir -p a/b; touch a/b/target; \
        for i in $(seq 1200); do ln a/b/target a/a_name_that_fills_the_item_soon_$i; done; \
        ln a/b/target top; btrfs -q subvolume create sub; touch sub/file";
    let image = KernelImage::make(1, &["--nodesize", "4096"], "", script);
    let filesystem = open(&image);
    let mount = image.mount("ro,subvolid=5");
    let id = filesystem.resolve(b"top", Follow::NotLast).unwrap();
    let top = mount.path().to_string_lossy().into_owned();
    let output = run("find", &[&top, "-samefile", &at(&mount, "top")]);
    let theirs: BTreeSet<&str> =
        output.lines().map(|line| line.strip_prefix(&format!("{top}/")).unwrap()).collect();
    let ours = filesystem.paths_of(id).unwrap();
    let ours: BTreeSet<&str> = ours.iter().map(|path| std::str::from_utf8(path).unwrap()).collect();
    assert_eq!(ours.len(), 1202);
    assert!(ours == theirs, "{:?}", ours.symmetric_difference(&theirs).next());
    let file = filesystem.resolve(b"sub/file", Follow::NotLast).unwrap();
    assert_eq!(filesystem.paths_of(file).unwrap(), [b"file"]);
    assert_eq!(filesystem.paths_of(filesystem.root()).unwrap(), [b""]);
}

#[test]
fn every_tree_is_walked_block_by_block() {
    if !kernel_is_here() {
        return;
    }
    let image = image();
    let filesystem = open(&image);
    let inspect = filesystem.inspect();
    assert_eq!(inspect.super_copies().len(), 2, "a device of 1 GiB has two");
    let roots = inspect.tree_roots().unwrap();
    for root in &roots {
        let mut pending = vec![root.expected()];
        let (mut blocks, mut items) = (0, 0);
        while let Some(expected) = pending.pop() {
            let block = inspect.block(&expected).unwrap();
            blocks += 1;
            items += if block.is_leaf() { block.len() as u64 } else { 0 };
            pending.extend((0..block.len()).filter_map(|s| inspect.child(&block, s, root.tree)));
        }
        let stats = filesystem.tree_stats(root.tree.0).unwrap();
        assert_eq!(stats.blocks.iter().sum::<u64>(), blocks, "tree {}", root.tree);
        assert_eq!((stats.items, stats.total_bytes), (items, blocks * 4096), "tree {}", root.tree);
    }
    let output = run("btrfs", &["inspect-internal", "tree-stats", "-b", &device(&image)]);
    let theirs: Vec<&str> = output.lines().filter(|line| line.contains("Total size")).collect();
    // It prints the root, extent, checksum and top-level trees.
    for (line, tree) in theirs.iter().zip([1, 2, 7, 5]) {
        let stats = filesystem.tree_stats(tree).unwrap();
        let bytes: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!(stats.total_bytes, bytes, "tree {tree}: {output}");
    }
    assert!(theirs.len() >= 4, "{output}");
}

fn device(image: &KernelImage) -> String {
    image.devices[0].to_string_lossy().into_owned()
}
