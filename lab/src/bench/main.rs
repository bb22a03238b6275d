//! `bench`: compares reads and writes of Butternut with the raw device and the kernel's btrfs.
//!
//! Every row runs its contestants one after the other, several times, and reports medians, ranges
//! and ratios. Absolute figures depend on the machine; the ratios are the result.

#![allow(clippy::cast_precision_loss, reason = "figures are rounded before they are printed")]

mod clones;
mod commits;
mod cpu;
mod fio;
mod lanes;
mod memory;
mod names;
mod report;
mod rig;
mod scratch;
mod snapshots;
mod streams;
mod writes;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Compares Butternut with the raw device and the kernel.
#[derive(Parser)]
#[command(name = "bench", version, args_conflicts_with_subcommands = true)]
struct Flags {
    #[command(subcommand)]
    suite: Option<Suite>,
    /// Use smaller files and fewer repeats. The figures are not reliable.
    #[arg(long)]
    quick: bool,
    /// Directory of the volume's image; in memory by default, so that the device is not the limit.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Run only the rows whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// The `butternut` command to mount with; the one beside this program by default.
    #[arg(long)]
    butternut: Option<PathBuf>,
    /// Internal: walk every entry of the default subvolume of this image, then print the peak
    /// memory.
    #[arg(long, hide = true)]
    walk: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Suite {
    /// Compare the I/O lanes with the raw device and the kernel's btrfs, xfs and ext4, through fio.
    Lanes(lanes::Flags),
    /// Compare snapshots, deletions and streams with the kernel's btrfs and btrfs-progs.
    Snapshots(snapshots::Flags),
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    match &flags.suite {
        Some(Suite::Lanes(flags)) => return lanes::run(flags),
        Some(Suite::Snapshots(flags)) => return snapshots::run_suite(flags),
        None => {}
    }
    if let Some(image) = &flags.walk {
        return memory::walk(image);
    }
    let size = if flags.quick { &rig::Size::QUICK } else { &rig::Size::FULL };
    let rig = rig::Rig::make(&flags.dir, size, flags.butternut.clone())?;
    let mut report = report::Report::new(&flags.only);
    cpu::rows(&rig, &mut report)?;
    streams::rows(&rig, &mut report)?;
    memory::rows(&rig, &mut report)?;
    let scratch = scratch::Scratch::make(&flags.dir, &rig.butternut)?;
    names::rows(&rig, &scratch, &mut report)?;
    commits::rows(&rig, &scratch, &mut report)?;
    writes::rows(&rig, &scratch, &mut report)?;
    report.finish()
}
