//! What reading costs: nanoseconds for the scan of a request and the hashes of its prompt's blocks, and for one frame of a stream from bytes to verdict.
//!
//!     cargo run --release -p expediter-wire --example parse_cost

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "measures on the machine's clock, and prints"
)]

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use expediter_wire::answer::{BodyDecoder, BodyFraming, Decoded, parse_head};
use expediter_wire::metrics::parse_metrics;
use expediter_wire::request::{Edit, Endpoint, scan, splice};
use expediter_wire::sse::{EventKind, EventSplitter, inspect};

fn main() {
    for (name, length) in [("200 B", 0), ("8 kB", 8_000), ("1 MB", 1_000_000)] {
        let prose = "The quick brown fox jumps over the lazy dog. ".repeat(length / 45);
        report_scan(&format!("{name}, plain"), &chat(&prose));
        report_scan(&format!("{name}, a newline every 45 bytes"), &chat(&prose.replace("dog. ", "dog.\\n")));
        report_scan(
            &format!("{name}, Greek"),
            &chat(&"Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία ".repeat(length / 62)),
        );
    }
    let ids: Vec<String> = (0..2_000).map(|id| (id * 37 % 150_000).to_string()).collect();
    let body = format!(r#"{{"model":"m-8b","prompt":[{}],"max_tokens":100}}"#, ids.join(","));
    report("scan, 2,000 token ids", body.len(), || {
        scan(black_box(body.as_bytes()), Endpoint::Completions).is_ok()
    });
    report_hashes("2,000 token ids", &body, Endpoint::Completions);

    let token = r#"data: {"id":"chatcmpl-9be3df9888ed89cc","object":"chat.completion.chunk","created":1796064323,"model":"tiny","choices":[{"index":0,"delta":{"content":" Toyota"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":null}"#;
    let token = format!("{token}\n\n");
    let payload = token.trim_end().strip_prefix("data: ").unwrap_or_default();
    let mut splitter = EventSplitter::new(1 << 20);
    report("frame, split", token.len(), || {
        let mut events = 0;
        splitter.push(black_box(token.as_bytes()), |event| events += event.raw.len()).is_ok() && events > 0
    });
    report("frame, split and inspected", token.len(), || {
        let mut quiet = false;
        let pushed = splitter.push(black_box(token.as_bytes()), |event| {
            if let EventKind::Data(payload) = event.kind() {
                quiet = !inspect(&payload, false).done;
            }
        });
        pushed.is_ok() && quiet
    });
    report("frame, inspected", payload.len(), || inspect(black_box(payload.as_bytes()), false).done);
    report("frame, inspected in full", payload.len(), || inspect(black_box(payload.as_bytes()), true).done);

    let chunk = format!("{:x}\r\n{token}\r\n", token.len());
    let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
    report("chunk, decoded", chunk.len(), || {
        let mut input = black_box(chunk.as_bytes());
        let mut length = 0;
        while let Ok(Decoded::Data(data)) = decoder.next(&mut input) {
            length += data.len();
        }
        length > 0
    });
    let head = "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 18:45:23 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n\r\n";
    report("head, parsed", head.len(), || parse_head(black_box(head.as_bytes())).is_ok());

    let page = include_bytes!("../fixtures/v0.32.0/metrics/after-mixed-traffic.txt");
    report("metrics page, read", page.len(), || parse_metrics(black_box(page)).report.running.is_some());
}

fn chat(prose: &str) -> String {
    let system = "You are a terse assistant.";
    format!(
        r#"{{"model":"gpt-fast","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{prose}"}}],"max_tokens":100,"temperature":0,"stream":true,"seed":9007199254740993}}"#
    )
}

fn report_scan(name: &str, body: &str) {
    report(&format!("scan, {name}"), body.len(), || scan(black_box(body.as_bytes()), Endpoint::Chat).is_ok());
    let bytes = Bytes::copy_from_slice(body.as_bytes());
    let Ok(scanned) = scan(&bytes, Endpoint::Chat) else { return };
    report_hashes(name, body, Endpoint::Chat);
    let edit = Edit { model: Some("m-8b"), include_usage: true };
    report(&format!("splice, {name}"), body.len(), || splice(black_box(&bytes), &scanned, &edit).len() == 5);
}

fn report_hashes(name: &str, body: &str, endpoint: Endpoint) {
    let Ok(scanned) = scan(body.as_bytes(), endpoint) else { return };
    report(&format!("hashes, {name}"), body.len(), || {
        scanned.block_hashes(black_box(body.as_bytes()), 1).len() < usize::MAX
    });
}

/// Prints the best of 100 rounds of 1 to 2 ms each.
fn report(name: &str, bytes: usize, mut work: impl FnMut() -> bool) {
    let mut round = |times: u32| {
        let start = Instant::now();
        for _ in 0..times {
            black_box(work());
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(times)
    };
    let mut times = 1;
    while round(times) * f64::from(times) < 1e6 {
        times *= 2;
    }
    let best = (0..100).map(|_| round(times)).fold(f64::INFINITY, f64::min);
    println!("{name:<44} {best:>11.0} ns  {:>6.2} GB/s  ({bytes} B)", bytes as f64 / best);
}
