//! `partitions`: lists the partitions of a disk or image, with what they contain.

use std::io::Write;
use std::path::Path;

use butternut::device::partitions::{Partition, PartitionKind, PartitionTable};
use serde_json::Value;

use crate::args::{GlobalArgs, PartitionsArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::size::{Units, pretty};
use crate::output::table::{Side, Table};
use crate::output::{Output, json, stderr_line, text};
use crate::volume::{check_device, partitions};

/// Names of types in an MBR, as sfdisk(8) has them.
const MBR_TYPES: [(u8, &str); 13] = [
    (0x05, "Extended"),
    (0x06, "FAT16"),
    (0x07, "HPFS/NTFS/exFAT"),
    (0x0b, "W95 FAT32"),
    (0x0c, "W95 FAT32 (LBA)"),
    (0x0e, "W95 FAT16 (LBA)"),
    (0x0f, "W95 Ext'd (LBA)"),
    (0x82, "Linux swap / Solaris"),
    (0x83, "Linux"),
    (0x85, "Linux extended"),
    (0x8e, "Linux LVM"),
    (0xef, "EFI (FAT-12/16/32)"),
    (0xfd, "Linux raid autodetect"),
];

/// Names of types in a GPT, as sfdisk(8) has them.
const GPT_TYPES: [(&str, &str); 14] = [
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "EFI System"),
    ("21686148-6449-6e6f-744e-656564454649", "BIOS boot"),
    ("0fc63daf-8483-4772-8e79-3d69d8477de4", "Linux filesystem"),
    ("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", "Linux swap"),
    ("4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "Linux root (x86-64)"),
    ("b921b045-1df0-41c3-af44-4c6f280d3fae", "Linux root (ARM-64)"),
    ("933ac7e1-2eb4-4f13-b844-0e14e2aef915", "Linux home"),
    ("3b8f8425-20e0-4f3b-907f-1a25a76f98e8", "Linux server data"),
    ("bc13c2ff-59e6-4262-a352-b275fd6f7172", "Linux extended boot"),
    ("e6d6d379-f507-44c2-a23c-238f2a3df928", "Linux LVM"),
    ("a19d880f-05fc-4d3b-a006-743f0f84911e", "Linux RAID"),
    ("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7", "Microsoft basic data"),
    ("e3c9e316-0b5c-4db8-817d-f92df00215ae", "Microsoft reserved"),
    ("de94bba4-06d1-4d40-a16a-bfd50179d6ac", "Windows recovery environment"),
];

pub(crate) fn run(global: &GlobalArgs, args: &PartitionsArgs, out: &mut Output) -> Outcome {
    let path = Path::new(&args.device);
    check_device(path)?;
    let what = path.display().to_string();
    let table =
        PartitionTable::of_path(path).map_err(|error| partitions::failure(&what, path, &error))?;
    if global.json {
        json::document(out, as_json(path, &table))?;
        return Ok(Completion::Success);
    }
    print(path, &table, out)?;
    if !global.quiet {
        for note in &table.notes {
            stderr_line(&format!("{what}: note: {note}"));
        }
    }
    Ok(Completion::Success)
}

fn print(path: &Path, table: &PartitionTable, out: &mut Output) -> Result<(), Failure> {
    let mut rows =
        Table::new(&[Side::Right, Side::Right, Side::Right, Side::Left, Side::Left, Side::Left]);
    let heads = ["NUMBER", "START", "SIZE", "TYPE", "NAME", "CONTENTS"];
    rows.row(heads.map(str::to_owned).to_vec());
    for partition in &table.partitions {
        let contents = match (&partition.problem, partitions::contents(path, partition)) {
            (Some(problem), _) => problem.to_string(),
            (None, found) => found.map_or("-", |found| found.what).to_owned(),
        };
        let name = if partition.name.is_empty() { "-" } else { &partition.name };
        rows.row(vec![
            partition.number.to_string(),
            partition.start.to_string(),
            pretty(partition.bytes, Units::Binary),
            type_name(&partition.kind),
            text::escaped(name.as_bytes()),
            contents,
        ]);
    }
    for line in rows.lines() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Returns the name of a type, or its number.
fn type_name(kind: &PartitionKind) -> String {
    match kind {
        PartitionKind::Mbr(kind) => {
            let known = MBR_TYPES.iter().find(|(number, _)| number == kind);
            known.map_or_else(|| format!("0x{kind:02x}"), |(_, name)| (*name).to_owned())
        }
        PartitionKind::Gpt { kind, .. } => {
            let known = GPT_TYPES.iter().find(|(uuid, _)| uuid == kind);
            known.map_or_else(|| kind.clone(), |(_, name)| (*name).to_owned())
        }
    }
}

fn as_json(path: &Path, table: &PartitionTable) -> Value {
    let partition = |partition: &Partition| -> Value {
        let (kind, id) = match &partition.kind {
            PartitionKind::Mbr(kind) => (format!("0x{kind:02x}"), None),
            PartitionKind::Gpt { kind, id } => (kind.clone(), Some(id.clone())),
        };
        json::Object::new()
            .put("number", partition.number)
            .put("start", partition.start)
            .put("bytes", partition.bytes)
            .put("type", kind)
            .put("type_name", type_name(&partition.kind))
            .put("uuid", id)
            .put("name", partition.name.clone())
            .put("contents", partitions::contents(path, partition).map(|found| found.what))
            .put("problem", partition.problem.as_ref().map(ToString::to_string))
            .into()
    };
    json::Object::new()
        .name("device", path.as_os_str().as_encoded_bytes())
        .put("table", table.kind.name())
        .put("sector_bytes", table.sector_bytes)
        .put("partitions", table.partitions.iter().map(partition).collect::<Vec<Value>>())
        .put("notes", table.notes.clone())
        .into()
}
