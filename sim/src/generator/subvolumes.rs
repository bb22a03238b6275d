//! Generates operations on subvolumes, and those that share extents or write them again.
//!
//! Subvolumes have a few names of their own, in the root. Their snapshots have files of the same
//! names, which makes pairs for deduplication.

use super::{Generator, Limits, Without};
use crate::bytes::Bytes;
use crate::errno;
use crate::model::{Model, Subvolume};
use crate::operation::{File, Operation, Outcome, Renaming};

const NAMES: [&str; 5] = ["s0", "s1", "s2", "s3", "s4"];

/// Maximum length of a range that is shared, in bytes: the model has its bytes in memory.
const SHARED_MAX: u64 = 1 << 20;

const BLOCK: u64 = 4096;

impl Generator {
    /// Generates operations on subvolumes and shared extents too: one in `one_in`.
    #[must_use]
    pub fn with_subvolumes(mut self, one_in: u64) -> Generator {
        self.subvolume_one_in = one_in;
        self.limits = Limits { names: 120, bytes: 12 << 20, ..self.limits };
        self
    }

    pub(super) fn subvolume_operation(&mut self, model: &Model) -> Operation {
        let known = model.subvolumes();
        match self.random.below(21) {
            0..=1 => Operation::Subvolume { at: self.subvolume_place(&known) },
            20 => self.subvolume_rename(&known),
            2..=5 => self.snapshot(&known),
            6..=8 => self.deletion(&known),
            9..=12 if !self.without.clones => self.clone_of(model),
            9..=16 => self.dedupe(model, &known),
            _ => Operation::Defragment {
                file: self.changed_file(model),
                is_compressing: !self.without.compressing_defragment && self.random.one_in(3),
                breaks_sharing: self.random.one_in(2),
            },
        }
    }

    /// Returns a place for a subvolume, mostly a free one: in the root, or in any directory.
    fn subvolume_place(&mut self, known: &[Subvolume]) -> Bytes {
        let mut place = Bytes::default();
        for _ in 0..3 {
            let name = Bytes::from(*self.random.pick(&NAMES));
            place = if self.random.one_in(3) { self.directory().join(&name.0) } else { name };
            if !known.iter().any(|one| one.at == place) {
                break;
            }
        }
        place
    }

    fn snapshot(&mut self, known: &[Subvolume]) -> Operation {
        if known.is_empty() {
            return Operation::Subvolume { at: self.subvolume_place(known) };
        }
        let source = self.random.pick(known).at.clone();
        let is_read_only = self.random.one_in(3);
        Operation::Snapshot { source, at: self.subvolume_place(known), is_read_only }
    }

    /// Returns a deletion of a subvolume, mostly of one without others inside.
    fn deletion(&mut self, known: &[Subvolume]) -> Operation {
        if known.is_empty() {
            return Operation::Subvolume { at: self.subvolume_place(known) };
        }
        let inner: Vec<&Subvolume> = known.iter().filter(|known| !known.has_subvolumes).collect();
        let is_any = inner.is_empty() || self.random.one_in(8);
        let at = if is_any { self.random.pick(known) } else { *self.random.pick(&inner) };
        Operation::DeleteSubvolume { at: at.at.clone() }
    }

    /// Returns a rename of a subvolume, or an exchange of two.
    fn subvolume_rename(&mut self, known: &[Subvolume]) -> Operation {
        if known.is_empty() {
            return Operation::Subvolume { at: self.subvolume_place(known) };
        }
        let from = self.random.pick(known).at.clone();
        if self.random.one_in(2) {
            let to = self.random.pick(known).at.clone();
            return Operation::Rename { from, to, how: Renaming::Exchange };
        }
        Operation::Rename { from, to: self.subvolume_place(known), how: Renaming::Plain }
    }

    fn clone_of(&mut self, model: &Model) -> Operation {
        let from = self.file();
        let to = if self.random.one_in(4) { from.clone() } else { self.changed_file(model) };
        let (size, to_size) = (size_of(&from, model), size_of(&to, model));
        let from_offset = self.border(size);
        let rest = size.saturating_sub(from_offset);
        let is_to_end = self.random.one_in(2) && rest <= SHARED_MAX;
        let bytes = match self.random.below(3) {
            0 if is_to_end => 0,
            _ if is_to_end => rest,
            _ => (BLOCK + self.random.below(rest.clamp(1, SHARED_MAX))) / BLOCK * BLOCK,
        };
        let bytes = if self.random.one_in(12) { self.length() } else { bytes };
        let bytes = if bytes == 0 && rest > SHARED_MAX { BLOCK } else { bytes };
        let to_offset = self.border(to_size.max(size));
        Operation::Clone { from, from_offset, to, to_offset, bytes }
    }

    /// Returns a deduplication, mostly of files of the same path in two subvolumes.
    fn dedupe(&mut self, model: &Model, known: &[Subvolume]) -> Operation {
        let mut from = self.file();
        let to = self.changed_file(model);
        if let File::At(path) = &to {
            let twins = twins(path, model, known);
            if !twins.is_empty() {
                from = File::At(self.random.pick(&twins).clone());
            }
        }
        let size = size_of(&from, model).min(size_of(&to, model));
        let offset = if self.random.one_in(2) { 0 } else { self.border(size) };
        let from_offset = if self.random.one_in(6) { self.border(size) } else { offset };
        let rest = size.saturating_sub(offset.max(from_offset)).min(SHARED_MAX);
        let bytes = if self.random.one_in(4) { self.length() } else { rest };
        Operation::Dedupe { from, from_offset, to, to_offset: offset, bytes }
    }

    /// Returns a file whose flags allow changes through an open file, or one that is opened.
    fn changed_file(&mut self, model: &Model) -> File {
        let file = self.file();
        if matches!(file, File::Open(_)) && !model.accepts_writes(&file) {
            return File::At(self.file_place());
        }
        file
    }

    /// Returns an offset up to `size` that is mostly a block border.
    fn border(&mut self, size: u64) -> u64 {
        let offset = self.random.below(size + 1);
        if self.random.one_in(20) { offset } else { offset / BLOCK * BLOCK }
    }
}

/// Returns the files of the same path in other subvolumes.
fn twins(path: &Bytes, model: &Model, known: &[Subvolume]) -> Vec<Bytes> {
    let own = known.iter().filter(|one| one.contains(path));
    let Some(own) = own.max_by_key(|one| one.at.0.len()) else { return Vec::new() };
    let rest: Vec<&[u8]> = path.components().skip(own.at.components().count()).collect();
    let others = known.iter().filter(|one| one.at != own.at);
    let twin = |one: &Subvolume| rest.iter().fold(one.at.clone(), |path, name| path.join(name));
    others.map(twin).filter(|twin| model.size_at(twin).is_some()).collect()
}

fn size_of(file: &File, model: &Model) -> u64 {
    let size = match file {
        File::At(at) => model.size_at(at),
        File::Open(slot) => model.size_open(*slot),
    };
    size.unwrap_or(0)
}

/// Returns whether all subjects agree on the outcome of an operation with the model: not where
/// several errors are possible, which they find in another order.
pub(super) fn is_modelled(operation: &Operation, model: &Model, without: Without) -> bool {
    let paths = paths(operation);
    let is_placeholder = |at: &Bytes| {
        let is_shown = parent(at).is_none_or(|dir| !model.leads_to_placeholder(&dir));
        is_shown && model.leads_to_placeholder(at)
    };
    let removes = matches!(operation, Operation::Rmdir { at } if is_placeholder(at));
    if !removes && paths.iter().any(|at| model.leads_to_placeholder(at)) {
        return false;
    }
    let is_deleted = |file: &File| matches!(file, File::Open(slot) if model.is_of_deleted(*slot));
    let is_cloning = matches!(
        operation,
        Operation::Copy { .. } | Operation::Clone { .. } | Operation::Dedupe { .. }
    );
    let used = if is_cloning { files(operation) } else { changed_files(operation) };
    if without.files_of_deleted && used.into_iter().any(is_deleted) {
        return false;
    }
    let known = model.subvolumes();
    let is_frozen = |at: &Bytes| known.iter().any(|one| one.is_read_only && one.contains(at));
    let of_subvolume = match operation {
        Operation::LinkOpen { slot, .. } if model.is_of_deleted(*slot) => return false,
        // A subvolume inherits the compression of the root directory, which is no subvolume's where
        // a subject is a directory.
        Operation::SetFlags { at, .. } if at.0.is_empty() => return false,
        // The kernel's btrfs sets ACLs in a read-only snapshot too.
        Operation::SetAcl { at, .. } if is_frozen(at) => return false,
        // The kernel keeps the owner that the directory had at the first lookup.
        Operation::Chown { at, .. } if model.has_placeholder(at) => return false,
        Operation::Rename { from, to, how } => {
            let is_of_subvolume = [from, to].into_iter().any(|at| model.is_subvolume(at));
            let is_predictable = match how {
                Renaming::Plain | Renaming::NoReplace => !model.exists(to),
                Renaming::Exchange => [from, to].into_iter().all(|at| model.is_subvolume(at)),
                Renaming::Whiteout => false,
            };
            if is_of_subvolume && !is_predictable {
                return false;
            }
            is_of_subvolume
        }
        Operation::Unlink { at } | Operation::Rmdir { at } | Operation::DeleteSubvolume { at } => {
            model.is_subvolume(at) && model.is_guarded_entry(at)
        }
        _ => false,
    };
    if !of_subvolume && !paths.into_iter().any(is_frozen) {
        return true;
    }
    match model.clone().apply(operation) {
        Outcome::Failed(errno::READ_ONLY) => {
            let done = model.with_writable_subvolumes().apply(operation);
            !matches!(done, Outcome::Failed(_))
        }
        Outcome::Failed(_) => false,
        _ => true,
    }
}

/// Returns every path that an operation names.
fn paths(operation: &Operation) -> Vec<&Bytes> {
    let mut paths: Vec<&Bytes> = files(operation)
        .into_iter()
        .filter_map(|file| match file {
            File::At(at) => Some(at),
            File::Open(_) => None,
        })
        .collect();
    match operation {
        Operation::Rename { from, to, .. } | Operation::Link { from, to } => {
            paths.extend([from, to]);
        }
        Operation::Snapshot { source, at, .. } => paths.extend([source, at]),
        Operation::Create { at, .. }
        | Operation::Mkdir { at, .. }
        | Operation::Mknod { at, .. }
        | Operation::Symlink { at, .. }
        | Operation::Unlink { at }
        | Operation::Rmdir { at }
        | Operation::Tmpfile { dir: at, .. }
        | Operation::LinkOpen { to: at, .. }
        | Operation::Open { at, .. }
        | Operation::Append { at, .. }
        | Operation::Chmod { at, .. }
        | Operation::Chown { at, .. }
        | Operation::Times { at, .. }
        | Operation::SetXattr { at, .. }
        | Operation::RemoveXattr { at, .. }
        | Operation::SetAcl { at, .. }
        | Operation::SetFlags { at, .. }
        | Operation::Subvolume { at }
        | Operation::DeleteSubvolume { at } => paths.push(at),
        _ => {}
    }
    paths
}

/// Returns the files whose data an operation reads or changes.
fn files(operation: &Operation) -> Vec<&File> {
    match operation {
        Operation::Read { file, .. } | Operation::Seek { file, .. } | Operation::Fsync { file } => {
            vec![file]
        }
        Operation::Copy { from, to, .. }
        | Operation::Clone { from, to, .. }
        | Operation::Dedupe { from, to, .. } => vec![from, to],
        Operation::Batch { requests } => requests.iter().map(|request| &request.file).collect(),
        _ => changed_files(operation),
    }
}

/// Returns the files whose data or extents an operation changes.
fn changed_files(operation: &Operation) -> Vec<&File> {
    match operation {
        Operation::Write { file, .. }
        | Operation::Truncate { file, .. }
        | Operation::Fallocate { file, .. }
        | Operation::Defragment { file, .. } => vec![file],
        Operation::Copy { to, .. } | Operation::Clone { to, .. } | Operation::Dedupe { to, .. } => {
            vec![to]
        }
        Operation::Batch { requests } => requests.iter().map(|request| &request.file).collect(),
        _ => Vec::new(),
    }
}

fn parent(at: &Bytes) -> Option<Bytes> {
    let mut components = at.components();
    components.next_back()?;
    Some(components.fold(Bytes::default(), |path, name| path.join(name)))
}
