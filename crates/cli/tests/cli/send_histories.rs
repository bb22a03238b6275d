//! Snapshots of random histories that are made on a mount of Butternut, sent by the kernel and by
//! Butternut, and received by both. What is received is compared entry by entry with what the
//! kernel's mount of the image shows, and the streams of the two senders are compared in effect.
//!
//! `BUTTERNUT_LONG=1` takes 100 histories instead of 5; `BUTTERNUT_SEED=N` takes one.

use super::command::{butternut, run, shell};
use super::image::kernel_tests_enabled;
use super::kernel_history::{Dice, change, describe};
use super::kernel_received::assert_received;
use super::receive::Mounted;
use super::stream_effects::assert_equal_effects;
use butternut_undo::MountGuard;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Histories in one volume.
const SEEDS: u64 = 5;
/// Number of changes before each snapshot of a history.
const CHANGES: u32 = 60;

/// Protocols, in turns.
const WAYS: [&[&str]; 3] = [&["--proto=1"], &["--proto=2"], &["--proto=2", "--compressed-data"]];

/// Snapshots and their parents: one is sent whole.
const SENT: [(&str, Option<&str>); 3] = [("a", None), ("b", Some("a")), ("c", Some("b"))];

/// A volume of Butternut with snapshots, those that receive, and the streams.
struct Volumes {
    dir: TempDir,
    seeds: Range<u64>,
}

impl Volumes {
    fn new(seeds: Range<u64>) -> Self {
        let volumes = Self { dir: tempfile::tempdir_in("/dev/shm").unwrap(), seeds };
        for name in ["source", "ours"] {
            butternut(&["mkfs", "--size", "1G", &volumes.path(name)]).ok();
        }
        for name in ["kernels", "from-ours"] {
            let path = volumes.path(name);
            shell(&format!("truncate -s 1G {path}; mkfs.btrfs -q {path}"));
        }
        volumes.make_histories();
        volumes
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn mounted(&self, name: &str, options: &str) -> Mounted {
        Mounted::new(Path::new(&self.path(name)), options)
    }

    /// All changes and snapshots are made on a mount of Butternut.
    fn make_histories(&self) {
        let (image, at) = (self.path("source"), self.path("at"));
        std::fs::create_dir(&at).unwrap();
        let guard = MountGuard::before_mount(Path::new(&at)).unwrap();
        butternut(&["mount", "-o", "noatime,compress=zstd", &image, &at]).ok();
        for seed in self.seeds.clone() {
            let root = format!("{at}/w{seed}");
            butternut(&["subvolume", "create", &root]).ok();
            let mut dice = Dice::new(seed);
            for (letter, _) in SENT {
                change(Path::new(&root), &mut dice, CHANGES);
                let snapshot = format!("{at}/{letter}{seed}");
                butternut(&["subvolume", "snapshot", "-r", &root, &snapshot]).ok();
            }
        }
        butternut(&["umount", &at]).ok();
        drop(guard);
        self.check("source");
    }

    fn check(&self, name: &str) {
        let path = self.path(name);
        run("btrfs", &["check", "--check-data-csum", &path].map(AsRef::as_ref));
        butternut(&["check", "--check-data-csum", &path]).ok();
    }

    /// Returns the snapshots and their parents.
    fn snapshots(&self) -> Vec<(u64, String, Option<String>)> {
        let of_seed = |seed| {
            SENT.map(|(letter, parent)| {
                (seed, format!("{letter}{seed}"), parent.map(|parent| format!("{parent}{seed}")))
            })
        };
        self.seeds.clone().flat_map(of_seed).collect()
    }

    /// Sends all snapshots by the kernel, which has mounted the volume, and by Butternut.
    fn send(&self) {
        let words = |seed: u64, stream: &str, parent: Option<String>| {
            let way = WAYS[usize::try_from(seed % 3).unwrap()];
            let mut words = vec!["send".to_owned(), "-q".to_owned()];
            words.extend(["-f".to_owned(), self.path(stream)]);
            words.extend(way.iter().map(|&word| word.to_owned()));
            words.extend(parent.into_iter().flat_map(|parent| ["-p".to_owned(), parent]));
            words
        };
        let mount = self.mounted("source", "ro");
        for (seed, name, parent) in self.snapshots() {
            let parent = parent.map(|parent| mount.path(&parent));
            let mut words = words(seed, &format!("kernel.{name}"), parent);
            words.push(mount.path(&name));
            run("btrfs", &words.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        }
        drop(mount);
        for (seed, name, parent) in self.snapshots() {
            let parent = parent.map(|parent| format!("/{parent}"));
            let mut words = words(seed, &format!("ours.{name}"), parent);
            words.extend([self.path("source"), format!("/{name}")]);
            butternut(&words).ok();
        }
    }

    fn receive(&self) {
        let (kernels, from_ours) = (self.mounted("kernels", "rw"), self.mounted("from-ours", "rw"));
        for (_, name, _) in self.snapshots() {
            let [kernel, ours] =
                ["kernel", "ours"].map(|sender| self.path(&format!("{sender}.{name}")));
            butternut(&["receive", "-q", "-f", &kernel, &self.path("ours")]).ok();
            let by_kernel = |stream: &str, to: String| {
                run("btrfs", &["receive", "-q", "-f", stream, &to].map(AsRef::as_ref));
            };
            by_kernel(&kernel, kernels.path(""));
            by_kernel(&ours, from_ours.path(""));
        }
        self.check("ours");
    }

    fn compare(&self) {
        let [source, ours, kernels, from_ours] =
            ["source", "ours", "kernels", "from-ours"].map(|name| self.mounted(name, "ro"));
        for (_, name, parent) in self.snapshots() {
            let [source_at, ours, kernels, from_ours] = [&source, &ours, &kernels, &from_ours]
                .map(|mount| PathBuf::from(mount.path(&name)));
            assert_received(&source_at, &ours, &kernels, parent.is_none());
            let (want, have) = (describe(&source_at), describe(&from_ours));
            for (path, want) in &want {
                let have = have.get(path).map_or("missing", String::as_str);
                assert_eq!(have, want, "{}", from_ours.join(path).display());
            }
            assert_eq!(have.len(), want.len(), "{name}: entries are left over");
            let dumps = ["kernel", "ours"].map(|sender| {
                butternut(&["receive", "--dump", "-f", &self.path(&format!("{sender}.{name}"))])
                    .ok()
            });
            let parent = parent.map(|parent| PathBuf::from(source.path(&parent)));
            assert_equal_effects([&dumps[0], &dumps[1]], parent.as_deref(), &source_at);
        }
    }
}

#[test]
fn histories_that_butternut_makes_are_sent_and_received_by_the_kernel_and_by_butternut() {
    let name =
        "histories_that_butternut_makes_are_sent_and_received_by_the_kernel_and_by_butternut";
    if !kernel_tests_enabled(name) {
        return;
    }
    let only = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let (first, seeds, rounds) = match only {
        Some(seed) => (seed, 1, 1),
        None => (0, SEEDS, if is_long { 20 } else { 1 }),
    };
    for round in 0..rounds {
        let begin = first + round * seeds;
        let seeds = begin..begin + seeds;
        let volumes = Volumes::new(seeds);
        volumes.send();
        volumes.receive();
        volumes.compare();
    }
}
