//! The option `switches=KEY=VALUE[,KEY=VALUE...]`: how jobs want their volume open.

use crate::{FioError, Result};
use butternut::MountOptions;

/// Sets one switch; says what it wants where the value is not that.
type Set = fn(&mut MountOptions, &str) -> Result<(), &'static str>;

const SWITCHES: [(&str, Set); 3] = [
    ("commit", |options, value| {
        options.commit_seconds = value.parse().map_err(|_| "seconds, 0 for never")?;
        Ok(())
    }),
    ("node_cache", |options, value| {
        options.node_cache_bytes = bytes(value).ok_or(BYTES)?;
        Ok(())
    }),
    ("workers", |options, value| {
        options.workers = value.parse().map_err(|_| "a number of threads, 0 for one per core")?;
        Ok(())
    }),
];

const BYTES: &str = "bytes, or bytes with K, M or G";

/// Applies `text` to the options.
pub(crate) fn apply(text: &str, options: &mut MountOptions) -> Result<()> {
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let named = word.split_once('=').and_then(|(key, value)| {
            let (_, set) = SWITCHES.iter().find(|(name, _)| *name == key.trim())?;
            Some((set, value.trim()))
        });
        let Some((set, value)) = named else {
            let known = SWITCHES.map(|(name, _)| name).join(", ");
            return Err(FioError::UnknownSwitch { word: word.to_owned(), known });
        };
        set(options, value)
            .map_err(|want| FioError::SwitchValue { word: word.to_owned(), want })?;
    }
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

    #[test]
    fn switches_are_applied_in_order() {
        let mut options = MountOptions::default();
        apply("commit=7, node_cache=16M,commit=8", &mut options).unwrap();
        assert_eq!((options.commit_seconds, options.node_cache_bytes), (8, 16 << 20));
    }

    #[test]
    fn what_is_not_known_is_named_beside_what_is() {
        let check = |text: &str| apply(text, &mut MountOptions::default()).unwrap_err().to_string();
        assert!(check("no_such=on").contains(r#""no_such=on": want KEY=VALUE with KEY one of"#));
        assert!(check("commit").contains(r#""commit": want KEY=VALUE"#));
        assert_eq!(check("commit=x"), r#"switches: "commit=x": want seconds, 0 for never"#);
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
