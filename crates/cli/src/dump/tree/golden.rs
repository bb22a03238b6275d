//! Compares the output for every item type with that of btrfs-progs, recorded in `golden.txt`.
//!
//! Local times are not compared: they depend on the time zone of the test.

use super::key::KeyText;
use super::{Style, item};
use butternut_format::checksum::ChecksumKind;
use butternut_format::key::{ItemType, Key};
use std::collections::BTreeSet;

const GOLDEN: &[u8] = include_bytes!("golden.txt");

struct Case {
    key: Key,
    data: Vec<u8>,
    style: Style,
    lines: Vec<Vec<u8>>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in GOLDEN.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#")) {
        match line.strip_prefix(b"item ") {
            Some(formatting) => cases.push(case(std::str::from_utf8(formatting).unwrap())),
            None => cases.last_mut().unwrap().lines.push(line.to_vec()),
        }
    }
    // The newline at the end of the file.
    cases.last_mut().unwrap().lines.pop();
    cases
}

fn case(formatting: &str) -> Case {
    let formatting: Vec<&str> = formatting.split(' ').collect();
    let number = |at: usize| formatting[at].parse().unwrap();
    let item_type = ItemType(formatting[1].parse().unwrap());
    let hex = if formatting[3] == "-" { "" } else { formatting[3] };
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    Case {
        key: Key::new(number(0), item_type, number(2)),
        data: (0..hex.len()).step_by(2).map(byte).collect(),
        style: Style {
            hide_names: formatting.contains(&"--hide-names"),
            csum_headers: false,
            csum_items: formatting.contains(&"--csum-items"),
            csum: ChecksumKind::Crc32c,
            simple_quota: false,
        },
        lines: Vec::new(),
    }
}

/// Returns a line without the local time at its end.
fn timeless(line: &[u8]) -> String {
    let text = line.escape_ascii().to_string();
    match text.split_once(" (") {
        Some((time, _)) if time.contains("time ") => time.to_owned(),
        Some(_) | None => text,
    }
}

#[test]
fn items_print_as_btrfs_progs_prints_them() {
    for case in cases() {
        let mut out = format!("{}\n", KeyText(case.key)).into_bytes();
        item::print(case.key, &case.data, case.style, &mut out).unwrap();
        let have: Vec<_> = out.split(|byte| *byte == b'\n').map(timeless).collect();
        let want: Vec<_> = case.lines.iter().map(|line| timeless(line)).collect();
        assert_eq!(have[..have.len() - 1], want, "{}", case.key);
    }
}

#[test]
fn every_item_type_has_a_case() {
    let tested: BTreeSet<u8> = cases().iter().map(|case| case.key.item_type.0).collect();
    let named = (0..=u8::MAX).filter(|number| {
        let key = KeyText(Key::new(300, ItemType(*number), 0)).to_string();
        // Item types from before 2009, which no volume contains any more.
        !key.contains("UNKNOWN") && !matches!(number, 120 | 180)
    });
    let missing: Vec<u8> = named.filter(|number| !tested.contains(number)).collect();
    assert_eq!(missing, Vec::<u8>::new());
}
