//! The life of a mount: made, served, gone.
//!
//! ```text
//! mount() -> Mounted -- serve() -> (unmounted by anyone) -> the volume is released
//! ```

use std::io;
use std::path::{Path, PathBuf};

use butternut::Filesystem;
use fuser::{Session, SessionUnmounter};

use crate::options::Options;
use crate::readahead;
use crate::requests::Door;

/// An extended attribute that every file of the mount answers, and none lists: the process that
/// serves it. `butternut umount` waits for that process to end. The name is in no namespace, so
/// it hides nothing that a volume may hold.
pub const DAEMON_XATTR: &str = "butternut.daemon";

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
}

/// A mount that the kernel knows and nobody serves yet.
pub struct Mounted {
    session: Session<Door>,
}

/// Ends a mount from another thread.
pub struct Unmounter {
    unmounter: SessionUnmounter,
}

/// Mounts `filesystem` on a directory.
pub fn mount(
    filesystem: Filesystem,
    mountpoint: &Path,
    options: &Options,
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
    let door = Door::new(filesystem, options.permissions());
    let session = Session::new(door, &place, &options.config()).map_err(FuseError::Refused)?;
    readahead::raise(&place);
    Ok(Mounted { session })
}

impl Mounted {
    pub fn unmounter(&mut self) -> Unmounter {
        Unmounter { unmounter: self.session.unmount_callable() }
    }

    /// Answers requests until the mount is gone, however that comes; then the filesystem is
    /// closed, and with it its devices.
    pub fn serve(self) -> Result<(), FuseError> {
        self.session.run().map_err(FuseError::Served)
    }
}

impl Unmounter {
    /// Unmounts. A second call does nothing.
    pub fn unmount(&mut self) -> io::Result<()> {
        self.unmounter.unmount()
    }
}
