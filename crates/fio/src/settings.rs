//! Parses the option `mount_options=KEY=VALUE[,KEY=VALUE...]`: tunables of the library, by the
//! names that the library gives them, and mount options.

use crate::{FioError, Result};
use butternut::{BadTunable, Compress, MountOptions, Tunables};
use std::path::PathBuf;

/// How a job opens its volume.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) options: MountOptions,
    /// The file that statistics are written to when the volume is closed.
    pub(crate) stats: Option<PathBuf>,
}

/// Applies one value. The error names the values that are allowed.
type Set = fn(&mut Settings, &str) -> Result<(), &'static str>;

const WANT_BYTES: &str = "bytes, or bytes with K, M or G";

/// The settings that are not tunables of the library.
const OPTIONS: [(&str, Set); 8] = [
    ("compress", |settings, value| compress(&mut settings.options, value, false)),
    ("compress-force", |settings, value| compress(&mut settings.options, value, true)),
    ("commit", |settings, value| {
        settings.options.commit_seconds = value.parse().map_err(|_| "seconds, 0 for never")?;
        Ok(())
    }),
    ("cache", |settings, value| {
        settings.options.node_cache_bytes = bytes(value).ok_or(WANT_BYTES)?;
        Ok(())
    }),
    ("page_cache", |settings, value| {
        settings.options.page_cache_bytes = bytes(value).ok_or(WANT_BYTES)?;
        Ok(())
    }),
    ("pending", |settings, value| {
        settings.options.pending_bytes = bytes(value).ok_or(WANT_BYTES)?;
        Ok(())
    }),
    ("threads", |settings, value| {
        let number = value.parse().map_err(|_| "a number of threads, 0 for one per core")?;
        settings.options.workers = number;
        Ok(())
    }),
    ("stats", |settings, value| {
        settings.stats = Some(PathBuf::from(value));
        Ok(())
    }),
];

/// Applies all settings of `text`, in their order.
pub(crate) fn apply(text: &str, settings: &mut Settings) -> Result<()> {
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let unknown = || FioError::UnknownSetting { word: word.to_owned(), known: known() };
        let bad = |want: String| FioError::SettingValue { word: word.to_owned(), want };
        let (key, value) = word.split_once('=').ok_or_else(unknown)?;
        let (key, value) = (key.trim(), value.trim());
        match OPTIONS.iter().find(|(name, _)| *name == key) {
            Some((_, set)) => set(settings, value).map_err(|want| bad(want.to_owned()))?,
            None => {
                settings.options.tunables.set_named(key, value).map_err(|error| match error {
                    BadTunable::Unknown { .. } => unknown(),
                    BadTunable::Value { allowed, .. } => bad(allowed.join(" or ")),
                })?;
            }
        }
    }
    Ok(())
}

fn known() -> String {
    let tunables = Tunables::default().named().into_iter().map(|tunable| tunable.key);
    let options = OPTIONS.iter().map(|(name, _)| *name);
    tunables.chain(options).collect::<Vec<_>>().join(", ")
}

fn compress(options: &mut MountOptions, value: &str, is_forced: bool) -> Result<(), &'static str> {
    let compressor = value.parse().map_err(|_| "zlib, lzo or zstd, with a level after a colon")?;
    options.compress = Some(Compress { compressor, is_forced });
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
    fn settings_are_applied_in_order() {
        let mut settings = Settings::default();
        apply("commit=7, cache=16M,commit=8,nosec=off,dio_stable=trust", &mut settings).unwrap();
        let options = &settings.options;
        assert_eq!((options.commit_seconds, options.node_cache_bytes), (8, 16 << 20));
        assert!(!options.tunables.nosec && options.tunables.simple_read);
        assert_eq!(options.tunables.direct_stability, DirectStability::Trust);
        apply("compress-force=zstd:3,page_cache=1G,stats=/tmp/a", &mut settings).unwrap();
        assert!(settings.options.compress.is_some_and(|compress| compress.is_forced));
        assert_eq!(settings.options.page_cache_bytes, 1 << 30);
        assert_eq!(settings.stats, Some(PathBuf::from("/tmp/a")));
    }

    #[test]
    fn errors_name_the_unknown_key_and_the_allowed_values() {
        let check = |text: &str| apply(text, &mut Settings::default()).unwrap_err().to_string();
        assert!(check("no_such=on").contains(r#""no_such=on": want KEY=VALUE with KEY one of"#));
        assert!(check("commit").contains(r#""commit": want KEY=VALUE"#));
        assert_eq!(check("commit=x"), r#"mount_options: "commit=x": want seconds, 0 for never"#);
        assert!(check("dio_stable=x").ends_with("want bounce or trust or buffered"));
        assert_eq!(check("nosec=maybe"), r#"mount_options: "nosec=maybe": want on or off"#);
    }

    #[test]
    fn sizes_have_suffixes_and_must_fit_into_64_bits() {
        for (text, want) in [("4096", Some(4096)), ("64k", Some(65536)), ("2G", Some(2 << 30))] {
            assert_eq!(bytes(text), want);
        }
        for text in ["", "K", "-1", "1T", "99999999999G"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
