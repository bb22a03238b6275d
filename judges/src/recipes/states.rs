//! Images in unusual states: seeds, changed ids, offsets, logs, orphans, bad superblocks.

use crate::kernel_mount::{KernelMount, LoopDevice};
use crate::populate::{self, subvolumes};
use crate::recipe::{ImageBuilder, Recipe};
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
        Recipe::new("log-tree", "a log tree, which is replayed").own(log_tree).has_log(),
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
            .surgery(|builder| destroy_supers(builder, &[0])),
        Recipe::new("super-mirrors-bad", "both mirrors of the superblock are destroyed")
            .devices(&[257 << 10])
            .fill(populate::contents::sources)
            .surgery(|builder| destroy_supers(builder, &[1, 2])),
        Recipe::new("super-last-good", "only the third superblock is left")
            .devices(&[257 << 10])
            .fill(populate::contents::sources)
            .surgery(|builder| destroy_supers(builder, &[0, 1])),
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
pub(super) fn keep_as_is(builder: &ImageBuilder, mount: KernelMount) -> Result<()> {
    for device in builder.devices() {
        tool::copy_sparse(&device, &device.with_extension("kept"))?;
    }
    mount.unmount()?;
    for device in builder.devices() {
        fs::rename(device.with_extension("kept"), device)?;
    }
    Ok(())
}

fn mkfs_and_everything(builder: &ImageBuilder) -> Result<()> {
    builder.mkfs()?;
    let mount = builder.mount()?;
    populate::everything(mount.root())?;
    mount.unmount()
}

fn seed_alone(builder: &ImageBuilder) -> Result<()> {
    mkfs_and_everything(builder)?;
    tool::run("btrfstune", &tool::words_and_path("-f -S 1", &builder.device(0))).map(drop)
}

fn seed_and_sprout(builder: &ImageBuilder) -> Result<()> {
    // The kernel mounts the volume of the device that is named: the sprout.
    let seed = builder.device(1);
    tool::run("mkfs.btrfs", &tool::words_and_path("-q -f -K", &seed))?;
    let mount = builder.mount_with(std::slice::from_ref(&seed), "")?;
    populate::everything(mount.root())?;
    mount.unmount()?;
    tool::run("btrfstune", &tool::words_and_path("-f -S 1", &seed))?;
    let how = crate::kernel_mount::MountHow { read_only: true, ..Default::default() };
    let mount = KernelMount::new(std::slice::from_ref(&seed), &how)?;
    let sprout = LoopDevice::attach(&builder.device(0), false, 0)?;
    subvolumes::btrfs("device add -f -K", &[sprout.path(), mount.root()])?;
    tool::run("mount", &["-o".as_ref(), "remount,rw".as_ref(), mount.root().as_os_str()])?;
    fs::write(mount.root().join("only-in-the-sprout"), vec![3; 100_000])?;
    fs::remove_file(mount.root().join("contents/text/size-524288"))?;
    fs::write(mount.root().join("contents/noise/size-65536"), "changed in the sprout")?;
    subvolumes::snapshot(mount.root(), &mount.root().join("snapshot"))?;
    mount.unmount()
}

fn metadata_uuid(builder: &ImageBuilder) -> Result<()> {
    mkfs_and_everything(builder)?;
    change_visible_id(builder)?;
    let mount = builder.mount()?;
    fs::write(mount.root().join("after-the-change"), "written under the new id")?;
    mount.unmount()
}

/// Changes the visible id. btrfstune scans all block devices for the other half of the volume, and
/// fails if one of them cannot be read because another image is just being detached; so it is
/// retried.
fn change_visible_id(builder: &ImageBuilder) -> Result<()> {
    let devices = builder.devices();
    let loops = devices.iter().map(|device| LoopDevice::attach(device, false, 0));
    let loops = loops.collect::<Result<Vec<_>>>()?;
    let first = loops.first().context("a device")?;
    // The kernel cannot mount two volumes with one id, and several images are made in parallel.
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

/// Leaves a log tree by an fsync after the last commit. Nothing may commit before the copy.
fn log_tree(builder: &ImageBuilder) -> Result<()> {
    builder.mkfs()?;
    let mount = builder.mount_with(&builder.devices(), "commit=300")?;
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
    keep_as_is(builder, mount)
}

/// Leaves orphan items: the files are unlinked but open at the last commit.
fn orphans(builder: &ImageBuilder) -> Result<()> {
    builder.mkfs()?;
    let mount = builder.mount()?;
    populate::contents::sources(mount.root())?;
    let mut open = Vec::new();
    for number in 0..10 {
        let path = mount.root().join(format!("unlinked-{number}"));
        fs::write(&path, vec![number; 30_000])?;
        open.push(File::open(&path)?);
        fs::remove_file(path)?;
    }
    subvolumes::btrfs("filesystem sync", &[mount.root()])?;
    for device in builder.devices() {
        tool::copy_sparse(&device, &device.with_extension("kept"))?;
    }
    drop(open);
    mount.unmount()?;
    for device in builder.devices() {
        fs::rename(device.with_extension("kept"), device)?;
    }
    Ok(())
}

/// Removes the first device and its file.
fn device_removed(builder: &ImageBuilder) -> Result<()> {
    builder.mkfs()?;
    let mount = builder.mount()?;
    populate::everything(mount.root())?;
    let first = mount.loops().first().context("a device")?.path().to_path_buf();
    subvolumes::btrfs("device remove", &[&first, mount.root()])?;
    mount.unmount()?;
    Ok(fs::remove_file(builder.device(0))?)
}

fn destroy_supers(builder: &ImageBuilder, copies: &[usize]) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).open(builder.device(0))?;
    for copy in copies {
        file.write_all_at(&[0xb5; SUPER_BYTES], SUPER_COPIES[*copy])?;
    }
    Ok(())
}

/// Saves the first superblock of an earlier commit, then commits more.
fn older_super_aside(builder: &ImageBuilder) -> Result<()> {
    builder.mkfs()?;
    let mount = builder.mount()?;
    populate::contents::sources(mount.root())?;
    mount.unmount()?;
    let mut old = vec![0; SUPER_BYTES];
    File::open(builder.device(0))?.read_exact_at(&mut old, SUPER_COPIES[0])?;
    fs::write(builder.dir.join(OLD_SUPER), old)?;
    let mount = builder.mount()?;
    for number in 0..4 {
        fs::write(mount.root().join(format!("newer-{number}")), vec![9; 100_000])?;
        subvolumes::btrfs("filesystem sync", &[mount.root()])?;
    }
    mount.unmount()
}

/// Restores the saved superblock, so that only the mirror has the last commit.
fn bring_older_super_back(builder: &ImageBuilder) -> Result<()> {
    let aside = builder.dir.join(OLD_SUPER);
    let old = fs::read(&aside)?;
    let file = fs::OpenOptions::new().write(true).open(builder.device(0))?;
    file.write_all_at(&old, SUPER_COPIES[0])?;
    Ok(fs::remove_file(aside)?)
}

/// Makes an image from a directory without any mount.
fn from_directory(builder: &ImageBuilder) -> Result<()> {
    let source = builder.dir.join("source");
    fs::create_dir(&source)?;
    populate::contents::sizes(&source)?;
    populate::contents::sources(&source)?;
    populate::links::across(&source)?;
    populate::names::odd(&source)?;
    populate::attributes::modes_and_owners(&source)?;
    populate::attributes::special_files(&source)?;
    // mkfs refuses this name, though the kernel supports it.
    fs::remove_file(source.join("symlinks/length-4095"))?;
    let mut args: Vec<std::ffi::OsString> = vec!["-q".into(), "-f".into()];
    args.extend(builder.recipe.mkfs.split_whitespace().map(Into::into));
    args.extend(["--rootdir".into(), source.clone().into(), builder.device(0).into()]);
    tool::run("mkfs.btrfs", &args)?;
    fs::remove_dir_all(source)?;
    Ok(())
}
