//! The rule of import cycles finds planted cycles, and nothing else.

use xtask::tidy::circles::graph::Graph;
use xtask::tidy::finding::Rule;
use xtask::tidy::tree::Tree;
use xtask::tidy::{circles, findings};

const MANIFEST: (&str, &str) = (
    "crates/a/Cargo.toml",
    "[package]\nname = \"a\"\n[package.metadata]\nfloor = 0\n[lints]\nworkspace = true\n",
);
const ROOT: &str = "//! a\nmod b;\nmod c;\nmod d;\nmod e;\n";

fn crate_of(files: &[(&str, &str)]) -> Tree {
    let paths: Vec<String> = files.iter().map(|(name, _)| format!("crates/a/src/{name}")).collect();
    let mut all = vec![MANIFEST];
    all.extend(paths.iter().zip(files).map(|(path, (_, text))| (path.as_str(), *text)));
    Tree::of(&all)
}

/// The edges as `from > to: name`, without folder and extension.
fn edges(files: &[(&str, &str)]) -> Vec<String> {
    let short =
        |path: &str| path.trim_start_matches("crates/a/src/").trim_end_matches(".rs").to_owned();
    Graph::read(&crate_of(files), "crates/a/src/lib.rs")
        .edges
        .iter()
        .map(|edge| format!("{} > {}: {}", short(&edge.from), short(&edge.to), edge.name))
        .collect()
}

#[test]
fn four_files_that_import_one_another_are_refused() {
    let c = "//! c\nuse crate::d::D;\npub struct C;\n";
    let d = "//! d\nuse crate::e::{self, E};\npub struct D;\n";
    let files = |e: &'static str| {
        crate_of(&[
            ("lib.rs", ROOT),
            ("b.rs", "//! b\nuse crate::c::C;\npub struct B;\n"),
            ("c.rs", c),
            ("d.rs", d),
            ("e.rs", e),
        ])
    };
    let round = files("//! e\npub struct E(super::b::B);\n");
    let found = findings(&round);
    assert_eq!(found.iter().map(|finding| finding.rule).collect::<Vec<_>>(), [Rule::Circle]);
    let text = found[0].to_string();
    assert!(text.starts_with("crates/a/src/b.rs:2: an import circle of 4 files: "), "{text}");
    assert!(text.contains("crates/a/src/e.rs:2 -> crates/a/src/b.rs: super::b::B"), "{text}");
    let three = files("//! e\npub struct E(super::c::C);\n");
    assert!(circles::check(&three).is_empty());
    assert!(circles::check(&files("//! e\npub struct E;\n")).is_empty());
}

#[test]
fn an_edge_leads_to_the_file_that_defines_the_name() {
    let found = edges(&[
        ("lib.rs", "//! a\nmod b;\nmod c;\nmod d;\npub use b::inner::Deep;\npub use c::*;\n"),
        ("b.rs", "//! b\npub(crate) mod inner;\npub(crate) use inner::Deep as Renamed;\n"),
        ("b/inner.rs", "//! inner\npub struct Deep;\npub fn deep() {}\n"),
        ("c.rs", "//! c\nuse crate::Deep;\npub struct Wide;\n"),
        (
            "d.rs",
            "//! d\nuse crate::b::Renamed;\nuse crate::b;\n\
             fn d(_: crate::Wide) { b::inner::deep() }\n",
        ),
    ]);
    assert_eq!(
        found,
        ["c > b/inner: crate::Deep", "d > b/inner: crate::b::Renamed", "d > c: crate::Wide"]
    );
}

#[test]
fn a_parent_that_only_declares_and_exports_imports_nothing() {
    let parent =
        |code: &str| format!("//! b\nmod inner;\npub use inner::Deep;\npub struct B;\n{code}");
    let inner = ("b/inner.rs", "//! inner\npub struct Deep(super::B);\n");
    let of = |code: &str| edges(&[("lib.rs", "//! a\nmod b;\n"), ("b.rs", &parent(code)), inner]);
    assert_eq!(of(""), ["b/inner > b: super::B"]);
    let uses = "fn f(_: Deep) {}\n";
    assert_eq!(of(uses), ["b > b/inner: inner::Deep", "b/inner > b: super::B"]);
}

#[test]
fn tests_comments_and_strings_are_no_code() {
    let b = "//! b [`crate::c::C`]\n/* crate::c::C */\nconst A: &str = \"crate::c::C\";\n\
             const B: &str = r#\"crate::\"c::C\"#;\nconst C: char = '\"';\n\
             #[cfg(test)]\nuse crate::c::{C, D};\n#[cfg(test)]\nmod tests;\n\
             struct S {\n    #[cfg(test)]\n    c: crate::c::C,\n}\n\
             #[test]\nfn t() -> [crate::c::C; 1] {\n    crate::c::c()\n}\n\
             fn life<'a>(d: &'a crate::d::D) {}\n";
    let found = edges(&[
        ("lib.rs", "//! a\nmod b;\nmod c;\nmod d;\n"),
        ("b.rs", b),
        ("b/tests.rs", "use crate::c::C;\n"),
        ("c.rs", "//! c\npub struct C;\npub struct D;\n"),
        ("d.rs", "//! d\npub struct D;\n"),
    ]);
    assert_eq!(found, ["b > d: crate::d::D"]);
}

#[test]
fn modules_in_a_file_belong_to_it() {
    let b = "//! b\nmod inner {\n    use super::super::c::C;\n\
             pub fn f() {\n        use crate::d::D;\n    }\n}\n";
    let found = edges(&[
        ("lib.rs", "//! a\nmod b;\nmod c;\nmod d;\n"),
        ("b.rs", b),
        ("c.rs", "//! c\nmacro_rules! m { () => {} }\nm! { pub struct C; }\n"),
        ("d.rs", "//! d\npub struct D;\n"),
    ]);
    assert_eq!(found, ["b > c: super::super::c::C", "b > d: crate::d::D"]);
}
