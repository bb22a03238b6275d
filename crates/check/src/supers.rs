//! Superblocks: every copy on every device, and the system chunks in them.
//!
//! The first copy is the one that a kernel mounts by: without it there is damage. The others are
//! written behind it, and a crash between may leave them older or torn: that is a warning.

use crate::blocks::Reader;
use crate::finding::Kind;
use butternut_format::chunk::{BlockGroupFlags, Chunk};
use butternut_format::super_block::SuperBlock;
use butternut_volume::super_blocks::{CopyRefused, CopyReport, read_copies};

pub(crate) fn check_copies(reader: &Reader<'_>) {
    let newest = reader.volume().super_block();
    for member in reader.members() {
        let copies = read_copies(member.device.as_ref());
        for report in &copies {
            check_copy(reader, member.device.name(), report, newest);
        }
    }
    if newest.log_root().is_some() {
        reader.sink().note(
            "there is a log tree: what was synced since the last commit is in it, and is not \
             checked further than its blocks",
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
            // A seed keeps the superblock of its own volume.
            let is_ours = copy.fsid() == newest.fsid();
            if is_ours && copy.generation() != newest.generation() {
                let place = format!("{device}: superblock copy {}", report.copy);
                let (have, want) = (copy.generation(), newest.generation());
                sink.add(kind, place, "generation", have, want);
            }
        }
    }
}

/// The array holds exactly the system chunks of the chunk tree.
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
