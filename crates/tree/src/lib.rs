//! Floor 4: copy-on-write B-trees. Never knows files or names.
