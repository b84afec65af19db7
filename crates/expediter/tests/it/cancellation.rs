//! Clients that leave, in every stage and every way: the replica is told at once, the request is
//! settled once, and nothing else is disturbed.
//!
//! The cases ask for an abort within 100 ms. On a busy machine single wake-ups take longer, so the
//! median may take three times that; a gateway that waits for the next token, or for the end, is
//! far beyond.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::kit::client::{Client, post_bytes};
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::h2::{H2, RawH2};
use crate::kit::replica::{Replica, Then, attempts, on_posts_in_order};
use crate::kit::script::{self, script};
use crate::kit::wait::{PATIENCE, eventually, let_pass, median};

const BOUND: Duration = Duration::from_millis(300);
/// Far from both: a prompt abort on a crowded machine, and the seconds a fault would take.
const BOUND_EACH: Duration = Duration::from_secs(2);

fn assert_prompt(name: &str, delays: &[Duration]) {
    assert!(delays.iter().all(|delay| *delay <= BOUND_EACH), "{name}: {delays:?}");
    assert!(median(delays) <= BOUND, "{name}: {delays:?}");
}

/// A token every 50 ms for 30 s, as the case says.
fn steady(replica: &Replica) {
    replica.on_post(script::tokens(600, Duration::from_millis(50)));
}

/// Starts a streamed chat and reads its first three tokens (behind the role frame).
fn client_in_mid_stream(gateway: &Gateway) -> Client {
    let mut client = gateway.connect();
    client.post(CHAT, chat_body(true));
    let mut answer = client.begin_answer();
    client.read_events(&mut answer, 4);
    client
}

/// Lets three clients leave one after another, and checks what the replica saw, the records and the
/// gauges. `leave` makes a request, leaves, and returns when it left.
fn check_leaving(name: &str, replica: &Replica, gateway: &Gateway, leave: impl Fn() -> Instant) {
    let mut delays = Vec::new();
    for n in 0..3 {
        let left = leave();
        delays.push(replica.wait_abort(n).saturating_duration_since(left));
    }
    assert_prompt(name, &delays);
    gateway.wait_idle();
    assert!(gateway.wait_records(3).iter().all(|record| record["outcome"] == "cancelled"), "{name}");
    assert_eq!(gateway.replica(replica)["state"], "ready", "{name}: leaving is no failure of the replica");
    // An aborted connection is never used again.
    replica.on_post(script::good("cc-1", &["ok"]));
    assert_eq!(gateway.chat().status, 200, "{name}");
    let requests = replica.requests();
    let last = requests.last().expect("a request");
    assert!(requests[..3].iter().all(|request| request.connection != last.connection), "{name}");
}

#[test]
fn x01_client_hangs_up_while_tokens_flow_fin() {
    let replica = Replica::start("m-8b");
    steady(&replica);
    let gateway = Gateway::with(&[&replica]).start();
    check_leaving("FIN", &replica, &gateway, || client_in_mid_stream(&gateway).close());
}

#[test]
fn x01_client_hangs_up_while_tokens_flow_rst() {
    let replica = Replica::start("m-8b");
    steady(&replica);
    let gateway = Gateway::with(&[&replica]).start();
    check_leaving("RST", &replica, &gateway, || client_in_mid_stream(&gateway).reset());
}

#[test]
fn x01_an_http2_client_cancels_its_stream() {
    let replica = Replica::start("m-8b");
    steady(&replica);
    let gateway = Gateway::with(&[&replica]).start();
    let client = std::cell::RefCell::new(H2::connect(gateway.address));
    check_leaving("RST_STREAM", &replica, &gateway, || {
        let mut client = client.borrow_mut();
        let mut stream = client.begin_post(CHAT, &[], &chat_body(true));
        client.read_events(&mut stream, 4);
        client.cancel(stream)
    });
    // Its connection lives on.
    assert_eq!(client.borrow_mut().post(CHAT, &chat_body(false)).status, 200);
}

#[test]
fn x01_fifty_clients_hang_up_at_once() {
    let replica = Replica::start("m-8b");
    steady(&replica);
    let gateway = Gateway::with(&[&replica]).start();
    let clients: Vec<Client> = thread::scope(|scope| {
        let starting: Vec<_> = (0..50).map(|_| scope.spawn(|| client_in_mid_stream(&gateway))).collect();
        starting.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    let left: Vec<Instant> = clients.into_iter().map(Client::close).collect();
    let last_left = *left.last().expect("fifty");
    let delays: Vec<Duration> =
        (0..50).map(|n| replica.wait_abort(n).saturating_duration_since(last_left)).collect();
    assert_prompt("fifty", &delays);
    gateway.wait_idle();
    assert!(gateway.wait_records(50).iter().all(|record| record["outcome"] == "cancelled"));
}

#[test]
fn x01_client_hangs_up_while_the_replica_is_silent_between_tokens() {
    let replica = Replica::start("m-8b");
    replica.on_post(script::tokens(4, Duration::from_secs(5)));
    let gateway = Gateway::with(&[&replica]).start();
    check_leaving("silence", &replica, &gateway, || {
        let mut client = gateway.connect();
        client.post(CHAT, chat_body(true));
        let mut answer = client.begin_answer();
        client.read_events(&mut answer, 2);
        let_pass(Duration::from_millis(200));
        client.close()
    });
}

/// One client in front of two replicas of which neither sends more than `script`; it leaves after
/// the case's second.
fn x02(name: &str, stream: bool, script: crate::kit::replica::Script, leave: impl FnOnce(Client) -> Instant) {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    a.on_post(script.clone());
    b.on_post(script);
    let gateway = Gateway::with(&[&a, &b]).start();
    let mut client = gateway.connect();
    client.post(CHAT, chat_body(stream));
    eventually(PATIENCE, "the request came", || {
        attempts(&[&a, &b]).iter().any(|(_, request)| request.complete_at.is_some())
    });
    let_pass(Duration::from_secs(1));
    let left = leave(client);
    let (asked, other) = if a.requests().is_empty() { (&b, &a) } else { (&a, &b) };
    assert_prompt(name, &[asked.wait_abort(0).saturating_duration_since(left)]);
    let record = gateway.wait_record();
    assert_eq!(record["outcome"], "cancelled", "{name}: {record}");
    // A whole answer's tokens are unknown, a stream's are none.
    let output = &record["output_tokens"];
    assert!(*output == json!(0) || (!stream && output.is_null()), "{name}: {record}");
    assert_eq!(record["attempts"].as_array().map(Vec::len), Some(1), "{name}: {record}");
    gateway.wait_idle();
    assert!(other.requests().is_empty(), "{name}: no other replica is tried");
    assert_eq!(gateway.replica(asked)["state"], "ready", "{name}");
}

/// The response head, as the engine sends it at once, and nothing after it.
fn head_only() -> crate::kit::replica::Script {
    script(|conn, _| conn.sse_head().map(|()| Then::Hold))
}

#[test]
fn x02_client_hangs_up_before_the_first_byte_stream() {
    x02("FIN, stream", true, script::silent(), Client::close);
    x02("RST, stream", true, script::silent(), Client::reset);
}

#[test]
fn x02_client_hangs_up_before_the_first_byte_whole_answer() {
    x02("FIN, whole", false, script::silent(), Client::close);
    x02("RST, whole", false, script::silent(), Client::reset);
}

#[test]
fn x02_client_hangs_up_after_the_response_head_only() {
    x02("FIN, head", true, head_only(), Client::close);
    x02("RST, head", true, head_only(), Client::reset);
}

#[test]
fn x02_client_hangs_up_in_the_middle_of_a_whole_answer() {
    let half = script(|conn, _| {
        conn.send(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{\"id\":",
        )?;
        Ok(Then::Hold)
    });
    x02("FIN, half a body", false, half, Client::close);
}

#[test]
fn x02_an_http2_client_cancels_before_the_first_byte() {
    let replica = Replica::start("m-8b");
    replica.on_post(script::silent());
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = RawH2::connect(gateway.address);
    client.post(1, CHAT, &chat_body(true));
    replica.wait_requests(1);
    client.frame(crate::kit::h2::Frame::RST_STREAM, 0, 1, &8_u32.to_be_bytes());
    let left = Instant::now();
    assert_prompt("RST_STREAM", &[replica.wait_abort(0).saturating_duration_since(left)]);
    assert_eq!(gateway.wait_record()["outcome"], "cancelled");
}

/// More than the breaker's five failures in a row: leaving is not one of them.
#[test]
fn x02_impatient_clients_do_not_set_a_replica_aside() {
    let replica = Replica::start("m-8b");
    replica.on_post(script::silent());
    let gateway = Gateway::with(&[&replica]).start();
    for n in 0..8 {
        let mut client = gateway.connect();
        client.post(CHAT, chat_body(n % 2 == 0));
        replica.wait_requests(n + 1);
        client.close();
        replica.wait_abort(n);
    }
    assert!(gateway.wait_records(8).iter().all(|record| record["outcome"] == "cancelled"));
    assert_eq!(gateway.replica(&replica)["state"], "ready");
    replica.on_post(script::good("cc-1", &["ok"]));
    assert_eq!(gateway.chat().status, 200);
}

/// Bytes behind the request must not hide the FIN that follows them.
#[test]
fn a_client_that_sends_more_after_its_request_and_leaves_is_seen() {
    let second = post_bytes(CHAT, &[], chat_body(false).as_bytes());
    let cases: [(&str, Vec<u8>); 4] = [
        ("a stray CRLF", b"\r\n".to_vec()),
        ("garbage", b"\x00\xff no HTTP at all".to_vec()),
        ("half a pipelined request", second[..second.len() / 2].to_vec()),
        ("a whole pipelined request", second),
    ];
    for (name, more) in cases {
        let replica = Replica::start("m-8b");
        steady(&replica);
        let gateway = Gateway::with(&[&replica]).start();
        let mut client = client_in_mid_stream(&gateway);
        client.send(&more);
        // The gateway has the bytes before the FIN.
        let_pass(Duration::from_millis(100));
        let left = client.close();
        assert_prompt(name, &[replica.wait_abort(0).saturating_duration_since(left)]);
        assert_eq!(gateway.wait_records(1)[0]["outcome"], "cancelled", "{name}");
        gateway.wait_idle();
        assert_eq!(replica.requests().len(), 1, "{name}: what was pipelined is not run");
    }
}

/// More bytes than a gateway likes to hold for later, and before the first byte of the answer.
#[test]
fn a_client_that_floods_behind_its_request_and_leaves_is_seen() {
    for bytes in [32 * 1024, 100 * 1024] {
        let replica = Replica::start("m-8b");
        replica.on_post(script::silent());
        let gateway = Gateway::with(&[&replica]).start();
        let mut client = gateway.connect();
        client.post(CHAT, chat_body(true));
        replica.wait_requests(1);
        client.send(vec![b'x'; bytes]);
        let_pass(Duration::from_millis(100));
        let left = client.reset();
        let delay = replica.wait_abort(0).saturating_duration_since(left);
        assert_prompt(&format!("a flood of {bytes}"), &[delay]);
    }
}

/// As the engine does: a client that closes its sending side has left.
#[test]
fn a_half_close_is_a_disconnect() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    steady(&replica);
    let mut client = client_in_mid_stream(&gateway);
    let closed = client.half_close();
    assert_prompt("half-close", &[replica.wait_abort(0).saturating_duration_since(closed)]);
    client.wait_end();
    assert_eq!(gateway.wait_record()["outcome"], "cancelled");
}

#[test]
fn a_client_that_leaves_during_its_upload_costs_nothing() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let request = post_bytes(CHAT, &[], chat_body(true).as_bytes());
    let chunked =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{\"mod";
    let starts: [&[u8]; 4] =
        [&request[..request.len() - 10], &request[..request.len() - 1], &request[..60], chunked];
    for start in starts {
        for reset in [false, true] {
            let mut client = gateway.connect();
            client.send(start);
            let_pass(Duration::from_millis(50));
            if reset {
                client.reset()
            } else {
                client.close()
            };
        }
    }
    gateway.wait_idle();
    assert_eq!(gateway.chat().status, 200);
    assert_eq!(replica.requests().len(), 1, "only the whole request reached a replica");
}

#[test]
fn http2_clients_leave_by_closing_and_by_goaway() {
    for go_away in [false, true] {
        let replica = Replica::start("m-8b");
        steady(&replica);
        let gateway = Gateway::with(&[&replica]).start();
        let mut client = RawH2::connect(gateway.address);
        client.post(1, CHAT, &chat_body(true));
        client.read_events(1, 4);
        if go_away {
            client.go_away();
        }
        let left = client.close();
        assert_prompt("HTTP/2", &[replica.wait_abort(0).saturating_duration_since(left)]);
        assert_eq!(gateway.wait_record()["outcome"], "cancelled", "GOAWAY: {go_away}");
        gateway.wait_idle();
    }
}

/// GOAWAY by itself only says that the client wants no streams of the server's; the stream it has
/// goes on to its end.
#[test]
fn an_http2_goaway_alone_lets_the_stream_finish() {
    let replica = Replica::start("m-8b");
    replica.on_post(script::tokens(10, Duration::from_millis(30)));
    let gateway = Gateway::with(&[&replica]).start();
    let mut client = RawH2::connect(gateway.address);
    client.post(1, CHAT, &chat_body(true));
    client.read_events(1, 2);
    client.go_away();
    let rest = client.read_events(1, 11);
    assert_eq!(crate::kit::sse::payloads(&rest).last().map(String::as_str), Some("[DONE]"));
    assert_eq!(gateway.wait_record()["outcome"], "completed");
}

#[test]
fn a_client_that_leaves_while_a_retry_is_under_way_aborts_the_retry() {
    let (a, b, c) = (Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b"));
    let all = [&a, &b, &c];
    on_posts_in_order(&all, vec![script::raw("", Then::Reset), script::silent()]);
    let gateway = Gateway::with(&all).start();
    let mut client = gateway.connect();
    client.post(CHAT, chat_body(true));
    let whole = || attempts(&all).iter().filter(|(_, request)| request.complete_at.is_some()).count();
    eventually(PATIENCE, "the second attempt", || whole() == 2);
    let left = client.close();
    let second = attempts(&all)[1].0;
    assert_prompt("retry", &[all[second].wait_abort(0).saturating_duration_since(left)]);
    let record = gateway.wait_record();
    assert_eq!(record["outcome"], "cancelled", "{record}");
    assert_eq!(record["attempts"].as_array().map(Vec::len), Some(2), "{record}");
    gateway.wait_idle();
    assert_eq!(attempts(&all).len(), 2);
}

/// A replica that sends as fast as it can, for ever.
fn torrent() -> crate::kit::replica::Script {
    script(|conn, _| {
        conn.sse_head()?;
        let event = format!("data: {}\n\n", script::token_frame("cc-1", &"x".repeat(10_000)));
        loop {
            conn.chunk(&event)?;
        }
    })
}

/// Waits until the replica cannot send any more.
fn wait_pushed_back(replica: &Replica) {
    let mut last = 0;
    eventually(PATIENCE, "the replica is pushed back", || {
        let_pass(Duration::from_millis(200));
        let sent = replica.bytes_sent();
        std::mem::replace(&mut last, sent) == sent && sent > 100_000
    });
}

#[test]
fn a_client_that_stops_reading_and_leaves_is_seen() {
    for reset in [false, true] {
        let replica = Replica::start("m-8b");
        replica.on_post(torrent());
        let gateway = Gateway::with(&[&replica]).start();
        let client = gateway.connect();
        client.small_receive_buffer();
        let mut client = client;
        client.post(CHAT, chat_body(true));
        wait_pushed_back(&replica);
        let left = if reset { client.reset() } else { client.close() };
        assert_prompt("not reading", &[replica.wait_abort(0).saturating_duration_since(left)]);
        assert_eq!(gateway.wait_record()["outcome"], "cancelled", "reset: {reset}");
        gateway.wait_idle();
    }
}

/// The limit's two minutes are one second here. It does not count what a client merely reads slowly.
#[test]
fn a_client_that_stops_reading_and_stays_is_cut_off() {
    let replica = Replica::start("m-8b");
    replica.on_post(torrent());
    let gateway = Gateway::with(&[&replica]).set("limits.client_stall_ms", 1000).start();
    let mut client = gateway.connect();
    client.small_receive_buffer();
    client.post(CHAT, chat_body(true));
    replica.wait_abort(0);
    gateway.wait_idle();
    let record = gateway.wait_record();
    assert_eq!(record["outcome"], "cancelled", "{record}");
}

/// Waiting for a replica is a stage too. (Where nothing can be waited for, a refusal at once is
/// fine.)
#[test]
fn a_client_that_leaves_while_it_waits_for_a_replica_is_forgotten() {
    let replica = Replica::start("m-8b");
    replica.on_get("/health", script::answer(503, "text/plain", ""));
    let gateway = Gateway::with(&[&replica]).start_unready();
    let mut client = gateway.connect();
    client.post(CHAT, chat_body(true));
    let_pass(Duration::from_millis(300));
    client.close();
    gateway.wait_records(1);
    replica.on_get("/health", script::answer(200, "text/plain", ""));
    gateway.wait_ready(1);
    assert_eq!(gateway.chat().status, 200);
    assert_eq!(replica.requests().len(), 1, "the one that left is not run");
}
