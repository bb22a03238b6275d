//! `filesystem label`: prints or changes the volume's name.

use super::super::change::Change;
use crate::failure::{Done, Outcome};
use crate::flags::{GlobalArgs, LabelArgs};
use crate::options::Opened;
use crate::output::json::Object;
use crate::output::{Output, json, text};

pub(crate) fn run(global: &GlobalArgs, args: &LabelArgs, out: &mut Output) -> Outcome {
    let Some(label) = &args.label else {
        let opened = Opened::one(global, &args.volume)?;
        let label = opened.filesystem.super_block().label().to_vec();
        if global.json {
            let object = Object::new().put("volume", opened.named.typed.clone());
            json::document(out, object.name("label", &label))?;
        } else {
            let shown = out.shown(&label);
            out.line(&shown)?;
        }
        return Ok(Done::Well);
    };
    let label = text::bytes(label);
    let change = Change::open(global, &args.volume)?;
    change.filesystem().set_label(&label).map_err(|error| change.whole(&error))?;
    change.finish(global, out, |object| object.name("label", &label))
}
