//! Reads the names of an inode, and the directories of these names.
//!
//! `INODE_REF` items come first, one for each directory. Names that do not fit there are in
//! `INODE_EXTREF` items. Both are read as one list.

use crate::error::{NamesError, corrupt};
use butternut_format::inode_ref::{InodeExtrefs, InodeRefs};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::Ino;
use butternut_tree::Tree;

/// One name of an inode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub parent: Ino,
    /// The entry's index in `parent`.
    pub index: u64,
    pub name: Vec<u8>,
}

/// Returns all names of an inode.
///
/// # Errors
/// [`NamesError::TooMany`] if there are more than `limit`, or an item is corrupt.
pub fn links(tree: &Tree, ino: Ino, limit: usize) -> Result<Vec<Link>, NamesError> {
    let mut links = Vec::new();
    walk(tree, ino, |link| {
        if links.len() >= limit {
            return Err(NamesError::TooMany { what: "names of one inode", limit });
        }
        links.push(link);
        Ok(true)
    })?;
    Ok(links)
}

/// Returns the first name of an inode, which is the only name of a directory. The root directory of
/// a subvolume is its own parent, under the name `..`.
pub fn first_link(tree: &Tree, ino: Ino) -> Result<Option<Link>, NamesError> {
    let mut first = None;
    walk(tree, ino, |link| {
        first = Some(link);
        Ok(false)
    })?;
    Ok(first)
}

/// Passes every name to `visit`, until that returns `false`.
fn walk(
    tree: &Tree,
    ino: Ino,
    mut visit: impl FnMut(Link) -> Result<bool, NamesError>,
) -> Result<(), NamesError> {
    let mut cursor = tree.cursor();
    cursor.seek(&Key::new(ino.0, ItemType::INODE_REF, 0))?;
    while let Some((key, data)) = cursor.item_parts() {
        if key.objectid != ino.0 {
            break;
        }
        let refuse = |refused| corrupt(tree.id(), key, refused);
        match key.item_type {
            ItemType::INODE_REF => {
                for link in InodeRefs::new(data) {
                    let link = link.map_err(refuse)?;
                    let name = link.name.to_vec();
                    if !visit(Link { parent: Ino(key.offset), index: link.index, name })? {
                        return Ok(());
                    }
                }
            }
            ItemType::INODE_EXTREF => {
                for link in InodeExtrefs::new(data) {
                    let link = link.map_err(refuse)?;
                    let name = link.name.to_vec();
                    if !visit(Link { parent: link.parent, index: link.index, name })? {
                        return Ok(());
                    }
                }
            }
            _ => break,
        }
        cursor.advance()?;
    }
    Ok(())
}
