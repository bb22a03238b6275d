//! zstd extents: one frame per extent, then padding to the sector.
//!
//! ```text
//! 0                         n          disk_bytes
//! | frame: header, blocks   | padding |
//! ```
//!
//! 1. Only the first frame is read; what follows it is padding.
//! 2. Output is at most `out.len()` bytes. A frame that holds less is followed by zeroes.
//! 3. A frame that the end of the extent truncates is rejected. (The kernel would return zeroes for
//!    the missing data; it writes no such frame.)
//! 4. The window of a frame is at most 128 KiB, which bounds the memory of a decoder.

use butternut_format::refused::{Refused, require};
use zstd::zstd_safe::{
    self, CCtx, CParameter, DCtx, DParameter, ErrorCode, InBuffer, OutBuffer, ResetDirective,
    get_error_name,
};

/// Law 4.
const WINDOW_LOG_MAX: u32 = 17;

/// A reusable decoder.
pub(super) struct Frames(DCtx<'static>);

impl Frames {
    pub(super) fn new() -> Result<Self, Refused> {
        let mut context = DCtx::try_create()
            .ok_or_else(|| Refused::new("zstd context", "none", "memory for a decoder"))?;
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(refused)?;
        Ok(Self(context))
    }

    /// Fills `out` from the start of the first frame in `input`; see the laws above.
    pub(super) fn fill(&mut self, input: &[u8], out: &mut [u8]) -> Result<(), Refused> {
        let produced = match whole_frame(input, out.len()) {
            Some(frame) => self.0.decompress(out, frame).map_err(refused)?,
            None => self.stream(input, out)?,
        };
        out.get_mut(produced..).unwrap_or_default().fill(0);
        Ok(())
    }

    /// Decodes block by block, until `out` is full or the frame ends.
    fn stream(&mut self, input: &[u8], out: &mut [u8]) -> Result<usize, Refused> {
        self.0.reset(ResetDirective::SessionOnly).map_err(refused)?;
        let bytes_wanted = out.len();
        let mut input = InBuffer::around(input);
        let mut out = OutBuffer::around(out);
        while out.pos() < bytes_wanted {
            let before = (input.pos(), out.pos());
            let hint = self.0.decompress_stream(&mut out, &mut input).map_err(refused)?;
            if hint == 0 {
                break;
            }
            let moved = before != (input.pos(), out.pos());
            require(moved, "zstd frame", "an early end of input", "a last block")?;
        }
        Ok(out.pos())
    }
}

/// A reusable encoder.
pub(super) struct Compressor {
    context: CCtx<'static>,
    level: i32,
}

impl Compressor {
    /// Returns `None` where there is no memory for one.
    pub(super) fn new(level: i32) -> Option<Self> {
        let mut context = CCtx::try_create()?;
        context.set_parameter(CParameter::CompressionLevel(level)).ok()?;
        Some(Self { context, level })
    }

    pub(super) fn level(&self) -> i32 {
        self.level
    }

    /// Compresses all of `input`, at most 128 KiB, into the front of `out` as one frame that states
    /// its content size, and returns the number of bytes; `None` where it does not fit. The window
    /// of such a frame is no longer than its content (law 4).
    pub(super) fn encode(&mut self, input: &[u8], out: &mut [u8]) -> Option<usize> {
        self.context.compress2(out, input).ok()
    }
}

/// The first frame, where it states its content size and all of it fits `bytes_max` bytes: such a
/// frame is decoded in one pass straight into its place.
fn whole_frame(input: &[u8], bytes_max: usize) -> Option<&[u8]> {
    let content = zstd_safe::get_frame_content_size(input).ok().flatten()?;
    if usize::try_from(content).ok()? > bytes_max {
        return None;
    }
    input.get(..zstd_safe::find_frame_compressed_size(input).ok()?)
}

fn refused(code: ErrorCode) -> Refused {
    Refused::new("zstd frame", get_error_name(code), "a valid frame")
}
