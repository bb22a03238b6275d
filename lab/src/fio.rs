//! fio as the driver of the contestants that are not ours.

use crate::rig::run;
use anyhow::{Context, Result};
use serde_json::Value;

/// One read job; returns fio's account of it.
pub(crate) fn read(args: &[String]) -> Result<Value> {
    job(args, "read")
}

/// One write job; returns fio's account of it.
pub(crate) fn write(args: &[String]) -> Result<Value> {
    job(args, "write")
}

fn job(args: &[String], direction: &str) -> Result<Value> {
    let mut all = vec!["--name=job", "--output-format=json", "--thread", "--norandommap"];
    all.extend(args.iter().map(String::as_str));
    let said = run("fio", &all)?;
    let json = said.find('{').context("fio printed no JSON")?;
    let value: Value = serde_json::from_str(&said[json..])?;
    Ok(value["jobs"][0][direction].clone())
}

/// Bytes per second, in MB.
pub(crate) fn megabytes(account: &Value) -> Result<f64> {
    let bytes = account["bw_bytes"].as_f64().context("fio gave no bw_bytes")?;
    Ok(bytes / 1e6)
}

/// Operations per second, in thousands.
pub(crate) fn kilo_iops(account: &Value) -> Result<f64> {
    let iops = account["iops"].as_f64().context("fio gave no iops")?;
    Ok(iops / 1e3)
}
