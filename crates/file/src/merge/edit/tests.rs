//! Panics under the locks of a file in memory: nothing of the file is merged into its tree
//! afterwards.

use crate::FileState;
use crate::test_volume::{file, open};
use butternut_tree::TreeError;
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
