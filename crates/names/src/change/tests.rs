//! Changes of names in an ordered map: each refusal, and random sequences of changes.

use super::*;
use crate::inode::{Moment, NewInode, insert_inode};
use crate::memory::{Memory, colliding};
use crate::number::{INDEX_FIRST, next_index, next_ino};
use crate::old_name::{Backref, backref};
use butternut_format::checksum::{extref_hash, name_hash};
use butternut_format::inode::{DeviceNumber, FileKind, Inode, RawInodeItem, Time};
use butternut_format::inode_ref::InodeExtref;
use butternut_format::key::ItemType;
use butternut_format::units::TreeId;
use butternut_tree::TreeError;
use proptest::prelude::*;
use std::collections::BTreeMap;
use zerocopy::{FromZeros, IntoBytes};

const ROOT: Ino = Ino(256);
const OTHER: Ino = Ino(257);
const GENERATION: Generation = Generation(9);

fn an_inode(kind: FileKind) -> Inode {
    let moment = Moment { generation: GENERATION, now: Time { secs: 7, nanos: 1 } };
    let new = NewInode { kind, permissions: 0o644, uid: 1, gid: 2, rdev: DeviceNumber::default() };
    let mut parent = RawInodeItem::new_zeroed();
    parent.mode.set(0o40_755);
    new.inode(&Inode::check(parent.as_bytes()).unwrap(), moment)
}

/// Two directories, and files from 300 on.
fn volume(extended_refs: bool, files: u64) -> Memory {
    let memory = Memory::new(extended_refs);
    for ino in [ROOT, OTHER] {
        insert_inode(&memory, ino, &an_inode(FileKind::Directory)).unwrap();
    }
    for ino in 300..300 + files {
        insert_inode(&memory, Ino(ino), &an_inode(FileKind::File)).unwrap();
    }
    memory
}

fn file(ino: u64) -> Found {
    Found { target: Target::Inode(Ino(ino)), kind: FileKind::File }
}

fn new<'a>(memory: &Memory, dir: Ino, name: &'a [u8], ino: u64) -> NewName<'a> {
    let index = next_index(memory, dir).unwrap();
    NewName { dir, name, index, found: file(ino), generation: GENERATION }
}

fn old(dir: Ino, name: &[u8], ino: u64) -> OldName<'_> {
    OldName { dir, name, target: OldTarget::Inode(Ino(ino)) }
}

#[test]
fn names_with_one_hash_share_an_item_until_it_is_full() {
    let memory = volume(true, 20);
    let names = colliding(b"", 255, 16);
    for (ino, name) in (300..).zip(&names[..13]) {
        link(&memory, &new(&memory, ROOT, name, ino)).unwrap();
    }
    assert_eq!(memory.count(ItemType::DIR_ITEM), 1);
    let before = memory.items();
    let refused = link(&memory, &new(&memory, ROOT, &names[13], 313)).unwrap_err();
    assert!(matches!(refused, NamesError::Crowded), "{refused}");
    assert_eq!(memory.items(), before);
    memory.audit();
    unlink(&memory, &old(ROOT, &names[4], 304)).unwrap();
    link(&memory, &new(&memory, ROOT, &names[13], 313)).unwrap();
    memory.audit();
}

#[test]
fn an_inode_goes_with_its_last_name_in_either_form_of_reference() {
    for extended in [false, true] {
        let memory = volume(true, 4);
        for (ino, name) in (300..).zip([b"one", b"two", b"six"]) {
            link(&memory, &new(&memory, ROOT, name, ino)).unwrap();
        }
        let before = memory.items();
        let index = next_index(&memory, ROOT).unwrap();
        link(&memory, &new(&memory, ROOT, b"last", 303)).unwrap();
        if extended {
            let key = Key::new(303, ItemType::INODE_REF, ROOT.0);
            memory.remove(&key).unwrap();
            let extref = InodeExtref { parent: ROOT, index, name: b"last" };
            let key = Key::new(303, ItemType::INODE_EXTREF, extref_hash(ROOT.0, b"last"));
            let mut item = Vec::new();
            extref.append_to(&mut item);
            memory.put(&key, &item).unwrap();
        }
        let mut seen = Vec::new();
        let whole = (Ino(303), FileKind::File);
        let last = old(ROOT, b"last", 303);
        unlink_last(&memory, &last, whole, &mut |key, _| seen.push(key.item_type)).unwrap();
        let form = if extended { ItemType::INODE_EXTREF } else { ItemType::INODE_REF };
        assert_eq!(seen, [ItemType::INODE_ITEM, form]);
        let mut expected = before;
        expected.remove(&Key::new(303, ItemType::INODE_ITEM, 0));
        assert_eq!(memory.items(), expected);
        memory.audit();
    }
}

#[test]
fn an_inode_without_the_reference_to_its_last_name_ends_the_transaction() {
    let memory = volume(true, 1);
    let whole = (Ino(300), FileKind::File);
    let name = old(ROOT, b"name", 300);
    assert!(unlink_last(&memory, &name, whole, &mut |_, _| {}).is_err());
    assert!(memory.has_failed());
}

#[test]
fn a_name_that_exists_is_refused_and_nothing_changes() {
    let memory = volume(true, 2);
    link(&memory, &new(&memory, ROOT, b"name", 300)).unwrap();
    let before = memory.items();
    for ino in [300, 301] {
        let refused = link(&memory, &new(&memory, ROOT, b"name", ino)).unwrap_err();
        assert!(matches!(refused, NamesError::Exists), "{refused}");
        assert_eq!(memory.items(), before);
    }
    assert!(matches!(unlink(&memory, &old(ROOT, b"none", 300)), Err(NamesError::NoEntry)));
    for name in [&b""[..], b"a/b", b"a\0b"] {
        let refused = link(&memory, &new(&memory, ROOT, name, 300)).unwrap_err();
        assert!(matches!(refused, NamesError::BadName(_)), "{refused}");
    }
    let refused = link(&memory, &new(&memory, ROOT, &[b'n'; 256], 300)).unwrap_err();
    assert!(matches!(refused, NamesError::NameTooLong), "{refused}");
    assert_eq!(memory.items(), before);
}

#[test]
fn a_rename_to_a_name_that_has_a_reference_without_an_entry_changes_nothing() {
    for replaces in [None, Some(OldTarget::Inode(Ino(301)))] {
        let memory = volume(true, 2);
        link(&memory, &new(&memory, ROOT, b"one", 300)).unwrap();
        if replaces.is_some() {
            link(&memory, &new(&memory, ROOT, b"two", 301)).unwrap();
        }
        let left = InodeRef { index: 99, name: b"two" };
        reference::add(&memory, Ino(300), ROOT, &left).unwrap();
        let before = memory.items();
        let to = new(&memory, ROOT, b"two", 300);
        let refused = rename(&memory, &Move { from: old(ROOT, b"one", 300), to, replaces });
        assert!(matches!(refused, Err(NamesError::Exists)), "{refused:?}");
        assert_eq!(memory.items(), before);
        assert!(!memory.has_failed());
    }
}

#[test]
fn references_take_their_second_form_when_the_first_is_full() {
    let memory = volume(true, 1);
    let name = |number: u32| format!("{number:0>100}").into_bytes();
    for number in 0..100 {
        link(&memory, &new(&memory, ROOT, &name(number), 300)).unwrap();
    }
    // 36 entries of 110 bytes fit into the 3970 that an item may have.
    assert_eq!(memory.count(ItemType::INODE_EXTREF), 64);
    memory.audit();
    for number in (0..100).rev() {
        unlink(&memory, &old(ROOT, &name(number), 300)).unwrap();
    }
    assert_eq!(memory.items().len(), 3);
}

#[test]
fn without_the_second_form_a_full_item_means_too_many_links() {
    let memory = volume(false, 1);
    let name = |number: u32| format!("{number:0>100}").into_bytes();
    for number in 0..36 {
        link(&memory, &new(&memory, ROOT, &name(number), 300)).unwrap();
    }
    let before = memory.items();
    let refused = link(&memory, &new(&memory, ROOT, &name(36), 300)).unwrap_err();
    assert!(matches!(refused, NamesError::TooManyLinks), "{refused}");
    let moved = name(0);
    let from = old(ROOT, &moved, 300);
    let to = new(&memory, ROOT, &[b'x'; 120], 300);
    let refused = rename(&memory, &Move { from, to, replaces: None }).unwrap_err();
    assert!(matches!(refused, NamesError::TooManyLinks), "{refused}");
    assert_eq!(memory.items(), before);
}

#[test]
fn a_change_that_cannot_go_on_is_the_trees_error_and_never_committed() {
    let memory = volume(true, 2);
    link(&memory, &new(&memory, ROOT, b"one", 300)).unwrap();
    link(&memory, &new(&memory, ROOT, b"two", 301)).unwrap();
    let key = crate::entry::hash_key(ROOT, b"one");
    memory.remove(&key).unwrap();
    assert!(!memory.has_failed());
    let error = unlink(&memory, &old(ROOT, b"one", 300)).unwrap_err();
    let NamesError::Tree(TreeError::Corrupt { source, .. }) = &error else { panic!("{error:?}") };
    let want = format!("item {key}: entry: have none, want the name that a reference has");
    assert_eq!(source.to_string(), want);
    assert!(memory.has_failed());
}

/// Removes the references of an inode to its names in the root directory.
fn lose_references(memory: &Memory, ino: u64) {
    memory.remove(&Key::new(ino, ItemType::INODE_REF, ROOT.0)).unwrap();
}

/// A name in the root directory, as its caller reads it before a change.
fn read_old<'a>(memory: &Memory, name: &'a [u8], ino: u64) -> Result<OldName<'a>, NamesError> {
    let target = backref(memory, (ROOT, name), (Ino(ino), 1))?.target(Ino(ino));
    Ok(OldName { dir: ROOT, name, target })
}

type ChangeOfOne = fn(&Memory) -> Result<(), NamesError>;

/// Each change of the name `one` of inode 300. The name `two` leads to inode 301.
const CHANGES: [(&str, ChangeOfOne); 7] = [
    ("unlink", |memory| unlink(memory, &read_old(memory, b"one", 300)?).map(drop)),
    ("unlink_last", |memory| {
        let whole = (Ino(300), FileKind::File);
        unlink_last(memory, &read_old(memory, b"one", 300)?, whole, &mut |_, _| {})
    }),
    ("rename", |memory| {
        let (from, to) = (read_old(memory, b"one", 300)?, new(memory, ROOT, b"moved", 300));
        rename(memory, &Move { from, to, replaces: None })
    }),
    ("move", |memory| {
        let (from, to) = (read_old(memory, b"one", 300)?, new(memory, OTHER, b"moved", 300));
        rename(memory, &Move { from, to, replaces: None })
    }),
    ("replace", |memory| {
        let (from, to) = (read_old(memory, b"two", 301)?, new(memory, ROOT, b"one", 301));
        let replaces = Some(read_old(memory, b"one", 300)?.target);
        rename(memory, &Move { from, to, replaces })
    }),
    ("be replaced", |memory| {
        let (from, to) = (read_old(memory, b"one", 300)?, new(memory, ROOT, b"two", 300));
        let replaces = Some(read_old(memory, b"two", 301)?.target);
        rename(memory, &Move { from, to, replaces })
    }),
    ("exchange", |memory| {
        let side = |name, ino, index| {
            let old_target = read_old(memory, name, ino)?.target;
            Ok::<_, NamesError>(Exchanged { dir: ROOT, name, found: file(ino), old_target, index })
        };
        let index = next_index(memory, ROOT).unwrap();
        let (one, two) = (side(b"one", 300, index)?, side(b"two", 301, index + 1)?);
        exchange(memory, &one, &two, GENERATION)
    }),
];

fn volume_of_two() -> Memory {
    let memory = volume(true, 2);
    link(&memory, &new(&memory, ROOT, b"one", 300)).unwrap();
    link(&memory, &new(&memory, ROOT, b"two", 301)).unwrap();
    memory
}

#[test]
fn every_change_accepts_a_name_whose_reference_is_lost() {
    for (name, change) in CHANGES {
        let memory = volume_of_two();
        lose_references(&memory, 300);
        change(&memory).unwrap();
        assert!(!memory.has_failed(), "{name}");
        memory.audit();
    }
}

#[test]
fn a_change_that_meets_a_corrupt_item_changes_nothing_or_ends_the_transaction() {
    let mut refused = 0;
    for (name, change) in CHANGES {
        for is_lost in [false, true] {
            let fresh = || {
                let memory = volume_of_two();
                if is_lost {
                    lose_references(&memory, 300);
                }
                memory
            };
            for key in fresh().items().into_keys() {
                let memory = fresh();
                memory.put(&key, &[1; 5]).unwrap();
                let before = memory.items();
                let Err(error) = change(&memory) else { continue };
                refused += 1;
                if !memory.has_failed() {
                    assert_eq!(memory.items(), before, "{name}, {key}: {error}");
                }
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn a_name_without_reference_is_stale_if_its_inode_has_all_its_links() {
    let memory = volume(true, 1);
    let name = |number: u32| format!("{number:0>100}").into_bytes();
    for number in 0..50 {
        link(&memory, &new(&memory, ROOT, &name(number), 300)).unwrap();
    }
    assert!(memory.count(ItemType::INODE_EXTREF) > 0);
    let read = |name: &[u8], nlink| backref(&memory, (ROOT, name), (Ino(300), nlink)).unwrap();
    for number in [0, 49] {
        assert_eq!(read(&name(number), 50), Backref::Present);
    }
    let stale = NewName { found: file(301), ..new(&memory, ROOT, b"stale", 301) };
    link(&memory, &stale).unwrap();
    let index = stale.index;
    assert_eq!(read(b"stale", 50), Backref::Stale { index });
    assert_eq!(read(b"stale", 51), Backref::Lost { index });
    assert_eq!(read(b"unlisted", 1), Backref::Stale { index: 0 });
}

#[test]
fn the_listing_keeps_an_item_of_another_name_with_the_same_index() {
    for (name, change) in CHANGES {
        let memory = volume_of_two();
        link(&memory, &new(&memory, ROOT, b"other", 301)).unwrap();
        let index = |index| Key::new(ROOT.0, ItemType::DIR_INDEX, index);
        let other = memory.items()[&index(INDEX_FIRST + 2)].clone();
        memory.put(&index(INDEX_FIRST), &other).unwrap();
        change(&memory).unwrap();
        assert_eq!(memory.items().get(&index(INDEX_FIRST)), Some(&other), "{name}");
    }
}

#[test]
fn an_unreadable_reference_in_the_midst_of_a_change_ends_the_transaction() {
    let memory = volume(true, 2);
    link(&memory, &new(&memory, ROOT, b"one", 300)).unwrap();
    link(&memory, &new(&memory, ROOT, b"two", 301)).unwrap();
    let key = Key::new(300, ItemType::INODE_REF, ROOT.0);
    memory.put(&key, &[1; 5]).unwrap();
    let (from, to) = (old(ROOT, b"two", 301), new(&memory, ROOT, b"one", 301));
    let replaces = Some(OldTarget::Inode(Ino(300)));
    assert!(rename(&memory, &Move { from, to, replaces }).is_err());
    assert!(memory.has_failed());
}

#[test]
fn a_subvolume_moves_without_references_of_its_own() {
    let memory = volume(true, 0);
    let found = Found { target: Target::Subvolume(TreeId(300)), kind: FileKind::Directory };
    let new = NewName { dir: ROOT, name: b"sub", index: 2, found, generation: GENERATION };
    link(&memory, &new).unwrap();
    assert_eq!(crate::entry::find_index(&memory, ROOT, b"sub").unwrap(), Some(2));
    assert_eq!(crate::entry::find_index(&memory, ROOT, b"none").unwrap(), None);
    let from = OldName { dir: ROOT, name: b"sub", target: OldTarget::Unreferenced { index: 2 } };
    let to = NewName { dir: OTHER, name: b"moved", index: 5, ..new };
    rename(&memory, &Move { from, to, replaces: None }).unwrap();
    assert_eq!(crate::entry::find_index(&memory, OTHER, b"moved").unwrap(), Some(5));
    assert_eq!(memory.items().len(), 4);
}

#[test]
fn the_next_numbers_are_above_all_in_use() {
    let memory = volume(true, 0);
    assert_eq!(next_index(&memory, ROOT).unwrap(), INDEX_FIRST);
    assert_eq!(next_ino(&memory).unwrap(), Ino(258));
    crate::orphan::add_orphan(&memory, Ino(700)).unwrap();
    insert_inode(&memory, Ino(500), &an_inode(FileKind::File)).unwrap();
    assert_eq!(next_ino(&memory).unwrap(), Ino(501));
    link(&memory, &NewName { index: 17, ..new(&memory, ROOT, b"a", 500) }).unwrap();
    assert_eq!(next_index(&memory, ROOT).unwrap(), 18);
    assert_eq!(next_index(&memory, OTHER).unwrap(), INDEX_FIRST);
    assert_eq!(next_ino(&Memory::new(true)).unwrap(), Ino(257));
    insert_inode(&memory, Ino(u64::MAX - 256), &an_inode(FileKind::File)).unwrap();
    assert_eq!(next_ino(&memory).unwrap(), Ino(crate::number::INO_LAST));
}

#[derive(Clone, Debug)]
enum Step {
    Link(usize, u64),
    Unlink(usize),
    Rename(usize, usize),
    Exchange(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = 0..40_usize;
    let step = prop_oneof![
        4 => (place.clone(), 300..304_u64).prop_map(|(place, ino)| Step::Link(place, ino)),
        1 => place.clone().prop_map(Step::Unlink),
        3 => (place.clone(), place.clone()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => (place.clone(), place).prop_map(|(one, other)| Step::Exchange(one, other)),
    ];
    prop::collection::vec(step, 1..120)
}

/// Names in two directories, three quarters of which collide.
fn places() -> Vec<(Ino, Vec<u8>)> {
    let mut names = colliding(b"", 255, 15);
    names.extend((0..5_u8).map(|number| vec![b'n', number + 1]));
    [ROOT, OTHER]
        .into_iter()
        .flat_map(|dir| names.iter().map(move |name| (dir, name.clone())))
        .collect()
}

type Model = BTreeMap<(Ino, Vec<u8>), u64>;

fn apply(memory: &Memory, model: &mut Model, step: &Step) -> Result<(), NamesError> {
    let places = places();
    let fresh = |at: usize, ino: u64, index: u64| {
        let (dir, name) = (places[at].0, &places[at].1[..]);
        NewName { dir, name, index, found: file(ino), generation: GENERATION }
    };
    let place = |at: usize| (places[at].0, &places[at].1[..]);
    match *step {
        Step::Link(at, ino) => {
            link(memory, &fresh(at, ino, next_index(memory, places[at].0)?))?;
            model.insert(places[at].clone(), ino);
        }
        Step::Unlink(at) => {
            let Some(ino) = model.get(&places[at]).copied() else { return Ok(()) };
            unlink(memory, &old(place(at).0, place(at).1, ino))?;
            model.remove(&places[at]);
        }
        Step::Rename(from, to) => {
            let Some(ino) = model.get(&places[from]).copied() else { return Ok(()) };
            let victim = model.get(&places[to]).copied();
            if victim == Some(ino) {
                return Ok(());
            }
            let change = Move {
                from: old(place(from).0, place(from).1, ino),
                to: fresh(to, ino, next_index(memory, places[to].0)?),
                replaces: victim.map(|ino| OldTarget::Inode(Ino(ino))),
            };
            rename(memory, &change)?;
            model.remove(&places[from]);
            model.insert(places[to].clone(), ino);
        }
        Step::Exchange(one, other) => {
            let found = (model.get(&places[one]).copied(), model.get(&places[other]).copied());
            let (Some(a), Some(b)) = found else { return Ok(()) };
            if a == b {
                return Ok(());
            }
            let side = |at: usize, ino: u64, index: u64| Exchanged {
                dir: place(at).0,
                name: place(at).1,
                found: file(ino),
                old_target: OldTarget::Inode(Ino(ino)),
                index,
            };
            let first = next_index(memory, places[one].0)?;
            let second = next_index(memory, places[other].0)? + 1;
            exchange(memory, &side(one, a, first), &side(other, b, second), GENERATION)?;
            model.insert(places[one].clone(), b);
            model.insert(places[other].clone(), a);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_row_of_changes_leaves_names_in_all_places_alike(steps in steps(), extended: bool) {
        let memory = volume(extended, 4);
        let mut model = Model::new();
        for step in &steps {
            let before = (memory.items(), model.clone());
            if let Err(refused) = apply(&memory, &mut model, step) {
                let allowed = matches!(
                    refused,
                    NamesError::Exists | NamesError::Crowded | NamesError::TooManyLinks
                );
                prop_assert!(allowed, "{refused} at {step:?}");
                prop_assert_eq!(memory.items(), before.0);
            }
            memory.audit();
            let names = model.iter().map(|((dir, name), ino)| {
                let key = Key::new(dir.0, ItemType::DIR_ITEM, name_hash(name));
                let item = memory.items().remove(&key).unwrap();
                butternut_format::dir::DirEntries::new(&item)
                    .map(Result::unwrap)
                    .any(|entry| entry.name == name.as_slice() && entry.location.objectid == *ino)
            });
            prop_assert!(names.into_iter().all(|there| there));
            let entries = memory.count(ItemType::DIR_INDEX);
            prop_assert_eq!(entries, model.len());
        }
    }
}
