//! Rewrites command lines in the forms of other programs into those of this one, before they are
//! parsed.
//!
//! 1. Options that differ from the global ones, because btrfs(8) and setfattr(1) define them: `-q`
//!    is the parent UUID in `subvolume list`, `-v` the value in `setfattr`.
//! 2. The tests of find(1), which have one dash, after `find`.
//! 3. `-cALGO` and `--compress ALGO` of `filesystem defragment`: a word that is an algorithm, and
//!    no file, belongs to the option before it.
//! 4. `help COMMAND`, and commands of btrfs(8) without their noun.
//! 5. Unique beginnings of the groups of commands of btrfs(8), and of the commands in them, as
//!    there: `fi us`, `subv snap`.
//! 6. Nothing behind `--` is changed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::CommandFactory;

use super::Cli;

/// The tests and actions of find(1), their options, and whether a value follows.
const FIND: [(&str, &str, bool); 13] = [
    ("-name", "--name", true),
    ("-iname", "--iname", true),
    ("-path", "--path", true),
    ("-wholename", "--path", true),
    ("-type", "--type", true),
    ("-size", "--size-in-units", true),
    ("-mtime", "--mtime", true),
    ("-maxdepth", "--max-depth", true),
    ("-mindepth", "--min-depth", true),
    ("-xdev", "--one-subvolume", false),
    ("-mount", "--one-subvolume", false),
    ("-print", "--print", false),
    ("-ls", "--ls", false),
];

/// Names of algorithms, also of some that the option refuses.
const ALGORITHMS: [&str; 7] = ["zlib", "lzo", "zstd", "lz4", "gzip", "none", "no"];

/// Commands of `filesystem` that may be typed without it.
const OF_FILESYSTEM: [&str; 5] = ["df", "du", "usage", "resize", "defragment"];

/// Groups of commands of btrfs(8), and their other names.
const GROUPS: [(&str, &[&str]); 6] = [
    ("subvolume", &["sub"]),
    ("filesystem", &["fi"]),
    ("inspect", &["inspect-internal"]),
    ("property", &[]),
    ("quota", &[]),
    ("qgroup", &[]),
];

/// What does the work of other commands of btrfs(8), mount(8) and cp(1).
const ELSEWHERE: [(&str, &str); 15] = [
    ("replace", "the kernel's btrfs can replace a device of this volume"),
    ("fsck", "`butternut check` checks a volume"),
    ("find-new", "`butternut find --mtime` finds files by their time"),
    ("mkswapfile", "`butternut filesystem mkswapfile` makes a swap file"),
    ("restore", "`butternut export VOLUME / DEST` copies all files, also out of a damaged volume"),
    ("scrub", "`butternut check --check-data-csum VOLUME` reads and verifies all data"),
    ("snapshot", "`butternut subvolume snapshot` makes snapshots"),
    ("list", "`butternut ls` lists files, `butternut subvolume list` subvolumes"),
    ("label", "`butternut filesystem label` shows and sets the label"),
    ("show", "`butternut filesystem show` or `butternut subvolume show`"),
    ("sync", "`butternut filesystem sync` commits all changes of a mount"),
    ("unmount", "`butternut umount` unmounts a volume"),
    ("balance", "the kernel's btrfs can balance this volume"),
    ("device", "the kernel's btrfs can add and remove devices of this volume"),
    ("rescue", "`butternut check` shows the damage, `butternut export` copies what is readable"),
];

/// Returns where the first word that is not an option is: the command.
fn command_at(arguments: &[OsString]) -> Option<usize> {
    (1..arguments.len()).find(|at| !arguments[*at].as_bytes().starts_with(b"-"))
}

/// Returns the command name as typed.
pub(crate) fn command_name(arguments: &[OsString]) -> Option<&OsString> {
    command_at(arguments).map(|at| &arguments[at])
}

/// Returns the names of the command and of its subcommand, or whatever is typed in its place.
pub(crate) fn command_path(arguments: &[OsString]) -> String {
    let words = arguments.iter().skip(1).filter(|word| !word.as_bytes().starts_with(b"-"));
    let mut words = words.map(|word| word.to_string_lossy());
    let name = words.next().unwrap_or_default();
    let name = GROUPS.iter().find(|group| group.1.contains(&&*name)).map_or(&*name, |it| it.0);
    format!("{name} {}", words.next().unwrap_or_default())
}

/// Law 5, for the words at `at` and behind it.
fn complete(arguments: &mut [OsString], at: usize) {
    let Some(group) = arguments[at].to_str().and_then(group) else { return };
    arguments[at] = group.into();
    let Some(below) = command_at(&arguments[at..]).map(|next| at + next) else { return };
    let commands = Cli::command();
    let commands = commands.find_subcommand(group).into_iter();
    let names = commands.flat_map(|group| group.get_subcommands().map(clap::Command::get_name));
    let names: Vec<&str> = names.collect();
    if let Some(name) = arguments[below].to_str().and_then(|typed| only(&names, typed)) {
        arguments[below] = name.to_owned().into();
    }
}

/// Returns the group of commands that a word names, or is the beginning of.
fn group(typed: &str) -> Option<&'static str> {
    let found = GROUPS.iter().find(|(name, aliases)| *name == typed || aliases.contains(&typed));
    let is_long = typed.len() >= 2;
    let begun = || {
        GROUPS.iter().filter(|(name, aliases)| {
            let mut names = aliases.iter().chain([name]);
            names.any(|name| is_long && name.starts_with(typed))
        })
    };
    let begun = || if begun().count() == 1 { begun().next() } else { None };
    found.or_else(begun).map(|(name, _)| *name)
}

/// Returns the only name that is the word, or that the word is the beginning of.
fn only<'a>(names: &[&'a str], typed: &str) -> Option<&'a str> {
    let exact = names.iter().find(|name| **name == typed);
    let begun: Vec<_> = names.iter().filter(|name| name.starts_with(typed)).collect();
    let begun = if let [only] = begun.as_slice() { Some(**only) } else { None };
    exact.copied().or(begun)
}

/// Returns what does the work of a command that this program does not have.
pub(crate) fn elsewhere(command: &OsStr) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(name, _)| command == *name).map(|(_, hint)| *hint)
}

/// Rewrites a command line.
pub(crate) fn rewrite(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(mut at) = command_at(&arguments) else { return arguments };
    if arguments[at] == "help" {
        arguments.remove(at);
        arguments.push("--help".into());
        return arguments;
    }
    if OF_FILESYSTEM.iter().any(|name| arguments[at] == *name) {
        arguments.insert(at, "filesystem".into());
    }
    if arguments[at]
        .to_str()
        .is_some_and(|typed| typed.len() > 3 && "defragment".starts_with(typed))
    {
        arguments[at] = "defragment".into();
        arguments.insert(at, "filesystem".into());
    }
    complete(&mut arguments, at);
    let command = arguments[at].clone();
    let is = |word: &OsStr, names: &[&str]| names.iter().any(|name| word == *name);
    let below = command_at(&arguments[at..]).map(|next| at + next);
    let is_below = |name| below.is_some_and(|below| arguments[below] == name);
    let (is_list, is_defragment) = (is_below("list"), is_below("defragment"));
    let rewrite: fn(Vec<OsString>) -> Vec<OsString> = if is(&command, &["setfattr"]) {
        |words| words.into_iter().map(value).collect()
    } else if is(&command, &["find"]) {
        find
    } else if is(&command, &["subvolume"]) && is_list {
        at = below.unwrap_or(at);
        |words| words.into_iter().map(parent_uuid).collect()
    } else if is(&command, &["filesystem"]) && is_defragment {
        at = below.unwrap_or(at);
        defragment
    } else {
        return arguments;
    };
    let mut words = arguments.split_off(at + 1);
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let unchanged = words.split_off(end);
    arguments.extend(rewrite(words));
    arguments.extend(unchanged);
    arguments
}

/// Law 1.
fn parent_uuid(argument: OsString) -> OsString {
    let letters = argument.to_str().and_then(|text| text.strip_prefix('-')).unwrap_or_default();
    if !letters.is_empty() && letters.chars().all(char::is_alphabetic) {
        return format!("-{}", letters.replace('q', "Q")).into();
    }
    argument
}

/// Law 1.
fn value(argument: OsString) -> OsString {
    let Some(value) = argument.as_bytes().strip_prefix(b"-v") else { return argument };
    let mut option = OsString::from(if value.is_empty() { "--value" } else { "--value=" });
    option.push(OsStr::from_bytes(value));
    option
}

/// Law 2.
fn find(words: Vec<OsString>) -> Vec<OsString> {
    let mut rewritten = Vec::with_capacity(words.len());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "-print0" {
            rewritten.push("--null".into());
            continue;
        }
        let Some((_, option, has_value)) = FIND.iter().find(|(name, ..)| word == *name) else {
            rewritten.push(word);
            continue;
        };
        rewritten.push((*option).into());
        if *has_value {
            rewritten.extend(words.next());
        }
    }
    rewritten
}

/// Law 3.
fn defragment(words: Vec<OsString>) -> Vec<OsString> {
    let mut rewritten: Vec<OsString> = Vec::with_capacity(words.len());
    for word in words {
        let text = word.to_str().unwrap_or_default();
        let is_option = rewritten.last().is_some_and(|last| last == "--compress");
        let name = text.split(':').next().unwrap_or_default();
        let is_algorithm = ALGORITHMS.contains(&name) && !Path::new(&word).exists();
        if is_option && is_algorithm {
            rewritten.pop();
            rewritten.push(format!("--compress={text}").into());
        } else if let Some(algorithm) = text.strip_prefix("-c") {
            let separator = if algorithm.is_empty() { "" } else { "=" };
            rewritten.push(format!("--compress{separator}{algorithm}").into());
        } else {
            rewritten.push(word);
        }
    }
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, want: &str) {
        let arguments = line.split(' ').map(OsString::from).collect();
        let shown: Vec<_> =
            rewrite(arguments).into_iter().map(|word| word.into_string().unwrap()).collect();
        assert_eq!(shown.join(" "), want);
    }

    #[test]
    fn short_options_follow_btrfs_and_setfattr() {
        check("butternut -q subvolume list -aqs d", "butternut -q subvolume list -aQs d");
        check("butternut sub list --quiet q", "butternut subvolume list --quiet q");
        check("butternut ls -q d", "butternut ls -q d");
        let value = "butternut -v setfattr -n user.a --value --verbose d f";
        check("butternut -v setfattr -n user.a -v --verbose d f", value);
        check("butternut setfattr -v0x00 d", "butternut setfattr --value=0x00 d");
        check("butternut getfattr -v d", "butternut getfattr -v d");
    }

    #[test]
    fn tests_of_find_have_one_dash() {
        check(
            "butternut find d -name -ls -size +1k -print0 -x -- -name",
            "butternut find d --name -ls --size-in-units +1k --null -x -- -name",
        );
        check("butternut ls d -name", "butternut ls d -name");
        check("butternut find d -name", "butternut find d --name");
        check("butternut find d -ls / -xdev", "butternut find d --ls / --one-subvolume");
    }

    #[test]
    fn an_algorithm_belongs_to_the_option_before_it() {
        check(
            "butternut fi defragment --compress zstd:3 -r f",
            "butternut filesystem defragment --compress=zstd:3 -r f",
        );
        check(
            "butternut defragment -clzo f -c f",
            "butternut filesystem defragment --compress=lzo f --compress f",
        );
        check("butternut defragment --compress f", "butternut filesystem defragment --compress f");
        check("butternut defragment -c lz4 f", "butternut filesystem defragment --compress=lz4 f");
    }

    #[test]
    fn beginnings_of_commands_are_completed() {
        check("butternut -q fi us d", "butternut -q filesystem usage d");
        check("butternut subv snap -r d", "butternut subvolume snapshot -r d");
        check("butternut su l -q d", "butternut subvolume list -Q d");
        check("butternut sub del d", "butternut subvolume delete d");
        check("butternut inspect-internal dump-s d", "butternut inspect dump-super d");
        check("butternut prop g d", "butternut property get d");
        check("butternut defrag -c d", "butternut filesystem defragment --compress d");
        // Several begin so.
        check("butternut sub s d", "butternut subvolume s d");
        check("butternut q s d", "butternut q s d");
    }

    #[test]
    fn help_and_commands_without_their_noun_are_found() {
        check("butternut help", "butternut --help");
        check("butternut help sub list", "butternut sub list --help");
        check("butternut -q df d", "butternut -q filesystem df d");
        check("butternut", "butternut");
        assert!(elsewhere("restore".as_ref()).is_some() && elsewhere("ls".as_ref()).is_none());
    }
}
