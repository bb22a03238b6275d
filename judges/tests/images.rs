//! The images contain what their names say, as btrfs-progs print it. If a recipe stopped making its
//! content, the other judges would test less without a failure.

use anyhow::{Result, ensure};
use butternut_judges::image::{Image, View};
use butternut_judges::{command, recipes, tool, trial};
use std::ffi::OsString;
use std::process::ExitCode;

/// An image, what to print of it, and a text that must occur at least the given number of times.
type Claim = (&'static str, Print, &'static str, usize);

#[derive(Debug, Clone, Copy)]
enum Print {
    Super,
    Tree(&'static str),
    Everything,
}

use Print::{Everything, Super, Tree};

const CLAIMS: [Claim; 50] = [
    ("csum-crc32c", Super, "(crc32c)", 1),
    ("csum-xxhash", Super, "(xxhash64)", 1),
    ("csum-sha256", Super, "(sha256)", 1),
    ("csum-blake2", Super, "(blake2b)", 1),
    ("csum-crc32c", Tree("5"), "(prealloc)", 9),
    ("csum-crc32c", Tree("5"), "XATTR_ITEM", 200),
    ("csum-crc32c", Tree("5"), "name: system.posix_acl_default", 2),
    ("csum-crc32c", Tree("5"), "name: security.capability", 2),
    ("csum-crc32c", Tree("5"), "NODATACOW", 2),
    ("csum-crc32c", Tree("5"), "IMMUTABLE", 1),
    ("csum-crc32c", Tree("5"), "APPEND", 1),
    ("node-4k", Super, "nodesize\t\t4096", 1),
    ("node-64k", Super, "nodesize\t\t65536", 1),
    ("holes-explicit", Tree("5"), "disk byte 0 nr 0", 20),
    ("mixed-groups", Super, "MIXED_GROUPS", 1),
    ("group-tree-on", Super, "BLOCK_GROUP_TREE", 1),
    ("group-tree-off", Super, "FREE_SPACE_TREE_VALID", 1),
    ("space-cache-v1", Tree("root"), "(FREE_SPACE UNTYPED", 2),
    ("quota", Tree("quota"), "QGROUP_LIMIT", 3),
    ("quota-simple", Super, "SIMPLE_QUOTA", 1),
    ("quota-simple", Tree("extent"), "owner root", 10),
    ("inline-largest", Tree("5"), "inline extent data size 4095", 1),
    ("inline-largest-explicit", Tree("5"), "inline extent data size", 30),
    ("compress-force-zlib-9", Tree("5"), "extent compression 1 (zlib)", 100),
    ("compress-force-lzo", Tree("5"), "extent compression 2 (lzo)", 100),
    ("compress-force-zstd-15", Tree("5"), "extent compression 3 (zstd)", 100),
    ("compress-all-kinds", Tree("5"), "extent compression 1 (zlib)", 10),
    ("compress-all-kinds", Tree("5"), "extent compression 2 (lzo)", 10),
    ("compress-all-kinds", Tree("5"), "extent compression 3 (zstd)", 10),
    ("data-sums-off", Tree("5"), "NODATASUM", 100),
    ("profile-raid10", Tree("chunk"), "type DATA|RAID10", 1),
    ("profile-raid5", Tree("chunk"), "type METADATA|RAID5", 1),
    ("profile-raid6", Tree("chunk"), "type DATA|RAID6", 1),
    ("profile-raid1c4", Tree("chunk"), "type DATA|RAID1C4", 1),
    ("converted", Tree("chunk"), "type DATA|RAID1", 1),
    ("converted", Tree("chunk"), "type DATA|single", 1),
    ("levels-4", Tree("5"), " level 3 ", 1),
    ("crowd", Tree("5"), "DIR_INDEX", 60_000),
    ("links", Tree("5"), "INODE_EXTREF", 1000),
    ("hash-collisions", Tree("5"), "itemsize 16200", 1),
    ("fragments", Tree("5"), "EXTENT_DATA", 16_000),
    ("subvolumes", Tree("root"), "ROOT_BACKREF", 10),
    ("received", Tree("uuid"), "UUID_KEY_RECEIVED_SUBVOL", 1),
    ("subvolume-default", Tree("root"), "name: default", 1),
    ("deleted-half", Tree("root"), "ORPHAN_ITEM", 1),
    ("seed-alone", Super, "SEEDING", 1),
    ("metadata-uuid", Super, "METADATA_UUID", 1),
    ("log-tree", Super, "log_root_level\t\t0", 1),
    ("log-tree", Everything, "name: only-in-the-log", 20),
    ("orphans", Tree("5"), "ORPHAN_ITEM", 10),
];

fn main() -> ExitCode {
    let names: Vec<String> = recipes::all().into_iter().map(|recipe| recipe.name).collect();
    let trials = CLAIMS.into_iter().enumerate().map(|(number, claim)| {
        let is_known = names.iter().any(|name| name == claim.0);
        trial::trial(&format!("{}::claim-{number}", claim.0), move || {
            ensure!(is_known, "there is no such recipe");
            holds(claim)
        })
    });
    trial::run(trials.collect())
}

fn holds((name, print, text, want): Claim) -> Result<()> {
    let image = Image::load(name)?;
    let words: Vec<&str> = match print {
        Super => vec!["inspect-internal", "dump-super", "-f"],
        Tree(tree) => vec!["inspect-internal", "dump-tree", "-t", tree],
        Everything => vec!["inspect-internal", "dump-tree"],
    };
    let mut args: Vec<OsString> = words.iter().map(Into::into).collect();
    args.extend(command::devices(&image, &View::top()));
    let have = tool::text("btrfs", &args)?.matches(text).count();
    ensure!(have >= want, "'{text}' occurs {have} times, want {want} or more");
    Ok(())
}
