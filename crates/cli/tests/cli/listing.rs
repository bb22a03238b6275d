//! `ls`, `cat`, `stat` and `find`: their output as text and as JSON.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use super::command::{butternut, command};
use super::hostile;
use super::image::{kernel, kernel_tests_enabled, plain};

fn on_plain(words: &[&str]) -> super::command::CommandOutput {
    let image = plain().0.to_str().unwrap();
    let words: Vec<&str> =
        words.iter().map(|word| if *word == "IMG" { image } else { word }).collect();
    butternut(&words)
}

fn json_of(words: &[&str]) -> Value {
    let mut words = words.to_vec();
    words.push("--json");
    serde_json::from_str(&on_plain(&words).ok()).unwrap()
}

#[test]
fn ls_lists_names_in_order() {
    assert_eq!(on_plain(&["ls", "IMG"]).ok(), "dirlink\ndocs\nempty\nhello.txt\nodd\nname\n");
    assert_eq!(on_plain(&["ls", "IMG", "docs/deep"]).ok(), "");
    assert_eq!(on_plain(&["ls", "-a", "IMG", "docs/deep"]).ok(), ".\n..\n.hidden\n");
    assert_eq!(on_plain(&["ls", "IMG", "hello.txt"]).ok(), "hello.txt\n");
    assert_eq!(on_plain(&["ls", "-d", "IMG", "docs"]).ok(), "docs\n");
}

#[test]
fn ls_null_ends_each_name_with_a_zero_byte() {
    let names = on_plain(&["ls", "-0", "IMG"]).ok();
    assert_eq!(names, "dirlink\0docs\0empty\0hello.txt\0odd\nname\0");
}

#[test]
fn ls_long_has_the_format_of_ls() {
    let lines = on_plain(&["ls", "-l", "IMG", "docs"]).ok();
    let again = lines.lines().find(|line| line.ends_with(" again")).unwrap();
    assert!(again.starts_with("-rw-r----- 2 "), "{again}");
    let link = lines.lines().find(|line| line.contains(" link ")).unwrap();
    assert!(link.starts_with("lrwxrwxrwx") && link.ends_with("link -> ../hello.txt"), "{link}");
    let itself = on_plain(&["ls", "-ld", "IMG", "docs"]).ok();
    assert!(
        itself.starts_with("drwxr-x--- 1 ") && itself.contains(" 2001-02-03 04:05 "),
        "{itself}"
    );
}

#[test]
fn ls_recursive_lists_subdirectories() {
    let text = on_plain(&["ls", "-R", "IMG", "docs"]).ok();
    assert_eq!(text, "docs:\nagain\ndeep\nlink\nnumbers\n\ndocs/deep:\n");
}

#[test]
fn cat_prints_files_and_parts_of_them() {
    let numbers = std::fs::read(plain().1.join("docs/numbers")).unwrap();
    assert_eq!(on_plain(&["cat", "IMG", "docs/numbers"]).bytes, numbers);
    assert_eq!(on_plain(&["cat", "IMG", "docs/link", "hello.txt"]).ok(), "hello\nhello\n");
    let part = on_plain(&["cat", "IMG", "docs/numbers", "--offset", "4K", "--length", "100"]);
    assert_eq!(part.bytes, numbers[4096..4196]);
    assert_eq!(on_plain(&["cat", "IMG", "hello.txt", "--offset", "1G"]).ok(), "");
    let value = json_of(&["cat", "IMG", "hello.txt"]);
    assert_eq!(value, json!([{ "path": "hello.txt", "offset": 0, "data": "aGVsbG8K" }]));
}

#[test]
fn cat_continues_after_an_error() {
    let ran = on_plain(&["cat", "IMG", "nope", "hello.txt"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), "hello\n"));
    assert!(ran.err.starts_with("butternut: nope: no such file or directory ("), "{}", ran.err);
}

#[test]
fn stat_shows_attributes_and_extents() {
    let text = on_plain(&["stat", "IMG", "hello.txt", "--extents"]).ok();
    assert!(text.contains("  File: hello.txt\n  Size: 6 "), "{text}");
    assert!(text.contains("Access: (0640/-rw-r-----)"), "{text}");
    assert!(text.contains("inline"), "{text}");
    let value = json_of(&["stat", "IMG", "docs/numbers", "-e"]);
    assert_eq!(value[0]["type"], "file");
    assert_eq!(value[0]["subvolume"], 5);
    assert_eq!(value[0]["extents"][0]["kind"], "regular");
    let link = json_of(&["stat", "IMG", "docs/link"]);
    assert_eq!((&link[0]["type"], &link[0]["target"]), (&json!("symlink"), &json!("../hello.txt")));
    assert_eq!(json_of(&["stat", "-L", "IMG", "docs/link"])[0]["size"], 6);
}

#[test]
fn a_placeholder_belongs_to_its_snapshot() {
    if !kernel_tests_enabled("a_placeholder_belongs_to_its_snapshot") {
        return;
    }
    let image = kernel().to_str().unwrap();
    let json = |words: &[&str]| -> Value {
        serde_json::from_str(&butternut(&[words, &["--json"]].concat()).ok()).unwrap()
    };
    let snapshot = &json(&["inspect", "rootid", image, "/snap-rw"])["subvolume"];
    assert!(snapshot.as_u64().is_some_and(|id| (256..512).contains(&id)), "{snapshot}");
    let left_out = &json(&["stat", image, "/snap-rw/nested"])[0];
    assert_eq!((&left_out["subvolume"], &left_out["inode"]), (snapshot, &json!(2)));
    assert_eq!(&json(&["inspect", "rootid", image, "/snap-rw/nested"])["subvolume"], snapshot);
    let text = butternut(&["stat", image, "/snap-rw/nested"]).ok();
    assert!(text.contains(&format!("Subvol: {snapshot} ")), "{text}");
}

#[test]
fn find_selects_by_name_kind_size_and_depth() {
    let check = |words: &[&str]| {
        let mut all = vec!["find", "IMG", "/"];
        all.extend_from_slice(words);
        let text = on_plain(&all).ok();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(check(&["--name", "*.txt"]), ["/hello.txt"]);
    assert_eq!(check(&["--type", "l"]), ["/dirlink", "/docs/link"]);
    assert_eq!(check(&["--type", "v"]), ["/"]);
    assert_eq!(check(&["--size", "+64K", "--type", "f"]), ["/docs/numbers"]);
    assert_eq!(check(&["--size", "-0", "--type", "f"]), ["/empty"]);
    assert_eq!(check(&["--type", "d", "--max-depth", "1"]), ["/", "/docs"]);
    assert_eq!(check(&["--min-depth", "3"]), ["/docs/deep/.hidden"]);
    assert_eq!(on_plain(&["find", "IMG", "hello.txt", "-0"]).ok(), "hello.txt\0");
}

#[test]
fn json_listings_have_the_same_names() {
    let value = json_of(&["ls", "IMG"]);
    let names: Vec<&str> =
        value.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["dirlink", "docs", "empty", "hello.txt", "odd\nname"]);
    assert_eq!(json_of(&["find", "IMG", "docs", "--name", "deep"])[0]["path"], "docs/deep");
}

#[test]
fn a_closed_pipe_is_an_error_only_where_the_output_is_data() {
    let image = plain().0.to_str().unwrap();
    // A part of a file is not the file: the status is that of a program that SIGPIPE has ended.
    let commands = [
        (vec!["ls", "-lR", image], Some(0)),
        (vec!["cat", image, "docs/numbers"], Some(141)),
        (vec!["cat", image, "hello.txt"], Some(141)),
        (vec!["cat", "--json", image, "hello.txt"], Some(141)),
    ];
    for (words, want) in commands {
        let mut child =
            command().args(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let have = (output.status.code(), output.stderr.as_slice());
        assert_eq!(have, (want, &b""[..]), "{words:?}");
    }
}

/// As by `butternut ls -l VOLUME | head -1`.
#[test]
fn a_failure_shows_in_the_status_also_where_nothing_reads_the_output() {
    const MANY: usize = 2000;
    let scratch = tempfile::tempdir().unwrap();
    let image = hostile::volume(scratch.path(), |fs| {
        fs.mkdir(fs.root(), b"a-lost", &hostile::new()).unwrap();
        for n in 0..MANY {
            let name = format!("{n:0>60}");
            let id = fs.create(fs.root(), name.as_bytes(), &hostile::new()).unwrap();
            if n == 0 {
                fs.open_file(id).unwrap().write_at(0, &vec![7; 1 << 20]).unwrap();
            }
        }
    });
    // The entry of the lost directory leads to no inode.
    hostile::rewrite_items(&image, |_, data| {
        let is_it = data.ends_with(b"a-lost") && data.len() == 30 + b"a-lost".len();
        if is_it {
            data[..8].copy_from_slice(&99_999_u64.to_le_bytes());
        }
        is_it
    });
    let image = image.to_str().unwrap();
    let first = format!("{:0>60}", 0);
    let many = vec!["/"; MANY];
    let commands = vec![
        vec!["ls", "-l", image],
        vec!["ls", "-l", "--json", image],
        vec!["ls", "-lR", image],
        vec!["find", image],
        vec!["filesystem", "du", image],
        vec!["cat", image, "none", &first],
        [vec!["stat", image, "none"], many].concat(),
    ];
    let outcomes = |commands: &[Vec<&str>]| -> Vec<(String, Option<i32>)> {
        let run = |words: &Vec<&str>| {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let ran = command().args(words).stdout(writer).output().unwrap();
            assert!(!ran.stderr.is_empty(), "{words:?}");
            (words[..2].join(" "), ran.status.code())
        };
        commands.iter().map(run).collect()
    };
    let mut found = outcomes(&commands);
    // No leaf of the subvolume has a valid copy, except the one with its root directory. The output
    // before the first of them is shorter than the buffer of stdout.
    let mut bytes = fs::read(image).unwrap();
    let fsid = bytes[65536 + 0x20..65536 + 0x30].to_vec();
    let (blocks, _) = bytes.as_chunks_mut::<16384>();
    let is_leaf = |block: &[u8]| block[0x20..0x30] == fsid && block[88] == 5 && block[100] == 0;
    let has_root = |block: &[u8]| block[101..110] == [0, 1, 0, 0, 0, 0, 0, 0, 1];
    for block in blocks.iter_mut().skip(64) {
        if is_leaf(&block[..]) && !has_root(&block[..]) {
            block[16000] ^= 1;
        }
    }
    fs::write(image, &bytes).unwrap();
    found.extend(outcomes(&[vec!["inspect", "dump-tree", "-t", "5", image]]));
    let lost: Vec<_> = found.iter().filter(|(_, code)| *code != Some(1)).collect();
    assert!(lost.is_empty(), "{lost:?}");
}
