//! Owners on the command line: `OWNER`, `OWNER:GROUP`, `OWNER:`, `:GROUP`.
//!
//! A name takes precedence over a number, as in chown(1). Names are those of `/etc/passwd` and
//! `/etc/group`.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// The new owner and group of a file; `None` leaves it unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl Owner {
    pub(crate) fn parse(typed: &str) -> Result<Self, Failure> {
        Self::parse_with(typed, Path::new(USERS), Path::new(GROUPS))
    }

    fn parse_with(typed: &str, users: &Path, groups: &Path) -> Result<Self, Failure> {
        let (user, group) = match typed.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (typed, None),
        };
        let mut owner = Self::default();
        if !user.is_empty() {
            let line = line_of(users, user);
            owner.uid = Some(number(user, line.as_deref(), 2, "user", users)?);
            if group == Some("") {
                let group = line.as_deref().and_then(|line| field(line, 3));
                owner.gid = Some(group.ok_or_else(|| unknown(user, "user with a group", users))?);
            }
        }
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            let line = line_of(groups, group);
            owner.gid = Some(number(group, line.as_deref(), 2, "group", groups)?);
        }
        if owner == Self::default() {
            return Err(Failure::new("owner", format!("{typed:?} names neither owner nor group"))
                .hint("give OWNER, OWNER:GROUP or :GROUP"));
        }
        Ok(owner)
    }
}

/// Returns the number of a user of this machine.
pub(in super::super) fn user_id(name: &str) -> Option<u32> {
    line_of(Path::new(USERS), name).and_then(|line| field(&line, 2))
}

/// Returns the number of a group of this machine.
pub(in super::super) fn group_id(name: &str) -> Option<u32> {
    line_of(Path::new(GROUPS), name).and_then(|line| field(&line, 2))
}

/// Returns the line of a name in a file in the format of passwd(5).
fn line_of(file: &Path, name: &str) -> Option<String> {
    let text = fs::read(file).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().find(|line| line.split(':').next() == Some(name)).map(str::to_owned)
}

fn field(line: &str, at: usize) -> Option<u32> {
    line.split(':').nth(at)?.parse().ok()
}

fn number(
    typed: &str,
    line: Option<&str>,
    at: usize,
    what: &str,
    file: &Path,
) -> Result<u32, Failure> {
    let number = line.and_then(|line| field(line, at)).or_else(|| typed.parse().ok());
    // The kernel takes u32::MAX as "unchanged": no file can have it as its owner.
    number.filter(|number| *number != u32::MAX).ok_or_else(|| unknown(typed, what, file))
}

fn unknown(typed: &str, what: &str, file: &Path) -> Failure {
    Failure::new("owner", format!("{typed:?} is not a {what}"))
        .hint(format!("give a number, or a name from {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_names_or_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let (users, groups) = (dir.path().join("passwd"), dir.path().join("group"));
        fs::write(&users, "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1001::/:\n7:x:70:71::/:\n")
            .unwrap();
        fs::write(&groups, "root:x:0:\nstaff:x:50:ann\n").unwrap();
        let check = |typed: &str, uid, gid| {
            let owner = Owner::parse_with(typed, &users, &groups).ok();
            assert_eq!(owner, Some(Owner { uid, gid }), "{typed}");
        };
        check("ann", Some(1000), None);
        check("ann:", Some(1000), Some(1001));
        check("ann:staff", Some(1000), Some(50));
        check(":staff", None, Some(50));
        check("5:6", Some(5), Some(6));
        check("7", Some(70), None);
        for typed in ["", ":", "bob", "ann:bob", "-1", "4294967295", "5:"] {
            assert!(Owner::parse_with(typed, &users, &groups).is_err(), "{typed:?}");
        }
    }
}
