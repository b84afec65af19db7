//! Files with mistakes, and what an operator is told about them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use expediter_gateway::settings::RawSettings;
use serde_json::Value;

use super::load::{FileRole, Loaded, Source, load, load_from};
use super::schema::schema;

/// Loads `text` as a file called `f`. Of the files that it names, only those in `files` are there.
fn load_text(
    text: &str,
    sets: &[&str],
    urls: &[&str],
    files: &[(&str, &str)],
) -> Result<Loaded, Vec<String>> {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let source =
        Source { file: Some(PathBuf::from("f")), sets: owned(sets), urls: owned(urls), admin_token: None };
    let mut contents_of = |_: FileRole, path: &Path| {
        let found = files.iter().find(|(name, _)| Path::new(name) == path);
        found.map(|(_, contents)| contents.as_bytes().to_vec()).ok_or_else(|| "no such file".to_owned())
    };
    load_from(source, Some(Ok(text.as_bytes().to_vec())), &mut contents_of)
        .map_err(|problems| problems.lines().collect())
}

fn mistakes(text: &str) -> Vec<String> {
    load_text(text, &[], &[], &[]).err().unwrap_or_default()
}

/// A case is a name, a file, and the lines that `check` prints.
fn check_all(cases: &[(&str, &str, &[&str])]) {
    for (name, text, expected) in cases {
        assert_eq!(mistakes(text), *expected, "{name}");
    }
}

#[test]
fn yaml_that_a_configuration_has_no_use_for_is_refused_at_its_place() {
    check_all(&[
        ("nothing", "", &[]),
        ("only comments", "# nothing\n", &[]),
        ("a byte order mark", "\u{feff}listen: 127.0.0.1:1\n", &[]),
        ("JSON is YAML", r#"{"listen": "127.0.0.1:1", "shards": 2}"#, &[]),
        (
            "broken syntax",
            "listen: 127.0.0.1:1\npools: [a\nb: c\n",
            &[
                "f:3:2: this is not YAML: illegal placement of ':' indicator; mend the syntax here first; nothing else \
               was checked yet",
            ],
        ),
        (
            "a key twice, and its value is not looked at",
            "limits:\n  head_ms: 5\n  head_ms: soon\n",
            &["f:3:3: limits.head_ms: the key stands in this map already at line 2; keep one of the two"],
        ),
        (
            "anchors, aliases and merge keys",
            "pools:\n  a: &a\n    replicas: [http://a]\n  b:\n    <<: *a\n",
            &[
                "f:2:6: pools.a: a YAML anchor (`&name`) names this value; take the anchor away",
                "f:5:5: pools.b.\"<<\": there is no setting `<<`; take it out; the keys here are engine_key_file, model, \
                 policy, policy_parameters, replica_file, replicas",
                "f:5:9: pools.b.\"<<\": a YAML alias (`*name`) stands for a value that is written elsewhere; write the \
                 value out: aliases and anchors are not read",
            ],
        ),
        (
            "tags",
            "shards: !!int 3\n",
            &[
                "f:1:9: shards: a YAML tag (`tag:yaml.org,2002:int`) stands before this value; take the tag away; a \
               value in quotes is text",
            ],
        ),
        (
            "two documents",
            "shards: 1\n---\nshards: 2\n",
            &["f:2:1: a second document begins here; keep one document in the file"],
        ),
        (
            "a map as a key",
            "? { a: b }\n: c\n",
            &["f:1:3: a map or a list stands where a key is expected; write a name"],
        ),
        (
            "a list at the root",
            "- listen\n",
            &["f:1:1: a map is expected, not a list; write `KEY: VALUE` on lines of its own, indented"],
        ),
    ]);
}

#[test]
fn nesting_without_end_is_refused_and_not_followed() {
    for (text, expected) in [
        ("[".repeat(100_000), "f:1:256: this is not YAML: recursion limit exceeded"),
        ("- ".repeat(100), "nested more than 32 deep; no setting lies that deep"),
    ] {
        let found = mistakes(&text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(expected), "{found:?}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let source = Source { file: Some(PathBuf::from("f")), ..Source::default() };
    let text = Some(Ok(b"shards: 1\n\xff".to_vec()));
    let problems = load_from(source, text, &mut |_, _| unreachable!("no file is named")).err().unwrap();
    assert_eq!(problems.to_string(), "f:1:1: line 2 is not UTF-8; save the file in UTF-8");
}

#[test]
fn keys_types_ranges_and_choices_are_checked() {
    check_all(&[
        (
            "a slip in a key, at each level",
            "listne: 127.0.0.1:1\nlimits:\n  haed_ms: 1\npools:\n  m:\n    replica: [http://a]\n",
            &[
                "f:1:1: listne: there is no setting `listne`; did you mean `listen`?",
                "f:3:3: limits.haed_ms: there is no setting `haed_ms`; did you mean `head_ms`?",
                "f:6:5: pools.m.replica: there is no setting `replica`; did you mean `replicas`?",
            ],
        ),
        (
            "a key from nowhere",
            "log: { colour: true }\n",
            &[
                "f:1:8: log.colour: there is no setting `colour`; take it out; the keys here are format, level",
            ],
        ),
        (
            "units",
            "limits:\n  head_ms: 10s\n  body_bytes_max: 32MiB\nwait: { requests_max: 1_000 }\n",
            &[
                "f:2:12: limits.head_ms: a whole number is expected, not the text `10s`; write 10000 (milliseconds)",
                "f:3:19: limits.body_bytes_max: a whole number is expected, not the text `32MiB`; write 33554432 \
                 (bytes)",
                "f:4:23: wait.requests_max: a whole number is expected, not the text `1_000`; write 1000",
            ],
        ),
        (
            "ranges",
            "shards: -1\nlimits: { head_ms: 0, gap_ms: 86400001 }\nretry: { ratio: 1.5 }\nramp_ms: 1.5\n",
            &[
                "f:1:9: shards: -1 is out of range; write a whole number from 0 to 1024",
                "f:2:20: limits.head_ms: 0 is out of range; write a whole number from 1 to 86400000",
                "f:2:31: limits.gap_ms: 86400001 is out of range; write a whole number from 1 to 86400000",
                "f:3:17: retry.ratio: 1.5 is out of range; write a number from 0 to 1",
                "f:4:10: ramp_ms: a whole number is expected, not `1.5`; write a whole number",
            ],
        ),
        ("a whole number is a number", "retry: { ratio: 1 }\n", &[]),
        (
            "choices",
            "pools: { m: { policy: least_token, replicas: [http://a] } }\nlog:\n  format: xml\n  level: 3\n",
            &[
                "f:1:23: pools.m.policy: the text `least_token` is not one of the choices; did you mean \
                 `least_tokens`? Else choose `round_robin`, `random`, `least_requests`, `power_of_two`, \
                 `power_of_two_tokens`, `peak_ewma`, `least_tokens`, `least_pending_tokens`, `prefix_hash_bounded`, `approximate_tree`, `lmetric`, `weighted` \
                 or `sticky_until_saturated`",
                "f:3:11: log.format: the text `xml` is not one of the choices; choose `human` or `json`",
                "f:4:10: log.level: `3` is not one of the choices; choose `error`, `warn`, `info`, `debug` or `trace`",
            ],
        ),
        (
            "types",
            "listen: 8080\nprobe:\nreplicas: http://user:hunter2@a\npools: { m: { replicas: [17] } }\nexpose: { \
             replica_header: yes }\nlimits: [1]\naliases: { a: 3 }\nadmin: { token: 12345 }\n",
            &[
                "f:1:9: listen: text is expected, not `8080`; put it in quotes",
                "f:2:6: probe: a map is expected, and nothing stands here; write a value, or take the key out",
                "f:3:11: replicas: a list is expected, not this text; write `[…]`, or `- …` on lines of its own",
                "f:4:26: pools.m.replicas[0]: text is expected, not `17`; put it in quotes",
                "f:5:27: expose.replica_header: `true` or `false` is expected, not the text `yes`; write `true` or \
                 `false`",
                "f:6:1: limits: a map is expected, not a list; write `KEY: VALUE` on lines of its own, indented",
                "f:7:15: aliases.a: text or a list is expected, not `3`; put it in quotes",
                "f:8:17: admin.token: text is expected, not something else; put it in quotes",
            ],
        ),
        (
            "what is missing is asked for",
            "tls:\n  key_file: key.pem\naliases:\n  a:\n    - weight: 3\n",
            &[
                "f:1:1: tls: the key `certificate_file` is missing; add `certificate_file`: PEM file with the \
                 certificate and the chain that leads to its root",
                "f:5:7: aliases.a[0]: the key `to` is missing; add `to`: The name of a pool or of another alias",
            ],
        ),
    ]);
}

/// Case F01.
#[test]
fn f01_aliases_in_a_circle_and_loose_ends_are_refused() {
    let pools = "pools: { m-8b: { replicas: [http://a] }, m-70b: { replicas: [http://b] } }\n";
    let circle = |way: &str| format!("these aliases lead in a circle: {way}; let one of them name a pool");
    let cases = [
        ("a and b", "aliases: { a: b, b: a }", vec![format!("f:2:15: aliases.a: {}", circle("`a` → `b` → `a`"))]),
        ("a and a", "aliases: { a: a }", vec![format!("f:2:15: aliases.a: {}", circle("`a` → `a`"))]),
        ("a chain that ends well", "aliases: { a: b, b: c, c: m-8b }", vec![]),
        (
            "a missing pool",
            "aliases:\n  a: m-9b\n  b: [{ to: m-8b }, { to: mixtral }]",
            vec![
                "f:3:6: aliases.a: `m-9b` is neither a pool nor an alias; did you mean `m-8b`?".to_owned(),
                "f:4:27: aliases.b[1].to: `mixtral` is neither a pool nor an alias; add `mixtral` under `pools`, or \
                 name one that is there"
                    .to_owned(),
            ],
        ),
        (
            "the name of a pool",
            "aliases: { m-8b: m-70b }",
            vec![
                "f:2:18: aliases.m-8b: `m-8b` is the name of a pool and of an alias; rename the alias or the pool: a \
                 name that clients ask for means one thing"
                    .to_owned(),
            ],
        ),
    ];
    for (name, aliases, expected) in cases {
        assert_eq!(mistakes(&format!("{pools}{aliases}\n")), expected, "{name}");
    }
}

#[test]
fn mistakes_of_meaning_are_found_beside_those_of_form_and_have_their_place() {
    check_all(&[
        (
            "both kinds in one report",
            "listen: localhost:80\nshards: many\nreplicas:\n  - http://a:8000\n  - gpu1:8000\n  - http://a:8000/\n",
            &[
                "f:1:9: listen: `localhost:80` is not an IP address with a port; write `127.0.0.1:8080` for this \
                 machine only, `0.0.0.0:8080` or `[::]:8080` for all networks",
                "f:2:9: shards: a whole number is expected, not the text `many`; write a whole number",
                "f:5:5: replicas[1]: the URL has no scheme; put `http://` in front",
                "f:6:5: replicas[2]: http://a:8000 stands at replicas[0] already; name each replica once: it belongs \
                 to one pool, and its load is counted there",
            ],
        ),
        (
            "a pool that is wrong in form is no reason to call its alias loose, nor the pool empty",
            "pools:\n  m-8b: http://a\n  m-70b:\n    replica: [http://b]\naliases: { a: m-8b, b: m-70b }\n",
            &[
                "f:2:9: pools.m-8b: a map is expected, not the text `http://a`; write `KEY: VALUE` on lines of its \
                 own, indented",
                "f:4:5: pools.m-70b.replica: there is no setting `replica`; did you mean `replicas`?",
            ],
        ),
        (
            "a default that clashes with what is written",
            "listen: 127.0.0.1:8081\n",
            &[
                "f:1:1: admin.listen: `127.0.0.1:8081` and `listen`, `127.0.0.1:8081`, take the same port; give the \
               admin listener a port of its own",
            ],
        ),
        (
            "what cannot be right together",
            "probe:\n  report_ms: 500\n  stale_ms: 400\nbreaker:\n  trial_ms: 60000\n",
            &[
                "f:3:13: probe.stale_ms: every report would be stale (400 ms) before the next comes (500 ms); set \
                 `stale_ms` to several times `report_ms`",
                "f:4:1: breaker.trial_ms_max: the longest time (5000 ms) is below the first (60000 ms); set \
                 `trial_ms_max` to at least `trial_ms`",
            ],
        ),
        (
            "a file that is not there",
            "admin:\n  token_file: token\n",
            &[
                "f:2:15: admin.token_file: cannot read token: no such file; name a file that exists and that the \
               gateway's user may read",
            ],
        ),
    ]);
}

#[test]
fn a_replica_file_is_checked_line_by_line() {
    let text = "pools:\n  m:\n    replica_file: fleet.txt\n";
    let found = load_text(text, &[], &[], &[("fleet.txt", "http://a\nnonsense\n")]).err().unwrap();
    let expected =
        "f:3:19: pools.m.replica_file: fleet.txt: line 2: the URL has no scheme; put `http://` in front";
    assert_eq!(found, [expected]);
}

#[test]
fn the_command_line_stands_above_the_file() {
    let file = "listen: 127.0.0.1:1\nreplicas: [http://a]\npools: { m: { replicas: [http://b] } }\n";
    let sets = [
        "listen=127.0.0.1:2",
        "limits.answer_ms=5",
        "pools.m.replicas[1]=http://c",
        r#"pools."llama 3.1".replicas[0]=http://d"#,
        "log={format: json}",
        "limits.answer_ms=",
    ];
    let settings = load_text(file, &sets, &["http://e"], &[]).unwrap().settings;
    assert_eq!(settings.listen.port(), 2);
    assert_eq!(settings.limits.answer, None);
    assert_eq!(settings.pools["m"].replicas.len(), 2);
    assert_eq!(settings.pools["llama 3.1"].replicas.len(), 1);
    let urls: Vec<String> = settings.replicas.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["http://a", "http://e"]);
}

#[test]
fn mistakes_of_the_command_line_point_at_it() {
    let cases: [(&[&str], &[&str], &[&str]); 8] = [
        (&["listen=8080"], &[], &["--set listen: text is expected, not `8080`; put it in quotes"]),
        (
            &["limits={gap_ms: 0}"],
            &[],
            &["--set limits: limits.gap_ms: 0 is out of range; write a whole number from 1 to 86400000"],
        ),
        (&["lisn=1"], &[], &["--set lisn: there is no setting `lisn`; did you mean `listen`?"]),
        (
            &["listen.port=1"],
            &[],
            &[
                "--set listen.port: what stands before `port` is no map; name a key of a map, or an index of a list \
               that is there",
            ],
        ),
        (
            &["replicas[3]=http://b"],
            &[],
            &[
                "--set replicas[3]: the list has 1 items, and no index 3; name a key of a map, or an index of a list \
               that is there",
            ],
        ),
        (
            &["shards", "a b=1"],
            &[],
            &[
                "--set a b: a key with other characters than letters, digits, `_`, `-`, `/` and `:` stands in double \
                 quotes; write PATH=VALUE, such as `limits.head_ms=5000` or \
                 `pools.\"llama 3\".replicas[0]=http://gpu1:8000`",
                "--set shards: it has no `=`; write PATH=VALUE, such as `limits.head_ms=5000` or \
                 `pools.\"llama 3\".replicas[0]=http://gpu1:8000`",
            ],
        ),
        (
            &["shards=[1"],
            &[],
            &[
                "--set shards: this is not YAML: while parsing a flow sequence, expected ',' or ']'; mend the syntax \
               here first; nothing else was checked yet",
            ],
        ),
        (&[], &["http://b", "gpu1:8000"], &["argument URL 2: the URL has no scheme; put `http://` in front"]),
    ];
    for (sets, urls, expected) in cases {
        let file = "listen: 127.0.0.1:1\nreplicas: [http://a]\n";
        let found = load_text(file, sets, urls, &[]).err().unwrap_or_default();
        assert_eq!(found, expected, "{sets:?} {urls:?}");
    }
}

#[test]
fn the_examples_are_valid() {
    for name in ["minimal.yaml", "two-pools.yaml", "full.yaml"] {
        let loaded = load(Source { file: Some(config_folder().join(name)), ..Source::default() });
        assert!(loaded.is_ok(), "{}", loaded.err().unwrap());
    }
}

#[test]
fn the_full_example_names_every_key_with_its_default() {
    let load =
        |name: &str| load(Source { file: Some(config_folder().join(name)), ..Source::default() }).unwrap();
    let (mut full, minimal) = (load("full.yaml").settings, load("minimal.yaml").settings);
    full.replicas.clone_from(&minimal.replicas);
    full.pools.clear();
    full.aliases = minimal.aliases.clone();
    assert_eq!(format!("{full:?}"), format!("{minimal:?}"));

    let text = std::fs::read_to_string(config_folder().join("full.yaml")).unwrap();
    let schema = schema();
    let mut keys = BTreeSet::new();
    visit(&schema, &mut |node| {
        keys.extend(node["properties"].as_object().into_iter().flatten().map(|(key, _)| key));
    });
    let missing: Vec<_> = keys.into_iter().filter(|key| !text.contains(&format!("{key}:"))).collect();
    assert_eq!(missing, Vec::<&String>::new(), "keys that full.yaml does not show");
}

#[test]
fn the_schema_files_are_current() {
    for (name, schema, command) in [
        ("expediter.schema.json", schema(), "expediter schema"),
        ("simulate.schema.json", crate::simulate::load::schema(), "expediter schema --simulate"),
    ] {
        let file = std::fs::read_to_string(config_folder().join(name)).unwrap();
        assert!(serde_json::from_str::<Value>(&file).unwrap() == schema, "run: {command} > config/{name}");
    }
}

/// The check of a tree knows these keywords and no others: with one more, it would let something pass.
#[test]
fn the_schema_uses_only_keywords_that_are_checked() {
    const CHECKED: [&str; 12] = [
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "enum",
        "items",
        "maximum",
        "minimum",
        "oneOf",
        "properties",
        "required",
        "type",
    ];
    const DESCRIBING: [&str; 6] = ["$defs", "$schema", "default", "description", "title", "writeOnly"];
    for schema in [schema(), crate::simulate::load::schema()] {
        visit(&schema, &mut |node| {
            for keyword in node.as_object().into_iter().flatten().map(|(keyword, _)| keyword.as_str()) {
                assert!(CHECKED.contains(&keyword) || DESCRIBING.contains(&keyword), "{keyword}");
            }
        });
    }
}

#[test]
fn every_key_is_described_and_the_defaults_pass_the_schema() {
    for schema in [schema(), crate::simulate::load::schema()] {
        visit(&schema, &mut |node| {
            for (key, property) in node["properties"].as_object().into_iter().flatten() {
                assert!(property["description"].is_string(), "{key}");
            }
        });
    }
    let defaults = serde_json::to_string(&RawSettings::default()).unwrap();
    assert_eq!(mistakes(&defaults), Vec::<String>::new());
}

/// Calls `each` for every schema within `schema`.
fn visit<'a>(schema: &'a Value, each: &mut dyn FnMut(&'a Value)) {
    each(schema);
    for keyword in ["$defs", "properties"] {
        schema[keyword].as_object().into_iter().flatten().for_each(|(_, inner)| visit(inner, each));
    }
    for keyword in ["anyOf", "oneOf"] {
        schema[keyword].as_array().into_iter().flatten().for_each(|inner| visit(inner, each));
    }
    for keyword in ["additionalProperties", "items"] {
        if schema[keyword].is_object() {
            visit(&schema[keyword], each);
        }
    }
}

fn config_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config")
}
