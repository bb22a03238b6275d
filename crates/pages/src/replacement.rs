//! Replacement: which clean page goes next. S3-FIFO, as a structure of numbers only.
//!
//! ```text
//!  new ---------> small ------- read once, or not at all ------> gone, a ghost stays
//!                   \--- read again --> main <---\                 |
//!  new, has a ghost -------------------->  \-----/ read again      |
//!                                           \--- not read again -> gone
//! ```
//!
//! A scan goes through the small queue, a tenth of all pages, and never reaches the main one: what
//! is read again and again stays.
//!
//! Laws:
//!
//! 1. A page is in one queue, or in the hand of one evictor, or not known here. Only clean pages
//!    are known.
//! 2. All steps take constant time. A hit takes none: how often a page was read is counted where
//!    the page is.
//! 3. A page in an evictor's hand may be removed meanwhile; what the evictor then decides is void.

use crate::ghosts::Ghosts;

/// One page's place here.
pub(crate) type NodeId = u32;

const END: NodeId = NodeId::MAX;
/// The small queue's part of all pages, as a divisor.
const SMALL_PART: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// In none.
    Unused,
    Small,
    Main,
    InHand,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    queue: Queue,
    file: u32,
    page: u64,
    older: NodeId,
    newer: NodeId,
}

/// A queue, linked through the nodes.
#[derive(Debug)]
struct Line {
    oldest: NodeId,
    newest: NodeId,
    len: usize,
}

/// A page that an evictor has in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    pub(crate) file: u32,
    pub(crate) page: u64,
    /// Where it was.
    pub(crate) from: Queue,
}

#[derive(Debug)]
pub(crate) struct Replacement {
    nodes: Vec<Node>,
    /// Unused nodes, linked by `newer`.
    unused: NodeId,
    small: Line,
    main: Line,
    ghosts: Ghosts,
    /// Pages that came back while their ghosts were about.
    ghost_hits: u64,
}

impl Line {
    const EMPTY: Self = Self { oldest: END, newest: END, len: 0 };
}

impl Replacement {
    /// For a cache of `pages_max` pages.
    pub(crate) fn new(pages_max: usize) -> Self {
        let ghosts = Ghosts::new(pages_max);
        let (nodes, unused, small, main) = (Vec::new(), END, Line::EMPTY, Line::EMPTY);
        Self { nodes, unused, small, main, ghosts, ghost_hits: 0 }
    }

    /// Pages in the queues.
    pub(crate) fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    pub(crate) fn ghost_hits(&self) -> u64 {
        self.ghost_hits
    }

    /// Makes a page known that may be evicted from now on.
    pub(crate) fn admit(&mut self, file: u32, page: u64, hash: u64, is_hot: bool) -> NodeId {
        let has_ghost = self.ghosts.take(hash);
        self.ghost_hits += u64::from(has_ghost);
        let queue = if has_ghost || is_hot { Queue::Main } else { Queue::Small };
        let node = Node { queue, file, page, older: END, newer: END };
        let id = if self.unused == END {
            self.nodes.push(node);
            NodeId::try_from(self.nodes.len() - 1).expect("memory ends before 2^32 pages")
        } else {
            let id = self.unused;
            self.unused = self.node(id).newer;
            *self.node_mut(id) = node;
            id
        };
        self.push(id, queue);
        id
    }

    /// Forgets a page, wherever it is (law 3).
    pub(crate) fn remove(&mut self, id: NodeId) {
        match self.node(id).queue {
            Queue::Small | Queue::Main => self.unlink(id),
            Queue::InHand => {}
            Queue::Unused => {
                debug_assert!(false, "law 1");
                return;
            }
        }
        self.retire(id);
    }

    /// Takes the page whose turn it is into the hand.
    pub(crate) fn next(&mut self) -> Option<Candidate> {
        let is_small_full = self.small.len * SMALL_PART >= self.len();
        let from = if self.small.len > 0 && (is_small_full || self.main.len == 0) {
            Queue::Small
        } else {
            Queue::Main
        };
        let oldest = self.line(from).oldest;
        if oldest == END {
            return None;
        }
        self.unlink(oldest);
        let node = self.node_mut(oldest);
        node.queue = Queue::InHand;
        Some(Candidate { node: oldest, file: node.file, page: node.page, from })
    }

    /// Whether the page is in an evictor's hand still (law 3).
    pub(crate) fn is_in_hand(&self, candidate: &Candidate) -> bool {
        let node = self.node(candidate.node);
        (node.queue, node.file, node.page) == (Queue::InHand, candidate.file, candidate.page)
    }

    /// Puts a page out of the hand into a queue, as its newest.
    pub(crate) fn keep(&mut self, id: NodeId, queue: Queue) {
        debug_assert_eq!(self.node(id).queue, Queue::InHand, "law 1");
        self.push(id, queue);
    }

    /// Forgets a page in the hand because it is evicted.
    pub(crate) fn evict(&mut self, candidate: &Candidate, hash: u64) {
        debug_assert_eq!(self.node(candidate.node).queue, Queue::InHand, "law 1");
        if candidate.from == Queue::Small {
            self.ghosts.insert(hash);
        }
        self.retire(candidate.node);
    }

    fn retire(&mut self, id: NodeId) {
        let newer = self.unused;
        let node = self.node_mut(id);
        (node.queue, node.newer) = (Queue::Unused, newer);
        self.unused = id;
    }

    fn push(&mut self, id: NodeId, queue: Queue) {
        let newest = self.line(queue).newest;
        let node = self.node_mut(id);
        (node.queue, node.older, node.newer) = (queue, newest, END);
        if newest != END {
            self.node_mut(newest).newer = id;
        }
        let line = self.line_mut(queue);
        line.newest = id;
        line.len += 1;
        if line.oldest == END {
            line.oldest = id;
        }
    }

    fn unlink(&mut self, id: NodeId) {
        let Node { queue, older, newer, .. } = *self.node(id);
        let line = self.line_mut(queue);
        line.len -= 1;
        if line.oldest == id {
            line.oldest = newer;
        }
        if line.newest == id {
            line.newest = older;
        }
        if older != END {
            self.node_mut(older).newer = newer;
        }
        if newer != END {
            self.node_mut(newer).older = older;
        }
    }

    fn line(&self, queue: Queue) -> &Line {
        if queue == Queue::Small { &self.small } else { &self.main }
    }

    fn line_mut(&mut self, queue: Queue) -> &mut Line {
        if queue == Queue::Small { &mut self.small } else { &mut self.main }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(place(id)).expect("ids are only made with their nodes")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(place(id)).expect("ids are only made with their nodes")
    }
}

fn place(id: NodeId) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn hash(page: u64) -> u64 {
        (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// A cache without bytes, to see what stays.
    struct Model {
        replacement: Replacement,
        pages_max: usize,
        pages: HashMap<u64, (NodeId, u8)>,
        misses: usize,
    }

    impl Model {
        fn new(pages_max: usize) -> Self {
            let replacement = Replacement::new(pages_max);
            Self { replacement, pages_max, pages: HashMap::new(), misses: 0 }
        }

        fn read(&mut self, page: u64) {
            if let Some((_, heat)) = self.pages.get_mut(&page) {
                *heat = (*heat + 1).min(3);
                return;
            }
            self.misses += 1;
            while self.pages.len() >= self.pages_max {
                let candidate = self.replacement.next().unwrap();
                let (_, heat) = self.pages.get_mut(&candidate.page).unwrap();
                match candidate.from {
                    Queue::Small if *heat >= 1 => *heat = 0,
                    Queue::Main if *heat >= 1 => *heat -= 1,
                    Queue::Small | Queue::Main | Queue::InHand | Queue::Unused => {
                        self.replacement.evict(&candidate, hash(candidate.page));
                        self.pages.remove(&candidate.page);
                        continue;
                    }
                }
                self.replacement.keep(candidate.node, Queue::Main);
            }
            let node = self.replacement.admit(0, page, hash(page), false);
            self.pages.insert(page, (node, 0));
        }
    }

    #[test]
    fn a_scan_does_not_flush_what_is_read_again_and_again() {
        let mut model = Model::new(1000);
        for _ in 0..3 {
            (0..800).for_each(|page| model.read(page));
        }
        (10_000..30_000).for_each(|page| model.read(page));
        let hot = (0..800).filter(|page| model.pages.contains_key(page)).count();
        assert!(hot >= 780, "{hot} of 800 hot pages are left after a scan of 20,000");
    }

    #[test]
    fn what_comes_back_soon_is_kept_better() {
        let mut model = Model::new(100);
        (0..100).for_each(|page| model.read(page));
        (100..150).for_each(|page| model.read(page));
        let gone: Vec<u64> = (0..50).filter(|page| !model.pages.contains_key(page)).collect();
        gone.iter().take(10).for_each(|page| model.read(*page));
        (200..290).for_each(|page| model.read(page));
        let kept = gone.iter().take(10).filter(|page| model.pages.contains_key(page)).count();
        assert_eq!((gone.len() >= 10, kept), (true, 10));
    }

    #[test]
    fn what_is_removed_from_the_hand_is_nobodys() {
        let mut replacement = Replacement::new(10);
        let node = replacement.admit(1, 5, hash(5), false);
        let candidate = replacement.next().unwrap();
        assert_eq!((candidate.node, candidate.from), (node, Queue::Small));
        assert!(replacement.is_in_hand(&candidate) && replacement.next().is_none());
        replacement.remove(node);
        assert!(!replacement.is_in_hand(&candidate));
        let again = replacement.admit(1, 6, hash(6), true);
        assert_eq!(again, node, "nodes are used again");
        assert!(!replacement.is_in_hand(&candidate));
    }
}
