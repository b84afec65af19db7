//! The end of the gateway: what runs may finish, nothing new begins, nothing is lost.

use std::time::Duration;

use crate::kit::client::Progress;
use crate::kit::gateway::{CHAT, Gateway, chat_body};
use crate::kit::replica::{Replica, Then};
use crate::kit::script::{self, script};
use crate::kit::sse;
use crate::kit::wait::{PATIENCE, Signal, eventually, let_pass};

#[test]
fn a_stop_lets_answers_finish_and_then_exits() {
    let replica = Replica::start("m-8b");
    let go = Signal::new();
    let (stream, whole) = (go.clone(), go.clone());
    let stream = script(move |conn, _| {
        conn.sse_head()?;
        conn.event(&script::role_frame("cc-1"))?;
        conn.event(&script::token_frame("cc-1", "before "))?;
        conn.wait(&stream)?;
        conn.event(&script::token_frame("cc-1", "after"))?;
        conn.event(&script::finish_frame("cc-1", "stop"))?;
        conn.event("[DONE]")?;
        conn.last_chunk()?;
        Ok(Then::KeepAlive)
    });
    let whole = script(move |conn, _| {
        conn.wait(&whole)?;
        conn.answer(200, "application/json", script::completion("cc-1", "whole", "stop", 1, 1))?;
        Ok(Then::KeepAlive)
    });
    replica.on_post(script::by_stream(stream, whole));
    let mut gateway = Gateway::with(&[&replica]).start();
    let mut idle = gateway.connect();
    idle.get("/livez");
    assert_eq!(idle.read_answer().status, 200);
    let mut streaming = gateway.connect();
    streaming.post(CHAT, chat_body(true));
    let mut stream = streaming.begin_answer();
    streaming.read_events(&mut stream, 2);
    let mut waiting = gateway.connect();
    waiting.post(CHAT, chat_body(false));
    replica.wait_requests(2);

    gateway.signal("TERM");
    let address = gateway.address;
    eventually(PATIENCE, "new connections are turned away", || {
        let Ok(mut stream) = std::net::TcpStream::connect(address) else { return true };
        // Accepted by the system's queue and never served is turned away, too.
        let asked = std::io::Write::write_all(&mut stream, b"GET /readyz HTTP/1.1\r\nhost: g\r\n\r\n");
        let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
        let mut bytes = [0; 12];
        let read = asked.and_then(|()| std::io::Read::read(&mut stream, &mut bytes));
        !matches!(read, Ok(12) if &bytes == b"HTTP/1.1 200")
    });
    idle.wait_end();
    let_pass(Duration::from_millis(200));
    go.raise();
    streaming.finish(&mut stream);
    assert_eq!((stream.progress, sse::text(&stream.body).as_str()), (Progress::Complete, "before after"));
    assert_eq!(stream.payloads().last().map(String::as_str), Some("[DONE]"));
    assert_eq!(waiting.read_answer().json()["choices"][0]["message"]["content"], "whole");
    assert!(gateway.wait_exit().success());
    assert!(gateway.records().iter().all(|record| record["outcome"] == "completed"));
    assert_eq!(gateway.records().len(), 2);
}

/// The limit of 30 s is half a second here. An answer that has to be cut ends as a broken one.
#[test]
fn a_stop_has_a_limit_and_what_it_cuts_does_not_look_complete() {
    let replica = Replica::start("m-8b");
    replica.on_post(script::tokens(1000, Duration::from_millis(50)));
    let mut gateway = Gateway::with(&[&replica]).set("limits.stop_ms", 500).start();
    let mut client = gateway.connect();
    client.post(CHAT, chat_body(true));
    let mut answer = client.begin_answer();
    client.read_events(&mut answer, 3);
    gateway.stop();
    client.finish(&mut answer);
    let payloads = answer.payloads();
    assert!(!payloads.contains(&"[DONE]".to_owned()), "{}", answer.describe());
    if answer.progress == Progress::Complete {
        sse::assert_ends_in_error(&answer.body, &payloads[..payloads.len() - 1]);
    }
    replica.wait_abort(0);
}
