//! [`Names`]: the directory that all threads share, as registers whose values are inodes.
//!
//! The caller of a rename does not know which inode it moves: the new name may lead to every inode
//! that the old name may have led to while the call ran.

use super::history::{NEVER, Tick, Window};
use butternut::FileId;

/// The names of the directory.
pub const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The longest chain of renames that is followed; beyond it any inode is allowed.
const DEPTH_MAX: u32 = 6;

/// The changes of each name.
#[derive(Debug)]
pub struct Names {
    writes: [Vec<Named>; NAMES.len()],
}

#[derive(Clone, Copy, Debug)]
struct Named {
    leads: Leads,
    start: Tick,
    end: Tick,
}

/// The inode that a name leads to after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    Nowhere,
    To(FileId),
    /// A new inode whose number is not known yet.
    ToNew,
    /// Every inode that the given name may have led to meanwhile.
    As(usize),
    /// None, or the same inode as before if the given name led to it too: a rename from one name of
    /// an inode to another of its names changes nothing.
    NowhereUnlessAs(usize),
    /// The same inode as before, because the change failed.
    AsBefore,
}

/// A change of names that has begun: each name, and the index of the change in its list.
#[derive(Debug)]
pub struct Renaming(Vec<(usize, usize)>);

impl Default for Names {
    fn default() -> Self {
        let nowhere = Named { leads: Leads::Nowhere, start: 0, end: 0 };
        Self { writes: std::array::from_fn(|_| vec![nowhere]) }
    }
}

impl Names {
    /// Begins a change of names.
    pub fn begin(&mut self, start: Tick, changes: &[(usize, Leads)]) -> Renaming {
        let mut begun = Vec::new();
        for (name, leads) in changes {
            begun.push((*name, self.writes[*name].len()));
            self.writes[*name].push(Named { leads: *leads, start, end: NEVER });
        }
        Renaming(begun)
    }

    /// Records that the change has returned. `leads` replaces the target of the first name.
    pub fn end(&mut self, renaming: &Renaming, end: Tick, leads: Option<Leads>) {
        for (name, place) in &renaming.0 {
            let write = &mut self.writes[*name][*place];
            write.end = end;
            write.leads = leads.unwrap_or(write.leads);
        }
    }

    /// Returns whether a lookup in the window may find this.
    pub fn allows(&self, name: usize, found: Option<FileId>, window: &Window) -> bool {
        self.may_lead(name, found, window, (NEVER, DEPTH_MAX))
    }

    /// Returns the same without the change that began at `except`.
    fn may_lead(
        &self,
        name: usize,
        found: Option<FileId>,
        window: &Window,
        (except, depth): (Tick, u32),
    ) -> bool {
        let writes = &self.writes[name];
        let counts = |write: &&Named| write.leads != Leads::AsBefore && write.start != except;
        let is_replaced = |write: &Named| {
            let mut others = writes.iter().filter(counts);
            others.any(|other| other.start > write.end && other.end < window.from)
        };
        writes
            .iter()
            .filter(counts)
            .filter(|write| write.start < window.to && !is_replaced(write))
            .any(|write| self.matches(name, write, found, depth))
    }

    fn matches(&self, name: usize, write: &Named, found: Option<FileId>, depth: u32) -> bool {
        if depth == 0 {
            return true;
        }
        let meanwhile =
            Window { from: write.start, to: write.end, position: None, stores_from: None };
        let might = |other| self.may_lead(other, found, &meanwhile, (write.start, depth - 1));
        match write.leads {
            Leads::Nowhere => found.is_none(),
            Leads::To(id) => found == Some(id),
            Leads::ToNew => found.is_some(),
            Leads::As(other) => found.is_some() && might(other),
            Leads::NowhereUnlessAs(other) => found.is_none() || (might(other) && might(name)),
            Leads::AsBefore => false,
        }
    }

    /// Lists the changes of a name for a report.
    pub fn describe(&self, name: usize) -> String {
        format!("{:?}", self.writes[name])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_follow_changes_of_names() {
        let (one, other) = (FileId::new(5, 257), FileId::new(5, 258));
        let mut names = Names::default();
        let at = |from, to| Window { from, to, position: None, stores_from: None };
        let made = names.begin(1, &[(0, Leads::ToNew)]);
        assert!(names.allows(0, None, &at(2, 3)) && names.allows(0, Some(one), &at(2, 3)));
        names.end(&made, 4, Some(Leads::To(one)));
        assert!(names.allows(0, Some(one), &at(5, 6)) && !names.allows(0, None, &at(5, 6)));
        assert!(!names.allows(0, Some(other), &at(5, 6)));
        let refused = names.begin(6, &[(0, Leads::Nowhere)]);
        names.end(&refused, 7, Some(Leads::AsBefore));
        let moved = names.begin(8, &[(1, Leads::As(0)), (0, Leads::NowhereUnlessAs(1))]);
        names.end(&moved, 10, None);
        assert!(names.allows(1, Some(one), &at(11, 12)) && !names.allows(1, None, &at(11, 12)));
        assert!(names.allows(0, None, &at(11, 12)) && !names.allows(0, Some(one), &at(11, 12)));
        assert!(!names.allows(1, Some(other), &at(11, 12)));
        assert!(names.allows(0, Some(one), &at(9, 12)));
    }
}
