//! Damaged copies: reads return the right data where redundancy allows it, and EIO for exactly the
//! lost range otherwise. The rest of the volume stays readable.

use anyhow::{Context, Result, anyhow, bail, ensure};
use butternut_judges::compare::{Side, compare};
use butternut_judges::fuse_mount::FuseMount;
use butternut_judges::image::{Image, View, images_dir};
use butternut_judges::populate::seeded::{Seeded, stamped_sector};
use butternut_judges::rot::{DamagedImage, Place, SECTOR_BYTES, Sector};
use butternut_judges::{library, trial};
use libtest_mimic::Trial;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

const EIO: i32 = 5;

/// How a profile stores its data: the faults that it tolerates, and by which means.
#[derive(Debug, Clone, Copy)]
enum Keeps {
    /// The number of copies, on one device or several.
    Copies(usize),
    /// The number of parity stripes of a row.
    Parity(usize),
}

const PROFILES: [(&str, usize, Keeps); 14] = [
    ("profile-single", 1, Keeps::Copies(1)),
    ("profile-single-over-two", 2, Keeps::Copies(1)),
    ("profile-raid0", 3, Keeps::Copies(1)),
    ("profile-dup", 1, Keeps::Copies(2)),
    ("profile-raid1", 2, Keeps::Copies(2)),
    ("profile-raid1-of-three", 3, Keeps::Copies(2)),
    ("profile-raid1c3", 3, Keeps::Copies(3)),
    ("profile-raid1c4", 4, Keeps::Copies(4)),
    ("profile-raid10", 4, Keeps::Copies(2)),
    ("profile-raid5", 3, Keeps::Parity(1)),
    ("profile-raid5-of-two", 2, Keeps::Parity(1)),
    ("profile-raid5-of-five", 5, Keeps::Parity(1)),
    ("profile-raid6", 4, Keeps::Parity(2)),
    ("profile-raid6-of-three", 3, Keeps::Parity(2)),
];

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for (name, devices, keeps) in PROFILES {
        let faults = match keeps {
            Keeps::Copies(copies) => copies - 1,
            Keeps::Parity(stripes) => stripes,
        };
        let spans_devices = devices > faults;
        if faults > 0 && spans_devices {
            for first in 0..devices {
                let lost: Vec<usize> = (first..first + faults).map(|at| at % devices).collect();
                add(&mut trials, name, &format!("rotten-devices-{lost:?}"), move |image| {
                    whole_devices_are_damaged(image, &lost)
                });
            }
        }
        if let Keeps::Copies(copies @ 2..) = keeps {
            add(&mut trials, name, "one-good-copy-each", move |image| {
                one_good_copy_each(image, copies)
            });
        }
        add(&mut trials, name, "too-much-rot", move |image| {
            excessive_damage_is_lost(image, keeps, false)
        });
        add(&mut trials, name, "too-much-rot-by-mount", move |image| {
            excessive_damage_is_lost(image, keeps, true)
        });
        if devices > 1 {
            let lost = if devices > faults + 1 { faults + 1 } else { devices - 1 };
            let opens = lost <= faults;
            add(&mut trials, name, "devices-missing", move |image| {
                devices_missing(image, lost, opens)
            });
        }
    }
    trial::run(trials)
}

fn add(
    trials: &mut Vec<Trial>,
    name: &'static str,
    what: &str,
    judge: impl FnOnce(&Image) -> Result<()> + Send + 'static,
) {
    let run = move || judge(&Image::load(name)?);
    trials.push(trial::trial(&format!("{name}::{what}"), run));
}

/// Everything on these devices except the superblocks is damaged; all reads succeed.
fn whole_devices_are_damaged(image: &Image, lost: &[usize]) -> Result<()> {
    let damaged = DamagedImage::copy_of(image, &images_dir())?;
    let struck: Vec<Place> =
        damaged.written.iter().filter(|place| lost.contains(&place.device)).copied().collect();
    ensure!(struck.len() > 50, "only {} places to damage", struck.len());
    damaged.corrupt(&struck)?;
    everything_is_served(&damaged)
}

/// All copies but one of every sector and every tree block are damaged, in varying order.
fn one_good_copy_each(image: &Image, copies: usize) -> Result<()> {
    let damaged = DamagedImage::copy_of(image, &images_dir())?;
    let mut seeded = Seeded::new(11);
    let mut struck = Vec::new();
    for places in damaged.sectors.values().chain(damaged.blocks.values()) {
        ensure!(places.len() == copies, "{} copies, want {copies}: {places:?}", places.len());
        let good = seeded.below(places.len());
        let bad = places.iter().enumerate().filter(|(at, _)| *at != good);
        struck.extend(bad.map(|(_, place)| *place));
    }
    damaged.corrupt(&struck)?;
    everything_is_served(&damaged)
}

fn everything_is_served(damaged: &DamagedImage) -> Result<()> {
    let view = View::top();
    let want = Image::load(&damaged.image.name)?.kernel_manifest(&view)?;
    let have = library::walk(&library::open(&damaged.image, &view)?)?;
    let want = Side { name: "kernel", manifest: &want };
    let have = Side { name: "library", manifest: &have };
    compare(want, have, &[]).map(drop).map_err(|text| anyhow!("\n{text}"))
}

/// Some sectors are damaged more than the profile tolerates: only these are lost.
fn excessive_damage_is_lost(image: &Image, keeps: Keeps, by_mount: bool) -> Result<()> {
    let damaged = DamagedImage::copy_of(image, &images_dir())?;
    let chosen = damaged
        .sectors
        .iter()
        .filter(|(sector, _)| sector.file >= 4 && sector.number % 97 == sector.file);
    let mut struck = BTreeSet::new();
    for (_, places) in chosen {
        match keeps {
            Keeps::Copies(_) => struck.extend(places),
            Keeps::Parity(stripes) => {
                let place = *places.first().context("the sector has a place")?;
                let siblings = damaged.row_siblings(place);
                ensure!(siblings.len() >= stripes, "{place:?} has the row siblings {siblings:?}");
                struck.insert(place);
                struck.extend(siblings.into_iter().take(stripes));
            }
        }
    }
    damaged.corrupt(&struck.iter().copied().collect::<Vec<_>>())?;
    let is_lost = |places: &[Place]| places.iter().all(|place| struck.contains(place));
    let lost: BTreeSet<Sector> = damaged
        .sectors
        .iter()
        .filter(|(_, places)| is_lost(places))
        .map(|(sector, _)| *sector)
        .collect();
    ensure!(lost.len() > 15, "only {} sectors are lost", lost.len());
    let all = damaged.sectors.keys().copied();
    if by_mount {
        mount_serves_all_but(&damaged, all, &lost)
    } else {
        library_serves_all_but(&damaged, all, &lost)
    }
}

fn library_serves_all_but(
    damaged: &DamagedImage,
    all: impl Iterator<Item = Sector>,
    lost: &BTreeSet<Sector>,
) -> Result<()> {
    let filesystem = library::open(&damaged.image, &View::top())?;
    for sector in all {
        let name = format!("sectors-{}", sector.file);
        let id = filesystem.lookup(filesystem.root(), name.as_bytes())?;
        let file = filesystem.open_file(id)?;
        let mut buf = vec![0; 4096];
        let read = file.read_at(sector.number * SECTOR_BYTES, &mut buf);
        let read = read.map(|bytes| buf.get(..bytes).unwrap_or(&[])).map_err(|e| e.errno());
        is_right(sector, lost, read)?;
    }
    Ok(())
}

fn mount_serves_all_but(
    damaged: &DamagedImage,
    all: impl Iterator<Item = Sector>,
    lost: &BTreeSet<Sector>,
) -> Result<()> {
    let mount = FuseMount::new(&damaged.image, &View::top())?;
    for sector in all {
        let path = mount.root().join(format!("sectors-{}", sector.file));
        let mut buf = vec![0; 4096];
        let read = std::fs::File::open(path)?.read_at(&mut buf, sector.number * SECTOR_BYTES);
        let read = read.map(|bytes| buf.get(..bytes).unwrap_or(&[]));
        is_right(sector, lost, read.map_err(|error| error.raw_os_error().unwrap_or(0)))?;
    }
    mount.unmount()
}

fn is_right(sector: Sector, lost: &BTreeSet<Sector>, read: Result<&[u8], i32>) -> Result<()> {
    match read {
        Err(EIO) if lost.contains(&sector) => Ok(()),
        Ok(_) if lost.contains(&sector) => bail!("{sector:?} is lost, but its read succeeded"),
        Ok(bytes) => {
            let is_same = bytes == stamped_sector(sector.file, sector.number);
            ensure!(is_same, "{sector:?} was read with wrong bytes");
            Ok(())
        }
        Err(errno) => bail!("{sector:?}: errno {errno}, though redundancy is sufficient"),
    }
}

/// Without `degraded` a missing device is refused, and named; with it, opening fails if redundancy
/// is not sufficient.
fn devices_missing(image: &Image, lost: usize, opens: bool) -> Result<()> {
    let mut view = View::top();
    view.missing = (0..lost).map(|at| image.devices.len() - 1 - at).collect();
    let mut options = library::options(&view);
    let devices: Vec<_> = image.paths_of(&view).iter().map(butternut::DevicePath::from).collect();
    for degraded in [false, true] {
        options.degraded = degraded;
        match butternut::Filesystem::open(&devices, &options) {
            Ok(_) => ensure!(degraded && opens, "opened with degraded={degraded}"),
            Err(error) => {
                let text = format!("{:#}", anyhow!(error));
                ensure!(!(degraded && opens), "refused: {text}");
                for at in &view.missing {
                    let id = (at + 1).to_string();
                    let names_it = text.split(|c: char| !c.is_ascii_digit()).any(|word| word == id);
                    ensure!(names_it, "the error does not name device {id}: {text}");
                }
            }
        }
    }
    Ok(())
}
