//! [`View`]: everything that is visible of a volume with subvolumes, and the difference of two
//! views. Times, inode numbers, the ids of subvolumes and the usage of quota groups are left out.

use anyhow::{Context, Result};
use butternut::format::quota::QgroupId;
use butternut::{FIRST_ENTRY, FileId, FileKind, Filesystem};
use butternut_sim::bytes::Bytes;
use butternut_sim::content::read_digest;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Differences that a report lists.
const SHOWN_MAX: usize = 12;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    shape: String,
    /// Of a file, its size and content.
    data: String,
}

/// What is visible, by a name in words: "file sub/a", "subvolume sub", "qgroup of sub", "label".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View(BTreeMap<String, Entry>);

impl View {
    pub(crate) fn of(filesystem: &Filesystem) -> Result<Self> {
        let mut view = Self::default();
        view.put("label".to_owned(), Bytes(filesystem.label()).to_string());
        let default = filesystem.subvolume(filesystem.default_subvolume()?)?.path;
        view.put("default subvolume".to_owned(), Bytes(default.unwrap_or_default()).to_string());
        view.add_subvolumes(filesystem)?;
        view.add_tree(filesystem, filesystem.root(), &Bytes::default())?;
        Ok(view)
    }

    fn put(&mut self, name: String, shape: String) {
        self.0.insert(name, Entry { shape, data: String::new() });
    }

    fn add_subvolumes(&mut self, filesystem: &Filesystem) -> Result<()> {
        let mut paths = BTreeMap::new();
        for info in filesystem.subvolumes()?.into_iter().filter(|info| !info.deleted) {
            let path = Bytes(info.path.unwrap_or_default()).to_string();
            let origin = if info.parent_uuid == [0; 16] { "made" } else { "a snapshot" };
            let shape = format!("{origin}, read-only: {}", info.read_only);
            self.put(format!("subvolume {path}"), shape);
            paths.insert(info.id, path);
        }
        let quotas = filesystem.quotas()?;
        self.put("quotas".to_owned(), quotas.is_some().to_string());
        let name = |id: QgroupId| match paths.get(&id.0) {
            Some(path) => Some(format!("of {path}")),
            None => (id.level() > 0).then(|| id.to_string()),
        };
        for group in quotas.into_iter().flat_map(|quotas| quotas.groups) {
            // The group of a deleted subvolume is removed when the subvolume is freed.
            let Some(id) = name(group.id) else { continue };
            let parents: Vec<_> = group.parents.iter().filter_map(|id| name(*id)).collect();
            self.put(format!("qgroup {id}"), format!("{:?}, in {parents:?}", group.limits));
        }
        Ok(())
    }

    fn add_tree(&mut self, filesystem: &Filesystem, id: FileId, at: &Bytes) -> Result<()> {
        let entry = entry(filesystem, id).with_context(|| format!("reading {at}"))?;
        self.0.insert(format!("file {at}"), entry);
        if id.is_placeholder() || filesystem.stat(id)?.kind != FileKind::Directory {
            return Ok(());
        }
        for entry in filesystem.read_dir(id, FIRST_ENTRY)? {
            let entry = entry.with_context(|| format!("listing {at}"))?;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            self.add_tree(filesystem, entry.id, &at.join(&entry.name))?;
        }
        Ok(())
    }

    pub(crate) fn without_data(&self) -> Self {
        let without = |entry: &Entry| Entry { shape: entry.shape.clone(), data: String::new() };
        Self(self.0.iter().map(|(name, entry)| (name.clone(), without(entry))).collect())
    }

    /// Returns what all views have in common.
    pub(crate) fn untouched(views: &[Self]) -> Self {
        let Some((first, later)) = views.split_first() else { return Self::default() };
        let mut common = first.clone();
        common.0.retain(|name, entry| later.iter().all(|view| view.0.get(name) == Some(&*entry)));
        common
    }

    /// Returns the difference to the entries of `have` that this view has.
    pub(crate) fn lost_in(&self, have: &Self) -> String {
        let mut have = have.clone();
        have.0.retain(|name, _| self.0.contains_key(name));
        self.difference(&have)
    }

    /// Returns how `have` differs, in lines; empty if it is equal.
    pub(crate) fn difference(&self, have: &Self) -> String {
        let names: BTreeSet<&String> = self.0.keys().chain(have.0.keys()).collect();
        let mut text = String::new();
        let differing = names.into_iter().filter(|name| self.0.get(*name) != have.0.get(*name));
        for name in differing.take(SHOWN_MAX) {
            let (want, have) = (self.0.get(name), have.0.get(name));
            writeln!(text, "{name}: have {have:?}, want {want:?}").ok();
        }
        text
    }
}

fn entry(filesystem: &Filesystem, id: FileId) -> Result<Entry> {
    let stat = filesystem.stat(id)?;
    let mut shape = format!("{:?} {:o} {} links", stat.kind, stat.mode, stat.nlink);
    let (mut data, mut xattrs) = (String::new(), BTreeMap::new());
    if !id.is_placeholder() {
        for name in filesystem.xattr_names(id)? {
            let value = filesystem.xattr(id, &name)?;
            xattrs.insert(Bytes(name).to_string(), (value.len(), read_digest(&value)));
        }
        let flags = filesystem.attribute_flags(id)?.0;
        write!(shape, ", flags {flags:x}, {xattrs:x?}")?;
    }
    match stat.kind {
        FileKind::File => {
            let mut bytes = vec![0; usize::try_from(stat.size)?];
            filesystem.open_file(id)?.read_exact_at(0, &mut bytes)?;
            data = format!("{} bytes, {:x}", stat.size, read_digest(&bytes));
        }
        FileKind::Directory => write!(shape, ", {} bytes", stat.size)?,
        FileKind::Symlink
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => {}
    }
    Ok(Entry { shape, data })
}
