//! Compares how access lists, flags and properties change an inode in this crate and in the
//! kernel's btrfs, with random values.
//!
//! Needs root and loop devices; `BUTTERNUT_NO_KERNEL=1` leaves these tests out and reports that.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::manual_assert,
    reason = "a test panics where it fails, and says what it left out"
)]

#[path = "../../fs/tests/kernel_image/mod.rs"]
mod kernel_image;

use butternut_format::inode::{DeviceNumber, FileKind, Inode, InodeFlags, Time};
use butternut_format::units::Generation;
use butternut_names::{
    ACCESS_ACL, Acl, AclEntry, AclTag, AttributeFlags, COMPRESSION, DEFAULT_ACL, Moment,
    NamesError, NewInode, flags_with_property, inherit_acl, inherited_compression,
};
use kernel_image::{KernelImage, kernel_is_here};
use rustix::fs::{self, FileType, IFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const KINDS: [FileKind; 4] =
    [FileKind::File, FileKind::Directory, FileKind::Fifo, FileKind::Symlink];

/// Numbers that look random, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % sides
    }

    fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.roll(u64::try_from(count).unwrap())).unwrap()
    }

    fn bits(&mut self, count: u32) -> u32 {
        u32::try_from(self.roll(1 << count)).unwrap()
    }

    /// Returns a valid list, or sometimes one with a single error.
    fn list(&mut self) -> Vec<u8> {
        let mut tags = vec![AclTag::Owner];
        tags.extend((0..self.pick(3)).map(|_| AclTag::User(self.bits(12))));
        tags.push(AclTag::GroupOwner);
        tags.extend((0..self.pick(3)).map(|_| AclTag::Group(self.bits(12))));
        if tags.len() > 2 || self.roll(3) == 0 {
            tags.push(AclTag::Mask);
        }
        tags.push(AclTag::Others);
        match self.roll(12) {
            0 => drop(tags.remove(self.pick(tags.len()))),
            1 => tags.swap(0, 1),
            2 => tags.insert(1, AclTag::Mask),
            _ => {}
        }
        let mut bytes = vec![2, 0, 0, 0];
        for tag in tags {
            let permissions = u16::try_from(self.bits(3)).unwrap();
            bytes.extend(AclEntry { tag, permissions }.to_bytes());
        }
        bytes
    }
}

fn attribute(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    match fs::lgetxattr(path, name, value.as_mut_slice()) {
        Ok(bytes) => {
            value.truncate(bytes);
            Some(value)
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Sets an attribute. Returns the errno; 0 is success.
fn set(path: &Path, name: &[u8], value: &[u8]) -> i32 {
    errno_of(fs::setxattr(path, name, value, XattrFlags::empty()))
}

fn errno_of(result: Result<(), Errno>) -> i32 {
    result.map_or_else(Errno::raw_os_error, |()| 0)
}

/// Returns the errno of an error of this crate.
fn errno<T>(result: &Result<T, NamesError>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(NamesError::Invalid { .. }) => 22,
        Err(NamesError::Unsupported { .. }) => 95,
        Err(error) => panic!("{error}"),
    }
}

fn make(path: &Path, kind: FileKind, permissions: u32) {
    let mode = Mode::from_raw_mode(permissions);
    match kind {
        FileKind::Directory => fs::mkdir(path, mode).unwrap(),
        FileKind::Symlink => fs::symlink("nowhere", path).unwrap(),
        FileKind::Fifo => fs::mknodat(fs::CWD, path, FileType::Fifo, mode, 0).unwrap(),
        FileKind::File => {
            drop(fs::open(path, OFlags::CREATE | OFlags::RDWR | OFlags::EXCL, mode).unwrap());
        }
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Socket => unreachable!(),
    }
}

fn bytes(acl: Option<&Acl>) -> Option<Vec<u8>> {
    acl.map(Acl::to_bytes)
}

/// Creates a directory, sometimes with a default list. Returns the list.
fn make_parent(dir: &Path, dice: &mut Dice) -> Option<Acl> {
    std::fs::create_dir(dir).unwrap();
    let value = (dice.roll(4) > 0).then(|| dice.list());
    let parsed = value.as_deref().map(Acl::parse).transpose();
    if let Some(value) = &value {
        assert_eq!(set(dir, DEFAULT_ACL, value), errno(&parsed), "{value:?}");
    }
    let default = parsed.ok().flatten().flatten();
    assert_eq!(attribute(dir, DEFAULT_ACL), bytes(default.as_ref()));
    default
}

/// The umask belongs to the process, so this is the one test that sets it.
#[test]
fn access_lists_and_modes_determine_each_other_as_in_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", "");
    let mount = image.mount("rw");
    let mut dice = Dice(7);
    let mut seen = [0; 4];
    for round in 0..400 {
        let dir = mount.path().join(format!("d{round}"));
        let default = make_parent(&dir, &mut dice);
        seen[0] += usize::from(default.is_some());
        let kind = KINDS[dice.pick(4)];
        let (asked, umask) = (dice.bits(12) & !0o2000, dice.bits(9));
        let asked = if kind == FileKind::Symlink { 0o777 } else { asked };
        let path = dir.join("made");
        let before = rustix::process::umask(Mode::from_raw_mode(umask));
        make(&path, kind, asked);
        rustix::process::umask(before);
        let want = inherit_acl(default.as_ref(), kind, asked, umask);
        let mode = path.symlink_metadata().unwrap().mode();
        // mkdir knows no set-user-id and set-group-id.
        let known = if kind == FileKind::Directory { 0o1777 } else { 0o7777 };
        assert_eq!(mode & 0o7777, want.permissions & known, "{kind:?} {asked:o} {umask:o}");
        assert_eq!(attribute(&path, ACCESS_ACL), bytes(want.access.as_ref()));
        assert_eq!(attribute(&path, DEFAULT_ACL), bytes(want.default.as_ref()));
        seen[1] += usize::from(want.access.is_some());
        if kind == FileKind::Symlink {
            continue;
        }
        let value = dice.list();
        let parsed = Acl::parse(&value);
        assert_eq!(set(&path, ACCESS_ACL, &value), errno(&parsed), "{value:?}");
        let Ok(Some(acl)) = parsed else { continue };
        let guarded = acl.apply_to(mode);
        assert_eq!(path.metadata().unwrap().mode(), guarded.mode);
        assert_eq!(attribute(&path, ACCESS_ACL), bytes(guarded.acl.as_ref()));
        seen[2] += usize::from(guarded.acl.is_none());
        let asked = dice.bits(9);
        fs::chmod(&path, Mode::from_raw_mode(asked)).unwrap();
        let changed = guarded.acl.map(|acl| acl.with_mode(asked));
        assert_eq!(attribute(&path, ACCESS_ACL), bytes(changed.as_ref()));
        seen[3] += usize::from(changed.is_some());
    }
    assert!(seen.iter().all(|&count| count > 10), "{seen:?}");
}

#[test]
fn malformed_lists_are_refused_with_the_kernels_errno() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", "touch file");
    let mount = image.mount("rw");
    let file = mount.path().join("file");
    let mut dice = Dice(11);
    for _ in 0..300 {
        let mut value = dice.list();
        let at = dice.pick(value.len());
        value[at] ^= u8::try_from(1 << dice.roll(8)).unwrap();
        value.truncate(value.len() - dice.pick(2) * dice.pick(9));
        assert_eq!(set(&file, ACCESS_ACL, &value), errno(&Acl::parse(&value)), "{value:?}");
    }
}

const MOMENT: Moment = Moment { generation: Generation(1), now: Time { secs: 0, nanos: 0 } };

fn plain(kind: FileKind, parent: &Inode) -> Inode {
    let rdev = DeviceNumber::default();
    NewInode { kind, permissions: 0o644, uid: 0, gid: 0, rdev }.inode(parent, MOMENT)
}

fn directory() -> Inode {
    let mut raw = [0; 160];
    raw[52..56].copy_from_slice(&0o40_755_u32.to_le_bytes());
    Inode::check(&raw).unwrap()
}

fn open(path: &Path) -> rustix::fd::OwnedFd {
    fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap()
}

fn shown(path: &Path) -> u32 {
    fs::ioctl_getflags(open(path)).unwrap().bits()
}

fn set_flags(path: &Path, flags: u32) -> i32 {
    errno_of(fs::ioctl_setflags(open(path), IFlags::from_bits_retain(flags)))
}

/// One bit at a time and in pairs, of the flags that can be asked for, and one that cannot.
fn flag_sets() -> Vec<u32> {
    let one = [0, 0x2, 0x4, 0x8, 0x40, 0x80, 0x400, 0x1_0000, 0x80_0000_u32];
    one.iter().flat_map(|a| one.iter().map(move |b| a | b)).collect()
}

#[test]
fn flags_are_taken_shown_and_inherited_as_in_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", "");
    let mount = image.mount("rw");
    let mut taken = 0;
    for (number, asked) in flag_sets().into_iter().enumerate() {
        let dir = mount.path().join(format!("d{number}"));
        std::fs::create_dir(&dir).unwrap();
        let change = AttributeFlags(asked).change(&directory());
        assert_eq!(set_flags(&dir, asked), errno(&change), "{asked:#x}");
        let Ok(change) = change else { continue };
        taken += 1;
        assert_eq!(shown(&dir), AttributeFlags::of(change.flags).0, "{asked:#x}");
        let property = attribute(&dir, COMPRESSION);
        assert_eq!(property.as_deref(), change.compression);
        let parent = Inode { flags: change.flags, ..directory() };
        for kind in [FileKind::File, FileKind::Directory] {
            let path = dir.join(format!("{kind:?}"));
            make(&path, kind, 0o644);
            let want = plain(kind, &parent).flags;
            assert_eq!(shown(&path), AttributeFlags::of(want).0, "{kind:?} {asked:#x}");
            let inherited = inherited_compression(property.as_deref(), kind);
            assert_eq!(attribute(&path, COMPRESSION).as_deref(), inherited);
        }
    }
    assert!(taken > 20, "{taken}");
}

#[test]
fn files_take_flags_by_their_size_as_in_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", "");
    let mount = image.mount("rw");
    for (number, asked) in flag_sets().into_iter().enumerate() {
        for size in [0_u8, 1] {
            let path: PathBuf = mount.path().join(format!("f{number}-{size}"));
            std::fs::write(&path, vec![7; size.into()]).unwrap();
            let inode = Inode { size: size.into(), ..plain(FileKind::File, &directory()) };
            let change = AttributeFlags(asked).change(&inode);
            assert_eq!(set_flags(&path, asked), errno(&change), "{asked:#x} {size}");
            let Ok(change) = change else { continue };
            assert_eq!(shown(&path), AttributeFlags::of(change.flags).0, "{asked:#x} {size}");
            assert_eq!(attribute(&path, COMPRESSION).as_deref(), change.compression);
        }
    }
}

#[test]
fn properties_are_taken_and_inherited_as_in_the_kernel() {
    if !kernel_is_here() {
        return;
    }
    let image = KernelImage::make(1, &[], "", "");
    let mount = image.mount("rw");
    let values = ["zlib", "lzo", "zstd", "zstd:3", "zlib:9", "zlibx", "no", "none", "n", "gzip"];
    for (number, value) in values.into_iter().enumerate() {
        for in_place in [false, true] {
            let dir = mount.path().join(format!("d{number}{in_place}"));
            std::fs::create_dir(&dir).unwrap();
            let flags = if in_place { InodeFlags::NODATACOW } else { InodeFlags::default() };
            let inode = Inode { flags, ..directory() };
            if in_place {
                assert_eq!(set_flags(&dir, AttributeFlags::NOCOW.0), 0);
            }
            let want = flags_with_property(&inode, COMPRESSION, value.as_bytes());
            assert_eq!(set(&dir, COMPRESSION, value.as_bytes()), errno(&want), "{value}");
            let Ok(want) = want else { continue };
            assert_eq!(shown(&dir), AttributeFlags::of(want).0, "{value}");
            for kind in KINDS {
                let path = dir.join(format!("{kind:?}"));
                make(&path, kind, 0o644);
                let inherited = inherited_compression(Some(value.as_bytes()), kind);
                let have = attribute(&path, COMPRESSION);
                assert_eq!(have.as_deref(), inherited, "{value} {kind:?}");
            }
            fs::removexattr(&dir, COMPRESSION).unwrap();
            let removed = flags_with_property(&inode, COMPRESSION, b"").unwrap();
            assert_eq!(shown(&dir), AttributeFlags::of(removed).0, "{value} removed");
        }
    }
    let file = mount.path().join("file");
    make(&file, FileKind::File, 0o644);
    let unknown = flags_with_property(&directory(), b"btrfs.x", b"zlib");
    assert_eq!(set(&file, b"btrfs.x", b"zlib"), errno(&unknown));
}
