//! The `butternut` command: reads the command line, runs one command, says how it went.
//!
//! Under the names `mount.fuse.butternut` and `umount.fuse.butternut` it is what mount(8) and
//! umount(8) call for that type of filesystem.

mod commands;
mod dump;
mod failure;
mod flags;
mod options;
mod output;
mod volume_arg;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use failure::{Done, Failure};
use flags::LowArgs;
use output::{Output, say};

/// The status of a wrong command line; `check` has that of fsck(8).
const USAGE: u8 = 2;
const USAGE_OF_CHECK: u8 = 16;

fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if let Some(name) = words.first().and_then(|word| Path::new(word).file_name()) {
        match name.to_str() {
            Some("mount.fuse.butternut") => words = commands::mount_helper::mount_words(&words),
            Some("umount.fuse.butternut") => words = commands::mount_helper::umount_words(&words),
            _ => {}
        }
    }
    let status =
        if noun(&words).is_some_and(|noun| noun == "check") { USAGE_OF_CHECK } else { USAGE };
    let low = match LowArgs::try_parse_from(with_parent_uuid_spelled(words)) {
        Ok(low) => low,
        Err(error) => return usage(&error, status),
    };
    let mut out = Output::new();
    let outcome = commands::run(&low, &mut out).and_then(|done| {
        out.flush()?;
        Ok(done)
    });
    match outcome {
        Ok(Done::Well) | Err(Failure::Closed) => ExitCode::SUCCESS,
        Ok(Done::WithFailures) => ExitCode::FAILURE,
        Ok(Done::Status(status)) => ExitCode::from(status),
        Err(failure) => {
            // What was printed before the failure is still the user's.
            out.flush().unwrap_or_default();
            say(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Help and version go to stdout; a wrong command line is said as every other failure is.
fn usage(error: &clap::Error, status: u8) -> ExitCode {
    if !error.use_stderr() {
        return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let text = error.to_string();
    say(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    ExitCode::from(status)
}

/// The command, as typed.
fn noun(words: &[OsString]) -> Option<&OsString> {
    words.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"))
}

/// In `subvolume list`, `-q` is the parent UUID, as in btrfs-progs, not `--quiet`.
fn with_parent_uuid_spelled(mut words: Vec<OsString>) -> Vec<OsString> {
    let is = |word: &OsString, names: &[&str]| names.iter().any(|name| word == name);
    let mut nouns = words
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, word)| !word.as_encoded_bytes().starts_with(b"-"));
    let noun = nouns.next().map(|(_, word)| is(word, &["subvolume", "sub"]));
    let verb = nouns.next().filter(|(_, word)| is(word, &["list"])).map(|(at, _)| at);
    if let (Some(true), Some(verb)) = (noun, verb) {
        for word in &mut words[verb + 1..] {
            let Some(text) = word.to_str() else { continue };
            let letters = text.strip_prefix('-').unwrap_or_default();
            if !letters.is_empty() && letters.chars().all(char::is_alphabetic) {
                *word = text.replace('q', "Q").into();
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flag_table_holds_together() {
        LowArgs::command().debug_assert();
    }

    #[test]
    fn q_is_the_parent_uuid_in_subvolume_list_alone() {
        let check = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let words = with_parent_uuid_spelled(words);
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            check("butternut -q subvolume list -aqs d"),
            "butternut -q subvolume list -aQs d"
        );
        assert_eq!(check("butternut sub list --quiet q"), "butternut sub list --quiet q");
        assert_eq!(check("butternut ls -q d"), "butternut ls -q d");
    }
}
