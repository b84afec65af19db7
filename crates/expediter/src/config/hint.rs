//! What to write where a quantity was written with its unit.

use expediter_gateway::settings::{KeyPath, Step};

/// The plain number for text such as `10s` or `32MiB` where the setting is in milliseconds or bytes, as its name
/// says.
pub(super) fn unit_hint(text: &str, path: &KeyPath) -> Option<String> {
    let Some(Step::Key(key)) = path.steps().last() else { return None };
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let number: u64 = number.replace('_', "").parse().ok()?;
    let (factor, counted_in) = if key.ends_with("_ms") || key.ends_with("_ms_max") {
        (millis(unit.trim())?, "milliseconds")
    } else if key.contains("bytes") {
        (bytes(unit.trim())?, "bytes")
    } else if unit.is_empty() {
        return Some(format!("write {number}"));
    } else {
        return None;
    };
    Some(format!("write {} ({counted_in})", number.checked_mul(factor)?))
}

fn millis(unit: &str) -> Option<u64> {
    Some(match unit {
        "" | "ms" => 1,
        "s" | "sec" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    })
}

fn bytes(unit: &str) -> Option<u64> {
    Some(match unit {
        "" | "B" => 1,
        "k" | "kB" | "KB" => 1000,
        "M" | "MB" => 1_000_000,
        "G" | "GB" => 1_000_000_000,
        "Ki" | "KiB" => 1 << 10,
        "Mi" | "MiB" => 1 << 20,
        "Gi" | "GiB" => 1 << 30,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_becomes_the_number_that_is_meant() {
        let cases = [
            ("10s", "limits.head_ms", Some("write 10000 (milliseconds)")),
            ("1_500 ms", "limits.head_ms", Some("write 1500 (milliseconds)")),
            ("32MiB", "limits.body_bytes_max", Some("write 33554432 (bytes)")),
            ("1_000", "wait.requests_max", Some("write 1000")),
            ("10 fortnights", "limits.head_ms", None),
            ("10s", "shards", None),
            ("soon", "limits.head_ms", None),
            ("99999999999999999h", "limits.head_ms", None),
        ];
        for (text, path, expected) in cases {
            assert_eq!(unit_hint(text, &path.parse().unwrap()).as_deref(), expected, "{text}");
        }
    }
}
