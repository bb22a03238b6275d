//! The files that contain a logical address, in the form that the control socket carries. The
//! command for a volume that is not mounted prints the same structure.
//!
//! 1. A file whose data has not been written back yet has no address.
//! 2. A response has at most [`PATH_BYTES_MAX`] bytes of paths and [`OWNERS_MAX`] files: more are
//!    an error, and not left out.

use butternut::inspect::ExtentOwner;
use butternut::{Error, FileId, Filesystem};
use serde::{Deserialize, Serialize};

use crate::failure::chain_with_hint;
use crate::output::text;

/// Each byte of a path takes at most four in a response.
const PATH_BYTES_MAX: usize = 512 << 10;
const OWNERS_MAX: usize = 16 << 10;

/// Which files are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogicalRequest {
    pub(crate) logical: u64,
    /// Also files that contain another part of the same extent.
    pub(crate) any_offset: bool,
    pub(crate) with_paths: bool,
}

/// A file that contains the address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogicalOwner {
    pub(crate) subvolume: u64,
    pub(crate) ino: u64,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    /// The paths from the top level; none if the subvolume has been deleted.
    pub(crate) paths: Vec<Vec<u8>>,
}

/// An error, and what it concerns.
pub(crate) type OwnerError = (String, Box<Error>);

impl LogicalRequest {
    /// Returns the files; none if no extent contains the address.
    pub(crate) fn owners(self, filesystem: &Filesystem) -> Result<Vec<ExtentOwner>, OwnerError> {
        let found = filesystem.owners_of_logical(self.logical, self.any_offset);
        match found {
            Err(Error::NotFound) => Ok(Vec::new()),
            found => found
                .map_err(|error| (format!("logical address {}", self.logical), Box::new(error))),
        }
    }

    /// Returns a file with its paths, if they are wanted.
    pub(crate) fn described(
        self,
        filesystem: &Filesystem,
        owner: ExtentOwner,
    ) -> Result<LogicalOwner, OwnerError> {
        let ExtentOwner { subvolume, ino, offset } = owner;
        let paths = if self.with_paths { paths(filesystem, owner)? } else { Vec::new() };
        Ok(LogicalOwner { subvolume, ino, offset, paths })
    }

    /// Returns all files for a response (law 2).
    pub(super) fn answer(self, filesystem: &Filesystem) -> Result<Vec<LogicalOwner>, String> {
        let failed = |(what, error): OwnerError| format!("{what}: {}", chain_with_hint(&error));
        let owners = self.owners(filesystem).map_err(failed)?;
        let too_many = || "too many files contain it for one response (-P prints no paths)";
        if owners.len() > OWNERS_MAX {
            return Err(too_many().to_owned());
        }
        let (mut all, mut bytes) = (Vec::new(), 0_usize);
        for owner in owners {
            let owner = self.described(filesystem, owner).map_err(failed)?;
            bytes = owner.paths.iter().fold(bytes, |sum, path| sum.saturating_add(path.len()));
            if bytes > PATH_BYTES_MAX {
                return Err(too_many().to_owned());
            }
            all.push(owner);
        }
        Ok(all)
    }
}

fn paths(filesystem: &Filesystem, owner: ExtentOwner) -> Result<Vec<Vec<u8>>, OwnerError> {
    let failed =
        |error| (format!("inode {} of subvolume {}", owner.ino, owner.subvolume), Box::new(error));
    let subvolume = filesystem.subvolume(owner.subvolume).map_err(failed)?;
    let Some(above) = subvolume.path else { return Ok(Vec::new()) };
    let inside = filesystem.paths_of(FileId::new(owner.subvolume, owner.ino)).map_err(failed)?;
    let top = [b"/", above.as_slice()].concat();
    Ok(inside.iter().map(|path| text::joined(&top, path)).collect())
}
