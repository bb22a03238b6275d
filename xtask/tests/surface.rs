//! The public surface of the library is the one that is kept.

#[test]
fn the_public_surface_changes_only_on_purpose() {
    let repository = xtask::tidy::repository();
    let kept = std::fs::read_to_string(xtask::surface::kept(&repository)).unwrap_or_default();
    let listed = xtask::surface::list(&repository).unwrap_or_else(|error| panic!("{error:#}"));
    let difference = xtask::surface::difference(&kept, &listed);
    assert!(
        difference.is_empty() && kept == listed,
        "if this is on purpose: cargo run -p xtask -- surface\n{}",
        difference.join("\n")
    );
}
