//! `trim`: discards the free space of a volume.

use std::io::Write;

use super::transaction::Transaction;
use crate::args::{GlobalArgs, TrimArgs};
use crate::failure::{Completion, Outcome};
use crate::output::json::Object;
use crate::output::size::{Units, pretty};
use crate::output::{Output, json};

pub(crate) fn run(global: &GlobalArgs, args: &TrimArgs, out: &mut Output) -> Outcome {
    let minimum = crate::args::parse_bytes("--minimum", &args.minimum)?;
    let mut transaction = Transaction::open_args(global, &args.volume.volume)?;
    let trimmed =
        transaction.filesystem().trim(minimum).map_err(|error| transaction.failure(&error))?;
    transaction.commit()?;
    if global.json {
        let object = Object::new().put("volume", transaction.volume()).put("bytes", trimmed);
        json::document(out, object)?;
    } else if !global.quiet {
        let size = pretty(trimmed, Units::Binary);
        writeln!(out, "{}: {size} ({trimmed} bytes) trimmed", transaction.volume())?;
    }
    Ok(Completion::Success)
}
