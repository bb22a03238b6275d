//! Files of sizes and textures at which the layout changes.

use super::seeded::{Texture, bytes};
use anyhow::Result;
use std::fs;
use std::path::Path;

/// Sizes around the ends of sectors, inline limits, compression ranges and extents.
const SIZES: [usize; 29] = [
    0, 1, 2, 63, 100, 512, 1000, 2047, 2048, 2049, 3000, 3900, 4095, 4096, 4097, 6000, 8191, 8192,
    12_289, 32_768, 65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 200_000, 262_145, 524_288,
];

const TEXTURES: [(Texture, &str); 4] = [
    (Texture::Noise, "noise"),
    (Texture::Text, "text"),
    (Texture::Mixed, "mixed"),
    (Texture::Flat, "flat"),
];

/// Makes a file of each size in each texture, with a directory for each texture.
pub fn sizes(root: &Path) -> Result<()> {
    for (number, (texture, name)) in TEXTURES.into_iter().enumerate() {
        let dir = root.join(name);
        fs::create_dir(&dir)?;
        for size in SIZES {
            let seed = u64::try_from(number * 10_000_000 + size)?;
            fs::write(dir.join(format!("size-{size}")), bytes(seed, texture, size))?;
        }
    }
    Ok(())
}

/// Makes three larger files, each of several extents with any compression.
pub fn large(root: &Path) -> Result<()> {
    fs::write(root.join("large-noise"), bytes(1, Texture::Noise, 1_500_001))?;
    fs::write(root.join("large-text"), bytes(2, Texture::Text, 1_500_001))?;
    fs::write(root.join("large-mixed"), bytes(3, Texture::Mixed, 1_500_001))?;
    Ok(())
}

/// Makes files that are appended to with a sync after each part: small files of several extents,
/// and inline extents that became regular ones.
pub fn appended(root: &Path) -> Result<()> {
    use std::io::Write;
    for step in [100, 1000, 4000, 4096, 5000] {
        let mut file = fs::File::create(root.join(format!("appended-{step}")))?;
        for number in 0..6_usize {
            let seed = u64::try_from(step * 100 + number)?;
            file.write_all(&bytes(seed, Texture::Text, step))?;
            file.sync_all()?;
        }
    }
    Ok(())
}

/// Makes a small tree of source files, a few levels deep.
pub fn sources(root: &Path) -> Result<()> {
    for (number, top) in ["src", "docs", "tests"].into_iter().enumerate() {
        for depth in 1..6 {
            let dir = root.join(top).join(["a", "b", "c", "d", "e"][..depth].join("/"));
            fs::create_dir_all(&dir)?;
            for file in 0..8 {
                let seed = u64::try_from(number * 1000 + depth * 100 + file)?;
                let len = usize::try_from(seed * 37 % 9000)?;
                fs::write(dir.join(format!("{file}.rs")), bytes(seed, Texture::Text, len))?;
            }
        }
    }
    Ok(())
}
