//! Room: what is tried where there is no space for what somebody wants.
//!
//! ```text
//! want --> found
//!  ^ |
//!  | +--> a chunk more, as long as the devices have room for one --+
//!  | +--> a commit, a few times, if it may set space free, or      |
//!  |      gives the empty groups of another class back             |
//!  | +--> no space                                                 |
//!  +---------------------------------------------------------------+
//! ```
//!
//! Nothing is refused for want of space while a group of another class is empty and could go.
//!
//! One commit would do if nobody else wanted anything: others may take what it set free, for as
//! long as they have a handle.
//!
//! Law: who waits for room holds no handle, because a commit waits until there is none.

use crate::error::TreeError;
use crate::forest::Forest;
use crate::refusals::Purpose;
use crate::running::Running;
use butternut_space::{Class, NoSpace};
use std::sync::Arc;

/// Commits for one wish.
const COMMITS_MAX: usize = 4;

impl Forest {
    /// What `want` finds, as soon as there is space for it.
    ///
    /// # Errors
    /// No space, or whatever else `want` fails for.
    pub(crate) fn find_room<R>(
        self: &Arc<Self>,
        purpose: Purpose,
        mut want: impl FnMut(&Running) -> Result<Result<R, NoSpace>, TreeError>,
    ) -> Result<R, TreeError> {
        let running = self.running()?;
        self.ask(purpose)?;
        let mut commits = 0;
        loop {
            let why = match want(running)? {
                Ok(found) => return Ok(found),
                Err(why) => why,
            };
            if why.unallocated && self.grow(why.class)? {
                continue;
            }
            let gains = running.commit_gains(why.pinned_bytes)
                || running.gate.is_busy()
                || !running.space.spare_groups(why.class).is_empty();
            if commits == COMMITS_MAX || !gains || !self.commits_for_space() {
                return Err(TreeError::NoSpace { wanted: why.wanted });
            }
            self.give_up_groups(why.class)?;
            self.commit()?;
            commits += 1;
        }
    }

    /// Has the next commit give back the empty groups of other classes: the class has no space, and
    /// no chunk can be made for it.
    fn give_up_groups(&self, needy: Class) -> Result<(), TreeError> {
        let running = self.running()?;
        let _inside = running.gate.inside()?;
        let spare = running.space.spare_groups(needy);
        if !spare.is_empty() {
            running.chunks().evict(spare.iter().map(|group| group.start).collect());
            running.gate.mark_changed();
        }
        Ok(())
    }

    /// Makes a chunk, inside the running transaction; `false` where there is no room for one.
    fn grow(&self, class: Class) -> Result<bool, TreeError> {
        let running = self.running()?;
        let _inside = running.gate.inside()?;
        Ok(running.add_chunk(self, class))
    }
}
