//! Partitions of a disk or image, as the place of a volume: their lookup, and the list of them in
//! messages where no volume is found.
//!
//! 1. A message names what can be typed: `?partition=2` is a btrfs volume.
//! 2. The contents of partitions are found by their magic numbers, and errors of that are ignored:
//!    the message is about another failure.

use std::path::{Path, PathBuf};

use butternut::DevicePath;
use butternut::device::partitions::{Partition, PartitionError, PartitionTable};
use butternut::device::{FileDevice, OpenDevice, Sharing};
use butternut_mkfs::{Signature, find_signature};

use crate::failure::{Failure, chain, hints, without_object};
use crate::output::size::{Units, pretty};

/// Maximum number of partitions that a message lists.
const LISTED_MAX: usize = 8;

/// Returns the bytes of a partition. A file that does not exist is left to the caller (law 4 of
/// [`super::arg`]).
///
/// # Errors
/// Fails with the reason and what to do.
pub(super) fn find(path: PathBuf, number: u32) -> Result<DevicePath, String> {
    if !path.exists() {
        return Ok(DevicePath { path, offset: 0, bytes: None });
    }
    DevicePath::partition(&path, number).map_err(|error| {
        let failure = failure(&path.display().to_string(), &path, &error);
        // The caller puts the argument before it.
        match failure {
            Failure::Message { why, hint: Some(hint), .. } => format!("{why} ({hint})"),
            Failure::Message { why, hint: None, .. } => why,
            closed @ Failure::StdoutClosed => closed.to_string(),
        }
    })
}

/// Describes why the partitions of `what` cannot be used, with what to do.
pub(crate) fn failure(what: &str, path: &Path, error: &PartitionError) -> Failure {
    let failure = Failure::new(what, without_object(&chain(error), what));
    match error {
        PartitionError::Device(error) => failure.hint_if(hints::of_device(error)),
        PartitionError::NoTable => failure.hint(match contents_of(path, 0, None) {
            Some(found) => format!("the whole of it is {found}"),
            None => "if a volume starts inside it, name the place with ?offset=N".to_owned(),
        }),
        PartitionError::Damaged { .. } => {
            failure.hint("if you know where a volume starts, add ?offset=N")
        }
        PartitionError::NoPartition { .. } | PartitionError::Extended { .. } => {
            failure.hint("`butternut partitions` lists them")
        }
        PartitionError::Unusable { start, .. } => {
            failure.hint(format!("?offset={start} names its start, without its end"))
        }
    }
}

/// Returns what the bytes at an offset are, by their magic number.
pub(super) fn contents_of(path: &Path, offset: u64, bytes: Option<u64>) -> Option<Signature> {
    let sharing = Sharing::Unlocked;
    let how = OpenDevice { offset, bytes, direct: false, sharing, ..OpenDevice::default() };
    let device = FileDevice::open(path, &how).ok()?;
    find_signature(&device).ok().flatten()
}

/// Returns what a partition contains; nothing where its bytes are not used.
pub(crate) fn contents(path: &Path, partition: &Partition) -> Option<Signature> {
    let is_read = partition.problem.is_none() && !partition.kind.is_extended();
    is_read.then(|| contents_of(path, partition.start, Some(partition.bytes))).flatten()
}

/// Returns a device whose volume is a partition, as it can be typed.
pub(super) fn typed(path: &Path, offset: u64) -> String {
    let table = PartitionTable::of_path(path).ok();
    let found = table.and_then(|table| {
        table.partitions.into_iter().find(|it| it.start == offset && !it.kind.is_extended())
    });
    match found {
        Some(partition) => format!("{}?partition={}", path.display(), partition.number),
        None => format!("{}?offset={offset}", path.display()),
    }
}

/// What a message says of the partitions of a disk.
pub(super) struct Listed {
    pub(super) has_volume: bool,
    pub(super) text: String,
}

/// Lists the partitions of a disk, those with a volume first and as they can be typed. `None` if
/// there are none.
pub(super) fn list(path: &Path, table: &PartitionTable) -> Option<Listed> {
    let used = table.partitions.iter().filter(|it| !it.kind.is_extended());
    let mut parts: Vec<(bool, String)> = used
        .map(|partition| {
            let found = contents(path, partition);
            let number = partition.number;
            let what = match (&partition.problem, found) {
                (Some(problem), _) => format!("partition {number} {problem}"),
                (None, Some(found)) => format!("?partition={number} is {found}"),
                (None, None) => {
                    let size = pretty(partition.bytes, Units::Binary);
                    format!("partition {number} of {size} has no known contents")
                }
            };
            (found.is_some_and(|found| found.is_btrfs()), what)
        })
        .collect();
    if parts.is_empty() {
        return None;
    }
    let has_volume = parts.iter().any(|(is_volume, _)| *is_volume);
    // Volumes first.
    parts.sort_by_key(|(is_volume, _)| !is_volume);
    let left_out = parts.len().saturating_sub(LISTED_MAX);
    let mut said: Vec<String> = parts.into_iter().take(LISTED_MAX).map(|(_, what)| what).collect();
    if left_out > 0 {
        said.push(format!("and {left_out} more, which `butternut partitions` lists"));
    }
    let begin = if has_volume { "it has partitions" } else { "it has partitions, none of btrfs" };
    Some(Listed { has_volume, text: format!("{begin}: {}", said.join("; ")) })
}
