//! Commands that show, create and delete subvolumes and snapshots.

pub(crate) mod create;
pub(crate) mod default;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod show;
pub(crate) mod snapshot;
pub(crate) mod sync;

use crate::args::{GlobalArgs, SubvolumeCommand};
use crate::failure::Outcome;
use crate::output::Output;

pub(crate) fn run(global: &GlobalArgs, command: &SubvolumeCommand, out: &mut Output) -> Outcome {
    match command {
        SubvolumeCommand::Create(args) => create::run(global, args, out),
        SubvolumeCommand::Snapshot(args) => snapshot::run(global, args, out),
        SubvolumeCommand::Delete(args) => delete::run(global, args, out),
        SubvolumeCommand::Sync(args) => sync::run(global, args, out),
        SubvolumeCommand::List(args) => list::run(global, args, out),
        SubvolumeCommand::Show(args) => show::run(global, args, out),
        SubvolumeCommand::GetDefault(args) => default::get(global, args, out),
        SubvolumeCommand::SetDefault(args) => default::set(global, args, out),
    }
}
