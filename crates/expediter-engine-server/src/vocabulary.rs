//! Tokens without a tokenizer: a token is four bytes of text, and its id a hash of them.
//!
//! Equal prefixes have equal ids, so they share blocks; and every word of an answer is four bytes long, so that
//! an answer sent back as part of the next prompt is cut into the tokens that it was made of.

use std::sync::LazyLock;

use expediter_types::Prng;

/// Ids are below this, as those of the model that the captures were made with.
pub(crate) const VOCABULARY: u32 = 151_936;
/// Opens a message of a chat.
pub(crate) const MESSAGE_START: u32 = 151_644;
/// Closes it.
pub(crate) const MESSAGE_END: u32 = 151_645;

/// The pieces of a text, one a token; the last may be shorter. A piece may end inside a character.
pub(crate) fn pieces(text: &str) -> impl ExactSizeIterator<Item = &[u8]> {
    text.as_bytes().chunks(PIECE)
}

/// The id of a piece: FNV-1a, cut to what lies below the special tokens.
/// Source: Fowler, Noll, Vo, RFC 9923.
pub(crate) fn id(piece: &[u8]) -> u32 {
    let hash = piece.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    u32::try_from((hash >> 16) % u64::from(MESSAGE_START)).expect("a remainder of a u32 is one")
}

/// The ids of a text.
pub(crate) fn ids(text: &str) -> impl ExactSizeIterator<Item = u32> {
    pieces(text).map(id)
}

/// A word that answers are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u8);

impl Word {
    /// Draws any word.
    pub(crate) fn draw(rng: &mut Prng) -> Self {
        Self(u8::try_from(rng.below(WORDS.len())).expect("there are fewer words than a byte counts"))
    }

    /// Its text.
    pub(crate) fn text(self) -> &'static str {
        WORDS[usize::from(self.0)]
    }

    /// Its text as it stands inside a JSON string.
    pub(crate) fn escaped(self) -> &'static str {
        &TABLE[usize::from(self.0)].0
    }

    /// Its token.
    pub(crate) fn id(self) -> u32 {
        TABLE[usize::from(self.0)].1
    }
}

/// Escaped text and id of each word.
static TABLE: LazyLock<Vec<(String, u32)>> = LazyLock::new(|| {
    let row = |word: &&str| {
        let quoted = serde_json::to_string(word).expect("a string is valid JSON");
        (quoted[1..quoted.len() - 1].to_owned(), id(word.as_bytes()))
    };
    WORDS.iter().map(row).collect()
});

/// Bytes of a token: what English text has on average.
const PIECE: usize = 4;

/// Four bytes each. The last line keeps clients honest: characters of two, three and four bytes, a quote, a
/// line end, a backslash.
#[rustfmt::skip] // a table
const WORDS: [&str; 104] = [
    " the", " and", " for", " you", " all", " any", " can", " had", " her", " was", " one", " our", " out", " day",
    " get", " has", " him", " his", " how", " man", " new", " now", " old", " see", " two", " way", " who", " boy",
    " did", " its", " let", " put", " say", " she", " too", " use", " air", " ask", " big", " box", " car", " cat",
    " cup", " dog", " eat", " end", " eye", " far", " few", " fly", " fun", " got", " hot", " ice", " job", " key",
    " law", " lay", " leg", " lie", " low", " map", " met", " mix", " net", " oil", " own", " pay", " pen", " ran",
    " red", " row", " run", " sat", " sea", " set", " sit", " six", " sky", " sun", " ten", " top", " try", " war",
    " yes", " yet", " ago", " art", " bag", " bed", " bit", " bus", " buy", " cut", " ear", " egg",
    " né", " où", " €", "🙂", "\"a\" ", "日\n", " \\o ", ".\n\n ",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_one_token() {
        for word in WORDS {
            assert_eq!(ids(word).collect::<Vec<_>>(), [id(word.as_bytes())], "{word:?}");
            assert_eq!(word.len(), PIECE, "{word:?}");
        }
    }

    #[test]
    fn an_answer_reads_back_as_its_tokens() {
        let mut rng = Prng::new(5);
        let words: Vec<Word> = (0..500).map(|_| Word::draw(&mut rng)).collect();
        let text: String = words.iter().map(|word| word.text()).collect();
        assert_eq!(ids(&text).collect::<Vec<_>>(), words.iter().map(|word| word.id()).collect::<Vec<_>>());
        let escaped: String = words.iter().map(|word| word.escaped()).collect();
        assert_eq!(serde_json::from_str::<String>(&format!("\"{escaped}\"")).unwrap(), text);
    }
}
