//! `stat`: shows the attributes of a file in the format of stat(1), and its btrfs metadata.

use std::ffi::OsString;
use std::io::Write;

use butternut::{Compression, Extent, ExtentKind, FileId, FileKind, Follow};
use serde_json::{Value, json};

use super::files::{Attributes, Files, or_root};
use super::mounted::files::MountedFiles;
use super::per_path::for_each_path;
use crate::args::{GlobalArgs, StatArgs};
use crate::failure::{Failure, Outcome};
use crate::output::json::Object;
use crate::output::table::{Side, Table};
use crate::output::{Output, text, time};
use crate::volume::OpenVolume;

/// A file, with the parts that the options select.
struct FileInfo {
    path: Vec<u8>,
    stat: Attributes,
    target: Option<Vec<u8>>,
    extents: Option<Vec<Extent>>,
    xattrs: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

pub(crate) fn run(global: &GlobalArgs, args: &StatArgs, out: &mut Output) -> Outcome {
    if let Some((files, paths)) = MountedFiles::open_any(&args.volume.volume, &args.paths)? {
        if args.extents {
            return Err(Failure::new("--extents", "is for a volume that is not mounted")
                .hint("filefrag(8) and `butternut filesystem du` show what a mount tells"));
        }
        let look = |path: &OsString| mounted_info(&files, args, path);
        return for_each_path(global, &paths, out, look, print, as_json);
    }
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let look = |path: &OsString| info(&opened, args, path);
    for_each_path(global, &or_root(&args.paths), out, look, print, as_json)
}

fn info(opened: &OpenVolume, args: &StatArgs, path: &OsString) -> Result<FileInfo, Failure> {
    let follow = if args.dereference { Follow::Last } else { Follow::NotLast };
    let id = opened.resolve(path, follow)?;
    let path = text::bytes(path);
    let gather = || -> butternut::Result<FileInfo> {
        let filesystem = &opened.filesystem;
        let stat = filesystem.all_attributes(&id)?;
        let is_link = stat.kind == FileKind::Symlink;
        let target = if is_link { Some(filesystem.read_link(id)?) } else { None };
        let extents = if args.extents && stat.kind == FileKind::File {
            let file = filesystem.open_file(id)?;
            Some(file.extents(0..stat.size).collect::<Result<Vec<_>, _>>()?)
        } else {
            None
        };
        let xattrs = if args.xattrs { Some(xattrs(opened, id)?) } else { None };
        Ok(FileInfo { path: path.clone(), stat, target, extents, xattrs })
    };
    gather().map_err(|error| Failure::of(text::escaped(&path), &error))
}

/// As [`info`], of a file in a mounted volume.
fn mounted_info(
    files: &MountedFiles,
    args: &StatArgs,
    path: &OsString,
) -> Result<FileInfo, Failure> {
    let follow = if args.dereference { Follow::Last } else { Follow::NotLast };
    let id = files.find(path, follow)?;
    let path = text::bytes(path);
    let failed = |error| MountedFiles::failure(text::escaped(&path), &error);
    let stat = files.all_attributes(&id).map_err(failed)?;
    let is_link = stat.kind == FileKind::Symlink;
    let target = if is_link { Some(files.target(&id).map_err(failed)?) } else { None };
    let xattrs = if args.xattrs { Some(MountedFiles::xattrs(&id).map_err(failed)?) } else { None };
    Ok(FileInfo { path, stat, target, extents: None, xattrs })
}

fn xattrs(opened: &OpenVolume, id: FileId) -> butternut::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = opened.filesystem.xattr_names(id)?.into_iter();
    names.map(|name| opened.filesystem.xattr(id, &name).map(|value| (name, value))).collect()
}

fn print(info: &FileInfo, out: &mut Output) -> std::io::Result<()> {
    let stat = &info.stat;
    let mut name = out.display_name(&info.path);
    if let Some(target) = &info.target {
        name.extend_from_slice(b" -> ");
        name.extend_from_slice(&out.display_name(target));
    }
    out.write_all(b"  File: ")?;
    out.line(&name)?;
    writeln!(
        out,
        "  Size: {:<10}\tBlocks: {:<10} IO Block: {:<6} {}",
        stat.size,
        stat.blocks,
        stat.block_bytes,
        text::kind(stat.kind, stat.size == 0)
    )?;
    write!(
        out,
        "Subvol: {:<10}\tInode: {:<11} Links: {}",
        or_dash(stat.subvolume),
        stat.ino,
        stat.nlink
    )?;
    if stat.is_device() {
        write!(out, "     Device type: {},{}", stat.rdev.0, stat.rdev.1)?;
    }
    writeln!(
        out,
        "\nAccess: ({:04o}/{})  Uid: {:>5}   Gid: {:>5}",
        stat.mode & 0o7777,
        text::mode(stat.kind, stat.mode),
        stat.uid,
        stat.gid
    )?;
    writeln!(out, "Access: {}", time::full(stat.atime))?;
    writeln!(out, "Modify: {}", time::full(stat.mtime))?;
    writeln!(out, "Change: {}", time::full(stat.ctime))?;
    writeln!(out, " Birth: {}", time::full(stat.btime))?;
    let flags = match stat.flags.map(text::inode_flags) {
        None => "-".to_owned(),
        Some(flags) if flags.is_empty() => "none".to_owned(),
        Some(flags) => flags.join(","),
    };
    writeln!(
        out,
        " Btrfs: generation {}, flags {flags}, file id {}",
        or_dash(stat.generation),
        or_dash(stat.file_id)
    )?;
    for (name, value) in info.xattrs.iter().flatten() {
        let value = String::from_utf8(value.clone())
            .ok()
            .filter(|text| text.chars().all(|c| !c.is_control()))
            .map_or_else(|| format!("0x{}", text::hex(value)), |text| format!("{text:?}"));
        writeln!(out, " Xattr: {}={value}", text::escaped(name))?;
    }
    print_extents(info, out)
}

/// Returns a number, or `-` for one that a mount does not tell.
fn or_dash(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

fn print_extents(info: &FileInfo, out: &mut Output) -> std::io::Result<()> {
    let Some(extents) = &info.extents else { return Ok(()) };
    let mut table = Table::new(&[Side::Right, Side::Right, Side::Left, Side::Right, Side::Left]);
    let head = ["OFFSET", "BYTES", "KIND", "LOGICAL", "ON DISK"];
    table.row(head.iter().map(|cell| (*cell).to_owned()).collect());
    for extent in extents {
        let (kind, logical, packed) = match extent.kind {
            ExtentKind::Hole => ("hole", String::new(), String::new()),
            ExtentKind::Buffered => ("buffered", String::new(), String::new()),
            ExtentKind::Prealloc { logical } => ("prealloc", logical.to_string(), String::new()),
            ExtentKind::Inline { compression } => ("inline", String::new(), word(compression)),
            ExtentKind::Regular { logical, disk_bytes, ram_bytes, extent_offset, compression } => {
                let whole = format!(
                    "{disk_bytes} {} of {ram_bytes}, from {extent_offset}",
                    word(compression)
                );
                ("regular", logical.to_string(), whole)
            }
        };
        table.row(vec![
            extent.offset.to_string(),
            extent.bytes.to_string(),
            kind.to_owned(),
            logical,
            packed,
        ]);
    }
    for line in table.lines() {
        writeln!(out, " {line}")?;
    }
    Ok(())
}

fn word(compression: Compression) -> String {
    match compression {
        Compression::None => "none",
        Compression::Zlib => "zlib",
        Compression::Lzo => "lzo",
        Compression::Zstd => "zstd",
    }
    .to_owned()
}

/// Adds the attributes of a file, as every command prints them with --json. What a mount does not
/// tell is null.
pub(crate) fn fields(object: Object, stat: &Attributes) -> Object {
    object
        .put("type", text::kind_word(stat.kind))
        .put("subvolume", stat.subvolume)
        .put("inode", stat.ino)
        .put("file_id", stat.file_id)
        .put("mode", format!("{:04o}", stat.mode & 0o7777))
        .put("links", stat.nlink)
        .put("uid", stat.uid)
        .put("gid", stat.gid)
        .put("size", stat.size)
        .put("blocks", stat.blocks)
        .put("device", json!({ "major": stat.rdev.0, "minor": stat.rdev.1 }))
        .time("atime", stat.atime)
        .time("mtime", stat.mtime)
        .time("ctime", stat.ctime)
        .time("btime", stat.btime)
        .put("generation", stat.generation)
        .put("flags", stat.flags.map(text::inode_flags))
}

fn as_json(info: &FileInfo) -> Object {
    let mut object = fields(Object::new().name("path", &info.path), &info.stat);
    if let Some(target) = &info.target {
        object = object.name("target", target);
    }
    if let Some(xattrs) = &info.xattrs {
        let list = xattrs.iter().map(|(name, value)| {
            Value::from(Object::new().name("name", name).name("value", value))
        });
        object = object.put("xattrs", list.collect::<Vec<_>>());
    }
    if let Some(extents) = &info.extents {
        object = object.put("extents", extents.iter().map(extent_json).collect::<Vec<_>>());
    }
    object
}

fn extent_json(extent: &Extent) -> Value {
    let object = Object::new().put("offset", extent.offset).put("bytes", extent.bytes);
    let object = match extent.kind {
        ExtentKind::Hole => object.put("kind", "hole"),
        ExtentKind::Buffered => object.put("kind", "buffered"),
        ExtentKind::Prealloc { logical } => object.put("kind", "prealloc").put("logical", logical),
        ExtentKind::Inline { compression } => {
            object.put("kind", "inline").put("compression", word(compression))
        }
        ExtentKind::Regular { logical, disk_bytes, ram_bytes, extent_offset, compression } => {
            object
                .put("kind", "regular")
                .put("logical", logical)
                .put("disk_bytes", disk_bytes)
                .put("ram_bytes", ram_bytes)
                .put("extent_offset", extent_offset)
                .put("compression", word(compression))
        }
    };
    object.into()
}
