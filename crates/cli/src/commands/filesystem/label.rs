//! `filesystem label`: gets or sets the label of a volume.

use super::super::transaction::Transaction;
use crate::args::{GlobalArgs, LabelArgs};
use crate::failure::{Completion, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json, text};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &LabelArgs, out: &mut Output) -> Outcome {
    let Some(label) = &args.label else {
        let opened = OpenVolume::from_arg(global, &args.volume)?;
        let label = opened.filesystem.super_block().label().to_vec();
        if global.json {
            let object = Object::new().put("volume", opened.arg.typed.clone());
            json::document(out, object.name("label", &label))?;
        } else {
            let shown = out.display_name(&label);
            out.line(&shown)?;
        }
        return Ok(Completion::Success);
    };
    let label = text::bytes(label);
    let transaction = Transaction::open(global, &args.volume)?;
    transaction.filesystem().set_label(&label).map_err(|error| transaction.failure(&error))?;
    transaction.finish(global, out, |object| object.name("label", &label))
}
