//! Captured requests of `fixtures/` are sent as they are, and the answers compared with those of the real engine
//! (vLLM 0.32.0): status, headers, and JSON member by member in order. Error bodies must be equal to the byte.
//!
//! Where the replica differs on purpose is written down in `DIFFERENCES.md`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use expediter_engine_server::{Adapter, AdapterSettings, EngineServer, KvEventsSettings, Settings};
use expediter_engine_sim::{LoraSettings, Settings as EngineSettings};
use expediter_types::{BlockSize, Blocks, Tokens};

use crate::client::{self, Answer, open, read_until};

/// In this order: a later one may find what an earlier one left in the cache.
const ORDINARY: [&str; 102] = [
    "chat_plain",
    "chat_stream",
    "chat_stream_usage",
    "chat_stream_usage_continuous",
    "chat_stream_continuous_only",
    "chat_n2",
    "chat_n2_stream",
    "chat_one_token_stream",
    "chat_return_token_ids",
    "chat_return_token_ids_stream",
    "chat_request_id_header",
    "chat_request_id_body",
    "chat_both_max",
    "chat_no_model",
    "chat_empty_model",
    "chat_content_parts",
    "chat_cached_1",
    "chat_cached_2",
    "chat_cached_3_stream_usage",
    "comp_plain",
    "comp_stream",
    "comp_stream_usage",
    "comp_stream_usage_continuous",
    "comp_batch",
    "comp_batch_stream",
    "comp_batch_token_ids",
    "comp_token_ids",
    "comp_n2",
    "comp_return_token_ids",
    "comp_return_token_ids_stream",
    "comp_no_max_tokens",
    "comp_empty_prompt",
    "comp_missing_prompt",
    "comp_prompt_array_empty",
    "comp_max_tokens_0",
    "err_unknown_model",
    "err_unknown_model_comp",
    "err_unknown_model_stream",
    "err_malformed_json",
    "err_empty_body",
    "err_json_array",
    "err_json_null",
    "err_missing_messages",
    "err_messages_empty",
    "err_messages_string",
    "err_model_int",
    "err_prompt_too_long_comp",
    "err_prompt_exact_max_len",
    "err_max_tokens_zero",
    "err_max_tokens_negative",
    "err_max_tokens_float",
    "err_max_tokens_huge",
    "err_max_tokens_word",
    "err_max_tokens_string",
    "err_get_on_post",
    "err_delete_on_post",
    "err_put_on_get",
    "err_no_content_type",
    "err_content_type_form",
    "err_invalid_utf8",
    "err_duplicate_keys",
    "err_utf8_bom",
    "err_n_zero",
    "err_n_huge",
    "err_stream_options_without_stream",
    "err_prompt_token_out_of_range",
    "err_image_part",
    "err_stream_string",
    "err_many_headers",
    "ok_chunked_request",
    "ok_expect_continue",
    "ok_content_type_charset",
    "ok_content_type_upper",
    "health",
    "health_head",
    "models",
    "models_head",
    "models_one",
    "not_found",
    "root",
    "version",
    "load",
    "ping_get",
    "ping_post",
    "trailing_slash",
    "query_string",
    "tokenize_prompt",
    "tokenize_messages",
    "tokenize_bad_model",
    "tokenize_prompt_strs",
    "tokenize_no_model",
    "options_chat",
    "chat_orca_json",
    "chat_orca_json_stream",
    "chat_orca_text",
    "chat_dp_rank_header_0",
    "chat_dp_rank_header_7",
    "chat_session_header",
    "chat_priority_on_fcfs",
    "chat_cache_salt",
    "err_priority_string",
    "err_lora_load_without_lora",
];

/// Of a server with `--enable-lora`, `VLLM_ALLOW_RUNTIME_LORA_UPDATING` and `--enable-request-id-headers`.
const LORA: [&str; 37] = [
    "lora_models_before",
    "lora_chat_static",
    "lora_chat_static_stream",
    "lora_chat_unknown",
    "lora_load_1",
    "lora_load_1_again",
    "lora_load_1_inplace",
    "lora_load_missing_path",
    "lora_load_empty_name",
    "lora_load_missing_fields",
    "lora_load_name_of_base_model",
    "lora_chat_1",
    "lora_load_2",
    "lora_load_3",
    "lora_models_four",
    "opt_request_id_models",
    "lora_chat_2",
    "lora_chat_3",
    "lora_chat_0_again",
    "lora_tokenize_with_lora_model",
    "lora_comp_2",
    "lora_unload_2",
    "lora_unload_2_again",
    "lora_chat_2_after_unload",
    "lora_unload_static_0",
    "lora_unload_unknown",
    "lora_unload_with_int_id",
    "lora_models_after",
    "lora_reload_0",
    "lora_reload_2_from_other_path",
    "opt_priority",
    "opt_priority_header",
    "opt_priority_header_bad",
    "opt_request_id_echo",
    "opt_request_id_generated",
    "opt_request_id_stream",
    "opt_request_id_on_error",
];

/// Of a server whose queue is full.
const ADMISSION: [&str; 6] = [
    "adm_chat_refused",
    "adm_chat_refused_stream",
    "adm_comp_refused",
    "adm_health",
    "adm_models",
    "adm_comp_batch_refused",
];

/// Of a server in development mode.
const DEV: [&str; 4] = ["is_sleeping", "is_paused", "reset_prefix_cache", "reset_prefix_cache_running"];

/// Of a server with two keys.
const API_KEY: [&str; 14] = [
    "key_missing",
    "key_wrong",
    "key_ok",
    "key_second_ok",
    "key_no_bearer_word",
    "key_lowercase_bearer",
    "key_models_missing",
    "key_health_missing",
    "key_version_missing",
    "key_tokenize_missing",
    "key_ping_missing",
    "key_load_missing",
    "key_options_missing",
    "key_x_api_key",
];

/// The engine of the captures, in a hurry.
fn captured_engine() -> Settings {
    let engine = EngineSettings {
        block_size: BlockSize(const { NonZeroU32::new(32).unwrap() }),
        blocks: Blocks(4_096),
        ..EngineSettings::default()
    };
    Settings {
        model: "tiny".to_owned(),
        max_model_len: Tokens(8_192),
        engine,
        speed: 100.0,
        ..Settings::default()
    }
}

#[tokio::test]
async fn answers_have_the_shape_of_the_real_engine() {
    let server = EngineServer::start(captured_engine()).await.unwrap();
    compare(&server, "", &ORDINARY).await;
    server.shutdown().await;
}

#[tokio::test]
async fn adapters_are_answered_for_as_by_the_real_engine() {
    let lora = LoraSettings { max_loras: 2, max_cpu_loras: Some(3), ..LoraSettings::default() };
    let path = |number: u32| format!("loras/lora-{number}");
    let adapters = AdapterSettings {
        modules: vec![Adapter { name: "lora-0".to_owned(), path: path(0) }],
        runtime_updates: true,
        paths: Some((0..4).map(path).collect()),
    };
    let engine = EngineSettings { lora: Some(lora), ..captured_engine().engine };
    let settings = Settings { engine, adapters, request_id_headers: true, ..captured_engine() };
    let server = EngineServer::start(settings).await.unwrap();
    compare(&server, "lora/", &LORA).await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_full_queue_refuses_as_the_real_engine() {
    let engine = EngineSettings { max_num_queued_reqs: Some(1), ..captured_engine().engine };
    let server = EngineServer::start(Settings { engine, speed: 1.0, ..captured_engine() }).await.unwrap();
    let filler = r#"{"prompt":"once upon","max_tokens":5000,"stream":true}"#;
    let mut filler = open(server.addresses()[0], "/v1/completions", filler).await;
    read_until(&mut filler, "data: ").await;
    compare(&server, "admission/", &ADMISSION).await;
    server.shutdown().await;
}

#[tokio::test]
async fn the_development_mode_answers_as_that_of_the_real_engine() {
    let server = EngineServer::start(Settings { dev_mode: true, ..captured_engine() }).await.unwrap();
    compare(&server, "dev/", &DEV).await;
    server.shutdown().await;
}

#[tokio::test]
async fn keys_are_asked_for_as_by_the_real_engine() {
    let api_keys = vec!["sekret".to_owned(), "other".to_owned()];
    let server = EngineServer::start(Settings { api_keys, ..captured_engine() }).await.unwrap();
    compare(&server, "apikey/", &API_KEY).await;
    server.shutdown().await;
}

#[tokio::test]
async fn the_sources_of_kv_events_are_told_as_by_the_real_engine() {
    let replay = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let kv_events =
        Some(KvEventsSettings { replay, topic: "kv@x".to_owned(), ..KvEventsSettings::default() });
    let server = EngineServer::start(Settings { kv_events, ..captured_engine() }).await.unwrap();
    compare(&server, "kv-events/", &["kv_event_sources"]).await;
    server.shutdown().await;
}

/// Sends the requests of these captures, in order.
async fn compare(server: &EngineServer, folder: &str, names: &[&str]) {
    let address = server.addresses()[0];
    let mut differences = Vec::new();
    for name in names {
        let name = format!("{folder}{name}");
        let request = fixture(&name, "req");
        let method = String::from_utf8_lossy(&request).split(' ').next().unwrap_or_default().to_owned();
        let expected = Answer::parse(&fixture(&name, "resp"), &method);
        let answer = client::exchange(address, &request).await.expect(&name);
        if shape(&answer, address, &name) != shape(&expected, address, &name) {
            differences.push(format!(
                "{name}\n  real: {:#?}\n  ours: {:#?}",
                shape(&expected, address, &name),
                shape(&answer, address, &name)
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

/// What is compared: status, headers by name, whether the framing was complete, and the body's shape.
fn shape(answer: &Answer, address: SocketAddr, name: &str) -> (u16, Vec<String>, bool, Vec<String>) {
    let mut headers: Vec<String> = answer
        .headers
        .iter()
        .map(|(name, value)| match name.as_str() {
            "date" | "content-length" => name.clone(),
            // Drawn anew, where the client brought none.
            "x-request-id" if value.len() == 32 => name.clone(),
            "endpoint-load-metrics" => format!("{name}: {}", skeleton(value)),
            "location" => format!("{name}: {}", value.replace(&address.to_string(), CAPTURED_AT)),
            _ => format!("{name}: {value}"),
        })
        .collect();
    headers.sort();
    let mut body = if answer.body.starts_with("data: ") {
        answer.events().iter().map(|event| skeleton(event)).collect()
    } else if answer.status >= 400 {
        vec![answer.body.clone()]
    } else {
        vec![skeleton(&answer.body)]
    };
    for body in &mut body {
        *body = without_options_of_servers(body);
    }
    // Choices that run side by side come in any order.
    if name.contains("_n2_") || name.contains("_batch_") {
        body.sort();
    }
    (answer.status, headers, answer.complete, body)
}

/// Takes out what some of the captured servers were told to say: the times of a request
/// (`--enable-per-request-metrics`), and the details of its prompt's tokens, which others left out.
fn without_options_of_servers(skeleton: &str) -> String {
    let cut = |text: String, start: &str, put: &str| match text.split_once(start) {
        Some((before, rest)) => {
            format!("{before}{put}{}", rest.split_once('}').map_or("", |(_, after)| after))
        }
        None => text,
    };
    let text = cut(skeleton.to_owned(), r#"s,"metrics":{"#, "s");
    let text = cut(text, r#""metrics":{"#, r#""metrics":null"#);
    cut(text, r#""prompt_tokens_details":{"#, r#""prompt_tokens_details":null"#)
}

/// JSON with its values taken out: names, order, nesting and nulls stay, text becomes `s`, a number `0`, lists
/// of either `[s]` and `[0]`.
fn skeleton(json: &str) -> String {
    let (mut bones, mut rest) = (String::new(), json);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            '-' | '0'..='9' => rest
                .find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'))
                .unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        match first {
            '"' if after.trim_start().starts_with(':') => bones.push_str(token),
            '"' if bones.ends_with("s,") => bones.truncate(bones.len() - 1),
            '"' => bones.push('s'),
            '-' | '0'..='9' if bones.ends_with("0,") => bones.truncate(bones.len() - 1),
            '-' | '0'..='9' => bones.push('0'),
            _ => bones.push_str(token),
        }
        rest = after;
    }
    bones
}

/// The bytes of the string that the text begins with, quotes included.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Of an engine that has just started, without help texts and without what Python and its web server count.
#[tokio::test]
async fn metrics_have_the_names_of_the_real_engine() {
    let server = EngineServer::start(captured_engine()).await.unwrap();
    let answer = client::send(server.addresses()[0], "GET", "/metrics", "").await.unwrap();
    let captured = String::from_utf8(fixture("metrics", "txt")).unwrap();
    let real: BTreeSet<String> = captured.lines().filter_map(series).collect();
    let ours: Vec<String> = answer.body.lines().filter_map(series).collect();
    assert!(ours.len() > 200, "{}", answer.body);
    for series in ours {
        assert!(real.contains(&series), "the real engine has no {series}");
    }
    server.shutdown().await;
}

/// A `# TYPE` line as it is, or a sample without its value; of the labels of an info series the names only.
fn series(line: &str) -> Option<String> {
    if line.starts_with("# TYPE ") {
        return Some(line.to_owned());
    }
    let (name, _) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let is_info = name.starts_with("vllm:cache_config_info");
    Some(if is_info { "vllm:cache_config_info".to_owned() } else { name.to_owned() })
}

fn fixture(name: &str, extension: &str) -> Vec<u8> {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "fixtures", &format!("{name}.{extension}")].iter().collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Where the captured engine listened.
const CAPTURED_AT: &str = "127.0.0.1:8100";

#[test]
fn a_skeleton_keeps_names_and_nulls() {
    let json = r#"{"a":"x\"y","b":[1,2,-3.5e1],"c":[{"d":null},{"d":true}],"e":""}"#;
    assert_eq!(skeleton(json), r#"{"a":s,"b":[0],"c":[{"d":null},{"d":true}],"e":s}"#);
}
