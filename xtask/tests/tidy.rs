//! Tidy finds planted breaches of each law, and none in the repository.

use xtask::tidy::tree::Tree;
use xtask::tidy::{Exception, Rule, excepted, findings, repository, tidy};

const GROUND: &str = "[package]\nname = \"ground\"\n[package.metadata]\nfloor = 0\n\
                      [lints]\nworkspace = true\n";

fn manifest(name: &str, floor: u32, import: &str) -> String {
    format!(
        "[package]\nname = \"{name}\"\n[package.metadata]\nfloor = {floor}\n\
         [dependencies]\n{import}.workspace = true\n[lints]\nworkspace = true\n"
    )
}

fn rules(files: &[(&str, &str)]) -> Vec<Rule> {
    findings(&Tree::of(files)).iter().map(|finding| finding.rule).collect()
}

/// The rules broken by one source file that is the root of its crate.
fn rules_of(text: &str) -> Vec<Rule> {
    rules(&[("crates/a/Cargo.toml", GROUND), ("crates/a/src/lib.rs", text)])
}

#[test]
fn the_repository_is_tidy() {
    let found = tidy(&repository()).unwrap();
    let report: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(report.is_empty(), "{} findings\n{}", report.len(), report.join("\n"));
}

#[test]
fn a_lower_floor_may_be_imported_and_no_other() {
    let ground = ("crates/g/Cargo.toml", GROUND);
    let check = |importer: &str| rules(&[ground, ("crates/x/Cargo.toml", importer)]);
    assert_eq!(check(&manifest("upper", 3, "ground")), []);
    assert_eq!(check(&manifest("peer", 0, "ground")), [Rule::Floor]);
    let lower = manifest("lower", 2, "upper");
    let upper = manifest("upper", 4, "ground");
    let files = [("crates/l/Cargo.toml", &*lower), ("crates/u/Cargo.toml", &*upper), ground];
    assert_eq!(rules(&files), [Rule::Floor]);
}

#[test]
fn a_door_sees_floor_6_and_the_ground_only() {
    let library = manifest("butternut", 6, "ground");
    let tool = manifest("butternut-mkfs", 6, "ground");
    let middle = manifest("butternut-tree", 4, "ground");
    let door = |import: &str| {
        let door = manifest("butternut-cli", 7, import);
        let fuse = manifest("butternut-fuse", 7, "butternut");
        rules(&[
            ("crates/g/Cargo.toml", GROUND),
            ("crates/s/Cargo.toml", &library),
            ("crates/m/Cargo.toml", &tool),
            ("crates/t/Cargo.toml", &middle),
            ("crates/f/Cargo.toml", &fuse),
            ("crates/c/Cargo.toml", &door),
        ])
    };
    assert_eq!(door("butternut"), []);
    assert_eq!(door("butternut-mkfs"), []);
    assert_eq!(door("ground"), []);
    assert_eq!(door("butternut-fuse"), []);
    assert_eq!(door("butternut-tree"), [Rule::Floor]);
}

#[test]
fn a_crate_without_floor_or_lints_is_found() {
    let bare = "[package]\nname = \"bare\"\n";
    assert_eq!(rules(&[("crates/b/Cargo.toml", bare)]), [Rule::Lints, Rule::Floor]);
}

#[test]
fn shape_is_checked() {
    assert_eq!(rules_of("//! Owns a.\n"), []);
    assert_eq!(rules_of("fn a() {}\n"), [Rule::Header]);
    assert_eq!(rules_of(&"//! a\n".repeat(800)), [Rule::Length]);
    assert_eq!(rules_of(&format!("//! {}\n", "a".repeat(100))), [Rule::Width]);
    assert_eq!(rules_of("//! A \u{2192} B.\n"), [Rule::Ascii]);
    assert_eq!(rules_of("//! a\nunsafe fn a() {}\n"), [Rule::Unsafe]);
    assert_eq!(rules_of("//! No unsafe here.\nfn a() {} // unsafe\n"), []);
}

#[test]
fn of_the_fio_engine_one_file_may_be_unsafe() {
    let text = "//! a\nunsafe fn a() {}\n";
    let check = |path: &str| {
        let manifest = GROUND.replace("\"ground\"", "\"butternut-fio\"");
        let crate_ = ("crates/fio/Cargo.toml", &*manifest);
        rules(&[crate_, ("crates/fio/src/lib.rs", "//! a\nmod abi;\n"), (path, text)])
    };
    assert_eq!(check("crates/fio/src/abi.rs"), []);
    assert_eq!(check("crates/fio/build.rs"), [Rule::Unsafe]);
}

#[test]
fn a_decision_has_a_number_of_its_own() {
    let a = ("docs/decisions/0001-a.md", "# 0001: A\n");
    assert_eq!(rules(&[a, ("docs/decisions/0002-b.md", "# 0002: B\n")]), []);
    assert_eq!(rules(&[a, ("docs/decisions/0001-b.md", "# 0001: B\n")]), [Rule::Decision]);
    assert_eq!(rules(&[a, ("docs/decisions/0002-b.md", "# 0001: B\n")]), [Rule::Decision]);
}

#[test]
fn plan_talk_is_found() {
    assert_eq!(rules_of(concat!("//! TO", "DO: later\n")), [Rule::Word]);
    assert_eq!(rules_of(concat!("//! done in sta", "ge 2\n")), [Rule::Word]);
    assert_eq!(rules_of("//! A stage of the pipeline; phase one is a word too.\n"), []);
}

#[test]
fn banned_calls_name_their_replacement() {
    let text = "//! a\nfn a() { std::process::exit(1) }\n";
    let tree = Tree::of(&[("crates/a/Cargo.toml", GROUND), ("crates/a/src/lib.rs", text)]);
    let found = findings(&tree);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].to_string(),
        "crates/a/src/lib.rs:2: process::exit is banned here: use return ExitCode from main"
    );
    let in_test = "//! a\n#[cfg(test)]\nmod tests { fn a() { std::process::exit(1) } }\n";
    assert_eq!(rules_of(in_test), []);
}

#[test]
fn a_file_that_no_mod_reaches_is_dead() {
    let check = |root: &str| {
        rules(&[
            ("crates/a/Cargo.toml", GROUND),
            ("crates/a/src/lib.rs", root),
            ("crates/a/src/b.rs", "//! b\nmod c;\n"),
            ("crates/a/src/b/c.rs", "//! c\n"),
            ("crates/a/tests/t.rs", "//! t\n"),
        ])
    };
    assert_eq!(check("//! a\npub mod b;\n"), []);
    assert_eq!(check("//! a\n"), [Rule::Dead, Rule::Dead]);
}

#[test]
fn junk_drawers_are_refused() {
    let files = [
        ("crates/a/Cargo.toml", GROUND),
        ("crates/a/src/lib.rs", "//! a\nmod utils;\n"),
        ("crates/a/src/utils.rs", "//! a\n"),
    ];
    assert_eq!(rules(&files), [Rule::FileName]);
}

#[test]
fn an_exception_needs_a_reason_and_a_use() {
    let tree = Tree::of(&[("crates/a/Cargo.toml", GROUND), ("crates/a/src/lib.rs", "fn a() {}\n")]);
    let except = |reason| {
        let one = [Exception { path: "crates/a/src/lib.rs", rule: Rule::Header, reason }];
        excepted(&findings(&tree), &one).iter().map(|f| f.rule).collect::<Vec<_>>()
    };
    assert_eq!(except("generated"), []);
    assert_eq!(except(""), [Rule::Header, Rule::Exception]);
    let unused = [Exception { path: "crates/a/src/lib.rs", rule: Rule::Dead, reason: "because" }];
    assert_eq!(excepted(&findings(&tree), &unused).len(), 2);
}
