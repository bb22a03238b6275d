//! One thread of the run: it uses whatever inodes it finds under the shared names.

use super::crashes::Synced;
use super::{MAPPED_CELLS, Shared, bytes_of, offset_of, read_cells};
use anyhow::{Context, Result};
use butternut::FileId;
use butternut_sim::histories::history::{BegunWrite, CELLS, Tick, Window};
use butternut_sim::histories::names::{Leads, NAMES};
use butternut_sim::random::Random;
use butternut_sys::mapped::Mapped;
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

const HANDLES_MAX: usize = 4;
const CELLS_OF_BLOCK: usize = 8;
/// One sync in so many is followed by a copy of the image, up to a limit.
const COPIES_ONE_IN: u64 = 8;
const COPIES_MAX: u32 = 4;

pub(super) struct Worker<'a> {
    random: Random,
    shared: &'a Shared,
    handles: Vec<Handle>,
}

/// An open file.
struct Handle {
    id: FileId,
    file: File,
    /// Opened with `O_DSYNC`.
    is_durable: bool,
    mapped: Option<Mapped>,
}

impl Handle {
    fn new(file: File, flags: OFlags) -> Result<Self> {
        let id = FileId::new(5, file.metadata()?.ino());
        Ok(Self { id, file, is_durable: flags.contains(OFlags::DSYNC), mapped: None })
    }

    /// Maps the cells that are never cut off, once they exist.
    fn map(&mut self) -> Result<Option<&Mapped>> {
        if self.mapped.is_none() && self.file.metadata()?.len() >= offset_of(MAPPED_CELLS) {
            self.mapped = Some(Mapped::shared(&self.file, bytes_of(MAPPED_CELLS))?);
        }
        Ok(self.mapped.as_ref())
    }
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Shared, seed: u64) -> Self {
        Self { random: Random::new(seed), shared, handles: Vec::new() }
    }

    pub(super) fn run(mut self, operations: usize) -> Result<()> {
        for number in 0..operations {
            self.step().with_context(|| format!("operation {number}"))?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(100) {
            0..=7 => return self.open(),
            8..=10 => return self.create(),
            11..=12 => return self.rename(),
            13 => return self.link(),
            14 => return self.unlink(),
            15 if self.random.one_in(2) => return self.sync_volume(),
            _ => {}
        }
        if self.handles.is_empty() {
            return self.open();
        }
        let number = self.random.index(self.handles.len());
        let mut handle = self.handles.swap_remove(number);
        let used = self.use_file(&mut handle).with_context(|| format!("{:?}", handle.id));
        self.handles.push(handle);
        used
    }

    fn use_file(&mut self, handle: &mut Handle) -> Result<()> {
        match self.random.below(80) {
            0..=19 => self.write(handle),
            20..=37 => self.read(handle),
            38..=49 => self.store(handle),
            50..=61 => self.load(handle),
            62..=65 => self.truncate(handle),
            66..=71 => self.make_zeroes(handle),
            72..=76 => self.sync(handle),
            _ => self.sync_mapped(handle),
        }
    }

    fn name(&mut self) -> usize {
        self.random.index(NAMES.len())
    }

    fn tick(&self) -> Tick {
        self.shared.history.tick()
    }

    fn window(&self, from: Tick) -> Window {
        Window { from, to: self.tick(), position: None, stores_from: None }
    }

    fn flags(&mut self) -> OFlags {
        let direct = if self.random.one_in(2) { OFlags::DIRECT } else { OFlags::empty() };
        direct | if self.random.one_in(8) { OFlags::DSYNC } else { OFlags::empty() }
    }

    /// Opens whatever a name leads to.
    fn open(&mut self) -> Result<()> {
        let (number, flags) = (self.name(), self.flags());
        let from = self.tick();
        let mut how = OpenOptions::new();
        how.read(true).write(true).custom_flags(flags.bits().cast_signed());
        let opened = match how.open(self.shared.path(number)) {
            Ok(file) => Some(Handle::new(file, flags)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).context("open"),
        };
        let window = self.window(from);
        self.shared.check_name(number, opened.as_ref().map(|handle| handle.id), &window)?;
        if let Some(handle) = opened {
            self.keep(handle);
        }
        Ok(())
    }

    fn keep(&mut self, handle: Handle) {
        if self.handles.len() < HANDLES_MAX {
            self.handles.push(handle);
        } else {
            let place = self.random.index(HANDLES_MAX);
            self.handles[place] = handle;
        }
    }

    /// Runs a change of names, and records its result.
    fn change_names<R>(
        &mut self,
        changes: &[(usize, Leads)],
        call: impl FnOnce() -> io::Result<R>,
        leads: impl FnOnce(&R) -> Result<Option<Leads>>,
    ) -> Result<Option<R>> {
        let begun = {
            let mut names = self.shared.history.names();
            names.begin(self.tick(), changes)
        };
        let (done, leads) = match call() {
            Ok(done) => {
                let leads = leads(&done)?;
                (Some(done), leads)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) =>
            {
                (None, Some(Leads::AsBefore))
            }
            Err(error) => return Err(error).with_context(|| format!("{changes:?}")),
        };
        let mut names = self.shared.history.names();
        names.end(&begun, self.tick(), leads);
        Ok(done)
    }

    fn create(&mut self) -> Result<()> {
        let (name, flags) = (self.name(), self.flags());
        let path = self.shared.path(name);
        let mut how = OpenOptions::new();
        how.read(true).write(true).create_new(true).custom_flags(flags.bits().cast_signed());
        let leads = |file: &File| Ok(Some(Leads::To(FileId::new(5, file.metadata()?.ino()))));
        let changes = [(name, Leads::ToNew)];
        let Some(file) = self.change_names(&changes, || how.open(path), leads)? else {
            return Ok(());
        };
        let handle = Handle::new(file, flags)?;
        self.cut(&handle, MAPPED_CELLS)?;
        self.keep(handle);
        Ok(())
    }

    fn unlink(&mut self) -> Result<()> {
        let name = self.name();
        let path = self.shared.path(name);
        let call = || std::fs::remove_file(path);
        self.change_names(&[(name, Leads::Nowhere)], call, |()| Ok(None)).map(drop)
    }

    fn rename(&mut self) -> Result<()> {
        let (from, to) = (self.name(), self.name());
        if from == to {
            return Ok(());
        }
        let exchange = self.random.one_in(3);
        let flags = match exchange {
            true => RenameFlags::EXCHANGE,
            false if self.random.one_in(4) => RenameFlags::NOREPLACE,
            false => RenameFlags::empty(),
        };
        let (old, new) = (self.shared.path(from), self.shared.path(to));
        let call = || Ok(rustix::fs::renameat_with(CWD, old, CWD, new, flags)?);
        let left = if exchange { Leads::As(to) } else { Leads::NowhereUnlessAs(to) };
        self.change_names(&[(from, left), (to, Leads::As(from))], call, |()| Ok(None)).map(drop)
    }

    fn link(&mut self) -> Result<()> {
        let name = self.name();
        let Some(handle) = self.handles.first() else { return Ok(()) };
        let (id, path) = (handle.id, self.shared.path(name));
        let open: PathBuf = format!("/proc/self/fd/{}", handle.file.as_raw_fd()).into();
        let call = || Ok(rustix::fs::linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW)?);
        self.change_names(&[(name, Leads::To(id))], call, |()| Ok(None)).map(drop)
    }

    /// Returns cells before `end` that several threads use: often within one block, or whole
    /// blocks.
    fn cells(&mut self, end: usize) -> Range<usize> {
        if self.random.one_in(2) {
            let blocks = end / CELLS_OF_BLOCK;
            let first = self.random.index(blocks);
            let count = 1 + self.random.index((blocks - first).min(4));
            return first * CELLS_OF_BLOCK..(first + count) * CELLS_OF_BLOCK;
        }
        let first = self.random.index(end);
        first..first + 1 + self.random.index((end - first).min(12))
    }

    fn content(begun: &BegunWrite) -> Vec<u8> {
        begun.value.to_le_bytes().repeat(bytes_of(begun.cells.len()) / size_of::<u64>())
    }

    fn write(&mut self, handle: &Handle) -> Result<()> {
        let cells = self.cells(CELLS);
        let begun = self.shared.history.begin(handle.id, cells, false);
        handle.file.write_all_at(&Self::content(&begun), offset_of(begun.cells.start))?;
        let durable = handle.is_durable.then(|| usize::try_from(self.tick())).transpose()?;
        self.shared.history.end(&begun, durable);
        Ok(())
    }

    fn read(&mut self, handle: &Handle) -> Result<()> {
        let cells = self.cells(CELLS);
        let (from, first) = (self.tick(), cells.start);
        let bytes = read_cells(&handle.file, cells)?;
        self.shared.check_cells(handle.id, first, &bytes, &self.window(from)).context("read(2)")
    }

    fn store(&mut self, handle: &mut Handle) -> Result<()> {
        let (id, cells) = (handle.id, self.cells(MAPPED_CELLS));
        let Some(mapped) = handle.map()? else { return Ok(()) };
        let begun = self.shared.history.begin_store(id, cells);
        mapped.put(bytes_of(begun.cells.start), &Self::content(&begun));
        self.shared.history.end(&begun, None);
        Ok(())
    }

    fn load(&mut self, handle: &mut Handle) -> Result<()> {
        let (id, cells) = (handle.id, self.cells(MAPPED_CELLS));
        let Some(mapped) = handle.map()? else { return Ok(()) };
        let mut bytes = vec![0; bytes_of(cells.len())];
        let from = self.tick();
        mapped.get(bytes_of(cells.start), &mut bytes);
        self.shared.check_cells(id, cells.start, &bytes, &self.window(from)).context("a load")
    }

    fn truncate(&mut self, handle: &Handle) -> Result<()> {
        let cell = MAPPED_CELLS + self.random.index(CELLS - MAPPED_CELLS);
        self.cut(handle, cell)
    }

    fn cut(&self, handle: &Handle, cell: usize) -> Result<()> {
        let begun = self.shared.history.begin(handle.id, cell..CELLS, true);
        handle.file.set_len(offset_of(cell)).context("truncate")?;
        self.shared.history.end(&begun, None);
        Ok(())
    }

    fn make_zeroes(&mut self, handle: &Handle) -> Result<()> {
        let cells = self.cells(CELLS);
        let (at, bytes) = (offset_of(cells.start), bytes_of(cells.len()) as u64);
        let keep = FallocateFlags::KEEP_SIZE;
        let how = *self.random.pick(&[
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | keep,
            keep,
        ]);
        let allocate = || rustix::fs::fallocate(&handle.file, how, at, bytes).context("fallocate");
        if how == keep {
            return allocate();
        }
        let begun = self.shared.history.begin(handle.id, cells, true);
        allocate()?;
        self.shared.history.end(&begun, None);
        Ok(())
    }

    fn sync(&mut self, handle: &Handle) -> Result<()> {
        let start = self.tick();
        if self.random.one_in(2) { handle.file.sync_all() } else { handle.file.sync_data() }
            .context("fsync")?;
        self.synced(Synced::File(handle.id, 0..CELLS), start)
    }

    /// A sync of a mapping covers the mapped cells only.
    fn sync_mapped(&mut self, handle: &mut Handle) -> Result<()> {
        let id = handle.id;
        let Some(mapped) = handle.map()? else { return Ok(()) };
        let start = self.tick();
        mapped.sync().context("msync")?;
        self.synced(Synced::File(id, 0..MAPPED_CELLS), start)
    }

    fn synced(&mut self, synced: Synced, start: Tick) -> Result<()> {
        self.shared.crashes.add_sync(synced, start..self.tick());
        self.copy_image()
    }

    fn sync_volume(&mut self) -> Result<()> {
        self.shared.sync_volume()?;
        self.copy_image()
    }

    fn copy_image(&mut self) -> Result<()> {
        if !self.random.one_in(COPIES_ONE_IN) {
            return Ok(());
        }
        self.shared.crashes.check_up_to(COPIES_MAX, &self.shared.history)
    }
}
