//! Shortens a failing script: operations are removed as long as the script still fails, and long
//! names are replaced by short ones.

use crate::bytes::Bytes;
use crate::operation::Operation;
use crate::run::Disagreement;
use crate::script;
use anyhow::Result;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Returns the shortest failing script that was found within the time limit, and its failure.
/// `try_script` runs a script on a new subject; `failing` is a script that fails.
pub fn shrink(
    mut failing: Vec<Operation>,
    mut found: Disagreement,
    time: Duration,
    mut try_script: impl FnMut(&[Operation]) -> Result<Option<Disagreement>>,
) -> Result<(Vec<Operation>, Disagreement)> {
    let end = Instant::now() + time;
    failing.truncate(found.at + 1);
    let mut piece = failing.len().div_ceil(2);
    loop {
        let mut start = 0;
        let mut has_shrunk = false;
        while start < failing.len() {
            if Instant::now() > end {
                return Ok((failing, found));
            }
            let stop = failing.len().min(start + piece);
            let shorter = [&failing[..start], &failing[stop..]].concat();
            if let Some(still) = try_script(&shorter)? {
                failing = shorter;
                failing.truncate(still.at + 1);
                found = still;
                has_shrunk = true;
            } else {
                start = stop;
            }
        }
        if piece == 1 && !has_shrunk {
            return rename(failing, found, end, try_script);
        }
        if piece > 1 {
            piece = piece.div_ceil(2);
        }
    }
}

/// Replaces every long name by a short one, where the script still fails.
fn rename(
    mut failing: Vec<Operation>,
    mut found: Disagreement,
    end: Instant,
    mut try_script: impl FnMut(&[Operation]) -> Result<Option<Disagreement>>,
) -> Result<(Vec<Operation>, Disagreement)> {
    let mut text = script::to_text(&failing);
    let mut long: Vec<Bytes> = long_names(&text).into_iter().collect();
    long.sort_by_key(|name| std::cmp::Reverse(name.0.len()));
    for (number, name) in long.into_iter().enumerate() {
        if Instant::now() > end {
            break;
        }
        let typed = serde_json::to_string(&name)?;
        let renamed = text.replace(typed.trim_matches('"'), &format!("n{number}"));
        let Ok(script) = script::parse(&renamed) else { continue };
        if let Some(still) = try_script(&script)?.filter(|still| still.at + 1 >= script.len()) {
            (text, failing, found) = (renamed, script, still);
        }
    }
    Ok((failing, found))
}

/// Returns the names of at least two bytes in the paths of a script.
fn long_names(text: &str) -> BTreeSet<Bytes> {
    let mut names = BTreeSet::new();
    for quoted in text.split('"').skip(1).step_by(2) {
        let Ok(path) = serde_json::from_str::<Bytes>(&format!("\"{quoted}\"")) else { continue };
        let is_word = |name: &[u8]| name.len() < 16 && name.iter().all(u8::is_ascii_lowercase);
        let long = path.components().filter(|name| name.len() > 1 && !is_word(name));
        names.extend(long.map(|name| Bytes(name.to_vec())));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;

    #[test]
    fn irrelevant_operations_are_removed() {
        let create = |n: usize| Operation::Create { at: Bytes(format!("{n}").into()), mode: 0 };
        let script: Vec<Operation> = (0..300).map(create).collect();
        let fails = |script: &[Operation]| {
            let at = script.iter().position(|operation| *operation == create(177));
            let needs = [create(5), create(90)].iter().all(|need| script.contains(need));
            Ok(at.filter(|_| needs).map(|at| Disagreement { at, text: String::new() }))
        };
        let found = fails(&script).unwrap().unwrap();
        let (short, _) = shrink(script, found, Duration::from_mins(1), fails).unwrap();
        assert_eq!(short, [create(5), create(90), create(177)]);
    }

    #[test]
    fn long_names_are_shortened() {
        let path = |tail: &str| Bytes([&[0xff; 200][..], tail.as_bytes()].concat());
        let script = vec![
            Operation::Mkdir { at: path(""), mode: 0 },
            Operation::Create { at: path("/keep this"), mode: 0 },
        ];
        let fails = |script: &[Operation]| {
            let keeps = script.len() == 2 && format!("{script:?}").contains("keep this");
            Ok(keeps.then(|| Disagreement { at: 1, text: String::new() }))
        };
        let found = fails(&script).unwrap().unwrap();
        let (short, _) = shrink(script, found, Duration::from_mins(1), fails).unwrap();
        let want = [
            Operation::Mkdir { at: "n0".into(), mode: 0 },
            Operation::Create { at: "n0/keep this".into(), mode: 0 },
        ];
        assert_eq!(short, want);
    }
}
