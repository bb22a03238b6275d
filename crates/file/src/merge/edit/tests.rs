//! Panics under the locks of a file in memory, after which nothing of the file is merged into its
//! tree; and edits of several files, of which one cannot be read.

use super::{TreeEdit, change_trees, inode_key};
use crate::FileState;
use crate::test_volume::{file, file_of, open};
use butternut_format::inode::Inode;
use butternut_format::units::{Ino, TreeId};
use butternut_tree::{Need, TreeError};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_panic_under_a_file_lock_makes_the_volume_read_only_before_a_merge() {
    type Panic = fn(&FileState);
    let panics: [(&str, Panic); 3] = [
        ("overlay", |file| {
            let _overlay = file.shared.overlay_mut_same_data();
            panic!("in the middle of a change");
        }),
        ("items", |file| {
            let _items = file.shared.lock_items_exclusive();
            panic!("between two items");
        }),
        ("pages", |file| {
            let _pages = file.shared.pages().change();
            panic!("between two pages");
        }),
    ];
    for (name, panic) in panics {
        let source = open();
        let mut file = file(&source);
        file.write_at(0, &[7; 8192]).expect("space");
        let panicked = catch_unwind(AssertUnwindSafe(|| panic(&file)));
        assert!(panicked.is_err());
        assert!(file.merge(&mut |_| {}).is_err(), "{name}");
        let Some(TreeError::ReadOnly { cause }) = source.forest().write_error() else {
            panic!("{name}: half a change could be committed");
        };
        assert!(matches!(*cause, TreeError::Panicked), "{name}: {cause}");
        let mut bytes = [0; 8192];
        assert_eq!(source.read_at(file.view(), 0, &mut bytes).expect("reads still work"), 8192);
    }
}

/// The owner of a file takes its inode item for written when its closure was called.
#[test]
fn no_inode_item_counts_as_written_if_that_of_another_file_cannot_be_read() {
    let source = open();
    let (first, second) = (file_of(&source, 300), file_of(&source, 301));
    let plan = |file: &FileState| file.plan(file.draft()).expect("a plan");
    let edits = [plan(&first), plan(&second)];
    let handle = source.forest().join(Need::items(8)).expect("space");
    let tree = handle.tree(TreeId::FS).expect("a tree");
    tree.remove(&inode_key(Ino(301))).expect("a change that was reserved for");
    let mut written = 0;
    let mut update = |_: &mut Inode| written += 1;
    let mut no_update = |_: &mut Inode| {};
    let is_merge = false;
    let mut rows = [
        TreeEdit { file: &first, edit: &edits[0], update: &mut update, is_merge },
        TreeEdit { file: &second, edit: &edits[1], update: &mut no_update, is_merge },
    ];
    change_trees(&handle, &mut rows).expect_err("an inode item that is not there");
    assert_eq!(written, 0);
    drop(handle);
    assert!(source.forest().write_error().is_none(), "nothing was changed");
}
