//! Loads a scenario: a file or what ships with the program, and what the command line puts over it.

use std::path::Path;

use crate::config::{Document, Overlay, Problems};
use crate::small_file;

use super::check;
use super::plan::Plan;
use super::raw::RawScenario;
use super::source;

/// Reads and checks a file, or nothing but what the command line says.
///
/// # Errors
/// All mistakes, those of the file in its order.
pub(crate) fn load(file: Option<&Path>, overlay: Overlay<'_>) -> Result<Plan, Box<Problems>> {
    let text = file.map(|file| small_file::bytes(file).map_err(|error| error.to_string()));
    let mut document: Document<RawScenario> = Document::load(file, text.as_ref(), overlay, &schema())?;
    let mut raw = std::mem::take(&mut document.raw);
    raw.resolve_paths(file.and_then(Path::parent).unwrap_or(Path::new("")));
    let plan = check::plan(&raw, &name(file, &raw));
    document.add(plan.as_ref().err().into_iter().flatten().cloned());
    match (document.problems(file), plan) {
        (None, Ok(plan)) => Ok(plan),
        (Some(problems), _) => Err(problems),
        (None, Err(_)) => {
            unreachable!("every mistake of meaning is a finding, unless another finding covers it")
        }
    }
}

/// The name that results go under: that of the file, or of the workload.
fn name(file: Option<&Path>, raw: &RawScenario) -> String {
    let stem = file.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
    let trace = || raw.workload.trace.as_ref()?.file.file_name();
    stem.or_else(|| Some(trace()?.to_string_lossy().into_owned()))
        .or_else(|| raw.workload.name.clone())
        .unwrap_or_else(|| source::DEFAULT.to_owned())
}

/// The JSON Schema of a scenario file.
pub(crate) fn schema() -> serde_json::Value {
    schemars::schema_for!(RawScenario).to_value()
}
