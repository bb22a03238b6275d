//! `inspect dump-tree`: trees in the form of `btrfs inspect-internal dump-tree`.
//!
//! This is the seam: options as typed on one side, the library's verified blocks on the other, and
//! [`tree`] between them.

use super::tree::{self, Blocks, DumpOptions, Order};
use crate::failure::{Done, Failure, Outcome, chain};
use crate::flags::{DumpTreeArgs, GlobalArgs};
use crate::output::say;
use butternut::{Filesystem, Inspect};
use butternut_format::node::Expected;
use butternut_format::super_block::RawSuperBlock;
use butternut_format::units::Logical;
use std::io::Write;

/// Prints the trees or blocks that `args` asks for.
pub(crate) fn print(
    filesystem: &Filesystem,
    global: &GlobalArgs,
    args: &DumpTreeArgs,
    out: &mut dyn Write,
) -> Outcome {
    let options = options(global, args)?;
    let mut done = Done::Well;
    let mut notice = |line: &str| {
        say(&format!("inspect dump-tree: {line}"));
        done = Done::WithFailures;
    };
    tree::dump(&Volume(filesystem.inspect()), &options, out, &mut notice)?;
    Ok(done)
}

fn options(global: &GlobalArgs, args: &DumpTreeArgs) -> Result<DumpOptions, Failure> {
    let tree = args.tree.as_deref().map(|name| {
        tree::tree_by_name(name).ok_or_else(|| {
            Failure::new(format!("inspect dump-tree: {name}"), "no tree has this id or name")
                .cure("a number, or a name as fs, root, chunk, extent, csum, uuid, quota")
        })
    });
    Ok(DumpOptions {
        extents: args.extents,
        device: args.device,
        roots: args.roots,
        backups: args.backups,
        uuid: args.uuid,
        tree: tree.transpose()?,
        blocks: args.block.iter().copied().map(Logical).collect(),
        follow: args.follow,
        order: if args.dfs { Order::Depth } else { Order::Breadth },
        hide_names: args.hide_names,
        csum_headers: args.csum_headers,
        csum_items: args.csum_items,
        json: global.json,
    })
}

struct Volume(Inspect);

impl Blocks for Volume {
    type Error = String;

    fn super_block(&self) -> &RawSuperBlock {
        self.0.super_block().raw()
    }

    fn block(&self, expected: &Expected) -> Result<Vec<u8>, String> {
        let block = self.0.block(expected).map_err(|error| chain(&error))?;
        Ok(block.bytes().to_vec())
    }

    fn block_at(&self, logical: Logical) -> Result<Vec<u8>, String> {
        let block = self.0.block_at(logical).map_err(|error| chain(&error))?;
        Ok(block.bytes().to_vec())
    }
}
