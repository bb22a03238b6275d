//! Target that replays crafted logs: edits the log of a volume that the kernel wrote, opens it for
//! reading and for writing, and checks the result.
//!
//! ```text
//! input = seed 1 | number of edits 1 | edit 10 | ... | step 8 | step 8 | ...
//! ```
//!
//! Edits are those of [`crate::edited`], of leaves of the log. Kinds from 0xe0 change pointers to
//! blocks of the log, from 0xf0 leaves of any tree, and 0xff the superblock. Steps are those of
//! [`crate::changing`].
//!
//! Laws:
//!
//! 1. An open ends, within a bounded number of device requests, and never panics.
//! 2. A log that is refused changes nothing on the device. Opened for reading, the volume shows
//!    the last commit.
//! 3. Opened for reading, the volume shows what it shows after a replay for writing.
//! 4. If the volume without its log is consistent, every commit after the replay leaves space,
//!    references, checksums and blocks consistent. What names and inodes the volume has is up to
//!    the log.

use crate::changing::{ScratchDevice, run_steps, writing};
use crate::edited::{EDIT_BYTES, Edit, Editor, Item};
use crate::seed::{LOGGED_SEEDS, PatchedDevice, Seed};
use crate::walk::{Results, walk};
use butternut::device::Device;
use butternut::{Filesystem, MountOptions};
use butternut_check::{CheckOptions, Kind, check};
use butternut_format::units::TreeId;
use std::sync::Arc;

/// Result of an input, for tests that count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// The volume cannot be opened.
    Refused,
    /// The log cannot be replayed.
    LogRefused,
    Replayed,
}

/// Findings about what a log decides: which names and inodes there are.
const OF_NAMES: [Kind; 17] = [
    Kind::DeviceErrors,
    Kind::InodeMissing,
    Kind::InodeLinks,
    Kind::InodeBytes,
    Kind::DirectorySize,
    Kind::DirectoryItems,
    Kind::DirectoryLoop,
    Kind::EntryUnpaired,
    Kind::ReferenceUnpaired,
    Kind::EntryKind,
    Kind::OrphanMissing,
    Kind::OrphanExtra,
    Kind::FileExtentGap,
    Kind::FileExtentForm,
    Kind::FileExtentBehind,
    Kind::RootEntry,
    Kind::RootReference,
];

/// Findings that depend on the flags of an inode and on the checksums in the log.
const OF_CONTENTS: [Kind; 3] =
    [Kind::ChecksumsMissing, Kind::ChecksumsUnexpected, Kind::DataCorrupt];

fn devices(device: &Arc<ScratchDevice>) -> Vec<Arc<dyn Device>> {
    vec![Arc::clone(device) as Arc<dyn Device>]
}

fn is_consistent(device: &Arc<ScratchDevice>) -> Result<(), String> {
    let report = check(devices(device), &CheckOptions::default());
    let report = report.map_err(|error| error.to_string())?;
    let findings = report.findings.iter();
    let findings =
        findings.filter(|f| !OF_NAMES.contains(&f.kind) && !OF_CONTENTS.contains(&f.kind));
    let findings: Vec<String> = findings.map(ToString::to_string).collect();
    if findings.is_empty() { Ok(()) } else { Err(findings.join("; ")) }
}

/// Returns what a volume shows of its files, opened for reading.
fn shown(device: &Arc<ScratchDevice>, options: &MountOptions) -> Option<(Results, bool)> {
    let fs = Filesystem::open_devices(devices(device), options).ok()?;
    let mut results = walk(&fs);
    results.retain(|name, _| name.starts_with(b"/"));
    let is_replayed = !fs.notices().iter().any(|notice| notice.to_string().contains("log tree"));
    Some((results, is_replayed))
}

fn differences(one: &Results, other: &Results) -> Vec<String> {
    let names = one.keys().chain(other.keys());
    let differing = names.filter(|name| one.get(*name) != other.get(*name));
    differing.take(8).map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// Edits a seed.
fn craft<'a>(seed: &'a Arc<Seed>, count: u8, rest: &'a [u8]) -> (PatchedDevice, &'a [u8]) {
    let mut editor = Editor::new(seed);
    let count = rest.len().min(usize::from(count % 8) * EDIT_BYTES);
    let (edits, script) = rest.split_at(count - count % EDIT_BYTES);
    let (edits, _) = edits.as_chunks::<EDIT_BYTES>();
    let log = TreeId::TREE_LOG.0;
    for edit in edits.iter().map(Edit::of) {
        match edit.kind {
            0xff => editor.edit_super(&edit),
            0xf0.. => editor.edit(&edit),
            0xe0.. => editor.point_elsewhere(&edit, log),
            _ => editor.edit_leaf(&edit, Some(log)),
        }
    }
    (editor.device, script)
}

/// Runs one input, and panics if a law is broken.
pub fn logged(input: &[u8]) -> Replayed {
    let [seed, count, rest @ ..] = input else { return Replayed::Refused };
    let seed = &LOGGED_SEEDS[usize::from(*seed) % LOGGED_SEEDS.len()];
    let (device, script) = craft(seed, *count, rest);
    replay(device, script)
}

/// Changes the items of all leaves of a seed: `change` is called with the tree of each leaf and its
/// items, and returns whether it has changed them. Then replays the log as [`logged`] does.
pub fn logged_with(seed: usize, change: impl FnMut(TreeId, &mut Vec<Item>) -> bool) -> Replayed {
    let mut editor = Editor::new(&LOGGED_SEEDS[seed]);
    editor.change_leaves(change);
    replay(editor.device, &[])
}

fn replay(device: PatchedDevice, script: &[u8]) -> Replayed {
    let device = Arc::new(ScratchDevice::new(device));
    let was_consistent = is_consistent(&device).is_ok();
    let reading = writing().read_only(true);
    let before = shown(&device, &reading);
    let super_block = device.super_block();
    let opened = Filesystem::open_devices(devices(&device), &writing());
    assert!(!device.is_over(), "the open does not end");
    let fs = match opened {
        Ok(fs) => fs,
        Err(error) => {
            assert!(device.super_block() == super_block, "refused, and committed: {error}");
            let Some((before, is_replayed)) = before else { return Replayed::Refused };
            if !is_replayed {
                let (committed, _) = shown(&device, &reading.ignore_log(true)).expect("opens");
                assert_eq!(differences(&before, &committed), [""; 0], "shows the last commit");
            }
            return Replayed::LogRefused;
        }
    };
    drop(fs);
    if was_consistent {
        let (before, _) = before.expect("opened for writing, so for reading");
        let (after, _) = shown(&device, &reading).expect("opens after the replay");
        assert_eq!(differences(&before, &after), [""; 0], "law 3");
        is_consistent(&device).expect("law 4 after the replay");
    }
    if let Ok(fs) = Filesystem::open_devices(devices(&device), &writing()) {
        run_steps(fs, script);
    }
    assert!(!device.is_over(), "the script does not end");
    if was_consistent {
        is_consistent(&device).expect("law 4 after the script");
    }
    Replayed::Replayed
}

pub(crate) fn replaying(input: &[u8]) {
    logged(input);
}
