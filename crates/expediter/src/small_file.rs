//! Files that people write: read whole, but never without end.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads a file of at most 64 MiB. A larger one, or one without an end, is not read to its end.
pub(crate) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    bytes_from(File::open(path)?)
}

/// As [`bytes()`], of text in UTF-8.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    read_from(File::open(path)?)
}

/// As [`read`], from what is open already.
pub(crate) fn read_from(source: impl io::Read) -> io::Result<String> {
    String::from_utf8(bytes_from(source)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn bytes_from(source: impl io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if source.take(BYTES_MAX + 1).read_to_end(&mut bytes)? as u64 > BYTES_MAX {
        return Err(io::Error::other(format!("it is larger than the {} MiB that are read", BYTES_MAX >> 20)));
    }
    Ok(bytes)
}

const BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_refused() {
        assert_eq!(read_from(&b"some text"[..]).unwrap(), "some text");
        let error = read_from(io::repeat(b'x')).unwrap_err();
        assert!(error.to_string().contains("64 MiB"), "{error}");
    }
}
