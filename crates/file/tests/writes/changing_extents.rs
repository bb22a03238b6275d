//! Lists of extents that are read step by step while the file changes.

use crate::volume::{create, fresh, open, state};
use butternut_file::{FileState, Mappings};
use butternut_format::inode::InodeFlags;

const INO: u64 = 300;
const BLOCK: u64 = 4096;
const BYTES: u64 = 256 * BLOCK;

fn merge(file: &mut FileState) {
    file.merge(&mut |_| {}).unwrap();
}

/// A file with one extent of `BYTES` bytes, a hole as long, and another extent.
fn file() -> (butternut_file::Source, FileState) {
    let source = open(&fresh(256));
    create(&source, INO, InodeFlags::default());
    let mut file = state(&source, INO);
    file.write_at(0, &vec![1; BYTES as usize]).unwrap();
    file.write_at(2 * BYTES, &vec![2; BYTES as usize]).unwrap();
    merge(&mut file);
    (source, file)
}

#[test]
fn an_extent_that_is_split_between_two_steps_is_not_corrupt() {
    for steps in 1..3 {
        let (_source, mut file) = file();
        let mut mappings = Mappings::of(file.view(), 0..u64::MAX);
        let mut at = 0;
        for _ in 0..steps {
            at = mappings.next().unwrap().unwrap().end();
        }
        // Both extents are split, and the hole gets data.
        for block in [10, 100, 300, 600, 700] {
            file.write_at(block * BLOCK, &[3; BLOCK as usize]).unwrap();
        }
        merge(&mut file);
        for mapping in mappings {
            let mapping = mapping.unwrap();
            assert_eq!(mapping.offset, at, "without gap or overlap");
            at = mapping.end();
        }
        assert_eq!(at, 3 * BYTES);
    }
}
