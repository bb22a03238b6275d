//! Parsing of lists, and the relation of lists and modes.

use super::*;

fn entry(tag: AclTag, permissions: u16) -> AclEntry {
    AclEntry { tag, permissions }
}

fn acl(entries: &[AclEntry]) -> Acl {
    Acl { entries: entries.to_vec() }
}

/// `u::rwx,u:1000:rw-,g::r-x,m::rwx,o::---`
fn full() -> Acl {
    acl(&[
        entry(AclTag::Owner, 7),
        entry(AclTag::User(1000), 6),
        entry(AclTag::GroupOwner, 5),
        entry(AclTag::Mask, 7),
        entry(AclTag::Others, 0),
    ])
}

fn plain(mode: u32) -> Acl {
    let minimal = [entry(AclTag::Owner, 0), entry(AclTag::GroupOwner, 0), entry(AclTag::Others, 0)];
    acl(&minimal).with_mode(mode)
}

#[test]
fn a_list_is_read_as_it_was_written() {
    let bytes = full().to_bytes();
    assert_eq!(bytes.len(), 4 + 5 * 8);
    assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
    assert_eq!(Acl::parse(&bytes).unwrap(), Some(full()));
    assert_eq!(Acl::parse(&[2, 0, 0, 0]).unwrap(), None);
}

#[test]
fn a_list_that_breaks_a_law_is_refused() {
    let refused =
        |entries: &[AclEntry]| Acl::parse(&acl(entries).to_bytes()).unwrap_err().to_string();
    let [owner, user, group, mask, others] = full().entries[..] else { unreachable!() };
    assert!(refused(&[owner, group]).contains("one entry each"));
    assert!(refused(&[owner, user, group, others]).contains("needs a mask"));
    assert!(refused(&[owner, group, user, mask, others]).contains("out of order"));
    assert!(refused(&[owner, owner, group, others]).contains("one entry each"));
    assert!(refused(&[owner, group, mask, mask, others]).contains("one entry each"));
    assert!(refused(&[entry(AclTag::Owner, 8), group, others]).contains("beyond rwx"));
    assert!(
        refused(&[owner, entry(AclTag::User(u32::MAX), 1), group, mask, others]).contains("id")
    );
    assert!(matches!(Acl::parse(&[1, 0, 0, 0]), Err(NamesError::Unsupported { .. })));
    for value in [&[2, 0, 0][..], &[2, 0, 0, 0, 1, 0, 7]] {
        assert!(matches!(Acl::parse(value), Err(NamesError::Invalid { .. })));
    }
    let mut odd = full().to_bytes();
    odd[4] = 3;
    assert!(matches!(Acl::parse(&odd), Err(NamesError::Invalid { .. })));
}

#[test]
fn a_list_that_says_no_more_than_a_mode_becomes_the_mode() {
    let guarded = plain(0o751).apply_to(0o104_000);
    assert_eq!(guarded, AclAndMode { mode: 0o104_751, acl: None });
    let guarded = full().apply_to(0o100_644);
    assert_eq!(guarded, AclAndMode { mode: 0o100_770, acl: Some(full()) });
}

#[test]
fn a_mode_changes_the_mask_and_not_the_group_where_there_is_one() {
    let changed = full().with_mode(0o100_421);
    assert_eq!(changed.permissions(), 0o421);
    assert_eq!(changed.entry(AclTag::GroupOwner), Some(&entry(AclTag::GroupOwner, 5)));
    assert_eq!(changed.entry(AclTag::User(1000)), Some(&entry(AclTag::User(1000), 6)));
    assert_eq!(plain(0o777).with_mode(0o640).permissions(), 0o640);
}

#[test]
fn what_is_made_in_a_directory_with_a_default_list_has_no_umask() {
    let made = inherit(Some(&full()), FileKind::File, 0o4666, 0o077);
    assert_eq!(made.permissions, 0o4660);
    let access = made.access.unwrap();
    assert_eq!(access.entry(AclTag::Owner), Some(&entry(AclTag::Owner, 6)));
    assert_eq!(access.entry(AclTag::Mask), Some(&entry(AclTag::Mask, 6)));
    assert_eq!(access.entry(AclTag::GroupOwner), Some(&entry(AclTag::GroupOwner, 5)));
    assert_eq!(made.default, None);
    let made = inherit(Some(&full()), FileKind::Directory, 0o777, 0o077);
    assert_eq!((made.permissions, made.default), (0o770, Some(full())));
    let made = inherit(Some(&plain(0o750)), FileKind::File, 0o666, 0o077);
    assert_eq!(made, Inherited { permissions: 0o640, access: None, default: None });
    let made = inherit(None, FileKind::Directory, 0o1777, 0o022);
    assert_eq!(made, Inherited { permissions: 0o1755, access: None, default: None });
    let made = inherit(Some(&full()), FileKind::Symlink, 0o777, 0o077);
    assert_eq!(made, Inherited { permissions: 0o777, access: None, default: None });
}
