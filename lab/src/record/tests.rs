//! Tests of reading and writing records: torn lines, refused lines, resumed runs.

use super::*;

fn run(id: &str) -> RunHeader {
    RunHeader {
        format: FORMAT,
        id: id.to_owned(),
        started: "2026-01-02T03:04:05Z".to_owned(),
        suite: "nosec".to_owned(),
        seed: 7,
        command: vec!["butternut-lab".to_owned(), "run".to_owned()],
        environment: Environment::default(),
    }
}

fn sample(repeat: u32, value: f64) -> Sample {
    Sample {
        row: "nosec/overwrite-4k/jobs=4".to_owned(),
        target: "kernel:btrfs".to_owned(),
        switches: Switches::from([("nosec".to_owned(), "on".to_owned())]),
        metric: "iops".to_owned(),
        unit: "1/s".to_owned(),
        better: Better::Higher,
        value,
        repeat,
        order: repeat,
        started: "2026-01-02T03:04:06Z".to_owned(),
        seconds: 4.0,
        percentiles: BTreeMap::from([("99.9".to_owned(), 1000.0)]),
        series: vec![(0.0, 10.0), (1.0, 11.0)],
        cpu_us_per_op: Some(1.5),
        peak_dirty_bytes: None,
        peak_cached_bytes: Some(4096),
        device_read_bytes: None,
        device_write_bytes: None,
    }
}

fn line(repeat: u32) -> Line {
    Line::Sample(Box::new(sample(repeat, 100.0)))
}

fn end() -> Line {
    Line::End(End { finished: "2026-01-02T04:00:00Z".to_owned(), planned: 2, done: 2 })
}

fn read(text: &str) -> Result<Record, String> {
    Record::read_from(Path::new("r.jsonl"), text.as_bytes()).map_err(|error| error.to_string())
}

fn first() -> String {
    serde_json::to_string(&Line::Run(run("a"))).expect("JSON") + "\n"
}

#[test]
fn what_was_appended_is_read_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = Writer::create(&dir.path().join("new/history"), &run("a")).expect("created");
    let failure = Failure {
        row: "r".to_owned(),
        target: "t".to_owned(),
        switches: Switches::new(),
        repeat: 1,
        message: "fio: exit status 1".to_owned(),
    };
    for line in [line(0), Line::Failure(failure.clone()), line(1), end()] {
        writer.append(&line).expect("appended");
    }
    let record = Record::read(writer.path()).expect("read");
    assert_eq!(record.run, run("a"));
    assert_eq!(record.samples, [sample(0, 100.0), sample(1, 100.0)]);
    assert_eq!(record.failures, [failure]);
    assert!(record.is_complete() && record.notes.is_empty());
    let text = std::fs::read_to_string(writer.path()).expect("read");
    assert!(text.lines().all(|line| line.starts_with("{\"kind\":\"")), "{text}");
}

#[test]
fn a_torn_last_line_is_dropped_with_a_note_and_cut_off_by_a_resumed_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = Writer::create(dir.path(), &run("a")).expect("created");
    writer.append(&line(0)).expect("appended");
    let path = writer.path().to_owned();
    drop(writer);
    let whole = std::fs::read(&path).expect("read");
    let mut file = OpenOptions::new().append(true).open(&path).expect("opened");
    file.write_all(b"{\"kind\":\"samp").expect("torn");
    let record = Record::read(&path).expect("read");
    assert_eq!(record.samples.len(), 1);
    assert!(record.notes[0].contains("line 3: torn"), "{:?}", record.notes);

    let (mut writer, so_far) = Writer::resume(dir.path(), "a").expect("resumed");
    assert_eq!(so_far.samples, [sample(0, 100.0)]);
    assert_eq!(std::fs::read(&path).expect("read"), whole);
    writer.append(&line(1)).expect("appended");
    writer.append(&end()).expect("appended");
    drop(writer);
    assert_eq!(Record::read(&path).expect("read").samples.len(), 2);
    let refused = Writer::resume(dir.path(), "a").expect_err("complete").to_string();
    assert!(refused.contains("the run is complete"), "{refused}");
}

#[test]
fn every_cut_of_a_record_reads_as_its_whole_lines() {
    let whole = first() + &serde_json::to_string(&line(0)).expect("JSON") + "\n";
    let start = first().len();
    for cut in 0..whole.len() {
        let got = read(&whole[..cut]);
        assert_eq!(got.is_ok(), cut >= start, "cut at {cut}: {got:?}");
        if let Ok(record) = got {
            assert!(record.samples.is_empty());
            assert_eq!(record.notes.len(), usize::from(cut > start), "cut at {cut}");
        }
    }
}

#[test]
fn malformed_lines_are_refused_by_number() {
    for (text, want) in [
        (String::new(), "no run"),
        ("{}\n".to_owned(), "line 1: missing field `kind`"),
        (first() + "nonsense\n", "line 2: expected"),
        (first() + &first(), "line 2: kind: have a second"),
        (first().replace("\"format\":1", "\"format\":2"), "format: have 2, want 1"),
        (first().replace("\"id\":\"a\"", "\"id\":\"../a\""), "run id \"../a\""),
        (serde_json::to_string(&end()).expect("JSON") + "\n", "have \"end\", want \"run\""),
        (
            first() + &serde_json::to_string(&end()).expect("JSON") + "\n{}\n",
            "line 3: missing field `kind`",
        ),
    ] {
        let error = read(&text).expect_err(&text);
        assert!(error.contains(want), "{text:?}: {error}");
    }
}

#[test]
fn unknown_fields_are_ignored_and_unknown_kinds_are_noted() {
    let text = first().replace("\"seed\":7", "\"seed\":7,\"later\":[1]")
        + "{\"kind\":\"weather\",\"sky\":\"grey\"}\n"
        + &serde_json::to_string(&line(0)).expect("JSON").replace("\"unit\"", "\"x\":1,\"unit\"")
        + "\n";
    let record = read(&text).expect("read");
    assert_eq!(record.samples, [sample(0, 100.0)]);
    assert!(record.notes[0].contains("line 2: unknown kind"), "{:?}", record.notes);
}

#[test]
fn values_that_are_not_numbers_are_not_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = Writer::create(dir.path(), &run("a")).expect("created");
    for value in [f64::NAN, f64::INFINITY] {
        let error = writer.append(&Line::Sample(Box::new(sample(0, value)))).expect_err("refused");
        assert!(error.to_string().contains("want a finite number"), "{error}");
    }
    assert!(Record::read(writer.path()).expect("read").samples.is_empty());
}

#[test]
fn one_process_writes_a_record_at_a_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let _writer = Writer::create(dir.path(), &run("a")).expect("created");
    let refused = Writer::resume(dir.path(), "a").expect_err("locked").to_string();
    assert!(refused.contains("another process"), "{refused}");
    let exists = Writer::create(dir.path(), &run("a")).expect_err("exists").to_string();
    assert!(exists.contains("cannot create the record"), "{exists}");
}

#[test]
fn ids_are_plain_file_names() {
    for id in ["", ".a", "a/b", "..", "a b", &"x".repeat(ID_BYTES_MAX + 1)] {
        assert!(path_of(Path::new("h"), id).is_err(), "{id}");
    }
    assert_eq!(path_of(Path::new("h"), "2026-a_b.1").expect("ok"), Path::new("h/2026-a_b.1.jsonl"));
}
