//! Images with many names, links, extents, items or attributes.

use crate::populate::attributes::set_xattr;
use crate::populate::seeded::{Texture, bytes};
use crate::populate::{extents, links, names};
use crate::recipe::Recipe;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

pub(super) fn recipes() -> Vec<Recipe> {
    vec![
        Recipe::new("crowd", "a directory with 60,000 entries")
            .devices(&[512])
            .mkfs("-m single")
            .fill(|root| names::crowd(&root.join("crowd"), 60_000)),
        Recipe::new("levels-4", "trees of four levels, in nodes of 4 KiB")
            .devices(&[512])
            .mkfs("-n 4096 -m single")
            .fill(four_levels),
        Recipe::new("hash-collisions", "hundreds of names under one hash").fill(hash_collisions),
        Recipe::new("hash-collisions-node-64k", "as many names under one hash as a leaf holds")
            .mkfs("-n 65536")
            .fill(hash_collisions),
        Recipe::new("links", "thousands of hard links to one file in one directory").fill(|root| {
            links::across(root)?;
            links::crowded(&root.join("crowded"), 5000)?;
            links::equal_hashes(&root.join("equal-hashes"))
        }),
        Recipe::new("links-node-4k", "extended references in nodes of 4 KiB")
            .mkfs("-n 4096")
            .fill(|root| links::equal_hashes(&root.join("equal-hashes"))),
        Recipe::new("fragments", "files with thousands of extents").devices(&[512]).fill(|root| {
            extents::fragmented(&root.join("fragments"), 16_384)?;
            extents::overwritten(root, 2000)
        }),
        Recipe::new("fragments-explicit", "thousands of extents and explicit holes")
            .mkfs("-O ^no-holes -n 4096")
            .fill(|root| {
                extents::fragmented(&root.join("fragments"), 4096)?;
                scattered(&root.join("scattered"), 3000)
            }),
        Recipe::new("sparse-many", "a file with thousands of holes, and other sparse ones").fill(
            |root| {
                scattered(&root.join("scattered"), 8000)?;
                extents::sparse(root)?;
                extents::enormous(root)
            },
        ),
        Recipe::new("attributes-node-64k", "xattrs as large as Linux allows")
            .mkfs("-n 65536")
            .fill(crate::populate::attributes::everything),
        Recipe::new("large-file", "one file of 300 MiB, and a compressed one")
            .devices(&[1024])
            .fill(large),
        Recipe::new("many-small", "thousands of small files in a tree of directories")
            .devices(&[512])
            .mkfs("-m single")
            .mount("compress=zstd")
            .fill(many_small),
    ]
}

/// Makes 16,000 files with an xattr that fills a leaf: more leaves than two levels of nodes hold.
fn four_levels(root: &Path) -> Result<()> {
    let value = bytes(1, Texture::Noise, 3700);
    for number in 0..16_000_u32 {
        let path = root.join(format!("file-{number:05}"));
        fs::write(&path, number.to_le_bytes())?;
        let value = [&number.to_le_bytes(), &value[..]].concat();
        set_xattr(&path, b"user.fills-a-leaf", &value).context("xattr")?;
    }
    Ok(())
}

/// Makes names with one hash until the item is full, and files with xattrs of one hash.
fn hash_collisions(root: &Path) -> Result<()> {
    let dir = root.join("same-hash");
    fs::create_dir(&dir)?;
    for name in names::colliding_names(1200, 26, 2) {
        match fs::File::create(names::child(&dir, &name)) {
            // One item holds all names of a hash, and is at most as large as a leaf.
            Err(error) if is_full(&error) => break,
            other => drop(other.context("creating")?),
        }
    }
    for group in 0..20 {
        let dir = root.join(format!("group-{group}"));
        fs::create_dir(&dir)?;
        for (number, name) in names::colliding_names(30, 20, 100 + group).iter().enumerate() {
            let path = names::child(&dir, name);
            match number % 3 {
                0 => fs::create_dir(path)?,
                1 => fs::write(path, name)?,
                _ => std::os::unix::fs::symlink("target", path)?,
            }
        }
    }
    crate::populate::attributes::xattrs(root)
}

fn is_full(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::OVERFLOW.raw_os_error())
}

/// Makes a file of sectors with data that alternate with holes.
fn scattered(path: &Path, count: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let file = extents::open(path)?;
    for number in 0..count {
        file.write_all_at(&bytes(number, Texture::Noise, 4096), number * 3 * 4096)?;
    }
    Ok(file.sync_all()?)
}

fn large(root: &Path) -> Result<()> {
    use std::io::Write;
    let mut file = fs::File::create(root.join("large"))?;
    for part in 0..300 {
        file.write_all(&bytes(part, Texture::Noise, 1 << 20))?;
    }
    let path = root.join("large-compressed");
    fs::File::create(&path)?;
    crate::populate::attributes::set_flags(&path, rustix::fs::IFlags::COMPRESSED)?;
    let mut file = fs::OpenOptions::new().append(true).open(path)?;
    for part in 0..64 {
        file.write_all(&bytes(part, Texture::Text, 1 << 20))?;
    }
    Ok(())
}

fn many_small(root: &Path) -> Result<()> {
    for dir in 0..100_u64 {
        let path = root.join(format!("{}/{}", dir % 10, dir));
        fs::create_dir_all(&path)?;
        for file in 0..100_u64 {
            let seed = dir * 100 + file;
            let len = usize::try_from(seed * 31 % 6000)?;
            fs::write(path.join(format!("{file}.txt")), bytes(seed, Texture::Text, len))?;
        }
    }
    Ok(())
}
