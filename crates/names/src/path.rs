//! From an inode up to the root of its subvolume: paths.

use crate::error::NamesError;
use crate::link::{first_link, links};
use butternut_format::refused::Refused;
use butternut_format::units::Ino;
use butternut_tree::Tree;

/// Directories above one another that a path may have; with one byte a name, the kernel's longest
/// path has as many.
pub const DEPTH_MAX: usize = 2048;

/// The root directory of every subvolume.
const ROOT_DIRECTORY: Ino = Ino(256);

/// Bytes that all paths of one call may take. A file of as many links as there can be, with names
/// of the usual length in directories of the usual depth, takes a tenth.
pub const PATHS_BYTES_MAX: usize = 64 << 20;

/// What a call may still do, over all the paths it asks for: steps up, and bytes of paths. Without
/// it, a prepared volume could have any number of names under the deepest directory.
#[derive(Debug)]
pub struct Climb {
    steps_left: usize,
    steps_max: usize,
    bytes_left: usize,
}

impl Climb {
    pub fn new(steps_max: usize) -> Self {
        Self { steps_left: steps_max, steps_max, bytes_left: PATHS_BYTES_MAX }
    }

    pub fn step(&mut self) -> Result<(), NamesError> {
        let limit = self.steps_max;
        let left = self.steps_left.checked_sub(1);
        self.steps_left =
            left.ok_or(NamesError::TooMany { what: "directories to climb", limit })?;
        Ok(())
    }

    fn take_bytes(&mut self, bytes: usize) -> Result<(), NamesError> {
        let left = self.bytes_left.checked_sub(bytes);
        let (what, limit) = ("bytes in the paths of one inode", PATHS_BYTES_MAX);
        self.bytes_left = left.ok_or(NamesError::TooMany { what, limit })?;
        Ok(())
    }
}

/// The path of a directory from its subvolume's root, which is "". `None` where it hangs nowhere.
pub fn directory_path(
    tree: &Tree,
    dir: Ino,
    climb: &mut Climb,
) -> Result<Option<Vec<u8>>, NamesError> {
    let mut names = Vec::new();
    let mut dir = dir;
    while dir != ROOT_DIRECTORY {
        climb.step()?;
        if names.len() >= DEPTH_MAX {
            let refused = Refused::new("depth", "more", DEPTH_MAX);
            return Err(NamesError::Corrupt {
                tree: tree.id(),
                source: refused.at(format_args!("directory {dir}")),
            });
        }
        let Some(link) = first_link(tree, dir)? else { return Ok(None) };
        dir = link.parent;
        names.push(link.name);
    }
    names.reverse();
    Ok(Some(names.join(&b'/')))
}

/// A path of an inode from its subvolume's root: that of its first name. `None` where that one
/// hangs nowhere.
pub fn first_path(tree: &Tree, ino: Ino, climb: &mut Climb) -> Result<Option<Vec<u8>>, NamesError> {
    if ino == ROOT_DIRECTORY {
        return Ok(Some(Vec::new()));
    }
    let Some(link) = first_link(tree, ino)? else { return Ok(None) };
    Ok(directory_path(tree, link.parent, climb)?.map(|dir| joined(&dir, &link.name)))
}

/// Every path of an inode from its subvolume's root, at most `limit`.
///
/// # Errors
/// [`NamesError::TooMany`] for more names than `limit`, and for more steps or more than
/// [`PATHS_BYTES_MAX`] bytes over all paths.
pub fn paths(
    tree: &Tree,
    ino: Ino,
    limit: usize,
    climb: &mut Climb,
) -> Result<Vec<Vec<u8>>, NamesError> {
    if ino == ROOT_DIRECTORY {
        return Ok(vec![Vec::new()]);
    }
    let mut paths = Vec::new();
    let mut above: Option<(Ino, Option<Vec<u8>>)> = None;
    for link in links(tree, ino, limit)? {
        let known = above.take().filter(|(dir, _)| *dir == link.parent);
        let dir = match known {
            Some((_, path)) => path,
            None => directory_path(tree, link.parent, climb)?,
        };
        if let Some(dir) = &dir {
            climb.take_bytes(dir.len() + 1 + link.name.len())?;
            paths.push(joined(dir, &link.name));
        }
        above = Some((link.parent, dir));
    }
    Ok(paths)
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, name].join(&b'/') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_the_root_directory_has_no_slash() {
        assert_eq!(joined(b"", b"name"), b"name");
        assert_eq!(joined(b"a/b", b"name"), b"a/b/name");
    }

    #[test]
    fn a_climb_ends_when_its_steps_are_used_up() {
        let mut climb = Climb::new(2);
        assert!(climb.step().is_ok() && climb.step().is_ok());
        let error = climb.step().unwrap_err();
        assert_eq!(error.to_string(), "directories to climb: more than 2");
    }

    #[test]
    fn the_bytes_of_all_paths_have_a_bound() {
        let mut climb = Climb::new(2);
        assert!(climb.take_bytes(PATHS_BYTES_MAX).is_ok());
        assert!(climb.take_bytes(1).is_err());
    }
}
