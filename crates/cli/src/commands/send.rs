//! `send`: writes a subvolume, or its difference to another one, as a stream for `btrfs receive`.
//!
//! 1. A stream that is not complete is a failure, also where nothing reads the rest of it: it may
//!    be a backup.
//! 2. All arguments are checked before FILE is opened ([`mod@file`]).

mod file;
mod mounted;
mod temporary;

use std::ffi::OsString;
use std::fs::{self, Metadata};

use butternut::{Error, Follow, SendOptions, SendProtocol};
use butternut_sys::storage;

use crate::args::{GlobalArgs, SendArgs};
use crate::commands::mounted::with_path_apart;
use crate::commands::transaction::failed;
use crate::failure::subvolumes::not_a_subvolume;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, text};
use crate::volume::OpenVolume;
use file::OutputFile;
use temporary::SignalGuard;

pub(crate) fn run(global: &GlobalArgs, args: &SendArgs, out: &mut Output) -> Outcome {
    if args.file.is_none() && out.is_terminal {
        return Err(Failure::new("stdout", "a stream is not written to a terminal")
            .hint("name a file with -f, or pipe the stream to `btrfs receive`"));
    }
    // Before the process has other threads.
    let file = match &args.file {
        Some(file) => Some((file.as_path(), SignalGuard::start()?)),
        None => None,
    };
    let Some(path) = &args.subvolume else { return mounted::run(args, file, out) };
    if let Some(usage) = with_path_apart(&args.volume.volume, &[path]) {
        return Ok(usage);
    }
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let subvolume = find(
        &opened,
        path,
        "`butternut property set VOLUME PATH ro true`, or send a snapshot (-r)",
    )?;
    let sources = args.clone_sources.iter().map(|path| find_received(&opened, path));
    let sources: Vec<u64> = sources.collect::<Result<_, _>>()?;
    let parent = parent(&opened, args, subvolume, &sources)?;
    let protocol = if version(args) == 1 { SendProtocol::One } else { SendProtocol::Two };
    let options = SendOptions::default()
        .parent(parent)
        .clone_sources(sources)
        .protocol(protocol)
        .no_data(args.no_data)
        .compressed_data(args.compressed_data);
    let what = text::escaped(&text::bytes(path));
    match &file {
        None => opened
            .filesystem
            .send(subvolume, &options, out)
            .map_err(|error| failure(&what, "stdout", error))?,
        Some((file, guard)) => {
            let shown = file.display().to_string();
            let mut to = OutputFile::create(file, &|found| is_device(&opened, found), guard)?;
            opened
                .filesystem
                .send(subvolume, &options, &mut to)
                .map_err(|error| failure(&what, &shown, error))?;
            to.finish()?;
        }
    }
    Ok(Completion::Success)
}

/// Returns the version of the protocol.
fn version(args: &SendArgs) -> u8 {
    match args.proto.as_deref() {
        Some("0" | "2") => 2,
        None if args.compressed_data => 2,
        _ => 1,
    }
}

/// Returns whether a file is storage of a device of the volume.
fn is_device(opened: &OpenVolume, found: &Metadata) -> bool {
    let is_part = |device: Metadata| storage::is_shared(found, &device);
    opened.arg.devices.iter().any(|device| fs::metadata(&device.path).is_ok_and(is_part))
}

/// Returns the id of the read-only subvolume at a path; `if_writable` says what to do about one
/// that is not.
fn find(opened: &OpenVolume, path: &OsString, if_writable: &str) -> Result<u64, Failure> {
    let id = opened.resolve(path, Follow::Last)?;
    let path = text::bytes(path);
    if !id.is_subvolume_root() {
        return Err(not_a_subvolume(&path));
    }
    let info = opened.filesystem.subvolume(id.subvolume);
    let info = info.map_err(|error| failed(&path, &error))?;
    if !info.read_only {
        let error = Error::NotPermitted { what: "only read-only subvolumes can be sent" };
        return Err(failed(&path, &error).hint(if_writable));
    }
    Ok(info.id)
}

/// As [`find`], for a subvolume that the receiver has: it must have been read-only when it was
/// sent.
fn find_received(opened: &OpenVolume, path: &OsString) -> Result<u64, Failure> {
    find(opened, path, "name the read-only snapshot that was sent to the receiver")
}

/// Returns the parent that was named, or one of the clone sources.
fn parent(
    opened: &OpenVolume,
    args: &SendArgs,
    subvolume: u64,
    sources: &[u64],
) -> Result<Option<u64>, Failure> {
    if let Some(path) = &args.parent {
        return find_received(opened, path).map(Some);
    }
    if sources.is_empty() {
        return Ok(None);
    }
    let best = opened.filesystem.best_parent(subvolume, sources);
    let best = best.map_err(|error| opened.failure(&error))?;
    let what = text::escaped(&text::bytes(args.subvolume.as_ref().unwrap_or(&args.volume.volume)));
    best.map(Some).ok_or_else(|| {
        Failure::new(what, "no clone source is a snapshot of the same subvolume")
            .hint("name the parent with -p")
    })
}

/// Converts an error of a stream; `to` is where it was written.
fn failure(what: &str, to: &str, error: Error) -> Failure {
    if let Error::StreamOutput(error) = error {
        return Failure::io(to, &error).hint("the stream is not complete");
    }
    Failure::of(what, &error)
}
