//! What `butternut import`, `mkfs --rootdir` and the commands beside them put into a volume is what
//! the kernel shows of it, entry by entry; and they and the kernel write to it in turns.
//!
//! The source is a kernel's btrfs with something of every kind in it.

use anyhow::{Context, Result, anyhow, ensure};
use butternut_judges::compare::{Field, Side, compare};
use butternut_judges::image::shelf;
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, LoopDevice, MountHow};
use butternut_judges::manifest::Manifest;
use butternut_judges::scratch::Scratch;
use butternut_judges::{command, populate, tool, trial, walk};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What a copy cannot have: other inode numbers, its own times of birth and change, its own
/// allocation and order. Attribute flags are not copied.
const EXCUSED: [Field; 6] =
    [Field::Ino, Field::Btime, Field::Ctime, Field::Blocks, Field::Order, Field::Flags];

/// The largest nodes: only they hold the largest attributes.
const NODES: &str = "-n 64K";

/// The shelf, which is there even where no image was made yet.
fn place() -> Result<PathBuf> {
    std::fs::create_dir_all(shelf())?;
    Ok(shelf())
}

fn main() -> ExitCode {
    let mut trials = vec![
        trial::trial("import::everything", everything_goes_in),
        trial::trial("import::in_turns_with_the_kernel", in_turns_with_the_kernel),
    ];
    for more in ["", "--shrink", "-O ^no-holes", "-O ^fst --csum sha256", "-m single -d dup"] {
        let name = format!("mkfs_rootdir::{more}");
        trials.push(trial::trial(&name, move || a_volume_is_made_from_a_tree(more)));
    }
    trial::run(trials)
}

/// A tree of everything, and what the kernel shows of it.
fn source() -> Result<(Scratch, Manifest)> {
    let scratch = Scratch::new(&place()?)?;
    populate::everything(scratch.root())?;
    // What was read once has its access times; reading it again changes nothing.
    let manifest = walk::walk(scratch.root())?;
    Ok((scratch, manifest))
}

fn butternut(line: &str, paths: &[&Path]) -> Result<()> {
    let mut words: Vec<OsString> = vec!["--quiet".into()];
    let mut paths = paths.iter();
    for word in line.split_whitespace() {
        words.push(match word {
            "@" => paths.next().context("a path for every @")?.into(),
            word => word.into(),
        });
    }
    command::run(&words).map(drop)
}

/// `btrfs check` and ours find nothing; the kernel mounts the volume without a word, and shows
/// this.
fn judged(image: &Path, options: &str) -> Result<Manifest> {
    let mark = Mark::now()?;
    let device = LoopDevice::attach(image, true, 0)?;
    let output =
        tool::output("btrfs", &tool::words_and_path("check --check-data-csum", device.path()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "btrfs check: {said}");
    butternut("check --check-data-csum @", &[device.path()])?;
    let name = device.path().file_name().context("a name")?.to_string_lossy().into_owned();
    let how = MountHow { read_only: true, options, ..MountHow::default() };
    let mount = KernelMount::over(vec![device], &how)?;
    let shown = walk::walk(mount.root())?;
    mount.unmount()?;
    let complaints = mark.complaints(&[&name])?;
    ensure!(complaints.is_empty(), "the kernel complains: {complaints:?}");
    Ok(shown)
}

fn same(want: &Manifest, have: &Manifest) -> Result<()> {
    let want = Side { name: "the source", manifest: want };
    let have = Side { name: "the volume", manifest: have };
    compare(want, have, &EXCUSED).map(drop).map_err(|text| anyhow!("\n{text}"))
}

fn everything_goes_in() -> Result<()> {
    let (scratch, want) = source()?;
    let dir = tempfile::tempdir_in(place()?)?;
    let image = dir.path().join("a.img");
    butternut(&format!("mkfs --size 1G {NODES} @"), &[&image])?;
    butternut("import @ @ /", &[&image, &scratch.root().join(".")])?;
    same(&want, &judged(&image, "")?)
}

fn a_volume_is_made_from_a_tree(more: &str) -> Result<()> {
    let (scratch, want) = source()?;
    let dir = tempfile::tempdir_in(place()?)?;
    let image = dir.path().join("a.img");
    butternut(&format!("mkfs {NODES} {more} --rootdir @ @"), &[scratch.root(), &image])?;
    let has_free_space_tree = !more.contains("^fst");
    same(&want, &judged(&image, if has_free_space_tree { "" } else { "nospace_cache" })?)
}

/// Rounds of changes: by our commands on a volume, and by the kernel on a copy of the same tree and
/// then on the volume itself.
fn in_turns_with_the_kernel() -> Result<()> {
    let dir = tempfile::tempdir_in(place()?)?;
    let image = dir.path().join("a.img");
    let twin = Scratch::new(&place()?)?;
    butternut(&format!("mkfs --size 1G {NODES} @"), &[&image])?;
    for round in 0..3 {
        let tree = twin.root().join(format!("round{round}"));
        std::fs::create_dir(&tree)?;
        populate::contents::sizes(&tree)?;
        populate::attributes::xattrs(&tree)?;
        populate::links::across(&tree)?;
        butternut("import @ @ /", &[&image, &tree])?;
        ours(&image, round)?;
        same_names(&theirs(twin.root(), round)?, &judged(&image, "")?)?;
        let mount = KernelMount::new(std::slice::from_ref(&image), &MountHow::default())?;
        for root in [mount.root(), twin.root()] {
            let from = root.join(format!("round{round}"));
            tool::run("cp", &["-a".as_ref(), from.as_os_str(), root.join("copied").as_os_str()])?;
            std::fs::remove_dir_all(&from)?;
            std::fs::rename(root.join("copied"), root.join(format!("kept{round}")))?;
        }
        mount.unmount()?;
    }
    same_names(&walk::walk(twin.root())?, &judged(&image, "")?)
}

fn ours(image: &Path, round: u32) -> Result<()> {
    butternut(&format!("mkdir -p -m 2751 @ round{round}/new/er"), &[image])?;
    butternut(&format!("ln -s @ ../new round{round}/new/link"), &[image])?;
    butternut(&format!("truncate -s 123456 @ round{round}/new/grown"), &[image])?;
    butternut(&format!("ln @ round{round}/new/grown round{round}/new/twin"), &[image])?;
    butternut(&format!("chown @ 12:34 round{round}/new/grown"), &[image])?;
    butternut(&format!("setfattr -n user.round -v {round} @ round{round}/new"), &[image])?;
    butternut(&format!("mv @ round{round}/new round{round}/moved"), &[image])?;
    if let Some(before) = round.checked_sub(1) {
        butternut(&format!("rm -r @ kept{before}"), &[image])?;
    }
    butternut("trim @", &[image])
}

/// The same with ordinary tools.
fn theirs(root: &Path, round: u32) -> Result<Manifest> {
    let before = round.checked_sub(1).map_or_else(String::new, |it| format!("rm -r kept{it}"));
    let script = format!(
        "cd {}; mkdir -p round{round}/new/er; chmod 755 round{round}/new
         chmod 2751 round{round}/new/er
         ln -s ../new round{round}/new/link; truncate -s 123456 round{round}/new/grown
         chmod 644 round{round}/new/grown; ln round{round}/new/grown round{round}/new/twin
         chown 12:34 round{round}/new/grown; setfattr -n user.round -v {round} round{round}/new
         mv round{round}/new round{round}/moved
         {before}",
        root.display()
    );
    tool::run("sh", &["-ec".as_ref(), Path::new(&script).as_os_str()])?;
    walk::walk(root)
}

/// Everything but the times, which are those of the making.
fn same_names(want: &Manifest, have: &Manifest) -> Result<()> {
    let excused: Vec<Field> = EXCUSED.into_iter().chain([Field::Atime, Field::Mtime]).collect();
    let want = Side { name: "the kernel's twin", manifest: want };
    let have = Side { name: "the volume", manifest: have };
    compare(want, have, &excused).map(drop).map_err(|text| anyhow!("\n{text}"))
}
