//! Clients over TLS: both versions of HTTP by ALPN, certificates that change, and handshakes that stall.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::kit::client::{Client, post_bytes};
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::Replica;
use crate::kit::script;
use crate::kit::sse;
use crate::kit::tls::{Certificate, TlsClient};
use crate::kit::wait::{PATIENCE, eventually};

/// A gateway that serves by TLS. Its readiness is asked for at the admin listener alone.
fn start(replica: &Replica, certificate: &Certificate) -> Gateway {
    let gateway =
        Gateway::with(&[replica]).yaml(&certificate.yaml()).set("limits.head_ms", 2000).start_unready();
    eventually(PATIENCE, "a ready replica", || {
        gateway.replicas().iter().any(|replica| replica["state"] == "ready")
    });
    gateway
}

fn post(client: &mut TlsClient, stream: bool) -> String {
    client.send(post_bytes(CHAT, &[], chat_body(stream).as_bytes()));
    if stream {
        client.read_until("the stream's end", |text| text.ends_with("0\r\n\r\n"))
    } else {
        client.read_until("a whole answer", |text| text.ends_with("}}") || text.ends_with("}]}"))
    }
}

#[test]
fn http_1_1_over_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let certificate = Certificate::write(directory.path());
    let replica = Replica::start("m-8b");
    let gateway = start(&replica, &certificate);
    for (alpn, agreed) in [
        (&["http/1.1"][..], Some("http/1.1")),
        (&[][..], None),
        (&["http/1.1", "h2"][..], Some("h2")),
        (&["h2", "http/1.1"][..], Some("h2")),
    ] {
        let mut client = certificate.connect(gateway.address, alpn).expect("a handshake");
        assert_eq!(client.alpn().as_deref(), agreed);
        if agreed == Some("h2") {
            continue;
        }
        for _ in 0..2 {
            let answer = post(&mut client, false);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            let answer = post(&mut client, true);
            assert!(answer.contains("data: [DONE]"), "{answer}");
        }
        client.send("GET /livez HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n");
        let (text, in_order) = client.read_to_end();
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(in_order, "a close without TLS's own end looks like an attack");
    }
    assert!(certificate.connect(gateway.address, &["spdy/3"]).is_err(), "nothing in common");
}

#[test]
fn http_2_over_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let certificate = Certificate::write(directory.path());
    let replica = Replica::start("m-8b");
    replica.on_post(script::good("cc-1", &["a", "b"]));
    let gateway = start(&replica, &certificate);
    let (whole, streamed) = (chat_body(false), chat_body(true));
    let answers = certificate.h2_post(gateway.address, CHAT, &[&whole, &streamed, "{", &streamed]);
    assert_eq!(answers.iter().map(|answer| answer.0).collect::<Vec<_>>(), [200, 200, 400, 200]);
    assert_eq!(sse::text(&answers[1].1), "ab");
    assert_eq!(sse::text(&answers[3].1), "ab");
}

/// A client that leaves within TLS, with a word of goodbye or without, is a client that leaves.
#[test]
fn clients_over_tls_that_leave_are_seen() {
    let directory = tempfile::tempdir().expect("a directory");
    let certificate = Certificate::write(directory.path());
    let replica = Replica::start("m-8b");
    replica.on_post(script::tokens(600, Duration::from_millis(50)));
    let gateway = start(&replica, &certificate);
    for nth in 0..2 {
        let mut client = certificate.connect(gateway.address, &["http/1.1"]).expect("a handshake");
        client.send(post_bytes(CHAT, &[], chat_body(true).as_bytes()));
        client.read_until("tokens", |text| text.matches("data:").count() >= 3);
        let left = Instant::now();
        drop(client);
        let aborted = replica.wait_abort(nth);
        // The case's bound is 100 ms; three times that, for busy machines.
        assert!(aborted.saturating_duration_since(left) < Duration::from_millis(300), "{:?}", aborted - left);
    }
    gateway.wait_idle();
    assert!(gateway.wait_records(2).iter().all(|record| record["outcome"] == "cancelled"));
}

#[test]
fn plain_text_and_half_handshakes_on_the_tls_port_are_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let certificate = Certificate::write(directory.path());
    let replica = Replica::start("m-8b");
    let gateway = start(&replica, &certificate);
    let mut client = Client::connect(gateway.address);
    let _ = client.try_send(post_bytes(CHAT, &[], chat_body(false).as_bytes()));
    client.wait_end();
    // Nothing; the beginning of a handshake; one that dribbles: closed at the limit of heads.
    let mut silent = Client::connect(gateway.address);
    let mut begun = Client::connect(gateway.address);
    begun.send(b"\x16\x03\x01\x02\x00\x01\x00\x01");
    let mut dribbling = TcpStream::connect(gateway.address).expect("accepted");
    let start = Instant::now();
    let mut last = Ok(());
    while last.is_ok() && start.elapsed() < Duration::from_secs(20) {
        last = dribbling.write_all(b"\x16");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(last.is_err(), "a dribbling handshake is closed");
    silent.wait_end();
    begun.wait_end();
    assert!(certificate.connect(gateway.address, &["http/1.1"]).is_ok());
    assert!(replica.requests().is_empty());
}

/// A renewed certificate is used for new connections; those that are open stay.
#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let old = Certificate::write(directory.path());
    let replica = Replica::start("m-8b");
    let gateway = start(&replica, &old);
    let mut open = old.connect(gateway.address, &["http/1.1"]).expect("a handshake");
    assert!(post(&mut open, false).starts_with("HTTP/1.1 200"));
    let new = Certificate::write(directory.path());
    eventually(PATIENCE, "the new certificate", || new.connect(gateway.address, &["http/1.1"]).is_ok());
    assert!(old.connect(gateway.address, &["http/1.1"]).is_err(), "the old one is out of use");
    assert!(post(&mut open, true).contains("[DONE]"), "the open connection serves on");
    // A broken one is refused, and the good one stays.
    std::fs::write(directory.path().join("cert.pem"), "no certificate").expect("a file");
    eventually(PATIENCE, "the refusal", || {
        gateway.log().iter().any(|line| line.contains("configuration refused"))
    });
    assert!(new.connect(gateway.address, &["http/1.1"]).is_ok());
}
