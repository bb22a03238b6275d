//! `filesystem label`: gets or sets the label of a volume.
//!
//! Any user may read the label of a mounted volume, by the call that the kernel's btrfs and a mount
//! of this project serve.

use std::os::fd::AsFd;

use butternut_sys::{subvolume_calls, volume_calls};

use super::super::transaction::Transaction;
use crate::args::{GlobalArgs, LabelArgs};
use crate::commands::mounted::directory::MountedDirectory;
use crate::control::Request;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json, text};
use crate::volume::OpenVolume;

const COMMAND: &str = "filesystem label";

pub(crate) fn run(global: &GlobalArgs, args: &LabelArgs, out: &mut Output) -> Outcome {
    let mounted = MountedDirectory::open(&args.volume.volume)?;
    let Some(label) = &args.label else {
        let (volume, label) = if let Some(mounted) = &mounted {
            (mounted.shown(), of_mount(mounted)?)
        } else {
            let opened = OpenVolume::from_arg(global, &args.volume)?;
            (opened.arg.typed.clone(), opened.filesystem.super_block().label().to_vec())
        };
        if global.json {
            json::document(out, Object::new().put("volume", volume).name("label", &label))?;
        } else {
            let shown = out.display_name(&label);
            out.line(&shown)?;
        }
        return Ok(Completion::Success);
    };
    let label = text::bytes(label);
    if let Some(mounted) = mounted {
        return set(global, &mounted, &label, out);
    }
    let transaction = Transaction::open(global, &args.volume)?;
    transaction.filesystem().set_label(&label).map_err(|error| transaction.failure(&error))?;
    transaction.finish(global, out, |object| object.name("label", &label))
}

fn of_mount(mounted: &MountedDirectory<'_>) -> Result<Vec<u8>, Failure> {
    let read = mounted.reopen().and_then(|dir| {
        // Other filesystems have labels, too.
        let is_volume = subvolume_calls::info(dir.as_fd());
        let label = is_volume.and_then(|_| volume_calls::label(dir.as_fd()));
        label.map_err(|error| mounted.failed(&error))
    });
    // Root may not enter the mount of another user.
    read.or_else(|failure| mounted.report(COMMAND).map(|report| report.label).map_err(|_| failure))
}

fn set(
    global: &GlobalArgs,
    mounted: &MountedDirectory<'_>,
    label: &[u8],
    out: &mut Output,
) -> Outcome {
    if mounted.is_kernels() {
        let set = volume_calls::set_label(mounted.reopen()?.as_fd(), label);
        set.map_err(|error| mounted.failed(&error))?;
    } else {
        mounted.require_writable()?;
        let () = mounted.request(COMMAND, &Request::Label { label: label.to_vec() })?;
    }
    mounted.finish(global, out, |object| object.name("label", label))
}
