//! Why a name could not be had.

use butternut_format::key::Key;
use butternut_format::refused::Refused;
use butternut_format::units::TreeId;
use butternut_tree::TreeError;

/// An error of a lookup or a listing. That a name does not exist is not an error here.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    #[error("names cannot be read")]
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
}

impl From<TreeError> for NamesError {
    fn from(source: TreeError) -> Self {
        Self::Tree(source)
    }
}

/// The refusal of an item, with where it is.
pub(crate) fn corrupt(tree: TreeId, key: Key, source: Refused) -> NamesError {
    NamesError::Corrupt { tree, source: source.at(format_args!("item {key}")) }
}
