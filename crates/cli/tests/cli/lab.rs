//! `lab` and `top`: become the program butternut-lab.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::command::CommandOutput;

fn run(program: &Path, path: &Path, words: &[&str]) -> CommandOutput {
    Command::new(program).env("PATH", path).args(words).output().unwrap().into()
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn lab_is_found_beside_the_program_and_then_on_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let (bin, other) = (dir.path().join("bin"), dir.path().join("other"));
    fs::create_dir(&bin).unwrap();
    fs::create_dir(&other).unwrap();
    let program = bin.join("butternut");
    fs::copy(env!("CARGO_BIN_EXE_butternut"), &program).unwrap();

    let missing = run(&program, &other, &["lab", "list"]).failure();
    let expected = "butternut: butternut-lab: is not installed beside butternut or on the PATH \
                    (install it with: cargo install --path lab --bin butternut-lab)";
    assert_eq!(missing, expected);

    script(&other.join("butternut-lab"), "echo path \"$@\"; exit 3");
    let words = ["lab", "run", "--suite", "nosec", "--json", "-q", "--help"];
    let ran = run(&program, &other, &words);
    assert_eq!(ran.code, Some(3), "the status is that of the program");
    assert_eq!(ran.out, "path run --suite nosec --json -q --help\n");

    script(&bin.join("butternut-lab"), "echo beside \"$@\"");
    assert_eq!(run(&program, &other, &["lab", "list"]).ok(), "beside list\n");
    let top = run(&program, &other, &["top", "--once", "-i", "2", "/mnt"]).ok();
    let own = program.canonicalize().unwrap();
    let expected =
        format!("beside top --interval=2 --once --butternut {} -- /mnt\n", own.display());
    assert_eq!(top, expected);
}
