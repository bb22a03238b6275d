//! The running transaction: handles, and the reservations that they hold.
//!
//! ```text
//!            join                     last handle ends
//! open ----------------> open (n) -------------------+
//!  ^                                                 |
//!  |       commit: dirty blocks                      v
//!  +---------- become frozen <------- frozen <---- freezing      (join waits here)
//!  |                                                 |
//!  |                          an error at any step   v
//!  +--------------- never --------------------- read-only      (join fails, with the cause)
//! ```
//!
//! | from | to | by |
//! |---|---|---|
//! | open | freezing | [`Gate::freeze`](gate::Gate::freeze): no handle joins any more |
//! | freezing | frozen | the last [`Handle`] is dropped |
//! | frozen | open | [`Gate::thaw`](gate::Gate::thaw): the next generation begins |
//! | any | read-only | [`Gate::poison`](gate::Gate::poison): the cause is kept |
//!
//! Laws:
//!
//! 1. A transaction is written only when no handle is open in it.
//! 2. A handle reserves the space that its changes may cost before it makes them. After its first
//!    change it cannot fail for lack of space. If it fails for another reason, half a change must
//!    never be committed, so the volume becomes read-only.
//!    A panic is such a reason: every handle, every membership, every [`PanicWatch`] and the commit
//!    poison the gate when their thread panics, before the transaction can be frozen. A lock of the
//!    running state that a panic left poisoned does the same.
//! 3. A thread that holds a handle does no data I/O, does not wait for another handle, and does not
//!    commit. It takes no lock that a thread may hold while it joins: debug builds give a handle
//!    the rank [`rank::Handle`], and panic.
//! 4. A thread that would join a transaction with very many delayed references commits first
//!    ([`References::are_many`](crate::references::References::are_many)). So their memory is
//!    bounded by that and by what the open handles add, also while one operation changes many
//!    extents in many steps. A forest that commits at the end only has no such limit: its caller
//!    looks at the memory ([`Forest::dirty_bytes`]).

pub(crate) mod commit;
pub(crate) mod discards;
pub(crate) mod enospc;
pub(crate) mod gate;
pub(crate) mod global_reserve;
pub(crate) mod need;
pub(crate) mod params;
pub(crate) mod read_epochs;
mod reserve;
pub(crate) mod resizes;
pub(crate) mod running;
pub(crate) mod tree_edit;
pub(crate) mod writable;

use crate::error::TreeError;
use crate::forest::Forest;
use butternut_format::units::{Generation, TreeId};
use butternut_space::Reservation;
use butternut_sys::lock::{Mark, rank};
use butternut_sys::wait::Wait;
use enospc::Purpose;
use gate::PanicState;
use running::Running;
use std::cell::Cell;
use std::sync::Arc;

pub use need::{Need, ReservationLevel};
pub use tree_edit::TreeEdit;

/// Makes the forest read-only if the thread panics while this value exists.
#[derive(Debug)]
pub struct PanicWatch<'a> {
    forest: &'a Forest,
    state: PanicState,
}

impl Drop for PanicWatch<'_> {
    fn drop(&mut self) {
        if let Ok(running) = self.forest.running() {
            self.state.check(&running.gate);
        }
    }
}

/// Membership in the running transaction. The commit waits until every handle is dropped.
#[derive(Debug)]
pub struct Handle {
    forest: Arc<Forest>,
    generation: Generation,
    /// Held until the handle is dropped. The blocks of the changes are allocated beside it.
    reservation: Reservation,
    /// References that the commit reserve covers and that the handle has not added or dropped yet.
    expected_references: Cell<u64>,
    is_changed: Cell<bool>,
    watch: PanicState,
    _mark: Mark<rank::Handle>,
}

impl Forest {
    /// Joins the running transaction. Waits while a transaction is being frozen. Waits for a device
    /// only if space is short and a commit may free some, or if the transaction has too many
    /// delayed references (law 4). The calling thread must hold no handle.
    ///
    /// # Errors
    /// There is no space, or the volume is read-only.
    pub fn join(self: &Arc<Self>, need: Need) -> Result<Handle, TreeError> {
        let purpose = match need.level {
            ReservationLevel::Normal => Purpose::Growth,
            ReservationLevel::Deletion | ReservationLevel::Prereserved => Purpose::Deletion,
        };
        self.inject_enospc_for(need.items)?;
        self.commit_many_references()?;
        self.reserve_or_flush(purpose, Wait::Block, |running| {
            let mark = Mark::new();
            let generation = running.gate.join()?;
            let reservation = running.reserve_items(need);
            if reservation.is_err() {
                running.gate.end();
            }
            Ok(reservation.map(|reservation| {
                let (forest, is_changed) = (Arc::clone(self), Cell::new(false));
                let (watch, expected_references) = (PanicState::now(), need.references);
                let expected_references = Cell::new(expected_references.into());
                Handle {
                    forest,
                    generation,
                    reservation,
                    expected_references,
                    is_changed,
                    watch,
                    _mark: mark,
                }
            }))
        })
    }

    /// Commits if the running transaction has many delayed references (law 4).
    fn commit_many_references(self: &Arc<Self>) -> Result<(), TreeError> {
        if !self.running()?.references().are_many() || !self.commits_for_space() {
            return Ok(());
        }
        self.commit().map(drop)
    }

    /// Makes the forest read-only if the thread panics while the returned value exists. For changes
    /// in memory that a later transaction will write to the trees, and that are made without a
    /// handle.
    pub fn watch_panics(&self) -> PanicWatch<'_> {
        PanicWatch { forest: self, state: PanicState::now() }
    }

    /// Makes the forest read-only, because a thread panicked while it changed state that belongs to
    /// the forest.
    pub fn fail_after_panic(&self) {
        if let Ok(running) = self.running() {
            running.gate.poison(TreeError::Panicked);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Ok(running) = self.forest.running() {
            self.watch.check(&running.gate);
            if self.is_changed.get() {
                running.gate.mark_changed();
            }
            running.forget_expected_references(self.expected_references.get());
            // Before it ends: a thread without space looks for members first (law 2 of `reserve`).
            self.reservation.release();
            running.gate.end();
        }
    }
}

impl Handle {
    /// Returns the generation of the transaction.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the forest of the transaction.
    pub fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// Opens a tree for changes.
    ///
    /// # Errors
    /// There is no such tree, or it cannot be read.
    pub fn tree(&self, id: TreeId) -> Result<TreeEdit<'_>, TreeError> {
        TreeEdit::new(self.running(), id, self.generation, Some(&self.is_changed))
    }

    /// Makes the volume read-only, because the changes of this handle cannot be completed. Returns
    /// the error to report.
    pub fn abort(&self, cause: TreeError) -> TreeError {
        match self.forest.running() {
            Ok(running) => running.gate.poison(cause),
            Err(error) => error,
        }
    }

    pub(crate) fn running(&self) -> &Running {
        self.forest.running().expect("only a writable forest has handles")
    }

    pub(crate) fn mark_changed(&self) {
        self.is_changed.set(true);
    }

    /// Returns whether the commit has the space for a number of references that the handle is about
    /// to add or drop, beside those of the changes before. Does not wait.
    pub(crate) fn covers_references(&self, references: u64) -> bool {
        let have = self.expected_references.get();
        let more = references.saturating_sub(have);
        if more > 0 && !self.running().expect_covered_references(more) {
            return false;
        }
        self.expected_references.set(have.saturating_add(more));
        true
    }

    /// Records that the handle has added or dropped so many of the references that are covered.
    pub(crate) fn spend_references(&self, references: u64) {
        let spent = references.min(self.expected_references.get());
        self.expected_references.set(self.expected_references.get().saturating_sub(spent));
        self.running().forget_expected_references(spent);
    }
}
