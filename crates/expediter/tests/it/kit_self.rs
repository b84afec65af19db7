//! The kit against itself: client and replica face to face, with no gateway between.

use std::time::{Duration, Instant};

use crate::kit::client::{Client, End, Progress};
use crate::kit::fixture;
use crate::kit::gateway::{CHAT, chat_body, metric_sum};
use crate::kit::h2::{Frame, H2, RawH2};
use crate::kit::replica::{Kind, Manners, Replica, Then, attempts, chunked, on_posts_in_order};
use crate::kit::script::{self, script};
use crate::kit::sse;
use crate::kit::wait::{Signal, eventually};

#[test]
fn a_replica_answers_probes_and_posts_on_one_connection_and_notes_them() {
    let replica = Replica::start("m-8b");
    let mut client = Client::connect(replica.address());
    client.get("/v1/models");
    assert_eq!(client.read_answer().json()["data"][0]["id"], "m-8b");
    client.post(CHAT, chat_body(false));
    assert_eq!(client.read_answer().json()["choices"][0]["message"]["content"], "ok");
    client.post(CHAT, chat_body(true));
    let answer = client.read_answer();
    assert_eq!((sse::text(&answer.body).as_str(), answer.progress), ("ok", Progress::Complete));
    let requests = replica.requests();
    assert_eq!(requests.iter().map(|request| request.nth).collect::<Vec<_>>(), [1, 2]);
    assert!(requests.iter().all(|request| request.complete_at.is_some() && request.aborted_at.is_none()));
    assert_eq!(requests[1].json()["stream"], true);
    assert_eq!(replica.requests_of(Kind::Probe)[0].path, "/v1/models");
}

#[test]
fn a_replica_sees_its_peer_leave_while_it_sends_pauses_or_waits() {
    let signal = Signal::new();
    let cases = [
        ("pausing", script(|conn, _| conn.pause(Duration::from_mins(1)).map(|()| Then::Fin))),
        (
            "sending",
            script(|conn, _| {
                loop {
                    conn.send(vec![b'x'; 65536])?;
                }
            }),
        ),
        ("waiting", script(move |conn, _| conn.wait(&signal).map(|()| Then::Fin))),
        ("holding", script::silent()),
    ];
    for (name, script) in cases {
        let replica = Replica::start("m-8b");
        replica.on_post(script);
        let mut client = Client::connect(replica.address());
        client.post(CHAT, chat_body(false));
        replica.wait_requests(1);
        let left = client.reset();
        let seen = replica.wait_abort(0);
        assert!(seen >= left && seen < left + Duration::from_secs(5), "{name}");
    }
}

#[test]
fn a_client_tells_fin_from_reset_and_a_cut_body_from_a_whole_one() {
    let cases = [
        (Then::Fin, Progress::Cut(End::Fin)),
        (Then::Reset, Progress::Cut(End::Reset)),
        (Then::KeepAlive, Progress::Open),
    ];
    for (then, expected) in cases {
        let replica = Replica::start("m-8b");
        replica.on_post(script::sse_cut(fixture("S04.sse"), then));
        let mut client = Client::connect(replica.address());
        client.post(CHAT, chat_body(true));
        let mut answer = client.begin_answer();
        client.read_events(&mut answer, 3);
        if then != Then::KeepAlive {
            client.finish(&mut answer);
        }
        assert_eq!(answer.progress, expected, "{then:?}");
        assert_eq!(answer.payloads().len(), 3, "{then:?}");
        assert!(sse::unfinished(&fixture("S04.sse")).starts_with(b"data: {"));
    }
}

#[test]
fn a_replica_drops_idle_connections_and_resets_reused_ones_on_demand() {
    let replica = Replica::start("m-8b");
    replica.manners(Manners { idle_fin: Some(Duration::from_millis(100)), reset_reused: false });
    let mut client = Client::connect(replica.address());
    client.post(CHAT, chat_body(false));
    let answered = client.read_answer().head_at;
    assert_eq!(client.wait_end(), End::Fin);
    assert!(Instant::now() >= answered + Duration::from_millis(50));

    replica.manners(Manners { idle_fin: None, reset_reused: true });
    let mut client = Client::connect(replica.address());
    client.post(CHAT, chat_body(false));
    client.read_answer();
    client.post(CHAT, chat_body(false));
    assert!(client.try_begin_answer().is_err());
    assert_eq!(replica.requests().len(), 2, "the reset one was not read");
}

#[test]
fn scripts_are_dealt_in_the_order_of_posts_whichever_replica_gets_them() {
    let (a, b) = (Replica::start("m-8b"), Replica::start("m-8b"));
    on_posts_in_order(&[&a, &b], vec![script::good("first", &["1"]), script::good("later", &["2"])]);
    for (replica, id) in [(&b, "first"), (&a, "later"), (&b, "later")] {
        let mut client = Client::connect(replica.address());
        client.post(CHAT, chat_body(false));
        assert_eq!(client.read_answer().json()["id"], id);
    }
    let order: Vec<usize> = attempts(&[&a, &b]).into_iter().map(|(index, _)| index).collect();
    assert_eq!(order, [1, 0, 1]);
}

#[test]
fn a_closed_port_refuses_until_it_opens_again() {
    let replica = Replica::start("m-8b");
    replica.close_port();
    assert!(std::net::TcpStream::connect(replica.address()).is_err());
    replica.reopen_port();
    let mut client = Client::connect(replica.address());
    client.get("/health");
    assert_eq!(client.read_answer().status, 200);
    eventually(Duration::from_secs(5), "the connection is noted", || !replica.connections().is_empty());
}

#[test]
fn the_reader_of_event_streams_knows_every_legal_spelling() {
    let cases: [(&str, &[&str]); 8] = [
        ("data: a\n\ndata: b\n\n", &["a", "b"]),
        ("\u{feff}data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]),
        ("data:a\r\rdata:b\r\r", &["a", "b"]),
        ("data: a\ndata: b\n\n", &["a\nb"]),
        (": c\n\ndata: a\n: c\n\n\n\n", &["a"]),
        ("data\n\ndata:\n\nevent: x\n\nid: 1\n\ndata: a\n\n", &["a"]),
        ("data: a\n\ndata: b", &["a"]),
        ("data:  a\n\n", &[" a"]),
    ];
    for (stream, expected) in cases {
        assert_eq!(sse::payloads(stream.as_bytes()), expected, "{stream:?}");
    }
    assert_eq!(sse::unfinished(b"data: a\n\ndata: b"), b"data: b");
}

#[test]
fn chunks_and_metrics_are_read_as_written() {
    assert_eq!(chunked(b"hello world"), b"b\r\nhello world\r\n");
    let text = "# TYPE x gauge\nx{pool=\"p\",replica=\"a\"} 1\nx{pool=\"p\",replica=\"b\"} 2.5\nxy 7\n";
    assert!((metric_sum(text, "x", &[("pool", "p")]) - 3.5).abs() < 1e-9);
    assert!((metric_sum(text, "x", &[("replica", "b")]) - 2.5).abs() < 1e-9);
}

/// A server of the `h2` crate that answers one request with three events, 50 ms apart, and then
/// waits; it returns how the stream ended.
fn h2_server(listener: std::net::TcpListener) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            assert_eq!((request.method().as_str(), request.uri().path()), ("POST", CHAT));
            let mut send = respond.send_response(http::Response::new(()), false).unwrap();
            let answer = async {
                for n in 0..3 {
                    send.send_data(format!("data: {n}\n\n").into(), false).unwrap();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                match std::future::poll_fn(|context| send.poll_reset(context)).await {
                    Ok(reason) => format!("reset {reason:?}"),
                    Err(error) => format!("closed {}", error.is_io() || error.is_go_away()),
                }
            };
            tokio::select! {
                ended = answer => ended,
                _ = connection.accept() => String::from("closed"),
            }
        })
    })
}

#[test]
fn http2_clients_read_events_and_cancel() {
    for raw in [false, true] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = h2_server(listener);
        if raw {
            let mut client = RawH2::connect(address);
            client.post(1, CHAT, &chat_body(true));
            assert_eq!(sse::payloads(&client.read_events(1, 3)), ["0", "1", "2"]);
            client.frame(Frame::RST_STREAM, 0, 1, &8_u32.to_be_bytes());
            assert_eq!(server.join().unwrap(), "reset CANCEL");
        } else {
            let mut client = H2::connect(address);
            let mut stream = client.begin_post(CHAT, &[], &chat_body(true));
            client.read_events(&mut stream, 3);
            assert_eq!(stream.status, 200);
            client.cancel(stream);
            assert_eq!(server.join().unwrap(), "reset CANCEL");
        }
    }
}
