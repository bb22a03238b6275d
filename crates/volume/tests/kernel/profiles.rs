//! Volumes of every profile, written by the kernel: read completely, with devices missing, and with
//! corrupt mirrors. Reads succeed as far as the redundancy allows; beyond that exactly the lost
//! ranges are errors.

use crate::image::{Image, fill, kernel_is_here};
use crate::survey::{DEGRADED, Opened, Survey, open};
use butternut_device::{Device, Fault, Rule};
use butternut_format::units::Logical;
use butternut_volume::{
    Checksums, DataRead, ErrorCounts, Layout, OpenOptions, Segment, VolumeError,
};
use std::sync::Arc;

const ROT: Fault = Fault::Rot { bits: 3 };

fn make(profile: &str, devices: usize) -> Image {
    let image = Image::make(devices, &["-d", profile, "-m", profile]);
    image.with_kernel(&image.paths, "", fill);
    image
}

/// All checks of one profile.
fn check(profile: &str, devices: usize, tolerated: usize) {
    if !kernel_is_here() {
        return;
    }
    check_image(&make(profile, devices), devices, tolerated);
}

fn check_image(image: &Image, devices: usize, tolerated: usize) {
    let whole = open(&image.paths, &[], &OpenOptions::default()).unwrap();
    let survey = Survey::of(&whole.volume);
    survey.check_all(&whole.volume, "with nothing wrong");
    assert!(whole.volume.writable_degraded());
    every_mirror_is_where_the_layout_says(&whole, &survey);
    for status in whole.volume.devices() {
        assert_eq!(status.errors, ErrorCounts::default(), "nothing was wrong: {status:?}");
    }
    assert_eq!(whole.volume.rescue_counts(), butternut_volume::RescueCounts::default());
    for missing in subsets(devices, tolerated) {
        without(image, &survey, &missing);
    }
    for missing in subsets(devices, tolerated + 1) {
        if missing.len() > tolerated && missing.len() < devices {
            beyond(image, &survey, &missing);
        }
    }
    rotten_blocks(&whole, &survey);
    rotten_sectors(&whole, &survey);
    unreadable_sectors(&whole, &survey);
}

/// All subsets of 1 to `most` of `count` elements.
fn subsets(count: usize, most: usize) -> Vec<Vec<usize>> {
    (1_usize..1 << count)
        .map(|bits| (0..count).filter(|index| bits >> index & 1 == 1).collect::<Vec<_>>())
        .filter(|set| set.len() <= most)
        .collect()
}

/// Every byte that the kernel wrote is on each stripe that [`Layout`] names.
fn every_mirror_is_where_the_layout_says(whole: &Opened, survey: &Survey) {
    let chunks = whole.volume.chunks();
    let blocks = survey.block_bytes.iter();
    for (&logical, bytes) in blocks.chain(&survey.sectors) {
        let layout = chunks.find(Logical(logical)).unwrap();
        for copy in 0..layout.attributes().copies {
            let mut raw = vec![0; bytes.len()];
            whole.volume.read_raw(Logical(logical), copy, &mut raw).unwrap();
            assert_eq!(&raw, bytes, "copy {copy} at {logical}");
        }
    }
}

fn without(image: &Image, survey: &Survey, missing: &[usize]) {
    let refused = open(&image.paths, missing, &OpenOptions::default()).map(|_| ()).unwrap_err();
    let VolumeError::MissingDevices { devids } = refused else { panic!("{refused}") };
    let want: Vec<u64> = missing.iter().map(|&index| index as u64 + 1).collect();
    assert_eq!(devids.iter().map(|devid| devid.0).collect::<Vec<_>>(), want);
    let opened = open(&image.paths, missing, &DEGRADED).unwrap();
    survey.check_all(&opened.volume, &format!("without {missing:?}"));
    assert!(opened.volume.writable_degraded());
    let statuses = opened.volume.devices();
    assert_eq!(statuses.len(), image.paths.len());
    for status in statuses {
        assert_eq!(status.is_missing(), want.contains(&status.devid.0));
        assert_eq!(status.errors, ErrorCounts::default(), "a missing device is no error");
    }
}

/// More devices missing than the profile tolerates: refused, unless each chunk happens to be
/// complete.
fn beyond(image: &Image, survey: &Survey, missing: &[usize]) {
    match open(&image.paths, missing, &DEGRADED) {
        Ok(opened) => {
            survey.check_all(&opened.volume, &format!("without {missing:?}"));
        }
        Err(VolumeError::ChunksLost { devids, lost, .. }) => {
            assert_eq!(devids.len(), missing.len());
            assert!(!lost.is_empty());
        }
        // The chunk tree itself is in a lost chunk.
        Err(VolumeError::Unreadable(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

fn range(layout: &Layout, segment: &Segment, copy: usize) -> (usize, std::ops::Range<u64>) {
    let place = &layout.mirrors(segment)[copy];
    let start = segment.physical(place).0;
    (place.slot.unwrap(), start..start + segment.bytes)
}

/// Each mirror corrupt in turn: the read succeeds and counts one error. All mirrors corrupt: an
/// error, or a reconstruction from parity.
fn rotten_blocks(whole: &Opened, survey: &Survey) {
    let chunks = whole.volume.chunks();
    for expected in survey.blocks.iter().step_by(survey.blocks.len() / 8) {
        let layout = chunks.find(expected.logical).unwrap();
        let node_bytes = u64::from(whole.volume.super_block().node_bytes());
        let segment = layout.segment(expected.logical, node_bytes).unwrap();
        let copies = layout.attributes().copies;
        let redundant = copies > 1 || layout.attributes().parities > 0;
        let before = corruption_errors(whole);
        for copy in 0..copies {
            let (slot, range) = range(layout, &segment, copy);
            whole.add_fault(slot, Rule::at(range, ROT));
            let result = whole.volume.read_block(expected);
            assert_eq!(result.is_ok(), redundant, "{result:?}");
            if let Ok(block) = result {
                assert_eq!(block.bytes(), survey.block_bytes[&expected.logical.0]);
            }
            whole.clear_faults();
        }
        // Only the mirror that is read first counts an error; corruption of the others is not
        // found.
        assert_eq!(corruption_errors(whole), before + 1);
        for copy in 0..copies {
            let (slot, range) = range(layout, &segment, copy);
            whole.add_fault(slot, Rule::at(range, ROT));
        }
        let result = whole.volume.read_block(expected);
        if layout.attributes().parities > 0 {
            assert_eq!(result.unwrap().bytes(), survey.block_bytes[&expected.logical.0]);
            assert_eq!(corruption_errors(whole), before + 2);
        } else {
            let error = result.unwrap_err();
            let [bad] = error.bad_ranges() else { panic!("{error}") };
            assert_eq!((bad.logical, bad.bytes), (expected.logical, node_bytes));
            assert_eq!(bad.sources.len(), copies, "{error}");
            assert_eq!(corruption_errors(whole), before + 1 + copies as u64);
        }
        whole.clear_faults();
    }
}

fn corruption_errors(whole: &Opened) -> u64 {
    whole.volume.devices().iter().map(|status| status.errors.corruption_errors).sum()
}

fn read_errors(whole: &Opened) -> u64 {
    whole.volume.devices().iter().map(|status| status.errors.read_errors).sum()
}

/// Some sectors in the middle of large runs.
fn victims(survey: &Survey) -> Vec<u64> {
    let all: Vec<u64> = survey.sectors.keys().copied().collect();
    all.iter().copied().skip(37).step_by(all.len() / 6).collect()
}

/// As many corrupt elements in a full stripe as the parity can repair, and then one more; with
/// mirrors, all but one, and then all.
fn rotten_sectors(whole: &Opened, survey: &Survey) {
    strike_sectors(whole, survey, ROT);
    assert_eq!(read_errors(whole), 0);
}

fn unreadable_sectors(whole: &Opened, survey: &Survey) {
    strike_sectors(whole, survey, Fault::ReadError);
    assert!(read_errors(whole) > 0);
}

fn strike_sectors(whole: &Opened, survey: &Survey, fault: Fault) {
    let chunks = whole.volume.chunks();
    for victim in victims(survey) {
        let layout = chunks.find(Logical(victim)).unwrap();
        let segment = layout.segment(Logical(victim), 4096).unwrap();
        let mut places: Vec<(usize, u64)> = layout
            .mirrors(&segment)
            .iter()
            .map(|place| (place.slot.unwrap(), segment.physical(place).0))
            .collect();
        let row = layout.full_stripe(&segment).enumerate();
        let row = row.filter(|(element, _)| *element != segment.element);
        places.extend(row.map(|(_, place)| (place.slot.unwrap(), segment.physical(place).0)));
        let bearable = layout.attributes().copies - 1 + layout.attributes().parities;
        for (struck, &(slot, physical)) in places.iter().enumerate().take(bearable + 1) {
            whole.add_fault(slot, Rule::at(physical..physical + 4096, fault));
            let result = survey.sector(&whole.volume, victim);
            if struck < bearable {
                result.unwrap_or_else(|error| panic!("{} struck: {error}", struck + 1));
                continue;
            }
            let error = result.unwrap_err();
            let [bad] = error.bad_ranges() else { panic!("{error}") };
            assert_eq!((bad.logical.0, bad.bytes), (victim, 4096));
        }
        // Exactly the victim is bad when read with its neighbours; with parity also the sectors of
        // the same full stripe whose own element was corrupted.
        let bad = survey.bad_sectors(&whole.volume, "struck");
        assert!(bad.contains(&victim));
        for at in bad {
            let piece_bad = chunks.find(Logical(at)).unwrap().segment(Logical(at), 4096).unwrap();
            assert!(at == victim || layout.attributes().parities > 0, "{at} of {victim}");
            assert_eq!(piece_bad.stripe_offset, segment.stripe_offset, "another full stripe");
        }
        whole.clear_faults();
    }
}

#[test]
fn single_is_read_right() {
    check("single", 1, 0);
}

#[test]
fn dup_is_read_right() {
    check("dup", 1, 0);
}

#[test]
fn raid0_is_read_right() {
    check("raid0", 3, 0);
}

#[test]
fn raid1_is_read_right() {
    check("raid1", 2, 1);
}

#[test]
fn raid1_over_three_devices_is_read_right() {
    check("raid1", 3, 1);
}

#[test]
fn raid1c3_is_read_right() {
    check("raid1c3", 3, 2);
}

#[test]
fn raid1c4_is_read_right() {
    check("raid1c4", 4, 3);
}

#[test]
fn raid10_is_read_right() {
    check("raid10", 4, 1);
}

#[test]
fn raid5_is_read_right() {
    check("raid5", 4, 1);
}

#[test]
fn raid5_of_two_devices_is_read_right() {
    check("raid5", 2, 1);
}

#[test]
fn raid6_is_read_right() {
    check("raid6", 5, 2);
}

#[test]
fn raid6_of_three_devices_is_read_right() {
    check("raid6", 3, 2);
}

/// With one device missing, the second parity still repairs corruption on another.
#[test]
fn raid6_bears_rot_besides_a_missing_device() {
    if !kernel_is_here() {
        return;
    }
    let image = make("raid6", 5);
    let whole = open(&image.paths, &[], &OpenOptions::default()).unwrap();
    let survey = Survey::of(&whole.volume);
    for missing in 0..5 {
        let opened = open(&image.paths, &[missing], &DEGRADED).unwrap();
        for harmed in 0..4 {
            opened.add_fault(
                harmed,
                Rule { when: butternut_device::When::OneIn(40), ..Rule::everywhere(ROT) },
            );
            survey.check_all(&opened.volume, &format!("without {missing}, rot in {harmed}"));
            opened.clear_faults();
        }
        assert!(corruption_errors(&opened) > 0);
    }
}

/// Chunks on a lost device fail; others are read.
#[test]
fn lost_chunks_fail_alone_when_that_is_allowed() {
    if !kernel_is_here() {
        return;
    }
    let image = Image::make(3, &["-d", "raid0", "-m", "raid1c3"]);
    image.with_kernel(&image.paths, "", fill);
    let whole = open(&image.paths, &[], &OpenOptions::default()).unwrap();
    let survey = Survey::of(&whole.volume);
    let refused = open(&image.paths, &[1], &DEGRADED).map(|_| ()).unwrap_err();
    assert!(matches!(refused, VolumeError::ChunksLost { .. }), "{refused}");
    let options = OpenOptions { allow_lost_chunks: true, ..DEGRADED };
    let opened = open(&image.paths, &[1], &options).unwrap();
    assert!(!opened.volume.writable_degraded());
    let chunks = opened.volume.chunks();
    let mut bad = survey.bad_sectors(&opened.volume, "without the second of three");
    bad.sort_unstable();
    let lost = |at: &u64| {
        let layout = chunks.find(Logical(*at)).unwrap();
        layout.mirrors(&layout.segment(Logical(*at), 4096).unwrap())[0].slot.is_none()
    };
    let want: Vec<u64> = survey.sectors.keys().copied().filter(lost).collect();
    assert!(!want.is_empty() && want.len() < survey.sectors.len());
    assert_eq!(bad, want);
}

/// Data without checksums is not verified, and is still read from a readable mirror.
#[test]
fn data_without_checksums_survives_a_missing_device_and_read_errors() {
    if !kernel_is_here() {
        return;
    }
    for (profile, devices) in [("raid1", 2), ("raid10", 4), ("raid5", 3), ("raid6", 4)] {
        let image = make(profile, devices);
        let whole = open(&image.paths, &[], &OpenOptions::default()).unwrap();
        let survey = Survey::of(&whole.volume);
        for missing in 0..=devices {
            let without: Vec<usize> = (missing < devices).then_some(missing).into_iter().collect();
            let opened = open(&image.paths, &without, &DEGRADED).unwrap();
            if without.is_empty() {
                opened.add_fault(0, Rule::everywhere(Fault::ReadError));
            }
            for (logical, checksums) in &survey.data {
                let mut bytes = vec![0; checksums.len() / 4 * 4096];
                let mut reads = [DataRead::new(*logical, &mut bytes, Checksums::None)];
                opened.volume.read_data(&mut reads);
                reads[0].result.as_ref().unwrap();
                for (index, sector) in bytes.chunks(4096).enumerate() {
                    assert_eq!(sector, survey.sectors[&(logical.0 + index as u64 * 4096)]);
                }
            }
        }
    }
}

/// Limits: a block is one device read, and so is a contiguous megabyte.
#[test]
fn a_contiguous_read_is_one_device_read() {
    if !kernel_is_here() {
        return;
    }
    for profile in ["single", "dup"] {
        let image = make(profile, 1);
        let whole = open(&image.paths, &[], &OpenOptions::default()).unwrap();
        let survey = Survey::of(&whole.volume);
        let device = whole.devices[0].as_ref().unwrap();
        let before = device.counters().now();
        whole.volume.read_block(&survey.blocks[3]).unwrap();
        let after = device.counters().now() - before;
        assert_eq!((after.reads, after.read_bytes), (1, 16384));
        let (logical, checksums) =
            survey.data.iter().max_by_key(|(_, checksums)| checksums.len()).unwrap();
        let mut bytes = vec![0; 1 << 20];
        let before = device.counters().now();
        let checksums = Checksums::Stored(&checksums[..1024]);
        let mut reads = [DataRead::new(*logical, &mut bytes, checksums)];
        whole.volume.read_data(&mut reads);
        reads[0].result.as_ref().unwrap();
        let after = device.counters().now() - before;
        assert_eq!((after.reads, after.read_bytes), (1, 1 << 20));
    }
}

/// A long read with one bad sector: the read and the sector are counted, the rest is good.
#[test]
fn one_unreadable_sector_loses_nothing_else() {
    if !kernel_is_here() {
        return;
    }
    let image = make("single", 1);
    let whole = open(&image.paths, &[], &OpenOptions::default()).unwrap();
    let survey = Survey::of(&whole.volume);
    let (logical, checksums) =
        survey.data.iter().max_by_key(|(_, checksums)| checksums.len()).unwrap();
    let victim = logical.0 + 100 * 4096;
    let layout = Arc::clone(whole.volume.chunks().find(*logical).unwrap());
    let segment = layout.segment(Logical(victim), 4096).unwrap();
    let (slot, range) = range(&layout, &segment, 0);
    whole.add_fault(slot, Rule::at(range, Fault::ReadError));
    let mut bytes = vec![0; 1 << 20];
    let mut reads = [DataRead::new(*logical, &mut bytes, Checksums::Stored(&checksums[..1024]))];
    whole.volume.read_data(&mut reads);
    let error = reads[0].result.as_ref().unwrap_err();
    let [bad] = error.bad_ranges() else { panic!("{error}") };
    assert_eq!((bad.logical.0, bad.bytes), (victim, 4096));
    assert_eq!(read_errors(&whole), 2);
    let lost = whole.volume.rescue_counts();
    assert_eq!((lost.sectors, lost.sectors_lost), (255, 1));
}

#[test]
fn other_checksums_and_block_sizes_are_read_right() {
    if !kernel_is_here() {
        return;
    }
    for (csum, node_bytes, profile, devices, tolerated) in [
        ("xxhash", "4096", "raid1", 2, 1),
        ("sha256", "65536", "raid10", 4, 1),
        ("blake2", "32768", "raid6", 4, 2),
        ("blake2", "65536", "raid5", 3, 1),
    ] {
        let mkfs = ["-d", profile, "-m", profile, "--csum", csum, "-n", node_bytes];
        let image = Image::make(devices, &mkfs);
        image.with_kernel(&image.paths, "", fill);
        check_image(&image, devices, tolerated);
    }
}
