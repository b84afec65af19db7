use super::*;

/// What libzmq 4.3.5 sent, see `fixtures/README.md`.
macro_rules! recorded {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/zmtp/", $name, ".bin"))
    };
}

/// Everything that comes of `bytes`, cut into pieces of `length`, and what is sent after greeting and READY.
fn events(role: Role, bytes: &[u8], length: usize) -> Result<(Vec<Event>, Vec<u8>), ZmtpError> {
    let mut session = Session::new(role, 1_000);
    let (mut events, mut sent) = (Vec::new(), session.take_output());
    for piece in bytes.chunks(length) {
        session.receive(piece);
        while let Some(event) = session.poll_event()? {
            events.push(event);
        }
        sent.extend(session.take_output());
    }
    Ok((events, sent))
}

#[test]
fn peers_of_libzmq_are_understood_whatever_the_pieces() {
    type Case<'a> = (&'a str, &'a [u8], Role, Event, &'a [u8]);
    let topic = || Event::Subscribe("kv@x".into());
    let question = || Event::Message(vec!["".into(), vec![0; 8].into()]);
    let cases: [Case<'_>; 5] = [
        ("SUB to 3.0", recorded!("sub-3.0"), Role::Publisher, topic(), b""),
        ("SUB to 3.1", recorded!("sub-3.1"), Role::Publisher, topic(), b""),
        (
            "SUB with heartbeats",
            recorded!("sub-with-heartbeat"),
            Role::Publisher,
            topic(),
            b"\x04\x05\x04PONG\x04\x05\x04PONG",
        ),
        ("DEALER", recorded!("dealer"), Role::Router, question(), b""),
        ("REQ", recorded!("req"), Role::Router, question(), b""),
    ];
    for (name, bytes, role, expected, after) in cases {
        for length in [1, 2, 7, 64, 1_000] {
            let (events, sent) = events(role, bytes, length).expect(name);
            assert_eq!(events, [Event::Ready, expected.clone()], "{name}");
            let (greeting, rest) = sent.split_at(64);
            assert_eq!(
                (&greeting[..11], &greeting[12..16]),
                (&b"\xff\0\0\0\0\0\0\0\0\x7f\x03"[..], &b"NULL"[..])
            );
            let ready = usize::from(rest[1]) + 2;
            assert!(rest[..ready].starts_with(b"\x04") && rest[2..].starts_with(b"\x05READY\x0bSocket-Type"));
            assert_eq!(&rest[ready..], after, "{name}");
        }
    }
}

#[test]
fn two_ends_understand_each_other() {
    let long = vec![7; 300];
    let mut bytes = Session::new(Role::Subscriber, 1_000).take_output();
    let mut ends = [Session::new(Role::Publisher, 1_000), Session::new(Role::Subscriber, 1_000)];
    let mut seen = Vec::new();
    write_message(&[&b"t"[..], b"", &long], &mut bytes);
    for round in 0..3 {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut output = ends[from].take_output();
            if (round, from) == (2, 0) {
                write_message(&[&b"t"[..], b"", &long], &mut output);
            }
            ends[to].receive(&output);
            while let Some(event) = ends[to].poll_event().unwrap() {
                if event == Event::Ready && to == 1 {
                    ends[1].subscribe(b"t");
                }
                seen.push(event);
            }
        }
    }
    let message = Event::Message(vec!["t".into(), "".into(), long.into()]);
    assert_eq!(seen, [Event::Ready, Event::Ready, Event::Subscribe("t".into()), message]);
}

#[test]
fn what_is_no_peer_is_turned_away() {
    let greeting = Session::new(Role::Dealer, 0).take_output();
    let with = |more: &[u8]| [&greeting[..], more].concat();
    let open = |more: &[u8]| [&recorded!("dealer")[..], more].concat();
    let mut plain = greeting.clone();
    plain[12..17].copy_from_slice(b"PLAIN");
    let mut old = greeting.clone();
    old[10] = 1;
    let cases: [(&str, Vec<u8>, ZmtpError); 12] = [
        ("HTTP", b"GET / HTTP/1.1\r\n".to_vec(), ZmtpError::Greeting),
        ("an old version", old, ZmtpError::Greeting),
        ("a password", plain, ZmtpError::Mechanism("PLAIN".into())),
        ("a subscriber", recorded!("sub-3.0").to_vec(), ZmtpError::SocketType("SUB".into())),
        ("a message first", with(b"\x00\x01x"), ZmtpError::Greeting),
        ("another command first", with(b"\x04\x05\x04PING"), ZmtpError::Command),
        ("READY without a type", with(b"\x04\x06\x05READY"), ZmtpError::Command),
        ("a refusal", with(b"\x04\x0a\x05ERROR\x03bad"), ZmtpError::Refused("bad".into())),
        ("a name beyond its command", open(b"\x04\x02\x09P"), ZmtpError::Command),
        ("unused flags", open(b"\x40\x00"), ZmtpError::Flags(0x40)),
        ("a long frame", open(b"\x02\x7f\xff\xff\xff\xff\xff\xff\xff"), ZmtpError::TooLarge { limit: 1_000 }),
        ("a long command", open(b"\x06\0\0\0\0\0\0\x20\0"), ZmtpError::TooLarge { limit: 4_096 }),
    ];
    for (name, bytes, error) in cases {
        assert_eq!(events(Role::Router, &bytes, 1_000), Err(error), "{name}");
    }
    let mut many = Vec::new();
    write_message(&[b"x"; 17], &mut many);
    assert_eq!(events(Role::Router, &open(&many), 1_000), Err(ZmtpError::Parts));
    let mut large = Vec::new();
    write_message(&[[0; 600], [0; 600]], &mut large);
    assert_eq!(events(Role::Router, &open(&large), 1_000), Err(ZmtpError::TooLarge { limit: 1_000 }));
}
