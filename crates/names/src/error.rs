//! Why a name could not be had or changed.

use crate::items::Edit;
use butternut_format::key::Key;
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;
use butternut_tree::TreeError;

/// An error of a lookup, a listing or a change. For a lookup, that a name does not exist is not an
/// error. A change that is refused, by any variant but [`Tree`](Self::Tree), has changed nothing;
/// one that a tree's error cut short will not be committed.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    #[error("names cannot be read or changed")]
    Tree(#[source] TreeError),
    /// An item, or how two items fit together, is not what the format allows.
    #[error("tree {tree}: names are corrupt")]
    Corrupt {
        tree: TreeId,
        #[source]
        source: Refused,
    },
    /// The answer has more parts than the caller allowed.
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
    /// Names whose hashes are the same share an item, and that item is full.
    #[error("too many names of this directory have the same hash")]
    Crowded,
    #[error("too many names lead to one inode")]
    TooManyLinks,
    /// No number is left for another inode, or for another entry of a directory.
    #[error("all {what} of tree {tree} are used up")]
    NumbersUsedUp { tree: TreeId, what: &'static str },
    #[error("no such attribute")]
    NoAttribute,
    #[error("the attribute exists")]
    AttributeExists,
    /// The attribute, or all that share its hash together, would not fit into a leaf.
    #[error("attributes of {bytes} bytes do not fit into an item of {limit}")]
    AttributeTooLarge { bytes: usize, limit: usize },
    /// A value that the attribute or the flag cannot have.
    #[error("{what}")]
    Invalid { what: &'static str },
    #[error("{what}")]
    Unsupported { what: &'static str },
}

impl From<TreeError> for NamesError {
    fn from(source: TreeError) -> Self {
        Self::Tree(source)
    }
}

/// As [`corrupt`], found in the midst of a change.
pub(crate) fn corrupt_midway(edit: &impl Edit, key: Key, source: Refused) -> NamesError {
    let (tree, source) = (edit.tree_id(), source.at(format_args!("item {key}")));
    NamesError::Tree(edit.fail(TreeError::Corrupt { tree, source }))
}

/// The refusal of an item, with where it is.
pub(crate) fn corrupt(tree: TreeId, key: Key, source: Refused) -> NamesError {
    NamesError::Corrupt { tree, source: source.at(format_args!("item {key}")) }
}
