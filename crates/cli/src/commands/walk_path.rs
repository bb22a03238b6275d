//! [`WalkPath`]: a path as a chain of names.

use std::sync::Arc;

use crate::output::text;

/// The path of something that a walk has come to. Cloning it, and going one name deeper, takes no
/// more memory than the name.
#[derive(Clone, Debug)]
pub(crate) struct WalkPath(Arc<Node>);

#[derive(Debug)]
struct Node {
    above: Option<WalkPath>,
    /// For the first part: the path that the walk started at, as it was typed.
    name: Vec<u8>,
}

impl WalkPath {
    pub(crate) fn new(start: Vec<u8>) -> Self {
        Self(Arc::new(Node { above: None, name: start }))
    }

    pub(crate) fn child(&self, name: Vec<u8>) -> Self {
        Self(Arc::new(Node { above: Some(self.clone()), name }))
    }

    /// The names below the start, outermost first.
    pub(crate) fn names(&self) -> Vec<&[u8]> {
        let mut names = Vec::new();
        let mut at = &self.0;
        while let Some(above) = &at.above {
            names.push(at.name.as_slice());
            at = &above.0;
        }
        names.reverse();
        names
    }

    /// The whole path.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut at = &self.0;
        while let Some(above) = &at.above {
            at = &above.0;
        }
        let names = self.names();
        let below = names.join(&b'/');
        if names.is_empty() { at.name.clone() } else { text::joined(&at.name, &below) }
    }

    /// The last name.
    pub(crate) fn name(&self) -> &[u8] {
        let name = self.0.name.as_slice();
        let path = name.strip_suffix(b"/").unwrap_or(name);
        path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
    }
}

/// Frees a chain from its end: the default, one call for each name, overflows the stack of a
/// thread on a path that is deep enough.
impl Drop for Node {
    fn drop(&mut self) {
        let mut next = self.above.take();
        while let Some(WalkPath(node)) = next {
            next = Arc::into_inner(node).and_then(|mut node| node.above.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_joined_from_its_start_on() {
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
    fn a_chain_of_any_length_is_freed() {
        let mut path = WalkPath::new(Vec::new());
        for _ in 0..1_000_000 {
            path = path.child(vec![b'n']);
        }
        assert_eq!(path.bytes().len(), 2_000_000 - 1);
    }
}
