//! The `butternut` command: reads the command line, runs one command, says how it went.
//!
//! Under the names `mount.fuse.butternut` and `umount.fuse.butternut` it is what mount(8) and
//! umount(8) call for that type of filesystem.

mod commands;
mod control;
mod dump;
mod failure;
mod flags;
mod options;
mod output;
mod volume_arg;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use failure::{Done, Failure};
use flags::LowArgs;
use output::{Output, say, say_lines};

/// The status of a wrong command line; `check` has that of fsck(8).
const USAGE: u8 = 2;
const USAGE_OF_CHECK: u8 = 16;

fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if let Some(name) = words.first().and_then(|word| Path::new(word).file_name()) {
        match name.to_str() {
            Some("mount.fuse.butternut") => {
                let is_root = rustix::process::geteuid().is_root();
                words = commands::mount_helper::mount_words(&words, is_root);
            }
            Some("umount.fuse.butternut") => words = commands::mount_helper::umount_words(&words),
            _ => {}
        }
    }
    let status =
        if noun(&words).is_some_and(|noun| noun == "check") { USAGE_OF_CHECK } else { USAGE };
    let low = match LowArgs::try_parse_from(with_letters_spelled(words)) {
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
    say_lines(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    ExitCode::from(status)
}

/// The command, as typed.
fn noun(words: &[OsString]) -> Option<&OsString> {
    words.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"))
}

/// Two letters that every command has mean something else where the tools that people know have
/// them so: `-q` is the parent UUID in `subvolume list`, `-v` the value in `setfattr`.
fn with_letters_spelled(mut words: Vec<OsString>) -> Vec<OsString> {
    let is = |word: &OsString, names: &[&str]| names.iter().any(|name| word == name);
    let mut nouns = words
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, word)| !word.as_encoded_bytes().starts_with(b"-"));
    let noun = nouns.next();
    let verb = nouns.next().filter(|(_, word)| is(word, &["list"])).map(|(at, _)| at);
    let Some((at, word)) = noun else { return words };
    if is(word, &["setfattr"]) {
        words[at + 1..].iter_mut().for_each(spell_value);
    } else if let (true, Some(verb)) = (is(word, &["subvolume", "sub"]), verb) {
        words[verb + 1..].iter_mut().for_each(spell_parent_uuid);
    }
    words
}

fn spell_parent_uuid(word: &mut OsString) {
    let Some(text) = word.to_str() else { return };
    let letters = text.strip_prefix('-').unwrap_or_default();
    if !letters.is_empty() && letters.chars().all(char::is_alphabetic) {
        *word = text.replace('q', "Q").into();
    }
}

fn spell_value(word: &mut OsString) {
    let Some(value) = word.as_encoded_bytes().strip_prefix(b"-v") else { return };
    let mut spelled = OsString::from(if value.is_empty() { "--value" } else { "--value=" });
    spelled.push(OsStr::from_bytes(value));
    *word = spelled;
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
    fn letters_mean_what_they_mean_in_the_tools_that_people_know() {
        let check = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let words = with_letters_spelled(words);
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            check("butternut -q subvolume list -aqs d"),
            "butternut -q subvolume list -aQs d"
        );
        assert_eq!(check("butternut sub list --quiet q"), "butternut sub list --quiet q");
        assert_eq!(check("butternut ls -q d"), "butternut ls -q d");
        let value = "butternut -v setfattr -n user.a --value --verbose d f";
        assert_eq!(check("butternut -v setfattr -n user.a -v --verbose d f"), value);
        assert_eq!(check("butternut setfattr -v0x00 d"), "butternut setfattr --value=0x00 d");
        assert_eq!(check("butternut getfattr -v d"), "butternut getfattr -v d");
    }
}
