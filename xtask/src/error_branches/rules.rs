//! Why an error branch is never taken: `xtask/error-branches.toml`.

use super::Branch;
use anyhow::{Result, ensure};
use serde::Deserialize;

/// Why a `?` never returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// The caller, or a check above it in the function, has ruled the error out.
    Guarded,
    /// It needs an image or a stream that no correct writer makes, and that is not among the
    /// crafted ones of these runs.
    Crafted,
    /// It needs memory that contradicts itself: an error here would be one of the program.
    Memory,
    /// Nothing has changed when it fails: it reads, checks or prepares.
    Before,
    /// One place makes the volume read-only after every error there, and the change is never
    /// committed.
    Ended,
}

impl Group {
    pub const ALL: [Self; 5] =
        [Self::Guarded, Self::Crafted, Self::Memory, Self::Before, Self::Ended];

    /// Returns its name and what it means.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Guarded => {
                ("guarded", "The caller, or a check above it in the function, excludes the error.")
            }
            Self::Crafted => (
                "crafted image",
                "It needs an image or a stream that no correct writer makes, and that is not among \
                 the crafted ones of these runs. The fuzz targets look for more of them.",
            ),
            Self::Memory => {
                ("memory", "It needs memory that contradicts itself, so it would be a bug.")
            }
            Self::Before => (
                "before a change",
                "Nothing has changed when it fails: it reads, checks what the caller wants, or \
                 prepares. Failures may reach it.",
            ),
            Self::Ended => (
                "ends writing",
                "One place above makes the volume read-only after every error there, and the \
                 change is never committed. Failures may reach it.",
            ),
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
    /// A part of what the operator is applied to; any if it is absent.
    pub code: Option<String>,
    pub group: Group,
    pub reason: String,
}

impl Rule {
    fn matches(&self, branch: &Branch) -> bool {
        let path = branch.path.strip_prefix("crates/").unwrap_or(&branch.path);
        path.starts_with(&self.file)
            && self.function.as_ref().is_none_or(|function| *function == branch.function)
            && self.code.as_ref().is_none_or(|code| branch.operand.contains(code))
    }
}

/// What the rules say about some branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied<'r, 'b> {
    /// Each rule, with the number of branches that it is the first for.
    pub rules: Vec<(&'r Rule, usize)>,
    /// The branches that no rule matches.
    pub left: Vec<&'b Branch>,
}

impl Applied<'_, '_> {
    /// Returns the number of branches of a group.
    pub fn count(&self, group: Group) -> usize {
        let of_group = self.rules.iter().filter(|(rule, _)| rule.group == group);
        of_group.map(|(_, count)| count).sum()
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

    /// Returns how many branches each rule is the first for, and those that no rule matches.
    pub fn apply<'a>(&self, branches: &[&'a Branch]) -> Applied<'_, 'a> {
        let mut counts = vec![0; self.rule.len()];
        let mut left = Vec::new();
        for branch in branches {
            match self.rule.iter().position(|rule| rule.matches(branch)) {
                Some(at) => counts[at] += 1,
                None => left.push(*branch),
            }
        }
        Applied { rules: self.rule.iter().zip(counts).collect(), left }
    }

    /// Fails if a rule matches none of all branches.
    ///
    /// # Errors
    /// There is such a rule.
    pub fn check_used(&self, branches: &[Branch]) -> Result<()> {
        let is_used = |rule: &&Rule| branches.iter().any(|branch| rule.matches(branch));
        let unused: Vec<&Rule> = self.rule.iter().filter(|rule| !is_used(rule)).collect();
        ensure!(unused.is_empty(), "rules that match no branch: {unused:#?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Group, Rules};
    use crate::error_branches::{Branch, Reached};

    fn branch(path: &str, function: &str, code: &str) -> Branch {
        let [path, function, code] = [path, function, code].map(str::to_owned);
        let operand = code.clone();
        Branch { path, function, code, operand, reached: Reached::Never }
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
        rules.check_used(&all).unwrap();
        assert!(rules.check_used(&all[1..]).is_err());
        let all: Vec<&Branch> = all.iter().collect();
        let applied = rules.apply(&all);
        let counts = applied.rules.iter().map(|(rule, count)| (&*rule.reason, *count));
        assert_eq!(counts.collect::<Vec<_>>(), [("one", 1), ("two", 1)]);
        assert_eq!(applied.left, [all[2]]);
        let counts = Group::ALL.map(|group| applied.count(group));
        assert_eq!(counts, [0, 1, 1, 0, 0]);
    }
}
