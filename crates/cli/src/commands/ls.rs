//! `ls`: lists directory contents.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;

use butternut::{FileKind, Follow};

use super::files::{Attributes, FileEntry, Files, or_root};
use super::mounted::files::MountedFiles;
use super::walk::{DEPTH_MAX, WalkEntry, WalkError, WalkPath};
use crate::args::{GlobalArgs, LsArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::table::{Side, Table};
use crate::output::{Output, json, size, stderr_line, text, time};
use crate::volume::OpenVolume;

/// A file to be listed.
struct Entry {
    name: Vec<u8>,
    /// Its path, for JSON.
    path: Vec<u8>,
    /// The inode number, with --inode.
    ino: Option<u64>,
    stat: Option<Attributes>,
    target: Option<Vec<u8>>,
}

/// What entries are sorted by, in front of their names.
type Rank = Reverse<(i64, u32)>;

/// Finds the file of a path.
type Find<'a, I> = &'a dyn Fn(&OsString) -> Result<I, Failure>;

struct Lister<'a, F: Files> {
    files: &'a F,
    find: Find<'a, F::Id>,
    args: &'a LsArgs,
    json: Option<json::List>,
    done: Completion,
    /// Directories already listed.
    entered: HashSet<F::Identity>,
}

pub(crate) fn run(global: &GlobalArgs, args: &LsArgs, out: &mut Output) -> Outcome {
    if let Some((files, paths)) = MountedFiles::open(&args.volume.volume, &args.paths)? {
        let find = |path: &OsString| files.find(path, Follow::NotLast);
        return list(global, args, (&files, &find, &paths), out);
    }
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let find = |path: &OsString| opened.resolve(path, Follow::NotLast);
    list(global, args, (&opened.filesystem, &find, &or_root(&args.paths)), out)
}

fn list<F: Files>(
    global: &GlobalArgs,
    args: &LsArgs,
    (files, find, paths): (&F, Find<'_, F::Id>, &[OsString]),
    out: &mut Output,
) -> Outcome {
    let json = global.json.then(json::List::default);
    let (done, entered) = (Completion::Success, HashSet::new());
    let mut lister = Lister { files, find, args, json, done, entered };
    let printed = match paths {
        [path] => lister.find(path).and_then(|top| lister.one(&top, out)),
        paths => lister.several(paths, out),
    };
    lister.done.after(printed)
}

impl<F: Files> Lister<'_, F> {
    fn find(&self, path: &OsString) -> Result<WalkEntry<F::Id>, Failure> {
        let bytes = text::bytes(path);
        let id = (self.find)(path)?;
        let stat = self.files.attributes(&id);
        let kind = stat.map_err(|error| F::failure(text::escaped(&bytes), &error))?.kind;
        Ok(WalkEntry { path: WalkPath::new(bytes), id, kind, depth: 0 })
    }

    fn is_listed(&self, top: &WalkEntry<F::Id>) -> bool {
        top.kind == FileKind::Directory && !self.args.directory
    }

    fn is_long(&self) -> bool {
        self.args.long || self.args.numeric_uid_gid
    }

    fn one(&mut self, top: &WalkEntry<F::Id>, out: &mut Output) -> Result<(), Failure> {
        if self.is_listed(top) {
            self.directory(top, self.args.recursive, out)?;
        } else {
            let path = top.path.bytes();
            let entry = self.entry(path.clone(), path, &top.id)?;
            self.print(vec![entry], out)?;
        }
        self.end(out)
    }

    /// Lists files first, and then directories, each with its name. A failure is reported, and the
    /// next path follows.
    fn several(&mut self, paths: &[OsString], out: &mut Output) -> Result<(), Failure> {
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for path in paths {
            let found = self.find(path);
            let entry = found.and_then(|top| {
                let path = top.path.bytes();
                Ok((self.entry(path.clone(), path, &top.id)?, top))
            });
            match entry {
                Ok((entry, top)) if self.is_listed(&top) => directories.push((entry, top)),
                Ok((entry, top)) => files.push((entry, top)),
                Err(failure) => self.report(&failure),
            }
        }
        if !self.args.unsorted {
            files.sort_by_cached_key(|(entry, top)| self.key(&top.id, &entry.name));
            directories.sort_by_cached_key(|(entry, top)| self.key(&top.id, &entry.name));
        }
        if self.args.reverse {
            files.reverse();
            directories.reverse();
        }
        let mut is_first = files.is_empty();
        self.print(files.into_iter().map(|(entry, _)| entry).collect(), out)?;
        for (_, top) in directories {
            if !is_first && self.json.is_none() {
                out.write_all(b"\n")?;
            }
            is_first = false;
            // A directory that is below another one is listed again.
            self.entered.clear();
            match self.directory(&top, true, out) {
                Err(failure @ Failure::Message { .. }) => self.report(&failure),
                listed => listed?,
            }
        }
        self.end(out)
    }

    fn end(&mut self, out: &mut Output) -> Result<(), Failure> {
        if let Some(list) = self.json.take() {
            list.end(out)?;
        }
        Ok(())
    }

    fn report(&mut self, failure: &Failure) {
        stderr_line(&failure.to_string());
        self.done = Completion::PartialFailure;
    }

    /// Returns what an entry is sorted by. One that cannot be read is the oldest and smallest.
    fn key(&self, id: &F::Id, name: &[u8]) -> (Rank, Vec<u8>) {
        let stat = if self.args.by_time || self.args.by_size {
            self.files.attributes(id).ok()
        } else {
            None
        };
        let key = match stat {
            Some(stat) if self.args.by_time => (stat.mtime.secs, stat.mtime.nanos),
            Some(stat) => (i64::try_from(stat.size).unwrap_or(i64::MAX), 0),
            None => (i64::MIN, 0),
        };
        (Reverse(key), name.to_vec())
    }

    /// Lists `top`, and with --recursive all directories below it. `is_named`: with their names.
    fn directory(
        &mut self,
        top: &WalkEntry<F::Id>,
        is_named: bool,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let mut pending = vec![top.clone()];
        let mut first = true;
        while let Some(found) = pending.pop() {
            if is_named && self.json.is_none() {
                let blank: &[u8] = if first { b"" } else { b"\n" };
                out.write_all(blank)?;
                let shown = out.display_name(&found.path.bytes());
                out.write_all(&shown)?;
                out.line(b":")?;
            }
            first = false;
            let entries = match self.entries(&found) {
                Ok(entries) => entries,
                Err(broken) if found.depth == 0 => {
                    return Err(F::failure(text::escaped(&broken.path), &broken.error));
                }
                Err(broken) => {
                    self.failed(&broken.path, &broken.error);
                    continue;
                }
            };
            if self.args.recursive {
                pending.extend(self.below(&found, &entries));
            }
            let parent = found.path.bytes();
            let mut lines = Vec::new();
            for entry in entries {
                let path = text::joined(&parent, &entry.name);
                match self.entry(entry.name, path.clone(), &entry.id) {
                    Ok(entry) => lines.push(entry),
                    Err(failure) => self.report(&failure),
                }
            }
            self.print(lines, out)?;
        }
        Ok(())
    }

    /// Returns the directories in a directory, last one first. If they are too deep, each is
    /// reported instead.
    fn below(
        &mut self,
        found: &WalkEntry<F::Id>,
        entries: &[FileEntry<F::Id>],
    ) -> Vec<WalkEntry<F::Id>> {
        let below = entries.iter().filter(|entry| entry.kind == FileKind::Directory);
        let below = below.filter(|entry| entry.name != b"." && entry.name != b"..");
        let below = below.map(|entry| WalkEntry {
            path: found.path.child(entry.name.clone()),
            id: entry.id.clone(),
            kind: entry.kind,
            depth: found.depth + 1,
        });
        let (below, too_deep): (Vec<_>, Vec<_>) = below.rev().partition(|b| b.depth < DEPTH_MAX);
        for found in too_deep.iter().rev() {
            self.failed(&found.path.bytes(), &F::too_deep());
        }
        below
    }

    fn entries(
        &mut self,
        found: &WalkEntry<F::Id>,
    ) -> Result<Vec<FileEntry<F::Id>>, WalkError<F::Error>> {
        let broken = |error| WalkError { path: found.path.bytes(), error: Box::new(error) };
        if !self.entered.insert(self.files.identity(&found.id).map_err(broken)?) {
            return Err(broken(F::cycle()));
        }
        let LsArgs { all, almost_all, unsorted, reverse, .. } = *self.args;
        let mut entries = Vec::new();
        for entry in self.files.entries(&found.id, all).map_err(broken)? {
            match entry {
                Ok(entry) => entries.push(entry),
                Err(error) if entries.is_empty() => return Err(broken(error)),
                // The names in front of a damaged block are listed all the same.
                Err(error) => {
                    self.failed(&found.path.bytes(), &error);
                    break;
                }
            }
        }
        entries.retain(|entry| all || almost_all || !entry.name.starts_with(b"."));
        if !unsorted {
            entries.sort_by_cached_key(|entry| self.key(&entry.id, &entry.name));
        }
        if reverse {
            entries.reverse();
        }
        Ok(entries)
    }

    /// Reads the attributes that the output format needs.
    fn entry(&self, name: Vec<u8>, path: Vec<u8>, id: &F::Id) -> Result<Entry, Failure> {
        let named = |error| F::failure(text::escaped(&path), &error);
        let stat = if self.json.is_some() {
            Some(self.files.all_attributes(id).map_err(named)?)
        } else if self.is_long() {
            Some(self.files.attributes(id).map_err(named)?)
        } else {
            None
        };
        let ino = if self.args.inode { Some(self.files.ino(id).map_err(named)?) } else { None };
        let is_link = stat.as_ref().is_some_and(|stat| stat.kind == FileKind::Symlink);
        let target = if is_link { Some(self.files.target(id).map_err(named)?) } else { None };
        Ok(Entry { name, path, ino, stat, target })
    }

    fn failed(&mut self, path: &[u8], error: &F::Error) {
        self.report(&F::failure(text::escaped(path), error));
    }

    fn print(&mut self, entries: Vec<Entry>, out: &mut Output) -> Result<(), Failure> {
        if let Some(list) = &mut self.json {
            for entry in entries {
                list.push(out, as_json(&entry))?;
            }
            return Ok(());
        }
        let mut table = Table::new(&[
            Side::Right,
            Side::Left,
            Side::Right,
            Side::Right,
            Side::Right,
            Side::Right,
            Side::Left,
        ]);
        for entry in &entries {
            table.row(self.columns(entry));
        }
        for (entry, columns) in entries.iter().zip(table.lines()) {
            let columns = columns.trim_start();
            let mut line = Vec::new();
            line.extend_from_slice(columns.as_bytes());
            if !columns.is_empty() {
                line.push(b' ');
            }
            let escape = out.is_terminal && !self.args.null;
            line.extend_from_slice(&text::name(&entry.name, escape));
            if let Some(target) = &entry.target {
                line.extend_from_slice(b" -> ");
                line.extend_from_slice(&text::name(target, escape));
            }
            line.push(if self.args.null { 0 } else { b'\n' });
            out.write_all(&line)?;
        }
        Ok(())
    }

    /// Returns the columns before the name.
    fn columns(&self, entry: &Entry) -> Vec<String> {
        let ino = entry.ino.map_or_else(String::new, |ino| ino.to_string());
        let Some(stat) = &entry.stat else { return vec![ino] };
        let size = if stat.is_device() {
            format!("{}, {}", stat.rdev.0, stat.rdev.1)
        } else if self.args.human {
            size::short(stat.size)
        } else {
            stat.size.to_string()
        };
        vec![
            ino,
            text::mode(stat.kind, stat.mode),
            stat.nlink.to_string(),
            stat.uid.to_string(),
            stat.gid.to_string(),
            size,
            time::minutes(stat.mtime),
        ]
    }
}

fn as_json(entry: &Entry) -> json::Object {
    let mut object = json::Object::new().name("name", &entry.name).name("path", &entry.path);
    if let Some(stat) = &entry.stat {
        object = super::stat::fields(object, stat);
    }
    if let Some(target) = &entry.target {
        object = object.name("target", target);
    }
    object
}
