//! Calls that change nothing, while each read of metadata fails: streams, lists, and reports of how
//! space is used (`crate::stepwise`).

use super::steps::{
    Step, create, fill, hidden_change, open as open_file, snapshot, subvolume, write,
};
use super::stepwise::Subvolumes;
use super::view::View;
use crate::injector::Kind;
use crate::stepwise::fail_each;
use anyhow::Result;
use butternut::SnapshotAccess::ReadOnly;
use butternut::server::FileExt;
use butternut::{EnospcInjector, FIRST_ENTRY, Filesystem, Follow, NewInode, RenameFlags};
use butternut::{SendOptions, SetXattr};
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::volume::fresh;

const FILLERS: usize = 20;

fn new() -> NewInode {
    NewInode::new(0o755)
}

/// Makes two snapshots that differ, with quota groups.
fn prepare(fs: &Filesystem) -> Result<()> {
    fill(fs, FILLERS)?;
    fs.create_subvolume(fs.root(), b"sub", &new())?;
    let root = fs.resolve(b"sub", Follow::Last)?;
    for name in ["sub/a", "sub/b", "sub/gone"] {
        create(fs, name)?;
        write(fs, name, 0, 70_000)?;
    }
    fs.symlink(root, b"link", b"a", &new())?;
    snapshot(fs, "sub", ("", "first"), ReadOnly)?;
    write(fs, "sub/a", 10_000, 30_000)?;
    open_file(fs, "sub/b")?.clone_range(0, &open_file(fs, "sub/a")?, 0, 65_536)?;
    let dir = fs.mkdir(root, b"dir", &new())?;
    fs.set_xattr(open_file(fs, "sub/a")?.id(), b"user.a", &[1; 300], SetXattr::Either)?;
    fs.link(open_file(fs, "sub/a")?.id(), dir, b"linked")?;
    fs.rename((root, b"b"), (dir, b"moved"), RenameFlags::default())?;
    fs.unlink(root, b"gone")?;
    snapshot(fs, "sub", ("", "second"), ReadOnly)?;
    fs.enable_quotas()?;
    Ok(fs.sync()?)
}

fn steps() -> Vec<Step> {
    vec![
        hidden_change("send", |fs| {
            fs.send(subvolume(fs, "first")?, &SendOptions::default(), &mut Vec::new())
        }),
        hidden_change("send changes", |fs| {
            let parent = subvolume(fs, "first")?;
            let options = SendOptions::default().parent(Some(parent)).clone_sources(vec![parent]);
            fs.send(subvolume(fs, "second")?, &options, &mut Vec::new())
        }),
        hidden_change("choose a parent", |fs| {
            let candidates = [subvolume(fs, "first")?, subvolume(fs, "sub")?];
            fs.best_parent(subvolume(fs, "second")?, &candidates).map(drop)
        }),
        hidden_change("list subvolumes", |fs| {
            fs.subvolumes()?;
            fs.subvolumes_below(butternut::TOP_LEVEL)?;
            fs.default_subvolume()?;
            fs.subvolume(subvolume(fs, "second")?).map(drop)
        }),
        hidden_change("list names", |fs| {
            let file = open_file(fs, "sub/dir/linked")?;
            fs.paths_of(file.id())?;
            fs.first_path(file.id())?;
            fs.read_dir(fs.resolve(b"sub/dir", Follow::Last)?, FIRST_ENTRY)?
                .try_for_each(|entry| entry.map(drop))?;
            fs.read_link(fs.resolve(b"sub/link", Follow::NotLast)?).map(drop)
        }),
        hidden_change("list attributes", |fs| {
            let file = open_file(fs, "sub/a")?;
            file.metadata()?;
            fs.xattr_names(file.id())?;
            fs.xattr(file.id(), b"user.a").map(drop)
        }),
        hidden_change("list extents", |fs| {
            let file = open_file(fs, "sub/a")?;
            file.seek_hole(0)?;
            file.seek_data(20_000)?;
            file.extents(0..u64::MAX).try_for_each(|extent| extent.map(drop))?;
            file.extents_with_sharing(0, 100).map(drop)
        }),
        hidden_change("report usage", |fs| {
            fs.usage()?;
            fs.statfs()?;
            fs.quotas()?;
            fs.disk_usage(fs.resolve(b"sub", Follow::Last)?).map(drop)
        }),
        hidden_change("inspect", |fs| {
            fs.inspect().tree_roots()?;
            fs.tree_stats(subvolume(fs, "second")?).map(drop)
        }),
    ]
}

#[test]
fn each_read_of_metadata_of_calls_that_change_nothing_fails() {
    let profiles = MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() };
    let device = fresh(super::VOLUME_BYTES, &profiles).unwrap();
    let filesystem = super::open(&device, &EnospcInjector::default()).unwrap();
    prepare(&filesystem).unwrap();
    let (view, data) = (View::of(&filesystem).unwrap(), crate::data_range(&filesystem).unwrap());
    filesystem.close().unwrap();
    let mut image = vec![0; usize::try_from(device.bytes()).unwrap()];
    device.read_at(0, &mut image).unwrap();
    let steps = steps();
    let views = vec![view; steps.len() + 1];
    let script = Subvolumes { steps, views };
    let trials = fail_each(&script, Kind::UncachedRead, &image, data);
    assert!(trials.unwrap_or_else(|error| panic!("{error:#}")) > 10);
}
