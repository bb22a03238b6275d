//! Room: what is tried where there is no space for what somebody wants.
//!
//! ```text
//! want --> found
//!  ^ |
//!  | +--> a chunk more, as long as the devices have room for one --+
//!  | +--> a commit, once, if it may set space free ----------------+
//!  | +--> no space                                                 |
//!  +---------------------------------------------------------------+
//! ```
//!
//! Law: who waits for room holds no handle, because a commit waits until there is none.

use crate::error::TreeError;
use crate::forest::Forest;
use crate::refusals::Purpose;
use crate::running::Running;
use butternut_space::{Class, NoSpace};
use std::sync::Arc;

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
        let mut has_committed = false;
        loop {
            let why = match want(running)? {
                Ok(found) => return Ok(found),
                Err(why) => why,
            };
            if why.unallocated && self.grow(why.class)? {
                continue;
            }
            let gains = self.commits_for_space() && running.commit_gains(why.pinned_bytes);
            if has_committed || !gains {
                return Err(TreeError::NoSpace { wanted: why.wanted });
            }
            self.commit()?;
            has_committed = true;
        }
    }

    /// Makes a chunk, inside the running transaction; `false` where there is no room for one.
    fn grow(&self, class: Class) -> Result<bool, TreeError> {
        let running = self.running()?;
        let _inside = running.gate.inside()?;
        Ok(running.add_chunk(self, class))
    }
}
