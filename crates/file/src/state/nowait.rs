//! [`NowaitResources`]: what a nowait write has reserved before it begins.

use butternut_sys::frames::Frame;

/// What a nowait write has reserved before it begins. Its data and metadata space are in the file's
/// reservations.
#[derive(Debug, Default)]
pub(crate) struct NowaitResources {
    /// Frames for its blocks.
    pub(crate) frames: Vec<Frame>,
    /// The blocks that it changes in part. Pages that are in use are not evicted.
    pub(crate) edges: Vec<Frame>,
}
