//! Floor 5: a file's bytes. Never knows paths, names or open handles.

pub mod compress;
