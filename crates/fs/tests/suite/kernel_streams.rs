//! Streams of the kernel's `btrfs send` that Butternut receives: snapshots of random histories, in
//! version 1, in version 2, and in version 2 with compressed data. Of each history, one snapshot is
//! sent whole, one as the difference to it, and one as a difference with a clone source. What
//! Butternut has received is compared with what was sent, entry by entry, as the kernel shows both.
//!
//! `BUTTERNUT_LONG=1` takes 200 histories instead of 10; `BUTTERNUT_SEED=N` takes one. Needs root
//! and loop devices; with `BUTTERNUT_NO_KERNEL=1` this test prints that it is left out.

use crate::kernel_image::{KernelImage, kernel_is_here, run};
use crate::kernel_received::assert_received;
use crate::kernel_send::histories;
use butternut::receive::{StreamEnd, StreamReader};
use butternut::{DevicePath, Filesystem, MountOptions};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Histories in one volume.
const SEEDS: u64 = 10;

/// Options of `btrfs send`, in turns.
const WAYS: [&[&str]; 3] = [&["--proto=1"], &["--proto=2"], &["--proto=2", "--compressed-data"]];

/// A snapshot, and what the receiver has already.
struct Sent {
    name: String,
    parent: Option<String>,
    clone_source: Option<String>,
    way: &'static [&'static str],
}

impl Sent {
    fn of(seed: u64) -> [Self; 3] {
        let way = WAYS[usize::try_from(seed % 3).unwrap()];
        let name = |letter: &str| format!("{letter}{seed}");
        let sent = |letter: &str, parent: Option<&str>, source: Option<&str>| Self {
            name: name(letter),
            parent: parent.map(name),
            clone_source: source.map(name),
            way,
        };
        [sent("a", None, None), sent("b", Some("a"), None), sent("c", Some("a"), Some("b"))]
    }

    /// The kernel writes the stream.
    fn send(&self, from: &Path, to: &Path) {
        let at = |name: &String| from.join(name).to_str().unwrap().to_owned();
        let mut words = vec!["send".to_owned(), "-q".to_owned()];
        words.extend(self.way.iter().map(|&word| word.to_owned()));
        words.extend(self.parent.iter().flat_map(|name| ["-p".to_owned(), at(name)]));
        words.extend(self.clone_source.iter().flat_map(|name| ["-c".to_owned(), at(name)]));
        words.extend(["-f".to_owned(), to.to_str().unwrap().to_owned(), at(&self.name)]);
        run("btrfs", &words.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

fn receive_by_butternut(receiver: &KernelImage, streams: &[PathBuf]) {
    let devices: Vec<DevicePath> = receiver.devices.iter().map(DevicePath::from).collect();
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let filesystem = Filesystem::open(&devices, &options).unwrap();
    for stream in streams {
        let mut reader = StreamReader::new(File::open(stream).unwrap());
        let made = filesystem.receive(filesystem.root(), &mut reader, StreamEnd::Input);
        assert_eq!(made.unwrap_or_else(|error| panic!("{}: {error}", stream.display())).len(), 1);
    }
    filesystem.close().unwrap();
    run("btrfs", &["check", "--check-data-csum", receiver.devices[0].to_str().unwrap()]);
}

fn receive_by_kernel(receiver: &KernelImage, streams: &[PathBuf]) {
    let mount = receiver.mount("rw,noatime");
    for stream in streams {
        let words = ["receive", "-q", "-f", stream.to_str().unwrap()];
        run("btrfs", &[&words[..], &[mount.path().to_str().unwrap()]].concat());
    }
}

fn transfer(seeds: Range<u64>) {
    let source = histories(seeds.clone());
    let [ours, kernels] = [(), ()].map(|()| KernelImage::make(1, &[], "noatime", "true"));
    let all: Vec<Sent> = seeds.flat_map(Sent::of).collect();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let streams: Vec<PathBuf> = all.iter().map(|sent| dir.path().join(&sent.name)).collect();
    let from = source.mount("ro,noatime");
    for (sent, stream) in all.iter().zip(&streams) {
        sent.send(from.path(), stream);
    }
    receive_by_butternut(&ours, &streams);
    receive_by_kernel(&kernels, &streams);
    let (ours, kernels) = (ours.mount("ro,noatime"), kernels.mount("ro,noatime"));
    for sent in &all {
        let [source, ours, kernels] =
            [&from, &ours, &kernels].map(|mount| mount.path().join(&sent.name));
        assert_received(&source, &ours, &kernels, sent.parent.is_none());
    }
}

#[test]
fn snapshots_of_random_histories_that_the_kernel_sends_are_received() {
    if !kernel_is_here() {
        return;
    }
    let seed = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    match seed {
        Some(seed) => transfer(seed..seed + 1),
        None => {
            for round in 0..if is_long { 20 } else { 1 } {
                transfer(round * SEEDS..(round + 1) * SEEDS);
            }
        }
    }
}
