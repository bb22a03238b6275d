//! The caller of a request: its groups and its capabilities, read from `/proc`.
//!
//! 1. A request names one group of its caller. Whether a file without group execute loses its
//!    set-group-id bit depends on all groups.
//! 2. Capabilities count only in the user namespace of this process, because every process has all
//!    of them in a namespace that it made.
//! 3. A caller that cannot be read has only the group of the request, and no capability, except
//!    that user 0 may change the flags of inodes.
//! 4. The ids of requests are those of this process's namespace; the kernel sends 0 for a caller
//!    outside of it. `/proc` may show another namespace, and other processes under these ids: then
//!    no caller can be read.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use butternut::{Privileges, Stat};
use butternut_sys::text;

use crate::connection::protocol::InHeader;

const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// The umask of a caller that cannot be read.
const UMASK: u32 = 0o022;

/// Numbers of capabilities.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_FOWNER: u32 = 3;
const CAP_LINUX_IMMUTABLE: u32 = 9;

/// Returns whether the caller may change the flags of an inode with this owner. `is_guarded` says
/// that immutable or append-only changes.
pub(crate) fn may_set_flags(caller: &InHeader, owner: u32, is_guarded: bool) -> bool {
    let is_root = caller.uid == 0;
    (is_root || caller.uid == owner || has_capability(caller, CAP_FOWNER))
        && (!is_guarded || capability(caller, CAP_LINUX_IMMUTABLE).unwrap_or(is_root))
}

/// Returns whether the caller has a capability in the user namespace of this process (laws 2, 3).
fn has_capability(caller: &InHeader, number: u32) -> bool {
    capability(caller, number).unwrap_or(false)
}

/// As [`has_capability`]; `None` for a caller that cannot be read.
fn capability(caller: &InHeader, number: u32) -> Option<bool> {
    let namespace = |of: &Path| fs::read_link(of.join("ns/user")).ok();
    let theirs = namespace(&directory(caller.pid)?)?;
    let own = namespace(Path::new("/proc/self"))?;
    Some(own == theirs && capabilities(&status(caller))? >> number & 1 == 1)
}

/// Returns the effective capabilities in a `status` file, one bit each.
fn capabilities(status: &str) -> Option<u64> {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

fn status(caller: &InHeader) -> String {
    let directory = directory(caller.pid);
    directory.and_then(|path| text::of_file(path.join("status")).ok()).unwrap_or_default()
}

/// Returns the directory of a caller in `/proc` (law 4).
pub(crate) fn directory(pid: u32) -> Option<PathBuf> {
    let own = fs::read_link("/proc/self").ok()?;
    let is_own = own.as_os_str() == std::process::id().to_string().as_str();
    (is_own && pid != 0).then(|| PathBuf::from(format!("/proc/{pid}")))
}

/// Reads from the memory of the caller, which waits for the reply. Returns `None` where this
/// process may not read it, or there is none.
pub(crate) fn read_memory(pid: u32, at: u64, bytes: &mut [u8]) -> Option<()> {
    let memory = fs::File::open(directory(pid)?.join("mem")).ok()?;
    memory.read_exact_at(bytes, at).ok()
}

/// Returns the privileges that a file loses when this caller changes its data.
pub(crate) fn privileges(caller: &InHeader, of: &Stat) -> Privileges {
    let depends_on_group = of.mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID;
    if depends_on_group && !is_in_group(caller, of.gid) {
        Privileges::StripForeign
    } else {
        Privileges::Strip
    }
}

/// Returns whether the caller is the user that mounted, or root.
pub(crate) fn is_owner_of_mount(caller: &InHeader) -> bool {
    caller.uid == 0 || caller.uid == rustix::process::getuid().as_raw()
}

/// Returns whether the caller has `CAP_SYS_ADMIN`.
pub(crate) fn is_administrator(caller: &InHeader) -> bool {
    has_capability(caller, CAP_SYS_ADMIN)
}

/// Returns whether the caller is the owner of a file, or may act as the owner.
pub(crate) fn is_owner(caller: &InHeader, owner: u32) -> bool {
    caller.uid == owner || has_capability(caller, CAP_FOWNER)
}

/// Returns whether the caller may act as the owner of every file.
pub(crate) fn overrides_ownership(caller: &InHeader) -> bool {
    has_capability(caller, CAP_FOWNER)
}

/// Returns whether permissions do not restrict the caller.
pub(crate) fn overrides_permissions(caller: &InHeader) -> bool {
    has_capability(caller, CAP_DAC_OVERRIDE)
}

/// Returns the umask of the caller.
pub(crate) fn umask(caller: &InHeader) -> u32 {
    let status = status(caller);
    let text = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    text.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(UMASK)
}

/// Returns all groups of the caller.
pub(crate) fn all_groups(caller: &InHeader) -> Vec<u32> {
    std::iter::once(caller.gid).chain(groups(&status(caller))).collect()
}

/// Returns whether a group is one of the caller's (laws 1, 3).
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
    fn groups_are_read_from_proc_status() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 20 1000 \nNStgid:\t1\n";
        assert_eq!(groups(status).collect::<Vec<_>>(), [4, 20, 1000]);
        assert_eq!(groups("Groups:\t\n").count(), 0);
        let unseen = InHeader { pid: u32::MAX, gid: 5, ..InHeader::default() };
        assert!(is_in_group(&unseen, 5) && !is_in_group(&unseen, 6));
    }

    #[test]
    fn a_caller_with_any_name_is_read() {
        let named = || {
            rustix::thread::set_name(c"\xff\xfe").expect("a thread may be renamed");
            let pid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            status(&InHeader { pid, ..InHeader::default() })
        };
        let status = std::thread::spawn(named).join().expect("a status");
        assert!(status.contains("\nGroups:"), "{status}");
    }

    #[test]
    fn a_caller_that_cannot_be_read_has_no_capabilities() {
        assert_eq!(capabilities("Name:\tcat\nCapEff:\t0000000000000208\n"), Some(0x208));
        assert_eq!(capabilities("CapEff:\tnothing\n"), None);
        let unseen = InHeader { pid: u32::MAX, uid: 5, ..InHeader::default() };
        assert!(may_set_flags(&unseen, 5, false));
        assert!(!may_set_flags(&unseen, 5, true));
        assert!(!may_set_flags(&unseen, 6, false));
        let root = InHeader { uid: 0, ..unseen };
        assert!(may_set_flags(&root, 6, true));
    }

    #[test]
    fn user_0_without_the_capability_may_not_change_immutable() {
        let without = || {
            let mut sets = rustix::thread::capabilities(None).expect("own capabilities");
            sets.effective.remove(rustix::thread::CapabilitySet::LINUX_IMMUTABLE);
            rustix::thread::set_capabilities(None, sets).expect("fewer capabilities");
            let pid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            let root = InHeader { pid, ..InHeader::default() };
            (may_set_flags(&root, 6, false), may_set_flags(&root, 6, true))
        };
        let allowed = std::thread::spawn(without).join().expect("a result");
        assert_eq!(allowed, (true, false));
    }
}
