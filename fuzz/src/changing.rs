//! Target that changes volumes: opens a crafted seed for writing, runs a script of operations on
//! it, and checks the result.
//!
//! ```text
//! input  = seed 1 | number of changes 1 | change 9 | ... | step 8 | step 8 | ...
//! step   = operation 1 | which 1 | which other 1 | length 1 | offset 4
//! ```
//!
//! Laws:
//!
//! 1. A script ends on any volume, within a bounded number of device requests. Operations fail with
//!    an error and never panic.
//! 2. A volume that was clean at the start is clean after every successful commit.
//! 3. A volume that was not clean at the start can afterwards be opened or is refused, without a
//!    panic. If nothing was committed, the check finds afterwards what it found before. If it was
//!    opened for writing, it can be opened for reading afterwards.

use crate::seed::{PAGE_BYTES, PatchedDevice, SUPER_OFFSET, WRITABLE_SEEDS};
use crate::volume::{READS_MAX, craft_changes};
use butternut::device::Device;
use butternut::{
    Allocate, AttributeFlags, FIRST_ENTRY, FileId, FileKind, Filesystem, Follow, MountOptions,
    NewInode, Privileges, RenameFlags, SetAttributes, SetXattr,
};
use butternut_check::{CheckOptions, Kind, check};
use butternut_device::{Counters, DeviceError};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of device requests of one input.
const REQUESTS_MAX: u64 = 4 * READS_MAX;

/// Maximum number of steps of a script.
const STEPS_MAX: usize = 64;

/// Maximum numbers of inodes that a script uses, and of directories that are searched for them.
const KNOWN_MAX: usize = 200;
const DIRECTORIES_MAX: usize = 40;

/// Names that scripts use in addition to existing ones.
const NAMES: [&[u8]; 6] = [b"a", b"b", b"new", b"dir", b"x", b"another name that is longer"];

/// Result of an input, for tests that count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The volume cannot be opened for writing.
    Refused,
    /// The volume was damaged at the start (law 3).
    Damaged,
    /// The volume was clean at the start and is clean at the end.
    Clean,
}

/// A device whose writes stay in memory, with a bound on all requests.
#[derive(Debug)]
pub(crate) struct ScratchDevice {
    base: Arc<dyn Device>,
    written: Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>,
    counters: Counters,
    is_over: AtomicBool,
}

impl ScratchDevice {
    pub(crate) fn new(base: PatchedDevice) -> Self {
        Self {
            base: Arc::new(base),
            written: Mutex::default(),
            counters: Counters::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Whether too many requests were made.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The first superblock, which every commit and every log writes.
    pub(crate) fn super_block(&self) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        self.read_at(SUPER_OFFSET, &mut bytes).expect("a superblock");
        bytes
    }

    fn written(&self) -> MutexGuard<'_, HashMap<u64, Box<[u8; PAGE_BYTES]>>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails further requests after too many, so that a loop over them ends.
    fn bound(&self) -> Result<(), DeviceError> {
        let counts = self.counters.now();
        if counts.reads + counts.writes + counts.flushes <= REQUESTS_MAX {
            return Ok(());
        }
        self.is_over.store(true, Ordering::Relaxed);
        Err(DeviceError::NotRun)
    }
}

impl Device for ScratchDevice {
    fn name(&self) -> &str {
        self.base.name()
    }

    fn bytes(&self) -> u64 {
        self.base.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.counters.count_read(memory.len());
        self.bound()?;
        self.base.read_at(offset, memory)?;
        let written = self.written();
        let end = offset + memory.len() as u64;
        let mut at = offset;
        while at < end {
            let start = at - at % PAGE_BYTES as u64;
            let next = (start + PAGE_BYTES as u64).min(end);
            if let Some(page) = written.get(&start) {
                let (from, to) = (place(at - start), place(next - start));
                memory[place(at - offset)..place(next - offset)].copy_from_slice(&page[from..to]);
            }
            at = next;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.counters.count_write(memory.len());
        self.bound()?;
        let whole = |bytes: u64| bytes.is_multiple_of(PAGE_BYTES as u64);
        assert!(whole(offset) && whole(memory.len() as u64), "the engine writes whole sectors");
        let mut written = self.written();
        let (pages, _) = memory.as_chunks::<PAGE_BYTES>();
        for (page, at) in pages.iter().zip((offset..).step_by(PAGE_BYTES)) {
            written.insert(at, Box::new(*page));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.count_flush();
        self.bound()
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn place(bytes: u64) -> usize {
    usize::try_from(bytes).expect("inside a page or a transfer")
}

struct Step {
    operation: u8,
    which: usize,
    other: usize,
    bytes: usize,
    offset: u64,
}

fn steps(input: &[u8]) -> impl Iterator<Item = Step> + '_ {
    let (chunks, _) = input.as_chunks::<8>();
    chunks.iter().take(STEPS_MAX).map(|step| Step {
        operation: step[0],
        which: step[1].into(),
        other: step[2].into(),
        bytes: usize::from(step[3]) * 257,
        offset: u32::from_le_bytes([step[4], step[5], step[6], step[7]]).into(),
    })
}

/// A volume under a script, with the names that the script can use.
struct Script {
    fs: Filesystem,
    /// Directory, name, inode and type of the entries at the start.
    known: Vec<(FileId, Vec<u8>, FileId, FileKind)>,
}

impl Script {
    fn new(fs: Filesystem) -> Self {
        let mut known = Vec::new();
        let mut seen = HashSet::new();
        let mut dirs = vec![fs.root()];
        while let Some(dir) = dirs.pop() {
            if seen.len() >= DIRECTORIES_MAX || !seen.insert(dir) {
                continue;
            }
            let Ok(entries) = fs.read_dir(dir, FIRST_ENTRY) else { continue };
            for entry in entries.take(KNOWN_MAX).map_while(Result::ok) {
                if entry.kind == FileKind::Directory {
                    dirs.push(entry.id);
                }
                known.push((dir, entry.name, entry.id, entry.kind));
            }
        }
        known.truncate(KNOWN_MAX);
        Self { fs, known }
    }

    fn dir(&self, which: usize) -> FileId {
        let dirs = self.known.iter().filter(|(.., kind)| *kind == FileKind::Directory);
        let mut dirs: Vec<FileId> = dirs.map(|(_, _, id, _)| *id).collect();
        dirs.push(self.fs.root());
        dirs[which % dirs.len()]
    }

    /// Returns a directory and a name in it: of an entry at the start, or one of a few others.
    fn name(&self, which: usize) -> (FileId, Vec<u8>) {
        match self.known.get(which) {
            Some((dir, name, ..)) => (*dir, name.clone()),
            None => (self.dir(which), NAMES[which % NAMES.len()].to_vec()),
        }
    }

    fn inode(&self, which: usize) -> butternut::Result<FileId> {
        let (dir, name) = self.name(which);
        self.fs.lookup(dir, &name)
    }

    fn file(&self, which: usize) -> butternut::Result<butternut::File> {
        self.fs.open_file(self.inode(which)?)
    }

    /// Runs one operation, which may fail with any error.
    fn run(&mut self, step: &Step) -> butternut::Result<()> {
        let fs = self.fs.clone();
        let new = NewInode { permissions: 0o755, umask: 0, uid: 1, gid: 2 };
        let (which, other) = (step.which, step.other);
        let (dir, name) = self.name(which);
        let content = vec![u8::try_from(which % 251).unwrap_or(0); step.bytes];
        let keep = Privileges::Keep;
        let offset = step.offset % (1 << 22);
        let range = offset..offset + step.bytes as u64 + 1;
        match step.operation % 36 {
            0 => fs.create(dir, &name, &new).map(drop),
            1 => fs.mkdir(dir, &name, &new).map(drop),
            2 => fs.symlink(dir, &name, b"target", &new).map(drop),
            3 => fs.unlink(dir, &name),
            4 => fs.rmdir(dir, &name),
            5 => {
                let (to, to_name) = self.name(other);
                fs.rename((dir, &name), (to, &to_name), RenameFlags::default())
            }
            6 => {
                let (to, to_name) = self.name(other);
                fs.link(self.inode(which)?, to, &to_name)
            }
            7..=10 => self.file(which)?.write_at(offset, &content).map(drop),
            11 => self.file(which)?.append(&content, keep).map(drop),
            12 => self.file(which)?.truncate(offset),
            13 => self.file(which)?.truncate(0),
            14 => self.file(which)?.allocate(range, Allocate::PunchHole),
            15 => self.file(which)?.allocate(range, Allocate::Extend),
            16 => self.file(which)?.allocate(range, Allocate::Zero),
            17 => {
                let from = self.file(other)?;
                self.file(which)?.copy_range(offset, &from, 0, content.len() as u64).map(drop)
            }
            18 => {
                let value = &content[..content.len().min(3000)];
                fs.set_xattr(self.inode(which)?, b"user.key", value, SetXattr::Either)
            }
            19 => fs.remove_xattr(self.inode(which)?, b"user.key"),
            20 => {
                let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
                fs.set_attributes(self.inode(which)?, &set).map(drop)
            }
            21 => fs.set_attribute_flags(self.inode(which)?, AttributeFlags::NOCOW),
            22 => self.file(which)?.sync_all(),
            23 => fs.sync(),
            _ => self.run_more(step),
        }
    }

    fn run_more(&mut self, step: &Step) -> butternut::Result<()> {
        let fs = self.fs.clone();
        let (which, other) = (step.which, step.other);
        let (dir, name) = self.name(which);
        let offset = step.offset % (1 << 22);
        let mut memory = vec![1; step.bytes.max(1)];
        match step.operation % 36 {
            24 => {
                let (to, to_name) = self.name(other);
                let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
                fs.rename((dir, &name), (to, &to_name), exchange)
            }
            25 => {
                let new = NewInode { permissions: 0o644, umask: 0, uid: 1, gid: 2 };
                let file = fs.open_unnamed(dir, &new)?;
                file.write_at(offset, &memory)?;
                if other % 2 == 0 { Ok(()) } else { fs.link(file.id(), dir, &name) }
            }
            26 => {
                let memory = vec![2; memory.len().next_multiple_of(PAGE_BYTES)];
                let file = self.file(which)?;
                file.write_direct(offset & !4095, &memory, Privileges::Keep).map(drop)
            }
            27 => {
                let mut memory = vec![2; memory.len().next_multiple_of(PAGE_BYTES)];
                self.file(which)?.read_direct(offset & !4095, &mut memory).map(drop)
            }
            28 => self.file(which)?.write_uncached(offset, &memory, Privileges::Keep).map(drop),
            29 => self.file(which)?.read_at(offset, &mut memory).map(drop),
            30 => fs.trim(4096).map(drop),
            31 => {
                let size = fs.size_min(1)?;
                fs.resize(1, size.max((step.bytes as u64) << 12))
            }
            32 => fs.set_label(&memory[..memory.len().min(9)]),
            33 => {
                let from = self.file(other)?;
                let bytes = from.len().next_multiple_of(4096);
                self.file(which)?.copy_range(offset & !4095, &from, 0, bytes).map(drop)
            }
            34 => {
                fs.disk_usage(self.inode(which)?)?;
                fs.paths_of(self.inode(which)?)?;
                fs.subvolumes().map(drop)
            }
            _ => {
                // The file is deleted while it is open.
                let file = self.file(which)?;
                fs.unlink(dir, &name)?;
                file.write_at(offset, &memory).map(drop)
            }
        }
    }
}

/// Checks the volume. The error lists the findings, or says why the check failed.
pub(crate) fn is_clean(device: &Arc<ScratchDevice>, check_data_csum: bool) -> Result<(), String> {
    let device = Arc::clone(device) as Arc<dyn Device>;
    let options = CheckOptions { check_data_csum, ..CheckOptions::default() };
    let report = check(vec![device], &options).map_err(|error| error.to_string())?;
    // Blocks and data that could not be read are counted, as they must be.
    let findings = report.findings.iter().filter(|found| found.kind != Kind::DeviceErrors);
    let findings: Vec<String> = findings.map(ToString::to_string).collect();
    if findings.is_empty() { Ok(()) } else { Err(findings.join("; ")) }
}

/// The options of a volume that is opened for writing.
pub(crate) fn writing() -> MountOptions {
    MountOptions::default()
        .read_only(false)
        .commit_seconds(0)
        .node_cache_bytes(1 << 20)
        .page_cache_bytes(4 << 20)
        .workers(1)
}

pub(crate) fn changing(input: &[u8]) {
    changed(input);
}

/// Runs one input, and panics if a law is broken.
pub fn changed(input: &[u8]) -> Changed {
    let Some((&seed, rest)) = input.split_first() else { return Changed::Refused };
    let Some((&count, rest)) = rest.split_first() else { return Changed::Refused };
    let changes = rest.len().min(usize::from(count % 16) * 9);
    let (changes, script) = rest.split_at(changes);
    let crafted = craft_changes(&WRITABLE_SEEDS, &[&[seed], changes].concat());
    let Some(base) = crafted else { return Changed::Refused };
    run_script(base, script)
}

/// Runs the steps of a script, syncs, and closes the volume. Returns whether it became read-only.
pub(crate) fn run_steps(fs: Filesystem, script: &[u8]) -> bool {
    let mut script_run = Script::new(fs);
    for step in steps(script) {
        // A failed operation must change nothing; the check at the end tests that.
        script_run.run(&step).unwrap_or_default();
    }
    script_run.fs.sync().unwrap_or_default();
    let is_poisoned = !script_run.fs.is_writable();
    let root = script_run.fs.resolve(b"/", Follow::Last);
    drop((script_run, root));
    is_poisoned
}

/// Runs a script on a volume, and panics if a law is broken.
pub(crate) fn run_script(base: PatchedDevice, script: &[u8]) -> Changed {
    let device = Arc::new(ScratchDevice::new(base));
    let whole = is_clean(&device, true);
    let whole_trees = is_clean(&device, false);
    let options = writing();
    let devices = || vec![Arc::clone(&device) as Arc<dyn Device>];
    let super_block = device.super_block();
    let opened = Filesystem::open_devices(devices(), &options);
    let Ok(fs) = opened else { return Changed::Refused };
    let is_poisoned = run_steps(fs, script);
    assert!(!device.is_over(), "{REQUESTS_MAX} requests: the script does not end");
    let after = is_clean(&device, true);
    assert!(!device.is_over(), "{REQUESTS_MAX} requests: the script does not end");
    if whole.is_err() {
        if device.super_block() == super_block {
            // Data may have been written to space that is free.
            assert_eq!(is_clean(&device, false), whole_trees, "nothing was committed");
        }
        let opened = Filesystem::open_devices(devices(), &options.read_only(true));
        assert!(opened.is_ok(), "it could be opened: {opened:?}");
        return Changed::Damaged;
    }
    if let Err(finding) = after {
        panic!("it was clean before (now read-only: {is_poisoned}): {finding}");
    }
    Changed::Clean
}
