//! One file per command: `commands/COMMAND/SUBCOMMAND`. A command calls the library and prints the
//! results; all computation is in the library.

mod cat;
mod check;
mod chmod;
mod chown;
mod completions;
mod cp;
mod ctl;
mod dedupe;
mod export;
pub(crate) mod files;
mod filesystem;
mod find;
mod getfattr;
mod glob;
mod import;
mod inspect;
mod lab;
mod ln;
mod ls;
mod man;
mod mkdir;
mod mkfs;
pub(crate) mod mount;
pub(crate) mod mounted;
mod mv;
mod new_entry;
mod partitions;
mod per_path;
mod progress;
mod property;
mod qgroup;
mod quota;
mod receive;
mod rm;
mod send;
mod setfattr;
mod signal_thread;
mod stat;
mod stats;
mod subvolume;
mod touch;
mod transaction;
mod trim;
mod truncate;
mod umount;
mod verity;
mod walk;
mod write;
mod xattr_value;

use crate::args::{Cli, Command, InspectCommand, PropertyCommand};
use crate::failure::Outcome;
use crate::output::Output;

/// Runs the command given on the command line.
pub(crate) fn run(cli: &Cli, out: &mut Output) -> Outcome {
    let global = &cli.global;
    match &cli.command {
        Command::Ls(args) => ls::run(global, args, out),
        Command::Cat(args) => cat::run(global, args, out),
        Command::Stat(args) => stat::run(global, args, out),
        Command::Find(args) => find::run(global, args, out),
        Command::Export(args) => export::run(global, args, out),
        Command::Import(args) => import::run(global, args, out),
        Command::Write(args) => write::run(global, args, out),
        Command::Mkdir(args) => mkdir::run(global, args, out),
        Command::Rm(args) => rm::run(global, args, out),
        Command::Cp(args) => cp::run(global, args, out),
        Command::Mv(args) => mv::run(global, args, out),
        Command::Ln(args) => ln::run(global, args, out),
        Command::Chmod(args) => chmod::run(global, args, out),
        Command::Chown(args) => chown::run(global, args, out),
        Command::Touch(args) => touch::run(global, args, out),
        Command::Truncate(args) => truncate::run(global, args, out),
        Command::Setfattr(args) => setfattr::run(global, args, out),
        Command::Getfattr(args) => getfattr::run(global, args, out),
        Command::Trim(args) => trim::run(global, args, out),
        Command::Dedupe(args) => dedupe::run(global, args, out),
        Command::Subvolume(command) => subvolume::run(global, command, out),
        Command::Receive(args) => receive::run(global, args, out),
        Command::Send(args) => send::run(global, args, out),
        Command::Property(PropertyCommand::Get(args)) => property::get(global, args, out),
        Command::Property(PropertyCommand::Set(args)) => property::set(global, args, out),
        Command::Verity(command) => verity::run(global, command, out),
        Command::Quota(command) => quota::run(global, command, out),
        Command::Qgroup(command) => qgroup::run(global, command, out),
        Command::Filesystem(command) => filesystem::run(global, command, out),
        Command::Inspect(InspectCommand::DumpSuper(args)) => {
            inspect::dump_super::run(global, args, out)
        }
        Command::Inspect(InspectCommand::DumpTree(args)) => {
            inspect::dump_tree::run(global, args, out)
        }
        Command::Inspect(InspectCommand::TreeStats(args)) => {
            inspect::tree_stats::run(global, args, out)
        }
        Command::Inspect(InspectCommand::InodeResolve(args)) => {
            inspect::inode_resolve::run(global, args, out)
        }
        Command::Inspect(InspectCommand::LogicalResolve(args)) => {
            inspect::logical_resolve::run(global, args, out)
        }
        Command::Inspect(InspectCommand::Rootid(args)) => inspect::rootid::run(global, args, out),
        Command::Mkfs(args) => mkfs::run(global, args, out),
        Command::Partitions(args) => partitions::run(global, args, out),
        Command::Check(args) => Ok(check::run(global, args, out)),
        Command::Mount(args) => mount::run(global, args, out),
        Command::Umount(args) => umount::run(global, args, out),
        Command::Stats(args) => stats::run(global, args, out),
        Command::Ctl(args) => ctl::run(global, args, out),
        Command::Lab(args) => lab::run(args),
        Command::Top(args) => lab::top(args),
        Command::Completions(args) => Ok(completions::run(args, out)),
        Command::Man(args) => man::run(args),
    }
}
