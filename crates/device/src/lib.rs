//! Floor 1: sectors in, sectors out. Never retries, caches, or knows btrfs.
