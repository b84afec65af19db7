//! One request of a client, from its body to its record.

mod attempt;
mod body;
mod feed;
mod handler;
mod heads;
mod models_list;
mod prompt;
mod receive;
mod relay;
mod request_id;
mod settlement;
mod watched;

pub(crate) use handler::{Exchange, handle};
pub(crate) use settlement::{Outcome, Stage};
