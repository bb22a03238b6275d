//! Damages copies of known blocks on devices, without using the code under test to find them.
//!
//! Each data sector of the profile images contains its file and position ([`stamped_sector`]), so
//! every copy is found on the devices by content. A tree block is identified by the fsid and its
//! own address in its header. The stripes of a parity row are derived from the chunk tree as `btrfs
//! inspect-internal dump-tree` prints it.

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

/// The position of the fsid in a superblock and in the header of a tree block.
const FSID: std::ops::Range<usize> = 32..48;
/// The position of the magic number in a superblock.
const MAGIC: std::ops::Range<usize> = 64..72;

/// One sector of a stamped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sector {
    pub file: u64,
    pub number: u64,
}

/// An offset on one of the image's devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub device: usize,
    pub offset: u64,
}

/// A copy of an image that tests damage.
#[derive(Debug)]
pub struct DamagedImage {
    pub image: Image,
    /// Every place of each sector of a stamped file.
    pub sectors: BTreeMap<Sector, Vec<Place>>,
    /// Every place of each tree block, by logical address.
    pub blocks: BTreeMap<u64, Vec<Place>>,
    /// Every sector-sized place that is not a hole.
    pub written: Vec<Place>,
    chunks: Vec<Chunk>,
    _dir: tempfile::TempDir,
}

#[derive(Debug, Default)]
struct Chunk {
    /// Bytes of the chunk on each device.
    device_bytes: u64,
    stripes: Vec<Place>,
}

impl DamagedImage {
    pub fn copy_of(image: &Image, dir: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-judge-damaged-").tempdir_in(dir)?;
        let mut copy = image.clone();
        copy.dir = dir.path().to_path_buf();
        for (from, to) in image.paths().iter().zip(copy.paths()) {
            tool::copy_sparse(from, &to)?;
        }
        let chunks = chunks(&copy.paths())?;
        let mut damaged = Self {
            image: copy,
            sectors: BTreeMap::new(),
            blocks: BTreeMap::new(),
            written: Vec::new(),
            chunks,
            _dir: dir,
        };
        for (device, path) in damaged.image.paths().iter().enumerate() {
            damaged.scan(device, path)?;
        }
        Ok(damaged)
    }

    /// Overwrites some bytes of every place, so that its checksum is wrong. Each place is damaged
    /// differently, because equal damage to two stripes of a row can cancel out in the parity.
    pub fn corrupt(&self, places: &[Place]) -> Result<()> {
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

    /// Returns the other places in the same parity row of the chunk.
    pub fn row_siblings(&self, place: Place) -> Vec<Place> {
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

/// Returns which sector these bytes are, if they are an undamaged stamped sector.
pub fn stamp(bytes: &[u8]) -> Option<Sector> {
    let text = bytes.strip_prefix(STAMP)?.get(..16)?;
    let text = std::str::from_utf8(text).ok()?;
    let (file, number) = text.split_at_checked(8)?;
    let file = u64::from_str_radix(file, 16).ok()?;
    let number = u64::from_str_radix(number, 16).ok()?;
    (bytes == stamped_sector(file, number)).then_some(Sector { file, number })
}

/// Decodes a little-endian number.
fn little_endian(bytes: [u8; 8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Parses the chunks of a printed chunk tree.
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
