//! `inspect dump-tree`: prints trees in the format of `btrfs inspect-internal dump-tree`.
//!
//! This module connects the command-line options and the verified tree blocks of the library to the
//! printers in [`tree`].

use super::tree::{self, Blocks, DumpOptions, Order};
use crate::args::{DumpTreeArgs, GlobalArgs};
use crate::failure::{Completion, Failure, Outcome, chain};
use crate::output::stderr_line;
use butternut::Filesystem;
use butternut::inspect::Inspect;
use butternut_format::node::Expected;
use butternut_format::super_block::RawSuperBlock;
use butternut_format::units::Logical;
use std::io::Write;

/// Prints the trees or blocks that `args` selects.
pub(crate) fn print(
    filesystem: &Filesystem,
    global: &GlobalArgs,
    args: &DumpTreeArgs,
    out: &mut dyn Write,
) -> Outcome {
    let options = options(global, args)?;
    let mut done = Completion::Success;
    let mut notice = |line: &str| {
        stderr_line(&format!("inspect dump-tree: {line}"));
        done = Completion::PartialFailure;
    };
    let printed = tree::dump(&Volume(filesystem.inspect()), &options, out, &mut notice);
    done.after(printed.map_err(Failure::from))
}

fn options(global: &GlobalArgs, args: &DumpTreeArgs) -> Result<DumpOptions, Failure> {
    let tree = args.tree.as_deref().map(|name| {
        tree::tree_by_name(name).ok_or_else(|| {
            Failure::new(format!("inspect dump-tree: {name}"), "no tree has this id or name")
                .hint("use an id, or a name like fs, root, chunk, extent, csum, uuid or quota")
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
