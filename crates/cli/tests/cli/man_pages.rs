//! The man pages in the repository are those that `man` writes from the clap definition.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::command::butternut;

fn pages(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read_to_string(entry.path()).unwrap())
    });
    named.filter(|(name, _)| name.ends_with(".1") || name.ends_with(".7")).collect()
}

#[test]
fn man_pages_are_current() {
    let made = tempfile::tempdir().unwrap();
    butternut(&["man", made.path().to_str().unwrap()]).ok();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
    let (made, kept) = (pages(made.path()), pages(&kept));
    for (name, page) in &made {
        assert!(
            kept.get(name) == Some(page),
            "docs/man/{name} is old: run `cargo run -p butternut-cli -- man docs/man`"
        );
    }
    let gone: Vec<&String> = kept.keys().filter(|name| !made.contains_key(*name)).collect();
    assert!(gone.is_empty(), "pages of removed commands: {gone:?}");
    assert!(made.contains_key("butternut-subvolume-list.1"));
}

#[test]
fn every_shell_gets_completions() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(butternut(&["completions", shell]).ok().contains("butternut"), "{shell}");
    }
}
