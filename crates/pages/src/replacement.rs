//! Replacement: which clean page to evict next. S3-FIFO, on numbers only.
//!
//! ```text
//!  new -----------> small ------ read at most once -----> evicted, leaves a ghost entry
//!                     \--- read again --> main <---\
//!  new, has a ghost entry ---------------->  \-----/ read again
//!                                             \--- not read again --> evicted
//! ```
//!
//! A sequential scan passes through the small queue, a tenth of all pages, and does not reach the
//! main queue. So pages that are read repeatedly stay.
//!
//! Laws:
//!
//! 1. A page is in one queue, or isolated by one evictor, or not known here. Only clean pages are
//!    known.
//! 2. Every step takes constant time. A hit takes none here: reads are counted in the page group.
//! 3. An isolated page may be removed meanwhile. What the evictor then decides is void.

use crate::ghosts::Ghosts;

/// The node of one page.
pub(crate) type NodeId = u32;

const END: NodeId = NodeId::MAX;
/// The small queue's part of all pages, as a divisor.
const SMALL_PART: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// The node is unused.
    Unused,
    Small,
    Main,
    Isolated,
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
struct QueueList {
    oldest: NodeId,
    newest: NodeId,
    len: usize,
}

/// A page that an evictor has isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) node: NodeId,
    pub(crate) file: u32,
    pub(crate) page: u64,
    /// The queue that it was in.
    pub(crate) from: Queue,
}

#[derive(Debug)]
pub(crate) struct Replacement {
    nodes: Vec<Node>,
    /// Unused nodes, linked by `newer`.
    unused: NodeId,
    small: QueueList,
    main: QueueList,
    ghosts: Ghosts,
    /// Pages that were admitted while they had a ghost entry.
    ghost_hits: u64,
}

impl QueueList {
    const EMPTY: Self = Self { oldest: END, newest: END, len: 0 };
}

impl Replacement {
    /// Makes the queues of a cache of `pages_max` pages.
    pub(crate) fn new(pages_max: usize) -> Self {
        let ghosts = Ghosts::new(pages_max);
        let (nodes, unused, small, main) = (Vec::new(), END, QueueList::EMPTY, QueueList::EMPTY);
        Self { nodes, unused, small, main, ghosts, ghost_hits: 0 }
    }

    /// Returns the number of pages in both queues.
    pub(crate) fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    pub(crate) fn ghost_hits(&self) -> u64 {
        self.ghost_hits
    }

    /// Adds a page that may be evicted from now on.
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

    /// Removes a page, in a queue or isolated (law 3).
    pub(crate) fn remove(&mut self, id: NodeId) {
        match self.node(id).queue {
            Queue::Small | Queue::Main => self.unlink(id),
            Queue::Isolated => {}
            Queue::Unused => {
                debug_assert!(false, "law 1");
                return;
            }
        }
        self.free_node(id);
    }

    /// Takes the page to evict next out of its queue.
    pub(crate) fn isolate_oldest(&mut self) -> Option<Candidate> {
        let is_small_full = self.small.len * SMALL_PART >= self.len();
        let from = if self.small.len > 0 && (is_small_full || self.main.len == 0) {
            Queue::Small
        } else {
            Queue::Main
        };
        let oldest = self.list(from).oldest;
        if oldest == END {
            return None;
        }
        self.unlink(oldest);
        let node = self.node_mut(oldest);
        node.queue = Queue::Isolated;
        Some(Candidate { node: oldest, file: node.file, page: node.page, from })
    }

    /// Returns whether the page is still isolated (law 3).
    pub(crate) fn is_isolated(&self, candidate: &Candidate) -> bool {
        let node = self.node(candidate.node);
        (node.queue, node.file, node.page) == (Queue::Isolated, candidate.file, candidate.page)
    }

    /// Puts an isolated page into a queue, as its newest page.
    pub(crate) fn put_back(&mut self, id: NodeId, queue: Queue) {
        debug_assert_eq!(self.node(id).queue, Queue::Isolated, "law 1");
        self.push(id, queue);
    }

    /// Removes an isolated page because it is evicted.
    pub(crate) fn evict(&mut self, candidate: &Candidate, hash: u64) {
        debug_assert_eq!(self.node(candidate.node).queue, Queue::Isolated, "law 1");
        if candidate.from == Queue::Small {
            self.ghosts.insert(hash);
        }
        self.free_node(candidate.node);
    }

    fn free_node(&mut self, id: NodeId) {
        let newer = self.unused;
        let node = self.node_mut(id);
        (node.queue, node.newer) = (Queue::Unused, newer);
        self.unused = id;
    }

    fn push(&mut self, id: NodeId, queue: Queue) {
        let newest = self.list(queue).newest;
        let node = self.node_mut(id);
        (node.queue, node.older, node.newer) = (queue, newest, END);
        if newest != END {
            self.node_mut(newest).newer = id;
        }
        let list = self.list_mut(queue);
        list.newest = id;
        list.len += 1;
        if list.oldest == END {
            list.oldest = id;
        }
    }

    fn unlink(&mut self, id: NodeId) {
        let Node { queue, older, newer, .. } = *self.node(id);
        let list = self.list_mut(queue);
        list.len -= 1;
        if list.oldest == id {
            list.oldest = newer;
        }
        if list.newest == id {
            list.newest = older;
        }
        if older != END {
            self.node_mut(older).newer = newer;
        }
        if newer != END {
            self.node_mut(newer).older = older;
        }
    }

    fn list(&self, queue: Queue) -> &QueueList {
        if queue == Queue::Small { &self.small } else { &self.main }
    }

    fn list_mut(&mut self, queue: Queue) -> &mut QueueList {
        if queue == Queue::Small { &mut self.small } else { &mut self.main }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(index(id)).expect("an id is made only together with its node")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(index(id)).expect("an id is made only together with its node")
    }
}

fn index(id: NodeId) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn hash(page: u64) -> u64 {
        (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// A cache without bytes, to observe which pages stay.
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
            if let Some((_, accesses)) = self.pages.get_mut(&page) {
                *accesses = (*accesses + 1).min(3);
                return;
            }
            self.misses += 1;
            while self.pages.len() >= self.pages_max {
                let candidate = self.replacement.isolate_oldest().unwrap();
                let (_, accesses) = self.pages.get_mut(&candidate.page).unwrap();
                match candidate.from {
                    Queue::Small if *accesses >= 1 => *accesses = 0,
                    Queue::Main if *accesses >= 1 => *accesses -= 1,
                    Queue::Small | Queue::Main | Queue::Isolated | Queue::Unused => {
                        self.replacement.evict(&candidate, hash(candidate.page));
                        self.pages.remove(&candidate.page);
                        continue;
                    }
                }
                self.replacement.put_back(candidate.node, Queue::Main);
            }
            let node = self.replacement.admit(0, page, hash(page), false);
            self.pages.insert(page, (node, 0));
        }
    }

    #[test]
    fn a_scan_does_not_evict_pages_read_repeatedly() {
        let mut model = Model::new(1000);
        for _ in 0..3 {
            (0..800).for_each(|page| model.read(page));
        }
        (10_000..30_000).for_each(|page| model.read(page));
        let hot = (0..800).filter(|page| model.pages.contains_key(page)).count();
        assert!(hot >= 780, "{hot} of 800 hot pages are left after a scan of 20,000");
    }

    #[test]
    fn a_page_with_a_ghost_entry_goes_to_the_main_queue() {
        let mut model = Model::new(100);
        (0..100).for_each(|page| model.read(page));
        (100..150).for_each(|page| model.read(page));
        let evicted: Vec<u64> = (0..50).filter(|page| !model.pages.contains_key(page)).collect();
        evicted.iter().take(10).for_each(|page| model.read(*page));
        (200..290).for_each(|page| model.read(page));
        let kept = evicted.iter().take(10).filter(|page| model.pages.contains_key(page)).count();
        assert_eq!((evicted.len() >= 10, kept), (true, 10));
    }

    #[test]
    fn removing_an_isolated_page_voids_its_isolation() {
        let mut replacement = Replacement::new(10);
        let node = replacement.admit(1, 5, hash(5), false);
        let candidate = replacement.isolate_oldest().unwrap();
        assert_eq!((candidate.node, candidate.from), (node, Queue::Small));
        assert!(replacement.is_isolated(&candidate) && replacement.isolate_oldest().is_none());
        replacement.remove(node);
        assert!(!replacement.is_isolated(&candidate));
        let again = replacement.admit(1, 6, hash(6), true);
        assert_eq!(again, node, "nodes are reused");
        assert!(!replacement.is_isolated(&candidate));
    }
}
