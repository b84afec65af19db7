use super::*;

fn parse(endpoint: Endpoint, body: &str) -> Result<Generation, (u16, String)> {
    let adapters = Adapters::new(&[]);
    let model = Model { name: "tiny", max_model_len: Tokens(100), adapters: &adapters };
    Generation::parse(body.as_bytes(), endpoint, model).map_err(|error| {
        let json: Value = serde_json::from_slice(&error.body).unwrap();
        let message = json["error"]["message"].as_str().or(json["detail"].as_str()).unwrap_or_default();
        (error.status.as_u16(), message.to_owned())
    })
}

#[test]
fn the_length_of_an_answer() {
    use Endpoint::{Chat, Completions};
    let long = format!(r#"{{"prompt":{:?},"max_tokens":1}}"#, vec![5; 101]);
    let exact = format!(r#"{{"prompt":{:?}}}"#, vec![5; 100]);
    let cases: [(&str, Endpoint, &str, Result<u64, &str>); 12] = [
        ("default", Completions, r#"{"prompt":"abcd"}"#, Ok(16)),
        ("null is no default", Completions, r#"{"prompt":"abcd","max_tokens":null}"#, Ok(99)),
        ("clamped", Completions, r#"{"prompt":"abcd","max_tokens":100}"#, Ok(99)),
        ("text", Completions, r#"{"prompt":"abcd","max_tokens":"7"}"#, Ok(7)),
        (
            "completion tokens win",
            Chat,
            r#"{"messages":[{}],"max_tokens":9,"max_completion_tokens":3}"#,
            Ok(3),
        ),
        ("all that is left", Chat, r#"{"messages":[{}]}"#, Ok(92)),
        (
            "zero",
            Completions,
            r#"{"prompt":"a","max_tokens":0}"#,
            Err("max_tokens must be at least 1, got 0."),
        ),
        (
            "negative",
            Completions,
            r#"{"prompt":"a","max_tokens":-1}"#,
            Err("max_tokens must be at least 1, got -1."),
        ),
        (
            "above the context",
            Completions,
            r#"{"prompt":"a","max_tokens":101}"#,
            Err("max_tokens=101 cannot be"),
        ),
        (
            "fraction",
            Chat,
            r#"{"messages":[{}],"max_tokens":5.5}"#,
            Err("1 validation error:\n  {'type': 'int_from"),
        ),
        ("prompt too long", Completions, &long, Err("This model's maximum context length is 100 tokens.")),
        ("nothing left", Completions, &exact, Err("max_tokens must be at least 1, got 0.")),
    ];
    for (name, endpoint, body, expected) in cases {
        match (parse(endpoint, body), expected) {
            (Ok(generation), Ok(tokens)) => {
                assert_eq!(generation.prompts[0].output_max, tokens, "{name}");
            }
            (Err((400, message)), Err(start)) => assert!(message.starts_with(start), "{name}: {message}"),
            (got, expected) => panic!("{name}: {got:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn a_longer_conversation_begins_with_the_shorter() {
    let turn = |messages: &str| {
        let body = format!(r#"{{"messages":[{messages}],"max_tokens":1}}"#);
        parse(Endpoint::Chat, &body).unwrap().prompts.remove(0).ids
    };
    let first = turn(r#"{"role":"user","content":"Hello there"}"#);
    let second = turn(
        r#"{"role":"user","content":"Hello there"},{"role":"assistant","content":" the sky"},{"role":"user","content":"go"}"#,
    );
    assert_eq!(second[..first.len()], first);
    assert_eq!(second[first.len()..first.len() + 2], [vocabulary::id(b" the"), vocabulary::id(b" sky")]);
}
