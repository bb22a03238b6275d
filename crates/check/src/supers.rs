//! Checks the superblocks: every copy on every device, and their system chunks.
//!
//! The kernel mounts by the first copy, so a bad first copy is an error. The other copies are
//! written after it, and a crash in between leaves them older or torn, so a bad one is a warning.
//! Behind the end of a volume that was made smaller than its device, no copy is written any more.

use crate::blocks::Reader;
use crate::finding::Kind;
use crate::roots::Roots;
use butternut_format::chunk::{BlockGroupFlags, Chunk};
use butternut_format::super_block::{RawRootBackup, RawSuperBlock, SUPER_BLOCK_BYTES, SuperBlock};
use butternut_format::units::{TreeId, length};
use butternut_volume::super_blocks::{CopyRefused, CopyReport, read_copies};

pub(crate) fn check_copies(reader: &Reader<'_>) {
    let newest = reader.volume().super_block();
    for member in reader.members() {
        let copies = read_copies(member.device.as_ref());
        let first = copies.first().and_then(|report| report.verdict.as_ref().ok());
        let end = first.map_or(u64::MAX, |copy| copy.device().total_bytes);
        let is_written = |report: &&CopyReport| {
            report.copy == 0 || report.offset.saturating_add(length(SUPER_BLOCK_BYTES)) < end
        };
        for report in copies.iter().filter(is_written) {
            check_copy(reader, member.device.name(), report, newest);
        }
    }
    if newest.log_root().is_some() {
        reader.sink().note(
            "there is a log tree with data synced since the last commit; only its blocks are \
             checked",
        );
    }
}

fn check_copy(reader: &Reader<'_>, device: &str, report: &CopyReport, newest: &SuperBlock) {
    let sink = reader.sink();
    let kind = if report.copy == 0 { Kind::SuperCopy } else { Kind::SuperMirror };
    match &report.verdict {
        Err(CopyRefused::Refused(refused)) => sink.refused(kind, device, refused),
        Err(CopyRefused::Device(error)) => {
            let place = format!("{device}: superblock copy {}", report.copy);
            sink.add(kind, place, "read", error, "success");
        }
        Ok(copy) => {
            // A seed device keeps the superblock of its own volume.
            let is_ours = copy.fsid() == newest.fsid();
            if is_ours && copy.generation() != newest.generation() {
                let place = format!("{device}: superblock copy {}", report.copy);
                let (have, want) = (copy.generation(), newest.generation());
                sink.add(kind, place, "generation", have, want);
            }
        }
    }
}

/// Compares the root backups of this generation, if there are any, with the roots.
///
/// One of them must agree. The kernel fills a backup from the roots in memory, and a transaction
/// that begins meanwhile may have given the tree of roots its new place already: then one more
/// backup names this generation, with the other roots of the commit before.
pub(crate) fn check_backup(reader: &Reader<'_>, roots: &Roots) {
    let raw = reader.volume().super_block().raw();
    let backups = raw.super_roots.iter().filter(|one| one.tree_root_gen == raw.generation);
    let fewest = backups.map(|backup| differences(backup, raw, roots)).min_by_key(Vec::len);
    for (field, have, want) in fewest.into_iter().flatten() {
        reader.sink().add(Kind::SuperBackup, "superblock: newest backup", field, have, want);
    }
}

/// The fields of a backup that differ: field, have, want.
fn differences(
    backup: &RawRootBackup,
    raw: &RawSuperBlock,
    roots: &Roots,
) -> Vec<(&'static str, String, String)> {
    let root = |tree: TreeId| {
        roots.find(tree).map_or((0, 0, 0), |root| {
            (root.item.logical().0, root.item.generation().0, root.item.level())
        })
    };
    let chunk = (raw.chunk_root.get(), raw.chunk_root_generation.get(), raw.chunk_root_level);
    let top = (raw.root.get(), raw.generation.get(), raw.root_level);
    let extent = (backup.extent_root, backup.extent_root_gen, backup.extent_root_level);
    let rows = [
        ("tree_root", (backup.tree_root, backup.tree_root_gen, backup.tree_root_level), top),
        ("chunk_root", (backup.chunk_root, backup.chunk_root_gen, backup.chunk_root_level), chunk),
        ("extent_root", extent, root(TreeId::EXTENT)),
        ("fs_root", (backup.fs_root, backup.fs_root_gen, backup.fs_root_level), root(TreeId::FS)),
        (
            "dev_root",
            (backup.dev_root, backup.dev_root_gen, backup.dev_root_level),
            root(TreeId::DEVICE),
        ),
        (
            "csum_root",
            (backup.csum_root, backup.csum_root_gen, backup.csum_root_level),
            root(TreeId::CHECKSUM),
        ),
    ];
    let shown = |(logical, generation, level): (u64, u64, u8)| {
        format!("{logical} of generation {generation}, level {level}")
    };
    let rows = rows.into_iter().map(|(field, (logical, generation, level), want)| {
        (field, shown((logical.get(), generation.get(), level)), shown(want))
    });
    let sizes = [
        ("total_bytes", backup.total_bytes, raw.total_bytes),
        ("bytes_used", backup.bytes_used, raw.bytes_used),
        ("num_devices", backup.num_devices, raw.num_devices),
    ];
    let sizes =
        sizes.into_iter().map(|(field, have, want)| (field, have.to_string(), want.to_string()));
    rows.chain(sizes).filter(|(_, have, want)| have != want).collect()
}

/// Compares the superblock's system chunks with those of the chunk tree.
pub(crate) fn check_system_chunks(chunks: &[Chunk], reader: &Reader<'_>) {
    let sink = reader.sink();
    let own: Vec<Chunk> = reader.volume().super_block().system_chunks().flatten().collect();
    for chunk in &own {
        let place = format!("superblock: system chunk {}", chunk.logical);
        match chunks.iter().find(|other| other.logical == chunk.logical) {
            Some(other) if other == chunk => {}
            Some(_) => {
                sink.add(Kind::SystemChunks, place, "chunk", "another", "that of the chunk tree");
            }
            None => sink.add(Kind::SystemChunks, place, "chunk in the chunk tree", "none", "one"),
        }
    }
    for chunk in chunks.iter().filter(|chunk| chunk.flags.contains(BlockGroupFlags::SYSTEM)) {
        if !own.iter().any(|other| other.logical == chunk.logical) {
            let place = format!("chunk {}", chunk.logical);
            sink.add(
                Kind::SystemChunks,
                place,
                "superblock's system chunks",
                "not among them",
                "one",
            );
        }
    }
}
