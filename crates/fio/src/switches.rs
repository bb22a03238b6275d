//! The option `switches=KEY=VALUE[,KEY=VALUE...]`: how jobs want their volume open. The switches of
//! the library have the names that it gives them.

use crate::{FioError, Result};
use butternut::{BadSwitch, Compress, MountOptions, Switches};
use std::path::PathBuf;

/// How jobs want their volume.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) options: MountOptions,
    /// Where what was counted goes when the volume is closed.
    pub(crate) stats: Option<PathBuf>,
}

/// Sets one switch; says what it wants where the value is not that.
type Set = fn(&mut Wanted, &str) -> Result<(), &'static str>;

const WANT_BYTES: &str = "bytes, or bytes with K, M or G";

/// What is no switch of the library.
const OPTIONS: [(&str, Set); 7] = [
    ("compress", |wanted, value| compress(&mut wanted.options, value, false)),
    ("compress-force", |wanted, value| compress(&mut wanted.options, value, true)),
    ("commit", |wanted, value| {
        wanted.options.commit_seconds = value.parse().map_err(|_| "seconds, 0 for never")?;
        Ok(())
    }),
    ("cache", |wanted, value| {
        wanted.options.node_cache_bytes = bytes(value).ok_or(WANT_BYTES)?;
        Ok(())
    }),
    ("page_cache", |wanted, value| {
        wanted.options.page_cache_bytes = bytes(value).ok_or(WANT_BYTES)?;
        Ok(())
    }),
    ("threads", |wanted, value| {
        let number = value.parse().map_err(|_| "a number of threads, 0 for one per core")?;
        wanted.options.workers = number;
        Ok(())
    }),
    ("stats", |wanted, value| {
        wanted.stats = Some(PathBuf::from(value));
        Ok(())
    }),
];

/// Applies `text` to what is wanted.
pub(crate) fn apply(text: &str, wanted: &mut Wanted) -> Result<()> {
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let unknown = || FioError::UnknownSwitch { word: word.to_owned(), known: known() };
        let bad = |want: String| FioError::SwitchValue { word: word.to_owned(), want };
        let (key, value) = word.split_once('=').ok_or_else(unknown)?;
        let (key, value) = (key.trim(), value.trim());
        match OPTIONS.iter().find(|(name, _)| *name == key) {
            Some((_, set)) => set(wanted, value).map_err(|want| bad(want.to_owned()))?,
            None => wanted.options.switches.set_named(key, value).map_err(|error| match error {
                BadSwitch::Unknown { .. } => unknown(),
                BadSwitch::Value { allowed, .. } => bad(allowed.join(" or ")),
            })?,
        }
    }
    Ok(())
}

fn known() -> String {
    let switches = Switches::default().named().into_iter().map(|switch| switch.key);
    let options = OPTIONS.iter().map(|(name, _)| *name);
    switches.chain(options).collect::<Vec<_>>().join(", ")
}

fn compress(options: &mut MountOptions, value: &str, is_forced: bool) -> Result<(), &'static str> {
    let packer = value.parse().map_err(|_| "zlib, lzo or zstd, with a level after a colon")?;
    options.compress = Some(Compress { packer, is_forced });
    Ok(())
}

fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut::DirectStability;

    #[test]
    fn switches_are_applied_in_order() {
        let mut wanted = Wanted::default();
        apply("commit=7, cache=16M,commit=8,nosec=off,dio_stable=trust", &mut wanted).unwrap();
        let options = &wanted.options;
        assert_eq!((options.commit_seconds, options.node_cache_bytes), (8, 16 << 20));
        assert!(!options.switches.nosec && options.switches.simple_read);
        assert_eq!(options.switches.direct_stability, DirectStability::Trust);
        apply("compress-force=zstd:3,page_cache=1G,stats=/tmp/a", &mut wanted).unwrap();
        assert!(wanted.options.compress.is_some_and(|compress| compress.is_forced));
        assert_eq!(wanted.options.page_cache_bytes, 1 << 30);
        assert_eq!(wanted.stats, Some(PathBuf::from("/tmp/a")));
    }

    #[test]
    fn what_is_not_known_is_named_beside_what_is() {
        let check = |text: &str| apply(text, &mut Wanted::default()).unwrap_err().to_string();
        assert!(check("no_such=on").contains(r#""no_such=on": want KEY=VALUE with KEY one of"#));
        assert!(check("commit").contains(r#""commit": want KEY=VALUE"#));
        assert_eq!(check("commit=x"), r#"switches: "commit=x": want seconds, 0 for never"#);
        assert!(check("dio_stable=x").ends_with("want bounce or trust or buffered"));
        assert_eq!(check("nosec=maybe"), r#"switches: "nosec=maybe": want on or off"#);
    }

    #[test]
    fn sizes_have_suffixes_and_an_end() {
        for (text, want) in [("4096", Some(4096)), ("64k", Some(65536)), ("2G", Some(2 << 30))] {
            assert_eq!(bytes(text), want);
        }
        for text in ["", "K", "-1", "1T", "99999999999G"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
