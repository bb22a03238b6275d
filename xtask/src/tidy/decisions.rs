//! Decision records: each has a number of its own, in its name and in its title.

use std::collections::HashMap;

use super::finding::{Finding, Rule};
use super::tree::Tree;

const FOLDER: &str = "docs/decisions/";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut taken: HashMap<&str, &str> = HashMap::new();
    for source in &tree.sources {
        let Some(name) = source.path.strip_prefix(FOLDER) else { continue };
        let number = name.split('-').next().unwrap_or(name);
        let mut add = |what: String, cure: &str| {
            let (path, cure) = (source.path.clone(), cure.to_owned());
            found.push(Finding { path, line: 1, rule: Rule::Decision, what, cure });
        };
        if !source.text.starts_with(&format!("# {number}: ")) {
            add(format!("the title has not the number {number}"), "open with `# NUMBER: TITLE`");
        }
        if let Some(first) = taken.insert(number, name) {
            add(format!("{first} has the number {number} too"), "take the next free number");
        }
    }
    found
}
