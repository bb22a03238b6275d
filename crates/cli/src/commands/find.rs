//! `find`: searches for files in a directory tree.

mod glob;

use std::io::Write;

use butternut::{FileKind, Follow};

use super::walk::{Walk, WalkEntry, WalkError, WalkPath};
use crate::args::{FindArgs, GlobalArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json, stderr_line, text};
use crate::volume::OpenVolume;

/// The conditions of a file that is printed.
struct Filter {
    name: Option<Vec<u8>>,
    kinds: Option<Vec<char>>,
    size: Option<Size>,
    depth_min: usize,
    depth_max: usize,
}

enum Size {
    AtLeast(u64),
    AtMost(u64),
    Exactly(u64),
}

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
    let id = opened.resolve(&args.path, Follow::NotLast)?;
    let path = text::bytes(&args.path);
    let kind = opened.filesystem.stat(id).map_err(|e| Failure::of(text::escaped(&path), &e))?.kind;
    let mut walk = Walk::new(&opened.filesystem, args.one_subvolume);
    let mut printer =
        Printer { opened: &opened, null: args.null, json: global.json.then(json::List::default) };
    let mut next = Some(Ok(WalkEntry { path: WalkPath::new(path), id, kind, depth: 0 }));
    while let Some(step) = next {
        let checked = step.and_then(|found| {
            let matches = filter.matches(&opened, &found)?;
            Ok((found, matches))
        });
        let entered = match checked {
            Ok((found, matches)) => {
                if matches {
                    printer.print(&found, out)?;
                }
                let deeper = found.is_directory() && found.depth < filter.depth_max;
                if deeper { walk.enter(&found) } else { Ok(()) }
            }
            Err(broken) => Err(broken),
        };
        if let Err(WalkError { path, error }) = entered {
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

impl Filter {
    fn of(args: &FindArgs) -> Result<Self, Failure> {
        let kinds = args.kinds.as_ref().map(|text| text.split(',').collect::<String>());
        if let Some(unknown) =
            kinds.as_ref().and_then(|k| k.chars().find(|c| !"fdlbcpsv".contains(*c)))
        {
            return Err(Failure::new("--type", format!("{unknown:?} is not a file type"))
                .hint("the types are f, d, l, b, c, p, s, and v for subvolumes"));
        }
        Ok(Self {
            name: args.name.as_ref().map(text::bytes),
            kinds: kinds.map(|text| text.chars().collect()),
            size: args.size.as_deref().map(size).transpose()?,
            depth_min: args.min_depth.unwrap_or(0),
            depth_max: args.max_depth.unwrap_or(usize::MAX),
        })
    }

    fn matches(&self, opened: &OpenVolume, found: &WalkEntry) -> Result<bool, WalkError> {
        if found.depth < self.depth_min {
            return Ok(false);
        }
        let named = self.name.as_ref().is_none_or(|glob| glob::matches(glob, found.name()));
        let kind = self.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|k| is(*k, found)));
        if !named || !kind {
            return Ok(false);
        }
        let Some(size) = &self.size else { return Ok(true) };
        let stat = opened
            .filesystem
            .stat(found.id)
            .map_err(|error| WalkError { path: found.path.bytes(), error: Box::new(error) })?;
        Ok(match size {
            Size::AtLeast(bytes) => stat.size >= *bytes,
            Size::AtMost(bytes) => stat.size <= *bytes,
            Size::Exactly(bytes) => stat.size == *bytes,
        })
    }
}

fn size(typed: &str) -> Result<Size, Failure> {
    Ok(match (typed.strip_prefix('+'), typed.strip_prefix('-')) {
        (Some(number), _) => Size::AtLeast(crate::args::parse_bytes("--size", number)?),
        (_, Some(number)) => Size::AtMost(crate::args::parse_bytes("--size", number)?),
        (None, None) => Size::Exactly(crate::args::parse_bytes("--size", typed)?),
    })
}

fn is(letter: char, found: &WalkEntry) -> bool {
    let kind = match found.kind {
        FileKind::File => 'f',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    letter == kind || (letter == 'v' && kind == 'd' && found.id.is_subvolume_root())
}

struct Printer<'a> {
    opened: &'a OpenVolume,
    null: bool,
    json: Option<json::List>,
}

impl Printer<'_> {
    fn print(&mut self, found: &WalkEntry, out: &mut Output) -> Result<(), Failure> {
        let Some(list) = &mut self.json else {
            let escape = out.is_terminal && !self.null;
            out.write_all(&text::name(&found.path.bytes(), escape))?;
            out.write_all(if self.null { b"\0" } else { b"\n" })?;
            return Ok(());
        };
        let object = json::Object::new().name("path", &found.path.bytes());
        let object = match self.opened.filesystem.stat(found.id) {
            Ok(stat) => super::stat::fields(object, &stat),
            Err(error) => object.put("error", error.to_string()),
        };
        Ok(list.push(out, object)?)
    }
}
