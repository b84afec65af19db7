//! What clients send that the gateway does not know, and how it is spelled: it arrives as it was sent.

use serde_json::{Value, json};

use crate::kit::client::Answer;
use crate::kit::fixture;
use crate::kit::gateway::{CHAT, COMPLETIONS, Gateway};
use crate::kit::replica::{Replica, Request, Script, Then};
use crate::kit::script::{self, script};
use crate::kit::sse;

/// A replica and a gateway in front of it.
fn one(post: Script) -> (Replica, Gateway) {
    let replica = Replica::start("m-8b");
    replica.on_post(post);
    let gateway = Gateway::with(&[&replica]).start();
    (replica, gateway)
}

/// A text fixture with `from` replaced; it must be there.
fn edited(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from} is not in {text}");
    text.replace(from, to)
}

fn text(name: &str) -> String {
    String::from_utf8(fixture(name)).expect("UTF-8")
}

fn last(replica: &Replica) -> Request {
    replica.requests().pop().expect("a request")
}

/// The fixture for a path: with `messages` on chat, with `prompt` on completions.
fn for_path(name: &str, path: &str) -> String {
    let body = text(name);
    if path == CHAT {
        return body;
    }
    let start = body.find("\"messages\":").expect("messages");
    let end = body[start..].find("}],").expect("their end") + start + 3;
    format!("{}\"prompt\":\"hi\",{}", &body[..start], &body[end..])
}

/// Streams without regard to what the request says, for spellings of `stream` that the kit does not
/// take for a stream.
fn always_stream() -> Script {
    let payloads = [
        script::role_frame("cc-1"),
        script::token_frame("cc-1", "ok"),
        script::finish_frame("cc-1", "stop"),
        script::usage_frame("cc-1", 9, 1),
        "[DONE]".to_owned(),
    ];
    script::sse(script::stream_of(&payloads))
}

/// Answers whole without reading the request, for bodies that the kit's own reader does not take.
fn always_whole() -> Script {
    script::answer(200, "application/json", script::completion("cc-1", "ok", "stop", 9, 1))
}

#[test]
fn c01_fields_the_gateway_does_not_know() {
    let (replica, gateway) = one(script::good("cc-1", &["ok"]));
    for path in [CHAT, COMPLETIONS] {
        let sent = for_path("C01.json", path);
        let expected = edited(&sent, "gpt-fast", "m-8b");
        assert_eq!(gateway.post(path, &sent).status, 200);
        let request = last(&replica);
        assert_eq!(request.path, path);
        assert_eq!(String::from_utf8_lossy(&request.body), expected, "{path}: nothing but the model");

        // Streamed: `stream_options` is added, and nothing else.
        let sent = edited(&sent, "\"max_tokens\":8", "\"max_tokens\":8,\"stream\":true");
        assert_eq!(gateway.post(path, &sent).status, 200);
        let mut expected: Value = serde_json::from_str(&edited(&sent, "gpt-fast", "m-8b")).expect("JSON");
        expected["stream_options"] = json!({"include_usage": true});
        assert_eq!(last(&replica).json(), expected, "{path}, streamed");
    }
    // By its own name nothing changes at all.
    let sent = edited(&text("C01.json"), "gpt-fast", "m-8b");
    assert_eq!(gateway.post(CHAT, &sent).status, 200);
    assert_eq!(String::from_utf8_lossy(&last(&replica).body), sent);
}

#[test]
fn c01_fields_of_answers_that_the_gateway_does_not_know() {
    let whole = r#"{"id":"cc-1","object":"chat.completion","created":1, "model":"m-8b","prompt_token_ids":[1,2],
        "kv_transfer_params":{"a":null},"x_big":18446744073709551616,"choices":[{"index":0,"token_ids":null,
        "message":{"role":"assistant","content":"ok","reasoning_content":"hm"},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3,"x":{}}}"#;
    let frames = [
        r#"{"id":"cc-1","prompt_token_ids":[1,2],"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
        r#"{"id":"cc-1","choices":[{"index":0,"delta":{"reasoning_content":"hm","x_neg":-0.0},"token_ids":[7]}]}"#,
        r#"{"id":"cc-1","kv_transfer_params":{"a":null},"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ]
    .map(str::to_owned);
    let stream = script::sse(script::stream_of(&frames));
    let (_replica, gateway) = one(script::by_stream(stream, script::answer(200, "application/json", whole)));
    assert_eq!(gateway.chat().text(), whole);
    assert_eq!(gateway.chat_stream().payloads(), frames);
}

#[test]
fn c02_numbers() {
    let (replica, gateway) = one(script::good("cc-1", &["ok"]));
    let literals = [
        "9007199254740993",
        "0.10000000000000000555",
        "18446744073709551616",
        "1e21",
        "-0.0",
        "1234567890123456789",
    ];
    for path in [CHAT, COMPLETIONS] {
        let whole = for_path("C02.json", path);
        let streamed = edited(&whole, "\"max_tokens\":8", "\"max_tokens\":8,\"stream\":true");
        for sent in [&whole, &streamed] {
            assert_eq!(gateway.post(path, sent).status, 200);
            let body = String::from_utf8(last(&replica).body).expect("UTF-8");
            for literal in literals {
                assert!(body.contains(&format!(":{literal}")), "{literal} is not in {body}");
            }
            if *sent == whole {
                assert_eq!(body, edited(sent, "gpt-fast", "m-8b"));
            }
        }
    }
}

/// Numbers beyond what the gateway needs itself are left to the replica as they are, or refused.
#[test]
fn c02_numbers_too_big_for_the_gateway() {
    let (replica, gateway) = one(always_whole());
    let caps = [
        "1e30",
        "1e400",
        "18446744073709551616",
        "9223372036854775808",
        "-1",
        "-9223372036854775809",
        "0",
        "0.5",
        "1.0",
        "\"100\"",
        "1E2",
        "100000000000000000000000000000000000000000000000000000000000",
    ];
    for cap in caps {
        for key in ["max_tokens", "max_completion_tokens", "n", "seed"] {
            let sent = format!(r#"{{"model":"gpt-fast","messages":[],"{key}":{cap},"x":1}}"#);
            let before = replica.requests().len();
            let answer = gateway.post(CHAT, &sent);
            if answer.status == 400 {
                answer.error_code();
                assert_eq!(replica.requests().len(), before, "{sent}");
            } else {
                assert_eq!(answer.status, 200, "{sent}: {}", answer.describe());
                assert_eq!(String::from_utf8_lossy(&last(&replica).body), edited(&sent, "gpt-fast", "m-8b"));
            }
        }
    }
    gateway.wait_idle();
}

/// The engine keeps the last of several equal keys and decodes escaped ones: what the gateway routes
/// by is what the engine will read.
#[test]
fn the_model_is_the_one_that_the_engine_reads() {
    let (small, large) = (Replica::start("m-8b"), Replica::start("m-70b"));
    let gateway = Gateway::with(&[&small]).pool("m-70b", &[&large]).start();
    let cases = [
        (r#"{"model":"m-70b","model":"m-8b","messages":[]}"#, "m-8b"),
        (r#"{"model":"m-8b","messages":[],"model":"m-70b"}"#, "m-70b"),
        (r#"{"model":"m-70b","mod\u0065l":"m-8b","messages":[]}"#, "m-8b"),
        (r#"{"mod\u0065l":"m-70b","messages":[]}"#, "m-70b"),
        (r#"{"\u006d\u006F\u0064\u0065\u006C":"gpt-fast","messages":[]}"#, "m-8b"),
        (r#"{"model":"m-70b","\u006dodel":"gpt-fast","messages":[]}"#, "m-8b"),
        (r#"{"model":"gpt-fast","model":"m-70b","messages":[]}"#, "m-70b"),
        (r#"{"model":"m-70b","model":"gpt-fast","messages":[]}"#, "m-8b"),
        (r#"{"model":"m\u002d70b","messages":[]}"#, "m-70b"),
        (r#"{"model":"\u0067pt-fast","messages":[]}"#, "m-8b"),
        (r#"{"x":{"model":"m-70b"},"messages":[{"model":"m-70b"}],"model":"m-8b"}"#, "m-8b"),
        (r#"{"model":null,"model":"m-70b","messages":[]}"#, "m-70b"),
        ("\r\n\t {\"messages\" : [ ] ,\n\"model\"\t:\r\"gpt-fast\" } \n", "m-8b"),
        (
            r#"{"":"","model\u0000":"m-70b","Model":"m-70b","model ":"m-70b","model":"m-8b","messages":[]}"#,
            "m-8b",
        ),
        (r#"{"model":"m-8b","messages":[],"stop":"\"model\":\"m-70b\"","user":"\\"}"#, "m-8b"),
    ];
    for (sent, expected) in cases {
        for stream in [false, true] {
            let sent = if stream { sent.replacen('{', r#"{"stream":true,"#, 1) } else { sent.to_owned() };
            let (before, other) = (small.requests().len(), large.requests().len());
            let answer = gateway.post(CHAT, &sent);
            assert_eq!(answer.status, 200, "{sent}: {}", answer.describe());
            let (of_small, of_large) = (small.requests().len() - before, large.requests().len() - other);
            let wanted = if expected == "m-8b" { (1, 0) } else { (0, 1) };
            assert_eq!((of_small, of_large), wanted, "{sent}");
            let request = last(if expected == "m-8b" { &small } else { &large });
            // serde_json keeps the last one too.
            assert_eq!(request.json()["model"], expected, "{sent}");
        }
    }
}

/// Other spellings that the engine reads as a stream, and one that it refuses.
#[test]
fn stream_is_what_the_engine_takes_for_true() {
    let (replica, gateway) = one(always_stream());
    for spelling in ["true", "1", "\"true\"", "\"on\"", "1.0", "\"Yes\"", "\"t\""] {
        for key in ["stream", "str\\u0065am"] {
            let sent = format!(r#"{{"model":"gpt-fast","messages":[],"{key}":{spelling}}}"#);
            let answer = gateway.post(CHAT, &sent);
            if answer.status == 400 {
                continue;
            }
            assert_eq!(answer.status, 200, "{sent}: {}", answer.describe());
            // As in C03: usage is asked for, and kept from the client that did not ask.
            assert_eq!(last(&replica).json()["stream_options"]["include_usage"], true, "{sent}");
            assert_eq!(answer.payloads().len(), 4, "{sent}: {}", answer.text());
        }
    }
    replica.on_post(script::good("cc-1", &["ok"]));
    for spelling in ["false", "0", "null", "\"false\"", "\"off\"", "0.0"] {
        let sent = format!(r#"{{"model":"m-8b","messages":[],"stream":{spelling}}}"#);
        let answer = gateway.post(CHAT, &sent);
        assert_eq!(answer.status, 200, "{sent}: {}", answer.describe());
        assert_eq!(String::from_utf8_lossy(&last(&replica).body), sent, "no stream_options");
    }
    // Last duplicate wins here too; the engine would refuse `stream_options` on the whole answer.
    let sent = r#"{"model":"m-8b","stream":true,"messages":[],"stream":false}"#;
    assert_eq!(gateway.post(CHAT, sent).status, 200);
    assert_eq!(String::from_utf8_lossy(&last(&replica).body), sent);
    let before = replica.requests().len();
    for spelling in ["2", "\"maybe\"", "[]", "{}", "NaN", "-1"] {
        let sent = format!(r#"{{"model":"m-8b","messages":[],"stream":{spelling}}}"#);
        let answer = gateway.post(CHAT, &sent);
        assert_eq!(answer.status, 400, "{sent}: {}", answer.describe());
        answer.error_code();
    }
    assert_eq!(replica.requests().len(), before);
}

/// Bodies that Python's reader takes although they are no strict JSON: the engine has the last word,
/// and gets them as they are, or the gateway says 400. Never anything in between.
#[test]
fn lenient_json_passes_unchanged_or_is_refused() {
    let (replica, gateway) = one(always_whole());
    let cases: [(&str, &[u8]); 12] = [
        ("NaN", br#"{"model":"m-8b","messages":[],"temperature":NaN}"#),
        ("Infinity", br#"{"model":"m-8b","messages":[],"top_p":-Infinity,"x":[Infinity]}"#),
        ("lone surrogate", br#"{"model":"m-8b","messages":[{"role":"user","content":"\ud800"}]}"#),
        ("lone low surrogate", br#"{"model":"m-8b","messages":[],"user":"\udc00\ud800x"}"#),
        ("surrogates the wrong way round", br#"{"model":"m-8b","messages":[],"user":"\ude00\ud83d"}"#),
        ("BOM", b"\xEF\xBB\xBF{\"model\":\"m-8b\",\"messages\":[]}"),
        ("NUL escaped", br#"{"model":"m-8b","messages":[],"user":"a\u0000b"}"#),
        (
            "line separators",
            "{\"model\":\"m-8b\",\"messages\":[],\"user\":\"a\u{2028}\u{2029}\u{85}b\"}".as_bytes(),
        ),
        (
            "noncharacters",
            "{\"model\":\"m-8b\",\"messages\":[],\"user\":\"\u{FFFE}\u{FFFF}\u{10FFFF}\"}".as_bytes(),
        ),
        ("DEL", b"{\"model\":\"m-8b\",\"messages\":[],\"user\":\"\x7f\"}"),
        ("duplicate messages", br#"{"model":"m-8b","messages":1,"messages":[],"messages":[{}]}"#),
        ("empty keys", br#"{"":1,"model":"m-8b","":{"":{}},"messages":[]}"#),
    ];
    for (name, sent) in cases {
        let before = replica.requests().len();
        let mut client = gateway.connect();
        client.post(CHAT, sent);
        let answer = client.read_answer();
        if answer.status == 200 {
            assert_eq!(last(&replica).body, sent, "{name}");
        } else {
            assert_eq!(answer.status, 400, "{name}: {}", answer.describe());
            answer.error_code();
            assert_eq!(replica.requests().len(), before, "{name}");
        }
    }
    let mut client = gateway.connect();
    client.post(CHAT, b"\xEF\xBB\xBF{\"model\":\"gpt-fast\",\"messages\":[]}");
    assert_eq!(client.read_answer().status, 200, "the engine takes a byte order mark");
}

/// What no reader takes is refused here, in the shape of the API, and no replica hears of it.
#[test]
fn what_is_no_json_object_is_refused() {
    let (replica, gateway) = one(script::good("cc-1", &["ok"]));
    let utf16: Vec<u8> =
        "{\"model\":\"m-8b\",\"messages\":[]}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let cases: [(&str, &[u8]); 28] = [
        ("empty", b""),
        ("blank", b" \r\n"),
        ("array", b"[]"),
        ("null", b"null"),
        ("string", b"\"m-8b\""),
        ("number", b"1"),
        ("cut", br#"{"model":"m-8b","messages":["#),
        ("cut in a string", br#"{"model":"m-8b","messages":[],"user":"x"#),
        ("cut in an escape", br#"{"model":"m-8b","messages":[],"user":"\u00"#),
        ("bad escape", br#"{"model":"m-8b","messages":[],"user":"\x41"}"#),
        ("two objects", br#"{"model":"m-8b","messages":[]}{"model":"m-8b"}"#),
        ("object and text", br#"{"model":"m-8b","messages":[]} x"#),
        ("trailing comma", br#"{"model":"m-8b","messages":[],}"#),
        ("leading comma", br#"{,"model":"m-8b","messages":[]}"#),
        ("no colon", br#"{"model" "m-8b"}"#),
        ("key without quotes", br#"{model:"m-8b","messages":[]}"#),
        ("single quotes", br"{'model':'m-8b','messages':[]}"),
        ("comment", br#"{"model":"m-8b",/* */"messages":[]}"#),
        ("line feed in a string", b"{\"model\":\"m-8b\",\"messages\":[],\"user\":\"a\nb\"}"),
        ("NUL behind", b"{\"model\":\"m-8b\",\"messages\":[]}\0"),
        ("not UTF-8", b"{\"model\":\"m-8b\",\"messages\":[],\"user\":\"\xff\"}"),
        ("overlong UTF-8", b"{\"model\":\"m-8b\",\"messages\":[],\"user\":\"\xc0\xaf\"}"),
        ("UTF-16", &utf16),
        ("leading zero", br#"{"model":"m-8b","messages":[],"n":01}"#),
        ("leading plus", br#"{"model":"m-8b","messages":[],"n":+1}"#),
        ("hexadecimal", br#"{"model":"m-8b","messages":[],"n":0x1}"#),
        ("wrong bracket", br#"{"model":"m-8b","messages":[}"#),
        ("form", b"model=m-8b&prompt=hi"),
    ];
    let mut client = gateway.connect();
    for (name, sent) in cases {
        client.post(CHAT, sent);
        let answer = client.read_answer();
        assert_eq!(answer.status, 400, "{name}: {}", answer.describe());
        answer.error_code();
    }
    assert!(replica.requests().is_empty());
    client.post(CHAT, r#"{"model":"m-8b","messages":[]}"#);
    assert_eq!(client.read_answer().status, 200, "the connection is as good as new");
}

/// Odd values of `model`: none reaches a replica that it does not name, and each answer is whole.
#[test]
fn odd_model_names() {
    let (replica, gateway) = one(script::good("cc-1", &["ok"]));
    let long = format!("\"{}\"", "m".repeat(1_000_000));
    let cases: [(&str, &[u16]); 16] = [
        ("\"m-8B\"", &[404]),
        ("\" m-8b\"", &[404]),
        ("\"m-8b\\u0000\"", &[404, 400]),
        ("\"../m-8b\"", &[404]),
        ("\"m-8b\\r\\nX-Evil: 1\\r\\n\\r\\n\"", &[404, 400]),
        ("\"\\\"}},{\"", &[404]),
        ("\"\u{1F600}\\ud83d\\ude00\"", &[404]),
        ("\"\\ud800\"", &[404, 400]),
        (&long, &[404, 400]),
        ("\"unknown\"", &[404]),
        ("1", &[400]),
        ("[\"m-8b\"]", &[400]),
        ("{\"m-8b\":1}", &[400]),
        ("true", &[400]),
        ("\"<script>\"", &[404]),
        ("\"%6d-8b\"", &[404]),
    ];
    let mut client = gateway.connect();
    for (model, statuses) in cases {
        client.post(CHAT, format!(r#"{{"model":{model},"messages":[]}}"#));
        let answer: Answer = client.read_answer();
        let shown = &model[..model.len().min(60)];
        assert!(statuses.contains(&answer.status), "{shown}: {}", answer.describe());
        answer.error_code();
        assert_eq!(answer.json()["error"]["param"], "model", "{shown}");
        assert_eq!(answer.header("x-evil"), None, "{shown}");
        assert!(answer.body.len() < 4096, "{shown}: a long name is not repeated whole");
    }
    assert!(replica.requests().is_empty());
    // The engine serves requests without a model, and with an empty one; with one pool it is clear who.
    for sent in [r#"{"messages":[]}"#, r#"{"model":"","messages":[]}"#, r#"{"model":null,"messages":[]}"#] {
        assert_eq!(gateway.post(CHAT, sent).status, 200, "{sent}");
        let model = last(&replica).json()["model"].clone();
        assert!(model.is_null() || model == "" || model == "m-8b", "{sent}: {model}");
    }
}

/// Keys that only look like `stream_options`, and options in odd shapes, survive a stream.
#[test]
fn odd_stream_options_are_kept() {
    let (replica, gateway) = one(always_stream());
    let cases = [
        (r#"{"a":1}"#, json!({"a": 1, "include_usage": true})),
        (r#"{"include_usage":false,"include_usage":true}"#, json!({"include_usage": true})),
        (r#"{"include_usage":true,"include_usage":false}"#, json!({"include_usage": true})),
        (
            r#"{"x":{"include_usage":false},"y":[null]}"#,
            json!({"x": {"include_usage": false}, "y": [null], "include_usage": true}),
        ),
        (r" { } ", json!({"include_usage": true})),
    ];
    for (options, expected) in cases {
        let sent =
            format!(r#"{{"model":"m-8b","stream":true,"messages":[],"stream_options":{options},"z":1}}"#);
        let answer = gateway.post(CHAT, &sent);
        assert_eq!(answer.status, 200, "{sent}: {}", answer.describe());
        assert_eq!(last(&replica).json()["stream_options"], expected, "{sent}");
        assert_eq!(last(&replica).json()["z"], 1);
        sse::assert_clean(&answer.body);
    }
    // What the engine refuses is its own to refuse.
    replica.on_post(script(|conn, request| {
        let whole = request.json()["stream_options"].is_object();
        let body = script::error_body(400, "Bad Request", "stream_options");
        conn.answer(if whole { 200 } else { 400 }, "application/json", body).map(|()| Then::KeepAlive)
    }));
    for options in ["1", "[]", "\"x\""] {
        let sent = format!(r#"{{"model":"m-8b","stream":true,"messages":[],"stream_options":{options}}}"#);
        assert_eq!(gateway.post(CHAT, &sent).status, 400, "{sent}");
    }
}
