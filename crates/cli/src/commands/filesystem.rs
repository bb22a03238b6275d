//! Commands for a volume as a whole: label, devices, space.

pub(crate) mod df;
pub(crate) mod du;
pub(super) mod groups;
pub(crate) mod label;
pub(crate) mod resize;
pub(crate) mod show;
pub(crate) mod sync;
pub(crate) mod usage;
