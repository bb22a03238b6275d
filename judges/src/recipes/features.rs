//! Images by format feature: checksums, node sizes, compression, optional trees.

use crate::populate;
use crate::recipe::Recipe;
use anyhow::Result;
use std::path::Path;

pub(super) fn recipes() -> Vec<Recipe> {
    let mut recipes = vec![
        Recipe::new("csum-crc32c", "crc32c, and the defaults of mkfs"),
        Recipe::new("csum-xxhash", "xxhash64").mkfs("--csum xxhash"),
        Recipe::new("csum-sha256", "sha256").mkfs("--csum sha256"),
        Recipe::new("csum-blake2", "blake2b").mkfs("--csum blake2"),
        Recipe::new("csum-blake2-compressed", "blake2b over zstd")
            .mkfs("--csum blake2 -n 4096")
            .mount("compress-force=zstd"),
        Recipe::new("node-4k", "nodes of 4 KiB").mkfs("-n 4096"),
        Recipe::new("node-8k", "nodes of 8 KiB, xxhash64").mkfs("-n 8192 --csum xxhash"),
        Recipe::new("node-32k", "nodes of 32 KiB").mkfs("-n 32768"),
        Recipe::new("node-64k", "nodes of 64 KiB").mkfs("-n 65536"),
        Recipe::new("node-64k-sha256", "nodes of 64 KiB under sha256, with extended reference")
            .mkfs("-n 65536 --csum sha256")
            .mount("compress=zlib"),
        Recipe::new("holes-explicit", "hole extents are written out").mkfs("-O ^no-holes"),
        Recipe::new("holes-explicit-compressed", "hole extents beside compressed ones")
            .mkfs("-O ^no-holes -n 4096")
            .mount("compress=lzo"),
        Recipe::new("mixed-groups", "data and metadata share block groups").mkfs("--mixed"),
        Recipe::new("mixed-groups-dup", "mixed block groups, two copies, nodes of 4 KiB")
            .mkfs("--mixed -n 4096 -d dup -m dup"),
        Recipe::new("extref-off", "hard links without extended references").mkfs("-O ^extref"),
        Recipe::new("skinny-off", "extent items that hold the size of tree blocks")
            .mkfs("-O ^skinny-metadata"),
        Recipe::new("space-tree-off", "neither free space tree nor cache")
            .mkfs("-O ^free-space-tree,^block-group-tree")
            .mount("nospace_cache"),
        Recipe::new("space-cache-v1", "the free space cache of old, in files of the root tree")
            // The kernel makes no cache for block groups of less than 100 MiB.
            .devices(&[2048])
            .mkfs("-O ^free-space-tree,^block-group-tree")
            .mount("space_cache=v1"),
        Recipe::new("group-tree-off", "free space tree, and block groups in the extent tree")
            .mkfs("-O ^block-group-tree,free-space-tree"),
        Recipe::new("group-tree-on", "free space tree and block group tree")
            .mkfs("-O block-group-tree,free-space-tree"),
        Recipe::new("old-defaults", "everything optional off: as an old mkfs made it")
            .mkfs(
                "-O ^no-holes,^extref,^skinny-metadata,^free-space-tree,^block-group-tree -n 4096",
            )
            .mount("nospace_cache"),
        Recipe::new("quota", "quota groups").mkfs("-O quota").fill(quotas),
        Recipe::new("quota-simple", "simple quotas, with owners in the extent items")
            .mkfs("-O squota")
            .fill(quotas),
        Recipe::new("data-sums-off", "mounted with nodatasum").mount("nodatasum"),
        Recipe::new("data-cow-off", "mounted with nodatacow").mount("nodatacow"),
        Recipe::new("inline-largest", "inline extents up to the limit").mount("max_inline=4095"),
        Recipe::new("inline-none", "no inline extents").mount("max_inline=0"),
        Recipe::new("inline-largest-explicit", "long inline extents with hole extents")
            .mkfs("-O ^no-holes")
            .mount("max_inline=4095,compress=zstd"),
    ];
    recipes.extend(compressed());
    recipes
}

/// Returns recipes for each algorithm at low and high levels, with and without compress-force.
fn compressed() -> Vec<Recipe> {
    [
        "compress=zlib",
        "compress-force=zlib:1",
        "compress-force=zlib:9",
        "compress=lzo",
        "compress-force=lzo",
        "compress=zstd",
        "compress-force=zstd:-15",
        "compress-force=zstd:1",
        "compress-force=zstd:15",
    ]
    .into_iter()
    .map(|options| {
        let name = options.replace(['=', ':'], "-").replace("--", "-minus-");
        Recipe::new(&name, &format!("mounted with {options}")).mount(options)
    })
    .chain([
        Recipe::new("compress-lzo-node-64k", "lzo under nodes of 64 KiB")
            .mkfs("-n 65536")
            .mount("compress-force=lzo"),
        Recipe::new("compress-all-kinds", "all three algorithms in one file and in properties")
            .fill(every_algorithm),
    ])
    .collect()
}

/// Sets the compression property of files to each algorithm, and writes one file under each in
/// turn.
fn every_algorithm(root: &Path) -> Result<()> {
    use populate::extents::open;
    use populate::seeded::{Texture, bytes};
    use std::os::unix::fs::FileExt;
    let mixed = root.join("all-in-one");
    let file = open(&mixed)?;
    for (number, algorithm) in (0_u64..).zip(["zlib", "lzo", "zstd", "none"]) {
        let dir = root.join(algorithm);
        std::fs::create_dir(&dir)?;
        set_compression(&dir, algorithm)?;
        populate::contents::sizes(&dir)?;
        set_compression(&mixed, algorithm)?;
        file.write_all_at(&bytes(number, Texture::Text, 300_000), number * 250_000)?;
        file.sync_all()?;
    }
    Ok(())
}

fn set_compression(path: &Path, algorithm: &str) -> Result<()> {
    let path = path.as_os_str();
    let args = ["property".as_ref(), "set".as_ref(), path, "compression".as_ref()];
    let args: Vec<_> = args.into_iter().chain([algorithm.as_ref()]).collect();
    crate::tool::run("btrfs", &args).map(drop)
}

fn quotas(root: &Path) -> Result<()> {
    populate::everything(root)?;
    populate::subvolumes::nested(root)?;
    populate::subvolumes::btrfs("qgroup create 1/100", &[root])?;
    populate::subvolumes::btrfs("qgroup limit 1G 1/100", &[root])
}
