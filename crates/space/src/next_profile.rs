//! The profile of the next chunk of a class.
//!
//! Laws:
//! 1. The next chunk of a class gets the flags of its newest group, or where none is left those of
//!    the group that was added last.
//! 2. On disk only the groups name the profile. So a class that has another profile than single
//!    keeps a group that names it, or gets a new one first: [`Space::last_of_profile`].

use crate::class::Class;
use crate::group::{BlockGroup, GroupStatus};
use crate::state::{Space, State};
use butternut_format::chunk::{BlockGroupFlags, Profile};
use butternut_format::units::Logical;

impl Space {
    /// Returns the flags for the next chunk of a class (law 1).
    pub fn next_chunk_flags(&self, class: Class) -> BlockGroupFlags {
        self.lock().next_chunk_flags(class)
    }

    /// Returns the newest group of each class whose next chunk would get another profile if the
    /// groups were removed for which `is_removed` returns `true` (law 2).
    pub fn last_of_profile(&self, is_removed: impl Fn(Logical) -> bool) -> Vec<GroupStatus> {
        let state = self.lock();
        let last = Class::ALL.into_iter().filter(|class| state.pool_class(*class) == *class);
        let last = last.filter_map(|class| state.last_of_profile(class, &is_removed));
        last.map(BlockGroup::status).collect()
    }
}

impl State {
    /// Law 1.
    pub(crate) fn next_chunk_flags(&self, class: Class) -> BlockGroupFlags {
        let newest = self.newest_groups(class).next().map(|group| group.flags);
        newest.or(self.pool_ref(class).flags).unwrap_or_else(|| class.flag())
    }

    /// Returns the newest group of a class, if removing groups changes the profile of the next
    /// chunk (law 2).
    pub(crate) fn last_of_profile(
        &self,
        class: Class,
        is_removed: impl Fn(Logical) -> bool,
    ) -> Option<&BlockGroup> {
        let newest = self.newest_groups(class).next()?;
        if newest.flags.profile() == Some(Profile::Single) {
            return None;
        }
        let left = self.newest_groups(class).find(|group| !is_removed(Logical(group.start)));
        let is_kept = left.is_some_and(|left| left.flags == newest.flags);
        (!is_kept).then_some(newest)
    }

    fn newest_groups(&self, class: Class) -> impl Iterator<Item = &BlockGroup> {
        let class = self.pool_class(class);
        self.groups.iter().rev().filter(move |group| group.class == class)
    }
}
