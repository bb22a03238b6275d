//! [`Inheritance`]: what new inodes inherit from their directory's extended attributes.

use crate::Result;
use butternut_format::units::Ino;
use butternut_names::{self as names, Acl, COMPRESSION, DEFAULT_ACL};
use butternut_tree::Tree;

/// What new inodes inherit from a directory, beside what its inode item holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inheritance {
    pub(crate) acl: Option<Acl>,
    pub(crate) compression: Option<Vec<u8>>,
}

impl Inheritance {
    pub(crate) fn read(tree: &Tree, dir: Ino) -> Result<Self> {
        let acl = match names::xattr(tree, dir, DEFAULT_ACL)? {
            Some(value) => Acl::parse(&value)?,
            None => None,
        };
        Ok(Self { acl, compression: names::xattr(tree, dir, COMPRESSION)? })
    }
}
