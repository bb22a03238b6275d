//! `inspect tree-stats`: prints size, shape and seek distances of trees in the format of
//! btrfs-progs, without the elapsed time.

use std::io::Write;

use butternut::inspect::TreeStats;

use crate::args::{GlobalArgs, TreeStatsArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::size::{Units, pretty};
use crate::output::{Output, json};
use crate::volume::OpenVolume;

/// The trees that are printed if none is named.
const TREES: [(u64, &str); 4] = [(1, "root"), (2, "extent"), (7, "csum"), (5, "fs")];

pub(crate) fn run(global: &GlobalArgs, args: &TreeStatsArgs, out: &mut Output) -> Outcome {
    super::refuse_directories("tree-stats", &args.volume.volume)?;
    let opened = OpenVolume::from_args(global, &args.volume)?;
    let units = if args.raw { Units::Bytes } else { Units::Binary };
    let named = args.tree.map(|tree| vec![(tree, name(tree))]);
    let trees = named
        .unwrap_or_else(|| TREES.iter().map(|(tree, name)| (*tree, (*name).to_owned())).collect());
    let mut list = json::List::default();
    for (tree, name) in trees {
        let stats = opened
            .filesystem
            .tree_stats(tree)
            .map_err(|error| Failure::of(format!("{name} tree"), &error))?;
        if global.json {
            list.push(out, as_json(tree, &stats))?;
        } else {
            writeln!(out, "Calculating size of {name} tree")?;
            print(&stats, units, out)?;
        }
    }
    if global.json {
        list.end(out)?;
    }
    Ok(Completion::Success)
}

fn name(tree: u64) -> String {
    let known = TREES.iter().find(|(id, _)| *id == tree);
    known.map_or_else(|| tree.to_string(), |(_, name)| (*name).to_owned())
}

fn print(stats: &TreeStats, units: Units, out: &mut dyn Write) -> std::io::Result<()> {
    let size = |bytes| pretty(bytes, units);
    let seeks = stats.forward_seeks + stats.backward_seeks;
    let mean = |total: u64, count: u64| size(total.checked_div(count).unwrap_or(0));
    writeln!(out, "\tTotal size: {}", size(stats.total_bytes))?;
    writeln!(out, "\t\tInline data: {}", size(stats.inline_bytes))?;
    writeln!(out, "\tTotal seeks: {seeks}")?;
    writeln!(out, "\t\tForward seeks: {}", stats.forward_seeks)?;
    writeln!(out, "\t\tBackward seeks: {}", stats.backward_seeks)?;
    writeln!(out, "\t\tAvg seek len: {}", mean(stats.seek_bytes, seeks))?;
    if seeks > 0 {
        writeln!(out, "\t\tMax seek len: {}", size(stats.seek_bytes_max))?;
    }
    writeln!(out, "\tTotal clusters: {}", stats.clusters)?;
    writeln!(out, "\t\tAvg cluster size: {}", mean(stats.total_bytes, stats.clusters))?;
    writeln!(out, "\t\tMin cluster size: {}", size(stats.cluster_bytes_min))?;
    writeln!(out, "\t\tMax cluster size: {}", size(stats.cluster_bytes_max))?;
    writeln!(out, "\tTotal disk spread: {}", size(stats.spread_bytes))?;
    writeln!(out, "\tLevels: {}", stats.levels)?;
    writeln!(out, "\tTotal nodes: {}", stats.blocks.iter().sum::<u64>())?;
    for (level, blocks) in stats.blocks.iter().enumerate() {
        writeln!(out, "\t\tOn level {level}: {blocks:8}")?;
    }
    Ok(())
}

fn as_json(tree: u64, stats: &TreeStats) -> json::Object {
    json::Object::new()
        .put("tree", tree)
        .put("levels", stats.levels)
        .put("blocks", stats.blocks.clone())
        .put("items", stats.items)
        .put("total_bytes", stats.total_bytes)
        .put("inline_bytes", stats.inline_bytes)
        .put("forward_seeks", stats.forward_seeks)
        .put("backward_seeks", stats.backward_seeks)
        .put("seek_bytes", stats.seek_bytes)
        .put("seek_bytes_max", stats.seek_bytes_max)
        .put("clusters", stats.clusters)
        .put("cluster_bytes_min", stats.cluster_bytes_min)
        .put("cluster_bytes_max", stats.cluster_bytes_max)
        .put("spread_bytes", stats.spread_bytes)
}
