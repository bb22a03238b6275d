//! `send`: what it refuses, and streams of volumes that Butternut made.

use super::command::{butternut, command, run, shell};

#[test]
fn streams_are_written_to_stdout_and_to_files() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("volume.img");
    let image = image.to_str().unwrap();
    butternut(&["mkfs", "--size", "256M", image]).ok();
    butternut(&["subvolume", "create", image, "/w"]).ok();
    let file = scratch.path().join("file");
    std::fs::write(&file, vec![7; 100_000]).unwrap();
    butternut(&["import", image, file.to_str().unwrap(), "/w/file"]).ok();
    butternut(&["subvolume", "snapshot", "-r", image, "/w", "/a"]).ok();
    butternut(&["mv", image, "/w/file", "/w/moved"]).ok();
    butternut(&["mkdir", image, "/w/dir"]).ok();
    butternut(&["subvolume", "snapshot", "-r", image, "/w", "/b"]).ok();
    let stream = scratch.path().join("stream");
    let stream = stream.to_str().unwrap();
    let dump = |stream: &str| run("btrfs", &["receive", "--dump", "-f", stream].map(AsRef::as_ref));

    let whole = butternut(&["send", image, "/a"]);
    assert_eq!((whole.code, whole.err.as_str()), (Some(0), ""));
    assert!(whole.bytes.len() > 100_000);
    std::fs::write(stream, &whole.bytes).unwrap();
    let text = dump(stream);
    assert!(text.contains("mkfile") && text.contains("./a/file"), "{text}");

    assert_eq!(butternut(&["send", "-p", "/a", "-f", stream, image, "/b"]).ok(), "");
    let difference = std::fs::read(stream).unwrap();
    let text = dump(stream);
    assert!(text.contains("rename") && !text.contains("write"), "{text}");
    butternut(&["send", "-c", "/a", "-f", stream, image, "/b"]).ok();
    assert_eq!(std::fs::read(stream).unwrap(), difference);
    butternut(&["send", "--no-data", "--proto", "2", "-f", stream, image, "/a"]).ok();
    let text = dump(stream);
    assert!(text.contains("update_extent") && !text.contains("write"), "{text}");

    let refused = butternut(&["send", image, "/w"]).failure();
    assert!(refused.contains("/w: operation not permitted: only read-only"), "{refused}");
    let refused = butternut(&["send", image, "/a/file"]).failure();
    assert!(refused.contains("not a subvolume"), "{refused}");
    let refused = butternut(&["send", "--compressed-data", "--proto", "1", image, "/a"]).failure();
    assert!(refused.contains("compressed data needs protocol 2"), "{refused}");
    butternut(&["subvolume", "create", image, "/x"]).ok();
    butternut(&["property", "set", image, "/x", "ro", "true"]).ok();
    let refused = butternut(&["send", "-c", "/x", image, "/b"]).failure();
    assert!(refused.contains("name the parent with -p"), "{refused}");
    let program = command().get_program().to_str().unwrap().to_owned();
    let said = shell(&format!("script -qec '{program} send {image} /a' /dev/null || true"));
    assert!(said.contains("a stream is not written to a terminal"), "{said}");
}
