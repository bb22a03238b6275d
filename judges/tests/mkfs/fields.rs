//! `mkfs.btrfs` and `butternut mkfs` with the same options write the same superblock and items.
//!
//! The permitted differences, with their reasons:
//!
//! | what | why |
//! |---|---|
//! | generations, transaction ids | ours writes one transaction, not eight |
//! | `uuid_tree_generation` | ours marks the uuid tree as complete |
//! | backup roots 1 to 3 | there are no earlier roots |
//! | addresses of tree blocks | ours are contiguous; their owners are compared |
//! | free space behind and between them | follows; its total in each block group is compared |
//! | free space of groups that do not exist | `mkfs.btrfs` leaves that of deleted groups |
//! | uuids but the volume's, times | random, and the current time |
//! | checksums | follow |

use crate::cases::Case;
use anyhow::{Context, Result, bail, ensure};
use butternut_judges::{command, tool};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const UUID: &str = "4d7f0e3a-1b2c-4d5e-8f90-a1b2c3d4e5f6";

/// Fields of dump-super that may differ.
const SUPER_FREE: [&str; 7] = [
    "superblock:",
    "csum",
    "generation",
    "root",
    "chunk_root",
    "chunk_root_generation",
    "uuid_tree_generation",
];

/// Words whose value is not compared.
const MASKED: [&str; 7] =
    ["generation", "generation_v2", "gen", "transid", "bytenr", "uuid", "dev_uuid"];

const TIMES: [&str; 6] = ["atime", "ctime", "mtime", "otime", "stime", "rtime"];

/// The items of each tree, as text without block addresses.
type Trees = BTreeMap<String, Vec<String>>;

pub(crate) fn both_tools_make_the_same(case: &Case) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (ours, theirs) = (dir.path().join("ours.img"), dir.path().join("theirs.img"));
    let mut words: Vec<OsString> = ["-q", "-f", "-L", "alike", "-U", UUID].map(Into::into).into();
    words.extend(case.words().into_iter().map(Into::into));
    for image in [&ours, &theirs] {
        fs::File::create(image)?.set_len(case.bytes)?;
    }
    let line = |image: &Path| [words.clone(), vec![image.into()]].concat();
    tool::run("mkfs.btrfs", &line(&theirs))?;
    command::run(&[vec!["mkfs".into()], line(&ours)].concat())?;
    same("dump-super", &super_fields(&theirs)?, &super_fields(&ours)?)?;
    let (theirs, ours) = (trees(&theirs)?, trees(&ours)?);
    let names = |trees: &Trees| trees.keys().cloned().collect::<Vec<_>>();
    same("the list of trees", &names(&theirs), &names(&ours))?;
    for (tree, items) in &theirs {
        same(tree, items, &ours[tree])?;
    }
    Ok(())
}

fn same(what: &str, theirs: &[String], ours: &[String]) -> Result<()> {
    if theirs == ours {
        return Ok(());
    }
    let mut text = format!("{what} differs:\n");
    for line in theirs.iter().filter(|line| !ours.contains(line)) {
        writeln!(text, "mkfs.btrfs  {line}")?;
    }
    for line in ours.iter().filter(|line| !theirs.contains(line)) {
        writeln!(text, "butternut   {line}")?;
    }
    ensure!(false, "{text}({} lines and {})", theirs.len(), ours.len());
    Ok(())
}

fn super_fields(image: &Path) -> Result<Vec<String>> {
    let dump = tool::text("btrfs", &tool::words_and_path("inspect-internal dump-super -f", image))?;
    let fields = dump.split("backup_roots").next().context("a dump has fields")?;
    let lines = fields.lines().filter(|line| {
        let name = line.split_whitespace().next().unwrap_or_default();
        !SUPER_FREE.contains(&name) && name != "dev_item.uuid"
    });
    let lines: Vec<_> = lines.map(masked).collect();
    ensure!(lines.len() > 40, "dump-super prints only {} fields", lines.len());
    Ok(lines)
}

/// Parses a dump: a heading for each tree, then its leaves.
fn trees(image: &Path) -> Result<Trees> {
    let dump = tool::text("btrfs", &tool::words_and_path("inspect-internal dump-tree", image))?;
    let mut trees = Trees::new();
    let mut heading = String::new();
    for line in dump.lines() {
        if let Some((name, _)) = line.split_once(" tree").filter(|_| is_heading(line)) {
            name.clone_into(&mut heading);
            trees.insert(heading.clone(), Vec::new());
        } else if let Some(items) = trees.get_mut(&heading).filter(|_| line.starts_with('\t')) {
            let text = line.trim();
            match text.strip_prefix("item ") {
                Some(item) => items.push(item_line(item)),
                // Inner nodes list blocks, not items.
                None if text.starts_with("key (") => {}
                None => {
                    let item = items.last_mut().context("an item comes first")?;
                    write!(item, " | {}", masked(text))?;
                }
            }
        }
    }
    placeless(&mut trees)?;
    Ok(trees)
}

fn is_heading(line: &str) -> bool {
    !line.starts_with('\t') && (line.ends_with(" tree") || line.contains(" tree key ("))
}

/// Returns `N key (K) itemoff O itemsize S` without the parts that depend on other items.
fn item_line(item: &str) -> String {
    let (_, item) = item.split_once(' ').unwrap_or_default();
    match item.split_once(" itemoff ") {
        Some((key, sizes)) => {
            let size = sizes.split(' ').next_back().unwrap_or_default();
            format!("{key} itemsize {size}")
        }
        None => item.to_owned(),
    }
}

/// Returns a line without the values that may differ.
fn masked(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    if words.first().is_some_and(|word| TIMES.contains(word)) {
        words.truncate(1);
    }
    for at in 1..words.len() {
        let is_uuid = words[at].len() == 36 && words[at].matches('-').count() == 4;
        if MASKED.contains(&words[at - 1]) || (is_uuid && words[at] != UUID) {
            words[at] = "*";
        }
    }
    words.join(" ")
}

/// Removes block addresses from the extent tree, the free space tree and the uuid tree.
fn placeless(trees: &mut Trees) -> Result<()> {
    for item in trees.get_mut("uuid").context("no uuid tree")? {
        let (_, rest) = item.split_once(')').context("an item has a key")?;
        *item = rest.to_owned();
    }
    let extents = trees.get_mut("extent").context("no extent tree")?;
    for item in extents.iter_mut() {
        // `key (address type offset) itemsize n`, then the content of the extent item. A block's
        // first key may contain an address as well, so its level is compared.
        let (key, rest) = item.split_once(" | ").context("an extent item has content")?;
        let key: Vec<&str> = key.split(' ').collect();
        let ["key", _, kind, size @ ..] = key.as_slice() else { bail!("no key: {item}") };
        if *kind == "BLOCK_GROUP_ITEM" {
            continue;
        }
        let owner = rest.rsplit("root ").next().unwrap_or_default();
        let level = rest.split("level ").nth(1).and_then(|text| text.split(' ').next());
        let refs = rest.split(" | ").next().unwrap_or_default();
        let (size, level) = (size.join(" "), level.unwrap_or_default());
        *item = format!("{kind} {size} {refs} level {level} of {owner}");
    }
    extents.sort();
    let groups: Vec<String> = trees["chunk"].iter().filter_map(|item| chunk_start(item)).collect();
    if let Some(free) = trees.get_mut("free space") {
        *free = free_totals(free, &groups);
    }
    Ok(())
}

fn chunk_start(item: &str) -> Option<String> {
    let (_, start) = item.split_once("CHUNK_ITEM ")?;
    Some(start.split(')').next()?.to_owned())
}

/// Returns the free bytes of each existing group.
fn free_totals(items: &[String], groups: &[String]) -> Vec<String> {
    let mut totals: Vec<(String, u64)> = Vec::new();
    let mut is_group = false;
    for item in items {
        let key: Vec<&str> = item.trim_start_matches("key (").split([' ', ')']).collect();
        let [start, kind, bytes, ..] = key.as_slice() else { continue };
        if *kind == "FREE_SPACE_INFO" {
            is_group = groups.iter().any(|group| group == start);
            if is_group {
                totals.push((format!("{start} {bytes}"), 0));
            }
        } else if let Some(total) = totals.last_mut().filter(|_| is_group) {
            total.1 += bytes.parse::<u64>().unwrap_or_default();
        }
    }
    totals.into_iter().map(|(group, free)| format!("{group} free {free}")).collect()
}
