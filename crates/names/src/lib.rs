//! Floor 5: directories, links and extended attributes. Never touches file data.
