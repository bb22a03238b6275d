//! What btrfs-progs accepts, and this program does not: options and commands, each with the reason
//! or with what does its work.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// A command, words that btrfs-progs accepts behind it, and what to say about them.
type Row = (&'static str, &'static [&'static str], &'static str);

const ROWS: [Row; 23] = [
    ("subvolume create", &["-p", "--parents"], "`butternut mkdir -p` makes the directories above"),
    ("subvolume delete", &["--dry-run"], "`butternut subvolume list -o` shows what is inside"),
    ("subvolume list", &["-G", "-C"], "--sort=gen and --sort=ogen sort by generations"),
    ("subvolume show", &["-r", "--rootid"], "name the subvolume by its id: VOLUME@ID"),
    ("subvolume show", &["-u", "--uuid"], "`butternut subvolume list -u` shows the ids of all"),
    ("subvolume", &["find-new"], "`butternut find --mtime` finds files by their time"),
    ("subvolume sync", &["-s"], "it waits for the process of the mount, which needs no interval"),
    ("send", &["-e"], "each stream has its end command; `receive` reads several in a row"),
    ("receive", &["-m"], "the volume is named instead, or any directory of a mount"),
    ("receive", &["-E", "--max-errors"], "a receive ends at the first error"),
    ("filesystem defragment", &["-L", "--level"], "the level follows: --compress=zstd:9"),
    ("filesystem defragment", &["--step"], "files are written in steps without it"),
    ("filesystem defragment", &["--nocomp"], "without --compress, nothing is newly compressed"),
    ("qgroup", &["clear-stale"], "the next commit removes the groups of deleted subvolumes"),
    ("qgroup remove", &["--rescan", "--no-rescan"], "numbers stay exact: no rescan is needed"),
    ("qgroup show", &["--format"], "--json prints JSON"),
    ("quota rescan", &["-s", "--status"], "`butternut quota status` shows it"),
    ("quota rescan", &["-W", "--wait-norescan"], "no rescan runs in the background"),
    ("property", &["list"], "`butternut property get` prints all: the only property is ro"),
    ("property get", &["-t"], "only subvolumes have properties, so leave it out"),
    ("property set", &["-t"], "only subvolumes have properties, so leave it out"),
    ("cp", &["-r", "-R", "-a", "--recursive", "--archive"], CP),
    ("inspect", &["subvolid-resolve"], "`butternut subvolume list` shows the paths of ids"),
];

const CP: &str = "a directory is copied with `butternut export` and `butternut import`; all of a \
    subvolume, with `butternut subvolume snapshot`";

const SEVERAL: &str =
    "send each subvolume by a command of its own; `receive` reads several streams in a row";

/// Returns what to say about a usage error whose cause is a word of btrfs-progs. `command` has the
/// names of the command and its subcommand, as far as they are typed.
pub(crate) fn hint(command: &str, error: &clap::Error) -> Option<&'static str> {
    let contexts = [
        (ErrorKind::UnknownArgument, ContextKind::InvalidArg),
        (ErrorKind::InvalidSubcommand, ContextKind::InvalidSubcommand),
    ];
    let (_, context) = contexts.into_iter().find(|(kind, _)| *kind == error.kind())?;
    let Some(ContextValue::String(word)) = error.get(context) else { return None };
    if command.starts_with("send ") && !word.starts_with('-') {
        return Some(SEVERAL);
    }
    let word = word.split('=').next().unwrap_or(word);
    let is_it = |row: &&Row| {
        let rest = command.strip_prefix(row.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')) && row.1.contains(&word)
    };
    ROWS.iter().find(is_it).map(|(_, _, hint)| *hint)
}

/// Removes the advice to pass an unknown option as a value, which is not what was meant.
pub(crate) fn without_tip(text: &str) -> String {
    let is_tip = |part: &&str| !part.starts_with("  tip: to pass '");
    text.split("\n\n").filter(is_tip).collect::<Vec<_>>().join("\n\n")
}
