//! The frames around a batch: as it is published, and as it is asked for again.
//!
//! Published: topic · sequence · batch. The sequence is 8 bytes, big-endian, from 0 on with each start of the engine.
//! A replay is asked for with an empty frame and the first sequence wanted; each batch that is still buffered comes
//! as a message of its own, then one whose sequence is all ones. vLLM 0.32.0 puts the topic before the sequence,
//! 0.16.0 does not.

/// Why frames are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramesError {
    /// Not as many as any version sends.
    #[error("a message of {0} frames")]
    Count(usize),
    /// A sequence that is none.
    #[error("a sequence of {0} bytes instead of 8")]
    Sequence(usize),
}

/// A published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published<'a> {
    /// What subscribers choose by.
    pub topic: &'a [u8],
    /// Counts messages.
    pub sequence: u64,
    /// For `decode`.
    pub payload: &'a [u8],
}

impl<'a> Published<'a> {
    /// Reads the frames of a message.
    pub fn read(frames: &'a [impl AsRef<[u8]>]) -> Result<Self, FramesError> {
        let [topic, sequence, payload] = frames else { return Err(FramesError::Count(frames.len())) };
        Ok(Self {
            topic: topic.as_ref(),
            sequence: read_sequence(sequence.as_ref())?,
            payload: payload.as_ref(),
        })
    }

    /// The frames of the message.
    pub fn frames(&self) -> [Vec<u8>; 3] {
        [self.topic.to_vec(), self.sequence.to_be_bytes().to_vec(), self.payload.to_vec()]
    }
}

/// Asks for what was published from a sequence on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The first that is wanted.
    pub from: u64,
}

impl Replay {
    /// The frames to send from a socket that adds none of its own, a DEALER.
    pub fn frames(self) -> [Vec<u8>; 2] {
        [Vec::new(), self.from.to_be_bytes().to_vec()]
    }

    /// Reads the frames of a question, without the identity of who asks. Engines take a sequence of any length.
    pub fn read(frames: &[impl AsRef<[u8]>]) -> Result<Self, FramesError> {
        let [_, sequence] = frames else { return Err(FramesError::Count(frames.len())) };
        let sequence = sequence.as_ref();
        if sequence.len() > 8 {
            return Err(FramesError::Sequence(sequence.len()));
        }
        Ok(Self { from: sequence.iter().fold(0, |from, byte| (from << 8) | u64::from(*byte)) })
    }
}

/// Whether answers name the topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayForm {
    /// They do: vLLM 0.32.0.
    #[default]
    WithTopic,
    /// They do not: vLLM 0.16.0.
    WithoutTopic,
}

/// One message of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayReply<'a> {
    /// A batch that is still buffered.
    Batch {
        /// As it was published.
        sequence: u64,
        /// For `decode`.
        payload: &'a [u8],
    },
    /// There are no more.
    End,
}

impl<'a> ReplayReply<'a> {
    /// Reads an answer in either form.
    pub fn read(frames: &'a [impl AsRef<[u8]>]) -> Result<Self, FramesError> {
        let ([_, sequence, payload] | [_, _, sequence, payload]) = frames else {
            return Err(FramesError::Count(frames.len()));
        };
        Ok(match read_sequence(sequence.as_ref())? {
            END => Self::End,
            sequence => Self::Batch { sequence, payload: payload.as_ref() },
        })
    }

    /// The frames of an answer. The end names no topic, though its frame is there.
    pub fn frames(self, form: ReplayForm, topic: &[u8]) -> Vec<Vec<u8>> {
        let (topic, sequence, payload) = match self {
            Self::Batch { sequence, payload } => (topic, sequence, payload),
            Self::End => (&[][..], END, &[][..]),
        };
        let mut frames = vec![Vec::new()];
        frames.extend((form == ReplayForm::WithTopic).then(|| topic.to_vec()));
        frames.extend([sequence.to_be_bytes().to_vec(), payload.to_vec()]);
        frames
    }
}

fn read_sequence(frame: &[u8]) -> Result<u64, FramesError> {
    frame.try_into().map(u64::from_be_bytes).map_err(|_| FramesError::Sequence(frame.len()))
}

/// The sequence −1.
const END: u64 = u64::MAX;
