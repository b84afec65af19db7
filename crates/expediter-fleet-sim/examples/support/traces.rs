//! Traces that the repository ships.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use expediter_types::{Arrival, Tokens};
use expediter_wire::trace::{Format, Reader};

/// Prompt and answer of each request of the conversation trace.
pub fn conversation_pairs() -> Arc<[(Tokens, Tokens)]> {
    let requests = shipped("azure_llm_2023_conv.csv.gz", Format::Azure);
    requests.into_iter().map(|request| (request.prompt.tokens(), request.output)).collect()
}

/// The requests of a trace that the repository ships.
#[expect(clippy::disallowed_types, reason = "an example reads its data itself")]
fn shipped(name: &str, format: Format) -> Vec<Arrival> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(name);
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(file).read_to_string(&mut text).expect("the traces are gzipped text");
    let mut reader = Reader::new(format, None);
    text.lines().filter_map(|line| reader.line(line).expect("the traces are read by tests")).collect()
}
