//! Volumes that Butternut and the kernel write alternately: after each turn of Butternut, `btrfs
//! check` finds no error, and the kernel's mount shows the same contents.
//!
//! Needs root and loop devices; with `BUTTERNUT_NO_KERNEL=1` these tests print that they are left
//! out.

use crate::kernel_compare::compare;
use crate::kernel_image::{KernelImage, kernel_is_here, run};
use butternut::{
    Allocate, AttributeFlags, DevicePath, Error, FileId, FileKind, Filesystem, MountOptions,
    NewInode, Privileges, RenameFlags, SetAttributes, SetTime, SetXattr, Time,
};
use std::path::PathBuf;

/// Number of changes in one turn of Butternut.
const STEPS: u32 = 1500;

fn open(image: &KernelImage, read_only: bool) -> Filesystem {
    let options = MountOptions::default().read_only(read_only);
    let devices: Vec<DevicePath> = image.devices.iter().map(DevicePath::from).collect();
    Filesystem::open(&devices, &options).unwrap()
}

/// Runs `btrfs check` and the kernel on the volume.
fn judge(image: &KernelImage) {
    let path = image.devices[0].to_string_lossy().into_owned();
    run("btrfs", &["check", "--check-data-csum", &path]);
    let mount = image.mount("ro");
    let filesystem = open(image, true);
    compare(&filesystem, filesystem.root(), mount.path());
}

/// Pseudorandom numbers with a seed.
struct Dice(u64);

impl Dice {
    fn pick(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % count
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.pick(60);
        let long = "x".repeat(if number.is_multiple_of(7) { 180 } else { 0 });
        format!("name {number}{long}").into_bytes()
    }

    fn permissions(&mut self) -> NewInode {
        let permissions = u32::try_from(self.pick(0o10_000)).unwrap() | 0o600;
        NewInode { permissions, umask: 0o022, uid: 1000, gid: 1001 }
    }

    fn bytes_max(&mut self) -> u64 {
        [3000, 20_000, 300_000, 3_000_000][usize::try_from(self.pick(4)).unwrap()]
    }
}

/// Makes random changes of existing and new files.
struct Changes<'a> {
    fs: &'a Filesystem,
    dice: Dice,
    dirs: Vec<FileId>,
}

impl Changes<'_> {
    fn dir(&mut self) -> FileId {
        let at = usize::try_from(self.dice.pick(self.dirs.len() as u64)).unwrap();
        self.dirs[at]
    }

    fn step(&mut self) -> butternut::Result<()> {
        let (dir, name) = (self.dir(), self.dice.name());
        match self.dice.pick(16) {
            0..3 => self.fs.create(dir, &name, &self.dice.permissions()).map(drop),
            3 => {
                let made = self.fs.mkdir(dir, &name, &self.dice.permissions())?;
                self.dirs.push(made);
                Ok(())
            }
            4 => {
                let text = "t".repeat(1 + usize::try_from(self.dice.pick(2000)).unwrap());
                self.fs.symlink(dir, &name, text.as_bytes(), &NewInode::new(0)).map(drop)
            }
            5 => {
                let kind =
                    if self.dice.pick(2) == 0 { FileKind::Fifo } else { FileKind::BlockDevice };
                self.fs.mknod(dir, &name, &NewInode::new(0o644), kind, (8, 300)).map(drop)
            }
            6 => {
                let id = self.fs.lookup(dir, &name)?;
                let (to, name) = (self.dir(), self.dice.name());
                self.fs.link(id, to, &name)
            }
            7 => self.fs.unlink(dir, &name),
            8 => {
                self.fs.rmdir(dir, &name)?;
                self.dirs.retain(|dir| self.fs.stat(*dir).is_ok());
                Ok(())
            }
            9 | 10 => self.rename(dir, &name),
            11 => self.attributes(dir, &name),
            _ => self.data(dir, &name),
        }
    }

    fn rename(&mut self, dir: FileId, name: &[u8]) -> butternut::Result<()> {
        let (to, to_name) = (self.dir(), self.dice.name());
        let mut flags = RenameFlags::default();
        match self.dice.pick(6) {
            0 => flags.exchange = true,
            1 => flags.no_replace = true,
            2 => flags.whiteout = Some((5, 6)),
            _ => {}
        }
        self.fs.rename((dir, name), (to, &to_name), flags)?;
        self.dirs.retain(|dir| self.fs.stat(*dir).is_ok());
        Ok(())
    }

    fn attributes(&mut self, dir: FileId, name: &[u8]) -> butternut::Result<()> {
        let id = self.fs.lookup(dir, name)?;
        let is_link = self.fs.stat(id)?.kind == FileKind::Symlink;
        match self.dice.pick(5) {
            0 => {
                let name = format!("user.{}", self.dice.pick(4));
                let value = vec![b'v'; usize::try_from(self.dice.pick(3000)).unwrap()];
                self.fs.set_xattr(id, name.as_bytes(), &value, SetXattr::Either)
            }
            1 => {
                let name = format!("user.{}", self.dice.pick(4));
                self.fs.remove_xattr(id, name.as_bytes())
            }
            2 if !is_link => {
                let flags =
                    [AttributeFlags::NODUMP, AttributeFlags::NOCOW, AttributeFlags::COMPRESS];
                let flags = flags[usize::try_from(self.dice.pick(3)).unwrap()];
                self.fs.set_attribute_flags(id, flags)
            }
            _ => {
                let time = Time { secs: 1_500_000_000, nanos: 11 };
                let set = SetAttributes {
                    mode: (!is_link).then(|| u32::try_from(self.dice.pick(0o10_000)).unwrap()),
                    uid: Some(u32::try_from(self.dice.pick(70_000)).unwrap()),
                    mtime: Some(SetTime::At(time)),
                    privileges: Privileges::Strip,
                    ..SetAttributes::default()
                };
                self.fs.set_attributes(id, &set).map(drop)
            }
        }
    }

    fn data(&mut self, dir: FileId, name: &[u8]) -> butternut::Result<()> {
        let file = self.fs.open_file(self.fs.lookup(dir, name)?)?;
        let bytes_max = self.dice.bytes_max();
        let at = self.dice.pick(bytes_max);
        let bytes = 1 + self.dice.pick(bytes_max / 3);
        let range = at..at + bytes;
        let byte = u8::try_from(self.dice.pick(256)).unwrap();
        let data = vec![byte; usize::try_from(bytes).unwrap()];
        match self.dice.pick(12) {
            0..5 => file.write_at(at, &data).map(drop),
            5 => file.append(&data, Privileges::Strip).map(drop),
            6 => file.truncate(at),
            7 => file.allocate(range, Allocate::PunchHole),
            8 => file.allocate(range, Allocate::Zero),
            9 => file.allocate(range, Allocate::KeepSize),
            10 => file.allocate(range, Allocate::Extend),
            _ => file.sync_all(),
        }
    }
}

/// Runs one turn of Butternut.
fn write(image: &KernelImage, seed: u64) {
    let fs = open(image, false);
    let mut changes = Changes { fs: &fs, dice: Dice(seed), dirs: vec![fs.root()] };
    let entries = fs.read_dir(fs.root(), butternut::FIRST_ENTRY).unwrap();
    let found = entries.map(Result::unwrap).filter(|entry| entry.kind == FileKind::Directory);
    let ours = found.filter(|entry| entry.id.subvolume == fs.root().subvolume);
    changes.dirs.extend(ours.map(|entry| entry.id));
    let mut done = 0;
    for step in 0..STEPS {
        match changes.step() {
            Ok(()) => done += 1,
            Err(error) => assert!(is_refusal(&error), "seed {seed}, step {step}: {error:?}"),
        }
    }
    assert!(done > STEPS / 3, "only {done} steps succeeded");
    fs.close().unwrap();
}

/// Whether random steps may fail with this error.
fn is_refusal(error: &Error) -> bool {
    let names = [1, 2, 17, 18, 20, 21, 22, 39, 61, 95];
    names.contains(&error.errno())
}

/// The turn of the kernel: adds files of each kind, and removes some of Butternut's.
const KERNEL_TURN: &str = "
    for n in $(seq 40); do head -c $((n * 977)) /dev/urandom > \"kernel $n\"; done
    rm -rf 'name 1' 'name 2' 'name 3'
    find . -xdev -type f -name 'name 1*' -exec truncate -s 5000 {} +
    find . -xdev -type f -name 'name 2*' -print0 |
        xargs -0 -I{} dd if=/dev/urandom of={} bs=4k count=3 conv=notrunc status=none
    mkdir -p deep/er; ln -f 'kernel 7' deep/er/link
";

fn take_turns(mkfs: &[&str], mount: &str, script: &str) {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, mkfs, mount, script);
    for seed in 0..3 {
        write(&image, seed);
        judge(&image);
        let mounted = image.mount("rw");
        let turn = format!("set -e; cd '{}'\n{KERNEL_TURN}", mounted.path().display());
        run("bash", &["-c", &turn]);
        run("btrfs", &["scrub", "start", "-B", &mounted.path().to_string_lossy()]);
        drop(mounted);
    }
    write(&image, 99);
    judge(&image);
}

#[test]
fn a_volume_is_written_alternately_with_the_kernel() {
    take_turns(&[], "", "mkdir dir; echo hello > dir/file");
}

#[test]
fn a_volume_of_small_nodes_is_written_alternately_with_the_kernel() {
    let mkfs = ["--nodesize", "4096", "--csum", "xxhash", "-O", "^no-holes", "--mixed"];
    take_turns(&mkfs, "", "mkdir dir; echo hello > dir/file");
}

#[test]
fn a_volume_with_snapshots_is_written() {
    let script = include_str!("../kernel_image/rich.sh");
    let fill = "for n in $(seq 60); do head -c $((n * 3000)) /dev/zero > \"name $n\"; done; sync";
    let snapshots = "btrfs -q subvolume snapshot . past; btrfs -q subvolume snapshot -r . sealed";
    take_turns(&[], "compress=zstd", &format!("{script}\n{fill}\n{snapshots}"));
}

#[test]
fn a_read_only_snapshot_refuses_writes() {
    if !kernel_is_here() {
        return;
    }
    let script = "btrfs -q subvolume create a; echo in a > a/file; \
                  btrfs -q subvolume snapshot -r a sealed";
    let image = KernelImage::make(1, &[], "", script);
    let fs = open(&image, false);
    let (a, sealed) =
        (fs.lookup(fs.root(), b"a").unwrap(), fs.lookup(fs.root(), b"sealed").unwrap());
    let file = fs.lookup(sealed, b"file").unwrap();
    assert_eq!(fs.create(sealed, b"x", &NewInode::new(0o644)).unwrap_err().errno(), 30);
    assert_eq!(fs.unlink(sealed, b"file").unwrap_err().errno(), 30);
    assert_eq!(fs.open_file(file).unwrap().write_at(0, b"x").unwrap_err().errno(), 30);
    assert_eq!(fs.rmdir(fs.root(), b"sealed").unwrap_err().errno(), 39);
    let from = (a, &b"file"[..]);
    let moved = fs.rename(from, (fs.root(), b"file"), RenameFlags::default());
    assert_eq!(moved.unwrap_err().errno(), 18);
    let file = fs.open_file(fs.lookup(a, b"file").unwrap()).unwrap();
    file.write_at(0, b"IN").unwrap();
    drop(file);
    fs.close().unwrap();
    judge(&image);
}

#[test]
fn the_placeholder_of_a_subvolume_in_a_snapshot_can_be_removed() {
    if !kernel_is_here() {
        return;
    }
    let script = "btrfs -q subvolume create a; mkdir a/dir; btrfs -q subvolume create a/dir/inner; \
                  btrfs -q subvolume snapshot a copy";
    let image = KernelImage::make(1, &[], "", script);
    let fs = open(&image, false);
    let dir = fs.resolve(b"copy/dir", butternut::Follow::Last).unwrap();
    assert_eq!(fs.unlink(dir, b"inner").unwrap_err().errno(), 21);
    let placeholder = fs.lookup(dir, b"inner").unwrap();
    assert_eq!(fs.create(placeholder, b"x", &NewInode::new(0o644)).unwrap_err().errno(), 1);
    fs.rmdir(dir, b"inner").unwrap();
    let copy = fs.lookup(fs.root(), b"copy").unwrap();
    fs.rmdir(copy, b"dir").unwrap();
    fs.close().unwrap();
    judge(&image);
}

/// An orphan can be opened by its id before anything is written to its subvolume.
#[test]
fn closing_the_last_handle_deletes_an_orphan_of_an_unchanged_subvolume() {
    if !kernel_is_here() {
        return;
    }
    // A crash of the kernel: the image is copied while the orphan is open.
    let script = r#"btrfs -q subvolume create s; echo kept >s/kept; echo gone >s/gone
        ino=$(stat -c %i s/gone); exec 3<s/gone; rm s/gone; sync -f .
        cp --sparse=always "$(losetup -nO BACK-FILE "$(findmnt -nT . -o SOURCE)")" ../crashed
        exec 3<&-; echo "$ino" >../ino"#;
    let image = KernelImage::make(1, &[], "", script);
    let dir = image.devices[0].parent().unwrap().to_path_buf();
    let ino = std::fs::read_to_string(dir.join("ino")).unwrap().trim().parse().unwrap();
    let copy = format!("cp --sparse=always crashed '{}'", image.devices[0].display());
    run("bash", &["-c", &format!("cd '{}' && {copy}", dir.display())]);
    let fs = open(&image, false);
    let s = fs.lookup(fs.root(), b"s").unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn({
        let fs = fs.clone();
        move || {
            let file = fs.open_file(FileId::new(s.subvolume, ino)).unwrap();
            let mut bytes = [0; 8];
            assert_eq!(file.read_at(0, &mut bytes).unwrap(), 5);
            drop(file);
            tell.send(()).unwrap();
        }
    });
    let ended = told.recv_timeout(std::time::Duration::from_mins(2));
    assert!(ended.is_ok(), "the thread waits for itself");
    thread.join().unwrap();
    assert!(fs.stat(FileId::new(s.subvolume, ino)).is_err(), "it is deleted");
    fs.create(s, b"new", &NewInode::new(0o644)).unwrap();
    fs.close().unwrap();
    judge(&image);
}

/// A second loop device, detached when dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.0]);
    }
}

/// The kernel's count of the requests that a block device has completed.
fn requests(device: &Loop) -> [u64; 2] {
    const WRITES: usize = 4;
    const FLUSHES: usize = 15;
    let name = device.0.rsplit('/').next().unwrap();
    let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    let counts: Vec<u64> = stat.split_whitespace().map(|word| word.parse().unwrap()).collect();
    [counts[WRITES], counts[FLUSHES]]
}

/// On a device that cannot bypass its cache, durable writes flush it: after the log blocks, and
/// after the superblock.
#[test]
fn an_fsync_writes_three_times_and_flushes_twice() {
    const ROUNDS: u64 = 20;
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &["-m", "single"], "", "echo of the kernel > file");
    {
        let device = image.devices[0].to_string_lossy();
        let device = Loop(run("losetup", &["--find", "--show", &device]));
        let options = MountOptions::default().read_only(false).commit_seconds(0);
        let fs = Filesystem::open(&[DevicePath::from(&device.0)], &options).unwrap();
        let id = fs.create(fs.root(), b"new", &NewInode::new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        file.write_at(0, &[1; 4096]).unwrap();
        file.sync_all().unwrap();
        let before = requests(&device);
        for round in 0..ROUNDS {
            file.write_at(round * 8192, &[2; 4096]).unwrap();
            file.sync_all().unwrap();
        }
        let after = requests(&device);
        assert_eq!(after[0] - before[0], 3 * ROUNDS, "data, log blocks, superblock");
        assert_eq!(after[1] - before[1], 2 * ROUNDS);
        // As a crash leaves it.
        fs.abandon();
    }
    let mount = image.mount("rw");
    let bytes = std::fs::read(mount.path().join("new")).unwrap();
    assert_eq!(bytes.len() as u64, (ROUNDS - 1) * 8192 + 4096, "the kernel replays the log");
    drop(mount);
    judge(&image);
}

/// Makes a volume with `files`, turns it into a seed, and adds a sprout to it. Returns the image of
/// the seed, that of the sprout, and the sprout's loop device.
fn sprout_of(files: &str) -> (KernelImage, PathBuf, Loop) {
    let image = KernelImage::make(1, &[], "", files);
    let seed = image.devices[0].to_string_lossy().into_owned();
    run("btrfstune", &["-f", "-S", "1", &seed]);
    let path = image.devices[0].with_file_name("sprout");
    std::fs::File::create(&path).unwrap().set_len(300 << 20).unwrap();
    let sprout = Loop(run("losetup", &["--find", "--show", &path.to_string_lossy()]));
    {
        let mount = image.mount("ro");
        let root = mount.path().to_string_lossy().into_owned();
        run("btrfs", &["device", "add", "-f", "-K", &sprout.0, &root]);
        run("mount", &["-o", "remount,rw", &root]);
        run("bash", &["-c", &format!("cd '{root}'; echo of the sprout > new; sync -f .")]);
    }
    run("blockdev", &["--flushbufs", &sprout.0]);
    (image, path, sprout)
}

#[test]
fn filling_a_sprout_leaves_its_seed_unchanged() {
    if !kernel_is_here() {
        return;
    }
    let (image, path, sprout) = sprout_of("echo of the seed > file; sync -f .");
    let before = std::fs::read(&image.devices[0]).unwrap();
    let options = MountOptions::default().read_only(false);
    let devices = [DevicePath::from(&path), DevicePath::from(&image.devices[0])];
    let fs = Filesystem::open(&devices, &options).unwrap();
    // The seed has far more free space than the sprout.
    let id = fs.create(fs.root(), b"fill", &NewInode::new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let chunk = vec![7; 1 << 20];
    let mut bytes = 0;
    let refused = loop {
        match file.write_at(bytes, &chunk).and_then(|n| file.sync_data().map(|()| n)) {
            Ok(written) => bytes += written as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.errno(), 28, "{refused:?}");
    assert!((100 << 20..300 << 20).contains(&bytes), "{bytes} bytes fit into the sprout");
    drop(file);
    fs.close().unwrap();
    assert!(std::fs::read(&image.devices[0]).unwrap() == before, "the seed was written to");
    run("blockdev", &["--flushbufs", &sprout.0]);
    run("btrfs", &["check", "--check-data-csum", &sprout.0]);
}

#[test]
fn files_that_are_written_in_place_move_from_the_seed_to_the_sprout() {
    if !kernel_is_here() {
        return;
    }
    let (image, path, sprout) = sprout_of(
        "for f in cached direct reserved; do touch $f; chattr +C $f; done
         yes old | head -c 1M | tee cached > direct; fallocate -l 1M reserved; sync -f .",
    );
    let before = std::fs::read(&image.devices[0]).unwrap();
    let options = MountOptions::default().read_only(false);
    let devices = [DevicePath::from(&path), DevicePath::from(&image.devices[0])];
    let new = vec![7; 256 << 10];
    let fs = Filesystem::open(&devices, &options).unwrap();
    for name in ["cached", "direct", "reserved"] {
        let file = fs.open_path(name.as_bytes()).unwrap();
        let written = match name {
            "direct" => file.write_direct(0, &new, Privileges::Keep),
            _ => file.write_at(0, &new),
        };
        assert_eq!(written.unwrap(), new.len(), "{name}");
        file.sync_all().unwrap();
    }
    fs.close().unwrap();
    assert!(std::fs::read(&image.devices[0]).unwrap() == before, "the seed was written to");
    let fs = Filesystem::open(&devices, &MountOptions::default()).unwrap();
    for name in ["cached", "direct", "reserved"] {
        let file = fs.open_path(name.as_bytes()).unwrap();
        let mut bytes = vec![0; 1 << 20];
        file.read_exact_at(0, &mut bytes).unwrap();
        let rest = if name == "reserved" { [0; 4] } else { *b"old\n" };
        assert!(bytes[..new.len()] == new, "{name}");
        assert!(bytes[new.len()..].chunks(4).all(|four| four == rest), "{name}");
    }
    drop(fs);
    run("blockdev", &["--flushbufs", &sprout.0]);
    run("btrfs", &["check", "--check-data-csum", &sprout.0]);
}

#[test]
fn two_sprouts_of_one_seed_are_written_at_the_same_time() {
    if !kernel_is_here() {
        return;
    }
    let (image, path, sprout) = sprout_of("echo of the seed > file; sync -f .");
    let twin = path.with_file_name("twin");
    std::fs::copy(&path, &twin).unwrap();
    let before = std::fs::read(&image.devices[0]).unwrap();
    let sprouts = [&path, &twin].map(|path| {
        let devices = [DevicePath::from(path), DevicePath::from(&image.devices[0])];
        Filesystem::open(&devices, &MountOptions::default().read_only(false)).unwrap()
    });
    for (fs, text) in sprouts.iter().zip([b"one", b"two"]) {
        let file = fs.open_path(b"file").unwrap();
        file.write_all_at(0, text).unwrap();
        file.sync_all().unwrap();
    }
    for (fs, text) in sprouts.into_iter().zip([b"one", b"two"]) {
        let mut bytes = [0; 3];
        fs.open_path(b"file").unwrap().read_exact_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, text);
        fs.close().unwrap();
    }
    assert!(std::fs::read(&image.devices[0]).unwrap() == before, "the seed was written to");
    run("blockdev", &["--flushbufs", &sprout.0]);
    run("btrfs", &["check", "--check-data-csum", &sprout.0]);
}

#[test]
fn a_sprout_does_not_resize_its_seed() {
    if !kernel_is_here() {
        return;
    }
    let (image, path, sprout) = sprout_of("echo of the seed > file; sync -f .");
    let devices = [DevicePath::from(&path), DevicePath::from(&image.devices[0])];
    let fs = Filesystem::open(&devices, &MountOptions::default().read_only(false)).unwrap();
    let seed = fs.devices().into_iter().find(|device| device.seed).unwrap();
    let refused = fs.resize(seed.id, seed.total_bytes - (1 << 20)).unwrap_err();
    assert_eq!(refused.errno(), 22, "{refused}");
    fs.close().unwrap();
    run("blockdev", &["--flushbufs", &sprout.0]);
    run("btrfs", &["check", "--check-data-csum", &sprout.0]);
}

/// The other volumes that grew from a seed still have what one of them deletes.
#[test]
fn trimming_a_sprout_leaves_what_it_deleted_on_the_seed() {
    if !kernel_is_here() {
        return;
    }
    let (image, path, sprout) = sprout_of("yes old | head -c 8M > file; sync -f .");
    let before = std::fs::read(&image.devices[0]).unwrap();
    let devices = [DevicePath::from(&path), DevicePath::from(&image.devices[0])];
    let fs = Filesystem::open(&devices, &MountOptions::default().read_only(false)).unwrap();
    fs.unlink(fs.root(), b"file").unwrap();
    fs.sync().unwrap();
    assert!(fs.trim(0).unwrap() > 0, "the sprout has free space");
    fs.close().unwrap();
    assert!(std::fs::read(&image.devices[0]).unwrap() == before, "the seed was discarded");
    run("blockdev", &["--flushbufs", &sprout.0]);
    run("btrfs", &["check", "--check-data-csum", &sprout.0]);
}
