//! Checks the crashes of a run against its history.

use super::history::History;
use super::names::NAMES;
use super::{find, read};
use crate::crash::{JudgeOptions, StoryBuilder, judge};
use crate::histories::history::CELLS;
use crate::operation::Lane;
use crate::volume::{check_crashed, is_super_block};
use anyhow::{Context, Result, bail, ensure};
use butternut::{Filesystem, MountOptions};
use butternut_device::{Crash, CrashImage, CrashOptions, Device, RecordingDevice};
use std::sync::Arc;

const SEEDED_PER_GAP: u32 = 2;
/// One in so many of the checked crashes is also passed to the checker.
const CHECKED_ONE_IN: u64 = 8;

/// Checks one crash in so many. Returns the number of checked crashes.
pub(super) fn check(
    device: &RecordingDevice,
    history: &History,
    seed: u64,
    one_in: u64,
) -> Result<u64> {
    let story = StoryBuilder::default().end(device);
    let crashes = CrashOptions { seed, seeded_per_gap: SEEDED_PER_GAP, pivotal: is_super_block };
    let options = JudgeOptions { crashes, threads: 2, one_in };
    let verdict = judge(&story, &options, &|crash, image, _| {
        let number = crash.number / one_in.max(1);
        verify(crash, image, history, number.is_multiple_of(CHECKED_ONE_IN))
            .map_err(|error| format!("{error:#}"))
    });
    if verdict.failed > 0 {
        bail!("{verdict}");
    }
    Ok(verdict.states)
}

fn verify(crash: &Crash, image: CrashImage, history: &History, is_checked: bool) -> Result<()> {
    let device: Arc<dyn Device> = Arc::new(image);
    if is_checked {
        check_crashed(&device)?;
    }
    let options = MountOptions::default();
    let filesystem = Filesystem::open_devices(vec![Arc::clone(&device)], &options)?;
    let window = history.crash_window(None, crash.position);
    for (number, name) in NAMES.iter().enumerate() {
        let found = find(&filesystem, name)?;
        let names = history.names();
        ensure!(
            names.allows(number, found, &window),
            "{name} refers to {found:?} in {window:?}, after {}",
            names.describe(number)
        );
        drop(names);
        let Some(id) = found else { continue };
        let file = filesystem.open_file(id).with_context(|| format!("{name}, {id:?}"))?;
        let bytes = read(&file, 0..CELLS, Lane::Cached)?;
        let window = history.crash_window(Some(id), crash.position);
        history.check(id, 0, &bytes, &window).map_err(|text| anyhow::anyhow!("{name}: {text}"))?;
    }
    Ok(())
}
