//! Who makes a request, beyond what it says: which privileges of a file his changes cost.
//!
//! The kernel says only that someone may not keep them. Whether set-group-id goes where the group
//! may not execute depends on his groups, of which a request names one.

use std::fs;

use butternut::{Privileges, Stat};

use crate::wire::InHeader;

const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// What is stripped when someone changes a file without the right to keep its privileges.
pub(crate) fn privileges(caller: &InHeader, of: &Stat) -> Privileges {
    let is_told_by_group = of.mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID;
    if is_told_by_group && !is_in_group(caller, of.gid) {
        Privileges::StripForeign
    } else {
        Privileges::Strip
    }
}

/// Someone of whom nothing is known is in no group.
fn is_in_group(caller: &InHeader, gid: u32) -> bool {
    if caller.gid == gid {
        return true;
    }
    let status = fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
    groups(&status).any(|group| group == gid)
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
}
