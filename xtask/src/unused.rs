//! Dependencies that are declared and never named.

use crate::source::has_word;

/// Names in `declared` that occur as a word in none of `sources`. A name stands in code with `_` for `-`.
pub(crate) fn unnamed<'a>(declared: &'a [String], sources: &[String]) -> Vec<&'a str> {
    let named = |name: &str| {
        let word = name.replace('-', "_");
        sources.iter().any(|text| has_word(text, &word))
    };
    declared.iter().map(String::as_str).filter(|name| !named(name)).collect()
}

/// Keys of `[workspace.dependencies]` in the root manifest that no member's manifest names.
pub(crate) fn unclaimed<'a>(root_manifest: &'a str, manifests: &[String]) -> Vec<&'a str> {
    let section = root_manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let keys = section.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key.trim());
    let keys = keys.filter(|key| !key.is_empty() && !key.starts_with('#'));
    keys.filter(|key| !manifests.iter().any(|manifest| claims(manifest, key))).collect()
}

fn claims(manifest: &str, key: &str) -> bool {
    let heads = manifest.lines().map(|line| line.split(['.', '=', ' ']).next().unwrap_or_default());
    heads.into_iter().any(|head| head == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_that_no_source_names_is_found() {
        let declared = ["http-body", "tokio", "bytes"].map(str::to_owned);
        let sources =
            ["use http_body::Body;\nlet mut my_bytes = 1;".to_owned(), "tokio::spawn(x)".to_owned()];
        assert_eq!(unnamed(&declared, &sources), ["bytes"]);
    }

    #[test]
    fn a_workspace_dependency_that_no_member_takes_is_found() {
        let root = "[workspace]\n[workspace.dependencies]\nbytes = \"1\"\n# why\nhttp-body = { version = \"1\" }\n\
                    idle = \"1\"\n\n[workspace.lints.rust]\nunsafe_code = \"deny\"\n";
        let manifests =
            ["[dependencies]\nbytes.workspace = true\nhttp-body = { workspace = true }\n".to_owned()];
        assert_eq!(unclaimed(root, &manifests), ["idle"]);
    }
}
