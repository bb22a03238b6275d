//! `find`: searches for files in a directory tree.

mod filter;

use std::ffi::OsString;
use std::io::Write;

use butternut::{FileKind, Follow};
use filter::Filter;

use super::files::Files;
use super::mounted::files::MountedFiles;
use super::walk::{Walk, WalkEntry, WalkError, WalkPath};
use crate::args::{FindArgs, GlobalArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json, stderr_line, text, time};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &FindArgs, out: &mut Output) -> Outcome {
    let mut done = Completion::Success;
    let printed = find(global, args, &mut done, out);
    done.after(printed)
}

/// Prints what is found. `done` becomes a partial failure when a failure is reported.
fn find(
    global: &GlobalArgs,
    args: &FindArgs,
    done: &mut Completion,
    out: &mut Output,
) -> Result<(), Failure> {
    let filter = Filter::of(args)?;
    let (start, root) = (args.start.as_slice(), OsString::from("/"));
    if let Some((files, paths)) = MountedFiles::open(&args.volume.volume, start)? {
        let start = paths.first().unwrap_or(&root);
        let id = files.find(start, Follow::NotLast)?;
        return search(global, args, (&files, id, start), (&filter, done), out);
    }
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let start = args.start.as_ref().unwrap_or(&root);
    let id = opened.resolve(start, Follow::NotLast)?;
    search(global, args, (&opened.filesystem, id, start), (&filter, done), out)
}

/// Searches from a starting point on.
fn search<F: Files>(
    global: &GlobalArgs,
    args: &FindArgs,
    (files, id, start): (&F, F::Id, &OsString),
    (filter, done): (&Filter, &mut Completion),
    out: &mut Output,
) -> Result<(), Failure> {
    let path = text::bytes(start);
    let failed = |error| F::failure(text::escaped(&path), &error);
    let kind = files.attributes(&id).map_err(failed)?.kind;
    let mut walk = Walk::new(files, args.one_subvolume);
    let mut printer = Printer { files, args, json: global.json.then(json::List::default) };
    let mut next = Some(Ok(WalkEntry { path: WalkPath::new(path), id, kind, depth: 0 }));
    while let Some(step) = next {
        let checked = step.and_then(|found| {
            let matches = filter.matches(files, &found)?;
            Ok((found, matches))
        });
        let visited = match checked {
            Ok((found, matches)) => {
                let shown = if matches { printer.print(&found, out)? } else { Ok(()) };
                let deeper = found.is_directory() && found.depth < filter.depth_max;
                let entered = if deeper { walk.enter(&found) } else { Ok(()) };
                shown.and(entered)
            }
            Err(broken) => Err(broken),
        };
        if let Err(WalkError { path, error }) = visited {
            let flushed = out.flush();
            stderr_line(&F::failure(text::escaped(&path), &error).to_string());
            *done = Completion::PartialFailure;
            flushed?;
        }
        next = walk.next();
    }
    if let Some(list) = printer.json.take() {
        list.end(out)?;
    }
    Ok(())
}

/// The columns before a path, and the target of a symlink.
type Listed = (String, Option<Vec<u8>>);

struct Printer<'a, F> {
    files: &'a F,
    args: &'a FindArgs,
    json: Option<json::List>,
}

impl<F: Files> Printer<'_, F> {
    /// Prints what was found. What cannot be read of it is the inner error, after which the walk
    /// goes on.
    fn print(
        &mut self,
        found: &WalkEntry<F::Id>,
        out: &mut Output,
    ) -> Result<Result<(), WalkError<F::Error>>, Failure> {
        let Some(list) = &mut self.json else {
            let escape = out.is_terminal && !self.args.null;
            let listed = if self.args.ls { self.ls(found) } else { Ok(Default::default()) };
            let (columns, target) = match listed {
                Ok(columns) => columns,
                Err(broken) => return Ok(Err(broken)),
            };
            out.write_all(columns.as_bytes())?;
            out.write_all(&text::name(&found.path.bytes(), escape))?;
            if let Some(target) = target {
                out.write_all(b" -> ")?;
                out.write_all(&text::name(&target, escape))?;
            }
            out.write_all(if self.args.null { b"\0" } else { b"\n" })?;
            return Ok(Ok(()));
        };
        let object = json::Object::new().name("path", &found.path.bytes());
        let object = match self.files.all_attributes(&found.id) {
            Ok(attributes) => super::stat::fields(object, &attributes),
            Err(error) => object.put("error", F::text(&error)),
        };
        list.push(out, object)?;
        Ok(Ok(()))
    }

    /// Returns the columns before the path, as with `-ls` of find(1), and the target of a symlink.
    fn ls(&self, found: &WalkEntry<F::Id>) -> Result<Listed, WalkError<F::Error>> {
        let failed = |error| WalkError { path: found.path.bytes(), error: Box::new(error) };
        let stat = self.files.attributes(&found.id).map_err(failed)?;
        let size = if stat.is_device() {
            format!("{}, {}", stat.rdev.0, stat.rdev.1)
        } else {
            stat.size.to_string()
        };
        let (ino, blocks, mode) = (stat.ino, stat.blocks / 2, text::mode(stat.kind, stat.mode));
        let (links, uid, gid, time) = (stat.nlink, stat.uid, stat.gid, time::minutes(stat.mtime));
        let columns =
            format!("{ino:>9} {blocks:>6} {mode} {links:>3} {uid:<8} {gid:<8} {size:>8} {time} ");
        let is_link = stat.kind == FileKind::Symlink;
        let target = is_link.then(|| self.files.target(&found.id).map_err(failed)).transpose()?;
        Ok((columns, target))
    }
}
