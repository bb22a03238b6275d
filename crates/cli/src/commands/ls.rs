//! `ls`: what is in a directory.

use std::collections::HashSet;
use std::io::Write;

use butternut::{DirEntry, FIRST_ENTRY, FileId, FileKind, Follow, Stat};

use super::walk::{Broken, Found, WalkPath, entered_before};
use crate::failure::{Done, Failure, Outcome};
use crate::flags::{GlobalArgs, LsArgs};
use crate::options::Opened;
use crate::output::table::{Side, Table};
use crate::output::{Output, json, say, size, text, time};

/// One line to come.
struct Entry {
    name: Vec<u8>,
    /// Where it is, for JSON.
    path: Vec<u8>,
    id: FileId,
    stat: Option<Stat>,
    target: Option<Vec<u8>>,
}

struct Lister<'a> {
    opened: &'a Opened,
    args: &'a LsArgs,
    json: Option<json::List>,
    done: Done,
    /// Directories that have been listed.
    entered: HashSet<FileId>,
}

pub(crate) fn run(global: &GlobalArgs, args: &LsArgs, out: &mut Output) -> Outcome {
    let opened = Opened::one(global, &args.volume)?;
    let path = text::bytes(&args.path);
    let id = opened.resolve(&args.path, Follow::NotLast)?;
    let json = global.json.then(json::List::default);
    let mut lister =
        Lister { opened: &opened, args, json, done: Done::Well, entered: HashSet::new() };
    let kind = opened.filesystem.stat(id).map_err(|e| Failure::of(text::escaped(&path), &e))?.kind;
    let top = Found { path: WalkPath::new(path.clone()), id, kind, depth: 0 };
    if kind == FileKind::Directory && !args.directory {
        lister.directory(&top, out)?;
    } else {
        let entry = lister.entry(path.clone(), path, id)?;
        lister.print(vec![entry], out)?;
    }
    if let Some(list) = lister.json.take() {
        list.end(out)?;
    }
    Ok(lister.done)
}

impl Lister<'_> {
    /// Lists `top`, and under --recursive what is below it, in the order of the names.
    fn directory(&mut self, top: &Found, out: &mut Output) -> Result<(), Failure> {
        let mut waiting = vec![top.clone()];
        let mut first = true;
        while let Some(found) = waiting.pop() {
            if self.args.recursive && self.json.is_none() {
                let blank: &[u8] = if first { b"" } else { b"\n" };
                out.write_all(blank)?;
                let shown = out.shown(&found.path.bytes());
                out.write_all(&shown)?;
                out.line(b":")?;
            }
            first = false;
            let entries = match self.entries(&found) {
                Ok(entries) => entries,
                Err(broken) if found.depth == 0 => {
                    return Err(Failure::of(text::escaped(&broken.path), &broken.error));
                }
                Err(broken) => {
                    self.failed(&broken.path, &broken.error);
                    continue;
                }
            };
            if self.args.recursive {
                let below = entries.iter().filter(|entry| entry.kind == FileKind::Directory);
                let below = below.filter(|entry| entry.name != b"." && entry.name != b"..");
                let below = below.map(|entry| Found {
                    path: found.path.child(entry.name.clone()),
                    id: entry.id,
                    kind: entry.kind,
                    depth: found.depth + 1,
                });
                let mut below: Vec<Found> = below.filter(|b| b.depth < 4096).collect();
                below.reverse();
                waiting.extend(below);
            }
            let folder = found.path.bytes();
            let mut lines = Vec::new();
            for entry in entries {
                let path = text::joined(&folder, &entry.name);
                match self.entry(entry.name, path.clone(), entry.id) {
                    Ok(entry) => lines.push(entry),
                    Err(failure) => {
                        say(&failure.to_string());
                        self.done = Done::WithFailures;
                    }
                }
            }
            self.print(lines, out)?;
        }
        Ok(())
    }

    fn entries(&mut self, found: &Found) -> Result<Vec<DirEntry>, Broken> {
        let broken = |error| Broken { path: found.path.bytes(), error: Box::new(error) };
        if !self.entered.insert(found.id) {
            return Err(broken(entered_before()));
        }
        let cookie = if self.args.all { 0 } else { FIRST_ENTRY };
        let entries = self.opened.filesystem.read_dir(found.id, cookie).map_err(broken)?;
        let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(broken)?;
        entries.retain(|entry| self.args.all || !entry.name.starts_with(b"."));
        if !self.args.unsorted {
            entries.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Ok(entries)
    }

    /// Looks up what the chosen form of line needs.
    fn entry(&self, name: Vec<u8>, path: Vec<u8>, id: FileId) -> Result<Entry, Failure> {
        let named = |error: &butternut::Error| Failure::of(text::escaped(&path), error);
        let stat = if self.args.long || self.json.is_some() {
            Some(self.opened.filesystem.stat(id).map_err(|error| named(&error))?)
        } else {
            None
        };
        let is_link = stat.as_ref().is_some_and(|stat| stat.kind == FileKind::Symlink);
        let target = if is_link {
            Some(self.opened.filesystem.read_link(id).map_err(|error| named(&error))?)
        } else {
            None
        };
        Ok(Entry { name, path, id, stat, target })
    }

    fn failed(&mut self, path: &[u8], error: &butternut::Error) {
        say(&Failure::of(text::escaped(path), error).to_string());
        self.done = Done::WithFailures;
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

    /// What stands before the name.
    fn columns(&self, entry: &Entry) -> Vec<String> {
        let ino = if self.args.inode { entry.id.ino.to_string() } else { String::new() };
        let Some(stat) = &entry.stat else { return vec![ino] };
        let size = if matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice) {
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
