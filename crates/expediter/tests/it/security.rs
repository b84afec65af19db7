//! The control door, and bodies made to break a parser.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kit::client::{Answer, Client, post_bytes};
use crate::kit::fixture;
use crate::kit::gateway::{ADMIN_TOKEN, CHAT, COMPLETIONS, Gateway, chat_body};
use crate::kit::replica::{Replica, Script, Then};
use crate::kit::script::{self, script};
use crate::kit::sse;
use crate::kit::wait::{PATIENCE, Signal, eventually, median};

/// A port that counts who comes.
struct Watched {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Watched {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = stream.map(|mut stream| stream.read(&mut [0; 1024]));
            }
        });
        Self { port, connections }
    }

    fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

const ADMIN_ROUTES: [(&str, &str, &str); 8] = [
    ("GET", "/admin/replicas", ""),
    ("POST", "/admin/replicas", r#"{"url":"http://127.0.0.1:9","pool":"m-8b"}"#),
    ("GET", "/admin/replicas/r1", ""),
    ("DELETE", "/admin/replicas/r1", ""),
    ("POST", "/admin/replicas/r1/drain", "{}"),
    ("POST", "/admin/replicas/r1/undrain", ""),
    ("PUT", "/admin/replicas", "{}"),
    ("GET", "/admin/anything", ""),
];

fn ask(
    address: std::net::SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let bytes = post_bytes(path, headers, body.as_bytes());
    let mut client = Client::connect(address);
    client.send([method.as_bytes(), &bytes["POST".len()..]].concat());
    client.read_answer()
}

/// The replicas but for what changes by itself.
fn fleet(gateway: &Gateway) -> Vec<Value> {
    let keep = |replica: &Value| json!([replica["id"], replica["url"], replica["state"], replica["pool"]]);
    gateway.replicas().iter().map(keep).collect()
}

#[test]
fn z01_the_control_door_wants_its_key() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    let before = fleet(&gateway);
    let almost = &ADMIN_TOKEN[..ADMIN_TOKEN.len() - 1];
    let longer = format!("Bearer {ADMIN_TOKEN}x");
    let almost = format!("Bearer {almost}");
    let basic = format!("Basic {ADMIN_TOKEN}");
    let twice = format!("Bearer {ADMIN_TOKEN}, Bearer {ADMIN_TOKEN}");
    let queries = format!("?token={ADMIN_TOKEN}&access_token={ADMIN_TOKEN}");
    let keys: [&[(&str, &str)]; 11] = [
        &[],
        &[("authorization", "Bearer key-t1")],
        &[("authorization", "Bearer ")],
        &[("authorization", "Bearer")],
        &[("authorization", ADMIN_TOKEN)],
        &[("authorization", &almost)],
        &[("authorization", &longer)],
        &[("authorization", &basic)],
        &[("authorization", &twice)],
        &[("x-api-key", ADMIN_TOKEN)],
        &[("cookie", ADMIN_TOKEN)],
    ];
    for (method, path, body) in ADMIN_ROUTES {
        for headers in keys {
            let answer = ask(gateway.admin_address, method, path, headers, body);
            assert!(
                [401, 403].contains(&answer.status),
                "{method} {path} {headers:?}: {}",
                answer.describe()
            );
            answer.error_code();
        }
        let answer = ask(gateway.admin_address, method, &format!("{path}{queries}"), &[], body);
        assert!([401, 403].contains(&answer.status), "{method} {path}, by query: {}", answer.describe());
        // The data port has none of it, whatever the key.
        let bearer = format!("Bearer {ADMIN_TOKEN}");
        let answer = ask(gateway.address, method, path, &[("authorization", &bearer)], body);
        assert_eq!(answer.status, 404, "{method} {path} at the data port: {}", answer.describe());
    }
    assert_eq!(ask(gateway.address, "GET", "/metrics", &[], "").status, 404);
    assert_eq!(fleet(&gateway), before, "no side effect");
    assert!(replica.requests().is_empty());
    // Spellings of paths lead to no door without a lock.
    for path in [
        "//admin/replicas",
        "/admin//replicas",
        "/ADMIN/replicas",
        "/metrics/../admin/replicas",
        "/admin/replicas/",
        "/admin",
    ] {
        let answer = ask(gateway.admin_address, "GET", path, &[], "");
        assert!([400, 401, 403, 404].contains(&answer.status), "{path}: {}", answer.describe());
    }
    assert_eq!(gateway.admin("GET", "/admin/replicas", None).status, 200);
}

#[test]
fn z01_without_a_token_the_door_is_closed() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).set("admin.token", "null").wait_for(0).start_unready();
    eventually(PATIENCE, "ready", || gateway.get("/readyz").status == 200);
    for (method, path, body) in ADMIN_ROUTES {
        for key in ["Bearer ", "Bearer null", "Bearer admin-secret", "Bearer <secret>"] {
            let answer = ask(gateway.admin_address, method, path, &[("authorization", key)], body);
            assert_eq!(answer.status, 403, "{method} {path} {key}: {}", answer.describe());
            assert!(answer.text().contains("admin.token"), "it names the remedy: {}", answer.text());
        }
    }
    for path in ["/metrics", "/livez", "/readyz"] {
        assert_eq!(ask(gateway.admin_address, "GET", path, &[], "").status, 200, "{path}");
    }
}

#[test]
fn z01_only_allowed_addresses_are_registered() {
    let replica = Replica::start("m-8b");
    let watched = Watched::start();
    let port = watched.port;
    // Loopback is not among the networks here, so that a listener on it can be watched.
    let gateway =
        Gateway::with(&[&replica]).set("admin.replica_networks", "[10.0.0.0/8, \"fc00::/7\"]").start();
    let before = fleet(&gateway);
    let urls = [
        "http://169.254.169.254/".to_owned(),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "file:///etc/hosts".to_owned(),
        "http://user:pw@10.0.0.1/".to_owned(),
        "http://user@10.0.0.1/".to_owned(),
        "gopher://10.0.0.1/".to_owned(),
        "ftp://10.0.0.1/".to_owned(),
        "unix:///var/run/docker.sock".to_owned(),
        "javascript:alert(1)".to_owned(),
        "//10.0.0.1".to_owned(),
        "10.0.0.1:8000".to_owned(),
        String::new(),
        "http://".to_owned(),
        "http://10.0.0.1:0".to_owned(),
        "http://10.0.0.1:99999".to_owned(),
        "http://10.0.0.1/?a=b".to_owned(),
        "http://10.0.0.1/#f".to_owned(),
        "http://10.0.0.1/../x".to_owned(),
        "http://10.0.0.1/a b".to_owned(),
        "http://10.0.0.1\r\nx-evil: 1".to_owned(),
        // Outside the networks, each way that an address is written.
        format!("http://127.0.0.1:{port}"),
        format!("http://localhost:{port}"),
        format!("http://LOCALHOST.:{port}"),
        format!("http://[::1]:{port}"),
        format!("http://[::ffff:127.0.0.1]:{port}"),
        format!("http://[::ffff:7f00:1]:{port}"),
        format!("http://[::127.0.0.1]:{port}"),
        format!("http://2130706433:{port}"),
        format!("http://0x7f000001:{port}"),
        format!("http://0177.0.0.1:{port}"),
        format!("http://127.1:{port}"),
        format!("http://0.0.0.0:{port}"),
        format!("http://[::]:{port}"),
        format!("http://10.0.0.1@127.0.0.1:{port}"),
        format!("http://127.0.0.1:{port}\\@10.0.0.1"),
        format!("http://127.0.0.1%00.example:{port}"),
        "http://255.255.255.255".to_owned(),
        "http://[fe80::1]".to_owned(),
        "http://no-such-host.invalid".to_owned(),
    ];
    for url in urls {
        let answer = gateway.admin("POST", "/admin/replicas", Some(&json!({"url": url, "pool": "m-8b"})));
        assert_eq!(answer.status, 400, "{url:?}: {}", answer.describe());
        answer.error_code();
        assert!(!answer.text().contains("user:pw") && !answer.text().contains("root:"), "{}", answer.text());
    }
    // Bodies that are no order.
    for body in
        [json!(null), json!([]), json!({}), json!({"url": 1}), json!({"url": "http://10.0.0.1", "x": 1})]
    {
        let answer = gateway.admin("POST", "/admin/replicas", Some(&body));
        assert_eq!(answer.status, 400, "{body}: {}", answer.describe());
    }
    let answer =
        gateway.admin("POST", "/admin/replicas", Some(&json!({"url": "http://10.0.0.1", "pool": "nope"})));
    assert_eq!(answer.status, 400, "{}", answer.describe());
    // Longer than several probe intervals.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(watched.count(), 0, "nobody connected to a forbidden address");
    assert_eq!(fleet(&gateway), before);
}

fn redirect(status: u16, to: &Watched, path: &str) -> Script {
    let head = format!(
        "HTTP/1.1 {status} Elsewhere\r\nlocation: http://127.0.0.1:{}{path}\r\ncontent-length: 0\r\n\r\n",
        to.port
    );
    script::raw(head, Then::KeepAlive)
}

#[test]
fn z01_redirects_of_replicas_are_never_followed() {
    let watched = Watched::start();
    let good = Replica::start("m-8b");
    let (health, models, warm_up, metrics) =
        (Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b"), Replica::start("m-8b"));
    health.on_get("/health", redirect(302, &watched, "/health"));
    models.on_get("/v1/models", redirect(301, &watched, "/v1/models"));
    warm_up.on_warm_up(redirect(307, &watched, "/v1/completions"));
    metrics.on_get("/metrics", redirect(308, &watched, "/metrics"));
    let gateway = Gateway::with(&[&good, &health, &models, &warm_up, &metrics])
        .set("probe.interval_ms", 200)
        .set("breaker.trial_ms", 500)
        .wait_for(2)
        .start();
    for path in [CHAT, COMPLETIONS] {
        for status in [301, 302, 303, 307, 308] {
            metrics.on_post(redirect(status, &watched, path));
            for _ in 0..2 {
                let answer = gateway.post(path, &chat_body(false));
                assert_eq!(answer.status, 200, "retried: {}", answer.describe());
            }
        }
    }
    for replica in [&health, &models, &warm_up] {
        assert_ne!(gateway.replica(replica)["state"], "ready");
        assert!(replica.requests().is_empty());
    }
    // With nobody else to ask it is an error here, and not the replica's `location` for the client.
    let gateway = Gateway::with(&[&metrics]).start();
    let answer = gateway.chat();
    assert!(answer.status >= 500, "{}", answer.describe());
    assert_eq!(answer.header("location"), None);
    assert_eq!(watched.count(), 0);
}

#[test]
fn z01_no_page_and_no_line_shows_a_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("key");
    std::fs::write(&file, "engine-key-7\n").expect("a file");
    let replica = Replica::start("m-8b");
    let gateway = Gateway::empty()
        .config(&format!(
            "pools:\n  m-8b:\n    replicas: [{}]\n    engine_key_file: {}\n",
            replica.url(),
            file.display()
        ))
        .set("log.level", "debug")
        .set("expose.decision_header", true)
        .set("expose.replica_header", true)
        .wait_for(1)
        .start();
    let mut answers = Vec::new();
    for body in
        [chat_body(false), chat_body(true), "{".to_owned(), r#"{"model":"x","messages":[]}"#.to_owned()]
    {
        let mut client = gateway.connect();
        let headers = [("authorization", "Bearer client-key-9"), ("api-key", "client-key-9")];
        client.send(post_bytes(CHAT, &headers, body.as_bytes()));
        answers.push(client.read_answer());
    }
    replica.on_post(script::raw("", Then::Reset));
    answers.push(gateway.chat());
    answers.push(gateway.admin("GET", "/admin/replicas", None));
    answers.push(gateway.admin(
        "POST",
        "/admin/replicas",
        Some(&json!({"url": "http://u:engine-key-7@127.0.0.1"})),
    ));
    answers.push(gateway.get("/v1/models"));
    gateway.wait_records(3);
    let mut shown: Vec<String> = answers
        .iter()
        .map(|answer| format!("{}{}", String::from_utf8_lossy(&answer.head), answer.text()))
        .collect();
    shown.push(gateway.metrics());
    shown.extend(gateway.log());
    shown.extend(gateway.records().iter().map(ToString::to_string));
    shown.extend(gateway.stdout());
    for key in [ADMIN_TOKEN, "engine-key-7", "client-key-9"] {
        let found = shown.iter().find(|text| text.contains(key));
        assert_eq!(found, None, "{key} is shown");
    }
}

/// JSON of depth `depth` in these brackets, closed or not.
fn nested(open: &str, middle: &str, close: &str, depth: usize) -> String {
    format!("{}{middle}{}", open.repeat(depth), close.repeat(depth))
}

#[test]
fn z02_deep_json() {
    let replica = Replica::start("m-8b");
    let (go_on, running) = (Signal::new(), Signal::new());
    let stream = {
        let (go_on, running) = (go_on.clone(), running.clone());
        script(move |conn, _| {
            conn.sse_head()?;
            for n in 0..20 {
                conn.event(&script::token_frame("cc-1", &format!("t{n} ")))?;
            }
            running.raise();
            conn.wait(&go_on)?;
            for n in 20..40 {
                conn.event(&script::token_frame("cc-1", &format!("t{n} ")))?;
            }
            conn.event(&script::finish_frame("cc-1", "stop"))?;
            conn.event("[DONE]")?;
            conn.last_chunk()?;
            Ok(Then::KeepAlive)
        })
    };
    // Deep bodies are not for the kit's own reader.
    let whole = script::answer(200, "application/json", script::completion("cc-1", "ok", "stop", 9, 1));
    replica.on_post(stream);
    let gateway = Gateway::with(&[&replica]).start();
    let mut other = gateway.connect();
    other.post(CHAT, chat_body(true));
    let mut streamed = other.begin_answer();
    running.wait("the stream runs");
    replica.on_post(whole);
    let pid = gateway.pid();

    let mut bodies =
        vec![("Z02.json".to_owned(), String::from_utf8(fixture("Z02.json")).expect("UTF-8"), false)];
    for depth in [90, 10_000, 100_000] {
        let arrays = nested("[", "1", "]", depth);
        let objects = nested("{\"a\":", "1", "}", depth);
        let mixed = nested("[{\"a\":", "1", "}]", depth / 2);
        for (shape, deep) in [("arrays", &arrays), ("objects", &objects), ("mixed", &mixed)] {
            let places = [
                ("x", format!(r#"{{"model":"m-8b","messages":[],"x":{deep}}}"#)),
                ("before the model", format!(r#"{{"x":{deep},"model":"m-8b","messages":[]}}"#)),
                ("tools", format!(r#"{{"model":"m-8b","messages":[],"tools":{deep}}}"#)),
                ("content", format!(r#"{{"model":"m-8b","messages":[{{"role":"user","content":{deep}}}]}}"#)),
                (
                    "schema",
                    format!(
                        r#"{{"model":"m-8b","messages":[],"response_format":{{"type":"json_schema","json_schema":{deep}}}}}"#
                    ),
                ),
                ("prompt", format!(r#"{{"model":"m-8b","prompt":{deep}}}"#)),
                ("model", format!(r#"{{"model":{deep},"messages":[]}}"#)),
                ("stream_options", format!(r#"{{"model":"m-8b","messages":[],"stream_options":{deep}}}"#)),
                ("body", deep.clone()),
            ];
            for (place, body) in places {
                let fits = depth == 90 && place != "model" && place != "body";
                bodies.push((format!("{shape} in {place}, {depth} deep"), body, fits));
            }
        }
        bodies.push((format!("unclosed arrays, {depth}"), "[".repeat(depth), false));
        bodies.push((format!("unclosed objects, {depth}"), "{\"a\":".repeat(depth), false));
        bodies.push((
            format!("unclosed in messages, {depth}"),
            format!("{{\"messages\":{}", "[{\"a\":".repeat(depth)),
            false,
        ));
    }
    let mut times = Vec::new();
    let mut client = gateway.connect();
    for (name, body, fits) in &bodies {
        let path = if name.contains("prompt") { COMPLETIONS } else { CHAT };
        let before = replica.requests().len();
        let began = Instant::now();
        client.post(path, body);
        let answer = client.read_answer();
        times.push(began.elapsed());
        if answer.status == 200 {
            let request = replica.requests().pop().expect("it arrived");
            assert!(request.body == body.as_bytes(), "{name}: not as it was sent");
        } else {
            assert!(!fits, "{name}: a depth up to 100 is accepted: {}", answer.describe());
            assert_eq!(answer.status, 400, "{name}: {}", answer.describe());
            answer.error_code();
            assert_eq!(replica.requests().len(), before, "{name}");
        }
    }
    // The case's bound for each is 100 ms; on a busy machine that is one of the median.
    assert!(median(&times) < Duration::from_millis(100), "{:?}", median(&times));
    go_on.raise();
    other.finish(&mut streamed);
    let text = (0..40).map(|n| format!("t{n} ")).collect::<Vec<_>>().concat();
    assert_eq!(sse::text(&streamed.body), text);
    assert_eq!(streamed.payloads().last().map(String::as_str), Some("[DONE]"));
    assert_eq!(gateway.pid(), pid);
    assert_eq!(gateway.chat().status, 200);
}

#[test]
fn z02_deep_json_in_answers() {
    let replica = Replica::start("m-8b");
    let gateway = Gateway::with(&[&replica]).start();
    for depth in [100, 10_000, 100_000] {
        for deep in [nested("[", "1", "]", depth), nested("{\"usage\":", "1", "}", depth), "[".repeat(depth)]
        {
            let chunk = format!(
                r#"{{"id":"cc-1","choices":[{{"index":0,"delta":{{"content":"x"}}}}],"usage":null,"error_x":{deep},"x":"finish_reason"}}"#
            );
            let frames = [
                script::token_frame("cc-1", "a"),
                chunk.clone(),
                script::finish_frame("cc-1", "stop"),
                "[DONE]".to_owned(),
            ];
            let body = format!(
                r#"{{"id":"cc-1","x":{deep},"choices":[{{"index":0,"message":{{"content":"a"}},"finish_reason":"stop"}}],"usage":null}}"#
            );
            replica.on_post(script::by_stream(
                script::sse(script::stream_of(&frames)),
                script::answer(200, "application/json", body.clone()),
            ));
            let answer = gateway.chat_stream();
            assert_eq!(answer.status, 200);
            let payloads = answer.payloads();
            let passed = payloads == frames;
            if !passed {
                sse::assert_ends_in_error(&answer.body, &frames[..1]);
            }
            let answer = gateway.chat();
            // What is complete passes; what is cut may be called so.
            assert!(answer.text() == body || answer.status >= 500, "{}", answer.describe());
            if deep.ends_with(']') && depth == 100 {
                assert_eq!(answer.text(), body, "{depth} deep and whole");
            }
            // As the first event.
            replica.on_post(script::sse(script::stream_of(&frames[1..])));
            let answer = gateway.chat_stream();
            assert!(answer.payloads() == frames[1..] || answer.status >= 500, "{}", answer.describe());
        }
    }
    // In what the probes read.
    let deep = nested("[", "1", "]", 100_000);
    replica.on_get(
        "/v1/models",
        script::answer(200, "application/json", format!(r#"{{"data":[{{"id":"m-8b","x":{deep}}}]}}"#)),
    );
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(gateway.get("/livez").status, 200);
}
