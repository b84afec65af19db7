//! How many tests passed: read from the closing lines of the runners.

/// Tests by their result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }

    /// The plain line that ends a run.
    pub(crate) fn line(self) -> String {
        let Self { passed, failed, skipped } = self;
        let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        format!("{passed} passed, {failed} failed{skipped}")
    }
}

/// Sums over every closing line in `output`: nextest's (`Summary [ 1.2s] 3 tests run: 3 passed, 0 skipped`),
/// cargo test's (`test result: ok. 3 passed; 0 failed; 0 ignored; …`) and pytest's (`=== 3 passed in 1.20s ===`).
pub(crate) fn read(output: &str) -> Counts {
    output.lines().filter(|line| closes(line)).map(read_line).fold(Counts::default(), Counts::and)
}

fn closes(line: &str) -> bool {
    let nextest = line.trim_start().starts_with("Summary [");
    // Indented it is what a failed test printed, shown again by nextest.
    let cargo = line.starts_with("test result:");
    let line = line.trim_end();
    let pytest = line.starts_with('=') && line.ends_with('=') && line.contains(" in ");
    nextest || cargo || pytest
}

fn read_line(line: &str) -> Counts {
    let mut counts = Counts::default();
    let words: Vec<&str> = line.split([' ', ',', ';', '(', ')']).filter(|word| !word.is_empty()).collect();
    for pair in words.windows(2) {
        let Ok(number) = pair[0].parse::<u64>() else { continue };
        match pair[1] {
            "passed" => counts.passed += number,
            "failed" | "error" | "errors" | "timed" => counts.failed += number,
            "skipped" | "ignored" | "xfailed" => counts.skipped += number,
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_closing_lines_of_the_runners() {
        let counts = |passed, failed, skipped| Counts { passed, failed, skipped };
        let cases = [
            ("     Summary [   0.021s] 12 tests run: 12 passed, 3 skipped", counts(12, 0, 3)),
            (
                "     Summary [   0.021s] 3/12 tests run: 1 passed (1 slow), 2 failed, 0 skipped",
                counts(1, 2, 0),
            ),
            ("     Summary [   0.021s] 2 tests run: 1 passed, 1 timed out, 0 skipped", counts(1, 1, 0)),
            ("test result: ok. 7 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out", counts(7, 0, 1)),
            ("=================== 2 failed, 31 passed, 1 skipped in 61.02s (0:01:01) ====", counts(31, 2, 1)),
            ("==== 1 passed, 1 error in 2.00s ====", counts(1, 1, 0)),
            ("a test that prints 9 passed", counts(0, 0, 0)),
            ("    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured", counts(0, 0, 0)),
        ];
        for (line, expected) in cases {
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn the_closing_line_leaves_out_what_is_0() {
        assert_eq!(Counts { passed: 3, failed: 0, skipped: 0 }.line(), "3 passed, 0 failed");
        assert_eq!(Counts { passed: 3, failed: 1, skipped: 2 }.line(), "3 passed, 1 failed, 2 skipped");
    }
}
