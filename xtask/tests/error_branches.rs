//! The rules for error branches match the sources.

#[test]
fn each_rule_matches_an_error_branch() {
    let repository = xtask::tidy::repository();
    xtask::error_branches::check_rules(&repository).unwrap_or_else(|error| panic!("{error:#}"));
}
