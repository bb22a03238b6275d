//! The contents of a volume, found by walking its trees through [`Volume`] alone.

use butternut_device::{Device, FaultyDevice, FileDevice, OpenDevice, Rule};
use butternut_format::chunk::Chunk;
use butternut_format::device_item::DeviceItem;
use butternut_format::key::{ItemType, Key};
use butternut_format::node::{Expected, TreeBlock};
use butternut_format::root::RootItem;
use butternut_format::units::{Logical, TreeId};
use butternut_volume::{Checksums, DataRead, OpenOptions, Volume, VolumeError};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// An open volume over devices that can be made to fail.
pub(crate) struct Opened {
    pub(crate) volume: Volume,
    /// The devices in the order of the paths; `None` for a device that was left out.
    pub(crate) devices: Vec<Option<Arc<FaultyDevice>>>,
}

/// The result of a walk: every block, and every sector that has a checksum.
pub(crate) struct Survey {
    pub(crate) blocks: Vec<Expected>,
    /// Runs of sectors with their checksums.
    pub(crate) data: Vec<(Logical, Vec<u8>)>,
    /// The good bytes of each run, from an intact volume.
    pub(crate) block_bytes: BTreeMap<u64, Vec<u8>>,
    pub(crate) sectors: BTreeMap<u64, Vec<u8>>,
}

pub(crate) const DEGRADED: OpenOptions = OpenOptions {
    degraded: true,
    allow_lost_chunks: false,
    allow_short_devices: false,
    super_copy: None,
};

/// Opens the devices at `paths` except those whose index is in `without`, up to the seal.
pub(crate) fn open(
    paths: &[PathBuf],
    without: &[usize],
    options: &OpenOptions,
) -> Result<Opened, VolumeError> {
    let mut devices = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        if without.contains(&index) {
            devices.push(None);
            continue;
        }
        let how = OpenDevice { direct: false, ..OpenDevice::default() };
        let file: Arc<dyn Device> = Arc::new(FileDevice::open(path, &how).unwrap());
        // Each mirror is corrupted differently: equal changes in three elements of a full stripe
        // can cancel out.
        devices.push(Some(Arc::new(FaultyDevice::new(file, (index as u64 + 7) << 32))));
    }
    let present = devices.iter().flatten().map(|device| Arc::clone(device) as Arc<dyn Device>);
    let volume = Volume::open(present.collect(), options.clone())?;
    feed(&volume)?;
    Ok(Opened { volume, devices })
}

/// Reads the chunk tree into the volume, and seals it.
fn feed(volume: &Volume) -> Result<(), VolumeError> {
    let incompat = volume.super_block().raw().incompat_flags.get();
    let mut result = Ok(());
    walk(volume, volume.super_block().chunk_root(), &mut |_, block| {
        for (key, data) in (0..block.len()).filter_map(|slot| block.item(slot)) {
            if key.item_type == ItemType::DEV_ITEM {
                volume.install_device(&DeviceItem::check(key, data).unwrap());
            } else if key.item_type == ItemType::CHUNK_ITEM {
                let chunk = Chunk::check(key, data, incompat).unwrap();
                if let Err(error) = volume.install_chunk(Logical(key.offset), &chunk) {
                    result = Err(error);
                }
            }
        }
    })?;
    result?;
    volume.seal()
}

/// Visits every block of a tree.
pub(crate) fn walk(
    volume: &Volume,
    root: Expected,
    visit: &mut dyn FnMut(&Expected, &TreeBlock<butternut_sys::buffer::Buffer>),
) -> Result<(), VolumeError> {
    let block = volume.read_block(&root)?;
    visit(&root, &block);
    for child in (0..block.len()).filter_map(|slot| block.child(slot)) {
        let expected = Expected {
            logical: child.logical,
            generation: child.generation,
            level: root.level - 1,
            tree: root.tree,
            first_key: Some(child.key),
            end_key: None,
        };
        walk(volume, expected, visit)?;
    }
    Ok(())
}

impl Survey {
    pub(crate) fn of(volume: &Volume) -> Survey {
        let mut roots = vec![volume.super_block().chunk_root(), volume.super_block().root()];
        walk(volume, volume.super_block().root(), &mut |_, block| {
            roots.extend((0..block.len()).filter_map(|slot| block.item(slot)).filter_map(root));
        })
        .unwrap();
        let mut survey = Survey {
            blocks: Vec::new(),
            data: Vec::new(),
            block_bytes: BTreeMap::new(),
            sectors: BTreeMap::new(),
        };
        for root in roots {
            walk(volume, root, &mut |expected, block| {
                if survey.block_bytes.insert(expected.logical.0, block.bytes().to_vec()).is_none() {
                    survey.blocks.push(*expected);
                }
                let items = (0..block.len()).filter_map(|slot| block.item(slot));
                let checksums = items.filter(|(key, _)| key.item_type == ItemType::EXTENT_CSUM);
                survey.data.extend(
                    checksums.map(|(key, checksums)| (Logical(key.offset), checksums.to_vec())),
                );
            })
            .unwrap();
        }
        survey.keep_sectors(volume);
        assert!(survey.sectors.len() >= 2048, "{} sectors", survey.sectors.len());
        assert!(survey.blocks.len() >= 10, "{} blocks", survey.blocks.len());
        survey
    }

    fn keep_sectors(&mut self, volume: &Volume) {
        let digest = volume.super_block().csum().bytes();
        for (logical, checksums) in &self.data {
            let mut bytes = vec![0; checksums.len() / digest * 4096];
            let mut reads = [DataRead::new(*logical, &mut bytes, Checksums::Stored(checksums))];
            volume.read_data(&mut reads);
            reads[0].result.as_ref().unwrap();
            for (index, sector) in bytes.chunks(4096).enumerate() {
                self.sectors.insert(logical.0 + index as u64 * 4096, sector.to_vec());
            }
        }
    }

    /// Returns the checksum of the sector at `logical`.
    pub(crate) fn sum(&self, volume: &Volume, logical: u64) -> &[u8] {
        let digest = volume.super_block().csum().bytes();
        let holds = |start: u64, checksums: &[u8]| {
            (start..start + (checksums.len() / digest) as u64 * 4096).contains(&logical)
        };
        let (start, checksums) = self
            .data
            .iter()
            .find(|(start, checksums)| holds(start.0, checksums))
            .expect("a data sector");
        let at = usize::try_from((logical - start.0) / 4096).unwrap() * digest;
        &checksums[at..at + digest]
    }

    /// Reads and compares everything: blocks in one batch, data in one batch.
    pub(crate) fn check_all(&self, volume: &Volume, what: &str) {
        for (expected, block) in self.blocks.iter().zip(volume.read_blocks(&self.blocks)) {
            let block = block.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(block.bytes(), self.block_bytes[&expected.logical.0], "{what}");
        }
        assert!(self.bad_sectors(volume, what).is_empty(), "{what}");
    }

    /// Reads all data in one batch. Returns the sectors that failed, and checks all others.
    pub(crate) fn bad_sectors(&self, volume: &Volume, what: &str) -> Vec<u64> {
        let digest = volume.super_block().csum().bytes();
        let mut buffers: Vec<Vec<u8>> = self
            .data
            .iter()
            .map(|(_, checksums)| vec![0xee; checksums.len() / digest * 4096])
            .collect();
        let mut reads: Vec<DataRead<'_>> = self
            .data
            .iter()
            .zip(&mut buffers)
            .map(|((logical, checksums), buf)| {
                DataRead::new(*logical, buf, Checksums::Stored(checksums))
            })
            .collect();
        volume.read_data(&mut reads);
        let mut bad = Vec::new();
        for read in &reads {
            let Err(error) = &read.result else { continue };
            assert!(!error.bad_ranges().is_empty(), "{what}: {error}");
            for range in error.bad_ranges() {
                assert!(!range.sources.is_empty(), "{what}: {error}");
                bad.extend((range.logical.0..range.logical.0 + range.bytes).step_by(4096));
            }
        }
        drop(reads);
        for ((logical, _), bytes) in self.data.iter().zip(&buffers) {
            for (index, sector) in bytes.chunks(4096).enumerate() {
                let at = logical.0 + index as u64 * 4096;
                if bad.contains(&at) {
                    assert!(sector.iter().all(|&byte| byte == 0), "{what}: {at}");
                } else {
                    assert_eq!(sector, self.sectors[&at], "{what}: {at}");
                }
            }
        }
        bad
    }

    /// Reads one sector.
    pub(crate) fn sector(&self, volume: &Volume, logical: u64) -> Result<(), VolumeError> {
        let mut bytes = vec![0; 4096];
        let checksums = Checksums::Stored(self.sum(volume, logical));
        let mut reads = [DataRead::new(Logical(logical), &mut bytes, checksums)];
        volume.read_data(&mut reads);
        let [read] = reads;
        read.result.map(|()| assert_eq!(bytes, self.sectors[&logical]))
    }
}

impl Opened {
    /// Adds a fault to the device in `slot`.
    pub(crate) fn add_fault(&self, slot: usize, rule: Rule) {
        let device = self.devices.iter().flatten().nth(slot);
        device.expect("the slot of a present device").add(rule);
    }

    pub(crate) fn clear_faults(&self) {
        self.devices.iter().flatten().for_each(|device| device.clear());
    }
}

fn root((key, data): (Key, &[u8])) -> Option<Expected> {
    if key.item_type != ItemType::ROOT_ITEM {
        return None;
    }
    let item = RootItem::check(key, data).unwrap();
    Some(Expected {
        logical: item.logical(),
        generation: item.generation(),
        level: item.level(),
        tree: TreeId(key.objectid),
        first_key: None,
        end_key: None,
    })
}
