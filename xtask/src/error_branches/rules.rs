//! Why an error branch is never taken: `xtask/error-branches.toml`.

use super::Branch;
use anyhow::{Result, ensure};
use serde::Deserialize;

/// Why a `?` never returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// It may be reachable, and no test reaches it.
    Open,
    /// The caller, or a check above it in the function, has ruled the error out.
    Guarded,
    /// It needs an image that no correct writer makes; the fuzz targets and the tests of damaged
    /// images, which are not among these runs, reach such images.
    Crafted,
    /// It needs memory that contradicts itself: an error here would be one of the program.
    Memory,
    /// It is on a path that only reads, and changes nothing when it fails.
    Reading,
    /// Tests of other crates, which are not among these runs, reach it.
    Elsewhere,
}

impl Group {
    pub const ALL: [Self; 6] =
        [Self::Open, Self::Guarded, Self::Crafted, Self::Memory, Self::Reading, Self::Elsewhere];

    /// Returns its name and what it means.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Open => ("open", "It may be reachable, and no test reaches it."),
            Self::Guarded => {
                ("guarded", "The caller, or a check above it in the function, excludes the error.")
            }
            Self::Crafted => (
                "crafted image",
                "It needs an image that no correct writer makes. The fuzz targets and the tests of \
                 damaged images reach such images; they are not among these runs.",
            ),
            Self::Memory => {
                ("memory", "It needs memory that contradicts itself, so it would be a bug.")
            }
            Self::Reading => ("reading", "It only reads, and changes nothing when it fails."),
            Self::Elsewhere => ("elsewhere", "Tests that are not among these runs reach it."),
        }
    }
}

/// Gives the branches that it matches a group and a reason.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// How the path of the file begins, from `crates/`.
    pub file: String,
    /// The name of the function; any if it is absent.
    pub function: Option<String>,
    /// A part of the line; any if it is absent.
    pub code: Option<String>,
    pub group: Group,
    pub reason: String,
}

impl Rule {
    fn matches(&self, branch: &Branch) -> bool {
        let path = branch.path.strip_prefix("crates/").unwrap_or(&branch.path);
        path.starts_with(&self.file)
            && self.function.as_ref().is_none_or(|function| *function == branch.function)
            && self.code.as_ref().is_none_or(|code| branch.code.contains(code))
    }
}

/// All rules, in the order in which they are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    #[serde(default)]
    rule: Vec<Rule>,
}

impl Rules {
    /// Reads the rules.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// Returns the group and the reason of each branch, in their order.
    ///
    /// # Errors
    /// A rule that is the first for no branch.
    pub fn apply(&self, branches: &[&Branch]) -> Result<Vec<(Group, &str)>> {
        let mut is_used = vec![false; self.rule.len()];
        let mut groups = Vec::new();
        for branch in branches {
            let first = self.rule.iter().position(|rule| rule.matches(branch));
            groups.push(first.map_or((Group::Open, ""), |at| {
                is_used[at] = true;
                (self.rule[at].group, &*self.rule[at].reason)
            }));
        }
        let unused: Vec<&Rule> =
            self.rule.iter().zip(is_used).filter(|(_, used)| !used).map(|(rule, _)| rule).collect();
        ensure!(unused.is_empty(), "rules that match no branch: {unused:#?}");
        Ok(groups)
    }
}

#[cfg(test)]
mod tests {
    use super::{Group, Rules};
    use crate::error_branches::Branch;

    fn branch(path: &str, function: &str, code: &str) -> Branch {
        let [path, function, code] = [path, function, code].map(str::to_owned);
        Branch { path, function, code, returned: Some(0) }
    }

    #[test]
    fn the_first_rule_that_matches_counts_and_each_must_match() {
        let text = "[[rule]]\nfile = \"tree/src/a.rs\"\nfunction = \"f\"\ngroup = \"memory\"\n\
                    reason = \"one\"\n[[rule]]\nfile = \"tree/\"\ncode = \"read\"\n\
                    group = \"crafted\"\nreason = \"two\"\n";
        let rules = Rules::parse(text).unwrap();
        let all = [
            branch("crates/tree/src/a.rs", "f", "read()?;"),
            branch("crates/tree/src/b.rs", "f", "read()?;"),
            branch("crates/tree/src/b.rs", "f", "write()?;"),
        ];
        let all: Vec<&Branch> = all.iter().collect();
        let want = [(Group::Memory, "one"), (Group::Crafted, "two"), (Group::Open, "")];
        assert_eq!(rules.apply(&all).unwrap(), want);
        assert!(rules.apply(&all[1..]).is_err());
    }
}
