//! Images with subvolumes and snapshots in every relation to each other.

use crate::image::Which;
use crate::populate::{self, subvolumes};
use crate::recipe::{ImageBuilder, Recipe};
use anyhow::Result;
use std::fs;
use std::path::Path;

pub(super) fn recipes() -> Vec<Recipe> {
    vec![
        Recipe::new("subvolumes", "nested, snapshotted, moved and deleted subvolumes")
            .fill(subvolumes::nested)
            .view("outer", Which::Path("outer".to_owned()))
            .view("inner", Which::Path("outer/inner-moved".to_owned()))
            .view("snapshot", Which::Path("snapshots/of-outer".to_owned()))
            .view("read-only", Which::Path("snapshots/of-outer-read-only".to_owned()))
            .view("by-id", Which::Id(257)),
        Recipe::new("subvolumes-compressed", "snapshots of everything, compressed, nodes of 4 KiB")
            .mkfs("-n 4096")
            .mount("compress=zstd")
            .fill(|root| {
                let live = root.join("live");
                subvolumes::create(&live)?;
                populate::everything(&live)?;
                subvolumes::snapshot_read_only(&live, &root.join("snapshot"))?;
                populate::extents::overwritten(&live.join("extents"), 100)
            })
            .view("live", Which::Path("live".to_owned())),
        Recipe::new("subvolume-default", "another default subvolume")
            .fill(|root| {
                subvolumes::nested(root)?;
                subvolumes::btrfs("subvolume set-default", &[&root.join("outer")])
            })
            .view("default", Which::Default),
        Recipe::new("subvolumes-many", "hundreds of snapshots of a changing subvolume").fill(many),
        Recipe::new("received", "sent and received subvolumes, also with encoded extents")
            .mount("compress=zstd")
            .own(received),
        Recipe::new("deleted-half", "a deleted subvolume that is not cleaned up yet")
            .own(deleted_half),
    ]
}

fn many(root: &Path) -> Result<()> {
    let live = root.join("live");
    subvolumes::create(&live)?;
    fs::create_dir(root.join("snapshots"))?;
    for number in 0..150_u32 {
        fs::write(live.join(format!("file-{}", number % 40)), number.to_string())?;
        let snapshot = root.join(format!("snapshots/{number:03}"));
        subvolumes::snapshot_read_only(&live, &snapshot)?;
        if number % 5 == 4 {
            subvolumes::delete(&snapshot, false)?;
        }
    }
    subvolumes::btrfs("subvolume sync", &[root])
}

fn received(builder: &ImageBuilder) -> Result<()> {
    builder.mkfs()?;
    let mount = builder.mount()?;
    subvolumes::received(mount.root(), &builder.dir)?;
    mount.unmount()
}

/// Copies the volume while the cleaner still has a deleted subvolume to remove.
fn deleted_half(builder: &ImageBuilder) -> Result<()> {
    builder.mkfs()?;
    let mount = builder.mount()?;
    let gone = mount.root().join("gone");
    subvolumes::create(&gone)?;
    for number in 0..3000 {
        fs::write(gone.join(format!("file-{number}")), vec![1; 3000])?;
    }
    populate::contents::sources(mount.root())?;
    subvolumes::btrfs("filesystem sync", &[mount.root()])?;
    subvolumes::delete(&gone, false)?;
    super::states::keep_as_is(builder, mount)
}
