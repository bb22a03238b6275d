//! `filesystem du`: shows the disk usage of files, and how much of it is shared, as btrfs-progs
//! does.
//!
//! A file with several names is counted under the first. The line of a directory follows its
//! contents and is their sum. "Set shared" counts each shared byte of disk once per PATH.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;

use butternut::{DiskUsage, FileId, FileKind, Follow};

use super::groups::units;
use crate::args::{DuArgs, GlobalArgs};
use crate::commands::mounted::{is_directory, is_plain_file};
use crate::commands::walk::{Walk, WalkEntry, WalkError, WalkPath};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::size::{Units, pretty};
use crate::output::{Output, json, stderr_line, text};
use crate::volume::OpenVolume;

mod mounted;

struct UsageCounter<'a> {
    opened: &'a OpenVolume,
    lines: Lines,
    done: Completion,
    /// Files with several names that have been counted.
    linked: HashSet<FileId>,
}

/// How the lines are printed.
struct Lines {
    summarize: bool,
    units: Units,
    json: Option<json::List>,
}

pub(crate) fn run(global: &GlobalArgs, args: &DuArgs, out: &mut Output) -> Outcome {
    let lines = Lines {
        summarize: args.summarize,
        units: units(&args.units),
        json: global.json.then(json::List::default),
    };
    if is_directory(&args.volume.volume) || is_plain_file(&args.volume.volume) {
        let paths: Vec<&OsString> =
            std::iter::once(&args.volume.volume).chain(&args.paths).collect();
        return mounted::run(lines, &paths, out);
    }
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let (opened, done) = (&opened, Completion::Success);
    let mut counter = UsageCounter { opened, lines, done, linked: HashSet::new() };
    let printed = counter.all(args, out);
    counter.done.after(printed)
}

impl UsageCounter<'_> {
    fn all(&mut self, args: &DuArgs, out: &mut Output) -> Result<(), Failure> {
        self.lines.begin(out)?;
        let top = ["/".into()];
        for path in if args.paths.is_empty() { &top[..] } else { &args.paths } {
            let id = self.opened.resolve(path, Follow::NotLast)?;
            let path = text::bytes(path);
            let stat = self.opened.filesystem.stat(id);
            let kind = stat.map_err(|error| Failure::of(text::escaped(&path), &error))?.kind;
            self.tree(&WalkEntry { path: WalkPath::new(path), id, kind, depth: 0 }, out)?;
        }
        self.lines.end(out)
    }

    fn tree(&mut self, top: &WalkEntry, out: &mut Output) -> Result<(), Failure> {
        let mut walk = Walk::new(&self.opened.filesystem, false);
        // Directories whose sum is not complete yet, outermost first.
        let mut open: Vec<(WalkEntry, DiskUsage)> = Vec::new();
        let mut next = Some(Ok(top.clone()));
        while let Some(step) = next {
            match step {
                Ok(found) => {
                    self.close(&mut open, found.depth, out)?;
                    if found.is_directory() {
                        if let Err(broken) = walk.enter(&found) {
                            self.failed(&broken);
                        }
                        open.push((found, DiskUsage::default()));
                    } else if found.kind == FileKind::File {
                        self.file(&mut open, &found, out)?;
                    }
                }
                Err(broken) => self.failed(&broken),
            }
            next = walk.next();
        }
        self.close(&mut open, 0, out)
    }

    fn file(
        &mut self,
        open: &mut [(WalkEntry, DiskUsage)],
        found: &WalkEntry,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let links = self.opened.filesystem.stat(found.id).map_or(1, |stat| stat.nlink);
        if links > 1 && !self.linked.insert(found.id) {
            return Ok(());
        }
        match self.opened.filesystem.disk_usage(found.id) {
            Ok(usage) => {
                self.lines.print(&found.path, &usage, open.is_empty(), out)?;
                if let Some((_, sum)) = open.last_mut() {
                    sum.add(&usage);
                }
            }
            Err(error) => {
                self.failed(&WalkError { path: found.path.bytes(), error: Box::new(error) });
            }
        }
        Ok(())
    }

    /// Prints the sums of the directories at `depth` and deeper.
    fn close(
        &mut self,
        open: &mut Vec<(WalkEntry, DiskUsage)>,
        depth: usize,
        out: &mut Output,
    ) -> Result<(), Failure> {
        while open.last().is_some_and(|(found, _)| found.depth >= depth) {
            let Some((found, sum)) = open.pop() else { break };
            self.lines.print(&found.path, &sum, open.is_empty(), out)?;
            if let Some((_, parent)) = open.last_mut() {
                parent.add(&sum);
            }
        }
        Ok(())
    }

    fn failed(&mut self, broken: &WalkError) {
        stderr_line(&Failure::of(text::escaped(&broken.path), &broken.error).to_string());
        self.done = Completion::PartialFailure;
    }
}

impl Lines {
    fn begin(&self, out: &mut Output) -> Result<(), Failure> {
        if self.json.is_none() {
            writeln!(out, "{:>10}  {:>10}  {:>10}  Filename", "Total", "Exclusive", "Set shared")?;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Output) -> Result<(), Failure> {
        if let Some(list) = self.json.take() {
            list.end(out)?;
        }
        Ok(())
    }

    fn print(
        &mut self,
        path: &WalkPath,
        usage: &DiskUsage,
        is_top: bool,
        out: &mut Output,
    ) -> Result<(), Failure> {
        if self.summarize && !is_top {
            return Ok(());
        }
        if let Some(list) = &mut self.json {
            let object = json::Object::new()
                .name("path", &path.bytes())
                .put("total_bytes", usage.total_bytes)
                .put("exclusive_bytes", usage.exclusive_bytes);
            let set = is_top.then(|| usage.set_shared_bytes());
            return Ok(list.push(out, object.put("set_shared_bytes", set))?);
        }
        let set =
            if is_top { pretty(usage.set_shared_bytes(), self.units) } else { "-".to_owned() };
        let total = pretty(usage.total_bytes, self.units);
        let exclusive = pretty(usage.exclusive_bytes, self.units);
        write!(out, "{total:>10}  {exclusive:>10}  {set:>10}  ")?;
        let shown = out.display_name(&path.bytes());
        Ok(out.line(&shown)?)
    }
}
