//! Scripts as text: one operation per line, as JSON. Empty lines and lines that begin with `#` are
//! comments.

use crate::operation::Operation;
use anyhow::{Context, Result};
use std::fmt::Write;

pub fn to_text(operations: &[Operation]) -> String {
    let mut text = String::new();
    for operation in operations {
        let line = serde_json::to_string(operation).expect("an operation has a text form");
        writeln!(text, "{line}").expect("writing to a string cannot fail");
    }
    text
}

pub fn parse(text: &str) -> Result<Vec<Operation>> {
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(at, line)| serde_json::from_str(line).with_context(|| format!("line {}", at + 1)))
        .collect()
}

#[test]
fn every_generated_operation_survives_its_text() {
    let mut generator = crate::generator::Generator::new(3);
    let mut model = crate::model::Model::default();
    let mut operations = Vec::new();
    for _ in 0..5000 {
        let operation = generator.next(&model);
        model.apply(&operation);
        operations.push(operation);
    }
    assert_eq!(parse(&to_text(&operations)).unwrap(), operations);
    assert_eq!(parse("# nothing\n\n\"sync\"\n").unwrap(), [Operation::Sync]);
    assert!(parse("\"sink\"").unwrap_err().to_string().contains("line 1"));
}
