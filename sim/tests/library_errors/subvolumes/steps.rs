//! The script: each step is one call that changes something.

use super::VOLUME_BYTES;
use anyhow::Result;
use butternut::format::quota::QgroupId;
use butternut::{
    Allocate, DefragmentOptions, File, Filesystem, Follow, NewInode, Privileges, QgroupLimits,
    RecursiveSnapshot, RenameFlags, SetXattr, SharedExtents, SnapshotAccess,
};
use butternut_sim::content::pattern;

const EDQUOT: i32 = 122;

const DATA_BYTES: usize = 400 << 10;
/// More xattrs of 3900 bytes than a leaf holds.
const XATTRS: u64 = 6;
/// The number of extents of a long file, of which a step drops 256.
const LONG_EXTENTS: u64 = 700;
/// More than the chunks have room for that mkfs makes, in bytes.
const LARGE_BYTES: u64 = 30 << 20;
const SHRUNK_BYTES: u64 = 8 << 20;
/// What a subvolume may refer to, in bytes.
const LIMIT: u64 = 2 << 20;

pub(super) type Call = fn(&Filesystem) -> butternut::Result<()>;

/// What is durable when a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durable {
    Nothing,
    /// Everything but data that is dirty in memory.
    Names,
    All,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) call: Call,
    /// What the call returns without errors.
    pub(super) outcome: std::result::Result<(), i32>,
    pub(super) durable: Durable,
    /// Whether a view shows the change.
    pub(super) is_visible: bool,
    /// Whether the call consists of steps, of which the first ones stay when a later one fails.
    pub(super) is_in_steps: bool,
}

/// A change that becomes durable with the next commit.
fn change(name: &'static str, call: Call) -> Step {
    let (durable, is_visible, is_in_steps) = (Durable::Nothing, true, false);
    Step { name, call, outcome: Ok(()), durable, is_visible, is_in_steps }
}

/// A change of more items of a file than one transaction reserves for.
fn in_steps(step: Step) -> Step {
    Step { is_in_steps: true, ..step }
}

/// A change that is durable when the call returns.
fn commit(name: &'static str, call: Call) -> Step {
    Step { durable: Durable::Names, ..change(name, call) }
}

/// A change that a view does not show.
fn hidden(step: Step) -> Step {
    Step { is_visible: false, ..step }
}

pub(super) fn in_steps_change(name: &'static str, call: Call) -> Step {
    in_steps(change(name, call))
}

pub(super) fn hidden_change(name: &'static str, call: Call) -> Step {
    hidden(change(name, call))
}

fn refused(name: &'static str, errno: i32, call: Call) -> Step {
    Step { outcome: Err(errno), ..hidden(change(name, call)) }
}

fn sync() -> Step {
    let call: Call = |fs| fs.sync();
    Step { durable: Durable::All, ..hidden(change("sync", call)) }
}

fn new(permissions: u32) -> NewInode {
    NewInode::new(permissions)
}

pub(crate) fn open(fs: &Filesystem, path: &str) -> butternut::Result<File> {
    fs.open_path(path.as_bytes())
}

pub(crate) fn create(fs: &Filesystem, path: &str) -> butternut::Result<()> {
    fs.create_path(path.as_bytes(), &new(0o644)).map(drop)
}

pub(crate) fn write(
    fs: &Filesystem,
    path: &str,
    offset: u64,
    bytes: usize,
) -> butternut::Result<()> {
    // An odd seed, so that no block is like another.
    let seed = 1 + 2 * (offset * 31 + bytes as u64);
    open(fs, path)?.write_all_at(offset, &pattern(seed, bytes))
}

pub(crate) fn subvolume(fs: &Filesystem, path: &str) -> butternut::Result<u64> {
    fs.subvolume_at(path.as_bytes())
}

fn qgroup(fs: &Filesystem, path: &str) -> butternut::Result<QgroupId> {
    subvolume(fs, path).map(QgroupId)
}

fn upper_qgroup() -> QgroupId {
    QgroupId::of(1, 100).expect("a small number")
}

pub(crate) fn snapshot(
    fs: &Filesystem,
    source: &str,
    (dir, name): (&str, &str),
    access: SnapshotAccess,
) -> butternut::Result<()> {
    let source = subvolume(fs, source)?;
    let dir = fs.resolve(dir.as_bytes(), Follow::Last)?;
    fs.snapshot(source, dir, name.as_bytes(), access).map(drop)
}

fn delete(fs: &Filesystem, dir: &str, name: &str) -> butternut::Result<()> {
    let dir = fs.resolve(dir.as_bytes(), Follow::Last)?;
    fs.delete_subvolume(dir, name.as_bytes()).map(drop)
}

/// Makes what is there before the first step, with a number of files that fill the trees.
pub(crate) fn fill(fs: &Filesystem, fillers: usize) -> Result<()> {
    let dir = fs.mkdir(fs.root(), b"fill", &new(0o755))?;
    for number in 0..fillers {
        let id = fs.create(dir, format!("{number:03}").as_bytes(), &new(0o644))?;
        let value = pattern(1 + 2 * number as u64, 3000);
        fs.set_xattr(id, b"user.filler", &value, SetXattr::Either)?;
    }
    for name in ["data", "twin", "short", "tiny"] {
        create(fs, name)?;
    }
    for name in ["data", "twin"] {
        write(fs, name, 0, DATA_BYTES)?;
    }
    write(fs, "tiny", 0, 100)?;
    create(fs, "long")?;
    let long = open(fs, "long")?;
    for extent in 0..LONG_EXTENTS {
        // With a hole behind it.
        long.write_direct(extent * 8192, &[7; 4096], Privileges::Keep)?;
    }
    // Extents that do not follow each other.
    let file = open(fs, "short")?;
    for block in [0_u8, 2, 4, 6, 8, 1, 3, 5, 7, 9] {
        file.write_direct(u64::from(block) * 4096, &[block + 1; 4096], Privileges::Keep)?;
    }
    Ok(fs.sync()?)
}

/// Returns all steps.
pub(super) fn steps() -> Vec<Step> {
    [made(), shared(), properties(), space(), quotas(), deleted()].concat()
}

fn made() -> Vec<Step> {
    vec![
        commit("create subvolume", |fs| {
            fs.create_subvolume(fs.root(), b"sub", &new(0o755)).map(drop)
        }),
        change("create in subvolume", |fs| create(fs, "sub/file")),
        change("write in subvolume", |fs| write(fs, "sub/file", 0, 70_000)),
        // So that the tree has several leaves.
        in_steps(change("set xattrs", |fs| {
            let id = fs.resolve(b"sub/file", Follow::Last)?;
            (0..XATTRS).try_for_each(|number| {
                let (name, value) = (format!("user.{number}"), pattern(1 + 2 * number, 3900));
                fs.set_xattr(id, name.as_bytes(), &value, SetXattr::Either)
            })
        })),
        commit("create nested subvolume", |fs| {
            let dir = fs.resolve(b"sub", Follow::Last)?;
            fs.create_subvolume(dir, b"inner", &new(0o755)).map(drop)
        }),
        change("create in subvolume", |fs| create(fs, "sub/inner/file")),
        change("write in subvolume", |fs| write(fs, "sub/inner/file", 0, 500)),
        commit("snapshot", |fs| snapshot(fs, "sub", ("", "copy"), SnapshotAccess::ReadWrite)),
        change("write over shared", |fs| write(fs, "copy/file", 10_000, 9000)),
        commit("snapshot", |fs| snapshot(fs, "copy", ("fill", "kept"), SnapshotAccess::ReadOnly)),
        change("write over shared", |fs| write(fs, "sub/file", 30_000, 500)),
        commit("recursive snapshot", |fs| {
            let (source, options) = (subvolume(fs, "sub")?, SnapshotAccess::ReadWrite);
            let options = RecursiveSnapshot::new(options);
            fs.snapshot_recursive(source, fs.root(), b"whole", options).map(drop)
        }),
        change("rename subvolume", |fs| {
            let dir = fs.resolve(b"fill", Follow::Last)?;
            fs.rename((fs.root(), b"copy"), (dir, b"moved"), RenameFlags::default())
        }),
        sync(),
    ]
}

fn shared() -> Vec<Step> {
    vec![
        change("create", |fs| create(fs, "clone")),
        change("clone", |fs| open(fs, "clone")?.clone_range(0, &open(fs, "data")?, 0, 0)),
        change("write in subvolume", |fs| write(fs, "sub/file", 4000, 20_000)),
        change("clone over dirty", |fs| {
            open(fs, "sub/file")?.clone_range(8192, &open(fs, "data")?, 16_384, 32_768)
        }),
        change("write dirty", |fs| write(fs, "data", 100_000, 9000)),
        change("clone from dirty", |fs| {
            open(fs, "clone")?.clone_range(98_304, &open(fs, "data")?, 98_304, 16_384)
        }),
        change("create", |fs| create(fs, "tiny clone")),
        change("clone inline", |fs| {
            open(fs, "tiny clone")?.clone_range(0, &open(fs, "tiny")?, 0, 0)
        }),
        hidden(change("dedupe", |fs| {
            let twin = open(fs, "twin")?;
            twin.dedupe_range(0, &open(fs, "data")?, 0, 65_536).map(drop)
        })),
        hidden(change("dedupe different", |fs| {
            let twin = open(fs, "twin")?;
            twin.dedupe_range(65_536, &open(fs, "data")?, 65_536, 65_536).map(drop)
        })),
        hidden(change("defragment", |fs| {
            open(fs, "short")?.defragment(&DefragmentOptions::default()).map(drop)
        })),
        hidden(change("defragment shared", |fs| {
            let options = DefragmentOptions::default().shared(SharedExtents::Break);
            open(fs, "sub/file")?.defragment(&options).map(drop)
        })),
        sync(),
    ]
}

fn properties() -> Vec<Step> {
    vec![
        commit("set default", |fs| fs.set_default_subvolume(subvolume(fs, "whole")?)),
        commit("set default", |fs| fs.set_default_subvolume(butternut::TOP_LEVEL)),
        commit("set read-only", |fs| fs.set_subvolume_read_only(subvolume(fs, "whole")?, true)),
        commit("set writable", |fs| fs.set_subvolume_read_only(subvolume(fs, "whole")?, false)),
        change("set property", |fs| {
            let id = fs.resolve(b"sub/file", Follow::Last)?;
            fs.set_xattr(id, b"btrfs.compression", b"zstd", SetXattr::Either)
        }),
        change("write compressed", |fs| write(fs, "sub/file", 40_000, 30_000)),
        change("set label", |fs| fs.set_label(b"a label")),
        sync(),
    ]
}

/// Chunks that are added and removed, and sizes of the device.
fn space() -> Vec<Step> {
    vec![
        change("create", |fs| create(fs, "large")),
        hidden(change("preallocate chunks", |fs| {
            open(fs, "large")?.allocate(0..LARGE_BYTES, Allocate::KeepSize)
        })),
        hidden(change("drop chunks", |fs| {
            open(fs, "large")?.allocate(0..LARGE_BYTES, Allocate::PunchHole)
        })),
        sync(),
        hidden(change("shrink", |fs| fs.resize(1, VOLUME_BYTES - SHRUNK_BYTES))),
        hidden(change("grow", |fs| fs.resize(1, VOLUME_BYTES))),
        hidden(change("trim", |fs| fs.trim(4096).map(drop))),
        change("unlink", |fs| fs.unlink(fs.root(), b"large")),
        sync(),
    ]
}

fn quotas() -> Vec<Step> {
    vec![
        commit("enable quotas", |fs| fs.enable_quotas().map(drop)),
        commit("create qgroup", |fs| fs.create_qgroup(upper_qgroup())),
        commit("assign qgroup", |fs| fs.assign_qgroup(qgroup(fs, "sub")?, upper_qgroup())),
        commit("limit qgroup", |fs| {
            let limits = QgroupLimits { referenced: Some(LIMIT), exclusive: None };
            fs.limit_qgroup(qgroup(fs, "sub")?, limits)
        }),
        change("write below limit", |fs| write(fs, "sub/file", 1000, 8000)),
        refused("preallocate at limit", EDQUOT, |fs| {
            open(fs, "sub/file")?.allocate(70_000..3_000_000, Allocate::Extend)
        }),
        commit("snapshot counted", |fs| {
            snapshot(fs, "sub", ("", "counted"), SnapshotAccess::ReadWrite)
        }),
        change("write over shared", |fs| write(fs, "counted/file", 0, 20_000)),
        hidden(commit("rescan", Filesystem::rescan_quotas)),
        commit("unassign qgroup", |fs| fs.unassign_qgroup(qgroup(fs, "sub")?, upper_qgroup())),
        commit("remove qgroup", |fs| fs.remove_qgroup(upper_qgroup())),
        sync(),
    ]
}

fn deleted() -> Vec<Step> {
    vec![
        commit("delete subvolume", |fs| delete(fs, "", "counted")),
        hidden(change("clean", |fs| fs.clean_subvolumes().map(drop))),
        commit("disable quotas", |fs| fs.disable_quotas().map(drop)),
        commit("enable simple quotas", |fs| fs.enable_simple_quotas().map(drop)),
        change("write for an owner", |fs| write(fs, "sub/file", 3000, 20_000)),
        hidden(commit("rescan", Filesystem::rescan_quotas)),
        commit("delete subvolume", |fs| delete(fs, "fill", "kept")),
        commit("delete nested subvolume", |fs| delete(fs, "whole", "inner")),
        hidden(change("clean", |fs| fs.clean_subvolumes().map(drop))),
        change("truncate shared", |fs| open(fs, "sub/file")?.truncate(5000)),
        in_steps(change("punch long", |fs| {
            open(fs, "long")?.allocate(5000..2_600_000, Allocate::PunchHole)
        })),
        in_steps(change("truncate long", |fs| open(fs, "long")?.truncate(5000))),
        change("unlink shared", |fs| fs.unlink(fs.root(), b"clone")),
        sync(),
    ]
}
