//! [`MountedDirectory`]: the directory that names a mounted volume to a command for the whole
//! volume.
//!
//! 1. The directory is opened once. Which mount it is on, whether that is read-only, and which
//!    volume a request reaches are those of the descriptor: the path may lead elsewhere meanwhile.
//! 2. The open sends no request to the process of a mount and needs no permission for the root of
//!    one, so root reaches the mounts of other users.
//! 3. The mounts of the kernel's btrfs have no process: each command does the same by a call of the
//!    kernel, or names the command of btrfs-progs.
//! 4. Nothing is changed through a read-only mount, as in the kernel.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use butternut_fuse::is_own_type;
use butternut_sys::mounts;
use butternut_sys::volume_calls::is_kernel_btrfs;
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, fstatvfs, openat};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::failed;
use crate::args::GlobalArgs;
use crate::control::hold::{HeldVolume, Hold};
use crate::control::receive::{ReceiveRequest, ReceiveResult};
use crate::control::volume_report::VolumeReport;
use crate::control::{Request, client, device_number_of};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json, text};

/// Returns the failure of a command that has no way to a mount of the kernel's btrfs.
pub(crate) fn of_kernel(shown: &str, instead: &str) -> Failure {
    Failure::new(shown, "is on a mount of the kernel's btrfs")
        .hint(format!("`{instead}` does it there"))
}

/// A directory of a mounted filesystem.
pub(crate) struct MountedDirectory<'a> {
    path: &'a Path,
    dir: OwnedFd,
    /// The device number of its mount.
    device: (u32, u32),
}

impl<'a> MountedDirectory<'a> {
    /// Opens the directory that an argument names. Returns `None` for every other argument.
    ///
    /// # Errors
    /// The mount of the directory cannot be found out.
    pub(crate) fn open(argument: &'a OsStr) -> Result<Option<Self>, Failure> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = Path::new(argument);
        let Ok(dir) = openat(CWD, path, flags, Mode::empty()) else { return Ok(None) };
        let device = device_number_of(dir.as_fd()).map_err(|error| failed(path, &error))?;
        Ok(Some(Self { path, dir, device }))
    }

    /// As [`Self::open`], of several arguments, of which only a single one names a directory.
    pub(crate) fn open_only<S: AsRef<OsStr>>(arguments: &'a [S]) -> Result<Option<Self>, Failure> {
        match arguments {
            [only] => Self::open(only.as_ref()),
            _ => Ok(None),
        }
    }

    /// Returns the path as typed, for messages.
    pub(crate) fn shown(&self) -> String {
        text::escaped(self.path.as_os_str().as_bytes())
    }

    /// Returns whether the directory is on a mount of the kernel's btrfs.
    pub(crate) fn is_kernels(&self) -> bool {
        is_kernel_btrfs(&self.dir)
    }

    /// Opens the directory for calls of the kernel's btrfs.
    ///
    /// # Errors
    /// The caller may not read the directory.
    pub(crate) fn reopen(&self) -> Result<File, Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(&self.dir, ".", flags, Mode::empty());
        opened.map(File::from).map_err(|errno| failed(self.path, &errno.into()))
    }

    /// Fails if the mount is read-only (law 4).
    pub(crate) fn require_writable(&self) -> Result<(), Failure> {
        let found = fstatvfs(&self.dir).map_err(|errno| failed(self.path, &errno.into()))?;
        if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
            let failure = failed(self.path, &Errno::ROFS.into());
            return Err(failure.hint(self.way_to_writable()));
        }
        Ok(())
    }

    /// Returns how a read-only mount becomes writable. A volume that is open for reading stays so.
    fn way_to_writable(&self) -> &'static str {
        const REMOUNT: &str = "`mount -o remount,rw` makes the mount writable";
        if self.is_kernels() {
            return REMOUNT;
        }
        let volume = client::request_of("mount", (self.path, self.device), &Request::Volume);
        let volume = volume.unwrap_or_default();
        if volume["is_writable"] == true {
            REMOUNT
        } else if volume["is_stream"] == true {
            "a mounted send stream can only be read; `butternut receive` makes its subvolumes in a \
             volume"
        } else {
            "the volume is open read-only: unmount it, and mount it again without ro"
        }
    }

    /// Sends a request to the process of the mount. Messages begin with `command`.
    ///
    /// # Errors
    /// As [`client::request`]; on a mount of the kernel's btrfs it names the command of btrfs-progs
    /// that has the arguments `command` (law 3).
    pub(crate) fn request<T: DeserializeOwned>(
        &self,
        command: &str,
        request: &Request,
    ) -> Result<T, Failure> {
        if self.is_kernels() {
            return Err(self.of_kernel(&format!("btrfs {command}")));
        }
        let response = client::request_of(command, (self.path, self.device), request)?;
        serde_json::from_value(response)
            .map_err(|error| Failure::new(command, format!("the response of the mount: {error}")))
    }

    /// Returns the failure of a command that has no way to a mount of the kernel's btrfs.
    pub(crate) fn of_kernel(&self, instead: &str) -> Failure {
        of_kernel(&self.shown(), instead)
    }

    /// Returns whether the directory is on a mount of this project, as far as that can be found
    /// out.
    pub(crate) fn may_be_own(&self) -> bool {
        let mounts = mounts::read_own_of_device(self.device);
        mounts
            .is_ok_and(|mounts| mounts.is_empty() || mounts.iter().any(|it| is_own_type(&it.kind)))
    }

    /// Describes a failed call on the directory.
    pub(crate) fn failed(&self, error: &io::Error) -> Failure {
        failed(self.path, error)
    }

    /// Reports a change of the volume, as [`Transaction::finish`] does.
    ///
    /// [`Transaction::finish`]: crate::commands::transaction::Transaction::finish
    pub(crate) fn finish(
        &self,
        global: &GlobalArgs,
        out: &mut Output,
        more: impl FnOnce(Object) -> Object,
    ) -> Outcome {
        self.finish_with(global, out, std::iter::empty(), more)
    }

    /// As [`Self::finish`], with the changes of paths.
    pub(crate) fn finish_with(
        &self,
        global: &GlobalArgs,
        out: &mut Output,
        changes: impl Iterator<Item = (&'static str, Vec<u8>)>,
        more: impl FnOnce(Object) -> Object,
    ) -> Outcome {
        if global.json {
            let changes = changes.map(|(what, path)| {
                serde_json::Value::from(Object::new().put("did", what).name("path", &path))
            });
            let changes: Vec<_> = changes.collect();
            let object = Object::new().put("volume", self.shown()).put("changes", changes);
            json::document(out, more(object))?;
        }
        Ok(Completion::Success)
    }

    /// Returns the path of a name in the directory.
    pub(crate) fn joined(&self, name: &[u8]) -> Vec<u8> {
        text::joined(self.path.as_os_str().as_bytes(), name)
    }

    /// Lets the process of the mount receive a stream from `input`, until its descriptor can be
    /// read. Also returns why `input` has
    /// failed if it has. Messages begin with `command`.
    ///
    /// # Errors
    /// As [`client::request`].
    pub(crate) fn receive(
        &self,
        command: &str,
        request: ReceiveRequest,
        input: (&mut dyn io::Read, BorrowedFd<'_>),
    ) -> Result<(ReceiveResult, Option<io::Error>), Failure> {
        client::request_receive(command, (self.path, self.device), request, input)
    }

    /// Lets the process of the mount hold its last commit. Messages begin with `command`.
    ///
    /// # Errors
    /// As [`client::request_hold`].
    pub(crate) fn hold(&self, command: &str) -> Result<(Hold, HeldVolume), Failure> {
        if self.is_kernels() {
            return Err(self.of_kernel("btrfs scrub start -B"));
        }
        client::request_hold(command, (self.path, self.device))
    }

    /// Requests the report on the volume.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub(crate) fn report(&self, command: &str) -> Result<VolumeReport, Failure> {
        let report: VolumeReport = self.request(command, &Request::Report)?;
        report.checked().map_err(|why| Failure::new(command, why))
    }
}
