//! Floor 5: the bytes of a file. Never knows paths or open inodes.
