//! Sizes as scenarios and options write them: `64k`, `1G`, `2x memory`, `1G / 8`.
//!
//! Suffixes are powers of 1024, as in fio. The memory limit that a factor refers to is known only
//! when a run is planned.

use anyhow::{Context, Result, bail, ensure};

/// Blocks that sizes of files are rounded down to, in bytes. A direct write needs whole blocks.
const BLOCK_BYTES: u64 = 4096;

/// Parses a number of bytes with an optional suffix (k, M, G, T).
///
/// # Errors
/// The text is not a number with one of the suffixes, or the size overflows.
pub(crate) fn parse(text: &str) -> Result<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => bail!("size {text:?}: want a number with a suffix k, M, G or T"),
    };
    let number: u64 = number.parse().with_context(|| format!("size {text:?}: want a number"))?;
    number.checked_mul(1 << shift).with_context(|| format!("size {text:?}: too large"))
}

/// Evaluates a size of a scenario, in bytes: a size, or a factor of the memory limit, and
/// optionally a divisor. A quotient is rounded down to whole blocks of 4 KiB.
///
/// # Errors
/// The text has none of these forms, or the result is smaller than a block.
pub(crate) fn evaluate(text: &str, memory_bytes: u64) -> Result<u64> {
    let (base, divisor) = match text.split_once('/') {
        Some((base, divisor)) => {
            let divisor: u64 =
                divisor.trim().parse().with_context(|| format!("size {text:?}: divisor"))?;
            ensure!(divisor > 0, "size {text:?}: the divisor is 0");
            (base.trim(), divisor)
        }
        None => (text.trim(), 1),
    };
    let bytes = match base.strip_suffix("memory") {
        Some(factor) => {
            of_memory(factor, memory_bytes).with_context(|| format!("size {text:?}"))?
        }
        None => parse(base)?,
    };
    let bytes = bytes / divisor / BLOCK_BYTES * BLOCK_BYTES;
    ensure!(bytes > 0, "size {text:?}: less than {BLOCK_BYTES} bytes");
    Ok(bytes)
}

/// Returns a factor such as `2x` or `0.25x` of the memory limit, in bytes.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the factor is positive and bounded, and the result is rounded to blocks"
)]
fn of_memory(factor: &str, memory_bytes: u64) -> Result<u64> {
    let factor = factor.trim();
    let number = match factor.strip_suffix('x') {
        Some(number) => number.trim().parse::<f64>().context("want a factor such as 2x")?,
        None if factor.is_empty() => 1.0,
        None => bail!("want a factor such as 2x before \"memory\""),
    };
    ensure!(number > 0.0 && number <= 1000.0, "factor {number}: want more than 0, at most 1000");
    Ok((memory_bytes as f64 * number) as u64)
}

/// Formats a number of bytes with a binary suffix and at most one decimal.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut at = 0;
    while value >= 1024.0 && at + 1 < UNITS.len() {
        value /= 1024.0;
        at += 1;
    }
    let decimals = usize::from(at > 0 && value < 10.0 && value.fract() > 0.05);
    format!("{value:.decimals$} {}", UNITS[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse("4k").unwrap(), 4096);
        assert_eq!(parse("1G").unwrap(), 1 << 30);
        assert_eq!(parse(" 512 ").unwrap(), 512);
        for bad in ["", "k", "1x", "-1", "1.5G", "99999999999999T"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_refer_to_the_memory_limit_and_may_be_divided() {
        let memory = 512 << 20;
        assert_eq!(evaluate("2x memory", memory).unwrap(), 1 << 30);
        assert_eq!(evaluate("0.25x memory", memory).unwrap(), 128 << 20);
        assert_eq!(evaluate("memory", memory).unwrap(), memory);
        assert_eq!(evaluate("1G / 3", memory).unwrap(), (1 << 30) / 3 / 4096 * 4096);
        for bad in ["2 memory", "-1x memory", "1G / 0", "1G / x", "100", "x memory"] {
            assert!(evaluate(bad, memory).is_err(), "{bad}");
        }
    }

    #[test]
    fn humans_read_binary_suffixes() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(3 << 30), "3 GiB");
    }
}
