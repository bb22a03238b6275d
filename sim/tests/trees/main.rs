//! Transactions of trees on devices that lose power and that fail.
//!
//! The workload changes extended attributes of the top directory, because these items may have any
//! number and size.

mod crashes;
mod faults;

use anyhow::{Result, ensure};
use butternut_device::Device;
use butternut_format::checksum::name_hash;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{DevId, TreeId};
use butternut_sim::random::Random;
use butternut_tree::{Change, Forest, ForestOptions, Need, TreeError};
use butternut_volume::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// More than 64 MiB, so that the superblock has a second copy.
pub(crate) const VOLUME_BYTES: u64 = 160 << 20;

pub(crate) type Items = BTreeMap<Key, Vec<u8>>;

pub(crate) fn open(device: Arc<dyn Device>) -> Result<Arc<Forest>> {
    let volume = Volume::open(vec![device], OpenOptions::default())?;
    // Freed blocks are discarded immediately, so a block that is still needed would be missed.
    let options = ForestOptions { discard: true, ..ForestOptions::default() };
    Ok(Forest::open_writable(Arc::new(volume), options)?)
}

/// Returns an xattr item of the top directory.
fn xattr(number: u64, bytes: usize, fill: u8) -> (Key, Vec<u8>) {
    let name = format!("user.{number}");
    let mut item = vec![0; 17];
    item.extend_from_slice(&7_u64.to_le_bytes());
    item.extend_from_slice(&u16::try_from(bytes).expect("small").to_le_bytes());
    item.extend_from_slice(&u16::try_from(name.len()).expect("short").to_le_bytes());
    item.push(8);
    item.extend_from_slice(name.as_bytes());
    item.resize(item.len() + bytes, fill);
    (Key::new(256, ItemType::XATTR_ITEM, name_hash(name.as_bytes())), item)
}

pub(crate) fn items(forest: &Arc<Forest>) -> Result<Items> {
    let tree = forest.tree(TreeId::FS)?.expect("the top subvolume");
    let mut cursor = tree.scan();
    cursor.seek(&Key::MIN)?;
    let mut found = BTreeMap::new();
    while let Some((key, data)) = cursor.item_parts() {
        if key.item_type == ItemType::XATTR_ITEM {
            ensure!(found.insert(key, data.to_vec()).is_none(), "{key} is there twice");
        }
        cursor.advance()?;
    }
    Ok(found)
}

/// Runs maintenance that changes no item.
fn admin(forest: &Arc<Forest>, random: &mut Random) -> Result<()> {
    match random.below(3) {
        0 => drop(forest.trim(&(0..u64::MAX), 4096)?),
        1 => forest.set_label(random.number().to_string().as_bytes())?,
        _ => {
            let bytes = VOLUME_BYTES / 2 + random.below(VOLUME_BYTES / 2) / 4096 * 4096;
            match forest.resize(DevId(1), bytes) {
                // Chunks in use may be there.
                Ok(()) | Err(TreeError::Invalid(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Changes one to a few hundred items.
pub(crate) fn step(forest: &Arc<Forest>, random: &mut Random, state: &mut Items) -> Result<()> {
    if random.one_in(8) {
        return admin(forest, random);
    }
    let many = if random.one_in(4) { 400 } else { 6 };
    let mut changes: BTreeMap<Key, Option<Vec<u8>>> = BTreeMap::new();
    for _ in 0..=random.below(many) {
        let bytes = if random.one_in(10) { 3900 } else { random.index(200) };
        let fill = u8::try_from(random.below(256))?;
        let (key, item) = xattr(random.below(1500), bytes, fill);
        changes.insert(key, (!random.one_in(3)).then_some(item));
    }
    let handle = forest.join(Need::items(u32::try_from(changes.len())?))?;
    let edit = handle.tree(TreeId::FS)?;
    match random.below(5) {
        0 => {
            let from = random.number() << 32 >> 32;
            let to = from.saturating_add(random.below(1 << 31));
            let key = |at| Key::new(256, ItemType::XATTR_ITEM, at);
            let range: Range<Key> = key(from)..key(to);
            edit.remove_range(range.clone(), &mut |_, _| {})?;
            state.retain(|key, _| !range.contains(key));
        }
        1..=2 => {
            let sorted = changes.iter().map(|(key, to)| Change { key: *key, to: to.clone() });
            edit.merge(&sorted.collect::<Vec<_>>())?;
            apply(state, changes);
        }
        _ => {
            for (key, to) in &changes {
                match to {
                    Some(item) => edit.put(key, item)?,
                    None => drop(edit.remove(key)?),
                }
            }
            apply(state, changes);
        }
    }
    Ok(())
}

pub(crate) fn is_long() -> bool {
    std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty())
}

fn apply(state: &mut Items, changes: BTreeMap<Key, Option<Vec<u8>>>) {
    for (key, to) in changes {
        match to {
            Some(item) => drop(state.insert(key, item)),
            None => drop(state.remove(&key)),
        }
    }
}
