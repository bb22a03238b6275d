//! Paths of an inode: from the inode up to the root directory of its subvolume.

use crate::error::NamesError;
use crate::link::{first_link, links};
use butternut_format::units::Ino;
use butternut_tree::Tree;

/// Maximum number of directories of a path: as many as the kernel's longest path has with names of
/// one byte.
pub const DEPTH_MAX: usize = 2048;

/// The root directory of every subvolume.
const ROOT_DIRECTORY: Ino = Ino(256);

/// Maximum size of all paths of one call, in bytes. A file with the maximum number of links, with
/// names and directories of usual length and depth, needs a tenth.
pub const PATHS_BYTES_MAX: usize = 64 << 20;

/// The first directories of each path of a list, which do not count: one user's deep directories
/// take no path from the others.
const FREE_STEPS: usize = 64;

/// Limits the work of one call over all the paths that it computes: the directories that it visits,
/// and the bytes of the paths. Without a limit, a crafted volume could have any number of names in
/// the deepest directory.
#[derive(Debug)]
pub struct PathBudget {
    free_steps_left: usize,
    steps_left: usize,
    steps_max: usize,
    bytes_left: usize,
}

impl PathBudget {
    /// Creates a budget of `steps_max` directories and [`PATHS_BYTES_MAX`] bytes.
    pub fn new(steps_max: usize) -> Self {
        Self { free_steps_left: 0, steps_left: steps_max, steps_max, bytes_left: PATHS_BYTES_MAX }
    }

    /// Begins the path of another element of a list: its first 64 directories do not count.
    pub fn begin_path(&mut self) {
        self.free_steps_left = FREE_STEPS;
    }

    /// Counts one directory.
    ///
    /// # Errors
    /// [`NamesError::TooMany`] if the budget is used up.
    pub fn step(&mut self) -> Result<(), NamesError> {
        if let Some(left) = self.free_steps_left.checked_sub(1) {
            self.free_steps_left = left;
            return Ok(());
        }
        let limit = self.steps_max;
        let left = self.steps_left.checked_sub(1);
        self.steps_left =
            left.ok_or(NamesError::TooMany { what: "directories to budget", limit })?;
        Ok(())
    }

    fn take_bytes(&mut self, bytes: usize) -> Result<(), NamesError> {
        let left = self.bytes_left.checked_sub(bytes);
        let (what, limit) = ("bytes in the paths of one inode", PATHS_BYTES_MAX);
        self.bytes_left = left.ok_or(NamesError::TooMany { what, limit })?;
        Ok(())
    }
}

/// Returns the path of a directory from the root of its subvolume, which has the path "". Returns
/// `None` if a directory on the path has no name.
///
/// # Errors
/// [`NamesError::TooMany`] if the path has more than [`DEPTH_MAX`] directories, which may be a
/// circle, or if the budget is used up.
pub fn directory_path(
    tree: &Tree,
    dir: Ino,
    budget: &mut PathBudget,
) -> Result<Option<Vec<u8>>, NamesError> {
    let mut names = Vec::new();
    let mut dir = dir;
    while dir != ROOT_DIRECTORY {
        budget.step()?;
        if names.len() >= DEPTH_MAX {
            return Err(NamesError::TooMany { what: "directories on a path", limit: DEPTH_MAX });
        }
        let Some(link) = first_link(tree, dir)? else { return Ok(None) };
        dir = link.parent;
        names.push(link.name);
    }
    names.reverse();
    Ok(Some(names.join(&b'/')))
}

/// Returns the path of the first name of an inode, from the root of its subvolume. Returns `None`
/// if the inode or a directory on the path has no name.
pub fn first_path(
    tree: &Tree,
    ino: Ino,
    budget: &mut PathBudget,
) -> Result<Option<Vec<u8>>, NamesError> {
    if ino == ROOT_DIRECTORY {
        return Ok(Some(Vec::new()));
    }
    let Some(link) = first_link(tree, ino)? else { return Ok(None) };
    Ok(directory_path(tree, link.parent, budget)?.map(|dir| joined(&dir, &link.name)))
}

/// Returns all paths of an inode from the root of its subvolume.
///
/// # Errors
/// [`NamesError::TooMany`] if there are more than `limit` names, or if the budget is used up.
pub fn paths(
    tree: &Tree,
    ino: Ino,
    limit: usize,
    budget: &mut PathBudget,
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
            None => directory_path(tree, link.parent, budget)?,
        };
        if let Some(dir) = &dir {
            budget.take_bytes(dir.len() + 1 + link.name.len())?;
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
    fn a_budget_ends_when_its_steps_are_used_up() {
        let mut budget = PathBudget::new(2);
        assert!(budget.step().is_ok() && budget.step().is_ok());
        let error = budget.step().unwrap_err();
        assert_eq!(error.to_string(), "directories to budget: more than 2");
    }

    #[test]
    fn the_first_directories_of_each_path_of_a_list_do_not_count() {
        let mut budget = PathBudget::new(1);
        for _path in 0..2 {
            budget.begin_path();
            assert!((0..FREE_STEPS).all(|_| budget.step().is_ok()));
        }
        assert!(budget.step().is_ok());
        assert!(budget.step().is_err());
        budget.begin_path();
        assert!(budget.step().is_ok());
    }

    #[test]
    fn the_bytes_of_all_paths_have_a_bound() {
        let mut budget = PathBudget::new(2);
        assert!(budget.take_bytes(PATHS_BYTES_MAX).is_ok());
        assert!(budget.take_bytes(1).is_err());
    }
}
