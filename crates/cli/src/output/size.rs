//! Parses sizes with a suffix, and formats sizes.

/// The unit in which a size is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Units {
    /// The largest unit of 1024 that leaves a number of at least 1.
    Binary,
    /// The largest unit of 1000 that leaves a number of at least 1.
    Decimal,
    Bytes,
    /// This unit, in bytes, with this name.
    Fixed(u64, &'static str),
}

const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const DECIMAL: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

/// Parses a number of bytes: hexadecimal with 0x, or decimal with an optional suffix K, M, G, T or
/// P (powers of 1024).
pub(crate) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match lower.strip_prefix(digits)? {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        _ => return None,
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Formats a size as btrfs-progs does, with two decimals and its unit.
pub(crate) fn pretty(bytes: u64, units: Units) -> String {
    let (step, names) = match units {
        Units::Bytes => return bytes.to_string(),
        Units::Fixed(unit, name) => return decimals(bytes, unit, name),
        Units::Binary => (1024, &BINARY),
        Units::Decimal => (1000, &DECIMAL),
    };
    let mut unit = 1_u64;
    let mut at = 0;
    while bytes / unit >= step && at + 1 < names.len() {
        unit *= step;
        at += 1;
    }
    decimals(bytes, unit, names[at])
}

/// Formats a size for `ls --human`: 512, 1.5K, 20M.
pub(crate) fn short(bytes: u64) -> String {
    const NAMES: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut unit = 1_u64;
    let mut at = 0;
    while bytes / unit >= 1024 && at + 1 < NAMES.len() {
        unit *= 1024;
        at += 1;
    }
    if at == 0 {
        return bytes.to_string();
    }
    // Rounded up, as in ls(1).
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
    if tenths < 100 {
        format!("{}.{}{}", tenths / 10, tenths % 10, NAMES[at])
    } else {
        format!("{}{}", bytes.div_ceil(unit), NAMES[at])
    }
}

/// Formats a size as [`parse`] reads it, with the largest suffix that leaves a whole number.
pub(crate) fn exact(bytes: u64) -> String {
    const NAMES: [&str; 5] = ["", "K", "M", "G", "T"];
    let (mut left, mut at) = (bytes, 0);
    while left != 0 && left.is_multiple_of(1024) && at + 1 < NAMES.len() {
        left /= 1024;
        at += 1;
    }
    format!("{left}{}", NAMES[at])
}

/// Formats `bytes / unit` with two decimals; exact halves are rounded to even, as in printf(3).
fn decimals(bytes: u64, unit: u64, name: &str) -> String {
    let scaled = u128::from(bytes) * 100;
    let unit = u128::from(unit);
    let (whole, rest) = (scaled / unit, scaled % unit);
    let up = rest * 2 > unit || (rest * 2 == unit && whole % 2 == 1);
    let hundredths = whole + u128::from(up);
    format!("{}.{:02}{name}", hundredths / 100, hundredths % 100)
}

/// Formats `part / whole` in percent, with two decimals.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "0.00%".to_owned() } else { decimals(part.saturating_mul(100), whole, "%") }
}

/// Formats the ratio of two sizes, with two decimals.
pub(crate) fn ratio(raw: u64, logical: u64) -> String {
    if logical == 0 { "0.00".to_owned() } else { decimals(raw, logical, "") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse("512"), Some(512));
        assert_eq!(parse("4k"), Some(4096));
        assert_eq!(parse("1MiB"), Some(1 << 20));
        assert_eq!(parse("0x10"), Some(16));
        assert_eq!(parse("16E"), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("-1"), None);
        assert_eq!(parse("99999999P"), None);
    }

    #[test]
    fn sizes_print_as_in_btrfs_progs() {
        assert_eq!(pretty(0, Units::Binary), "0.00B");
        assert_eq!(pretty(53_673_984, Units::Binary), "51.19MiB");
        assert_eq!(pretty(u64::MAX, Units::Binary), "16.00EiB");
        assert_eq!(pretty(1500, Units::Decimal), "1.50kB");
        assert_eq!(pretty(1500, Units::Bytes), "1500");
        assert_eq!(pretty(1 << 20, Units::Fixed(1 << 30, "GiB")), "0.00GiB");
    }

    #[test]
    fn exact_sizes_are_parsed_as_the_same_number() {
        for (bytes, text) in [(0, "0"), (1 << 20, "1M"), (32256, "32256"), (5 << 50, "5120T")] {
            assert_eq!((exact(bytes).as_str(), parse(text)), (text, Some(bytes)));
        }
    }

    #[test]
    fn short_sizes_round_up() {
        assert_eq!(short(1023), "1023");
        assert_eq!(short(1025), "1.1K");
        assert_eq!(short(20 << 20), "20M");
        assert_eq!(short(u64::MAX), "16E");
    }
}
