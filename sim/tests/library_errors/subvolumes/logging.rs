//! Changes that an fsync writes to the log, while each request fails (`crate::stepwise`). A step
//! whose fsync has failed is there, but for what the fsync has made durable.

use super::steps::{Call, Step, create, fill, in_steps_change, open as open_file, write};
use super::stepwise::Subvolumes;
use super::view::View;
use crate::injector::Kind;
use crate::stepwise::fail_each;
use anyhow::{Result, ensure};
use butternut::{Allocate, EnospcInjector, Filesystem, Follow, RenameFlags, SetXattr};
use butternut_device::{Device, MemoryDevice};
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::volume::fresh;
use std::ops::Range;
use std::sync::Arc;

const FILLERS: usize = 20;

/// Accepts an error of a step that is made again: a part of it has been done.
fn done_before(result: butternut::Result<()>) -> butternut::Result<()> {
    const NOT_FOUND: i32 = 2;
    const EXISTS: i32 = 17;
    result.or_else(|error| match error.errno() {
        NOT_FOUND | EXISTS => Ok(()),
        _ => Err(error),
    })
}

fn steps() -> Vec<Step> {
    let all: [(&'static str, Call); 7] = [
        ("write and fsync", |fs| {
            let data = open_file(fs, "data")?;
            write(fs, "data", 10_000, 9000)?;
            data.allocate(40_000..60_000, Allocate::PunchHole)?;
            data.sync_all()
        }),
        ("truncate and fsync", |fs| {
            let data = open_file(fs, "data")?;
            data.truncate(300_001)?;
            data.sync_all()
        }),
        ("create and fsync", |fs| {
            done_before(create(fs, "fill/new"))?;
            write(fs, "fill/new", 0, 70_000)?;
            open_file(fs, "fill/new")?.sync_all()
        }),
        ("link and fsync", |fs| {
            let (tiny, dir) = (open_file(fs, "tiny")?, fs.resolve(b"fill", Follow::Last)?);
            fs.set_xattr(tiny.id(), b"user.a", &[1; 2000], SetXattr::Either)?;
            done_before(fs.link(tiny.id(), dir, b"linked"))?;
            tiny.sync_all()
        }),
        ("rename and fsync", |fs| {
            let dir = fs.resolve(b"fill", Follow::Last)?;
            let (from, to) = ((fs.root(), b"short".as_slice()), (dir, b"moved".as_slice()));
            done_before(fs.rename(from, to, RenameFlags::default()))?;
            open_file(fs, "fill/moved")?.sync_all()
        }),
        ("clone and fsync", |fs| {
            done_before(create(fs, "clone"))?;
            let clone = open_file(fs, "clone")?;
            clone.clone_range(0, &open_file(fs, "twin")?, 0, 0)?;
            clone.sync_all()
        }),
        ("unlink and fsync", |fs| {
            let dir = fs.resolve(b"fill", Follow::Last)?;
            done_before(fs.unlink(dir, b"000"))?;
            fs.sync_directory(dir)
        }),
    ];
    all.map(|(name, call)| in_steps_change(name, call)).into()
}

/// Returns a volume, the range of its data, and the script.
fn prepared() -> Result<(Vec<u8>, Range<u64>, Subvolumes)> {
    let profiles = MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() };
    let (device, none) = (fresh(super::VOLUME_BYTES, &profiles)?, EnospcInjector::default());
    let filesystem = super::open(&device, &none)?;
    fill(&filesystem, FILLERS)?;
    let data = crate::data_range(&filesystem)?;
    filesystem.close()?;
    let mut image = vec![0; usize::try_from(device.bytes())?];
    device.read_at(0, &mut image)?;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::copy_of("memory", &image));
    let filesystem: Filesystem = super::open(&device, &none)?;
    let (steps, mut views) = (steps(), vec![View::of(&filesystem)?]);
    for step in &steps {
        (step.call)(&filesystem)?;
        views.push(View::of(&filesystem)?);
    }
    ensure!(filesystem.sync_counts().fast > 0, "nothing is logged");
    Ok((image, data, Subvolumes { steps, views }))
}

fn check_kind(kind: Kind) {
    let (image, data, script) = prepared().expect("a run without errors");
    let trials = fail_each(&script, kind, &image, data);
    assert!(trials.unwrap_or_else(|error| panic!("{error:#}")) > 3);
}

#[test]
fn each_read_of_metadata_of_a_logged_step_fails() {
    check_kind(Kind::UncachedRead);
}

#[test]
fn each_write_of_metadata_of_a_logged_step_fails() {
    check_kind(Kind::MetadataWrite);
}

#[test]
fn each_flush_of_a_logged_step_fails() {
    check_kind(Kind::Flush);
}
