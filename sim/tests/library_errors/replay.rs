//! Errors while a volume is opened that was not closed and has a log: each request of the replay
//! fails once, one in each run. The kinds of errors are those of `main`.
//!
//! 1. An open that fails returns ENOSPC or EIO, and loses nothing: the next open succeeds.
//! 2. Every change is there that a sync has made durable, and the checker finds nothing.

use crate::injector::{Injector, Kind};
use crate::subvolumes::steps::{create, fill, open as open_file, write};
use crate::subvolumes::view::View;
use crate::subvolumes::{FILLERS, VOLUME_BYTES, open, open_for};
use crate::{Aim, Reached};
use anyhow::{Context, Result, ensure};
use butternut::{
    Allocate, EnospcInjector, Filesystem, Follow, MountOptions, Privileges, RenameFlags, SetXattr,
    Subvolume, TOP_LEVEL,
};
use butternut_device::{Device, MemoryDevice};
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::volume::{check, check_crashed, fresh};
use std::ops::Range;
use std::sync::Arc;

/// A volume with a log, and what an open shows that replays it.
struct Template {
    image: Vec<u8>,
    data: Range<u64>,
    view: View,
}

/// Changes that only the log has. Returns the number of syncs.
fn change(fs: &Filesystem) -> butternut::Result<u64> {
    let root = fs.root();
    let dir = fs.resolve(b"fill", Follow::Last)?;
    let data = open_file(fs, "data")?;
    write(fs, "data", 10_000, 9000)?;
    data.allocate(40_000..60_000, Allocate::PunchHole)?;
    data.sync_all()?;
    data.truncate(300_001)?;
    data.sync_all()?;
    create(fs, "fill/new")?;
    write(fs, "fill/new", 0, 70_000)?;
    open_file(fs, "fill/new")?.sync_all()?;
    create(fs, "fill/preallocated")?;
    let preallocated = open_file(fs, "fill/preallocated")?;
    preallocated.allocate(0..50_000, Allocate::Extend)?;
    preallocated.write_direct(8192, &[7; 4096], Privileges::Keep)?;
    preallocated.sync_all()?;
    write(fs, "tiny", 10, 50)?;
    fs.set_xattr(open_file(fs, "tiny")?.id(), b"user.a", &[1; 2000], SetXattr::Either)?;
    fs.link(open_file(fs, "tiny")?.id(), dir, b"linked")?;
    open_file(fs, "tiny")?.sync_all()?;
    fs.rename((root, b"short"), (dir, b"moved"), RenameFlags::default())?;
    open_file(fs, "fill/moved")?.sync_all()?;
    create(fs, "clone")?;
    open_file(fs, "clone")?.clone_range(0, &open_file(fs, "twin")?, 0, 0)?;
    open_file(fs, "clone")?.sync_all()?;
    fs.unlink(dir, b"000")?;
    fs.sync_directory(dir)?;
    Ok(8)
}

impl Template {
    fn new() -> Result<Self> {
        let profiles = MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() };
        let device = fresh(VOLUME_BYTES, &profiles)?;
        let none = EnospcInjector::default();
        let filesystem = open(&device, &none)?;
        fill(&filesystem, FILLERS)?;
        let data = crate::data_range(&filesystem)?;
        let syncs = change(&filesystem)?;
        let logged = filesystem.sync_counts().fast;
        ensure!(logged == syncs, "{logged} of {syncs} syncs have written to the log");
        let view = View::of(&filesystem)?;
        filesystem.abandon();
        drop(filesystem);
        let mut image = vec![0; usize::try_from(device.bytes())?];
        device.read_at(0, &mut image)?;
        Ok(Self { image, data, view })
    }

    fn compare(&self, filesystem: &Filesystem, what: &str) -> Result<()> {
        let difference = self.view.difference(&View::of(filesystem)?);
        ensure!(difference.is_empty(), "{what}:\n{difference}");
        Ok(())
    }
}

/// Opens the volume while one request fails. Returns whether a request failed.
fn run(template: &Template, aim: Aim, reached: &mut Reached) -> Result<bool> {
    let Aim { kind, nth, .. } = aim;
    let medium: Arc<dyn Device> = Arc::new(MemoryDevice::copy_of("memory", &template.image));
    let injector = Arc::new(Injector::new(Arc::clone(&medium), template.data.clone()));
    injector.arm(kind, nth);
    let device: Arc<dyn Device> = Arc::<Injector>::clone(&injector);
    let opened = open_for(kind, &device, injector.enospc());
    // What replays of this image commit.
    let synced = opened.and_then(|filesystem| filesystem.sync().map(|()| filesystem));
    let is_struck = injector.is_struck();
    injector.disarm();
    match synced {
        Ok(filesystem) => {
            template.compare(&filesystem, "opened")?;
            filesystem.close()?;
            check(&medium)?;
        }
        Err(error) => {
            ensure!(is_struck, "{error:?}, and nothing has failed");
            ensure!(kind.errnos().contains(&error.errno()), "have {error:?}");
            reached.entry("open").or_default().insert(kind);
            check_crashed(&medium)?;
            let filesystem = open(&medium, &EnospcInjector::default()).context("opened again")?;
            template.compare(&filesystem, "opened again")?;
            filesystem.close()?;
            check_crashed(&medium)?;
        }
    }
    Ok(is_struck)
}

fn check_kind(kind: Kind) {
    let template = Template::new().expect("a volume with a log");
    let spacing = 4;
    let (runs, reached) =
        crate::fail_each(kind, spacing, &|aim, reached| run(&template, aim, reached));
    assert!(runs > 0 && reached.contains_key("open"), "{kind:?}: {runs} runs");
}

#[test]
fn a_log_is_shown_only_by_opens_that_replay_it() {
    let template = Template::new().unwrap();
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::copy_of("memory", &template.image));
    let mut ignoring = MountOptions::default().subvolume(Subvolume::Id(TOP_LEVEL));
    ignoring.ignore_log = true;
    let filesystem = Filesystem::open_devices(vec![Arc::clone(&device)], &ignoring).unwrap();
    assert!(template.compare(&filesystem, "the last commit").is_err());
    drop(filesystem);
    let reading = MountOptions::default().subvolume(Subvolume::Id(TOP_LEVEL));
    let filesystem = Filesystem::open_devices(vec![Arc::clone(&device)], &reading).unwrap();
    template.compare(&filesystem, "opened for reading").unwrap();
    drop(filesystem);
    let none = Aim { kind: Kind::Flush, nth: 0, from: None };
    assert!(!run(&template, none, &mut Reached::new()).unwrap());
}

#[test]
fn each_reservation_of_a_replay_fails() {
    check_kind(Kind::Reservation);
}

#[test]
fn each_read_of_metadata_of_a_replay_fails() {
    check_kind(Kind::MetadataRead);
}

#[test]
fn each_uncached_read_of_a_replay_fails() {
    check_kind(Kind::UncachedRead);
}

#[test]
fn each_write_of_metadata_of_a_replay_fails() {
    check_kind(Kind::MetadataWrite);
}

#[test]
fn each_flush_of_a_replay_fails() {
    check_kind(Kind::Flush);
}
