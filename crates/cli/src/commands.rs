//! One file per command: `commands/<noun>/<verb>`. A command asks the library and prints; what is
//! computed, the library computes.

mod cat;
mod change;
mod check;
mod chmod;
mod chown;
mod completions;
mod ctl;
mod each;
mod export;
mod filesystem;
mod find;
mod getfattr;
mod import;
mod inspect;
mod ln;
mod ls;
mod man;
mod mkdir;
mod mkfs;
mod mount;
pub(crate) mod mount_helper;
mod mv;
mod progress;
mod rm;
mod setfattr;
mod stat;
mod stats;
mod subvolume;
mod touch;
mod trim;
mod truncate;
mod umount;
mod walk;
mod walk_path;
mod write;
mod xattr_value;

use crate::failure::Outcome;
use crate::flags::{FilesystemVerb, InspectVerb, LowArgs, Noun, SubvolumeVerb};
use crate::output::Output;

/// Runs the command that was typed.
pub(crate) fn run(low: &LowArgs, out: &mut Output) -> Outcome {
    let global = &low.global;
    match &low.noun {
        Noun::Ls(args) => ls::run(global, args, out),
        Noun::Cat(args) => cat::run(global, args, out),
        Noun::Stat(args) => stat::run(global, args, out),
        Noun::Find(args) => find::run(global, args, out),
        Noun::Export(args) => export::run(global, args, out),
        Noun::Import(args) => import::run(global, args, out),
        Noun::Write(args) => write::run(global, args, out),
        Noun::Mkdir(args) => mkdir::run(global, args, out),
        Noun::Rm(args) => rm::run(global, args, out),
        Noun::Mv(args) => mv::run(global, args, out),
        Noun::Ln(args) => ln::run(global, args, out),
        Noun::Chmod(args) => chmod::run(global, args, out),
        Noun::Chown(args) => chown::run(global, args, out),
        Noun::Touch(args) => touch::run(global, args, out),
        Noun::Truncate(args) => truncate::run(global, args, out),
        Noun::Setfattr(args) => setfattr::run(global, args, out),
        Noun::Getfattr(args) => getfattr::run(global, args, out),
        Noun::Trim(args) => trim::run(global, args, out),
        Noun::Subvolume(SubvolumeVerb::List(args)) => subvolume::list::run(global, args, out),
        Noun::Subvolume(SubvolumeVerb::Show(args)) => subvolume::show::run(global, args, out),
        Noun::Filesystem(FilesystemVerb::Show(args)) => filesystem::show::run(global, args, out),
        Noun::Filesystem(FilesystemVerb::Df(args)) => filesystem::df::run(global, args, out),
        Noun::Filesystem(FilesystemVerb::Usage(args)) => filesystem::usage::run(global, args, out),
        Noun::Filesystem(FilesystemVerb::Du(args)) => filesystem::du::run(global, args, out),
        Noun::Filesystem(FilesystemVerb::Label(args)) => filesystem::label::run(global, args, out),
        Noun::Filesystem(FilesystemVerb::Sync(args)) => filesystem::sync::run(global, args, out),
        Noun::Filesystem(FilesystemVerb::Resize(args)) => {
            filesystem::resize::run(global, args, out)
        }
        Noun::Inspect(InspectVerb::DumpSuper(args)) => inspect::dump_super::run(global, args, out),
        Noun::Inspect(InspectVerb::DumpTree(args)) => inspect::dump_tree::run(global, args, out),
        Noun::Inspect(InspectVerb::TreeStats(args)) => inspect::tree_stats::run(global, args, out),
        Noun::Inspect(InspectVerb::InodeResolve(args)) => {
            inspect::inode_resolve::run(global, args, out)
        }
        Noun::Inspect(InspectVerb::LogicalResolve(args)) => {
            inspect::logical_resolve::run(global, args, out)
        }
        Noun::Inspect(InspectVerb::Rootid(args)) => inspect::rootid::run(global, args, out),
        Noun::Mkfs(args) => mkfs::run(global, args, out),
        Noun::Check(args) => check::run(global, args, out),
        Noun::Mount(args) => mount::run(global, args, out),
        Noun::Umount(args) => umount::run(global, args, out),
        Noun::Stats(args) => stats::run(global, args, out),
        Noun::Ctl(args) => ctl::run(global, args, out),
        Noun::Completions(args) => Ok(completions::run(args, out)),
        Noun::Man(args) => man::run(args),
    }
}
