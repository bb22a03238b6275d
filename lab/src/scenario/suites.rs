//! The suites of this program: the files of `lab/suites`.

/// Name and text of each suite, in the order of `list`.
const SUITES: &[(&str, &str)] = &[
    ("published", include_str!("../../suites/published.toml")),
    ("nosec", include_str!("../../suites/nosec.toml")),
    ("simple-read", include_str!("../../suites/simple-read.toml")),
    ("fsync", include_str!("../../suites/fsync.toml")),
    ("stable", include_str!("../../suites/stable.toml")),
    ("uncached-single", include_str!("../../suites/uncached-single.toml")),
    ("neighbours", include_str!("../../suites/neighbours.toml")),
    ("mount", include_str!("../../suites/mount.toml")),
    ("metadata", include_str!("../../suites/metadata.toml")),
    ("smoke", include_str!("../../suites/smoke.toml")),
];

/// Returns the names of all suites.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SUITES.iter().map(|(name, _)| *name)
}

/// Returns the text of a suite.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    SUITES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
