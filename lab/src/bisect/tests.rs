//! Tests of the search in a scratch repository whose measured command is a seeded fake with noise.

use super::*;

/// Noise of 2 % from a counter that is not in the repository, and an outlier of a third each ninth.
const MEASURE: &str = r#"
n=$(cat "$COUNTER" 2>/dev/null || echo 0); n=$((n + 1)); echo $n > "$COUNTER"
awk -v n=$n -v level=$(cat level) 'BEGIN {
    srand(n); noise = 1 + 0.02 * (rand() + rand() + rand() - 1.5)
    if (n % 9 == 0) noise *= 0.67
    print "noise on an earlier line 12"; print level * noise }'
"#;

struct Scratch {
    directory: tempfile::TempDir,
    commits: Vec<String>,
}

/// A repository with a commit for each level; "broken" is a commit that does not build.
fn scratch(levels: &[&str]) -> Scratch {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("repo");
    std::fs::create_dir(&path).expect("made");
    let git = |arguments: &[&str]| git(&path, arguments).expect("git");
    git(&["init", "--quiet", "--initial-branch=main"]);
    git(&["config", "user.name", "Test"]);
    git(&["config", "user.email", "test@example.org"]);
    git(&["config", "commit.gpgsign", "false"]);
    let mut commits = Vec::new();
    for (at, level) in levels.iter().enumerate() {
        std::fs::write(path.join("level"), level).expect("written");
        std::fs::write(path.join("at"), at.to_string()).expect("written");
        git(&["add", "--all"]);
        git(&["commit", "--quiet", "--message", &format!("change {at}")]);
        commits.push(git(&["rev-parse", "HEAD"]).trim().to_owned());
    }
    Scratch { directory, commits }
}

fn plan(scratch: &Scratch) -> Plan {
    let counter = scratch.directory.path().join("counter");
    let last = scratch.commits.len() - 1;
    Plan {
        repository: scratch.directory.path().join("repo"),
        good: scratch.commits[0].clone(),
        bad: scratch.commits[last].clone(),
        build: ["sh", "-c", "! grep -q broken level"].map(str::to_owned).to_vec(),
        measure: format!("COUNTER='{}'\n{MEASURE}", counter.display()),
        repeats: (3, 40),
    }
}

fn is_clean(scratch: &Scratch) {
    let repository = scratch.directory.path().join("repo");
    let trees = git(&repository, &["worktree", "list", "--porcelain"]).expect("git");
    assert_eq!(trees.matches("worktree ").count(), 1, "{trees}");
    assert_eq!(git(&repository, &["status", "--porcelain"]).expect("git"), "");
    assert_eq!(git(&repository, &["symbolic-ref", "HEAD"]).expect("git").trim(), "refs/heads/main");
}

#[test]
fn the_commit_that_made_it_worse_is_found_through_the_noise() {
    let mut levels = vec!["100"; 9];
    levels.extend(["95"; 7]);
    let scratch = scratch(&levels);
    let mut decided = 0;
    let found = bisect(&plan(&scratch), &mut |event| {
        decided += usize::from(matches!(event, Event::Decided { .. }));
    });
    let want = Found::Commit { id: scratch.commits[9].clone(), subject: "change 9".to_owned() };
    assert_eq!(found.expect("found"), want);
    assert!((3..=5).contains(&decided), "{decided} commits were measured");
    is_clean(&scratch);
}

#[test]
fn commits_that_do_not_build_are_skipped() {
    let scratch = scratch(&["100", "100", "broken", "100", "80", "80"]);
    let mut skipped = 0;
    let found = bisect(&plan(&scratch), &mut |event| {
        skipped += usize::from(matches!(event, Event::Skipped { .. }));
    });
    let found = found.expect("found");
    assert!(matches!(&found, Found::Commit { id, .. } if *id == scratch.commits[4]), "{found:?}");
    assert!(skipped <= 1);
    is_clean(&scratch);
}

#[test]
fn skipped_commits_that_hide_the_first_bad_one_are_listed() {
    let scratch = scratch(&["100", "broken", "80"]);
    let Found::OneOf(ids) = bisect(&plan(&scratch), &mut |_| {}).expect("found") else {
        panic!("one commit was found");
    };
    assert_eq!(ids.len(), 2);
    assert!(ids.contains(&scratch.commits[1]) && ids.contains(&scratch.commits[2]));
    is_clean(&scratch);
}

#[test]
fn equal_ends_and_bad_commands_end_the_search_with_a_reason() {
    let scratch = scratch(&["100", "100", "100"]);
    let error = |plan: &Plan| bisect(plan, &mut |_| {}).expect_err("refused").to_string();
    let plan = Plan { repeats: (3, 10), ..plan(&scratch) };
    assert!(error(&plan).contains("cannot be told apart"));
    for (measure, want) in [
        ("echo fast", "have \"fast\", want a number"),
        ("echo 5; echo why >&2; exit 3", "why"),
        ("true", "have \"\", want a number"),
        ("echo -5", "want a number above 0"),
    ] {
        let text = error(&Plan { measure: measure.to_owned(), ..plan.clone() });
        assert!(text.contains(want), "{text}");
    }
    let text = error(&Plan { build: vec!["/no/such/program".to_owned()], ..plan.clone() });
    assert!(text.contains("does not build"), "{text}");
    let text = error(&Plan { good: "--help".to_owned(), ..plan.clone() });
    assert!(text.contains("rev-parse"), "{text}");
    is_clean(&scratch);
}
