//! Commands for a volume as a whole: label, devices, space, and the extents of files.

pub(crate) mod defragment;
pub(crate) mod df;
pub(crate) mod du;
pub(super) mod groups;
pub(crate) mod label;
pub(crate) mod mkswapfile;
pub(crate) mod resize;
pub(crate) mod show;
pub(crate) mod sync;
pub(crate) mod usage;

use crate::args::{FilesystemCommand, GlobalArgs};
use crate::failure::Outcome;
use crate::output::Output;

pub(crate) fn run(global: &GlobalArgs, command: &FilesystemCommand, out: &mut Output) -> Outcome {
    match command {
        FilesystemCommand::Show(args) => show::run(global, args, out),
        FilesystemCommand::Df(args) => df::run(global, args, out),
        FilesystemCommand::Usage(args) => usage::run(global, args, out),
        FilesystemCommand::Du(args) => du::run(global, args, out),
        FilesystemCommand::Label(args) => label::run(global, args, out),
        FilesystemCommand::Sync(args) => sync::run(global, args, out),
        FilesystemCommand::Resize(args) => resize::run(global, args, out),
        FilesystemCommand::Mkswapfile(args) => mkswapfile::run(global, args, out),
        FilesystemCommand::Defragment(args) => defragment::run(global, args, out),
    }
}
