//! Whole answers, not streamed.

use crate::frame::{ErrorFrame, Finishes, Frame, Usage};

/// What a whole answer says beside its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerInspection {
    /// Its `usage`, where it has one.
    pub usage: Option<Usage>,
    /// The choices that ended.
    pub finishes: Finishes,
    /// Its `error`: engines can send one with status 200.
    pub error: Option<ErrorFrame>,
    /// Whether the body is one complete JSON value. Where it is not, the rest says nothing.
    pub complete_json: bool,
}

/// Reads a whole answer.
pub fn inspect_answer(body: &[u8]) -> AnswerInspection {
    match Frame::read(body) {
        Ok(Frame { usage, finishes, error, .. }) => {
            AnswerInspection { usage, finishes, error, complete_json: true }
        }
        Err(_) => AnswerInspection::default(),
    }
}
