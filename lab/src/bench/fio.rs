//! Runs fio, which drives the raw device and the kernel's file systems.

use crate::rig::run;
use anyhow::{Context, Result};
use serde_json::Value;

/// Runs one read job and returns fio's JSON object of its reads.
pub(crate) fn read(args: &[String]) -> Result<Value> {
    job(args, "read")
}

/// Runs one write job and returns fio's JSON object of its writes.
pub(crate) fn write(args: &[String]) -> Result<Value> {
    job(args, "write")
}

fn job(args: &[String], direction: &str) -> Result<Value> {
    let mut all = vec!["--name=job", "--output-format=json", "--thread", "--norandommap"];
    all.extend(args.iter().map(String::as_str));
    let output = run("fio", &all)?;
    let json = output.find('{').context("fio printed no JSON")?;
    let value: Value = serde_json::from_str(&output[json..])?;
    Ok(value["jobs"][0][direction].clone())
}

/// Returns the throughput in MB/s.
pub(crate) fn megabytes(result: &Value) -> Result<f64> {
    let bytes = result["bw_bytes"].as_f64().context("fio's result has no bw_bytes")?;
    Ok(bytes / 1e6)
}

/// Returns thousands of operations per second.
pub(crate) fn kilo_iops(result: &Value) -> Result<f64> {
    let iops = result["iops"].as_f64().context("fio's result has no iops")?;
    Ok(iops / 1e3)
}
