//! `filesystem du`: the space of files, and how much of it is shared, as btrfs-progs shows it.
//!
//! A file with several names counts at the first. A directory's line comes after what is in it, and
//! is the sum of that. "Set shared" counts each shared byte of disk once, over the whole of a PATH.

use std::collections::HashSet;
use std::io::Write;

use butternut::{DiskUsage, FileId, FileKind, Follow};

use super::groups::units;
use crate::commands::walk::{Broken, Found, Walk, WalkPath};
use crate::failure::{Done, Failure, Outcome};
use crate::flags::{DuArgs, GlobalArgs};
use crate::options::Opened;
use crate::output::size::{Units, pretty};
use crate::output::{Output, json, say, text};

struct Summer<'a> {
    opened: &'a Opened,
    summarize: bool,
    units: Units,
    json: Option<json::List>,
    done: Done,
    /// Files with more than one name that have been counted.
    linked: HashSet<FileId>,
}

pub(crate) fn run(global: &GlobalArgs, args: &DuArgs, out: &mut Output) -> Outcome {
    let opened = Opened::one(global, &args.volume)?;
    let mut summer = Summer {
        opened: &opened,
        summarize: args.summarize,
        units: units(&args.units),
        json: global.json.then(json::List::default),
        done: Done::Well,
        linked: HashSet::new(),
    };
    if !global.json {
        writeln!(out, "{:>10}  {:>10}  {:>10}  Filename", "Total", "Exclusive", "Set shared")?;
    }
    for path in &args.paths {
        let id = opened.resolve(path, Follow::NotLast)?;
        let path = text::bytes(path);
        let stat = opened.filesystem.stat(id);
        let kind = stat.map_err(|error| Failure::of(text::escaped(&path), &error))?.kind;
        summer.tree(&Found { path: WalkPath::new(path), id, kind, depth: 0 }, out)?;
    }
    if let Some(list) = summer.json.take() {
        list.end(out)?;
    }
    Ok(summer.done)
}

impl Summer<'_> {
    fn tree(&mut self, top: &Found, out: &mut Output) -> Result<(), Failure> {
        let mut walk = Walk::new(&self.opened.filesystem, false);
        // Directories that are not summed up yet, outermost first.
        let mut open: Vec<(Found, DiskUsage)> = Vec::new();
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
        open: &mut [(Found, DiskUsage)],
        found: &Found,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let links = self.opened.filesystem.stat(found.id).map_or(1, |stat| stat.nlink);
        if links > 1 && !self.linked.insert(found.id) {
            return Ok(());
        }
        match self.opened.filesystem.disk_usage(found.id) {
            Ok(usage) => {
                self.print(found, &usage, open.is_empty(), out)?;
                if let Some((_, sum)) = open.last_mut() {
                    sum.add(&usage);
                }
            }
            Err(error) => {
                self.failed(&Broken { path: found.path.bytes(), error: Box::new(error) });
            }
        }
        Ok(())
    }

    /// Ends the directories at `depth` and deeper.
    fn close(
        &mut self,
        open: &mut Vec<(Found, DiskUsage)>,
        depth: usize,
        out: &mut Output,
    ) -> Result<(), Failure> {
        while open.last().is_some_and(|(found, _)| found.depth >= depth) {
            let Some((found, sum)) = open.pop() else { break };
            self.print(&found, &sum, open.is_empty(), out)?;
            if let Some((_, above)) = open.last_mut() {
                above.add(&sum);
            }
        }
        Ok(())
    }

    fn print(
        &mut self,
        found: &Found,
        usage: &DiskUsage,
        is_top: bool,
        out: &mut Output,
    ) -> Result<(), Failure> {
        if self.summarize && !is_top {
            return Ok(());
        }
        if let Some(list) = &mut self.json {
            let object = json::Object::new()
                .name("path", &found.path.bytes())
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
        let shown = out.shown(&found.path.bytes());
        Ok(out.line(&shown)?)
    }

    fn failed(&mut self, broken: &Broken) {
        say(&Failure::of(text::escaped(&broken.path), &broken.error).to_string());
        self.done = Done::WithFailures;
    }
}
