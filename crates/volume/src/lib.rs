//! Floor 2: logical addresses over devices, by profile. Never reads a tree.
