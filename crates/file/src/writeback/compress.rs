//! Compression of data that is about to be written, where it saves space.
//!
//! The decision whether a file is compressed is the kernel's:
//!
//! ```text
//! nodatacow, or without checksums              never
//! mounted with compress-force                  always
//! flag nocompress                              not
//! mounted with compress, flag compress, or
//! the property btrfs.compression               where a sample of the data looks compressible
//! ```
//!
//! Laws:
//!
//! 1. A compressed extent holds at most 128 KiB of the file, and saves at least one sector.
//! 2. Data that looked compressible and was not sets the flag nocompress of its file, unless the
//!    file has the property or compression is forced.
//! 3. The result depends only on the bytes of the run and on the file's flags, its property and the
//!    mount options.
//! 4. No space has been allocated yet: an extent gets the space of its compressed size.

use crate::compress::{Compressor, compress, looks_compressible};
use crate::source::Source;
use crate::state::FileState;
use crate::target::Target;
use crate::units::BLOCK;
use crate::units::in_memory;
use crate::writeback::{Data, WritebackRun};
use butternut_format::file_extent::{COMPRESSED_BYTES_MAX, Compression};
use butternut_format::inode::InodeFlags;
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use std::cell::RefCell;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressionPolicy {
    compressor: Compressor,
    is_forced: bool,
    /// Law 2.
    may_give_up: bool,
}

/// Result of an attempt to compress.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Smaller(Vec<u8>),
    /// It did not look compressible, or compressing it saved too little.
    Plain {
        sample_was_right: bool,
    },
}

thread_local! {
    /// An extent in contiguous memory, and its compressed form.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = RefCell::default();
}

impl CompressionPolicy {
    /// Compresses whatever a sample of the data says.
    pub(crate) fn always(compressor: Compressor) -> Self {
        Self { compressor, is_forced: true, may_give_up: false }
    }

    pub(crate) fn is_forced(self) -> bool {
        self.is_forced
    }

    pub(crate) fn compression(self) -> Compression {
        self.compressor.compression()
    }

    /// Compresses `input` into at most `bytes_max` bytes, if it looks compressible.
    pub(crate) fn try_compress(self, input: &[u8], bytes_max: usize) -> Outcome {
        if !self.is_forced && !looks_compressible(input) {
            return Outcome::Plain { sample_was_right: true };
        }
        SCRATCH.with_borrow_mut(|(_, out)| {
            out.clear();
            if compress(self.compressor, input, bytes_max, out) {
                return Outcome::Smaller(out.clone());
            }
            Outcome::Plain { sample_was_right: false }
        })
    }
}

/// The first step of writeback: splits and compresses the runs of files that are compressed.
pub(crate) fn compress_runs<'a>(
    source: &Source,
    files: &mut [&mut FileState],
    runs: Vec<WritebackRun<'a>>,
) -> Vec<WritebackRun<'a>> {
    if runs.iter().all(|run| run.policy.is_none()) {
        return runs;
    }
    let mut cut: Vec<WritebackRun<'a>> = Vec::with_capacity(runs.len());
    for mut run in runs {
        while run.policy.is_some() && run.bytes() > COMPRESSED_BYTES_MAX {
            let rest = run.split_off(COMPRESSED_BYTES_MAX);
            cut.push(std::mem::replace(&mut run, rest));
        }
        cut.push(run);
    }
    let is_wanted = |run: &WritebackRun<'_>| run.policy.is_some() && run.bytes() > BLOCK as u64;
    if cut.iter().filter(|run| is_wanted(run)).count() > 1 {
        source.workers().install(|| cut.par_iter_mut().for_each(WritebackRun::compress_runs));
    } else {
        cut.iter_mut().for_each(WritebackRun::compress_runs);
    }
    for run in &cut {
        if run.gave_up_compression
            && let Some(file) = files.get_mut(run.file)
        {
            file.give_up_compression();
        }
    }
    cut
}

impl WritebackRun<'_> {
    /// Compresses the run, if its file is compressed and that saves space (law 1).
    fn compress_runs(&mut self) {
        let Some(policy) = self.policy else { return };
        let bytes = in_memory(self.bytes());
        if bytes <= BLOCK {
            return;
        }
        debug_assert!(
            self.target == Target::New,
            "data that is written in place cannot be compressed"
        );
        let compressed = match &self.data {
            Data::Slice(slice) => policy.try_compress(slice, bytes - BLOCK),
            Data::Pages(pages) => {
                let mut whole = SCRATCH.with_borrow_mut(|(whole, _)| std::mem::take(whole));
                whole.clear();
                for frame in pages.frames() {
                    whole.extend_from_slice(frame);
                }
                let compressed = policy.try_compress(&whole, bytes - BLOCK);
                SCRATCH.with_borrow_mut(|(place, _)| *place = whole);
                compressed
            }
            Data::Compressed { .. } => return,
        };
        match compressed {
            Outcome::Smaller(mut compressed) => {
                compressed.resize(compressed.len().next_multiple_of(BLOCK), 0);
                let plain = Box::new(std::mem::replace(&mut self.data, Data::Slice(&[])));
                self.data =
                    Data::Compressed { compressed, compression: policy.compression(), plain };
            }
            Outcome::Plain { sample_was_right } => {
                self.gave_up_compression = !sample_was_right && policy.may_give_up;
            }
        }
    }

    /// Restores the run as it was before it was compressed.
    pub(crate) fn revert_compression(&mut self) {
        if let Data::Compressed { plain, .. } = &mut self.data {
            self.data = std::mem::replace(plain, Data::Slice(&[]));
        }
    }
}

impl FileState {
    /// Sets the algorithm that the property `btrfs.compression` names, if it names one.
    pub fn set_property(&mut self, property: Option<Compression>) {
        self.property = property;
    }

    /// Returns whether the inode has the flag nocompress, or gets it with the next merge.
    pub fn has_given_up_compression(&self) -> bool {
        self.gave_up_compression || self.flags.contains(InodeFlags::NOCOMPRESS)
    }

    /// Whether data of the file may be compressed at all.
    pub(crate) fn compression_is_possible(&self) -> bool {
        let has = |flag| self.flags.contains(flag);
        !has(InodeFlags::NODATACOW) && !has(InodeFlags::NODATASUM) && self.view.has_checksums()
    }

    /// How data that is written now is compressed, if at all.
    pub(crate) fn compression_policy(&self) -> Option<CompressionPolicy> {
        let has = |flag| self.flags.contains(flag);
        if !self.compression_is_possible() {
            return None;
        }
        let volume = self.source.compress();
        let compressor = match self.property {
            None => volume.map_or_else(Compressor::default, |volume| volume.compressor),
            Some(wanted) => {
                let own = volume.map(|volume| volume.compressor);
                own.filter(|own| own.compression() == wanted).or(Compressor::new(wanted))?
            }
        };
        if volume.is_some_and(|volume| volume.is_forced) {
            return Some(CompressionPolicy { compressor, is_forced: true, may_give_up: false });
        }
        let is_wanted = volume.is_some() || has(InodeFlags::COMPRESS) || self.property.is_some();
        let is_refused = has(InodeFlags::NOCOMPRESS) || self.gave_up_compression;
        let policy = CompressionPolicy {
            compressor,
            is_forced: false,
            may_give_up: self.property.is_none(),
        };
        (is_wanted && !is_refused).then_some(policy)
    }

    /// Sets nocompress with the next merge (law 2).
    fn give_up_compression(&mut self) {
        self.gave_up_compression = true;
    }
}
