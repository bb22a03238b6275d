//! `SEEK_DATA` and `SEEK_HOLE`, compared with the kernel at many offsets.

use crate::content::fill;
use crate::image::{Image, is_skipped, view};
use butternut_file::{SourceOptions, seek_data, seek_hole};

#[test]
fn data_and_holes_begin_where_the_kernel_says() {
    if is_skipped("data_and_holes_begin_where_the_kernel_says") {
        return;
    }
    for mkfs in ["-O no-holes", "-O ^no-holes"] {
        let image = Image::make(256, mkfs);
        let files = fill(&image);
        let source = image.open(SourceOptions::default());
        for file in &files {
            let view = view(&source, file.ino);
            for (at, data, hole) in &file.seeks {
                let name = &file.name;
                assert_eq!(seek_data(&view, *at).unwrap(), *data, "{mkfs} {name}: data from {at}");
                assert_eq!(seek_hole(&view, *at).unwrap(), *hole, "{mkfs} {name}: hole from {at}");
            }
        }
    }
}
