//! Figures that others have published, from the files of suites.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;

/// A published figure of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// `suite/scenario`.
    pub scenario: String,
    /// The variant, or nothing for all variants.
    pub variant: String,
    pub metric: String,
    /// What was measured.
    pub what: String,
    pub value: f64,
}

impl Published {
    /// Tells whether the figure belongs beside the row.
    pub fn is_of(&self, row: &str, metric: &str) -> bool {
        let rest = row.strip_prefix(&self.scenario);
        let variant =
            rest.and_then(|rest| rest.strip_prefix('/').or((rest.is_empty()).then_some("")));
        let is_row = variant.is_some_and(|have| self.variant.is_empty() || have == self.variant);
        is_row && self.metric == metric
    }
}

/// What of a suite's file is read here. The rest is the runner's.
#[derive(Deserialize)]
struct Suite {
    name: String,
    #[serde(default)]
    scenario: Vec<Scenario>,
}

#[derive(Deserialize)]
struct Scenario {
    name: String,
    #[serde(default)]
    published: Vec<Figure>,
}

/// A published figure, as the file of a suite has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The variant, as the row names it; empty: every variant.
    #[serde(default)]
    pub variant: String,
    pub metric: String,
    /// What was measured, such as a kernel before a change.
    pub what: String,
    pub value: f64,
}

/// Reads the published figures of the suite in the text of a file.
///
/// # Errors
///
/// The text is no suite.
pub fn parse(text: &str) -> Result<Vec<Published>> {
    let suite: Suite = toml::from_str(text)?;
    let mut all = Vec::new();
    for scenario in suite.scenario {
        let name = format!("{}/{}", suite.name, scenario.name);
        for figure in scenario.published {
            let Figure { variant, metric, what, value } = figure;
            all.push(Published { scenario: name.clone(), variant, metric, what, value });
        }
    }
    Ok(all)
}

/// Reads the published figures of a suite's file, or of all suites in a directory.
///
/// # Errors
///
/// The file or directory cannot be read, or a file is no suite.
pub fn read(path: &Path) -> Result<Vec<Published>> {
    let cannot = || format!("cannot read {}", path.display());
    if !path.is_dir() {
        let text = std::fs::read_to_string(path).with_context(cannot)?;
        return parse(&text).with_context(cannot);
    }
    let mut all = Vec::new();
    for entry in std::fs::read_dir(path).with_context(cannot)? {
        let file = entry.with_context(cannot)?.path();
        if file.extension().is_some_and(|extension| extension == "toml") && file.is_file() {
            all.extend(read(&file)?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITE: &str = r#"
name = "fsync"
about = "ignored here"
[[scenario]]
name = "write-64k"
published = [
    { variant = "jobs=1", metric = "mbps", what = "before", value = 30.5 },
    { metric = "iops", what = "after", value = 7 },
]
[[scenario]]
name = "without"
"#;

    #[test]
    fn figures_belong_to_their_row_or_to_all_variants() {
        let all = parse(SUITE).expect("a suite");
        assert_eq!(all.len(), 2);
        assert!(all[0].is_of("fsync/write-64k/jobs=1", "mbps"));
        assert!(!all[0].is_of("fsync/write-64k/jobs=10", "mbps"));
        assert!(!all[0].is_of("fsync/write-64k/jobs=1", "iops"));
        assert!(all[1].is_of("fsync/write-64k/jobs=1", "iops"));
        assert!(all[1].is_of("fsync/write-64k", "iops"));
        assert!(!all[1].is_of("fsync/write-64k-more/jobs=1", "iops"));
    }
}
