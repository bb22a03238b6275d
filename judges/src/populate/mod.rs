//! The content of the images. It is seeded, so every run makes the same trees.

pub mod attributes;
pub mod contents;
pub mod extents;
pub mod links;
pub mod names;
pub mod seeded;
pub mod subvolumes;

use anyhow::Result;
use std::fs;
use std::path::Path;

/// Makes a few megabytes with something of every kind, for most images.
pub fn everything(root: &Path) -> Result<()> {
    for (name, fill) in PARTS {
        let dir = root.join(name);
        fs::create_dir(&dir)?;
        fill(&dir)?;
    }
    Ok(())
}

type Fill = fn(&Path) -> Result<()>;

const PARTS: [(&str, Fill); 8] = [
    ("contents", |dir| contents::sizes(dir)),
    ("larger", |dir| contents::large(dir)),
    ("appended", |dir| contents::appended(dir)),
    ("sources", |dir| contents::sources(dir)),
    ("extents", |dir| extents::everything(dir)),
    ("names", |dir| names::everything(dir)),
    ("attributes", |dir| attributes::everything(dir)),
    ("links", |dir| links::everything(dir, 300)),
];
