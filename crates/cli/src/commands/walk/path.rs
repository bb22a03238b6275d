//! [`WalkPath`]: a path as a chain of names.

use std::sync::Arc;

use crate::output::text;

/// The path of a file found by a walk. A clone shares all names; a child path allocates one name.
#[derive(Clone, Debug)]
pub(crate) struct WalkPath(Arc<Node>);

#[derive(Debug)]
struct Node {
    parent: Option<WalkPath>,
    /// For the first part: the path of the starting point, as typed.
    name: Vec<u8>,
}

impl WalkPath {
    pub(crate) fn new(start: Vec<u8>) -> Self {
        Self(Arc::new(Node { parent: None, name: start }))
    }

    pub(crate) fn child(&self, name: Vec<u8>) -> Self {
        Self(Arc::new(Node { parent: Some(self.clone()), name }))
    }

    /// Returns the names below the starting point, outermost first.
    pub(crate) fn names(&self) -> Vec<&[u8]> {
        let mut names = Vec::new();
        let mut at = &self.0;
        while let Some(parent) = &at.parent {
            names.push(at.name.as_slice());
            at = &parent.0;
        }
        names.reverse();
        names
    }

    /// Returns the whole path.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut at = &self.0;
        while let Some(parent) = &at.parent {
            at = &parent.0;
        }
        let names = self.names();
        let below = names.join(&b'/');
        if names.is_empty() { at.name.clone() } else { text::joined(&at.name, &below) }
    }

    /// Returns the last name.
    pub(crate) fn name(&self) -> &[u8] {
        let name = self.0.name.as_slice();
        let path = name.strip_suffix(b"/").unwrap_or(name);
        path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
    }
}

/// Frees the chain in a loop: the default drop recurses once per name, and overflows the stack on a
/// deep path.
impl Drop for Node {
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(WalkPath(node)) = next {
            next = Arc::into_inner(node).and_then(|mut node| node.parent.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_to_the_starting_point() {
        for (start, want) in [("", "a/b"), ("/", "/a/b"), ("x", "x/a/b"), ("x/y/", "x/y/a/b")] {
            let top = WalkPath::new(start.into());
            assert_eq!(top.bytes(), start.as_bytes());
            let path = top.child(b"a".to_vec()).child(b"b".to_vec());
            assert_eq!((path.bytes(), path.name()), (want.into(), &b"b"[..]));
            assert_eq!(path.names(), [b"a", b"b"]);
        }
        assert_eq!(WalkPath::new(b"x/y/".to_vec()).name(), b"y");
    }

    #[test]
    fn a_long_chain_is_freed_without_recursion() {
        let mut path = WalkPath::new(Vec::new());
        for _ in 0..1_000_000 {
            path = path.child(vec![b'n']);
        }
        assert_eq!(path.bytes().len(), 2_000_000 - 1);
    }
}
