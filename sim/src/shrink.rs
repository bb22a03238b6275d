//! A failing run made short: pieces are taken out as long as it still fails.

use crate::operation::Operation;
use crate::run::Disagreement;
use anyhow::Result;
use std::time::{Duration, Instant};

/// The shortest script that was found within the time, and how it fails. `try_script` runs a
/// script on a fresh subject; `failing` is known to fail.
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
            return Ok((failing, found));
        }
        if piece > 1 {
            piece = piece.div_ceil(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;

    #[test]
    fn what_does_not_matter_is_taken_out() {
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
}
