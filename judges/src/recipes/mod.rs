//! All test images as a table of recipes.

mod contents;
mod features;
mod profiles;
mod states;
mod subvolumes;

use crate::recipe::Recipe;

/// A group of recipes with its source text, whose change makes its images anew.
#[derive(Debug)]
pub struct Group {
    pub source: &'static str,
    pub recipes: Vec<Recipe>,
}

/// Returns all groups of recipes.
pub fn groups() -> Vec<Group> {
    vec![
        Group { source: include_str!("features.rs"), recipes: features::recipes() },
        Group { source: include_str!("profiles.rs"), recipes: profiles::recipes() },
        Group { source: include_str!("contents.rs"), recipes: contents::recipes() },
        Group { source: include_str!("subvolumes.rs"), recipes: subvolumes::recipes() },
        Group { source: include_str!("states.rs"), recipes: states::recipes() },
    ]
}

/// Returns all recipes.
pub fn all() -> Vec<Recipe> {
    groups().into_iter().flat_map(|group| group.recipes).collect()
}

#[test]
fn recipe_names_are_unique() {
    let mut names: Vec<String> = all().into_iter().map(|recipe| recipe.name).collect();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}
