//! The programs in `examples/` do what their headers say.

#![allow(dead_code, reason = "the examples' own `main` is not called")]
#![allow(clippy::unwrap_used, reason = "a test's helpers are tests")]

#[path = "../examples/copy_out.rs"]
mod copy_out;
mod image;
#[path = "../examples/list_tree.rs"]
mod list_tree;
#[path = "../examples/poll_queue.rs"]
mod poll_queue;

use butternut::format::checksum::ChecksumKind;
use image::{Image, image_of};
use std::ffi::OsString;
use std::fs;

/// 1 MiB and a part of a block, with a hole of a MiB in front.
fn content() -> Vec<u8> {
    let bytes = (0..(1 << 20) + 999_u32).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]);
    [vec![0; 1 << 20], bytes.collect()].concat()
}

fn volume() -> Image {
    image_of(&[], |root| {
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("dir/file"), content()).unwrap();
    })
}

fn arguments(image: &Image, others: &[&str]) -> impl Iterator<Item = OsString> {
    let others: Vec<OsString> = others.iter().map(OsString::from).collect();
    [image.path.clone().into_os_string()].into_iter().chain(others)
}

#[test]
fn list_tree_lists_every_file() {
    let mut out = Vec::new();
    list_tree::run(arguments(&volume(), &[]), &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("/dir\n") && out.contains(" 2098151 /dir/file\n"), "{out}");
    assert!(list_tree::run([].into_iter(), &mut Vec::new()).is_err());
}

#[test]
fn copy_out_copies_a_file() {
    let image = volume();
    let copy = image.path.with_extension("copy");
    copy_out::run(arguments(&image, &["dir/file", copy.to_str().unwrap()])).unwrap();
    assert!(fs::read(copy).unwrap() == content());
}

#[test]
fn poll_queue_reads_a_file_in_an_event_loop() {
    let mut out = Vec::new();
    poll_queue::run(arguments(&volume(), &["/dir/file"]), &mut out).unwrap();
    let digest = ChecksumKind::Crc32c.compute(&content());
    let digest = u32::from_le_bytes(digest[..4].try_into().unwrap());
    assert_eq!(String::from_utf8(out).unwrap(), format!("2098151 {digest:08x}\n"));
}
