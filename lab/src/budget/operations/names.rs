//! Operations on names, attributes and the volume as a whole.

use super::super::meter::Meter;
use super::{Call, FIRST_CALLS, Volume, name, open_to_read};
use anyhow::{Context, Result, ensure};
use butternut::{
    FIRST_ENTRY, FileId, Filesystem, NewInode, RenameFlags, SetXattr, SnapshotAccess, TOP_LEVEL,
};
use std::sync::Arc;

/// More files than any operation has calls.
const FILES: u32 = 64 + FIRST_CALLS;
const LISTED: u32 = 200;

/// Returns a call that is measured as a whole, in a directory with `files` files.
fn whole<R: 'static>(
    volume: &Volume,
    files: u32,
    operation: impl Fn(&Filesystem, FileId, u32) -> Result<R, butternut::Error> + 'static,
) -> Result<Call> {
    let (fs, directory) = (volume.fs.clone(), volume.directory(files)?);
    Ok(Box::new(move |number, meter: &mut Meter| {
        meter.count(|| operation(&fs, directory, number)).context("not called")??;
        Ok(())
    }))
}

pub(super) fn open(volume: &Volume) -> Result<Call> {
    volume.directory(FILES)?;
    let device = Arc::clone(&volume.device);
    Ok(Box::new(move |_, meter: &mut Meter| {
        let fs = meter.count(|| open_to_read(&device)).context("not called")??;
        drop(fs);
        Ok(())
    }))
}

pub(super) fn create(volume: &Volume) -> Result<Call> {
    whole(volume, 0, |fs, dir, number| fs.create(dir, &name(number), &NewInode::new(0o644)))
}

pub(super) fn create_fsync(volume: &Volume) -> Result<Call> {
    whole(volume, 0, |fs, dir, number| {
        let id = fs.create(dir, &name(number), &NewInode::new(0o644))?;
        fs.open_file(id)?.sync_all()
    })
}

pub(super) fn create_commit(volume: &Volume) -> Result<Call> {
    whole(volume, 0, |fs, dir, number| {
        fs.create(dir, &name(number), &NewInode::new(0o644))?;
        fs.sync()
    })
}

pub(super) fn mkdir(volume: &Volume) -> Result<Call> {
    whole(volume, 0, |fs, dir, number| fs.mkdir(dir, &name(number), &NewInode::new(0o755)))
}

pub(super) fn lookup_stat(volume: &Volume) -> Result<Call> {
    // The same file each time, so that it is cached.
    whole(volume, FILES, |fs, dir, _| fs.stat(fs.lookup(dir, &name(0))?))
}

pub(super) fn list(volume: &Volume) -> Result<Call> {
    let (fs, directory) = (volume.fs.clone(), volume.directory(LISTED)?);
    Ok(Box::new(move |_, meter: &mut Meter| {
        let listed = meter.count(|| fs.read_dir(directory, FIRST_ENTRY).map(Iterator::count));
        ensure!(listed.context("not called")?? == LISTED as usize, "an incomplete list");
        Ok(())
    }))
}

pub(super) fn rename(volume: &Volume) -> Result<Call> {
    whole(volume, FILES, |fs, dir, number| {
        let new = format!("renamed-{number:04}");
        fs.rename((dir, &name(number)), (dir, new.as_bytes()), RenameFlags::default())
    })
}

pub(super) fn link(volume: &Volume) -> Result<Call> {
    whole(volume, FILES, |fs, dir, number| {
        let id = fs.lookup(dir, &name(number))?;
        fs.link(id, dir, format!("link-{number:04}").as_bytes())
    })
}

pub(super) fn set_xattr(volume: &Volume) -> Result<Call> {
    whole(volume, FILES, |fs, dir, number| {
        let id = fs.lookup(dir, &name(number))?;
        fs.set_xattr(id, b"user.name", b"value", SetXattr::Either)
    })
}

pub(super) fn unlink(volume: &Volume) -> Result<Call> {
    whole(volume, FILES, |fs, dir, number| fs.unlink(dir, &name(number)))
}

pub(super) fn commit_clean(volume: &Volume) -> Result<Call> {
    whole(volume, FILES, |fs, _, _| fs.sync())
}

pub(super) fn snapshot(volume: &Volume) -> Result<Call> {
    whole(volume, FILES, |fs, _, number| {
        let name = format!("snapshot-{number}");
        fs.snapshot(TOP_LEVEL, fs.root(), name.as_bytes(), SnapshotAccess::ReadOnly)
    })
}
