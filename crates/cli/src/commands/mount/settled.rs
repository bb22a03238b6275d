//! Options that a volume keeps for as long as it is served.
//!
//! 1. A remount, or a mount of a served volume at a further place, that names such an option with
//!    another value is refused, and the message names the option. One that names the value that the
//!    volume has is not: mount(8) adds the words of fstab to those of its command line.
//! 2. `degraded` asks that the volume be opened although devices are missing. A volume that is
//!    served is open, so the word is never refused. `offset`, `subvol` and `subvolid` say which
//!    volume and which directory is meant; a remount does not look at them, as with kernel btrfs.

use butternut_fuse::Caching;
use serde_json::{Map, Value};

use super::options::Meaning;
use crate::failure::Failure;

/// What is said of an option that is off.
const OFF: &str = "";

/// The options that keep their value, each as the word that gives it.
pub(super) fn settings(meaning: &Meaning) -> Map<String, Value> {
    let on = |is_on: bool, word: &str| if is_on { word.to_owned() } else { OFF.to_owned() };
    let (volume, fuse) = (&meaning.volume, &meaning.fuse);
    let caching = match fuse.caching {
        Caching::WriteBack => "writeback",
        Caching::WriteThrough => "parallel_direct",
        Caching::Nothing => "uncached",
    };
    let compress = volume.compress.as_ref().map_or_else(
        || "compress=no".to_owned(),
        |compress| {
            let force = if compress.is_forced { "-force" } else { "" };
            format!("compress{force}={}", compress.packer)
        },
    );
    let all = [
        (CACHING, caching.to_owned()),
        (COMPRESS, compress),
        ("commit", format!("commit={}", volume.commit_seconds)),
        ("cache", format!("cache={}", volume.node_cache_bytes)),
        ("page_cache", format!("page_cache={}", volume.page_cache_bytes)),
        ("threads", format!("threads={}", meaning.threads.unwrap_or(fuse.threads))),
        ("nologreplay", on(volume.ignore_log, "nologreplay")),
        ("allow_other", on(fuse.allow_other, "allow_other")),
        ("default_permissions", on(fuse.permissions(), "default_permissions")),
        ("all_wait", on(fuse.all_wait, "all_wait")),
    ];
    all.into_iter().map(|(key, word)| (key.to_owned(), Value::String(word))).collect()
}

const CACHING: &str = "caching";
const COMPRESS: &str = "compress";

/// Which setting an option gives, if it is one that is kept.
pub(super) fn setting_of(option: &str) -> Option<&'static str> {
    Some(match option {
        "uncached" | "nouncached" | "writeback" | "nowriteback" | "parallel_direct"
        | "noparallel_direct" => CACHING,
        "compress" | "compress-force" => COMPRESS,
        "commit" => "commit",
        "cache" => "cache",
        "page_cache" => "page_cache",
        "threads" => "threads",
        "nologreplay" | "norecovery" => "nologreplay",
        "allow_other" => "allow_other",
        "default_permissions" => "default_permissions",
        "all_wait" | "noall_wait" => "all_wait",
        _ => return None,
    })
}

/// Refuses what a volume that is served with `served` cannot be changed to (law 1).
pub(super) fn check(meaning: &Meaning, served: &Value) -> Result<(), Failure> {
    let wanted = settings(meaning);
    for (key, word) in &meaning.settled {
        let (want, have) = (wanted.get(*key), &served[*key]);
        if want == Some(have) {
            continue;
        }
        let have = match have.as_str() {
            Some(OFF) => "the volume is mounted without it".to_owned(),
            Some(have) => format!("the volume is mounted with {have}"),
            None => "the process that serves the volume does not tell what it has".to_owned(),
        };
        return Err(Failure::new(format!("option {word}"), have)
            .cure("leave it out, or unmount the volume everywhere and mount it with this option"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(list: &str) -> Meaning {
        Meaning::of(&[list.into()]).unwrap()
    }

    fn check_words(served: &str, words: &str) -> Result<(), String> {
        let served = Value::Object(settings(&meaning(served)));
        check(&meaning(words), &served).map_err(|failure| failure.to_string())
    }

    #[test]
    fn words_that_say_what_is_are_let_through_and_others_refused_by_name() {
        for (served, words) in [
            ("", "rw,noatime,degraded,subvol=x,offset=4096,nosec=off,sync"),
            ("uncached,compress=zstd", "compress=zstd:3,uncached"),
            ("page_cache=32M,threads=3", "uncached,nouncached,threads=3,page_cache=33554432"),
            ("allow_other", "default_permissions,allow_other"),
            ("threads=100", "threads=100,threads=64"),
            ("", "compress=zlib,compress=no,commit=30"),
        ] {
            assert_eq!(check_words(served, words), Ok(()), "{words}");
        }
        let cure = "(leave it out, or unmount the volume everywhere and mount it with this option)";
        for (served, words, why) in [
            ("", "uncached", "option uncached: the volume is mounted with parallel_direct"),
            ("uncached", "writeback", "option writeback: the volume is mounted with uncached"),
            (
                "compress=lzo",
                "compress-force=lzo",
                "option compress-force=lzo: the volume is mounted with compress=lzo",
            ),
            ("", "rw,compress", "option compress: the volume is mounted with compress=no"),
            ("", "commit=5", "option commit=5: the volume is mounted with commit=30"),
            ("", "allow_other", "option allow_other: the volume is mounted without it"),
        ] {
            assert_eq!(check_words(served, words), Err(format!("{why} {cure}")), "{words}");
        }
    }

    #[test]
    fn every_setting_is_given_by_an_option() {
        for (key, _) in &settings(&meaning("")) {
            let words = ["uncached", key.as_str()];
            assert!(words.iter().any(|word| setting_of(word) == Some(key.as_str())), "{key}");
        }
    }
}
