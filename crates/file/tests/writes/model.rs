//! Random changes in random order: the file reads as the model, a vector of bytes, immediately,
//! after a commit and after reopening.

use crate::script::{Script, compare};
use crate::volume::{create, fresh, inode, open, state};
use butternut_format::file_extent::Compression;
use butternut_format::inode::InodeFlags;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const INO: u64 = 300;

fn check(seed: u64, reach: u64, steps: usize, flags: InodeFlags) {
    check_compressed(seed, reach, steps, flags, None);
}

fn check_compressed(
    seed: u64,
    reach: u64,
    steps: usize,
    flags: InodeFlags,
    property: Option<Compression>,
) {
    let seed = seed + std::env::var("BUTTERNUT_SEED").map_or(0, |more| more.parse().unwrap());
    let device = fresh(512);
    create(&open(&device), INO, flags);
    let mut source = open(&device);
    create(&source, INO, flags);
    let mut model = Vec::new();
    let mut script = Script::new(seed, reach);
    let mut file = state(&source, INO);
    file.set_property(property);
    for number in 0..steps {
        let went = catch_unwind(AssertUnwindSafe(|| {
            script.run(&source, &mut file, &mut model);
            script.look(&source, &file, &model);
        }));
        if let Err(panic) = went {
            let log = &script.log[script.log.len().saturating_sub(12)..];
            let said = format!("seed {seed}, step {number}, after {log:#?}\n");
            std::io::stderr().write_all(said.as_bytes()).unwrap();
            resume_unwind(panic);
        }
        if number % 97 == 96 {
            file.merge(&mut |_| {}).unwrap();
            source.forest().commit().unwrap();
            let (bytes, size) = (file.bytes_used(), file.size());
            drop(file);
            drop(source);
            source = open(&device);
            assert_eq!((inode(&source, INO).size, inode(&source, INO).bytes_used), (size, bytes));
            file = state(&source, INO);
            file.set_property(property);
            compare(&source, &file, &model);
        }
    }
}

#[test]
fn files_of_a_few_blocks_match_the_model() {
    for seed in 0..12 {
        check(seed, 12_000, 400, InodeFlags::default());
    }
}

#[test]
fn files_of_megabytes_match_the_model() {
    for seed in 100..104 {
        check(seed, 5 << 20, 300, InodeFlags::default());
    }
}

#[test]
fn files_written_in_place_match_the_model() {
    let flags = InodeFlags::NODATACOW.with(InodeFlags::NODATASUM);
    for seed in 200..204 {
        check(seed, 1 << 20, 300, flags);
        check(seed + 50, 9000, 200, flags);
    }
}

#[test]
fn compressed_files_match_the_model() {
    for (number, compression) in (0..).zip([Compression::Zlib, Compression::Lzo, Compression::Zstd])
    {
        let property = Some(compression);
        check_compressed(400 + number, 5 << 20, 300, InodeFlags::default(), property);
        for seed in 0..4 {
            check_compressed(410 + 4 * number + seed, 12_000, 400, InodeFlags::default(), property);
            check_compressed(
                430 + 4 * number + seed,
                700_000,
                200,
                InodeFlags::default(),
                property,
            );
        }
    }
}

#[test]
fn files_that_give_up_compression_match_the_model() {
    for seed in 0..6 {
        check(450 + seed, 700_000, 300, InodeFlags::COMPRESS);
        check(460 + seed, 12_000, 300, InodeFlags::COMPRESS);
    }
}

#[test]
fn files_without_checksums_match_the_model() {
    check(300, 1 << 20, 300, InodeFlags::NODATASUM);
}
