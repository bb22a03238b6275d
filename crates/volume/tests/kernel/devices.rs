//! Which devices belong to a volume, and which superblock is used: over volumes made by
//! `mkfs.btrfs` and changed by `btrfstune` and by the kernel.

use crate::image::{Image, fill, kernel_is_here, run};
use crate::survey::{DEGRADED, Survey, open};
use butternut_device::{Device, MemoryDevice};
use butternut_format::super_block::{COPY_OFFSETS, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_format::units::Generation;
use butternut_undo::LoopGuard;
use butternut_volume::{OpenOptions, Volume, VolumeError, super_blocks};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// A small device in memory that holds the given superblock copies and nothing else.
fn with_copies(name: &str, copies: &[(usize, Vec<u8>)]) -> Arc<dyn Device> {
    let device = MemoryDevice::new(name, 128 << 20);
    for (copy, bytes) in copies {
        device.write_at(COPY_OFFSETS[*copy], bytes).unwrap();
    }
    Arc::new(device)
}

/// Copy 0 of a fresh volume, as a template.
fn template() -> Vec<u8> {
    let image = Image::make(1, &[]);
    let mut bytes = vec![0; SUPER_BLOCK_BYTES];
    File::open(&image.paths[0]).unwrap().read_exact_at(&mut bytes, COPY_OFFSETS[0]).unwrap();
    bytes
}

const FSID: usize = 32;
const BYTENR: usize = 48;
const GENERATION: usize = 72;
const CHUNK_ROOT_GENERATION: usize = 164;
const INCOMPAT: usize = 188;
const DEV_ITEM_FSID: usize = 201 + 82;
const LABEL: usize = 299;

/// Returns the template as copy `copy`, edited, with a correct checksum.
fn copy_of(
    template: &[u8],
    copy: usize,
    generation: u64,
    edit: impl Fn(&mut [u8]),
) -> (usize, Vec<u8>) {
    let mut bytes = template.to_vec();
    bytes[BYTENR..BYTENR + 8].copy_from_slice(&COPY_OFFSETS[copy].to_le_bytes());
    bytes[GENERATION..GENERATION + 8].copy_from_slice(&generation.to_le_bytes());
    bytes[CHUNK_ROOT_GENERATION..CHUNK_ROOT_GENERATION + 8].copy_from_slice(&1_u64.to_le_bytes());
    edit(&mut bytes);
    let digest = butternut_format::checksum::ChecksumKind::Crc32c.compute(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
    (copy, bytes)
}

fn label(text: &'static str) -> impl Fn(&mut [u8]) {
    move |bytes| bytes[LABEL..LABEL + text.len()].copy_from_slice(text.as_bytes())
}

fn other_fsid(bytes: &mut [u8]) {
    bytes[FSID..FSID + 16].fill(9);
    bytes[DEV_ITEM_FSID..DEV_ITEM_FSID + 16].fill(9);
}

fn chosen(device: &Arc<dyn Device>) -> Result<(String, u64), VolumeError> {
    super_blocks::choose(device.as_ref(), None).map(|good: SuperBlock| {
        (String::from_utf8_lossy(good.label()).into_owned(), good.generation().0)
    })
}

#[test]
fn the_newest_good_copy_is_used_and_the_first_of_equals() {
    if !kernel_is_here() {
        return;
    }
    let t = template();
    let torn = |(copy, mut bytes): (usize, Vec<u8>)| {
        bytes[3000] ^= 1;
        (copy, bytes)
    };
    let a = |generation| copy_of(&t, 0, generation, label("first"));
    let b = |generation| copy_of(&t, 1, generation, label("second"));
    for (copies, want) in [
        (vec![a(9), b(9)], ("first", 9)),
        (vec![a(9), b(8)], ("first", 9)),
        (vec![a(8), b(9)], ("second", 9)),
        (vec![torn(a(9)), b(8)], ("second", 8)),
        (vec![a(8), torn(b(9))], ("first", 8)),
        (vec![b(9)], ("second", 9)),
    ] {
        let got = chosen(&with_copies("a", &copies)).unwrap();
        assert_eq!((got.0.as_str(), got.1), want);
    }
}

#[test]
fn a_copy_left_by_another_volume_is_not_used() {
    if !kernel_is_here() {
        return;
    }
    let t = template();
    let own = copy_of(&t, 0, 5, label("own"));
    let old = copy_of(&t, 1, 500, |bytes| {
        other_fsid(bytes);
        label("old")(bytes);
    });
    assert_eq!(chosen(&with_copies("a", &[own, old])).unwrap(), ("own".to_owned(), 5));
}

#[test]
fn without_a_good_copy_the_error_names_each_fault() {
    if !kernel_is_here() {
        return;
    }
    let t = template();
    let mut first = copy_of(&t, 0, 5, |_| ());
    first.1[100] ^= 1;
    let misplaced = (1, copy_of(&t, 0, 5, |_| ()).1);
    let error = chosen(&with_copies("a.img", &[first, misplaced])).unwrap_err().to_string();
    let start = "a.img: no usable superblock: superblock copy 0: csum: have ";
    assert!(error.starts_with(start), "{error}");
    let end = "; superblock copy 1: bytenr: have 65536, want 67108864";
    assert!(error.ends_with(end), "{error}");
    let error = chosen(&with_copies("b.img", &[])).unwrap_err().to_string();
    assert!(error.contains("magic"), "{error}");
}

#[test]
fn an_older_copy_does_not_bypass_an_unknown_feature() {
    if !kernel_is_here() {
        return;
    }
    let t = template();
    let new = copy_of(&t, 0, 6, |bytes| bytes[INCOMPAT + 6] |= 0x20);
    let old = copy_of(&t, 1, 5, |_| ());
    let error = chosen(&with_copies("a.img", &[new, old])).unwrap_err();
    let VolumeError::Unsupported { refused, .. } = &error else { panic!("{error}") };
    assert!(refused.to_string().contains("unknown (bit 53)"), "{refused}");
}

#[test]
fn a_device_of_another_volume_is_named() {
    if !kernel_is_here() {
        return;
    }
    let (a, b) = (Image::make(1, &[]), Image::make(1, &[]));
    let paths = [a.paths[0].clone(), b.paths[0].clone()];
    let error = open(&paths, &[], &OpenOptions::default()).map(|_| ()).unwrap_err();
    let VolumeError::OtherVolume { device, other, .. } = &error else { panic!("{error}") };
    assert_eq!(Path::new(device), paths[1]);
    assert_eq!(Path::new(other), paths[0]);
}

#[test]
fn the_newer_of_two_versions_of_a_device_is_used() {
    if !kernel_is_here() {
        return;
    }
    let image = Image::make(1, &[]);
    let old = image.paths[0].with_extension("old");
    fs::copy(&image.paths[0], &old).unwrap();
    let twins = [image.paths[0].clone(), old.clone()];
    let error = open(&twins, &[], &OpenOptions::default()).map(|_| ()).unwrap_err();
    assert!(matches!(error, VolumeError::DuplicateDevice { .. }), "{error}");
    image.with_kernel(&image.paths, "", fill);
    for paths in [twins.clone(), [twins[1].clone(), twins[0].clone()]] {
        let opened = open(&paths, &[], &OpenOptions::default()).unwrap();
        Survey::of(&opened.volume);
        assert_eq!(opened.volume.devices().len(), 1);
    }
}

/// A device that missed commits is stale: its mirrors are read last, and old blocks are refused.
#[test]
fn a_stale_device_is_read_last() {
    if !kernel_is_here() {
        return;
    }
    let image = Image::make(2, &["-d", "raid1", "-m", "raid1"]);
    image.with_kernel(&image.paths, "", |point| fs::write(point.join("early"), "x").unwrap());
    image.with_kernel(&image.paths[..1], "degraded", fill);
    let opened = open(&image.paths, &[], &OpenOptions::default()).unwrap();
    let survey = Survey::of(&opened.volume);
    survey.check_all(&opened.volume, "with a stale device");
    let stale: Vec<bool> = opened.volume.devices().iter().map(|status| status.is_stale).collect();
    assert_eq!(stale, [false, true]);
    let errors: u64 =
        opened.volume.devices().iter().map(|status| status.errors.generation_errors).sum();
    assert_eq!(errors, 0, "the stale device was not read");
    // Without the current device the volume is as old as the stale one.
    let newest = opened.volume.super_block().generation();
    let alone = open(&image.paths, &[0], &DEGRADED).unwrap();
    assert!(alone.volume.super_block().generation() < newest);
}

/// A stale block that is read anyway (here: its device claims to be current) is a generation error.
#[test]
fn a_lost_write_is_detected_by_its_generation() {
    if !kernel_is_here() {
        return;
    }
    let image = Image::make(2, &["-d", "raid1", "-m", "raid1"]);
    image.with_kernel(&image.paths, "", |point| fs::write(point.join("early"), "x").unwrap());
    let old = image.paths[1].with_extension("old");
    fs::copy(&image.paths[1], &old).unwrap();
    image.with_kernel(&image.paths, "", fill);
    // The old device with the superblocks of the new one.
    let (new, old_file) =
        (File::open(&image.paths[1]).unwrap(), File::options().write(true).open(&old).unwrap());
    for offset in &COPY_OFFSETS[..2] {
        let mut bytes = vec![0; SUPER_BLOCK_BYTES];
        new.read_exact_at(&mut bytes, *offset).unwrap();
        old_file.write_all_at(&bytes, *offset).unwrap();
    }
    let paths = [image.paths[0].clone(), old];
    let opened = open(&paths, &[], &OpenOptions::default()).unwrap();
    Survey::of(&opened.volume);
    let errors = opened.volume.devices()[1].errors;
    assert_eq!(opened.volume.devices()[0].errors, butternut_volume::ErrorCounts::default());
    assert!(errors.generation_errors + errors.corruption_errors > 0, "{errors:?}");
    assert!(opened.volume.rescue_counts().blocks > 0);
}

#[test]
fn blocks_keep_their_fsid_when_the_volume_gets_a_new_one() {
    if !kernel_is_here() {
        return;
    }
    let image = Image::make(1, &[]);
    image.with_kernel(&image.paths, "", fill);
    let before = open(&image.paths, &[], &OpenOptions::default()).unwrap();
    let survey = Survey::of(&before.volume);
    let (fsid, blocks_fsid) = ids(&before.volume);
    assert_eq!(fsid, blocks_fsid);
    drop(before);
    run(Command::new("btrfstune").arg("-m").arg(&image.paths[0]));
    let after = open(&image.paths, &[], &OpenOptions::default()).unwrap();
    assert_ne!(ids(&after.volume).0, fsid);
    assert_eq!(ids(&after.volume).1, fsid);
    assert!(survey.bad_sectors(&after.volume, "with a changed fsid").is_empty());
    Survey::of(&after.volume);
}

fn ids(volume: &Volume) -> ([u8; 16], [u8; 16]) {
    (volume.super_block().fsid(), volume.super_block().metadata_uuid())
}

/// A volume grown from a seed: old blocks and old data stay on the seed, under the seed's fsid.
#[test]
fn a_volume_is_read_together_with_its_seed() {
    if !kernel_is_here() {
        return;
    }
    let image = Image::blank(2);
    run(Command::new("mkfs.btrfs").args(["-q", "-f"]).arg(&image.paths[0]));
    image.with_kernel(&image.paths[..1], "", fill);
    run(Command::new("btrfstune").args(["-S", "1"]).arg(&image.paths[0]));
    let seed_alone = open(&image.paths[..1], &[], &OpenOptions::default()).unwrap();
    let seed = Survey::of(&seed_alone.volume);
    drop(seed_alone);
    let sprout = LoopGuard::attach(&image.paths[1], &[]).unwrap();
    image.with_kernel(&image.paths[..1], "", |point| {
        run(Command::new("btrfs").args(["device", "add", "-f"]).arg(sprout.path()).arg(point));
        run(Command::new("mount").args(["-o", "remount,rw"]).arg(point));
        fs::write(point.join("grown"), vec![0x5a; 1 << 20]).unwrap();
    });
    drop(sprout);
    for paths in [image.paths.clone(), image.paths.iter().rev().cloned().collect()] {
        let opened = open(&paths, &[], &OpenOptions::default()).unwrap();
        let grown = Survey::of(&opened.volume);
        assert!(grown.sectors.len() >= seed.sectors.len() + 256);
        for (logical, sector) in &seed.sectors {
            assert_eq!(grown.sectors.get(logical), Some(sector), "{logical}");
        }
        let seeds: Vec<bool> = opened.volume.devices().iter().map(|d| d.is_seed).collect();
        assert_eq!(seeds, [true, false]);
        assert!(opened.volume.super_block().generation() > Generation(0));
    }
    let refused = open(&image.paths, &[0], &OpenOptions::default()).map(|_| ()).unwrap_err();
    assert!(matches!(&refused, VolumeError::MissingDevices { .. }), "{refused}");
    // A seed that the volume did not grow from.
    let foreign = Image::make(1, &[]);
    run(Command::new("btrfstune").args(["-S", "1"]).arg(&foreign.paths[0]));
    let paths = [image.paths[0].clone(), image.paths[1].clone(), foreign.paths[0].clone()];
    let refused = open(&paths, &[], &OpenOptions::default()).map(|_| ()).unwrap_err();
    let VolumeError::OtherVolume { device, .. } = &refused else { panic!("{refused}") };
    assert_eq!(Path::new(device), foreign.paths[0]);
}

#[test]
fn opening_without_devices_fails() {
    let error = Volume::open(Vec::new(), OpenOptions::default()).map(|_| ()).unwrap_err();
    assert!(matches!(error, VolumeError::NoDevices));
}
