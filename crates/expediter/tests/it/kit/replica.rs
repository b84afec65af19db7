//! A replica whose every byte and pause a test decides: a small TCP server that talks HTTP/1.1.
//!
//! It answers `/health`, `/v1/models`, `/metrics` and warm-up requests like a healthy engine, and
//! everything else that is a POST by the test's [`Script`]. Each of these answers can be replaced.
//! It notes every connection, every request and the moment the peer closed.

mod connection;

pub use connection::{Conn, Gone, chunked, find};

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::script;
use super::wait::{PATIENCE, eventually, eventually_some};

/// What a replica does with one request. It runs on the connection's own thread, after the whole
/// request was read. `Err(Gone)` (by `?`) ends it where the peer closed.
pub type Script = Arc<dyn Fn(&mut Conn, &Request) -> Result<Then, Gone> + Send + Sync>;
/// Runs right after a connection was accepted, before anything is read; `Some` ends it there.
pub type AcceptHook = Arc<dyn Fn(&mut Conn) -> Result<Option<Then>, Gone> + Send + Sync>;
/// Runs when a POST's head is read and its body is not; `Some` ends it there.
pub type HeadHook = Arc<dyn Fn(&mut Conn, &Request) -> Result<Option<Then>, Gone> + Send + Sync>;

/// What becomes of the connection when a script ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Wait for the next request on it.
    KeepAlive,
    /// Close it: FIN.
    Fin,
    /// Close it with RST.
    Reset,
    /// Send nothing more and wait until the peer closes.
    Hold,
}

/// Which of the gateway's three kinds of requests this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A GET: health, models, metrics.
    Probe,
    /// A tiny completion that says so by `x-expediter-probe: warm-up`.
    WarmUp,
    /// A client's request.
    Work,
}

/// One request as the replica saw it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Counts connections of this replica from 0.
    pub connection: usize,
    /// Counts requests of this connection from 0.
    pub nth: usize,
    pub kind: Kind,
    pub method: String,
    pub path: String,
    /// Names as they were sent, in order.
    pub headers: Vec<(String, String)>,
    /// The head's bytes, blank line included.
    pub head: Vec<u8>,
    /// The body's bytes, without chunk framing.
    pub body: Vec<u8>,
    pub head_at: Instant,
    /// When the last byte of the request was read; `None` where it never came.
    pub complete_at: Option<Instant>,
    /// When the replica's script for it ended by itself.
    pub answered_at: Option<Instant>,
    /// When the peer closed the connection before the script ended: the abort.
    pub aborted_at: Option<Instant>,
}

impl Request {
    /// The first header of this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("the replica was sent JSON")
    }
}

/// One connection as the replica saw it.
#[derive(Clone, Debug)]
pub struct ConnectionNote {
    pub accepted: Instant,
    /// When FIN or RST of the peer was seen. Stays `None` where the replica closed first.
    pub peer_closed: Option<Instant>,
    /// When the replica closed it.
    pub closed: Option<Instant>,
}

/// What happens to a connection between two requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manners {
    /// Close (FIN) a connection that was idle for this long after an answer.
    pub idle_fin: Option<Duration>,
    /// Reset a connection on which a second POST arrives, without reading it.
    pub reset_reused: bool,
}

#[derive(Default)]
struct Notes {
    connections: Vec<ConnectionNote>,
    requests: Vec<Request>,
}

struct Behaviour {
    gets: HashMap<String, Script>,
    post: Script,
    warm_up: Script,
    accept: Option<AcceptHook>,
    before_body: Option<HeadHook>,
    manners: Manners,
}

/// What the replica, its connections' threads and the test share.
pub struct Shared {
    notes: Mutex<Notes>,
    behaviour: Mutex<Behaviour>,
    sent: AtomicU64,
}

impl Shared {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap()
    }

    fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap()
    }
}

/// A running replica. Dropping it closes its port; its connections end with their peers.
pub struct Replica {
    address: SocketAddr,
    shared: Arc<Shared>,
    port: Mutex<Option<Port>>,
}

struct Port {
    closing: Arc<AtomicBool>,
    accepting: thread::JoinHandle<()>,
}

impl Replica {
    /// Starts a healthy replica that lists `model` and answers every POST with a short completion.
    pub fn start(model: &str) -> Self {
        let gets = [
            ("/health", script::answer(200, "text/plain", "")),
            ("/v1/models", script::models(&[model])),
            ("/metrics", script::answer(200, "text/plain; version=0.0.4", script::metrics_text(0, 0, 0.0))),
        ];
        let behaviour = Behaviour {
            gets: gets.into_iter().map(|(path, script)| (path.to_owned(), script)).collect(),
            post: script::good("cc-1", &["ok"]),
            warm_up: script::good("cc-warm-up", &["w"]),
            accept: None,
            before_body: None,
            manners: Manners::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            notes: Mutex::default(),
            behaviour: Mutex::new(behaviour),
            sent: AtomicU64::new(0),
        });
        let port = Mutex::new(Some(Port::open(listener, &shared)));
        Self { address, shared, port }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers GET `path` so from the next request on.
    pub fn on_get(&self, path: &str, script: Script) {
        self.shared.behaviour().gets.insert(path.to_owned(), script);
    }

    /// Answers clients' requests so from the next one on.
    pub fn on_post(&self, script: Script) {
        self.shared.behaviour().post = script;
    }

    pub fn on_warm_up(&self, script: Script) {
        self.shared.behaviour().warm_up = script;
    }

    /// Does this with each new connection, probes' included; `None` takes it back.
    pub fn on_accept(&self, hook: Option<AcceptHook>) {
        self.shared.behaviour().accept = hook;
    }

    /// Does this with each POST whose head is read and whose body is not; warm-ups excepted.
    pub fn before_body(&self, hook: Option<HeadHook>) {
        self.shared.behaviour().before_body = hook;
    }

    pub fn manners(&self, manners: Manners) {
        self.shared.behaviour().manners = manners;
    }

    /// Closes the port: new connections are refused, those that exist live on.
    pub fn close_port(&self) {
        if let Some(port) = self.port.lock().unwrap().take() {
            port.close(self.address);
        }
    }

    /// Opens the same port again.
    pub fn reopen_port(&self) {
        let listener =
            eventually_some(PATIENCE, "the port is free again", || TcpListener::bind(self.address).ok());
        *self.port.lock().unwrap() = Some(Port::open(listener, &self.shared));
    }

    /// Clients' requests, in the order their heads came.
    pub fn requests(&self) -> Vec<Request> {
        self.requests_of(Kind::Work)
    }

    pub fn requests_of(&self, kind: Kind) -> Vec<Request> {
        self.shared.notes().requests.iter().filter(|request| request.kind == kind).cloned().collect()
    }

    pub fn connections(&self) -> Vec<ConnectionNote> {
        self.shared.notes().connections.clone()
    }

    /// Waits until `n` requests of clients were read whole, and returns them all.
    pub fn wait_requests(&self, n: usize) -> Vec<Request> {
        eventually(PATIENCE, &format!("{n} whole requests at {}", self.address), || {
            self.requests().iter().filter(|request| request.complete_at.is_some()).count() >= n
        });
        self.requests()
    }

    /// Waits until the peer has closed the connection of the `n`th request (from 0) before it was
    /// answered, and returns when.
    pub fn wait_abort(&self, n: usize) -> Instant {
        eventually_some(PATIENCE, &format!("abort of request {n} at {}", self.address), || {
            self.requests().get(n).and_then(|request| request.aborted_at)
        })
    }

    /// All bytes sent in answer to clients' requests so far.
    pub fn bytes_sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.close_port();
    }
}

impl Port {
    fn open(listener: TcpListener, shared: &Arc<Shared>) -> Self {
        let closing = Arc::new(AtomicBool::new(false));
        let accepting = thread::spawn({
            let (closing, shared) = (Arc::clone(&closing), Arc::clone(shared));
            move || {
                for stream in listener.incoming() {
                    if closing.load(Ordering::SeqCst) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || connection::serve(stream, shared));
                }
            }
        });
        Self { closing, accepting }
    }

    fn close(self, address: SocketAddr) {
        self.closing.store(true, Ordering::SeqCst);
        // Wakes the accept call.
        let _ = TcpStream::connect(address);
        let _ = self.accepting.join();
    }
}

/// Gives the nth POST that arrives at *any* of `replicas` the nth of `scripts`; the last one serves
/// all that follow. So a test needs no knowledge of which replica the gateway asks first.
pub fn on_posts_in_order(replicas: &[&Replica], scripts: Vec<Script>) {
    let shared = Arc::new((Mutex::new(0), scripts));
    for replica in replicas {
        let shared = Arc::clone(&shared);
        replica.on_post(Arc::new(move |conn, request| {
            let nth = {
                let mut next = shared.0.lock().unwrap();
                *next += 1;
                *next - 1
            };
            let script = Arc::clone(&shared.1[usize::min(nth, shared.1.len() - 1)]);
            script(conn, request)
        }));
    }
}

/// All clients' requests of several replicas by the time of their heads, each with the index of its
/// replica: the attempts of a single request, in order.
pub fn attempts(replicas: &[&Replica]) -> Vec<(usize, Request)> {
    let mut all: Vec<(usize, Request)> = replicas
        .iter()
        .enumerate()
        .flat_map(|(index, replica)| replica.requests().into_iter().map(move |request| (index, request)))
        .collect();
    all.sort_by_key(|(_, request)| request.head_at);
    all
}
