//! Tests of the history and its index: the records are the truth.

use super::*;
use crate::made::{Made, about};

fn history(dir: &Path) -> History {
    History::open(dir).expect("a history")
}

fn two_runs(dir: &Path) {
    for (id, started, level) in
        [("b", "2026-01-02T00:00:00Z", 90.0), ("a", "2026-01-01T00:00:00Z", 100.0)]
    {
        let values = about(level);
        let cells: &[(&str, &str, &[f64])] = &[("s/x/jobs=1", "raw", &values)];
        Made { id, started, cells }.write(dir);
    }
}

fn ids(history: &History) -> Vec<String> {
    history.runs().expect("runs").into_iter().map(|run| run.id).collect()
}

#[test]
fn runs_are_listed_by_time_and_cells_found_by_row() {
    let dir = tempfile::tempdir().expect("a directory");
    two_runs(dir.path());
    let history = history(dir.path());
    assert_eq!(ids(&history), ["a", "b"]);
    let run = &history.runs().expect("runs")[0];
    assert!(run.is_complete && run.samples == 6 && run.revision == "a00000000000", "{run:?}");
    for row in ["s/x/jobs=1", "s/x", "s", "jobs=1"] {
        let points = history.points(row).expect("points");
        assert_eq!(points.len(), 2, "{row}");
        assert_eq!(points[1].values, about(90.0));
    }
    assert!(history.points("no such").expect("points").is_empty());
}

#[test]
fn changed_new_and_removed_records_are_noticed() {
    let dir = tempfile::tempdir().expect("a directory");
    two_runs(dir.path());
    assert_eq!(ids(&history(dir.path())), ["a", "b"]);
    std::fs::remove_file(dir.path().join("a.jsonl")).expect("removed");
    let values = about(50.0);
    let cells: &[(&str, &str, &[f64])] = &[("s/y", "raw", &values)];
    let writer = Made { id: "c", started: "2026-01-03T00:00:00Z", cells }.begin(dir.path());
    let second = history(dir.path());
    assert_eq!(ids(&second), ["b", "c"]);
    assert!(second.points("s/y").expect("points").is_empty(), "the run is not complete");
    drop(writer);
    let (mut writer, _) = record::Writer::resume(dir.path(), "c").expect("resumed");
    writer.append(&crate::made::end()).expect("appended");
    assert_eq!(history(dir.path()).points("s/y").expect("points").len(), 1);
}

#[test]
fn a_damaged_or_foreign_index_is_made_again() {
    let dir = tempfile::tempdir().expect("a directory");
    two_runs(dir.path());
    let whole = history(dir.path()).points("s").expect("points");
    let index = dir.path().join(INDEX);
    let bytes = std::fs::read(&index).expect("read");
    for length in [0, 10, 100, 5000, bytes.len() / 2] {
        std::fs::write(&index, &bytes[..length.min(bytes.len())]).expect("cut");
        assert_eq!(history(dir.path()).points("s").expect("points"), whole, "cut to {length}");
    }
    std::fs::write(&index, b"no database, but long enough to look at it, is it not").expect("ok");
    assert_eq!(history(dir.path()).points("s").expect("points"), whole);
    let foreign = Connection::open(&index).expect("opened");
    foreign.pragma_update(None, "user_version", 99).expect("changed");
    drop(foreign);
    assert_eq!(history(dir.path()).points("s").expect("points"), whole);
    let mut again = history(dir.path());
    again.rebuild().expect("rebuilt");
    assert_eq!(again.points("s").expect("points"), whole);
}

#[test]
fn an_unreadable_record_is_listed_with_its_reason_and_hides_no_other() {
    let dir = tempfile::tempdir().expect("a directory");
    two_runs(dir.path());
    std::fs::write(dir.path().join("z.jsonl"), "nonsense\n").expect("written");
    std::fs::copy(dir.path().join("a.jsonl"), dir.path().join("copy.jsonl")).expect("copied");
    let runs = history(dir.path()).runs().expect("runs");
    let notes: Vec<_> = runs.iter().map(|run| (run.id.as_str(), run.note.as_str())).collect();
    assert!(notes.contains(&("copy", "id: have \"a\"")), "{notes:?}");
    assert!(notes.iter().any(|(id, note)| *id == "z" && note.contains("line 1")), "{notes:?}");
    assert_eq!(runs.iter().filter(|run| run.is_complete).count(), 2);
}

#[test]
fn runs_are_found_by_id_by_path_and_from_the_latest() {
    let dir = tempfile::tempdir().expect("a directory");
    two_runs(dir.path());
    Made { id: "open", started: "2026-01-09T00:00:00Z", cells: &[] }.begin(dir.path());
    let history = history(dir.path());
    let id = |name: &str| history.read(name).map(|record| record.run.id).map_err(|e| e.to_string());
    assert_eq!(id("a"), Ok("a".to_owned()));
    assert_eq!(id("latest"), Ok("b".to_owned()));
    assert_eq!(id("latest~1"), Ok("a".to_owned()));
    let path = dir.path().join("a.jsonl");
    assert_eq!(id(path.to_str().expect("UTF-8")), Ok("a".to_owned()));
    for name in ["latest~2", "c"] {
        assert!(id(name).expect_err(name).contains("no run"), "{name}");
    }
    assert!(id("latest~x").expect_err("no id").contains("run id"));
}

#[test]
fn a_history_that_does_not_exist_is_empty() {
    let dir = tempfile::tempdir().expect("a directory");
    let history = history(&dir.path().join("none"));
    assert!(ids(&history).is_empty());
    assert!(!dir.path().join("none").exists());
}
