use super::*;

fn read(yaml_as_json: serde_json::Value, attachments: &Attachments) -> Result<Settings, Vec<String>> {
    let raw: RawSettings = serde_json::from_value(yaml_as_json).unwrap();
    Settings::from_raw(raw, attachments).map_err(|mistakes| {
        mistakes.iter().map(|mistake| format!("{}: {}", mistake.path, mistake.message)).collect()
    })
}

fn attachments(files: &[(&str, &str)]) -> Attachments {
    let files = files.iter().map(|(path, text)| (PathBuf::from(path), Ok(text.as_bytes().to_vec())));
    Attachments { files: files.collect(), admin_token: None }
}

#[test]
fn the_defaults_are_valid_and_as_documented() {
    let settings = read(serde_json::json!({}), &Attachments::default()).unwrap();
    assert_eq!(settings.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(settings.admin.listen, "127.0.0.1:8081".parse().unwrap());
    assert!(settings.admin.token.is_none());
    assert_eq!(settings.admin.replica_networks.len(), 6);
    assert_eq!(settings.shards, None);
    assert_eq!(settings.limits.first_output, Duration::from_secs(600));
    assert_eq!(settings.limits.answer, None);
    assert_eq!(settings.retry.attempts_max, 3);
    assert_eq!(settings.usage, UsageSink::Nowhere);
}

#[test]
fn every_policy_of_the_core_can_be_configured() {
    for policy in Policy::ALL {
        let raw: RawPolicy = serde_json::from_value(policy.as_str().into()).unwrap();
        assert_eq!(Policy::from(raw), policy);
    }
}

#[test]
fn every_parameter_of_a_policy_can_be_configured_within_the_range_of_the_core() {
    let read = |parameters: serde_json::Value| {
        serde_json::from_value::<RawPolicyParameters>(parameters).map(PolicyParameters::from)
    };
    let defaults = read(serde_json::json!({})).unwrap();
    assert_eq!(defaults, PolicyParameters::default());
    // (group, name, least, most, beyond)
    let ranges = [
        ("bounded_hash", "load_factor", 1.0, 100.0, 100.5),
        ("bounded_hash", "points", 1.0, 4_096.0, 4_097.0),
        ("bounded_hash", "prefix_blocks", 1.0, 8_192.0, 0.0),
        ("tree", "cache_threshold", 0.0, 1.0, 1.01),
        ("tree", "balance_abs", 0.0, 1_000_000.0, -1.0),
        ("tree", "balance_rel", 1.0, 1_000.0, 0.5),
        ("tree", "characters_max", 64.0, 1_073_741_824.0, 63.0),
        ("weights", "queue", 0.0, 1_000.0, -0.5),
        ("weights", "kv", 0.0, 1_000.0, 1_001.0),
        ("weights", "prefix", 0.0, 1_000.0, -1.0),
        ("sticky", "affinity_min", 0.0, 1.0, 2.0),
        ("sticky", "saturation_tokens", 0.0, 4_294_967_296.0, 4_294_967_297.0),
    ];
    let number = |value: f64| -> serde_json::Value { serde_json::from_str(&value.to_string()).unwrap() };
    for (group, name, least, most, beyond) in ranges {
        let one = |value| read(serde_json::json!({ group: { name: number(value) } }));
        for value in [least, most] {
            let parameters = one(value).unwrap_or_else(|error| panic!("{group}.{name} {value}: {error}"));
            assert_eq!(parameters.check(), Ok(()), "{group}.{name} {value}");
        }
        assert!(one(beyond).is_err(), "{group}.{name} {beyond}");
    }
    for blocks in [1, 16_777_216] {
        let parameters = read(serde_json::json!({ "prefix_index_blocks": blocks })).unwrap();
        assert_eq!((parameters.prefix_index_blocks, parameters.check()), (Some(blocks), Ok(())));
    }
    assert!(read(serde_json::json!({ "prefix_index_blocks": 0 })).is_err());
    assert!(read(serde_json::json!({ "prefix": 1 })).is_err(), "an unknown key");
}

#[test]
fn a_pool_has_the_replicas_of_its_list_and_of_its_file_once() {
    let config = serde_json::json!({
        "pools": {"m-8b": {
            "policy": "round_robin", "replicas": ["http://a:8000", "http://b:8000/"], "replica_file": "fleet.txt",
            "engine_key_file": "key",
        }},
        "admin": {"token_file": "token"},
    });
    let files =
        attachments(&[("fleet.txt", "http://b:8000\nhttp://c:8000\n"), ("key", "k-1\n"), ("token", " t \n")]);
    let settings = read(config, &files).unwrap();
    let pool = &settings.pools["m-8b"];
    assert_eq!(pool.model, "m-8b");
    let urls: Vec<String> = pool.replicas.iter().map(ReplicaUrl::to_string).collect();
    assert_eq!(urls, ["http://a:8000", "http://b:8000", "http://c:8000"]);
    assert_eq!(pool.engine_key.as_ref().map(Secret::reveal), Some("k-1"));
    assert!(settings.admin.token.as_ref().unwrap().matches(b"t"));
    let printed = format!("{settings:?}");
    assert!(!printed.contains("k-1"), "{printed}");
}

#[test]
fn the_token_of_the_environment_counts_where_the_file_has_none() {
    let mut files = attachments(&[("token", "of-the-file")]);
    files.admin_token = Some(Secret::new("of-the-environment"));
    for (config, expected) in [
        (serde_json::json!({}), "of-the-environment"),
        (serde_json::json!({"admin": {"token_file": "token"}}), "of-the-file"),
    ] {
        assert_eq!(read(config, &files).unwrap().admin.token.unwrap().reveal(), expected);
    }
}

#[test]
fn every_mistake_is_reported_at_once() {
    let config = serde_json::json!({
        "listen": "localhost:8080",
        "tls": {"certificate_file": "cert.pem", "key_file": "gone.pem"},
        "admin": {
            "listen": ":1", "token": "a", "token_file": "token", "replica_networks": ["10.0.0.0/8", "10.0.0.1/33"],
        },
        "replicas": ["http://a:8000", "gpu1:8000", "http://user:hunter2@b", "http://A:8000"],
        "pools": {
            "unknown": {"replicas": ["http://c"]},
            "m-8b": {"model": " ", "replicas": ["http://a:8000"], "replica_file": "fleet.txt"},
            "m-70b": {"engine_key_file": "blank"},
        },
        "aliases": {"gpt": "m-9b"},
        "probe": {"report_ms": 500, "stale_ms": 400},
        "breaker": {"trial_ms": 500, "trial_ms_max": 400},
        "usage": {"file": ""},
    });
    let files = attachments(&[
        ("cert.pem", "no certificate"),
        ("fleet.txt", "http://d:8000\nnonsense\n"),
        ("blank", "\n"),
        ("token", "t"),
    ]);
    let expected = [
        "listen: `localhost:8080` is not an IP address with a port",
        "tls.key_file: cannot read gone.pem: it was not read",
        "admin.listen: `:1` is not an IP address with a port",
        "admin.token: the token is given twice, by `token` and by `token_file`",
        "admin.replica_networks[1]: `10.0.0.1/33` is not a network",
        "replicas[1]: the URL has no scheme",
        "replicas[2]: the URL carries a user name or password",
        "replicas[3]: http://a:8000 stands at replicas[0] already",
        "pools.m-70b.engine_key_file: blank is empty, or holds what a header cannot",
        "pools.m-8b.model: a name is empty, longer than 256 bytes, or has blanks around it or control characters in it",
        "pools.m-8b.replicas[0]: http://a:8000 stands at replicas[0] already",
        "pools.m-8b.replica_file: fleet.txt: line 2: the URL has no scheme",
        "pools.unknown: `unknown` stands for requests that name no known model",
        "aliases.gpt: `m-9b` is neither a pool nor an alias",
        "probe.stale_ms: every report would be stale (400 ms) before the next comes (500 ms)",
        "breaker.trial_ms_max: the longest time (400 ms) is below the first (500 ms)",
        "usage.file: the path is empty",
    ];
    let mistakes = read(config, &files).unwrap_err();
    assert_eq!(mistakes, expected, "{mistakes:#?}");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let cases = [
        (
            "two listeners on one port",
            serde_json::json!({"listen": "0.0.0.0:80", "admin": {"listen": "127.0.0.1:80"}}),
            Some("admin.listen: `127.0.0.1:80` and `listen`, `0.0.0.0:80`, take the same port"),
        ),
        (
            "ports that the system chooses are two",
            serde_json::json!({"listen": "127.0.0.1:0", "admin": {"listen": "127.0.0.1:0"}}),
            None,
        ),
        (
            "a pool that can never serve",
            serde_json::json!({"pools": {"m": {}}}),
            Some("pools.m: pool `m` has no replica and no way to get one"),
        ),
        (
            "a pool whose replicas are registered later",
            serde_json::json!({"pools": {"m": {}}, "admin": {"token": "t"}}),
            None,
        ),
        (
            "a token that no header can carry",
            serde_json::json!({"admin": {"token": "two words"}}),
            Some("admin.token: the token is empty, or holds what a header cannot"),
        ),
    ];
    for (name, config, expected) in cases {
        let mistakes = read(config, &Attachments::default()).err().unwrap_or_default();
        assert_eq!(mistakes, expected.into_iter().collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn paths_are_relative_to_the_folder_of_the_file() {
    let mut raw: RawSettings = serde_json::from_value(serde_json::json!({
        "tls": {"certificate_file": "cert.pem", "key_file": "/etc/key.pem"},
        "pools": {"m": {"replica_file": "fleet.txt"}},
        "usage": {"file": "usage.jsonl"},
    }))
    .unwrap();
    raw.resolve_paths("/srv".as_ref());
    let files: Vec<_> = raw.files().into_iter().map(|path| path.display().to_string()).collect();
    assert_eq!(files, ["/etc/key.pem", "/srv/cert.pem", "/srv/fleet.txt"]);
    assert_eq!(raw.usage.file.as_deref(), Some("/srv/usage.jsonl"));
    raw.usage.file = Some("-".to_owned());
    raw.resolve_paths("/srv".as_ref());
    assert_eq!(raw.usage.file.as_deref(), Some("-"));
}

#[test]
fn a_number_outside_its_range_is_not_read() {
    for (config, expected) in [
        (serde_json::json!({"shards": 1025}), "1025 is not in 0 to 1024"),
        (serde_json::json!({"limits": {"head_ms": 0}}), "0 is not in 1 to 86400000"),
        (serde_json::json!({"retry": {"ratio": 1.5}}), "1.5 is not in 0 to 1"),
    ] {
        let error = serde_json::from_value::<RawSettings>(config).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}
