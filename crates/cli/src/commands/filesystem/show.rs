//! `filesystem show`: shows label, UUID and devices of a volume.

use std::io::Write;

use butternut::DeviceInfo;
use serde_json::Value;

use super::groups::units;
use crate::args::{GlobalArgs, UsageArgs};
use crate::failure::{Completion, Outcome};
use crate::output::size::pretty;
use crate::output::{Output, json, text};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &UsageArgs, out: &mut Output) -> Outcome {
    let opened = OpenVolume::from_args(global, &args.volume)?;
    let devices = opened.filesystem.devices();
    let super_block = opened.filesystem.super_block();
    let used = super_block.raw().bytes_used.get();
    if global.json {
        let object = json::Object::new()
            .name("label", super_block.label())
            .uuid("uuid", &super_block.fsid())
            .put("total_devices", devices.len())
            .put("used_bytes", used)
            .put("devices", devices.iter().map(as_json).collect::<Vec<Value>>());
        json::document(out, object)?;
        return Ok(Completion::Success);
    }
    let units = units(&args.units);
    let label = match super_block.label() {
        b"" => "none".to_owned(),
        label => format!("'{}'", text::escaped(label)),
    };
    writeln!(out, "Label: {label}  uuid: {}", text::uuid(&super_block.fsid()))?;
    writeln!(out, "\tTotal devices {} FS bytes used {}", devices.len(), pretty(used, units))?;
    for device in &devices {
        let (total, allocated) =
            (pretty(device.total_bytes, units), pretty(device.allocated_bytes, units));
        let path = device.path.as_deref().unwrap_or("<missing disk>");
        let missing = if device.missing { " MISSING" } else { "" };
        writeln!(
            out,
            "\tdevid {:4} size {total} used {allocated} path {path}{missing}",
            device.id
        )?;
    }
    writeln!(out)?;
    Ok(Completion::Success)
}

fn as_json(device: &DeviceInfo) -> Value {
    json::Object::new()
        .put("id", device.id)
        .uuid("uuid", &device.uuid)
        .put("path", device.path.clone())
        .put("missing", device.missing)
        .put("total_bytes", device.total_bytes)
        .put("allocated_bytes", device.allocated_bytes)
        .put("read_errors", device.read_errors)
        .put("corruption_errors", device.corruption_errors)
        .put("generation_errors", device.generation_errors)
        .into()
}
