//! Source files that have grown too long to be read in one pass.

/// Lines a source file may have. A state machine is split while it is young; what is longer is several things.
pub(crate) const LINES_MAX: usize = 600;

/// The files of `(path, lines)` above the limit.
pub(crate) fn too_long(files: &[(String, usize)]) -> Vec<String> {
    let long = files.iter().filter(|(_, lines)| *lines > LINES_MAX);
    long.map(|(path, lines)| format!("{path}: {lines} lines, the limit is {LINES_MAX}")).collect()
}

/// The longest files, for reading.
pub(crate) fn longest(files: &[(String, usize)], count: usize) -> Vec<String> {
    let mut sorted: Vec<_> = files.iter().collect();
    sorted.sort_by_key(|(path, lines)| (std::cmp::Reverse(*lines), path.clone()));
    sorted.into_iter().take(count).map(|(path, lines)| format!("{lines:>5} {path}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_above_the_limit_are_found() {
        let files = [("a.rs".to_owned(), LINES_MAX), ("b.rs".to_owned(), LINES_MAX + 1)];
        assert_eq!(too_long(&files), [format!("b.rs: {} lines, the limit is {LINES_MAX}", LINES_MAX + 1)]);
        assert_eq!(longest(&files, 1), [format!("{:>5} b.rs", LINES_MAX + 1)]);
    }
}
