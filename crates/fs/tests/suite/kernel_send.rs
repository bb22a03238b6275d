//! Streams that `btrfs receive` applies: pairs of snapshots that the kernel made, the first sent
//! whole and the second as the difference, and received on another volume of the kernel. Both
//! volumes then show the same names, attributes and data.
//!
//! `BUTTERNUT_LONG=1` takes 200 random histories instead of 10. Needs root and loop devices; with
//! `BUTTERNUT_NO_KERNEL=1` these tests print that they are left out.

use crate::kernel_history::{Dice, change, describe};
use crate::kernel_image::{KernelImage, kernel_is_here, run};
use butternut::{DevicePath, Error, Filesystem, Follow, MountOptions, SendOptions, SendProtocol};
use std::fs::File;
use std::path::Path;

/// Number of changes before each snapshot of a history.
const CHANGES: u32 = 60;

fn open(image: &KernelImage) -> Filesystem {
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    Filesystem::open(&devices, &MountOptions::default()).unwrap()
}

fn subvolume(filesystem: &Filesystem, name: &str) -> u64 {
    let id = filesystem.resolve(name.as_bytes(), Follow::Last).unwrap();
    assert!(id.is_subvolume_root(), "{name}");
    id.subvolume
}

/// One stream: of a subvolume of the source. In version 2, compressed data stays compressed.
struct Stream<'a> {
    name: &'a str,
    parent: Option<&'a str>,
    protocol: SendProtocol,
}

/// A volume with snapshots, and one that receives them.
struct Pair {
    source: KernelImage,
    receiver: KernelImage,
    dir: tempfile::TempDir,
}

impl Pair {
    fn of(source: KernelImage) -> Self {
        let receiver = KernelImage::make(1, &[], "noatime", "true");
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        Self { source, receiver, dir }
    }

    /// Sends and receives streams in order, and compares what is received.
    fn transfer(&self, streams: &[Stream<'_>]) {
        let filesystem = open(&self.source);
        let path = |number: usize| self.dir.path().join(format!("stream{number}"));
        for (number, stream) in streams.iter().enumerate() {
            let parent = stream.parent.map(|parent| subvolume(&filesystem, parent));
            let options = SendOptions::default()
                .parent(parent)
                .protocol(stream.protocol)
                .compressed_data(stream.protocol == SendProtocol::Two);
            let mut file = File::create(path(number)).unwrap();
            let id = subvolume(&filesystem, stream.name);
            filesystem.send(id, &options, &mut file).unwrap();
        }
        drop(filesystem);
        let source = self.source.mount("ro,noatime");
        let receiver = self.receiver.mount("rw,noatime");
        for (number, stream) in streams.iter().enumerate() {
            let file = path(number);
            let words = ["receive", "-q", "-f", file.to_str().unwrap()];
            let place = receiver.path().to_str().unwrap();
            run("btrfs", &[&words[..], &[place]].concat());
            compare(stream.name, source.path(), receiver.path());
        }
    }
}

fn compare(name: &str, source: &Path, receiver: &Path) {
    let (want, have) = (describe(&source.join(name)), describe(&receiver.join(name)));
    for (path, want) in &want {
        let have = have.get(path).map_or("missing", String::as_str);
        assert_eq!(have, want, "{name}: {}", path.display());
    }
    for path in have.keys() {
        assert!(want.contains_key(path), "{name}: {} is left over", path.display());
    }
}

fn version(number: u64) -> SendProtocol {
    if number.is_multiple_of(2) { SendProtocol::One } else { SendProtocol::Two }
}

/// Scripts that run in a subvolume: before the first snapshot, and between the two.
const CASES: &[(&str, &str)] = &[
    ("echo 1 > a; echo 2 > b", "mv a c; mv b a; mv c b"),
    ("mkdir a b; echo 1 > a/x; echo 2 > b/y", "mv a c; mv b a; mv c b"),
    ("mkdir -p a/b; echo 1 > a/b/x", "mv a/b b; mv a b/a"),
    ("mkdir -p a/b/c/d; touch a/b/c/d/x", "mv a/b/c/d d; mv a/b/c d; mv a/b d/c; mv a d/c/b"),
    ("mkdir -p a/b x; echo 1 > a/b/f", "mv a/b x/b; mv a x/b/a; mv x y"),
    ("mkdir a; echo 1 > a/x", "mv a/x x; rmdir a; mv x a"),
    ("echo 1 > a", "mv a b; mkdir a; mv b a/b"),
    ("mkdir -p a/b/c; echo 1 > a/b/c/f", "mv a/b/c/f f; rm -r a; mkdir a; mv f a/f"),
    ("echo 1 > a; ln a b; mkdir d; ln a d/c", "rm a; mv b d/b; ln d/c a; rm d/c; ln a d/e"),
    ("echo 1 > a; ln a b", "rm a; mv b a; echo 2 > b; ln b c"),
    ("echo 1 > a; echo 2 > b; echo 3 > c", "mv a t; mv b a; mv c b; mv t c"),
    ("mkdir -p a/1 b/2; touch a/1/x", "mv a/1 b/2/1; mv b/2 a/2; rmdir b; mv a b"),
    ("echo 1 > f; setcap cap_net_raw+ep f", "chown 1000:1000 f; setcap cap_net_raw+ep f"),
    (
        "echo 1 > f; chmod 6755 f; setcap cap_net_raw+ep f",
        "echo 2 >> f; chmod 6755 f; touch -d @9 f",
    ),
    (
        "mkdir d; setfacl -dm u:1000:rwx d",
        "touch d/f; mkdir d/e; setfacl -b d/f d/e; setfacl -k d/e",
    ),
    ("setfacl -dm u:1000:rwx .; mkdir d", "touch f; mkdir e; setfacl -k .; touch g; mv f d/f"),
    ("mkdir d; btrfs property set d compression zstd", "touch d/f; touch g; mv g d/g; touch d/h"),
    ("mkdir d; chmod 2770 d; chgrp 1000 d", "mkdir d/e; touch d/f; chmod 755 d/e; chgrp 0 d/e"),
    ("truncate -s 1M f; echo 1 > g", "truncate -s 3M f; echo 1 >> f; truncate -s 10M g"),
    ("head -c 300000 /dev/urandom > f", "truncate -s 100 f; truncate -s 200000 f"),
    ("head -c 300000 /dev/urandom > f", "truncate -s 200 f; echo 1 >> f; truncate -s 90000 f"),
    ("echo 123 > f; truncate -s 5000 f; sync", "truncate -s 3 f; truncate -s 4 f; sync"),
    ("head -c 100000 /dev/urandom > f; sync", "cp --reflink f g; cp --reflink g f; rm g; touch h"),
    ("btrfs -q subvolume create s; mkdir d", "btrfs -q subvolume delete s; mkdir s; mv d s/d"),
    ("mkdir s; touch s/f", "mv s t; btrfs -q subvolume create s; mv t/f f"),
    ("ln -s x a; mkfifo b; mknod c c 1 5; mknod d b 259 70000", "mv a e; rm b; mv c b; ln d c"),
    ("ln -s x a; touch -hd @7 a; chown -h 1:2 a", "chown -h 3:4 a; touch -hd @8 a"),
    (
        "for i in $(seq 300); do echo $i > f$i; done",
        "for i in $(seq 299); do mv f$i g$i; done; rm f300",
    ),
    (
        "touch f; for i in $(seq 400); do ln f l$i; done",
        "for i in $(seq 399); do mv l$i m$i; done; rm f",
    ),
    ("setfattr -n user.x -v 1 .; chmod 700 .; chown 1:2 .", "setfattr -x user.x .; touch -d @5 ."),
    (
        "fallocate -l 1M f; echo 1 > g",
        "echo 2 | dd of=f conv=notrunc status=none; fallocate -n -l 1M g",
    ),
];

#[test]
fn snapshots_of_known_hard_cases_are_received() {
    if !kernel_is_here() {
        return;
    }
    let script = |(number, (before, after)): (usize, &(&str, &str))| {
        format!(
            "btrfs -q subvolume create w{number}; (cd w{number}; {before})
             btrfs -q subvolume snapshot -r w{number} a{number}; (cd w{number}; {after})
             btrfs -q subvolume snapshot -r w{number} b{number}\n"
        )
    };
    let script = CASES.iter().enumerate().map(script).collect::<Vec<_>>().concat();
    let pair = Pair::of(KernelImage::make(1, &[], "noatime", &script));
    let mut names = Vec::new();
    for (number, _) in (0_u64..).zip(CASES) {
        names.push((format!("a{number}"), format!("b{number}"), version(number)));
    }
    let mut streams = Vec::new();
    for (a, b, protocol) in &names {
        streams.push(Stream { name: a, parent: None, protocol: *protocol });
        streams.push(Stream { name: b, parent: Some(a), protocol: *protocol });
    }
    pair.transfer(&streams);
}

/// Makes a volume with three snapshots of each history: `a`, `b` and `c` with its seed.
pub(crate) fn histories(seeds: std::ops::Range<u64>) -> KernelImage {
    let source = KernelImage::make(1, &[], "noatime", "true");
    let mount = source.mount("rw,noatime,compress=zstd");
    for seed in seeds {
        let root = mount.path().join(format!("w{seed}"));
        let root_name = root.to_str().unwrap();
        run("btrfs", &["-q", "subvolume", "create", root_name]);
        let mut dice = Dice::new(seed);
        for snapshot in ["a", "b", "c"] {
            change(&root, &mut dice, CHANGES);
            let name = mount.path().join(format!("{snapshot}{seed}"));
            let words = ["-q", "subvolume", "snapshot", "-r", root_name, name.to_str().unwrap()];
            run("btrfs", &words);
        }
    }
    drop(mount);
    source
}

#[test]
fn snapshots_of_random_histories_are_received() {
    if !kernel_is_here() {
        return;
    }
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let rounds = if is_long { 20 } else { 1 };
    for round in 0..rounds {
        let seeds = round * 10..round * 10 + 10;
        let pair = Pair::of(histories(seeds.clone()));
        let name = |letter: &str, seed: u64| format!("{letter}{seed}");
        let names: Vec<_> = seeds
            .map(|seed| {
                let other = if seed % 10 == 0 { seed } else { seed - 1 };
                (seed, name("a", seed), name("b", seed), name("c", seed), name("c", other))
            })
            .collect();
        let mut streams = Vec::new();
        for (seed, a, b, c, other) in &names {
            let protocol = version(*seed);
            streams.push(Stream { name: a, parent: None, protocol });
            streams.push(Stream { name: c, parent: Some(a), protocol });
            // Subvolumes that have nothing in common but inode numbers.
            streams.push(Stream { name: b, parent: Some(other), protocol });
        }
        pair.transfer(&streams);
    }
}

/// In two subvolumes, one transaction gives different inodes of one number equal items.
#[test]
fn a_new_inode_has_attributes_that_equal_those_of_the_removed_one() {
    if !kernel_is_here() {
        return;
    }
    let script = "
        btrfs -q subvolume create w; btrfs -q subvolume create v
        touch w/x; mkdir v/y; setfattr -n user.k -v 1 w/x; setfattr -n user.k -v 1 v/y
        setfacl -m u:1000:r w/x v/y
        btrfs -q subvolume snapshot -r w a; btrfs -q subvolume snapshot -r v b";
    let pair = Pair::of(KernelImage::make(1, &[], "noatime,commit=300", script));
    let protocol = SendProtocol::One;
    pair.transfer(&[
        Stream { name: "a", parent: None, protocol },
        Stream { name: "b", parent: Some("a"), protocol },
    ]);
}

#[test]
fn data_that_the_receiver_has_is_cloned() {
    if !kernel_is_here() {
        return;
    }
    let script = "
        btrfs -q subvolume create w; head -c 1000000 /dev/urandom > w/f; touch w/first
        btrfs -q subvolume create other; cp --reflink w/f other/g
        btrfs -q subvolume snapshot -r other o; btrfs -q subvolume snapshot -r w a
        cp --reflink w/f w/copy; dd if=w/f of=w/first bs=4k skip=9 count=40 status=none
        cp --reflink w/first w/second; mv w/f w/moved
        btrfs -q subvolume snapshot -r w b";
    let pair = Pair::of(KernelImage::make(1, &[], "noatime", script));
    let protocol = SendProtocol::One;
    pair.transfer(&[
        Stream { name: "o", parent: None, protocol },
        Stream { name: "a", parent: None, protocol },
        Stream { name: "b", parent: Some("a"), protocol },
    ]);
    let bytes = std::fs::metadata(pair.dir.path().join("stream2")).unwrap().len();
    assert!((160_000..200_000).contains(&bytes), "{bytes} bytes");
    let filesystem = open(&pair.source);
    let options = SendOptions::default().clone_sources(vec![subvolume(&filesystem, "o")]);
    let mut stream = Vec::new();
    filesystem.send(subvolume(&filesystem, "a"), &options, &mut stream).unwrap();
    assert!(stream.len() < 10_000, "{} bytes", stream.len());
}

#[test]
fn btrfs_progs_print_a_stream_without_data() {
    if !kernel_is_here() {
        return;
    }
    let script = "
        btrfs -q subvolume create w; head -c 200000 /dev/urandom > w/f; cp w/f w/g
        btrfs -q subvolume snapshot -r w a; echo 1 >> w/f; truncate -s 5 w/g; mv w/g w/h
        btrfs -q subvolume snapshot -r w b";
    let image = KernelImage::make(1, &[], "noatime", script);
    let filesystem = open(&image);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let stream = dir.path().join("stream");
    let dump = |options: &SendOptions| {
        let mut file = File::create(&stream).unwrap();
        filesystem.send(subvolume(&filesystem, "b"), options, &mut file).unwrap();
        run("btrfs", &["receive", "--dump", "-f", stream.to_str().unwrap()])
    };
    let parent = Some(subvolume(&filesystem, "a"));
    for protocol in [SendProtocol::One, SendProtocol::Two] {
        let options = SendOptions::default().parent(parent).protocol(protocol).no_data(true);
        let dumped = dump(&options);
        let verbs: Vec<&str> =
            dumped.lines().filter_map(|line| line.split_whitespace().next()).collect();
        // The truncated file still refers to the extent of the parent.
        let want = "snapshot rename utimes update_extent truncate utimes truncate truncate utimes";
        assert_eq!(verbs.join(" "), want, "{dumped}");
    }
}

#[test]
fn only_what_cannot_change_is_sent() {
    if !kernel_is_here() {
        return;
    }
    let script = "btrfs -q subvolume create w; btrfs -q subvolume snapshot -r w a";
    let image = KernelImage::make(1, &[], "", script);
    let filesystem = open(&image);
    let (w, a) = (subvolume(&filesystem, "w"), subvolume(&filesystem, "a"));
    let send = |id, parent| {
        let options = SendOptions::default().parent(parent);
        filesystem.send(id, &options, &mut Vec::new()).unwrap_err()
    };
    assert!(matches!(send(w, None), Error::NotPermitted { .. }));
    assert!(matches!(send(a, Some(w)), Error::NotPermitted { .. }));
    assert!(matches!(send(9999, None), Error::NoSubvolume { .. }));
    assert_eq!(filesystem.best_parent(a, &[a]).unwrap(), Some(a));
    assert_eq!(filesystem.best_parent(a, &[w]).unwrap(), Some(w));
    assert_eq!(filesystem.best_parent(w, &[a]).unwrap(), None);
}
