//! IOCTL: searches of trees, by the calls of the kernel's btrfs.
//!
//! | call | caller | effect |
//! |---|---|---|
//! | `TREE_SEARCH` | administrator | returns the items of a range of keys, as many as fit |
//! | `INO_LOOKUP` | administrator, or law 2 | returns the path of an inode in its subvolume |
//!
//! 1. The kernel transfers exactly the size that the number of a call states, so the second version
//!    of a search, whose results are behind its arguments, cannot be served. Programs use the first
//!    version then.
//! 2. Every caller may learn which subvolume its descriptor is in, by the call with tree 0 and the
//!    inode of the root directory. As in kernel btrfs, a call with that inode and another tree
//!    returns the empty path of a root directory to every caller, and looks nothing up.
//! 3. An item that is too large for the results, and would be the first of them, is returned
//!    without its data.
//! 4. Of an inode with several names, a lookup returns the path of one of them, which need not be
//!    the one that the kernel returns.
//! 5. A search may read many blocks, so its reply is deferred.

use std::ops::ControlFlow;

use butternut::FileId;
use butternut::format::key::{ItemType, Key};
use butternut::format::units::TreeId;
use butternut::inspect::{FoundItem, TreeSearch};
use zerocopy::IntoBytes;

use crate::connection::protocol::{IoctlIn, IoctlOut, SearchHeader, SearchKey};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::{Door, Outcome};
use crate::errno::{Errno, ErrnoResult};

const SEARCH: u32 = 0xd000_9411;
const LOOKUP: u32 = 0xd000_9412;

/// Size of the arguments and results of both calls, in bytes.
const CALL_BYTES: usize = 4096;
/// Size of the results of a search, in bytes.
const RESULT_BYTES: usize = CALL_BYTES - size_of::<SearchKey>();
/// Size of the path in the results of a lookup, in bytes, with its final zero byte.
const PATH_BYTES: usize = CALL_BYTES - 2 * size_of::<u64>();
/// The inode of the root directory of each subvolume.
const ROOT_DIRECTORY: u64 = 256;

/// The results of one search.
#[derive(Default)]
struct Results {
    bytes: Vec<u8>,
    count: u32,
}

impl Results {
    /// Adds an item, while there is space for it (law 3).
    fn add(&mut self, item: &FoundItem<'_>, count_max: u32) -> ControlFlow<()> {
        let space = RESULT_BYTES - self.bytes.len();
        let bytes = size_of::<SearchHeader>() + item.data.len();
        let is_cut = bytes > space && self.count == 0;
        if self.count >= count_max || (bytes > space && !is_cut) {
            return ControlFlow::Break(());
        }
        let data = if is_cut { &[] } else { item.data };
        let header = SearchHeader {
            transid: item.generation.0,
            objectid: item.key.objectid,
            offset: item.key.offset,
            kind: item.key.item_type.0.into(),
            len: u32::try_from(data.len()).unwrap_or(0),
        };
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(data);
        self.count += 1;
        if is_cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Door {
    /// Serves a search. Returns `None` for every other call.
    pub(super) fn search_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
    ) -> Option<ErrnoResult<Outcome>> {
        match call.cmd {
            SEARCH => Some(self.search_tree(request)),
            LOOKUP => Some(self.look_inode_up(request)),
            _ => None,
        }
    }

    fn search_tree(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        if !self.is_administrator(request) {
            return Err(Errno::EPERM);
        }
        let mut key: SearchKey = request.take()?;
        let own = self.node(request)?.subvolume;
        let tree = if key.tree_id == 0 { own } else { key.tree_id };
        let bound = |objectid, kind: u32, offset| {
            // The highest type stands for every higher one, which no item has.
            Key::new(objectid, ItemType(u8::try_from(kind).unwrap_or(u8::MAX)), offset)
        };
        let search = TreeSearch {
            tree: TreeId(tree),
            keys: bound(key.min_objectid, key.min_type, key.min_offset)
                ..=bound(key.max_objectid, key.max_type, key.max_offset),
            generations: key.min_transid..=key.max_transid,
        };
        let inspect = self.filesystem.inspect();
        self.reply_deferred_to_user(request, size_of::<IoctlOut>() + CALL_BYTES, move |reply| {
            let mut results = Results::default();
            inspect.search(&search, &mut |item| results.add(item, key.nr_items))?;
            key.nr_items = results.count;
            results.bytes.resize(RESULT_BYTES, 0);
            reply.push(&IoctlOut::default())?;
            reply.push(&key)?;
            reply.push_bytes(&results.bytes)
        })
    }

    fn look_inode_up(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let own = self.node(request)?.subvolume;
        let [tree, inode]: [u64; 2] = request.take()?;
        let tree = if tree == 0 { own } else { tree };
        // Law 2.
        if inode != ROOT_DIRECTORY && !self.is_administrator(request) {
            return Err(Errno::EPERM);
        }
        let filesystem = self.filesystem.clone();
        self.reply_deferred_to_user(request, size_of::<IoctlOut>() + CALL_BYTES, move |reply| {
            let mut path = Vec::new();
            if inode != ROOT_DIRECTORY {
                let found = filesystem.first_path(FileId::new(tree, inode));
                let found = found.map_err(|error| match Errno::from(error) {
                    Errno::ESTALE => Errno::ENOENT,
                    // More directories than a path has.
                    Errno::E2BIG => Errno::ENAMETOOLONG,
                    errno => errno,
                })?;
                path = found.ok_or(Errno::ENOENT)?;
                path.push(b'/');
            }
            if path.len() >= PATH_BYTES {
                return Err(Errno::ENAMETOOLONG);
            }
            path.resize(PATH_BYTES, 0);
            push_lookup(reply, [tree, inode], &path)
        })
    }
}

fn push_lookup(reply: &mut Reply, of: [u64; 2], path: &[u8]) -> ErrnoResult<()> {
    reply.push(&IoctlOut::default())?;
    reply.push(&of)?;
    reply.push_bytes(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut::format::units::Generation;

    fn add(results: &mut Results, bytes: usize) -> bool {
        let (key, data) = (Key::new(256, ItemType(1), 0), vec![1; bytes]);
        let item = FoundItem { key, generation: Generation(7), data: &data };
        results.add(&item, u32::MAX).is_continue()
    }

    #[test]
    fn results_end_before_an_item_that_does_not_fit() {
        let mut results = Results::default();
        assert!(add(&mut results, RESULT_BYTES - 2 * size_of::<SearchHeader>()));
        assert!(!add(&mut results, 1));
        assert_eq!(results.count, 1);
        assert!(add(&mut results, 0));
        assert_eq!((results.count, results.bytes.len()), (2, RESULT_BYTES));
    }

    #[test]
    fn an_item_that_never_fits_comes_without_data() {
        let mut results = Results::default();
        assert!(!add(&mut results, RESULT_BYTES));
        assert_eq!((results.count, results.bytes.len()), (1, size_of::<SearchHeader>()));
    }
}
