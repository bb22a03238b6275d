//! Rot: damage to copies of known blocks, placed without asking the code under test where they are.
//!
//! A data sector of the profile images says which file and place it is ([`stamped_sector`]), so
//! every copy of it is found on the devices by its content. A tree block is known by the volume's
//! id and its own address in its header. Which places share a row of a parity profile is read
//! from what `btrfs inspect-internal dump-tree` prints of the chunk tree.

use crate::image::Image;
use crate::populate::seeded::{STAMP, Seeded, Texture, stamped_sector};
use crate::tool;
use anyhow::{Context, Result};
use rustix::fs::SeekFrom;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub const SECTOR_BYTES: u64 = 4096;
const SUPER_OFFSETS: [u64; 2] = [64 << 10, 64 << 20];

/// Where the volume's id stands in a superblock and in the header of a tree block.
const FSID: std::ops::Range<usize> = 32..48;
/// In a superblock: the magic number, where a tree block has other things.
const MAGIC: std::ops::Range<usize> = 64..72;

/// One sector of one of the stamped files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sector {
    pub file: u64,
    pub number: u64,
}

/// A place on a device: which of the image's devices, and the byte in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub device: usize,
    pub offset: u64,
}

/// A copy of an image that is there to be damaged.
#[derive(Debug)]
pub struct Victim {
    pub image: Image,
    /// Every place that holds a sector of a stamped file.
    pub sectors: BTreeMap<Sector, Vec<Place>>,
    /// Every place that holds a tree block, by logical address.
    pub blocks: BTreeMap<u64, Vec<Place>>,
    /// Every sector-sized place that is not a hole.
    pub written: Vec<Place>,
    chunks: Vec<Chunk>,
    _dir: tempfile::TempDir,
}

#[derive(Debug, Default)]
struct Chunk {
    /// Bytes that the chunk has on each device.
    device_bytes: u64,
    stripes: Vec<Place>,
}

impl Victim {
    pub fn copy_of(image: &Image, dir: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-judge-victim-").tempdir_in(dir)?;
        let mut copy = image.clone();
        copy.dir = dir.path().to_path_buf();
        for (from, to) in image.paths().iter().zip(copy.paths()) {
            tool::copy_sparse(from, &to)?;
        }
        let chunks = chunks(&copy.paths())?;
        let mut victim = Self {
            image: copy,
            sectors: BTreeMap::new(),
            blocks: BTreeMap::new(),
            written: Vec::new(),
            chunks,
            _dir: dir,
        };
        for (device, path) in victim.image.paths().iter().enumerate() {
            victim.scan(device, path)?;
        }
        Ok(victim)
    }

    /// Spoils some bytes of every place, so that no checksum over it can be right. Each place is
    /// spoilt in its own way: equal damage to two parts of a row can cancel out in the parity.
    pub fn spoil(&self, places: &[Place]) -> Result<()> {
        let open = |path: PathBuf| OpenOptions::new().read(true).write(true).open(path);
        let files = self.image.paths().into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        for place in places {
            let file = files.get(place.device).context("a device of the image")?;
            let at = place.offset + 1000;
            let mut bytes = [0; 16];
            file.read_exact_at(&mut bytes, at)?;
            let mut seeded = Seeded::new(place.offset << 8 | u64::try_from(place.device)?);
            let damage = seeded.fill(Texture::Noise, bytes.len());
            let spoilt: Vec<u8> = bytes.iter().zip(damage).map(|(a, b)| a ^ (b | 1)).collect();
            file.write_all_at(&spoilt, at)?;
        }
        Ok(())
    }

    /// The places in the same row of the chunk as this one, which is not among them.
    pub fn row_mates(&self, place: Place) -> Vec<Place> {
        for chunk in &self.chunks {
            for stripe in chunk.stripes.iter().filter(|stripe| stripe.device == place.device) {
                let Some(into) = place.offset.checked_sub(stripe.offset) else { continue };
                if into < chunk.device_bytes {
                    let others = chunk.stripes.iter().filter(|other| *other != stripe);
                    return others
                        .map(|other| Place { device: other.device, offset: other.offset + into })
                        .collect();
                }
            }
        }
        Vec::new()
    }

    fn scan(&mut self, device: usize, path: &Path) -> Result<()> {
        let file = File::open(path)?;
        let mut super_block = [0; 4096];
        file.read_exact_at(&mut super_block, SUPER_OFFSETS[0])?;
        let fsid = super_block[FSID].to_vec();
        let size = file.metadata()?.len();
        let mut at = 0;
        while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
            let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?.min(size);
            let mut offset = start / SECTOR_BYTES * SECTOR_BYTES;
            while offset + SECTOR_BYTES <= end {
                if !SUPER_OFFSETS.contains(&offset) {
                    let mut sector = [0; 4096];
                    file.read_exact_at(&mut sector, offset)?;
                    self.note(Place { device, offset }, &sector, &fsid);
                }
                offset += SECTOR_BYTES;
            }
            at = end;
        }
        Ok(())
    }

    fn note(&mut self, place: Place, bytes: &[u8], fsid: &[u8]) {
        if bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        self.written.push(place);
        if let Some(sector) = stamp(bytes) {
            self.sectors.entry(sector).or_default().push(place);
        } else if bytes.get(FSID) == Some(fsid) && bytes.get(MAGIC) != Some(b"_BHRfS_M") {
            let address = bytes.get(48..56).and_then(|bytes| bytes.try_into().ok());
            let address = address.map_or(0, little_endian);
            self.blocks.entry(address).or_default().push(place);
        }
    }
}

/// The sector that these bytes are, if they are one, whole and right.
pub fn stamp(bytes: &[u8]) -> Option<Sector> {
    let text = bytes.strip_prefix(STAMP)?.get(..16)?;
    let text = std::str::from_utf8(text).ok()?;
    let (file, number) = text.split_at_checked(8)?;
    let file = u64::from_str_radix(file, 16).ok()?;
    let number = u64::from_str_radix(number, 16).ok()?;
    (bytes == stamped_sector(file, number)).then_some(Sector { file, number })
}

/// Little-endian, spelled out.
fn little_endian(bytes: [u8; 8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Reads the chunks from the printed chunk tree.
fn chunks(devices: &[PathBuf]) -> Result<Vec<Chunk>> {
    let mut args: Vec<std::ffi::OsString> =
        ["inspect-internal", "dump-tree", "-t", "chunk"].map(Into::into).to_vec();
    args.extend(devices.iter().map(Into::into));
    let text = tool::text("btrfs", &args)?;
    let mut chunks: Vec<Chunk> = Vec::new();
    let (mut bytes, mut parity) = (0, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["length", length, "owner", .., "type", kind] => {
                bytes = length.parse()?;
                parity = u64::from(kind.contains("RAID5")) + 2 * u64::from(kind.contains("RAID6"));
            }
            ["num_stripes", count, ..] => {
                let count: u64 = count.parse()?;
                let data = if parity == 0 { 1 } else { count - parity };
                chunks.push(Chunk { device_bytes: bytes / data, stripes: Vec::new() });
            }
            ["stripe", _, "devid", id, "offset", offset] => {
                let id: usize = id.parse()?;
                let place = Place { device: id - 1, offset: offset.parse()? };
                chunks.last_mut().context("a stripe outside of a chunk")?.stripes.push(place);
            }
            _ => {}
        }
    }
    Ok(chunks)
}
