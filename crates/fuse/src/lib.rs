//! Floor 7, a door: FUSE requests in, replies out. Never decides an errno or keeps a cache.
