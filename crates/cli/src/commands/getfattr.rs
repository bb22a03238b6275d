//! `getfattr`: prints extended attributes, in the format of getfattr(1).

use std::ffi::OsString;
use std::io::Write;

use butternut::Follow;
use serde_json::Value;

use super::per_path::for_each_path;
use super::xattr_value;
use crate::args::{GetfattrArgs, GlobalArgs};
use crate::failure::{Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, text};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &GetfattrArgs, out: &mut Output) -> Outcome {
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let look = |path: &OsString| Ok((path.clone(), xattrs(&opened, args, path)?));
    let show = |(path, found): &(OsString, Xattrs), out: &mut Output| {
        if !args.only_values {
            return print(path, found, args, out);
        }
        found.iter().try_for_each(|(_, value)| out.write_all(value))
    };
    let as_json = |(path, found): &(OsString, Xattrs)| as_json(path, found);
    for_each_path(global, &args.paths, out, look, show, as_json)
}

type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

fn xattrs(opened: &OpenVolume, args: &GetfattrArgs, path: &OsString) -> Result<Xattrs, Failure> {
    let follow = if args.no_dereference { Follow::NotLast } else { Follow::Last };
    let id = opened.resolve(path, follow)?;
    let filesystem = &opened.filesystem;
    let read = || -> butternut::Result<Xattrs> {
        let mut names = match &args.name {
            Some(name) => vec![text::bytes(name)],
            None => filesystem.xattr_names(id)?,
        };
        names.sort_unstable();
        let names = names.into_iter();
        names.map(|name| filesystem.xattr(id, &name).map(|value| (name, value))).collect()
    };
    read().map_err(|error| Failure::of(text::escaped(&text::bytes(path)), &error))
}

fn print(
    path: &OsString,
    found: &Xattrs,
    args: &GetfattrArgs,
    out: &mut Output,
) -> std::io::Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    out.write_all(b"# file: ")?;
    let shown = out.display_name(&text::bytes(path));
    out.line(&shown)?;
    for (name, value) in found {
        let name = out.display_name(name);
        out.write_all(&name)?;
        writeln!(out, "={}", xattr_value::format(value, args.encoding))?;
    }
    out.line(b"")
}

fn as_json(path: &OsString, found: &Xattrs) -> Object {
    let list = found
        .iter()
        .map(|(name, value)| Value::from(Object::new().name("name", name).name("value", value)));
    Object::new().name("path", &text::bytes(path)).put("xattrs", list.collect::<Vec<_>>())
}
