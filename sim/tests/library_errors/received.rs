//! Errors while send streams are received: a new subvolume, and one that is made from it. Each
//! request fails once, one in each run. The kinds of errors are those of `main`.
//!
//! 1. A receive that fails returns ENOSPC or EIO. The subvolumes that it has reported are complete
//!    and durable.
//! 2. The same call, without the fault, goes on. Then everything is as in a run without errors, and
//!    the checker finds nothing.

use crate::injector::{Injector, Kind};
use crate::subvolumes::steps::{create, fill, open as open_file, snapshot, subvolume, write};
use crate::subvolumes::view::View;
use crate::subvolumes::{FILLERS, VOLUME_BYTES, open, open_for};
use crate::{Aim, Reached};
use anyhow::{Context, Result, ensure};
use butternut::SnapshotAccess::ReadOnly;
use butternut::receive::{ReceiveReport, StreamEnd, StreamReader};
use butternut::{
    Allocate, EnospcInjector, Filesystem, Follow, NewInode, RenameFlags, SendOptions, SetXattr,
};
use butternut_device::{Device, MemoryDevice};
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::volume::{check, check_crashed, fresh};
use std::ops::Range;
use std::sync::Arc;

/// How often a receive keeps what it has, in bytes of the stream.
const CHECKPOINT_BYTES: u64 = 60_000;

/// A volume that receives, two streams, and what is visible when both were received.
struct Template {
    image: Vec<u8>,
    data: Range<u64>,
    streams: Vec<u8>,
    view: View,
}

/// Makes the subvolume that the first stream has.
fn make(fs: &Filesystem) -> butternut::Result<()> {
    fs.create_subvolume(fs.root(), b"sub", &NewInode::new(0o755))?;
    let root = fs.resolve(b"sub", Follow::Last)?;
    for name in ["sub/data", "sub/tiny", "sub/holes", "sub/gone"] {
        create(fs, name)?;
    }
    write(fs, "sub/data", 0, 150_000)?;
    write(fs, "sub/tiny", 0, 100)?;
    write(fs, "sub/holes", 200_000, 5000)?;
    let data = open_file(fs, "sub/data")?.id();
    fs.set_xattr(data, b"user.a", &[1; 3000], SetXattr::Either)?;
    let dir = fs.mkdir(root, b"dir", &NewInode::new(0o700))?;
    fs.link(data, dir, b"linked")?;
    fs.symlink(dir, b"link", b"../data", &NewInode::new(0o777))?;
    snapshot(fs, "sub", ("", "one"), ReadOnly)
}

/// Changes it, for the second stream.
fn change(fs: &Filesystem) -> butternut::Result<()> {
    let root = fs.resolve(b"sub", Follow::Last)?;
    let dir = fs.resolve(b"sub/dir", Follow::Last)?;
    write(fs, "sub/data", 30_000, 40_000)?;
    open_file(fs, "sub/data")?.allocate(90_000..120_000, Allocate::PunchHole)?;
    create(fs, "sub/clone")?;
    open_file(fs, "sub/clone")?.clone_range(0, &open_file(fs, "sub/data")?, 0, 0)?;
    open_file(fs, "sub/holes")?.truncate(100_000)?;
    fs.rename((root, b"tiny"), (dir, b"moved"), RenameFlags::default())?;
    fs.remove_xattr(open_file(fs, "sub/data")?.id(), b"user.a")?;
    fs.unlink(root, b"gone")?;
    snapshot(fs, "sub", ("", "two"), ReadOnly)
}

/// Receives both streams, or what is left of them.
fn receive(filesystem: &Filesystem, streams: &[u8]) -> (ReceiveReport, butternut::Result<()>) {
    let (mut report, mut reader) = (ReceiveReport::default(), StreamReader::new(streams));
    let (root, end) = (filesystem.root(), StreamEnd::Input);
    let received =
        filesystem.receive_resumable(root, &mut reader, end, CHECKPOINT_BYTES, &mut report);
    (report, received)
}

impl Template {
    fn new() -> Result<Self> {
        let profiles = MkfsOptions { metadata: Some(Profile::Single), ..MkfsOptions::default() };
        let none = EnospcInjector::default();
        let source = open(&fresh(VOLUME_BYTES, &profiles)?, &none)?;
        let mut streams = Vec::new();
        make(&source)?;
        source.send(subvolume(&source, "one")?, &SendOptions::default(), &mut streams)?;
        change(&source)?;
        let parent = Some(subvolume(&source, "one")?);
        let options = SendOptions::default().parent(parent);
        source.send(subvolume(&source, "two")?, &options, &mut streams)?;
        source.close()?;

        let device = fresh(VOLUME_BYTES, &profiles)?;
        let filesystem = open(&device, &none)?;
        fill(&filesystem, FILLERS)?;
        let data = crate::data_range(&filesystem)?;
        filesystem.close()?;
        let mut image = vec![0; usize::try_from(device.bytes())?];
        device.read_at(0, &mut image)?;
        let filesystem = open(&device, &none)?;
        let (report, received) = receive(&filesystem, &streams);
        received?;
        ensure!(report.subvolumes.len() == 2, "{report:?}");
        let view = View::of(&filesystem)?;
        filesystem.close()?;
        check(&device)?;
        Ok(Self { image, data, streams, view })
    }
}

/// Receives the streams while one request fails. Returns whether a request failed.
fn run(template: &Template, aim: Aim, reached: &mut Reached) -> Result<bool> {
    let Aim { kind, nth, .. } = aim;
    let medium: Arc<dyn Device> = Arc::new(MemoryDevice::copy_of("memory", &template.image));
    let injector = Arc::new(Injector::new(Arc::clone(&medium), template.data.clone()));
    let device: Arc<dyn Device> = Arc::<Injector>::clone(&injector);
    let mut filesystem = open_for(kind, &device, injector.enospc())?;
    injector.arm(kind, nth);
    let (report, received) = receive(&filesystem, &template.streams);
    let is_struck = injector.is_struck();
    injector.disarm();
    let mut present = report.subvolumes.len();
    if let Err(error) = received {
        ensure!(is_struck, "{error:?}, and nothing has failed");
        ensure!(kind.errnos().contains(&error.errno()), "have {error:?}");
        reached.entry("receive").or_default().insert(kind);
        if kind.is_data_write() {
            // The lost data is an error of a sync of all files, too.
            filesystem.sync().unwrap_or_default();
        }
        if !filesystem.is_writable() || nth.is_multiple_of(2) {
            filesystem.abandon();
            drop(filesystem);
            check_crashed(&medium)?;
            filesystem = open(&medium, &EnospcInjector::default())?;
        }
        let (report, received) = receive(&filesystem, &template.streams);
        received.with_context(|| format!("again, after {error:?}"))?;
        ensure!(report.present >= present, "{} of {present} are there", report.present);
        present = report.present + report.subvolumes.len();
    }
    ensure!(present == 2, "{present} subvolumes");
    let difference = template.view.difference(&View::of(&filesystem)?);
    ensure!(difference.is_empty(), "received:\n{difference}");
    filesystem.close()?;
    check_crashed(&medium)?;
    let filesystem = open(&medium, &EnospcInjector::default())?;
    let difference = template.view.difference(&View::of(&filesystem)?);
    ensure!(difference.is_empty(), "opened again:\n{difference}");
    Ok(is_struck)
}

fn check_kind(kind: Kind) {
    let template = Template::new().expect("a run without errors");
    let spacing = 1;
    let (runs, reached) =
        crate::fail_each(kind, spacing, &|aim, reached| run(&template, aim, reached));
    assert!(runs > 0 && reached.contains_key("receive"), "{kind:?}: {runs} runs");
}

#[test]
fn each_reservation_of_a_receive_fails() {
    check_kind(Kind::Reservation);
}

#[test]
fn each_read_of_metadata_of_a_receive_fails() {
    check_kind(Kind::MetadataRead);
}

#[test]
fn each_uncached_read_of_a_receive_fails() {
    check_kind(Kind::UncachedRead);
}

#[test]
fn all_writes_of_data_of_a_receive_fail_from_each_one_on() {
    check_kind(Kind::DataWrites);
}

#[test]
fn each_write_of_metadata_of_a_receive_fails() {
    check_kind(Kind::MetadataWrite);
}

#[test]
fn each_flush_of_a_receive_fails() {
    check_kind(Kind::Flush);
}
