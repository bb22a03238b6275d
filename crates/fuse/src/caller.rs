//! The caller of a request, beyond what the request says: its groups and its capabilities, which
//! `/proc` shows.
//!
//! 1. A request names one group. Whether set-group-id goes where the group may not execute depends
//!    on all groups of the caller.
//! 2. Capabilities count only in the user namespace of this process: anyone has all of them in a
//!    namespace that it made itself.
//! 3. A caller that cannot be seen has no group but its first, and no capability.

use std::fs;

use butternut::{Privileges, Stat};

use crate::wire::InHeader;

const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// Capabilities, by number.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_FOWNER: u32 = 3;
const CAP_LINUX_IMMUTABLE: u32 = 9;

/// Whether the caller may set the flags of an inode of this owner; `is_guarded`: also immutable and
/// append-only.
pub(crate) fn may_set_flags(caller: &InHeader, owner: u32, is_guarded: bool) -> bool {
    let is_root = caller.uid == 0;
    (is_root || caller.uid == owner || has_capability(caller, CAP_FOWNER))
        && (is_root || !is_guarded || has_capability(caller, CAP_LINUX_IMMUTABLE))
}

/// Laws 2 and 3.
fn has_capability(caller: &InHeader, capability: u32) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
    let pid = caller.pid.to_string();
    let is_ours = namespace("self").is_some_and(|ours| namespace(&pid) == Some(ours));
    is_ours && capabilities(&status(caller)) >> capability & 1 == 1
}

/// The effective capabilities of a process, a bit each.
fn capabilities(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(set.trim(), 16).unwrap_or(0)
}

fn status(caller: &InHeader) -> String {
    fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default()
}

/// What is stripped when someone changes a file without the right to keep its privileges.
pub(crate) fn privileges(caller: &InHeader, of: &Stat) -> Privileges {
    let is_told_by_group = of.mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID;
    if is_told_by_group && !is_in_group(caller, of.gid) {
        Privileges::StripForeign
    } else {
        Privileges::Strip
    }
}

/// Whether the caller may administer the system.
pub(crate) fn is_administrator(caller: &InHeader) -> bool {
    has_capability(caller, CAP_SYS_ADMIN)
}

/// Laws 1 and 3.
fn is_in_group(caller: &InHeader, gid: u32) -> bool {
    if caller.gid == gid {
        return true;
    }
    groups(&status(caller)).any(|group| group == gid)
}

fn groups(status: &str) -> impl Iterator<Item = u32> {
    let list = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    list.split_whitespace().filter_map(|group| group.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_process_are_found_in_what_it_says_of_itself() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 20 1000 \nNStgid:\t1\n";
        assert_eq!(groups(status).collect::<Vec<_>>(), [4, 20, 1000]);
        assert_eq!(groups("Groups:\t\n").count(), 0);
        let nobody = InHeader { pid: u32::MAX, gid: 5, ..InHeader::default() };
        assert!(is_in_group(&nobody, 5) && !is_in_group(&nobody, 6));
    }

    #[test]
    fn capabilities_are_a_bit_each_and_those_of_an_unseen_caller_are_none() {
        assert_eq!(capabilities("Name:\tcat\nCapEff:\t0000000000000208\n"), 0x208);
        assert_eq!(capabilities("CapEff:\tnothing\n"), 0);
        let unseen = InHeader { pid: u32::MAX, uid: 5, ..InHeader::default() };
        assert!(may_set_flags(&unseen, 5, false));
        assert!(!may_set_flags(&unseen, 5, true));
        assert!(!may_set_flags(&unseen, 6, false));
        let root = InHeader { uid: 0, ..unseen };
        assert!(may_set_flags(&root, 6, true));
    }
}
