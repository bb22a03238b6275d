//! `butternut import`, `mkfs --rootdir` and related commands write what the kernel then shows,
//! entry by entry; and the commands and the kernel change a volume in turn.
//!
//! The source is a btrfs volume of the kernel with files of every kind.

use anyhow::{Context, Result, anyhow, ensure};
use butternut_judges::compare::{Field, Side, compare};
use butternut_judges::image::images_dir;
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, LoopDevice, MountHow};
use butternut_judges::manifest::Manifest;
use butternut_judges::scratch::Scratch;
use butternut_judges::{command, populate, tool, trial, walk};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Fields that a copy cannot preserve: inode numbers, birth and change times, allocation and order.
/// Attribute flags are not copied.
const EXCUSED: [Field; 6] =
    [Field::Ino, Field::Btime, Field::Ctime, Field::Blocks, Field::Order, Field::Flags];

/// The largest nodes, because only they hold the largest xattrs.
const NODES: &str = "-n 64K";

/// Returns the directory of images, and creates it if no image was made yet.
fn place() -> Result<PathBuf> {
    std::fs::create_dir_all(images_dir())?;
    Ok(images_dir())
}

fn main() -> ExitCode {
    let mut trials = vec![
        trial::trial("import::everything", a_tree_is_imported),
        trial::trial("import::in_turns_with_the_kernel", in_turns_with_the_kernel),
    ];
    for more in ["", "--shrink", "-O ^no-holes", "-O ^fst --csum sha256", "-m single -d dup"] {
        let name = format!("mkfs_rootdir::{more}");
        trials.push(trial::trial(&name, move || a_volume_is_made_from_a_tree(more)));
    }
    trial::run(trials)
}

/// Makes a source tree, and returns its manifest.
fn source() -> Result<(Scratch, Manifest)> {
    let scratch = Scratch::new(&place()?)?;
    populate::everything(scratch.root())?;
    // The first walk sets access times; the second one does not change them.
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

/// Checks the volume with `btrfs check` and our checker, and returns what the kernel shows of it.
/// The kernel must log nothing about it.
fn judged(image: &Path, options: &str) -> Result<Manifest> {
    let mark = Mark::now()?;
    let device = LoopDevice::attach(image, true, 0)?;
    let output =
        tool::output("btrfs", &tool::words_and_path("check --check-data-csum", device.path()))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "btrfs check: {printed}");
    butternut("check --check-data-csum @", &[device.path()])?;
    let name = device.path().file_name().context("a name")?.to_string_lossy().into_owned();
    let how = MountHow { read_only: true, options, ..MountHow::default() };
    let mount = KernelMount::over(vec![device], &how)?;
    let shown = walk::walk(mount.root())?;
    mount.unmount()?;
    let complaints = mark.complaints(&[&name])?;
    ensure!(complaints.is_empty(), "the kernel logged: {complaints:?}");
    Ok(shown)
}

fn same(want: &Manifest, have: &Manifest) -> Result<()> {
    let want = Side { name: "the source", manifest: want };
    let have = Side { name: "the volume", manifest: have };
    compare(want, have, &EXCUSED).map(drop).map_err(|text| anyhow!("\n{text}"))
}

fn a_tree_is_imported() -> Result<()> {
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

/// Applies rounds of changes: with our commands to a volume, and with the kernel to a copy of the
/// same tree and to the volume.
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

/// Applies the same changes with standard tools.
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

/// Compares everything but the times.
fn same_names(want: &Manifest, have: &Manifest) -> Result<()> {
    let excused: Vec<Field> = EXCUSED.into_iter().chain([Field::Atime, Field::Mtime]).collect();
    let want = Side { name: "the kernel's twin", manifest: want };
    let have = Side { name: "the volume", manifest: have };
    compare(want, have, &excused).map(drop).map_err(|text| anyhow!("\n{text}"))
}
