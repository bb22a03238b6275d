//! [`Compressor`]: an algorithm and its level, as mount options and properties name them.
//!
//! ```text
//! zlib  zlib:LEVEL     1 to 9, default 3
//! zstd  zstd:LEVEL     -15 to 15, default 3
//! lzo                  has no levels
//! ```
//!
//! As in the kernel, a level outside the range is clamped to it, and 0 is the default.

use butternut_format::file_extent::Compression;
use std::fmt;
use std::str::FromStr;

const ZLIB_LEVEL_MAX: i32 = 9;
const ZSTD_LEVEL_MIN: i32 = -15;
const ZSTD_LEVEL_MAX: i32 = 15;
/// The default level of zlib and zstd.
const LEVEL: i32 = 3;

/// An algorithm and its level. The default is zlib, as in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Compressor {
    compression: Compression,
    level: i32,
}

/// A text that names no [`Compressor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is none of no, none, lzo, zlib[:1 to 9], zstd[:-15 to 15]")]
pub struct BadCompressor;

impl Compressor {
    /// Returns `compression` at its default level; `None` for no compression.
    pub fn new(compression: Compression) -> Option<Self> {
        Self::with_level(compression, 0)
    }

    /// Returns `compression` at a level, which lzo ignores; `None` for no compression.
    pub fn with_level(compression: Compression, level: i32) -> Option<Self> {
        let level = if level == 0 { LEVEL } else { level };
        let level = match compression {
            Compression::None => return None,
            Compression::Lzo => 0,
            Compression::Zlib => level.clamp(1, ZLIB_LEVEL_MAX),
            Compression::Zstd => level.clamp(ZSTD_LEVEL_MIN, ZSTD_LEVEL_MAX),
        };
        Some(Self { compression, level })
    }

    /// Returns the algorithm.
    pub fn compression(self) -> Compression {
        self.compression
    }

    /// Returns the level, 0 for lzo.
    pub fn level(self) -> i32 {
        self.level
    }

    /// Returns the name of the algorithm in mount options and properties.
    pub fn name(self) -> &'static str {
        match self.compression {
            Compression::None => "none",
            Compression::Zlib => "zlib",
            Compression::Lzo => "lzo",
            Compression::Zstd => "zstd",
        }
    }
}

impl Default for Compressor {
    fn default() -> Self {
        Self { compression: Compression::Zlib, level: LEVEL }
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.compression {
            Compression::None | Compression::Lzo => f.write_str(self.name()),
            Compression::Zlib | Compression::Zstd => write!(f, "{}:{}", self.name(), self.level),
        }
    }
}

impl FromStr for Compressor {
    type Err = BadCompressor;

    fn from_str(text: &str) -> Result<Self, BadCompressor> {
        let (name, level) = match text.split_once(':') {
            None => (text, None),
            Some((name, level)) => (name, Some(level.parse().map_err(|_| BadCompressor)?)),
        };
        let compression = match name {
            "zlib" => Compression::Zlib,
            "zstd" => Compression::Zstd,
            "lzo" if level.is_none() => Compression::Lzo,
            _ => return Err(BadCompressor),
        };
        Self::with_level(compression, level.unwrap_or(0)).ok_or(BadCompressor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_levels_are_parsed_as_in_the_kernel() {
        for (text, means) in [
            ("zlib", Some("zlib:3")),
            ("zlib:9", Some("zlib:9")),
            ("zlib:99", Some("zlib:9")),
            ("zlib:0", Some("zlib:3")),
            ("zstd", Some("zstd:3")),
            ("zstd:-7", Some("zstd:-7")),
            ("zstd:-99", Some("zstd:-15")),
            ("zstd:19", Some("zstd:15")),
            ("lzo", Some("lzo")),
            ("lzo:3", None),
            ("zstd:", None),
            ("zstd:x", None),
            ("gzip", None),
            ("", None),
        ] {
            let read = text.parse::<Compressor>().ok().map(|compressor| compressor.to_string());
            assert_eq!(read.as_deref(), means, "{text}");
        }
    }
}
