//! Records that several threads append to one file.
//!
//! ```text
//! 0        4        8        12
//! | thread | number | length | filled with the low byte of the number ... |
//! ```

use crate::lane::read_whole;
use crate::operation::Lane;
use anyhow::{Context, Result, ensure};
use butternut::File;
use std::collections::BTreeMap;

const HEAD_BYTES: usize = 12;

pub(super) fn record(thread: u8, number: u32, bytes: usize) -> Vec<u8> {
    let len = u32::try_from(bytes).expect("short");
    let head = [u32::from(thread), number, len];
    let mut record: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    record.resize(bytes, number.to_le_bytes()[0]);
    record
}

/// Checks law 3 of the run.
pub(super) fn compare(file: &File, lane: Lane) -> Result<()> {
    let bytes = usize::try_from(file.len()).context("fits memory")?;
    let have = read_whole(file, 0, bytes, lane)?;
    let mut next: BTreeMap<u32, u32> = BTreeMap::new();
    let mut at = 0;
    while at < have.len() {
        let word = |number: usize| -> Result<u32> {
            let start = at + number * 4;
            let bytes = have.get(start..start + 4).context("a record is cut off")?;
            Ok(u32::from_le_bytes(bytes.try_into()?))
        };
        let (thread, number, len) = (word(0)?, word(1)?, usize::try_from(word(2)?)?);
        let want = next.entry(thread).or_default();
        ensure!(number == *want, "byte {at}: thread {thread}, record {number}, want {want}");
        *want += 1;
        let filling = have.get(at + HEAD_BYTES..at + len).context("a record is cut off")?;
        let byte = number.to_le_bytes()[0];
        ensure!(filling.iter().all(|have| *have == byte), "byte {at}: a record is torn");
        at += len;
    }
    Ok(())
}
