//! The `butternut` command.

fn main() {}
