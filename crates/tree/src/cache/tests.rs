//! The laws of the node cache, on constructed blocks.

use super::*;
use butternut_format::checksum::ChecksumKind;
use butternut_format::node::{BlockRules, Expected, RawHeader};
use butternut_format::units::TreeId;
use butternut_sys::buffer::Buffer;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

const NODE_BYTES: u32 = 4096;
const FSID: [u8; 16] = [7; 16];

/// Makes an empty leaf of the checksum tree, which the format allows.
fn leaf(logical: u64, generation: u64) -> Arc<Block> {
    let mut header = RawHeader::new_zeroed();
    header.fsid = FSID;
    header.bytenr = U64::new(logical);
    header.flags = U64::new(1 | 1 << 56);
    header.generation = U64::new(generation);
    header.owner = U64::new(TreeId::CHECKSUM.0);
    header.nritems = U32::new(0);
    let mut bytes = Buffer::zeroed(4096);
    bytes[..101].copy_from_slice(header.as_bytes());
    let checksum_bytes = ChecksumKind::Crc32c.compute(&bytes[32..]);
    bytes[..32].copy_from_slice(&checksum_bytes);
    let expected = Expected {
        logical: Logical(logical),
        generation: Generation(generation),
        level: 0,
        tree: TreeId::CHECKSUM,
        first_key: None,
        end_key: None,
    };
    let rules = BlockRules {
        csum: ChecksumKind::Crc32c,
        node_bytes: NODE_BYTES,
        fsids: vec![FSID],
        incompat: 0,
        compat_ro: 0,
    };
    Arc::new(Block::check(bytes, &expected, &rules).expect("an empty leaf is valid"))
}

fn cached_blocks(cache: &NodeCache, addresses: impl Iterator<Item = u64>) -> usize {
    addresses.filter(|a| cache.peek(Logical(*a), Generation(1)).is_some()).count()
}

#[test]
fn the_cache_never_exceeds_its_byte_limit() {
    let cache = NodeCache::new(1 << 20, NODE_BYTES);
    let addresses = || (1..=4096_u64).map(|n| n * 4096);
    for address in addresses() {
        cache.insert(leaf(address, 1));
    }
    let cached = cached_blocks(&cache, addresses());
    assert!((128..=256).contains(&cached), "{cached} blocks of 256 are cached");
    assert!(cache.counters().evicted >= 4096 - 256);
}

#[test]
fn a_cache_of_no_bytes_keeps_nothing() {
    let cache = NodeCache::new(0, NODE_BYTES);
    cache.insert(leaf(4096, 1));
    assert!(cache.find(Logical(4096), Generation(1)).is_none());
}

#[test]
fn an_older_generation_of_an_address_is_a_miss() {
    let cache = NodeCache::new(1 << 20, NODE_BYTES);
    cache.insert(leaf(65536, 1));
    assert!(cache.find(Logical(65536), Generation(2)).is_none());
    cache.insert(leaf(65536, 2));
    assert!(cache.find(Logical(65536), Generation(1)).is_none());
    let found = cache.find(Logical(65536), Generation(2)).expect("the block is cached");
    assert_eq!(found.block().generation(), Generation(2));
    assert_eq!(cache.counters().misses, 2);
}

#[test]
fn a_referenced_block_survives_many_insertions() {
    let cache = NodeCache::new(64 << 10, NODE_BYTES);
    cache.insert(leaf(4096, 1));
    for address in 2..4000_u64 {
        assert!(cache.find(Logical(4096), Generation(1)).is_some(), "evicted at {address}");
        cache.insert(leaf(address * 4096, 1));
    }
}

#[test]
fn readers_never_find_a_block_under_another_address() {
    let cache = NodeCache::new(256 << 10, NODE_BYTES);
    let blocks: Vec<_> = (1..512_u64).map(|n| leaf(n * 4096, 1)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, blocks) = (&cache, &blocks);
            scope.spawn(move || {
                for round in 0..50_000_usize {
                    let block = &blocks[(round * 31 + thread * 127) % blocks.len()];
                    match cache.find(block.logical(), Generation(1)) {
                        Some(found) => assert_eq!(found.block().logical(), block.logical()),
                        None => cache.insert(Arc::clone(block)),
                    }
                }
            });
        }
    });
}
