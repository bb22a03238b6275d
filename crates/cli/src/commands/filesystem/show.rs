//! `filesystem show`: shows label, UUID and devices of a volume.

use std::io::Write;

use butternut::DeviceInfo;
use serde_json::Value;

use super::groups::units;
use crate::args::{GlobalArgs, UsageArgs};
use crate::commands::mounted::directory::MountedDirectory;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::size::pretty;
use crate::output::{Output, json, text};
use crate::volume::OpenVolume;

const COMMAND: &str = "filesystem show";

/// What is shown of a volume.
struct Shown {
    label: Vec<u8>,
    uuid: [u8; 16],
    used_bytes: u64,
    devices: Vec<DeviceInfo>,
}

impl Shown {
    /// Reads it; of a volume that is not mounted, from the superblock and the chunks only, so that
    /// a damaged volume is shown.
    fn read(global: &GlobalArgs, args: &UsageArgs) -> Result<Self, Failure> {
        if let Some(mounted) = MountedDirectory::open_only(&args.volume.volume)? {
            let mut report = mounted.report(COMMAND)?;
            let (used_bytes, uuid) = (report.used_bytes(), report.uuid);
            let label = std::mem::take(&mut report.label);
            return Ok(Self { label, uuid, used_bytes, devices: report.into_usage().devices });
        }
        let opened = OpenVolume::from_args(global, &args.volume)?;
        let super_block = opened.filesystem.super_block();
        Ok(Self {
            label: super_block.label().to_vec(),
            uuid: super_block.fsid(),
            used_bytes: super_block.raw().bytes_used.get(),
            devices: opened.filesystem.devices(),
        })
    }
}

pub(crate) fn run(global: &GlobalArgs, args: &UsageArgs, out: &mut Output) -> Outcome {
    let Shown { label, uuid, used_bytes: used, devices } = Shown::read(global, args)?;
    if global.json {
        let object = json::Object::new()
            .name("label", &label)
            .uuid("uuid", &uuid)
            .put("total_devices", devices.len())
            .put("used_bytes", used)
            .put("devices", devices.iter().map(as_json).collect::<Vec<Value>>());
        json::document(out, object)?;
        return Ok(Completion::Success);
    }
    let units = units(&args.units);
    let label = match label.as_slice() {
        b"" => "none".to_owned(),
        label => format!("'{}'", text::escaped(label)),
    };
    writeln!(out, "Label: {label}  uuid: {}", text::uuid(&uuid))?;
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
