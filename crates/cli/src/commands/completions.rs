//! `completions`: prints a shell completion script, generated from the clap definition, with the
//! values of options that the program parses itself.
//!
//! 1. A shell offers the values; it refuses no other, and neither does the program, which also
//!    accepts other spellings, lists and levels.
//! 2. Values come from the lists by which the program parses where such a list exists. A test
//!    offers every other value to the program.

use butternut::Tunables;
use butternut_mkfs::Features;
use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};

use crate::args::{Cli, CompletionsArgs};
use crate::failure::Completion;
use crate::output::Output;

/// Options after `mount -o`, without the tunables. Where one has a value of the user's, it ends
/// with the equals sign.
const MOUNT_OPTIONS: [&str; 37] = [
    "ro",
    "rw",
    "commit=",
    "sync",
    "async",
    "subvol=",
    "subvolid=",
    "compress",
    "compress=zlib",
    "compress=lzo",
    "compress=zstd",
    "compress=no",
    "compress-force=zlib",
    "compress-force=lzo",
    "compress-force=zstd",
    "degraded",
    "allow_other",
    "default_permissions",
    "user_subvol_rm_allowed",
    "offset=",
    "cache=",
    "page_cache=",
    "pending=",
    "threads=",
    "all_wait",
    "blkdev",
    "fsname=",
    "uncached",
    "writeback",
    "parallel_direct",
    "dev",
    "nodev",
    "suid",
    "nosuid",
    "noexec",
    "nologreplay",
    "remount",
];

/// What may follow an argument of a command.
struct Offer {
    /// The command and its subcommand.
    command: &'static [&'static str],
    argument: &'static str,
    values: Vec<String>,
}

pub(crate) fn run(args: &CompletionsArgs, out: &mut Output) -> Completion {
    let mut command = Cli::command();
    for values in values() {
        command = with_values(command, values.command, values.argument, values.values);
    }
    clap_complete::generate(args.shell, &mut command, "butternut", out);
    Completion::Success
}

fn with_values(
    command: Command,
    path: &'static [&'static str],
    argument: &'static str,
    values: Vec<String>,
) -> Command {
    match path {
        [] => command.mut_arg(argument, |argument| {
            argument.value_parser(PossibleValuesParser::new(values)).ignore_case(true)
        }),
        [name, rest @ ..] => {
            command.mut_subcommand(name, |command| with_values(command, rest, argument, values))
        }
    }
}

fn values() -> Vec<Offer> {
    let of = |command, argument, values: &[&str]| Offer {
        command,
        argument,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let features = Features::ALL
        .iter()
        .flat_map(|feature| [feature.name.to_owned(), format!("^{}", feature.name)]);
    let tunables: Vec<String> = Tunables::default()
        .named()
        .iter()
        .flat_map(|row| row.allowed.iter().map(|value| format!("{}={value}", row.key)))
        .collect();
    let options = MOUNT_OPTIONS.map(str::to_owned).into_iter();
    vec![
        of(&["mkfs"], "csum", &["crc32c", "xxhash", "sha256", "blake2"]),
        of(&["mkfs"], "data", &["single", "dup"]),
        of(&["mkfs"], "metadata", &["single", "dup"]),
        of(&["mkfs"], "nodesize", &["4K", "8K", "16K", "32K", "64K"]),
        Offer {
            command: &["mkfs"],
            argument: "features",
            values: features.chain(["list-all".to_owned()]).collect(),
        },
        Offer {
            command: &["mount"],
            argument: "options",
            values: options.chain(tunables.iter().cloned()).collect(),
        },
        Offer { command: &["ctl"], argument: "tunable", values: tunables },
        of(&["filesystem", "defragment"], "compress", &["zlib", "lzo", "zstd"]),
        of(&["verity", "enable"], "block_size", &["1024", "2048", "4096"]),
        of(&["inspect", "dump-super"], "copy", &["0", "1", "2"]),
        of(
            &["inspect", "dump-tree"],
            "tree",
            &["root", "chunk", "extent", "fs", "dev", "csum", "uuid", "quota", "free-space"],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::mount::options::ParsedOptions;
    use crate::dump::tree::tree_by_name;

    #[test]
    fn the_program_accepts_the_options_and_trees_that_are_offered() {
        for option in &values().iter().find(|it| it.argument == "options").unwrap().values {
            let value = if option.ends_with('=') { "1" } else { "" };
            ParsedOptions::of(&[format!("{option}{value}").into()]).unwrap();
        }
        for tree in &values().iter().find(|it| it.argument == "tree").unwrap().values {
            assert!(tree_by_name(tree).is_some(), "{tree}");
        }
    }

    #[test]
    fn every_argument_with_values_exists() {
        for Offer { command, argument, values } in values() {
            assert!(!values.is_empty(), "{command:?} {argument}");
            // Panics if there is no such command or argument.
            with_values(Cli::command(), command, argument, values).build();
        }
    }
}
