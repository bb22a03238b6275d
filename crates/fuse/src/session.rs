//! The life of a mount: made, served, gone.
//!
//! ```text
//! mount() -> Mounted -- serve() -> (unmounted by anyone) -> committed -> the volume is released
//! ```
//!
//! A mount of this kind is gone for the kernel before its last commit: unmount, and then wait for
//! the process to end. To hear of errors, ask for [`SYNC_XATTR`] before.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;

use butternut::{Error, Filesystem};

use crate::connection::Worker;
use crate::door::{Door, Manner, Report};
use crate::near::Callers;
use crate::options::Options;
use crate::turn::Turn;
use crate::{attach, pages};

/// An extended attribute that every file of the mount answers, and none lists: the process that
/// serves it. `butternut umount` waits for that process to end. The name is in no namespace, so
/// it hides nothing that a volume may hold.
pub const DAEMON_XATTR: &str = "butternut.daemon";

/// Another: it answers when everything that the process was told is down on the devices, or with
/// the error. The kernel does not tell the process of `sync(2)`.
pub const SYNC_XATTR: &str = "butternut.sync";

/// Why there is no mount, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    #[error("{} is not a directory", path.display())]
    NotDirectory { path: PathBuf },
    #[error("{}", path.display())]
    Mountpoint {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("/dev/fuse cannot be opened")]
    NoFuse(#[source] io::Error),
    #[error("the system refuses the mount")]
    Refused(#[source] io::Error),
    #[error("the connection to the kernel broke")]
    Served(#[source] io::Error),
    #[error("the last changes could not be written")]
    Closed(#[source] Error),
}

/// A mount that the kernel knows and whose process has yet to serve it.
pub struct Mounted {
    door: Arc<Door>,
    worker: Worker,
    device: Arc<OwnedFd>,
    mountpoint: PathBuf,
    threads: usize,
    all_wait: bool,
}

/// Ends a mount from another thread.
pub struct Unmounter {
    door: Weak<Door>,
    device: Arc<OwnedFd>,
    mountpoint: PathBuf,
}

/// Mounts `filesystem` on a directory. `report` is called once, if writing fails for good.
pub fn mount(
    filesystem: Filesystem,
    mountpoint: &Path,
    options: &Options,
    report: Report,
) -> Result<Mounted, FuseError> {
    let path = mountpoint.to_path_buf();
    let place = mountpoint
        .canonicalize()
        .map_err(|source| FuseError::Mountpoint { path: path.clone(), source })?;
    if !place.is_dir() {
        return Err(FuseError::NotDirectory { path });
    }
    if let Err(error) = std::fs::metadata("/dev/fuse") {
        return Err(FuseError::NoFuse(error));
    }
    let manner = Manner {
        checks_permissions: options.permissions(),
        is_writable: options.is_writable,
        caching: options.caching,
        report,
    };
    let device = attach::attach(&place, options).map_err(FuseError::Refused)?;
    let device = Arc::new(device);
    let door = Arc::new(Door::new(filesystem, manner, Arc::clone(&device)));
    let greeted = device.try_clone().and_then(|own| {
        let mut worker = Worker::new(own);
        worker.negotiate(&door)?;
        Ok(worker)
    });
    let worker = greeted.map_err(|error| {
        // The first error is the one to tell.
        attach::detach(&device, &place).unwrap_or_default();
        FuseError::Refused(error)
    })?;
    pages::raise_limits(&place);
    let Options { threads, all_wait, .. } = *options;
    Ok(Mounted { door, worker, device, mountpoint: place, threads: threads.max(1), all_wait })
}

impl Mounted {
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            door: Arc::downgrade(&self.door),
            device: Arc::clone(&self.device),
            mountpoint: self.mountpoint.clone(),
        }
    }

    /// Answers requests until the mount is gone, however that comes; then the filesystem is
    /// committed and closed, and with it its devices.
    pub fn serve(mut self) -> Result<(), FuseError> {
        let turn = if self.all_wait {
            None
        } else {
            Some(Arc::new((Turn::default(), Callers::new().map_err(FuseError::Served)?)))
        };
        let mut others = Vec::new();
        for _ in 1..self.threads {
            let mut worker = self.worker.another().map_err(FuseError::Served)?;
            let (door, turn) = (Arc::clone(&self.door), turn.clone());
            let named = thread::Builder::new().name("butternut-fuse".into());
            others.push(
                named
                    .spawn(move || worker.serve(&door, turn.as_deref()))
                    .map_err(FuseError::Served)?,
            );
        }
        let mut served = self.worker.serve(&self.door, turn.as_deref());
        for other in others {
            let ended = other.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            served = served.and(ended);
        }
        let closed = match Arc::into_inner(self.door) {
            Some(door) => door.close(),
            None => Ok(()),
        };
        served.map_err(FuseError::Served)?;
        closed.map_err(FuseError::Closed)
    }
}

impl Unmounter {
    /// Unmounts. Where the mount is gone already, nothing is done.
    pub fn unmount(&self) -> io::Result<()> {
        attach::detach(&self.device, &self.mountpoint)
    }

    /// Brings down what was written, while the mount is still in use.
    pub fn commit(&self) -> Result<(), FuseError> {
        self.door.upgrade().map_or(Ok(()), |door| door.commit().map_err(FuseError::Closed))
    }
}
