//! The project's terms: words that sources and documents do not use, each with its replacement.
//!
//! Laws:
//!
//! 1. Threads, callers and files are not people: no personal pronoun refers to them. Users are:
//!    "the user who ..." may stand.
//! 2. A retired word is refused in identifiers and in prose; the field's term is in the message.
//! 3. Quoted words are data and are not looked at, and neither is the user `nobody` of a command.
//!
//! The terms themselves are in docs/glossary.md.

use super::finding::{Finding, Rule};
use super::tree::{Source, Tree};

/// The file that names the refused words.
const HERE: &str = "xtask/src/tidy/language.rs";

/// Words for people, in prose and in identifiers (law 1).
const PEOPLE: &[&str] = &[
    "who",
    "whoever",
    "whom",
    "he",
    "his",
    "him",
    "himself",
    "somebody",
    "someone",
    "nobody",
    "everybody",
    "everyone",
    "anybody",
    "anyone",
];

/// After these, "who" is a person (law 1).
const USERS: &[&str] = &["user", "users"];

/// After these, "nobody" is the name of a user (law 3).
const NAMES_USER: &[&str] = &["chown", "reuid", "u"];

/// Words next to each other, as prose or as parts of an identifier, and the field's term (law 2).
const RETIRED: &[(&str, &str)] = &[
    ("bring down", "write back"),
    ("brings down", "writes back"),
    ("bringing down", "writing back"),
    ("brought down", "written back"),
    ("goes down", "is written back"),
    ("go down", "are written back"),
    ("went down", "was written back"),
    ("on its way", "under writeback, or in flight"),
    ("on their way", "under writeback, or in flight"),
    ("set aside", "preallocate, or reserve"),
    ("sets aside", "preallocates, or reserves"),
    ("let go", "release, unpin or drop"),
    ("lets go", "releases, unpins or drops"),
    ("gives back", "frees, or returns"),
    ("given back", "freed, or returned"),
    ("unasked", "in the background"),
    ("manieth", "n-th"),
    ("purse", "reservation level"),
    ("patience", "wait mode, or timeout"),
    ("upkeep", "admin"),
    ("refusals", "ENOSPC injector"),
    ("unpack", "decompress"),
    ("unpacked", "decompressed"),
    ("packer", "compressor"),
    ("debts", "backlog"),
    ("owes", "is outstanding"),
];

/// Parts of identifiers only: in prose these are ordinary words (law 2).
const RETIRED_NAMES: &[(&str, &str)] = &[
    ("at once", "nowait"),
    ("give back", "release, or return"),
    ("direct room", "allocation run"),
    ("find room", "reserve or flush"),
    ("live tree", "transaction tree"),
    ("delayed sums", "pending checksums"),
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources.iter().filter(|source| source.path != HERE).flat_map(refused).collect()
}

fn refused(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (line, text) in source.lines() {
        let words = words(text);
        let mut add = |what: &str, cure: String| {
            let (path, what) = (source.path.clone(), format!("{what:?}"));
            found.push(Finding { path, line, rule: Rule::Language, what, cure });
        };
        for (at, word) in words.iter().enumerate() {
            let before = at.checked_sub(1).map_or("", |before| words[before].text.as_str());
            let is_person = USERS.contains(&before) || NAMES_USER.contains(&before);
            if PEOPLE.contains(&word.text.as_str()) && !is_person {
                let cure = "name the thread, the caller, the file or the request".to_owned();
                add(&word.text, cure);
            }
        }
        for (retired, term) in RETIRED {
            if stands_in(&words, retired, |_| true) {
                add(retired, format!("say: {term} (docs/glossary.md)"));
            }
        }
        for (retired, term) in RETIRED_NAMES {
            if stands_in(&words, retired, |word| word.is_in_name) {
                add(retired, format!("name it: {term} (docs/glossary.md)"));
            }
        }
    }
    found
}

/// A word of a line, in lower case.
struct Word {
    text: String,
    /// Whether it is a part of an identifier of several words.
    is_in_name: bool,
    /// The number of the identifier, or word of prose, that it is a part of.
    run: usize,
}

/// Whether the words of `phrase` stand next to each other. Those of an identifier are all in it.
fn stands_in(words: &[Word], phrase: &str, counts: impl Fn(&Word) -> bool) -> bool {
    let parts: Vec<&str> = phrase.split(' ').collect();
    words.windows(parts.len()).any(|window| {
        let is_same_run = window.iter().all(|word| word.run == window[0].run);
        let is_prose = window.iter().all(|word| !word.is_in_name);
        let is_it = window.iter().zip(&parts).all(|(word, part)| word.text == *part);
        is_it && (is_same_run || is_prose) && window.iter().all(&counts)
    })
}

/// The words of a line: identifiers are split at underscores and capitals; quoted words of one
/// identifier are left out (law 3).
fn words(line: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = line;
    let mut before = ' ';
    let mut run = 0;
    while let Some(start) = rest.find(is_name) {
        before = rest[..start].chars().next_back().unwrap_or(before);
        let end = rest[start..].find(|c| !is_name(c)).map_or(rest.len(), |end| start + end);
        let name = &rest[start..end];
        let is_quoted = before == '"' && rest[end..].starts_with('"');
        if !is_quoted {
            let parts = split(name);
            let is_in_name = parts.len() > 1;
            words.extend(parts.into_iter().map(|text| Word { text, is_in_name, run }));
        }
        run += 1;
        before = name.chars().next_back().unwrap_or(' ');
        rest = &rest[end..];
    }
    words
}

/// The parts of an identifier, in lower case: `AtOnce` and `at_once` are both `at`, `once`.
fn split(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        let is_upper = c.is_ascii_uppercase();
        if c == '_' || (is_upper && was_lower) {
            parts.push(String::new());
        }
        if c != '_'
            && let Some(part) = parts.last_mut()
        {
            part.push(c.to_ascii_lowercase());
        }
        was_lower = c.is_ascii_lowercase();
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        check(&Tree::of(&[("a.md", text)])).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn people_are_refused_in_prose_and_in_names() {
        assert_eq!(found("Whoever waits, he waits."), ["\"whoever\"", "\"he\""]);
        assert_eq!(found("fn who_waits() {}"), ["\"who\""]);
        assert_eq!(found("The thread that waits; \"nobody\"; the whole; WHO_LE."), ["\"who\""]);
        assert_eq!(
            found("the users who may; chown nobody a; --reuid=nobody"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn retired_words_are_refused_with_their_terms() {
        assert_eq!(found("A page goes down."), ["\"goes down\""]);
        assert_eq!(found("fn bring_down() and BringDown"), ["\"bring down\""]);
        assert_eq!(found("all of it at once; Patience::Any"), ["\"patience\""]);
        assert_eq!(found("read_at_once(); ReadAtOnce"), ["\"at once\""]);
        assert_eq!(found("he_goes; down"), ["\"he\""]);
    }
}
