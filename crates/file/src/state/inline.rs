//! State of a file whose data is, or may become, inline.

use butternut_format::file_extent::{Compression, ExtentBody, FileExtent};
use butternut_format::units::{Generation, length};

/// Maximum size of an inline extent in bytes (the kernel's `max_inline`).
pub(crate) const INLINE_BYTES_MAX: u64 = 2048;

/// The compressed bytes of a file, as an inline item contains them.
#[derive(Debug)]
pub(crate) struct CompressedInline {
    pub(crate) compression: Compression,
    pub(crate) bytes: Vec<u8>,
}

/// What inline files need to know of the tree's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InlineShape {
    pub(crate) is_inline: bool,
    /// Some item reaches past the first block.
    pub(crate) has_later_extents: bool,
}

impl CompressedInline {
    /// The extent item of a file of `size` bytes.
    pub(crate) fn extent(&self, size: u64) -> FileExtent<'_> {
        debug_assert!(
            length(self.bytes.len()) < size,
            "compressed inline data is smaller than the file"
        );
        FileExtent {
            generation: Generation(0),
            ram_bytes: size,
            compression: self.compression,
            body: ExtentBody::Inline(&self.bytes),
        }
    }
}
