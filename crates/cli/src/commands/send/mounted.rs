//! `send` of a subvolume in a mounted volume: the process of the mount makes the stream, and sends
//! it over its control socket. So the stream is what the mount has, without a commit or a second
//! reader, and the owner of the mount and root can have it.
//!
//! 1. The directory of the subvolume stays open until the stream ends: meanwhile the volume is not
//!    unmounted, as while the kernel sends.
//! 2. The mount and the ids in the request are those of open directories: a path may name another
//!    directory meanwhile, in another volume with the same ids.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use butternut_sys::volume_calls::is_kernel_btrfs;
use butternut_sys::{storage, subvolume_calls};
use rustix::io::Errno;

use super::file::OutputFile;
use super::temporary::SignalGuard;
use super::version;
use crate::args::SendArgs;
use crate::commands::mounted;
use crate::control::{Request, SendRequest, client, device_number_of};
use crate::failure::subvolumes::not_a_subvolume;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, text};
use crate::volume::identity::device_identity;

const COMMAND: &str = "send";

pub(super) fn run(
    args: &SendArgs,
    file: Option<(&Path, SignalGuard)>,
    out: &mut Output,
) -> Outcome {
    let argument = &args.volume.volume;
    let is_missing = !Path::new(argument).exists() && mounted::is_path(argument, true);
    if mounted::is_plain_file(argument) {
        return Err(not_a_subvolume(argument.as_bytes()));
    }
    if !mounted::is_directory(argument) && !is_missing {
        return Ok(mounted::usage("of a volume that is not mounted, name VOLUME and SUBVOLUME"));
    }
    let path = Path::new(argument);
    let (directory, device) = open(path)?;
    if is_kernel_btrfs(&directory) {
        return Err(mounted::directory::of_kernel(&shown(path), "btrfs send"));
    }
    let subvolume = read_only_id(path, &directory, "`butternut property set PATH ro true`")?;
    let received = |other| {
        let other = Path::new(other);
        let (directory, other_device) = open(other)?;
        if other_device != device {
            let why = format!("is not in the volume of {}", shown(path));
            return Err(Failure::new(shown(other), why));
        }
        let if_writable = "name the read-only snapshot that was sent to the receiver";
        read_only_id(other, &directory, if_writable)
    };
    let request = SendRequest {
        subvolume,
        parent: args.parent.as_ref().map(received).transpose()?,
        clone_sources: args.clone_sources.iter().map(received).collect::<Result<_, _>>()?,
        version: version(args),
        no_data: args.no_data,
        compressed_data: args.compressed_data,
    };
    let failed =
        |to: &str, error: io::Error| Failure::io(to, &error).hint("the stream is not complete");
    match file {
        None => client::request_stream(COMMAND, (path, device), request, out)?
            .and_then(|()| out.flush())
            .map_err(|error| failed("stdout", error))?,
        Some((file, guard)) => {
            let storage = Storage::of(path, device)?;
            let is_storage = |found: &Metadata| storage.has(found);
            let mut to = OutputFile::create(file, &is_storage, &guard)?;
            client::request_stream(COMMAND, (path, device), request, &mut to)?
                .map_err(|error| failed(&file.display().to_string(), error))?;
            to.finish()?;
        }
    }
    drop(directory);
    Ok(Completion::Success)
}

fn shown(path: &Path) -> String {
    text::escaped(path.as_os_str().as_bytes())
}

/// Opens a directory, and returns the device number of its mount (law 2).
fn open(path: &Path) -> Result<(File, (u32, u32)), Failure> {
    let opened = File::open(path).and_then(|file| {
        let device = device_number_of(file.as_fd())?;
        Ok((file, device))
    });
    opened.map_err(|error| mounted::failed(path, &error))
}

/// Returns the id of a read-only subvolume.
fn read_only_id(path: &Path, directory: &File, if_writable: &str) -> Result<u64, Failure> {
    let failed = |error: &io::Error| {
        let failure = mounted::failed(path, error);
        match Errno::from_io_error(error) {
            Some(Errno::INVAL) => failure.hint("it is no subvolume"),
            _ => failure,
        }
    };
    let is_read_only = subvolume_calls::is_read_only(directory.as_fd());
    if !is_read_only.map_err(|error| failed(&error))? {
        let why = "only read-only subvolumes can be sent";
        return Err(Failure::new(shown(path), why).hint(if_writable));
    }
    let info = subvolume_calls::info(directory.as_fd()).map_err(|error| failed(&error))?;
    Ok(info.id)
}

/// The devices of a mounted volume: their identities, and their paths, of which the storage below
/// and above them is found. A path may mean nothing here, in another mount namespace.
struct Storage {
    identities: Vec<String>,
    paths: Vec<String>,
}

impl Storage {
    fn of(path: &Path, device: (u32, u32)) -> Result<Self, Failure> {
        let volume = client::request_of(COMMAND, (path, device), &Request::Volume)?;
        let list = |name| {
            let list = volume.get(name).and_then(|list: &serde_json::Value| list.as_array());
            let text = |text: &serde_json::Value| text.as_str().map(str::to_owned);
            list.into_iter().flatten().filter_map(text).collect()
        };
        Ok(Self { identities: list("devices"), paths: list("paths") })
    }

    fn has(&self, found: &Metadata) -> bool {
        let is_part = |device: Metadata| storage::is_shared(found, &device);
        self.identities.iter().any(|device| device.starts_with(&device_identity(found)))
            || self.paths.iter().any(|path| fs::metadata(path).is_ok_and(is_part))
    }
}
