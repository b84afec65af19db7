//! A digest of what an engine counts.

/// A hash of lines in their order. It only has to differ where the engine did work; nobody gains by a collision.
/// The mixing step is that of rustc's `FxHasher`, over 8 bytes at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Digest(u64);

impl Digest {
    /// Adds a line.
    pub(super) fn add(&mut self, line: &[u8]) {
        let (words, rest) = line.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
        self.mix(line.len() as u64);
    }

    /// The digest of all lines added.
    pub(super) fn value(self) -> u64 {
        self.0
    }

    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
    }
}
