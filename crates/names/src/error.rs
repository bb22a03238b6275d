//! [`NamesError`]: the error of this crate.

use crate::items::EditItems;
use butternut_format::key::Key;
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;
use butternut_tree::TreeError;

/// An error of a lookup, a listing or a change. A lookup of a name that does not exist is no error.
/// A change that returns any variant except [`Tree`](Self::Tree) has changed nothing. A change that
/// returns an error of the tree is never committed.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    #[error("names cannot be read or changed")]
    Tree(#[source] TreeError),
    /// An item violates the format, or two items contradict each other.
    #[error("tree {tree}: names are corrupt")]
    Corrupt {
        tree: TreeId,
        #[source]
        source: Refused,
    },
    /// The result is larger than the limit of the caller.
    #[error("{what}: more than {limit}")]
    TooMany { what: &'static str, limit: usize },
    #[error("the name exists")]
    Exists,
    #[error("no such name")]
    NoEntry,
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    #[error("not a name")]
    BadName(#[source] Refused),
    /// Names with the same hash share an item, and that item is full.
    #[error("too many names of this directory have the same hash")]
    Crowded,
    #[error("one inode has too many names")]
    TooManyLinks,
    /// No number is free for another inode, or for another entry of a directory.
    #[error("all {what} of tree {tree} are used up")]
    NumbersUsedUp { tree: TreeId, what: &'static str },
    #[error("no such attribute")]
    NoAttribute,
    #[error("the attribute exists")]
    AttributeExists,
    /// The attribute, or all attributes of its hash together, do not fit into a leaf.
    #[error("attributes of {bytes} bytes do not fit into an item of {limit}")]
    AttributeTooLarge { bytes: usize, limit: usize },
    /// A value that is invalid for the attribute or the flag.
    #[error("{what}")]
    Invalid { what: &'static str },
    #[error("{what}")]
    Unsupported { what: &'static str },
}

impl NamesError {
    /// Returns the cause with which a change of `tree` ends that met this error after its first
    /// part: any such error makes the volume read-only.
    pub fn into_midway(self, tree: TreeId) -> TreeError {
        let refused = self.to_string();
        if let Self::Tree(error) = self {
            return error;
        }
        if let Self::Corrupt { tree, source } = self {
            return TreeError::Corrupt { tree, source };
        }
        let source = Refused::new("change", refused, "no error after the first part");
        TreeError::Corrupt { tree, source }
    }
}

impl From<TreeError> for NamesError {
    fn from(source: TreeError) -> Self {
        Self::Tree(source)
    }
}

/// Makes the error of a corrupt item that was found after the first part of a change, and makes the
/// volume read-only.
pub(crate) fn corrupt_midway(edit: &impl EditItems, key: Key, source: Refused) -> NamesError {
    let (tree, source) = (edit.edited_tree(), source.at(format_args!("item {key}")));
    NamesError::Tree(edit.fail(TreeError::Corrupt { tree, source }))
}

/// Makes the error of a step that failed after the first part of a change, and makes the volume
/// read-only. An error of the tree has done that already.
pub(crate) fn midway(edit: &impl EditItems, error: NamesError) -> NamesError {
    if let NamesError::Tree(_) = error {
        return error;
    }
    NamesError::Tree(edit.fail(error.into_midway(edit.edited_tree())))
}

/// Makes the error of a corrupt item.
pub(crate) fn corrupt(tree: TreeId, key: Key, source: Refused) -> NamesError {
    NamesError::Corrupt { tree, source: source.at(format_args!("item {key}")) }
}
