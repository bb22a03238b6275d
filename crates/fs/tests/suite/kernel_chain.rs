//! A chain of incremental streams, as a backup program makes it: snapshots of one subvolume, each
//! sent as the difference to the one before; the receiver keeps the last few and deletes the older
//! ones. Butternut and the kernel send and receive in every combination, also in turns on one
//! receiving volume. What is received is compared with the source entry by entry, at each step.
//!
//! A stream of the kernel does not always restore the mtime of a directory that it changes: then
//! the kernel, too, leaves the time of the receiving. So after such a stream these times are left
//! out. Nor does it say that a new entry has no compression property and no ACL where the receiving
//! directory passes some on; Butternut's receive removes what was passed on, the kernel's keeps it.
//! So after a stream of the kernel that the kernel received, these attributes are left out, too.
//!
//! `BUTTERNUT_LONG=1` takes chains of 20 increments instead of 5; `BUTTERNUT_SEED=N` takes one
//! history. Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they
//! are left out.

use crate::kernel_history::{Dice, change, describe};
use crate::kernel_image::{KernelImage, kernel_is_here, run};
use butternut::receive::{StreamEnd, StreamReader};
use butternut::{DevicePath, Filesystem, Follow, MountOptions, SendOptions, SendProtocol};
use std::fs::File;
use std::path::Path;

/// Number of changes before each snapshot.
const CHANGES: u32 = 40;
/// Number of snapshots that the receiver keeps.
const KEPT: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    Butternut,
    Kernel,
}

fn open(image: &KernelImage, read_only: bool) -> Filesystem {
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    let options = MountOptions::default().read_only(read_only).commit_seconds(0);
    Filesystem::open(&devices, &options).unwrap()
}

fn subvolume(filesystem: &Filesystem, name: &str) -> u64 {
    let id = filesystem.resolve(name.as_bytes(), Follow::Last).unwrap();
    assert!(id.is_subvolume_root(), "{name}");
    id.subvolume
}

fn name(number: usize) -> String {
    format!("w.{number:02}")
}

/// Makes a volume with the snapshots of a chain.
fn history(seed: u64, increments: usize) -> KernelImage {
    let source = KernelImage::make(1, &[], "noatime", "btrfs -q subvolume create w");
    let mount = source.mount("rw,noatime,compress=zstd");
    let root = mount.path().join("w");
    let mut dice = Dice::new(seed);
    for number in 0..=increments {
        change(&root, &mut dice, CHANGES);
        let snapshot = mount.path().join(name(number));
        let (from, to) = (root.to_str().unwrap(), snapshot.to_str().unwrap());
        run("btrfs", &["-q", "subvolume", "snapshot", "-r", from, to]);
    }
    drop(mount);
    source
}

fn send(maker: Maker, source: &KernelImage, number: usize, to: &Path) {
    let parent = number.checked_sub(1).map(name);
    match maker {
        Maker::Butternut => {
            let filesystem = open(source, true);
            let parent = parent.map(|parent| subvolume(&filesystem, &parent));
            let is_second = !number.is_multiple_of(2);
            let protocol = if is_second { SendProtocol::Two } else { SendProtocol::One };
            let options =
                SendOptions::default().parent(parent).protocol(protocol).compressed_data(is_second);
            let id = subvolume(&filesystem, &name(number));
            filesystem.send(id, &options, &mut File::create(to).unwrap()).unwrap();
        }
        Maker::Kernel => {
            let mount = source.mount("ro,noatime");
            let at = |name: &str| mount.path().join(name).to_str().unwrap().to_owned();
            let mut words = vec!["send".to_owned(), "-q".to_owned()];
            words.extend(parent.iter().flat_map(|parent| ["-p".to_owned(), at(parent)]));
            words.extend(["-f".to_owned(), to.to_str().unwrap().to_owned(), at(&name(number))]);
            run("btrfs", &words.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}

/// Receives one stream, and deletes the snapshot that the receiver does not keep any more.
fn receive(maker: Maker, receiver: &KernelImage, number: usize, from: &Path) {
    let old = number.checked_sub(KEPT).map(name);
    match maker {
        Maker::Butternut => {
            let filesystem = open(receiver, false);
            let mut stream = StreamReader::new(File::open(from).unwrap());
            let root = filesystem.root();
            let made = filesystem.receive(root, &mut stream, StreamEnd::Input).unwrap();
            assert_eq!(made.len(), 1);
            if let Some(old) = old {
                filesystem.delete_subvolume(root, old.as_bytes()).unwrap();
                filesystem.clean_subvolumes().unwrap();
            }
            filesystem.close().unwrap();
        }
        Maker::Kernel => {
            let mount = receiver.mount("rw,noatime");
            let place = mount.path().to_str().unwrap();
            run("btrfs", &["receive", "-q", "-f", from.to_str().unwrap(), place]);
            if let Some(old) = old {
                let old = mount.path().join(old);
                run("btrfs", &["-q", "subvolume", "delete", old.to_str().unwrap()]);
            }
        }
    }
}

/// What the streams so far did not carry to the receiver.
#[derive(Clone, Copy, Default)]
struct Lost {
    directory_mtimes: bool,
    inherited_attributes: bool,
}

impl Lost {
    /// Returns the description of an entry without what was lost.
    fn shown(self, text: &str) -> String {
        const DIRECTORY: &str = "40";
        let leave_out_mtime = self.directory_mtimes && text.starts_with(DIRECTORY);
        let mut words = Vec::new();
        let mut all = text.split(' ');
        while let Some(word) = all.next() {
            let is_inherited =
                word.starts_with("btrfs.compression=") || word.starts_with("system.posix_acl_");
            if leave_out_mtime && word == "mtime" {
                all.next();
            } else if !(self.inherited_attributes && is_inherited) {
                words.push(word);
            }
        }
        words.join(" ")
    }
}

/// Compares the snapshots that a receiver has with those of another volume, as the kernel shows
/// both.
fn compare(source: &KernelImage, receiver: &KernelImage, number: usize, lost: Lost) {
    let (from, to) = (source.mount("ro,noatime"), receiver.mount("ro,noatime"));
    for number in number.saturating_sub(KEPT - 1)..=number {
        let name = name(number);
        let (want, have) = (describe(&from.path().join(&name)), describe(&to.path().join(&name)));
        assert!(want.len() > 1, "{name} has entries");
        for (path, want) in &want {
            let have = have.get(path).map_or("missing", String::as_str);
            assert_eq!(lost.shown(have), lost.shown(want), "{name}: {}", path.display());
        }
        assert_eq!(have.len(), want.len(), "{name}: entries are left over");
    }
}

/// Sends and receives a chain, each stream by the makers that `makers` returns.
fn transfer(makers: impl Fn(usize) -> (Maker, Maker)) {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let seed = std::env::var("BUTTERNUT_SEED").ok().and_then(|seed| seed.parse().ok());
    let increments = if is_long { 20 } else { 5 };
    let source = history(seed.unwrap_or(1), increments);
    let receiver = KernelImage::make(1, &[], "noatime", "true");
    let mut lost = Lost::default();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for number in 0..=increments {
        let stream = dir.path().join("stream");
        let (sender, taker) = makers(number);
        send(sender, &source, number, &stream);
        receive(taker, &receiver, number, &stream);
        lost.directory_mtimes |= sender == Maker::Kernel;
        lost.inherited_attributes |= (sender, taker) == (Maker::Kernel, Maker::Kernel);
        compare(&source, &receiver, number, lost);
    }
    let device = receiver.devices[0].to_str().unwrap();
    run("btrfs", &["check", "--check-data-csum", device]);
}

#[test]
fn a_chain_that_butternut_sends_is_received_by_the_kernel() {
    if kernel_is_here() {
        transfer(|_| (Maker::Butternut, Maker::Kernel));
    }
}

#[test]
fn a_chain_that_the_kernel_sends_is_received_by_butternut() {
    if kernel_is_here() {
        transfer(|_| (Maker::Kernel, Maker::Butternut));
    }
}

#[test]
fn butternut_and_the_kernel_take_turns_in_one_chain() {
    if kernel_is_here() {
        let maker = |is_first: bool| if is_first { Maker::Butternut } else { Maker::Kernel };
        transfer(|number| (maker(number.is_multiple_of(2)), maker(number % 4 < 2)));
    }
}
