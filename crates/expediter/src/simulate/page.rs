//! The page: one file with everything in it, which draws charts of the outcomes. It asks the network for nothing.

mod data;

use anyhow::Result;

use self::data::Data;
use super::outcome::Outcome;
use super::plan::Plan;

/// The text of the page. `command` is shown at its foot.
///
/// # Errors
/// The data cannot be written as JSON, which shows an error of the program.
pub(crate) fn page(plan: &Plan, outcomes: &[Outcome], command: &str) -> Result<String> {
    let data = serde_json::to_string(&Data::of(plan, outcomes, command))?;
    // Within a script element only `<` could end it.
    let data = data.replace('<', "\\u003c");
    let title = plan.name.replace('&', "&amp;").replace('<', "&lt;");
    // The data come last: what they hold is not looked at for other places.
    Ok(TEMPLATE
        .replace("{{title}}", &title)
        .replace("{{style}}", include_str!("page/page.css"))
        .replace("{{script}}", include_str!("page/page.js"))
        .replace("{{data}}", &data))
}

const TEMPLATE: &str = include_str!("page/page.html");
