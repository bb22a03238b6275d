//! The running transaction: who takes part in it, and the edits that he makes.
//!
//! ```text
//!            join                     last handle ends
//! open ----------------> open (n) -------------------+
//!  ^                                                 |
//!  |       commit: the frozen blocks                 v
//!  +---------- are set aside <------ frozen <---- freezing      (join waits here)
//!  |                                                 |
//!  |                          an error at any step   v
//!  +--------------- never --------------------- read-only      (join fails, with the cause)
//! ```
//!
//! | from | to | by |
//! |---|---|---|
//! | open | freezing | [`Gate::freeze`]: no handle joins any more |
//! | freezing | frozen | the last [`Handle`] is dropped |
//! | frozen | open | [`Gate::thaw`]: the next generation begins |
//! | any | read-only | [`Gate::poison`]: the cause is kept |
//!
//! Laws:
//!
//! 1. A transaction is written only when no handle is open in it.
//! 2. A handle reserves what its changes may cost before it makes them. After its first change it
//!    cannot fail for want of space; if it fails for another reason, half a change must never be
//!    committed, and the volume becomes read-only.
//!    A panic is such a reason: the [`PanicWatch`] of every handle, of every part without a handle
//!    and of the commit ends all writing before the transaction can be frozen. So does a lock of
//!    the running state that a panic has left poisoned.
//! 3. Who holds a handle does no data I/O, waits for no other handle, and does not commit.

use crate::error::TreeError;
use crate::forest::Forest;
use crate::live::change::{Alter, Change};
use crate::live::cow::Writer;
use crate::live::{LiveTree, Stop, carry};
use crate::refusals::Purpose;
use crate::running::Running;
use crate::tree::{Tree, forward};
use butternut_format::key::Key;
use butternut_format::refused::Refused;
use butternut_format::units::{Generation, TreeId};
use butternut_space::Ticket;
use std::cell::Cell;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a handle is going to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Items that may change.
    pub items: u32,
    pub purse: Purse,
}

/// What a handle may take its space from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purse {
    /// What is not set aside for anything.
    Free,
    /// Also what is set aside for changes that give space back.
    Deletion,
    /// Also the most of what is set aside for commits: the changes were promised their space.
    Promise,
}

impl Need {
    pub fn items(items: u32) -> Self {
        Self { items, purse: Purse::Free }
    }

    #[must_use]
    pub fn deleting(self) -> Self {
        Self { purse: Purse::Deletion, ..self }
    }
}

/// Who may take part in the running transaction.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug)]
struct GateState {
    generation: Generation,
    handles: usize,
    is_freezing: bool,
    /// Something was changed in the running transaction.
    is_changed: bool,
    /// The newest transaction that is on all devices.
    committed: Generation,
    cause: Option<Arc<TreeError>>,
}

impl Gate {
    pub(crate) fn new(committed: Generation) -> Self {
        let generation = Generation(committed.0.saturating_add(1));
        let state = GateState {
            generation,
            handles: 0,
            is_freezing: false,
            is_changed: false,
            committed,
            cause: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn generation(&self) -> Generation {
        self.state().generation
    }

    pub(crate) fn committed(&self) -> Generation {
        self.state().committed
    }

    pub(crate) fn cause(&self) -> Option<TreeError> {
        self.state().cause.as_ref().map(read_only)
    }

    /// Takes part, once nobody freezes.
    fn enter(&self) -> Result<Generation, TreeError> {
        let mut state = self.state();
        while state.is_freezing {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(cause) = &state.cause {
            return Err(read_only(cause));
        }
        state.handles = state.handles.saturating_add(1);
        Ok(state.generation)
    }

    fn leave(&self) {
        let mut state = self.state();
        state.handles = state.handles.saturating_sub(1);
        if state.handles == 0 {
            self.changed.notify_all();
        }
    }

    /// Whether others are inside, or wait to be: what they hold comes back when they leave.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.state();
        state.handles > 0 || state.is_freezing
    }

    /// Takes part for a moment, without a ticket.
    pub(crate) fn inside(&self) -> Result<Inside<'_>, TreeError> {
        self.enter().map(|_| Inside { gate: self, watch: PanicState::now() })
    }

    pub(crate) fn mark_changed(&self) {
        self.state().is_changed = true;
    }

    /// Closes the gate and waits until nobody is inside. `None`: nothing was changed.
    pub(crate) fn freeze(&self) -> Result<Option<Generation>, TreeError> {
        let mut state = self.state();
        state.is_freezing = true;
        while state.handles > 0 && state.cause.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let frozen = match &state.cause {
            Some(cause) => Err(read_only(cause)),
            None => Ok(state.is_changed.then_some(state.generation)),
        };
        state.is_freezing = matches!(frozen, Ok(Some(_)));
        if !state.is_freezing {
            self.changed.notify_all();
        }
        frozen
    }

    /// Opens the gate for the next generation.
    pub(crate) fn thaw(&self) {
        let mut state = self.state();
        state.generation = Generation(state.generation.0.saturating_add(1));
        state.is_changed = false;
        state.is_freezing = false;
        self.changed.notify_all();
    }

    pub(crate) fn set_committed(&self, generation: Generation) {
        self.state().committed = generation;
    }

    /// Ends all writing. The first cause stays.
    pub(crate) fn poison(&self, cause: TreeError) -> TreeError {
        let mut state = self.state();
        state.is_freezing = false;
        let cause = Arc::clone(state.cause.get_or_insert_with(|| Arc::new(cause)));
        self.changed.notify_all();
        read_only(&cause)
    }
}

/// A part in the running transaction that makes no changes to trees.
pub(crate) struct Inside<'a> {
    gate: &'a Gate,
    watch: PanicState,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.watch.check(self.gate);
        self.gate.leave();
    }
}

/// Whether the thread panicked since this was made.
#[derive(Clone, Copy, Debug)]
struct PanicState {
    was_panicking: bool,
}

impl PanicState {
    fn now() -> Self {
        Self { was_panicking: std::thread::panicking() }
    }

    /// Law 2. Called where the state goes out of scope.
    fn check(self, gate: &Gate) {
        if std::thread::panicking() && !self.was_panicking {
            gate.poison(TreeError::Panicked);
        }
    }
}

/// Ends all writing to a forest if the thread panics while this lives.
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

fn read_only(cause: &Arc<TreeError>) -> TreeError {
    TreeError::ReadOnly { cause: Arc::clone(cause) }
}

/// A part in the running transaction; it ends when it is dropped.
#[derive(Debug)]
pub struct Handle {
    forest: Arc<Forest>,
    generation: Generation,
    /// Set aside until the handle ends; what the changes took was taken from the space itself.
    _ticket: Ticket,
    is_changed: Cell<bool>,
    watch: PanicState,
}

impl Forest {
    /// Joins the running transaction. Waits while one is being frozen, never for a device unless
    /// space can be had by a commit only.
    ///
    /// # Errors
    /// No space, or a volume that is read-only since a commit failed.
    pub fn join(self: &Arc<Self>, need: Need) -> Result<Handle, TreeError> {
        let purpose = match need.purse {
            Purse::Free => Purpose::Growth,
            Purse::Deletion | Purse::Promise => Purpose::Deletion,
        };
        self.find_room(purpose, |running| {
            let generation = running.gate.enter()?;
            let ticket = running.reserve_items(need);
            if ticket.is_err() {
                running.gate.leave();
            }
            Ok(ticket.map(|ticket| {
                let (forest, is_changed) = (Arc::clone(self), Cell::new(false));
                let watch = PanicState::now();
                Handle { forest, generation, _ticket: ticket, is_changed, watch }
            }))
        })
    }

    /// Ends all writing to this forest if the thread panics while the answer lives: for changes in
    /// memory that are to come into the trees, made without a handle.
    pub fn watch_panics(&self) -> PanicWatch<'_> {
        PanicWatch { forest: self, state: PanicState::now() }
    }

    /// Ends all writing: a thread panicked while it changed something that belongs to this forest.
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
            running.gate.leave();
        }
    }
}

impl Handle {
    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// The tree with this id, to be changed.
    ///
    /// # Errors
    /// There is no such tree, or it cannot be read.
    pub fn tree(&self, id: TreeId) -> Result<TreeEdit<'_>, TreeError> {
        TreeEdit::new(&self.forest, id, self.generation, Some(self))
    }

    /// What was done through this handle cannot be finished: the volume becomes read-only.
    pub fn abort(&self, cause: TreeError) -> TreeError {
        match self.forest.running() {
            Ok(running) => running.gate.poison(cause),
            Err(error) => error,
        }
    }

    pub(crate) fn running(&self) -> &Running {
        self.forest.running().expect("a handle is given on a writable forest only")
    }

    pub(crate) fn touch(&self) {
        self.is_changed.set(true);
    }
}

/// A tree of the running transaction, open for changes. Each call is atomic towards readers.
#[derive(Debug)]
pub struct TreeEdit<'a> {
    forest: &'a Arc<Forest>,
    live: Arc<LiveTree>,
    tree: Tree,
    generation: Generation,
    /// `None` while the transaction is being committed: the changes are the commit's own.
    handle: Option<&'a Handle>,
}

impl<'a> TreeEdit<'a> {
    pub(crate) fn new(
        forest: &'a Arc<Forest>,
        id: TreeId,
        generation: Generation,
        handle: Option<&'a Handle>,
    ) -> Result<Self, TreeError> {
        let running = forest.running()?;
        let live = running.tree(forest, id)?.ok_or(TreeError::NoTree { tree: id })?;
        let tree = Tree::live(Arc::clone(forest), Arc::clone(&live));
        Ok(Self { forest, live, tree, generation, handle })
    }

    /// The running state, to be read.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn id(&self) -> TreeId {
        self.live.id()
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub(crate) fn running(&self) -> &Running {
        self.forest.running().expect("an edit is made on a writable forest only")
    }

    /// Puts a new item in.
    ///
    /// # Errors
    /// [`TreeError::Exists`] where there is one with this key.
    pub fn insert(&self, key: &Key, data: &[u8]) -> Result<(), TreeError> {
        self.edit(|writer| writer.insert(key, data))
    }

    /// Puts an item in, or replaces what it holds.
    pub fn put(&self, key: &Key, data: &[u8]) -> Result<(), TreeError> {
        self.edit(|writer| writer.put(key, data))
    }

    /// Takes an item out; `false` where it was not there.
    pub fn remove(&self, key: &Key) -> Result<bool, TreeError> {
        self.edit(|writer| writer.remove(key))
    }

    /// Changes an item's bytes in place; `false` where it was not there.
    pub fn update(&self, key: &Key, edit: &mut dyn FnMut(&mut [u8])) -> Result<bool, TreeError> {
        self.edit(|writer| writer.update(key, edit))
    }

    /// Shows an item, or that there is none, to `decide`, and does what that says: one search for
    /// what else takes two. It may be asked more than once.
    pub fn alter(
        &self,
        key: &Key,
        decide: &mut dyn FnMut(Option<&[u8]>) -> Alter,
    ) -> Result<(), TreeError> {
        self.edit(|writer| writer.alter(key, decide))
    }

    /// Takes out all items in `range`, showing each first; gives how many.
    pub fn remove_range(
        &self,
        range: Range<Key>,
        see: &mut dyn FnMut(Key, &[u8]),
    ) -> Result<u64, TreeError> {
        let mut removed: u64 = 0;
        let mut from = Some(range.start).filter(|from| *from < range.end);
        while let Some(start) = from {
            let (count, next) = self.edit(|writer| writer.remove_run(&start, &range.end, see))?;
            removed = removed.saturating_add(count);
            if let Some(next) = next {
                forward(self.id(), &start, &next).map_err(|error| self.fail(error))?;
            }
            from = next;
        }
        Ok(removed)
    }

    /// Makes many changes, which must rise by key: one walk for each leaf.
    pub fn merge(&self, changes: &[Change]) -> Result<(), TreeError> {
        let mut rest = changes;
        while !rest.is_empty() {
            let done = self.edit(|writer| writer.merge_run(rest))?;
            if done == 0 {
                let refused =
                    Refused::new("changes made", 0, "at least one of those that are left");
                let error = TreeError::Corrupt { tree: self.id(), source: refused };
                return Err(self.fail(error));
            }
            rest = rest.get(done..).unwrap_or_default();
        }
        Ok(())
    }

    /// Runs one edit under the tree's lock; blocks that it misses are read without it.
    fn edit<R>(
        &self,
        mut edit: impl FnMut(&mut Writer<'_>) -> Result<R, Stop>,
    ) -> Result<R, TreeError> {
        let running = self.running();
        let mut carried = Vec::new();
        loop {
            let mut state = self.live.state_mut();
            let mut writer = Writer {
                id: self.live.id(),
                state: &mut state,
                forest: self.forest,
                running,
                generation: self.generation,
                carried: &carried,
            };
            let result = edit(&mut writer);
            state.is_touched = true;
            self.live.bump();
            drop(state);
            let stopped = match result {
                Ok(done) => {
                    if let Some(handle) = self.handle {
                        handle.touch();
                    }
                    return Ok(done);
                }
                Err(stopped) => stopped,
            };
            carry(self.forest, &mut carried, stopped).map_err(|error| self.fail(error))?;
        }
    }

    /// Law 2: half a change is never committed. For those who find, between two edits, that their
    /// change cannot go on.
    pub fn fail(&self, error: TreeError) -> TreeError {
        let is_answer = matches!(error, TreeError::Exists { .. } | TreeError::TooLarge { .. });
        match self.handle {
            Some(handle) if handle.is_changed.get() && !is_answer => handle.abort(error),
            _ => error,
        }
    }
}
