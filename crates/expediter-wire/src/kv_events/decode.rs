//! A batch from its bytes.

use super::pack::{Token, Unpacker};
use super::{BlockRemoved, BlockStored, ExtraKey, Hash, KvEvent, KvEventBatch};

/// Why bytes are no batch of events. Offsets are in bytes from the start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvEventsError {
    /// More than an engine could mean.
    #[error("a batch of {bytes} bytes, more than {BATCH_BYTES_MAX}")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// It ends, or promises more than could follow.
    #[error("cut short: what stands at byte {at} does not fit into what is left")]
    Truncated {
        /// Where.
        at: usize,
    },
    /// Nested beyond measure.
    #[error("nested too deeply at byte {at}")]
    TooDeep {
        /// Where.
        at: usize,
    },
    /// Something else stands there.
    #[error("byte {at} does not begin {expected}")]
    Malformed {
        /// Where.
        at: usize,
        /// What should.
        expected: &'static str,
    },
    /// An event lacks what it is about.
    #[error("the event at byte {at} lacks `{field}`")]
    Missing {
        /// Where.
        at: usize,
        /// Its name in the maps of vLLM.
        field: &'static str,
    },
    /// A document is followed by something.
    #[error("the batch ends at byte {at}, but more follows")]
    Trailing {
        /// Where.
        at: usize,
    },
}

/// The longest batch that is read. A step stores no more tokens than its budget, and 4 MiB hold 800,000 ids of five
/// bytes, six times the largest budget in use.
pub const BATCH_BYTES_MAX: usize = 4 << 20;

/// Reads a batch in any of the encodings.
pub fn decode(payload: &[u8]) -> Result<KvEventBatch, KvEventsError> {
    if payload.len() > BATCH_BYTES_MAX {
        return Err(KvEventsError::TooLarge { bytes: payload.len() });
    }
    let mut reader = Unpacker::new(payload);
    let mut fields = Members::begin(&mut reader, "a batch")?;
    let (mut batch, mut events_seen) = (KvEventBatch::default(), false);
    while let Some(key) = fields.next(&mut reader, BATCH_FIELDS)? {
        match key {
            "ts" => batch.timestamp = number(&mut reader)?,
            "events" => {
                events(&mut reader, &mut batch)?;
                events_seen = true;
            }
            "data_parallel_rank" => batch.data_parallel_rank = optional_small(&mut reader)?,
            _ => _ = reader.skip()?,
        }
    }
    if !events_seen {
        return Err(KvEventsError::Missing { at: 0, field: "events" });
    }
    if reader.is_at_end() { Ok(batch) } else { Err(KvEventsError::Trailing { at: reader.at() }) }
}

/// In order of their places in an array.
const BATCH_FIELDS: &[&str] = &["ts", "events", "data_parallel_rank"];
/// The kind stands at the first place.
const STORED_FIELDS: &[&str] = &[
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
];
const REMOVED_FIELDS: &[&str] = &["type", "block_hashes", "medium"];

fn events(reader: &mut Unpacker<'_>, batch: &mut KvEventBatch) -> Result<(), KvEventsError> {
    let count = array(reader, "a list of events")?;
    for _ in 0..count {
        match event(reader)? {
            Some(event) => batch.events.push(event),
            None => batch.unknown_events += 1,
        }
    }
    Ok(())
}

/// `None` for a kind of event that is not known.
fn event(reader: &mut Unpacker<'_>) -> Result<Option<KvEvent>, KvEventsError> {
    let kind = kind(reader.clone())?;
    match kind {
        "BlockStored" => stored(reader).map(|event| Some(KvEvent::BlockStored(event))),
        "BlockRemoved" => removed(reader).map(|event| Some(KvEvent::BlockRemoved(event))),
        "AllBlocksCleared" => reader.skip().map(|_| Some(KvEvent::AllBlocksCleared)),
        _ => reader.skip().map(|_| None),
    }
}

/// What kind of event stands next: the first element, or the member `type` wherever it stands.
fn kind(mut reader: Unpacker<'_>) -> Result<&str, KvEventsError> {
    let at = reader.at();
    let mut members = Members::begin(&mut reader, "an event")?;
    while let Some(key) = members.next(&mut reader, &["type"])? {
        if key == "type" {
            return text(&mut reader);
        }
        reader.skip()?;
    }
    Err(KvEventsError::Missing { at, field: "type" })
}

fn stored(reader: &mut Unpacker<'_>) -> Result<BlockStored, KvEventsError> {
    let at = reader.at();
    let mut event = BlockStored::default();
    let (mut hashes, mut tokens) = (None, None);
    let mut members = Members::begin(reader, "an event")?;
    while let Some(key) = members.next(reader, STORED_FIELDS)? {
        match key {
            "block_hashes" => hashes = Some(block_hashes(reader)?),
            "parent_block_hash" => event.parent_block_hash = optional(reader, block_hash)?,
            "token_ids" => tokens = Some(list(reader, "a list of token ids", small)?),
            "block_size" => event.block_size = small(reader)?,
            "lora_id" => event.lora_id = optional(reader, integer)?,
            "medium" => event.medium = optional(reader, owned_text)?,
            "lora_name" => event.lora_name = optional(reader, owned_text)?,
            "extra_keys" => event.extra_keys = optional(reader, extra_keys)?,
            "group_idx" => event.group_idx = optional_small(reader)?,
            "kv_cache_spec_kind" => event.kv_cache_spec_kind = optional(reader, owned_text)?,
            "session_id" => event.session_id = optional(reader, owned_text)?,
            _ => _ = reader.skip()?,
        }
    }
    event.block_hashes = hashes.ok_or(KvEventsError::Missing { at, field: "block_hashes" })?;
    event.token_ids = tokens.ok_or(KvEventsError::Missing { at, field: "token_ids" })?;
    if event.block_size == 0 {
        return Err(KvEventsError::Missing { at, field: "block_size" });
    }
    Ok(event)
}

fn removed(reader: &mut Unpacker<'_>) -> Result<BlockRemoved, KvEventsError> {
    let at = reader.at();
    let (mut event, mut hashes) = (BlockRemoved::default(), None);
    let mut members = Members::begin(reader, "an event")?;
    while let Some(key) = members.next(reader, REMOVED_FIELDS)? {
        match key {
            "block_hashes" => hashes = Some(block_hashes(reader)?),
            "medium" => event.medium = optional(reader, owned_text)?,
            "group_idx" => event.group_idx = optional_small(reader)?,
            _ => _ = reader.skip()?,
        }
    }
    event.block_hashes = hashes.ok_or(KvEventsError::Missing { at, field: "block_hashes" })?;
    Ok(event)
}

/// The members of a map by name, or the elements of an array by place.
struct Members {
    left: usize,
    /// `None` in a map.
    place: Option<usize>,
}

impl Members {
    fn begin(reader: &mut Unpacker<'_>, expected: &'static str) -> Result<Self, KvEventsError> {
        let at = reader.at();
        let token = reader.next()?;
        if let Token::Map(left) = token {
            Ok(Self { left, place: None })
        } else if let Token::Array(left) = token {
            Ok(Self { left, place: Some(0) })
        } else {
            Err(KvEventsError::Malformed { at, expected })
        }
    }

    /// The name of the value that stands next: empty where it has none, or none that is text.
    fn next<'a>(
        &mut self,
        reader: &mut Unpacker<'a>,
        places: &[&'static str],
    ) -> Result<Option<&'a str>, KvEventsError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        if let Some(place) = &mut self.place {
            *place += 1;
            return Ok(Some(places.get(*place - 1).copied().unwrap_or_default()));
        }
        let mut ahead = reader.clone();
        if let Token::Text(name) = ahead.next()? {
            *reader = ahead;
            return Ok(Some(name));
        }
        reader.skip()?;
        Ok(Some(""))
    }
}

fn block_hashes(reader: &mut Unpacker<'_>) -> Result<Vec<Hash>, KvEventsError> {
    list(reader, "a list of block hashes", block_hash)
}

fn block_hash(reader: &mut Unpacker<'_>) -> Result<Hash, KvEventsError> {
    let at = reader.at();
    let token = reader.next()?;
    if let Token::Unsigned(bits) = token {
        return Ok(Hash::Int(bits));
    }
    if let Token::Negative(bits) = token {
        return Ok(Hash::Int(bits.cast_unsigned()));
    }
    if let Token::Bytes(bytes) = token
        && (1..=HASH_BYTES_MAX).contains(&bytes.len())
    {
        return Ok(Hash::Bytes(bytes.into()));
    }
    Err(KvEventsError::Malformed { at, expected: "a block hash" })
}

/// One entry a block: nil, or a list of keys.
fn extra_keys(reader: &mut Unpacker<'_>) -> Result<Vec<Option<Vec<ExtraKey>>>, KvEventsError> {
    list(reader, "a list of extra keys", |reader| {
        optional(reader, |reader| list(reader, "the extra keys of a block", extra_key))
    })
}

fn extra_key(reader: &mut Unpacker<'_>) -> Result<ExtraKey, KvEventsError> {
    let mut ahead = reader.clone();
    if let Token::Text(key) = ahead.next()? {
        *reader = ahead;
        return Ok(ExtraKey::Text(key.to_owned()));
    }
    Ok(ExtraKey::Packed(reader.skip()?.into()))
}

fn list<'a, T>(
    reader: &mut Unpacker<'a>,
    expected: &'static str,
    mut element: impl FnMut(&mut Unpacker<'a>) -> Result<T, KvEventsError>,
) -> Result<Vec<T>, KvEventsError> {
    let count = array(reader, expected)?;
    (0..count).map(|_| element(reader)).collect()
}

fn array(reader: &mut Unpacker<'_>, expected: &'static str) -> Result<usize, KvEventsError> {
    let at = reader.at();
    let Token::Array(length) = reader.next()? else { return Err(KvEventsError::Malformed { at, expected }) };
    Ok(length)
}

/// Nil, or a value.
fn optional<'a, T>(
    reader: &mut Unpacker<'a>,
    value: impl FnOnce(&mut Unpacker<'a>) -> Result<T, KvEventsError>,
) -> Result<Option<T>, KvEventsError> {
    let mut ahead = reader.clone();
    if ahead.next()? == Token::Nil {
        *reader = ahead;
        return Ok(None);
    }
    value(reader).map(Some)
}

fn optional_small(reader: &mut Unpacker<'_>) -> Result<Option<u32>, KvEventsError> {
    optional(reader, small)
}

fn small(reader: &mut Unpacker<'_>) -> Result<u32, KvEventsError> {
    let at = reader.at();
    let value = integer(reader)?;
    u32::try_from(value).map_err(|_| KvEventsError::Malformed { at, expected: "a number of 32 bits" })
}

fn integer(reader: &mut Unpacker<'_>) -> Result<i64, KvEventsError> {
    let at = reader.at();
    let token = reader.next()?;
    if let Token::Negative(value) = token {
        return Ok(value);
    }
    let value = if let Token::Unsigned(value) = token { i64::try_from(value).ok() } else { None };
    value.ok_or(KvEventsError::Malformed { at, expected: "a whole number of 63 bits" })
}

fn number(reader: &mut Unpacker<'_>) -> Result<f64, KvEventsError> {
    let at = reader.at();
    let token = reader.next()?;
    if let Token::Float(value) = token
        && value.is_finite()
    {
        return Ok(value);
    }
    if let Token::Unsigned(value) = token {
        return Ok(value as f64);
    }
    Err(KvEventsError::Malformed { at, expected: "a time" })
}

fn owned_text(reader: &mut Unpacker<'_>) -> Result<String, KvEventsError> {
    text(reader).map(str::to_owned)
}

fn text<'a>(reader: &mut Unpacker<'a>) -> Result<&'a str, KvEventsError> {
    let at = reader.at();
    let Token::Text(text) = reader.next()? else {
        return Err(KvEventsError::Malformed { at, expected: "text" });
    };
    Ok(text)
}

/// SHA-512 is the longest in any use.
const HASH_BYTES_MAX: usize = 64;
