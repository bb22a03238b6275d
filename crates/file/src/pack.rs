//! Packing: what is about to go down, smaller, where that pays.
//!
//! Whether a file is packed at all is decided as the kernel decides it:
//!
//! ```text
//! written in place, or without checksums      never
//! the volume is opened to force it            always
//! flag nocompress                             not
//! the volume's option, flag compress, or
//! the property                                where a sample of the data promises something
//! ```
//!
//! Laws:
//!
//! 1. An extent that is packed holds at most 128 KiB of the file, and saves at least one sector.
//! 2. Data that promised something and did not keep it gives the file the flag nocompress, unless
//!    the property or force wants it packed all the same.
//! 3. What comes of a run depends on its bytes and on the file's switches alone.
//! 4. Nothing has found its space yet: an extent is given what it takes packed.

use crate::compress::{Packer, compress, is_promising};
use crate::down::{Data, Descent};
use crate::overlay::BLOCK;
use crate::place::Target;
use crate::source::{Source, in_memory};
use crate::state::FileState;
use butternut_format::file_extent::{COMPRESSED_BYTES_MAX, Compression};
use butternut_format::inode::InodeFlags;
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use std::cell::RefCell;

/// How a volume is opened to pack what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compress {
    pub packer: Packer,
    /// Whatever flags and samples say.
    pub is_forced: bool,
}

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    packer: Packer,
    is_forced: bool,
    /// Law 2.
    gives_up: bool,
}

/// What came of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Packed {
    Smaller(Vec<u8>),
    /// It promised nothing, or did not keep it.
    Plain {
        kept_promise: bool,
    },
}

thread_local! {
    /// A whole extent in one piece, and what packing makes of it.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = RefCell::default();
}

impl Packing {
    pub(crate) fn compression(self) -> Compression {
        self.packer.compression()
    }

    /// Packs `input` into at most `bytes_max` bytes, if that looks as if it paid.
    pub(crate) fn try_pack(self, input: &[u8], bytes_max: usize) -> Packed {
        if !self.is_forced && !is_promising(input) {
            return Packed::Plain { kept_promise: true };
        }
        SCRATCH.with_borrow_mut(|(_, out)| {
            out.clear();
            if compress(self.packer, input, bytes_max, out) {
                return Packed::Smaller(out.clone());
            }
            Packed::Plain { kept_promise: false }
        })
    }
}

/// The first stage of going down: cuts and packs the runs that want it.
pub(crate) fn pack<'a>(
    source: &Source,
    files: &mut [&mut FileState],
    runs: Vec<Descent<'a>>,
) -> Vec<Descent<'a>> {
    if runs.iter().all(|run| run.packing.is_none()) {
        return runs;
    }
    let mut cut: Vec<Descent<'a>> = Vec::with_capacity(runs.len());
    for mut run in runs {
        while run.packing.is_some() && run.bytes() > COMPRESSED_BYTES_MAX {
            let rest = run.split_off(COMPRESSED_BYTES_MAX);
            cut.push(std::mem::replace(&mut run, rest));
        }
        cut.push(run);
    }
    let wants = |run: &Descent<'_>| run.packing.is_some() && run.bytes() > BLOCK as u64;
    if cut.iter().filter(|run| wants(run)).count() > 1 {
        source.workers().install(|| cut.par_iter_mut().for_each(Descent::pack));
    } else {
        cut.iter_mut().for_each(Descent::pack);
    }
    for run in &cut {
        if run.has_given_up
            && let Some(file) = files.get_mut(run.file)
        {
            file.give_up_packing();
        }
    }
    cut
}

impl Descent<'_> {
    /// Packs the run, where it wants that and it pays (law 1).
    fn pack(&mut self) {
        let Some(packing) = self.packing else { return };
        let bytes = in_memory(self.bytes());
        if bytes <= BLOCK {
            return;
        }
        debug_assert!(
            self.target == Target::New,
            "what is written in place stays as long as it is"
        );
        let packed = match &self.data {
            Data::Slice(slice) => packing.try_pack(slice, bytes - BLOCK),
            Data::Pages(pages) => {
                let mut whole = SCRATCH.with_borrow_mut(|(whole, _)| std::mem::take(whole));
                whole.clear();
                for frame in pages.frames() {
                    whole.extend_from_slice(frame);
                }
                let packed = packing.try_pack(&whole, bytes - BLOCK);
                SCRATCH.with_borrow_mut(|(place, _)| *place = whole);
                packed
            }
            Data::Packed { .. } => return,
        };
        match packed {
            Packed::Smaller(mut packed) => {
                packed.resize(packed.len().next_multiple_of(BLOCK), 0);
                let plain = Box::new(std::mem::replace(&mut self.data, Data::Slice(&[])));
                self.data = Data::Packed { packed, compression: packing.compression(), plain };
            }
            Packed::Plain { kept_promise } => {
                self.has_given_up = !kept_promise && packing.gives_up;
            }
        }
    }

    /// The run as it was before it was packed.
    pub(crate) fn unpack(&mut self) {
        if let Data::Packed { plain, .. } = &mut self.data {
            self.data = std::mem::replace(plain, Data::Slice(&[]));
        }
    }
}

impl FileState {
    /// What the property `btrfs.compression` asks for, if it names an algorithm.
    pub fn set_property(&mut self, property: Option<Compression>) {
        self.property = property;
    }

    /// Packing does not pay, or is not to be tried: the inode has the flag nocompress, or gets it.
    pub fn has_given_up_packing(&self) -> bool {
        self.has_given_up || self.flags.contains(InodeFlags::NOCOMPRESS)
    }

    /// How what is written now is packed, if it is.
    pub(crate) fn packing(&self) -> Option<Packing> {
        let has = |flag| self.flags.contains(flag);
        if has(InodeFlags::NODATACOW) || has(InodeFlags::NODATASUM) || !self.view.has_sums() {
            return None;
        }
        let volume = self.source.compress();
        let packer = match self.property {
            None => volume.map_or_else(Packer::default, |volume| volume.packer),
            Some(wanted) => {
                let own = volume.map(|volume| volume.packer);
                own.filter(|own| own.compression() == wanted).or(Packer::new(wanted))?
            }
        };
        if volume.is_some_and(|volume| volume.is_forced) {
            return Some(Packing { packer, is_forced: true, gives_up: false });
        }
        let is_wanted = volume.is_some() || has(InodeFlags::COMPRESS) || self.property.is_some();
        let is_refused = has(InodeFlags::NOCOMPRESS) || self.has_given_up;
        let packing = Packing { packer, is_forced: false, gives_up: self.property.is_none() };
        (is_wanted && !is_refused).then_some(packing)
    }

    /// Law 2. The flag is in the tree with the next merge.
    fn give_up_packing(&mut self) {
        self.has_given_up = true;
    }
}
