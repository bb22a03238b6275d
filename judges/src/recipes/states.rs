//! Images in an uncommon state: seeds, changed ids, offsets, logs, orphans, bad superblocks.

use crate::kernel_mount::{KernelMount, LoopDevice};
use crate::populate::{self, subvolumes};
use crate::recipe::{Recipe, Workshop};
use crate::tool;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const SUPER_COPIES: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
const SUPER_BYTES: usize = 4096;
const TRIES_MAX: u32 = 20;
const OLD_SUPER: &str = "older-super";

pub(super) fn recipes() -> Vec<Recipe> {
    vec![
        Recipe::new("seed-sprout", "a seed device and a sprout that changed it")
            .devices(&[256, 256])
            .own(seed_and_sprout),
        Recipe::new("seed-alone", "a seed device").own(seed_alone),
        Recipe::new("metadata-uuid", "the visible id was changed after mkfs").own(metadata_uuid),
        Recipe::new("metadata-uuid-raid1", "the visible id of two devices was changed")
            .devices(&[256, 256])
            .mkfs("-d raid1 -m raid1")
            .missing(&[&[0], &[1]])
            .own(metadata_uuid),
        Recipe::new("label", "a label of 255 bytes, and a label's worth of options")
            .mkfs(&format!("-L {}", "l".repeat(255))),
        at_offset(),
        Recipe::new("log-tree", "a log tree that is not replayed").own(log_tree).ignores_log(),
        Recipe::new("orphans", "deleted files that were still open").own(orphans),
        Recipe::new("device-removed", "a device was removed, so ids have a gap")
            .devices(&[256, 256, 256])
            .mkfs("-d raid1 -m raid1")
            .own(device_removed),
        Recipe::new("resized", "grown and shrunk after mkfs").devices(&[512]).fill(|root| {
            subvolumes::btrfs("filesystem resize 300M", &[root])?;
            populate::everything(root)?;
            subvolumes::btrfs("filesystem resize 400M", &[root])
        }),
        Recipe::new("super-first-bad", "the first superblock is destroyed")
            .surgery(|shop| destroy_supers(shop, &[0])),
        Recipe::new("super-mirrors-bad", "both mirrors of the superblock are destroyed")
            .devices(&[257 << 10])
            .fill(populate::contents::sources)
            .surgery(|shop| destroy_supers(shop, &[1, 2])),
        Recipe::new("super-last-good", "only the third superblock is left")
            .devices(&[257 << 10])
            .fill(populate::contents::sources)
            .surgery(|shop| destroy_supers(shop, &[0, 1])),
        Recipe::new("super-first-old", "the first superblock is older than its mirror")
            .own(older_super_aside)
            .surgery(bring_older_super_back),
        Recipe::new("rootdir", "made by mkfs --rootdir, never mounted for writing")
            .own(from_directory),
        Recipe::new("rootdir-compressed", "made by mkfs --rootdir with zstd")
            .mkfs("--compress zstd")
            .own(from_directory),
    ]
}

fn at_offset() -> Recipe {
    let mut recipe = Recipe::new("offset", "the volume starts inside a bigger image");
    recipe.offset = 1_048_576 + 512 * 63;
    recipe
}

/// Copies the devices of a mounted volume as a crash would leave them, and keeps the copies.
pub(super) fn keep_as_is(shop: &Workshop, mount: KernelMount) -> Result<()> {
    for device in shop.devices() {
        tool::copy_sparse(&device, &device.with_extension("kept"))?;
    }
    mount.unmount()?;
    for device in shop.devices() {
        fs::rename(device.with_extension("kept"), device)?;
    }
    Ok(())
}

fn mkfs_and_everything(shop: &Workshop) -> Result<()> {
    shop.mkfs()?;
    let mount = shop.mount()?;
    populate::everything(mount.root())?;
    mount.unmount()
}

fn seed_alone(shop: &Workshop) -> Result<()> {
    mkfs_and_everything(shop)?;
    tool::run("btrfstune", &tool::words_and_path("-f -S 1", &shop.device(0))).map(drop)
}

fn seed_and_sprout(shop: &Workshop) -> Result<()> {
    // The kernel mounts the volume whose device it is given first: the sprout.
    let seed = shop.device(1);
    tool::run("mkfs.btrfs", &tool::words_and_path("-q -f -K", &seed))?;
    let mount = shop.mount_with(std::slice::from_ref(&seed), "")?;
    populate::everything(mount.root())?;
    mount.unmount()?;
    tool::run("btrfstune", &tool::words_and_path("-f -S 1", &seed))?;
    let how = crate::kernel_mount::MountHow { read_only: true, ..Default::default() };
    let mount = KernelMount::new(std::slice::from_ref(&seed), &how)?;
    let sprout = LoopDevice::attach(&shop.device(0), false, 0)?;
    subvolumes::btrfs("device add -f -K", &[sprout.path(), mount.root()])?;
    tool::run("mount", &["-o".as_ref(), "remount,rw".as_ref(), mount.root().as_os_str()])?;
    fs::write(mount.root().join("only-in-the-sprout"), vec![3; 100_000])?;
    fs::remove_file(mount.root().join("contents/text/size-524288"))?;
    fs::write(mount.root().join("contents/noise/size-65536"), "changed in the sprout")?;
    subvolumes::snapshot(mount.root(), &mount.root().join("snapshot"))?;
    mount.unmount()
}

fn metadata_uuid(shop: &Workshop) -> Result<()> {
    mkfs_and_everything(shop)?;
    change_visible_id(shop)?;
    let mount = shop.mount()?;
    fs::write(mount.root().join("after-the-change"), "written under the new id")?;
    mount.unmount()
}

/// The tool looks at every block device for the other half of the volume, and gives up when one
/// of them, which another image is just leaving, cannot be read.
fn change_visible_id(shop: &Workshop) -> Result<()> {
    let devices = shop.devices();
    let loops = devices.iter().map(|device| LoopDevice::attach(device, false, 0));
    let loops = loops.collect::<Result<Vec<_>>>()?;
    let first = loops.first().context("a device")?;
    // The kernel mounts no two volumes of one id at a time, and images are made beside each other.
    let words = format!("-f -M 0d6cbb95-0a56-4e0a-8a2e-0b2f6b1b7e{:02}", devices.len());
    for _ in 0..TRIES_MAX {
        let output = tool::output("btrfstune", &tool::words_and_path(&words, first.path()))?;
        if output.status.success() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    tool::run("btrfstune", &tool::words_and_path(&words, first.path())).map(drop)
}

/// An fsync after the last commit leaves a log tree; nothing may commit before the copy.
fn log_tree(shop: &Workshop) -> Result<()> {
    shop.mkfs()?;
    let mount = shop.mount_with(&shop.devices(), "commit=300")?;
    populate::contents::sources(mount.root())?;
    fs::write(mount.root().join("committed"), vec![1; 50_000])?;
    subvolumes::btrfs("filesystem sync", &[mount.root()])?;
    for number in 0..20 {
        let file = File::create(mount.root().join(format!("only-in-the-log-{number}")))?;
        file.write_all_at(&vec![number; 10_000], 0)?;
        file.sync_all()?;
    }
    let committed = fs::OpenOptions::new().write(true).open(mount.root().join("committed"))?;
    committed.write_all_at(&vec![2; 20_000], 10_000)?;
    committed.sync_all()?;
    drop(committed);
    keep_as_is(shop, mount)
}

/// Files that are unlinked but open at the last commit have orphan items.
fn orphans(shop: &Workshop) -> Result<()> {
    shop.mkfs()?;
    let mount = shop.mount()?;
    populate::contents::sources(mount.root())?;
    let mut open = Vec::new();
    for number in 0..10 {
        let path = mount.root().join(format!("unlinked-{number}"));
        fs::write(&path, vec![number; 30_000])?;
        open.push(File::open(&path)?);
        fs::remove_file(path)?;
    }
    subvolumes::btrfs("filesystem sync", &[mount.root()])?;
    for device in shop.devices() {
        tool::copy_sparse(&device, &device.with_extension("kept"))?;
    }
    drop(open);
    mount.unmount()?;
    for device in shop.devices() {
        fs::rename(device.with_extension("kept"), device)?;
    }
    Ok(())
}

/// The first device leaves, and so does its file.
fn device_removed(shop: &Workshop) -> Result<()> {
    shop.mkfs()?;
    let mount = shop.mount()?;
    populate::everything(mount.root())?;
    let first = mount.loops().first().context("a device")?.path().to_path_buf();
    subvolumes::btrfs("device remove", &[&first, mount.root()])?;
    mount.unmount()?;
    Ok(fs::remove_file(shop.device(0))?)
}

fn destroy_supers(shop: &Workshop, copies: &[usize]) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).open(shop.device(0))?;
    for copy in copies {
        file.write_all_at(&[0xb5; SUPER_BYTES], SUPER_COPIES[*copy])?;
    }
    Ok(())
}

/// Sets the first superblock of an earlier commit aside, then goes on committing.
fn older_super_aside(shop: &Workshop) -> Result<()> {
    shop.mkfs()?;
    let mount = shop.mount()?;
    populate::contents::sources(mount.root())?;
    mount.unmount()?;
    let mut old = vec![0; SUPER_BYTES];
    File::open(shop.device(0))?.read_exact_at(&mut old, SUPER_COPIES[0])?;
    fs::write(shop.dir.join(OLD_SUPER), old)?;
    let mount = shop.mount()?;
    for number in 0..4 {
        fs::write(mount.root().join(format!("newer-{number}")), vec![9; 100_000])?;
        subvolumes::btrfs("filesystem sync", &[mount.root()])?;
    }
    mount.unmount()
}

/// Now only the mirror knows the last commit.
fn bring_older_super_back(shop: &Workshop) -> Result<()> {
    let aside = shop.dir.join(OLD_SUPER);
    let old = fs::read(&aside)?;
    let file = fs::OpenOptions::new().write(true).open(shop.device(0))?;
    file.write_all_at(&old, SUPER_COPIES[0])?;
    Ok(fs::remove_file(aside)?)
}

/// A directory on the disk becomes an image without any mount.
fn from_directory(shop: &Workshop) -> Result<()> {
    let source = shop.dir.join("source");
    fs::create_dir(&source)?;
    populate::contents::sizes(&source)?;
    populate::contents::sources(&source)?;
    populate::links::across(&source)?;
    populate::names::odd(&source)?;
    populate::attributes::modes_and_owners(&source)?;
    populate::attributes::special_files(&source)?;
    // mkfs refuses this one, though the kernel takes it.
    fs::remove_file(source.join("symlinks/length-4095"))?;
    let mut args: Vec<std::ffi::OsString> = vec!["-q".into(), "-f".into()];
    args.extend(shop.recipe.mkfs.split_whitespace().map(Into::into));
    args.extend(["--rootdir".into(), source.clone().into(), shop.device(0).into()]);
    tool::run("mkfs.btrfs", &args)?;
    fs::remove_dir_all(source)?;
    Ok(())
}
