//! `find`: searches for files in a directory tree.

mod filter;
mod glob;

use std::io::Write;

use butternut::{FileKind, Follow};
use filter::Filter;

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
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let id = opened.resolve(&args.start, Follow::NotLast)?;
    let path = text::bytes(&args.start);
    let kind = opened.filesystem.stat(id).map_err(|e| Failure::of(text::escaped(&path), &e))?.kind;
    let mut walk = Walk::new(&opened.filesystem, args.one_subvolume);
    let mut printer =
        Printer { opened: &opened, args, json: global.json.then(json::List::default) };
    let mut next = Some(Ok(WalkEntry { path: WalkPath::new(path), id, kind, depth: 0 }));
    while let Some(step) = next {
        let checked = step.and_then(|found| {
            let matches = filter.matches(&opened, &found)?;
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
            stderr_line(&Failure::of(text::escaped(&path), &error).to_string());
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

struct Printer<'a> {
    opened: &'a OpenVolume,
    args: &'a FindArgs,
    json: Option<json::List>,
}

impl Printer<'_> {
    /// Prints what was found. What cannot be read of it is the inner error, after which the walk
    /// goes on.
    fn print(
        &mut self,
        found: &WalkEntry,
        out: &mut Output,
    ) -> Result<Result<(), WalkError>, Failure> {
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
        let object = match self.opened.filesystem.stat(found.id) {
            Ok(stat) => super::stat::fields(object, &stat),
            Err(error) => object.put("error", error.to_string()),
        };
        list.push(out, object)?;
        Ok(Ok(()))
    }

    /// Returns the columns before the path, as with `-ls` of find(1), and the target of a symlink.
    fn ls(&self, found: &WalkEntry) -> Result<(String, Option<Vec<u8>>), WalkError> {
        let filesystem = &self.opened.filesystem;
        let failed = |error: butternut::Error| WalkError {
            path: found.path.bytes(),
            error: Box::new(error),
        };
        let stat = filesystem.stat(found.id).map_err(failed)?;
        let is_device = matches!(stat.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let size = if is_device {
            format!("{}, {}", stat.rdev.0, stat.rdev.1)
        } else {
            stat.size.to_string()
        };
        let (ino, blocks, mode) = (stat.ino, stat.blocks / 2, text::mode(stat.kind, stat.mode));
        let (links, uid, gid, time) = (stat.nlink, stat.uid, stat.gid, time::minutes(stat.mtime));
        let columns =
            format!("{ino:>9} {blocks:>6} {mode} {links:>3} {uid:<8} {gid:<8} {size:>8} {time} ");
        let is_link = stat.kind == FileKind::Symlink;
        let target = is_link.then(|| filesystem.read_link(found.id).map_err(failed)).transpose()?;
        Ok((columns, target))
    }
}
