use std::collections::BTreeSet;
use std::io::Read as _;

use flate2::read::MultiGzDecoder;

use super::servegen::{Client, Lengths, Window, read_clients, read_windows};
use super::*;

/// A file of the repository's `traces/`.
fn shipped(name: &str) -> String {
    let path = format!("{}/../../traces/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut text = String::new();
    MultiGzDecoder::new(bytes.as_slice()).read_to_string(&mut text).unwrap();
    text
}

fn read(format: Format, text: &str) -> Vec<Arrival> {
    let mut reader = Reader::new(format, None);
    text.lines().filter_map(|line| reader.line(line).unwrap()).collect()
}

fn mean(tokens: impl Iterator<Item = Tokens>) -> f64 {
    let (sum, count) = tokens.fold((0, 0), |(sum, count), tokens| (sum + tokens.0, count + 1));
    sum as f64 / f64::from(count)
}

#[test]
fn shipped_traces_have_their_published_statistics() {
    // (file, format, rows, seconds, mean prompt, longest prompt, mean answer, longest answer)
    let cases = [
        (
            "mooncake_conversation_trace.jsonl.gz",
            Format::Mooncake,
            12_031,
            3_537.0,
            12_035.0,
            126_195,
            343.0,
            2_000,
        ),
        (
            "mooncake_synthetic_trace.jsonl.gz",
            Format::Mooncake,
            3_993,
            1_022.0,
            15_326.0,
            191_378,
            149.0,
            893,
        ),
        ("azure_llm_2023_code.csv.gz", Format::Azure, 8_819, 3_436.0, 2_048.0, 7_437, 27.9, 1_899),
        ("azure_llm_2023_conv.csv.gz", Format::Azure, 19_366, 3_502.0, 1_155.0, 14_050, 211.0, 1_000),
    ];
    for (file, format, rows, seconds, prompt, prompt_max, output, output_max) in cases {
        let text = shipped(file);
        assert_eq!(Format::guess(text.lines().next().unwrap()), Some(format), "{file}");
        let arrivals = read(format, &text);
        assert_eq!(arrivals.len(), rows, "{file}");
        let last = arrivals.last().unwrap().at.since(Time::ZERO).as_secs_f64();
        assert!((last - seconds).abs() <= 1.0, "{file}: {last} s");
        let prompts = mean(arrivals.iter().map(|arrival| arrival.prompt.tokens()));
        assert!((prompts - prompt).abs() <= 0.53, "{file}: {prompts} tokens a prompt");
        let outputs = mean(arrivals.iter().map(|arrival| arrival.output));
        assert!((outputs - output).abs() <= 0.51, "{file}: {outputs} tokens an answer");
        assert_eq!(
            arrivals.iter().map(|arrival| arrival.prompt.tokens().0).max(),
            Some(prompt_max),
            "{file}"
        );
        assert_eq!(arrivals.iter().map(|arrival| arrival.output.0).max(), Some(output_max), "{file}");
    }
}

/// Ideal reuse in blocks of 512 tokens, of which NVIDIA states 36.64 % for the conversation trace ("Qwen3-32B KV
/// Routing A/B", docs.nvidia.com/dynamo).
#[test]
fn mooncakes_ideal_reuse_is_the_published_one() {
    let cases = [
        ("mooncake_conversation_trace.jsonl.gz", 105_710, 288_500, 182_790),
        ("mooncake_synthetic_trace.jsonl.gz", 77_953, 121_877, 43_924),
    ];
    for (file, hits_expected, blocks_expected, distinct) in cases {
        let (mut seen, mut hits, mut blocks) = (BTreeSet::new(), 0, 0);
        for line in shipped(file).lines() {
            let row = mooncake::Row::parse(line).unwrap();
            hits += row.hash_ids.iter().take_while(|id| seen.contains(*id)).count();
            blocks += row.hash_ids.len();
            seen.extend(row.hash_ids);
        }
        assert_eq!((hits, blocks, seen.len()), (hits_expected, blocks_expected, distinct), "{file}");
    }
}

#[test]
fn ids_of_512_tokens_become_chained_hashes_of_16() {
    let prompt = |tokens: u64, ids: &str| {
        let line = format!(r#"{{"timestamp":0,"input_length":{tokens},"output_length":1,"hash_ids":{ids}}}"#);
        mooncake::Row::parse(&line).unwrap().prompt()
    };
    let (a, b, c) = (prompt(1_100, "[0,1,2]"), prompt(1_536, "[0,1,3]"), prompt(1_024, "[9,1]"));
    assert_eq!(a.hashes().len(), 68, "1,100 tokens fill 68 blocks");
    assert_eq!(b.hashes().len(), 96);
    let shared = a.hashes().iter().zip(b.hashes()).take_while(|(a, b)| a == b).count();
    assert_eq!(shared, 64, "two equal ids are 64 equal blocks");
    assert!(a.hashes()[32..64].iter().all(|hash| !c.hashes().contains(hash)), "a block knows its parents");
    assert_eq!(a.hashes().iter().collect::<BTreeSet<_>>().len(), 68);
}

#[test]
fn bailian_turns_share_their_blocks() {
    let lines = concat!(
        r#"{"chat_id":7,"parent_chat_id":-1,"timestamp":0.0,"input_length":40,"output_length":9,"type":"text","turn":1,"hash_ids":[5,6,7]}"#,
        "\n",
        r#"{"chat_id":9,"parent_chat_id":7,"timestamp":61.25,"input_length":64,"output_length":0,"type":"text","turn":2,"hash_ids":[5,6,8,9]}"#,
    );
    assert_eq!(Format::guess(lines), Some(Format::Bailian));
    let arrivals = read(Format::Bailian, lines);
    let (first, second) = (&arrivals[0], &arrivals[1]);
    assert_eq!((first.prompt.hashes().len(), second.prompt.hashes().len()), (2, 4));
    assert_eq!(first.prompt.hashes()[..2], second.prompt.hashes()[..2]);
    assert_eq!(second.at, Time::from_millis(61_250));
    assert_eq!(second.output, Tokens(1), "an engine produces a token at least");
    let row = bailian::Row::parse(lines.lines().nth(1).unwrap()).unwrap();
    assert_eq!((row.chat_id, row.parent_chat_id, row.turn, row.kind.as_str()), (9, 7, 2, "text"));
}

#[test]
fn azure_times_keep_their_digits_across_midnight() {
    let text = "\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                2024-02-28 23:59:59.9999999,374,44\r\n\
                2024-02-29 00:00:00.0000001,396,109\r\n\
                2024-03-01 00:00:00+00:00,1,1\r\n";
    let times: Vec<u64> = read(Format::Azure, text).iter().map(|arrival| arrival.at.0).collect();
    assert_eq!(times, [0, 200, 86_400_000_000_100]);
    let unix = azure::Row::parse("2023-11-16 18:15:46.6805900,1,1").unwrap().wall;
    assert_eq!(unix, 1_700_158_546_680_590_000);
}

#[test]
fn a_mistake_names_line_field_and_remedy() {
    use Format::{Azure, Bailian, Mooncake};
    let good = r#"{"timestamp":3000,"input_length":600,"output_length":5,"hash_ids":[0,1]}"#;
    let with = |old: &str, new: &str| format!("{good}\n{}", good.replace(old, new));
    let azure =
        |row: &str| format!("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n{row}");
    let cases = [
        (Mooncake, format!("{good}\n\n{{"), "line 3: no JSON object"),
        (Mooncake, with("\"timestamp\":3000,", ""), "line 2: `timestamp` is missing: give "),
        (Mooncake, with("600", "-1"), "line 2: `input_length` is -1: give "),
        (Mooncake, with("600", "\"600\""), "line 2: `input_length` is \"600\": give "),
        (Mooncake, with("600", "0"), "line 2: `input_length` is 0: give "),
        (Mooncake, with("600", "99999999999"), "line 2: `input_length` is 99999999999: give "),
        (
            Mooncake,
            with("[0,1]", "[0]"),
            "line 2: `hash_ids` holds 1 ids for 600 tokens in blocks of 512: give 2",
        ),
        (Mooncake, with("[0,1]", "[0,-1]"), "line 2: `hash_ids` is [0,-1]: give "),
        (
            Mooncake,
            with("3000", "2000"),
            "line 2: `timestamp` is 1.000 s earlier than on the line before: sort ",
        ),
        (
            Mooncake,
            with("\"output_length\":5", "\"output_length\":9000"),
            "line 2: prompt and answer are 9600 tokens",
        ),
        (Bailian, good.to_owned(), "line 1: `hash_ids` holds 2 ids for 600 tokens in blocks of 16: give 38"),
        (Azure, "TIMESTAMP;Context".to_owned(), "line 1: `header` is TIMESTAMP;Context: give TIMESTAMP,"),
        (Azure, azure("2023-11-16 18:15:46.68,374"), "line 3: 2 columns instead of 3: give TIMESTAMP,"),
        (Azure, azure("2023-13-16 18:15:46.68,1,1"), "line 3: `TIMESTAMP` is 2023-13-16 18:15:46.68: give "),
        (Azure, azure("2023-11-16 18:15:46.68,x,1"), "line 3: `ContextTokens` is x: give "),
        (Azure, azure("2023-11-16 18:15:45.68,1,1"), "line 3: `TIMESTAMP` is 1.000 s earlier "),
    ];
    for (format, text, expected) in cases {
        let mut reader = Reader::new(format, Some(Tokens(8_000)));
        let error = text.lines().find_map(|line| reader.line(line).err());
        let message = error.map_or_else(|| "no mistake".to_owned(), |error| error.to_string());
        assert!(message.contains(expected), "{format:?} {text}\n  gave {message}\n  not  {expected}");
    }
}

#[test]
fn servegen_clients_are_read_without_their_second_parameter() {
    let text = "0,1.5,8.0,Weibull,0.37,0.39\n600,0,0,,0,0\n1200,0.5,4.0,Gamma,0.06,103.6\n";
    let windows = read_windows(text).unwrap();
    let of = |start, rate, cv| Window { start: std::time::Duration::from_secs(start), rate, cv };
    assert_eq!(windows, [of(0, 1.5, 8.0), of(600, 0.0, 0.0), of(1_200, 0.5, 4.0)]);
    let client = Client::of_windows(3, &windows).unwrap();
    assert!((client.rate - 2.0 / 3.0).abs() < 1e-12 && (client.cv - 7.0).abs() < 1e-12, "{client:?}");
    assert_eq!(Client::of_windows(3, &windows[1..2]), None, "a silent client");

    let cases = [
        ("0,1,2,Gamma,3", "line 1: 5 columns instead of 6: give start,rate,cv,"),
        ("0,1,2,Gamma,3,4\n0,-1,2,Gamma,3,4", "line 2: `rate` is -1: give a number from 0 on"),
        ("600,1,2,Gamma,3,4\n0,1,2,Gamma,3,4", "line 2: `start` is 600.000 s earlier"),
    ];
    for (text, expected) in cases {
        let message = read_windows(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn servegen_lengths_are_python_dictionaries_in_texts() {
    let line = r#"{"client": 4, "window": 432000, "input_tokens": "{221: 0.25, 1000: 0.75}", "output_tokens": "{}"}"#;
    let lengths = Lengths::parse(line).unwrap();
    assert_eq!((lengths.client, lengths.window.as_secs()), (4, 432_000));
    assert_eq!((lengths.input, lengths.output), (vec![(Tokens(221), 0.25), (Tokens(1_000), 0.75)], vec![]));
    let mistake = Lengths::parse(&line.replace("0.25", "1.25")).unwrap_err();
    assert!(mistake.to_string().starts_with("`input_tokens` is {221: 1.25, 1000: 0.75}: give "), "{mistake}");
}

/// Against the statistics of ServeGen's 162 m-large clients over 14 days: 196 requests per second, CV 3.45 weighted
/// by rate, 16 % from the first client and 63 % from the first ten.
#[test]
fn the_shipped_clients_are_those_of_servegen() {
    let path = format!("{}/../../traces/servegen_m_large_clients.csv", env!("CARGO_MANIFEST_DIR"));
    let clients = read_clients(&std::fs::read_to_string(path).unwrap()).unwrap();
    let rate = |clients: &[Client]| clients.iter().map(|client| client.rate).sum::<f64>();
    let total = rate(&clients);
    let cv = clients.iter().map(|client| client.rate * client.cv).sum::<f64>() / total;
    assert_eq!(clients.len(), 162);
    assert!((total - 195.8).abs() < 0.1, "{total} requests per second");
    assert!((cv - 3.45).abs() < 0.01, "CV {cv}");
    assert!((rate(&clients[..1]) / total - 0.160).abs() < 0.001);
    assert!((rate(&clients[..10]) / total - 0.632).abs() < 0.001);
}
