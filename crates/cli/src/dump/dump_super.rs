//! `inspect dump-super`: prints superblock copies in the format of
//! `btrfs inspect-internal dump-super`.
//!
//! 1. Copies are read directly from each device; the volume is not opened.
//! 2. A copy past the end of the device is skipped without a message.
//! 3. A copy without the magic number ends the command, unless --force is given.

use super::super_block;
use crate::args::{DumpSuperArgs, GlobalArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{json, stderr_line};
use crate::volume::arg;
use butternut::DevicePath;
use butternut_format::feature;
use butternut_format::refused::Hex;
use butternut_format::super_block::{COPY_OFFSETS, MAGIC, RawSuperBlock, copy_offset};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use zerocopy::{FromZeros, IntoBytes};

/// Prints the superblocks that `args` selects.
pub(crate) fn print(global: &GlobalArgs, args: &DumpSuperArgs, out: &mut dyn Write) -> Outcome {
    let copies = copies(args)?;
    let mut list = json::List::default();
    for typed in &args.devices {
        let device = device(typed)?;
        let name = device.path.display().to_string();
        let file = File::open(&device.path).map_err(|error| Failure::io(&name, &error))?;
        for offset in &copies {
            let Some(raw) = read(&file, &device, *offset)? else { continue };
            if global.json {
                list.push(out, document(&raw, &name, *offset))?;
                continue;
            }
            writeln!(out, "superblock: bytenr={offset}, device={name}")?;
            writeln!(out, "---------------------------------------------------------")?;
            if raw.magic.get() != MAGIC && !args.force {
                let why = format!("no superblock at {offset}: the magic number does not match");
                return Err(Failure::new(name, why).hint("--force prints it anyway"));
            }
            let mut notices = |text: String| stderr_line(&format!("{name}: {text}"));
            super_block::print(&raw, args.full, &mut notices, out)?;
            writeln!(out)?;
        }
    }
    if global.json {
        list.end(out)?;
    }
    Ok(Completion::Success)
}

fn copies(args: &DumpSuperArgs) -> Result<Vec<u64>, Failure> {
    if args.all {
        return Ok(COPY_OFFSETS.to_vec());
    }
    let copy = args.copy.unwrap_or_default();
    let offset = usize::try_from(copy).ok().and_then(copy_offset);
    let offset = offset.ok_or_else(|| {
        Failure::new("inspect dump-super", format!("no copy {copy}"))
            .hint("the copies are 0, 1 and 2")
    })?;
    Ok(vec![offset])
}

fn device(typed: &OsString) -> Result<DevicePath, Failure> {
    let what = typed.display().to_string();
    let volume = arg::parse(std::slice::from_ref(typed))
        .map_err(|error| Failure::new(&what, error.to_string()))?;
    let mut devices = volume.devices.into_iter();
    match (devices.next(), devices.next()) {
        (Some(device), None) => Ok(device),
        _ => Err(Failure::new(what, "does not name exactly one device")
            .hint("give devices as separate arguments")),
    }
}

/// Reads the superblock copy at `offset`, or returns `None` if the device ends before it.
fn read(
    file: &File,
    device: &DevicePath,
    offset: u64,
) -> Result<Option<Box<RawSuperBlock>>, Failure> {
    let what = format!("{} at {offset}", device.path.display());
    let start = device.offset.checked_add(offset);
    let start = start.ok_or_else(|| Failure::new(&what, "the offset exceeds 64 bits"))?;
    let end = offset.saturating_add(size_of::<RawSuperBlock>() as u64);
    if device.bytes.is_some_and(|bytes| end > bytes) {
        return Ok(None);
    }
    let mut raw = Box::new(RawSuperBlock::new_zeroed());
    let mut filled = 0;
    while filled < size_of::<RawSuperBlock>() {
        let rest = raw.as_mut_bytes().get_mut(filled..).unwrap_or_default();
        let at = start.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
        match file.read_at(rest, at) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => {
                let why =
                    format!("the device ends inside the superblock, after {filled} of 4096 bytes");
                return Err(Failure::new(what, why));
            }
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::io(what, &error)),
        }
    }
    Ok(Some(raw))
}

fn document(raw: &RawSuperBlock, device: &str, offset: u64) -> json::Object {
    let set = |flags: u64, names: Vec<(u64, String)>| -> Vec<String> {
        names.into_iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| name).collect()
    };
    let flag_names = super_block::SUPER_FLAGS.map(|(bit, name)| (bit, name.to_owned())).to_vec();
    let (compat_ro, incompat) = (raw.compat_ro_flags.get(), raw.incompat_flags.get());
    let label = raw.label.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut document = json::Object::new()
        .put("device", device)
        .put("offset", offset)
        .put("magic_matches", raw.magic.get() == MAGIC)
        .put("csum_type", raw.csum_type.get())
        .put("csum", Hex(&raw.csum).to_string())
        .put("csum_matches", super_block::checksum_matches(raw))
        .put("bytenr", raw.bytenr.get())
        .put("flags", raw.flags.get())
        .put("flag_names", set(raw.flags.get(), flag_names))
        .uuid("fsid", &raw.fsid)
        .uuid("metadata_uuid", &raw.metadata_uuid)
        .name("label", label);
    for (name, value) in super_block::roots_and_sizes(raw) {
        document = document.put(name.split(' ').next().unwrap_or(name), value);
    }
    document = document
        .put("compat_flags", raw.compat_flags.get())
        .put("compat_ro_flags", compat_ro)
        .put("compat_ro_names", set(compat_ro, super_block::feature_names(&feature::COMPAT_RO)))
        .put("incompat_flags", incompat)
        .put("incompat_names", set(incompat, super_block::feature_names(&feature::INCOMPAT)))
        .put("cache_generation", raw.cache_generation.get())
        .put("uuid_tree_generation", raw.uuid_tree_generation.get());
    let mut item =
        json::Object::new().uuid("uuid", &raw.dev_item.uuid).uuid("fsid", &raw.dev_item.fsid);
    for (name, value) in super_block::device_fields(raw) {
        item = item.put(name.trim_start_matches("dev_item."), value);
    }
    document.put("dev_item", item)
}
